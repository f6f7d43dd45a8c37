"""Experience in git notes: nothing lost by concurrency, merges, rebase, squash or a fresh clone."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrarsi.errors import GitError
from infrarsi.vcs.notes import ANCHORS, REF, append_line, append_lines, merge, read_lines


def anchor(sandbox):
    return sandbox.repo.entries("HEAD")["config/base.json"].oid


def test_lines_are_kept_once_and_sorted(sandbox):
    repo, blob = sandbox.repo, anchor(sandbox)
    assert read_lines(repo) == {}
    for line in ('{"b":1}', '{"a":1}', '{"b":1}'):
        append_line(repo, blob, line)
    assert read_lines(repo) == {blob: (b'{"a":1}', b'{"b":1}')}
    assert sandbox.git("notes", "--ref=infrarsi", "show", blob) == '{"a":1}\n{"b":1}'
    assert repo.for_each_ref(ANCHORS) == {ANCHORS + blob: blob}
    for bad in ("", " ", "a\nb"):
        with pytest.raises(GitError):
            append_line(repo, blob, bad)


def test_twelve_writers_lose_nothing(sandbox):
    """R-G1."""
    blob = anchor(sandbox)
    script = (
        "import sys; from pathlib import Path\n"
        "from infrarsi.vcs.door import Repository; from infrarsi.vcs.notes import append_line\n"
        "repo = Repository.discover(Path(sys.argv[1]))\n"
        'for n in range(3): append_line(repo, sys.argv[2], \'{"w":%s,"n":%d}\' % (sys.argv[3], n))\n'
    )
    argv = [sys.executable, "-c", script, str(sandbox.root), blob]
    children = [subprocess.Popen([*argv, str(writer)]) for writer in range(12)]
    assert [child.wait(120) for child in children] == [0] * 12
    assert len(read_lines(sandbox.repo)[blob]) == 36


def test_two_clones_merge_without_loss(sandbox, tmp_path):
    """R-G1: diverged, merged in both directions, equal trees; fan-out and malformed lines kept."""
    blob = anchor(sandbox)
    append_line(sandbox.repo, blob, "shared")
    sandbox.git("clone", "-q", str(sandbox.root), str(tmp_path / "clone"))
    clone = type(sandbox)(tmp_path / "clone")
    clone.git("fetch", "-q", "origin", f"{REF}:refs/notes/origin/infrarsi")
    assert merge(clone.repo, "refs/notes/origin/infrarsi") == 1
    append_line(clone.repo, blob, "theirs {malformed")
    append_lines(sandbox.repo, {blob: ["ours", "shared"], sandbox.repo.entries("HEAD")["train.py"].oid: ["other"]})
    clone.git("fetch", "-q", "origin", f"{REF}:refs/notes/origin/infrarsi")
    sandbox.git("fetch", "-q", str(clone.root), f"{REF}:refs/notes/clone/infrarsi")
    assert merge(clone.repo, "refs/notes/origin/infrarsi") == 2
    assert merge(sandbox.repo, "refs/notes/clone/infrarsi") == 1
    assert read_lines(clone.repo) == read_lines(sandbox.repo)
    assert sandbox.repo.tree_of(REF) == clone.repo.tree_of(REF)
    assert read_lines(clone.repo)[blob] == (b"ours", b"shared", b"theirs {malformed")
    assert merge(clone.repo, "refs/notes/origin/infrarsi") == 0 and merge(clone.repo, "refs/notes/nowhere") == 0


def test_git_notes_fan_out_is_read_and_written(sandbox):
    repo, blob = sandbox.repo, anchor(sandbox)
    from infrarsi.vcs.commits import tree_with, write_commit

    tree = tree_with(repo, None, {f"{blob[:2]}/{blob[2:]}": b"one\n\n"})
    repo.update_ref(REF, write_commit(repo, tree, [], "notes"))
    append_line(repo, blob, "two")
    assert read_lines(repo) == {blob: (b"one", b"two")}
    assert sandbox.git("notes", "--ref=infrarsi", "show", blob) == "one\ntwo"


lines = st.lists(st.sampled_from(["a", "b", "c", "d", "é"]), max_size=3)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(left=lines, right=lines)
def test_merging_is_commutative(sandbox, left, right):
    """R-G1."""
    repo, blob = sandbox.repo, anchor(sandbox)
    trees = []
    for mine, theirs in ((left, right), (right, left)):
        for ref in (REF, "refs/notes/other"):
            if (oid := repo.read_ref(ref)) is not None:
                repo.delete_ref(ref, oid)
        append_lines(repo, {blob: theirs})
        if (oid := repo.read_ref(REF)) is not None:
            repo.update_ref("refs/notes/other", oid)
            repo.delete_ref(REF, oid)
        append_lines(repo, {blob: mine})
        merge(repo, "refs/notes/other")
        trees.append(read_lines(repo))
    assert trees[0] == trees[1] == ({blob: tuple(sorted({x.encode() for x in left + right}))} if left or right else {})
