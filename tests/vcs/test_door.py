"""The door: clean environment, errors with a way out, refs by compare-and-swap."""

import os
import subprocess

import pytest

from infrarsi.errors import GitError
from infrarsi.vcs import parse
from infrarsi.vcs.door import ABSENT, Repository, colorbool
from infrarsi.vcs.process import environment


def code_of(call, *args, **kwargs):
    with pytest.raises(GitError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_discover_from_a_subdirectory_and_a_linked_worktree(sandbox, tmp_path):
    assert Repository.discover(sandbox.root / "config").root == sandbox.root
    sandbox.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    linked = Repository.discover(tmp_path / "linked")
    assert linked.root == tmp_path / "linked"
    assert linked.state_dir == sandbox.repo.state_dir == sandbox.root / ".git" / "infrarsi"
    assert linked.branch() == "other"


def test_repositories_we_cannot_work_in_say_what_to_do(tmp_path, sandbox):
    """R-E6."""
    outside = tmp_path / "plain"
    outside.mkdir()
    assert code_of(Repository.discover, outside).code == "not-a-repository"
    sandbox.git("clone", "-q", "--bare", str(sandbox.root), str(tmp_path / "bare"))
    assert code_of(Repository.discover, tmp_path / "bare").code == "bare"
    assert Repository.discover(tmp_path / "bare", bare=True).head() == sandbox.repo.head()
    assert code_of(Repository.discover, sandbox.root / ".git").code == "inside-git"
    sandbox.git("init", "-q", str(tmp_path / "unborn"))
    error = code_of(Repository.discover(tmp_path / "unborn").head)
    assert error.code == "unborn" and "git commit" in error.hint
    assert code_of(Repository.discover, tmp_path / "nowhere").code == "program-missing"


def test_a_foreign_owned_repository_is_refused(sandbox, monkeypatch):
    """R-E6."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert "GIT_TEST_ASSUME_DIFFERENT_OWNER" not in environment(os.environ)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "12345", str(sandbox.root)], check=True)
        error = code_of(Repository.discover, sandbox.root)
        assert error.code == "foreign-owner" and "safe.directory" in error.hint


def test_git_missing(sandbox, monkeypatch, tmp_path):
    """R-E6."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_of(Repository.discover, sandbox.root).code == "program-missing"


def test_head_branch_and_revisions(sandbox):
    repo = sandbox.repo
    first = repo.head()
    assert repo.branch() == "main"
    second = sandbox.commit("second", **{"new.py": "x = 1\n"})
    assert repo.is_ancestor(first, second) and not repo.is_ancestor(second, first)
    assert repo.parents(second) == (first,) and repo.commits(f"{first}..{second}") == (second,)
    assert repo.resolve("main~1") == first
    for bad in ("nope", "-x", "", "main:train.py"):
        assert code_of(repo.resolve, bad).code == "unknown-revision"
    sandbox.git("checkout", "-q", "--detach")
    assert repo.branch() is None


def test_inherited_git_variables_do_not_reach_our_calls(sandbox, monkeypatch, tmp_path):
    head = sandbox.repo.head()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.bare=true'")
    assert Repository.discover(sandbox.root).head() == head
    clean = environment({"GIT_DIR": "x", "GIT_AUTHOR_NAME": "a", "PATH": "/bin", "GIT_OBJECT_DIRECTORY": "q"})
    assert "GIT_DIR" not in clean and clean["GIT_AUTHOR_NAME"] == "a" and "GIT_OBJECT_DIRECTORY" not in clean
    assert environment({"GIT_OBJECT_DIRECTORY": "q"}, quarantine=True)["GIT_OBJECT_DIRECTORY"] == "q"


def test_replace_refs_cannot_show_another_commit(sandbox):
    repo = sandbox.repo
    first = repo.head()
    other = sandbox.commit("other", **{"train.py": "evil\n"})
    sandbox.git("replace", first, other)
    assert Repository.discover(sandbox.root).read_blob(first, "train.py") != b"evil\n"


def test_files_of_a_commit(sandbox):
    sandbox.write("deep/wéird name\n.py", "x\n")
    (sandbox.root / "link.py").symlink_to("train.py")
    commit = sandbox.commit()
    repo = sandbox.repo
    assert set(repo.tracked_files()) == {
        ".gitignore",
        "config/base.json",
        "train.py",
        "deep/wéird name\n.py",
        "link.py",
    }
    assert repo.read_blob(commit, "deep/wéird name\n.py") == b"x\n"
    assert repo.read_blob("HEAD", "link.py") == b"train.py"
    assert repo.read_blob(commit, "deep") is None and repo.read_blob(commit, "nope") is None
    oid = repo.entries(commit)["train.py"].oid
    assert repo.read_blobs([oid, "0" * 40]) == {oid: repo.read_blob(commit, "train.py")}


def test_dirty_and_ignored_paths(sandbox):
    """R-E1, R-E4: looking leaves the index as it was."""
    sandbox.write("train.py", "changed\n")
    sandbox.write("fresh file.py", "x\n")
    sandbox.git("rm", "-q", "--cached", "config/base.json")
    before = sandbox.everything()
    found = {d.path: d.status for d in sandbox.repo.dirty_paths()}
    assert found["train.py"] == " M" and found["fresh file.py"] == "??" and found["config/base.json"] in ("D ", "??")
    assert sandbox.repo.ignored_files() == ("data/train.bin",)
    assert sandbox.everything() == before


def test_changes_carry_raw_modes(sandbox):
    base = sandbox.repo.head()
    (sandbox.root / "config/base.json").unlink()
    (sandbox.root / "train.py").chmod(0o755)
    (sandbox.root / "link").symlink_to("/etc/passwd")
    sandbox.write("renamed.py", "new\n")
    tip = sandbox.commit()
    found = {c.path: (c.status, c.old_mode, c.new_mode) for c in sandbox.repo.changes(base, tip)}
    assert found == {
        "config/base.json": ("D", "100644", "000000"),
        "train.py": ("M", "100644", "100755"),
        "link": ("A", "000000", "120000"),
        "renamed.py": ("A", "000000", "100644"),
    }


def test_diff_ignores_the_users_taste(sandbox):
    base = sandbox.repo.head()
    tip = sandbox.commit("x", **{"train.py": "other\n"})
    plain = sandbox.repo.diff(base, tip)
    for key, value in (("diff.noprefix", "true"), ("diff.external", "false"), ("color.ui", "always")):
        sandbox.git("config", key, value)
    sandbox.git("config", "diff.algorithm", "patience")
    assert sandbox.repo.diff(base, tip) == plain and "--- a/train.py" in plain


def test_patch_id_is_stable_under_a_moved_base_and_sees_whitespace(sandbox):
    """R-I1: an indentation can move a statement out of a loop; git's own patch-id would not see it."""
    repo, base = sandbox.repo, sandbox.repo.head()
    text = (sandbox.root / "train.py").read_text()
    sandbox.git("checkout", "-q", "-b", "a")
    a = sandbox.commit("a", **{"train.py": text.replace("line 20\n", "line twenty\n")})
    sandbox.git("checkout", "-q", "-b", "b", base)
    moved = sandbox.commit("prefix", **{"train.py": "a new first line\n" + text, "other.py": "y\n"})
    sandbox.git("cherry-pick", a)
    b = sandbox.git("rev-parse", "HEAD")
    assert repo.patch_id(base, a) == repo.patch_id(moved, b) != ""
    sandbox.git("checkout", "-q", "-b", "c", base)
    c = sandbox.commit("c", **{"train.py": text.replace("line 20\n", "  line twenty\n")})
    assert repo.patch_id(base, c) != repo.patch_id(base, a)
    d = sandbox.commit("d", **{"train.py": text})
    assert repo.patch_id(base, d) == ""


def test_patch_id_sees_modes_and_binary_contents(sandbox):
    repo, base = sandbox.repo, sandbox.repo.head()
    sandbox.write("w.bin", b"\0one")
    one = sandbox.commit()
    sandbox.git("checkout", "-q", base)
    sandbox.write("w.bin", b"\0two")
    two = sandbox.commit()
    assert repo.patch_id(base, one) != repo.patch_id(base, two)
    sandbox.git("checkout", "-q", base)
    (sandbox.root / "train.py").chmod(0o755)
    assert repo.patch_id(base, sandbox.commit()) != ""


def test_trailers_are_those_of_the_last_paragraph_only(sandbox):
    """R-I2: quoted text, prose and `---` neither add nor hide trailers."""
    read = parse.trailers
    assert read("s\n\nbody\n\nA: 1\nB: 2\n") == (("A", "1"), ("B", "2"))
    assert read("s\n\n> A: 1\n\nbye\n") == ()
    assert read("s\n\nA: 1\n\nlater\n") == ()
    assert read("A: 1\n") == () and read("") == ()
    assert read("s\n\n---\nquoted\n\nA: 1\n") == (("A", "1"),)
    assert read("s\n\nA: 1\nprose between\nB: 2\n") == ()
    assert read("s\n\nA: 1\n more\n") == (("A", "1 more"),)
    assert read(f"s\n\nA: 1\n(cherry picked from commit {'a' * 40})\n") == (("A", "1"),)
    sandbox.git("commit", "-q", "--allow-empty", "-m", "subject\n\nX-Key: one\nx-key: two")
    assert sandbox.repo.trailers("HEAD", "X-Key") == ("one", "two")


def test_refs_move_by_compare_and_swap(sandbox):
    repo, first = sandbox.repo, sandbox.repo.head()
    second = sandbox.commit()
    repo.update_ref("refs/infrarsi/runs/x", first, ABSENT)
    assert code_of(repo.update_ref, "refs/infrarsi/runs/x", second, ABSENT).code == "ref-moved"
    assert code_of(repo.update_ref, "refs/infrarsi/runs/x", second, second).code == "ref-moved"
    repo.update_ref("refs/infrarsi/runs/x", second, first)
    assert repo.for_each_ref("refs/infrarsi/runs") == {"refs/infrarsi/runs/x": second}
    assert code_of(repo.delete_ref, "refs/infrarsi/runs/x", first).code == "ref-moved"
    repo.delete_ref("refs/infrarsi/runs/x", second)
    assert repo.read_ref("refs/infrarsi/runs/x") is None


def test_a_checked_out_branch_is_never_moved(sandbox, tmp_path):
    """R-E1."""
    repo, first = sandbox.repo, sandbox.repo.head()
    sandbox.git("worktree", "add", "-q", "-b", "elsewhere", str(tmp_path / "linked"))
    second = sandbox.commit()
    for branch in ("main", "elsewhere"):
        assert code_of(repo.update_ref, f"refs/heads/{branch}", first).code == "checked-out"
        assert code_of(repo.delete_ref, f"refs/heads/{branch}", first).code == "checked-out"
    assert repo.head() == second


def test_a_sha256_repository_works(tmp_path, sandbox):
    """R-E6."""
    from infrarsi.vcs.commits import build_candidate

    sandbox.git("init", "-q", "--object-format=sha256", str(tmp_path / "long"))
    sandbox.root = tmp_path / "long"
    base = sandbox.commit("start", **{"train.py": "x\n", "old.py": "y\n"})
    repo = sandbox.repo
    commit = build_candidate(repo, base, [], {"train.py": b"z\n", "old.py": None}, "c")
    assert len(commit) == 64 and repo.read_blob(commit, "train.py") == b"z\n"
    assert {c.status for c in repo.changes(base, commit)} == {"M", "D"}


def test_a_shallow_clone_says_that_the_base_is_missing(sandbox, tmp_path):
    """R-E6."""
    first = sandbox.repo.head()
    sandbox.commit()
    sandbox.git("clone", "-q", "--depth=1", f"file://{sandbox.root}", str(tmp_path / "shallow"))
    shallow = Repository.discover(tmp_path / "shallow")
    assert shallow.head() == sandbox.repo.head()
    assert code_of(shallow.resolve, first).code == "unknown-revision"


def test_colour_follows_git(sandbox, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # git gives a dumb terminal no colour
    monkeypatch.chdir(sandbox.root)
    assert colorbool("color.infrarsi", True) and not colorbool("color.infrarsi", False)
    sandbox.git("config", "color.infrarsi", "never")
    assert not colorbool("color.infrarsi", True)
