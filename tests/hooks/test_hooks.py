"""The shell hooks, with real git and a git-infrarsi that says what the test wants (R-I4)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[2] / "hooks"


class Repo:
    """A repository with a promoted commit on branch `promoted`, and a verify that can be told to fail."""

    def __init__(self, root):
        self.root, self.bin = root / "work", root / "bin"
        self.bin.mkdir()
        self.root.mkdir()
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c",
        }  # fmt: skip
        self.verify(0)
        self.git("init", "-q", "-b", "main")
        self.commit("base", "base")
        self.git("switch", "-q", "-c", "promoted")
        self.promoted = self.commit("fast", "fast\n\nInfrarsi-Audit: x")
        self.git("switch", "-q", "-c", "plain", "main")
        self.commit("plain", "plain")
        self.git("switch", "-q", "main")
        self.commit("other", "other")

    def verify(self, code):
        """Install a git-infrarsi that notes what it was asked and exits with `code`; None removes it."""
        tool = self.bin / "git-infrarsi"
        if code is None:
            tool.unlink()
            return
        tool.write_text(f'#!/bin/sh\necho "$@" >>"{self.bin}/asked"\nexit {code}\n')
        tool.chmod(0o755)

    @property
    def asked(self):
        path = self.bin / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def commit(self, name, message):
        (self.root / name).write_text(name)
        self.git("add", name)
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD").stdout.strip()

    def git(self, *args, ok=True, cwd=None):
        done = subprocess.run(
            ["git", *args], cwd=cwd or self.root, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    def install(self, name, folder=None):
        target = (folder or self.root / ".git" / "hooks") / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(HOOKS / name, target)
        return target


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path)


def test_a_merge_of_a_verified_commit_goes_through(repo):
    repo.install("pre-merge-commit")
    repo.git("merge", "-q", "--no-edit", "promoted")
    assert repo.asked == [f"verify {repo.promoted}"]


@pytest.mark.parametrize("code", [1, 128, None])
def test_a_merge_that_does_not_verify_is_refused_also_without_the_tool(repo, code):
    repo.install("pre-merge-commit")
    repo.verify(code)
    done = repo.git("merge", "--no-edit", "promoted", ok=False)
    assert done.returncode != 0 and "merge refused" in done.stderr
    assert repo.git("rev-list", "--count", "--merges", "HEAD").stdout.strip() == "0"


def test_a_refused_merge_cannot_be_completed_by_commit(repo):
    repo.install("pre-merge-commit")
    repo.install("commit-msg")
    repo.verify(1)
    repo.git("merge", "--no-edit", "promoted", ok=False)
    done = repo.git("commit", "-m", "anyway", ok=False)
    assert done.returncode != 0 and "commit refused" in done.stderr
    repo.verify(0)
    repo.git("commit", "-q", "-m", "now it verifies")


def test_what_was_not_promoted_is_not_asked_about(repo):
    for name in ("pre-merge-commit", "commit-msg"):
        repo.install(name)
    repo.verify(1)
    repo.git("merge", "-q", "--no-edit", "plain")
    repo.commit("more", "an ordinary commit")
    assert repo.asked == []


def test_a_trailer_in_other_letters_is_seen(repo):
    repo.install("pre-merge-commit")
    repo.git("switch", "-q", "-c", "sly", "promoted~1")
    sly = repo.commit("sly", "x\n\ninfrarsi-audit: y")
    repo.git("switch", "-q", "main")
    repo.git("merge", "-q", "--no-edit", "sly")
    assert repo.asked == [f"verify {sly}"]


@pytest.mark.parametrize("code", [0, 1])
def test_a_hook_that_was_there_runs_first_and_can_refuse(repo, code):
    hook = repo.install("pre-merge-commit")
    local = hook.with_name("pre-merge-commit.local")
    local.write_text(f"#!/bin/sh\nexit {code}\n")
    local.chmod(0o755)
    done = repo.git("merge", "--no-edit", "promoted", ok=False)
    assert (done.returncode == 0) == (code == 0)
    assert len(repo.asked) == (1 if code == 0 else 0)


@pytest.fixture
def server(repo, tmp_path):
    bare = tmp_path / "server.git"
    repo.git("init", "-q", "--bare", str(bare), cwd=tmp_path)
    repo.git("push", "-q", str(bare), "main")
    repo.install("pre-receive", bare / "hooks")
    return bare


def test_a_push_is_gated(repo, server):
    repo.verify(1)
    done = repo.git("push", str(server), "promoted", ok=False)
    assert done.returncode != 0 and "does not verify" in done.stderr
    repo.git("push", "-q", str(server), "plain")
    repo.git("push", "-q", str(server), "promoted:refs/infrarsi/runs/x")
    # That the server has the commit under another ref, where nothing is checked, does not open the branch.
    assert repo.git("push", str(server), "promoted", ok=False).returncode != 0
    repo.verify(0)
    repo.git("push", "-q", str(server), "promoted", "plain:again")
    repo.git("push", "-q", str(server), "--delete", "again")


def test_a_push_of_a_good_and_a_bad_branch_is_refused_whole(repo, server):
    repo.verify(1)
    done = repo.git("push", str(server), "plain", "promoted", ok=False)
    assert done.returncode != 0
    assert "plain" not in repo.git("branch", cwd=server).stdout


def test_the_server_chains_with_the_same_input(repo, server, tmp_path):
    local = server / "hooks" / "pre-receive.local"
    local.write_text(f"#!/bin/sh\ncat >{tmp_path}/seen\n")
    local.chmod(0o755)
    repo.git("push", "-q", str(server), "promoted")
    assert repo.promoted in (tmp_path / "seen").read_text()
    assert repo.asked == [f"verify {repo.promoted}"]
