"""Candidate commits: built beside the user's work tree, patches repaired by a recorded ladder, or refused whole."""

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrarsi.errors import GitError
from infrarsi.vcs.commits import apply_patch, build_candidate

PLAIN = """\
--- a/train.py
+++ b/train.py
@@ -9,5 +9,5 @@
 line 9
 line 10
-line 11
+line eleven
 line 12
 line 13
"""


def changed(sandbox, tree):
    base = sandbox.repo.head()
    return {c.path: sandbox.repo.read_blob(tree, c.path) for c in sandbox.repo.changes(base, tree)}


def expected(old="line 11\n", new="line eleven\n"):
    return "".join(f"line {n}\n" for n in range(1, 31)).replace(old, new).encode()


@pytest.mark.parametrize(
    ("rule", "diff"),
    [
        ("plain", PLAIN),
        ("plain", "diff --git a/train.py b/train.py\n" + PLAIN),
        ("no prefix", PLAIN.replace("a/train", "train").replace("b/train", "train")),
        ("located", PLAIN.replace("a/train", "train").replace("b/train", "train").replace("@@ -9,5 +9,5 @@", "@@")),
        ("final newline", PLAIN.removesuffix("\n")),
        ("recount", PLAIN.replace("-9,5 +9,5", "-9,9 +9,2")),
        ("located", PLAIN.replace("@@ -9,5 +9,5 @@", "@@")),
        ("located", PLAIN.replace("@@ -9,5 +9,5 @@", "@@ ... @@")),
        ("located", "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n line 10\n-line 11\n+line eleven\n"),
        ("less context", PLAIN.replace(" line 9\n", " line nine\n").replace(" line 13\n", " line XIII\n")),
        ("whitespace", PLAIN.replace(" line 10\n", " line  10\n").replace(" line 12\n", " line  12\n")),
    ],
)
def test_the_ladder_repairs_what_models_write(sandbox, rule, diff):
    """R-F2."""
    result = apply_patch(sandbox.repo, sandbox.repo.head(), diff)
    assert (result.rule, result.files) == (rule, ("train.py",))
    assert changed(sandbox, result.tree) == {"train.py": expected()}


def test_a_missing_prefix_does_not_hit_a_namesake(sandbox):
    text = expected().decode().replace("line eleven", "line 11")
    sandbox.commit(**{"pkg/train.py": text})
    diff = PLAIN.replace("a/train", "pkg/train").replace("b/train", "pkg/train")
    assert apply_patch(sandbox.repo, "HEAD", diff).files == ("pkg/train.py",)


def test_line_ends_follow_the_file(sandbox):
    """R-F2: an LF patch to a CRLF file, and the other way round, leave no mixed line ends."""
    crlf = expected().replace(b"line eleven", b"line 11").replace(b"\n", b"\r\n")
    sandbox.write("train.py", crlf)
    sandbox.commit()
    result = apply_patch(sandbox.repo, sandbox.repo.head(), PLAIN)
    assert result.rule == "line ends"
    assert changed(sandbox, result.tree)["train.py"] == crlf.replace(b"line 11", b"line eleven")
    sandbox.write("train.py", crlf.replace(b"\r\n", b"\n"))
    sandbox.commit()
    result = apply_patch(sandbox.repo, sandbox.repo.head(), PLAIN.replace("\n", "\r\n"))
    assert changed(sandbox, result.tree)["train.py"] == expected()


def test_a_file_without_a_final_newline(sandbox):
    """R-F2."""
    sandbox.write("train.py", "a\nb\nc")
    sandbox.commit()
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    assert changed(sandbox, apply_patch(sandbox.repo, "HEAD", diff).tree)["train.py"] in (b"a\nB\nc", b"a\nB\nc\n")


@pytest.mark.parametrize(
    ("code", "diff"),
    [
        ("patch-empty", ""),
        ("patch-empty", "Sorry, I cannot help with that.\n"),
        ("patch-empty", PLAIN.replace("+line eleven", "+line 11")),
        ("patch-unappliable", PLAIN.replace("line 1", "row 1")),
        ("patch-unappliable", PLAIN.replace("a/train.py", "a/nope.py").replace("b/train.py", "b/nope.py")),
        ("patch-unappliable", PLAIN.replace("train.py", "../train.py")),
        ("patch-unappliable", PLAIN.replace("a/train.py", "/etc/passwd").replace("b/train.py", "/etc/passwd")),
        ("patch-unappliable", PLAIN + "--- a/config/base.json\n+++ b/config/base.json\n@@ -1 +1 @@\n-wrong\n+x\n"),
        ("patch-unappliable", "--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+[core]\n"),
        ("patch-unappliable", "diff --git a/w b/w\nindex 1..2 100644\nGIT binary patch\nliteral 9\nnot base85\n"),
    ],
)
def test_what_does_not_apply_is_refused_whole(sandbox, code, diff):
    """R-F1, R-F2."""
    before = sandbox.everything()
    with pytest.raises(GitError) as caught:
        apply_patch(sandbox.repo, sandbox.repo.head(), diff)
    assert caught.value.code == code and caught.value.hint
    assert sandbox.everything() == before


def test_an_ambiguous_place_is_not_guessed(sandbox):
    sandbox.write("train.py", "x = 1\ny = 2\n" * 4)
    sandbox.commit()
    with pytest.raises(GitError) as caught:
        apply_patch(sandbox.repo, "HEAD", "--- a/train.py\n+++ b/train.py\n@@\n-x = 1\n+x = 3\n")
    assert caught.value.code == "patch-unappliable"


def test_building_touches_nothing_of_the_users(sandbox, monkeypatch):
    """R-E1: from a subdirectory, with a dirty tree and a half staged index."""
    sandbox.write("train.py", "half done\n")
    sandbox.write("config/new.txt", "untracked\n")
    sandbox.git("add", "train.py")
    sandbox.write("train.py", "more\n")
    before, status = sandbox.everything(), sandbox.git("status", "--porcelain")
    monkeypatch.chdir(sandbox.root / "config")
    commit = build_candidate(sandbox.repo, sandbox.repo.head(), [PLAIN], {"config/base.json": b"{}\n"}, "candidate")
    assert changed(sandbox, commit) == {"train.py": expected(), "config/base.json": b"{}\n"}
    assert sandbox.everything() == before and sandbox.git("status", "--porcelain") == status


def test_equal_arguments_give_the_same_commit(sandbox):
    repo, base = sandbox.repo, sandbox.repo.head()
    one = build_candidate(repo, base, [PLAIN], {}, "m")
    assert build_candidate(repo, base, [PLAIN], {}, "m") == one
    assert repo.parents(one) == (base,) and repo.commit_message(one) == "m"
    assert sandbox.git("log", "-1", "--format=%an <%ae>", one) == "infrarsi <infrarsi@localhost>"


def patch(old, new):
    """A diff of one line of train.py with difflib's context, as codemods write it."""
    import difflib

    before = expected("", "").decode().splitlines(keepends=True)
    after = [f"{new}\n" if line == f"{old}\n" else line for line in before]
    return "".join(difflib.unified_diff(before, after, "a/train.py", "b/train.py"))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([2, 5, 8, 11, 14, 17, 20, 23]), min_size=2, max_size=4, unique=True))
def test_patches_combine_in_any_order(sandbox, lines):
    """Diffs against one base, with overlapping context, merge; the order does not matter."""
    repo, base = sandbox.repo, sandbox.repo.head()
    diffs = [patch(f"line {n}", f"new {n}") for n in lines]
    trees = {repo.tree_of(build_candidate(repo, base, order, {}, "m")) for order in itertools.permutations(diffs)}
    assert len(trees) == 1


def test_patches_that_touch_the_same_lines_conflict(sandbox):
    repo, base = sandbox.repo, sandbox.repo.head()
    same = patch("line 5", "new 5")
    with pytest.raises(GitError) as caught:
        build_candidate(repo, base, [same, patch("line 5", "other 5")], {}, "m")
    assert caught.value.code == "patch-conflict" and "train.py" in caught.value.why
    assert repo.tree_of(build_candidate(repo, base, [same, same], {}, "m")) == apply_patch(repo, base, same).tree


def test_a_patch_that_needs_another_one_goes_on_top_of_it(sandbox):
    repo, base = sandbox.repo, sandbox.repo.head()
    first = patch("line 5", "new 5")
    second = first.replace("-line 5", "-new 5").replace("+new 5", "+newer 5")
    commit = build_candidate(repo, base, [first, second], {}, "m")
    assert b"newer 5" in repo.read_blob(commit, "train.py")


def test_new_and_deleted_files(sandbox):
    repo, base = sandbox.repo, sandbox.repo.head()
    diff = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+a = 1\n+b = 2\n"
    commit = build_candidate(repo, base, [diff, PLAIN], {"config/base.json": None, "x/y.py": b"y\n"}, "m")
    assert changed(sandbox, commit) == {
        "pkg/new.py": b"a = 1\nb = 2\n",
        "config/base.json": None,
        "train.py": expected(),
        "x/y.py": b"y\n",
    }


def test_edits_keep_modes_and_do_not_leave_the_tree(sandbox):
    (sandbox.root / "train.py").chmod(0o755)
    (sandbox.root / "link").symlink_to("/tmp")
    base = sandbox.commit()
    repo = sandbox.repo
    commit = build_candidate(repo, base, (), {"train.py": b"x\n"}, "m")
    assert repo.entries(commit)["train.py"].mode == "100755" and repo.parents(commit) == (base,)
    bad = ("link", "link/x", "train.py/x", "../x", "/x", "a/../x", ".git/config", "sub/.GIT/hooks/x", "", "./x", "x//y")
    for path in bad:
        with pytest.raises(GitError) as caught:
            build_candidate(repo, base, (), {path: b"x"}, "m")
        assert caught.value.code == "bad-edit", path
    with pytest.raises(GitError):
        build_candidate(repo, base, (), {"absent.py": None}, "m")


def test_symlinks_and_modes_of_a_patch_show_as_raw_modes(sandbox):
    """R-A1: what git accepts, the scope check can see."""
    head = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n"
    diff = head + "@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n"
    result = apply_patch(sandbox.repo, "HEAD", diff)
    assert [(c.path, c.new_mode) for c in sandbox.repo.changes("HEAD", result.tree)] == [("l", "120000")]


def test_user_settings_do_not_change_what_is_applied(sandbox):
    for key, value in (("core.autocrlf", "true"), ("apply.whitespace", "fix"), ("apply.ignoreWhitespace", "change")):
        sandbox.git("config", key, value)
    diff = PLAIN.replace("+line eleven", "+line eleven  ")
    tree = apply_patch(sandbox.repo, "HEAD", diff).tree
    assert changed(sandbox, tree)["train.py"] == expected(new="line eleven  \n")


def test_a_read_only_repository_says_so(sandbox, monkeypatch):
    """R-E6. Root ignores modes, so the object folder is a file here."""
    repo = sandbox.repo
    objects = sandbox.root / ".git" / "objects"
    if os.geteuid() != 0:
        for folder in (objects, *objects.iterdir()):
            folder.chmod(0o500)
        with pytest.raises(GitError) as caught:
            apply_patch(repo, "HEAD", PLAIN)
        assert caught.value.code == "read-only"
        for folder in (objects, *objects.iterdir()):
            folder.chmod(0o700)
    from infrarsi.vcs.process import Completed, failure

    for text, code in (
        ("error: insufficient permission for adding an object", "read-only"),
        ("fatal: write error: No space left on device", "disk-full"),
        ("fatal: Unable to create '/x/index.lock': Read-only file system", "read-only"),
    ):
        assert failure(["x"], Completed(128, b"", text.encode())).code == code
