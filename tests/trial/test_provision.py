"""Declared data in the worktree (R-A10), and the set-up command."""

import pytest

from infrarsi.errors import TrialError, UsageError
from infrarsi.trial import sandbox
from infrarsi.trial.provision import provision


@pytest.fixture
def trees(tmp_path):
    origin, worktree = tmp_path / "origin", tmp_path / "worktree"
    (origin / "data").mkdir(parents=True)
    worktree.mkdir()
    (origin / "data/train.bin").write_bytes(b"train")
    (origin / "data/prepare.py").write_text("origin's")
    return origin, worktree


def test_files_and_folders_are_linked(trees):
    origin, worktree = trees
    provision(worktree, origin, ["data/train.bin"], [])
    assert (worktree / "data/train.bin").is_symlink() and (worktree / "data/train.bin").read_bytes() == b"train"
    assert not (worktree / "data/prepare.py").exists()
    provision(worktree, origin, ["data/train.bin"], [])


def test_what_the_commit_holds_is_never_replaced(trees):
    origin, worktree = trees
    (worktree / "data").mkdir()
    (worktree / "data/prepare.py").write_text("the commit's")
    provision(worktree, origin, ["data"], [])
    assert (worktree / "data/prepare.py").read_text() == "the commit's"
    assert (worktree / "data/train.bin").read_bytes() == b"train"
    assert not (worktree / "data").is_symlink()


def test_a_link_of_the_commit_leads_nowhere_else(trees, tmp_path):
    """R-A1: a candidate's symbolic link must not make us write outside the worktree."""
    origin, worktree = trees
    (tmp_path / "elsewhere").mkdir()
    (worktree / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TrialError, match="symbolic link"):
        provision(worktree, origin, ["data/train.bin"], [])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_missing_data_and_paths_that_leave(trees):
    origin, worktree = trees
    with pytest.raises(TrialError, match=r"data/val\.bin is not there"):
        provision(worktree, origin, ["data/val.bin"], [])
    with pytest.raises(UsageError, match="leaves the repository"):
        provision(worktree, origin, ["../secret"], [])
    provision(worktree, origin, [str(origin / "data/train.bin")], [])


def test_setup_runs_in_the_worktree_without_secrets(trees, monkeypatch):
    origin, worktree = trees
    monkeypatch.setenv("HF_TOKEN", "hf-1")
    code = "import os; open('built', 'w').write(os.environ.get('HF_TOKEN', 'none'))"
    provision(worktree, origin, [], ["python3", "-c", code], sandbox="off")
    assert (worktree / "built").read_text() == "none"


def test_setup_failures_say_what_the_command_said(trees):
    """R-D4: it has a deadline too."""
    origin, worktree = trees
    with pytest.raises(TrialError) as failed:
        provision(worktree, origin, [], ["sh", "-c", "echo no compiler >&2; exit 3"], sandbox="off")
    assert "no compiler" in failed.value.why and "(3)" in failed.value.what
    with pytest.raises(TrialError, match="in time"):
        provision(worktree, origin, [], ["sleep", "60"], sandbox="off", timeout_seconds=0.3)


def test_setup_of_untrusted_code_needs_a_sandbox(trees, monkeypatch):
    """R-A7: `setup` runs the candidate's own setup.py."""
    origin, worktree = trees
    monkeypatch.setattr(sandbox, "available", lambda: sandbox.Availability(False, "not here"))
    with pytest.raises(TrialError, match="written by a model"):
        provision(worktree, origin, [], ["touch", "ran"], untrusted=True)
    assert not (worktree / "ran").exists()
    provision(worktree, origin, [], ["touch", "ran"], untrusted=True, sandbox="off")
    assert (worktree / "ran").exists()
