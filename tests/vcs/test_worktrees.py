"""Worktrees: present while on trial, gone afterwards, whatever happens."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from infrarsi.errors import GitError
from infrarsi.vcs.commits import build_candidate
from infrarsi.vcs.worktrees import live, prune_stale, worktree


def registered(sandbox):
    return sandbox.git("worktree", "list", "--porcelain").count("worktree ")


def test_a_candidate_is_checked_out_and_removed(sandbox):
    """R-E1."""
    repo = sandbox.repo
    sandbox.write("train.py", "dirty\n")
    before = sandbox.everything()
    commit = build_candidate(repo, repo.head(), [], {"train.py": b"candidate\n"}, "c")
    with worktree(repo, commit, "r-1") as path:
        assert path == repo.common_dir / "infrarsi" / "worktrees" / "r-1"
        assert (path / "train.py").read_text() == "candidate\n" and not (path / "data").exists()
        assert [(t.path, t.pid, t.alive) for t in live(repo)] == [(path, os.getpid(), True)]
        assert prune_stale(repo) == ()
        with pytest.raises(GitError) as caught, worktree(repo, commit, "r-1"):
            pass
        assert caught.value.code == "busy"
    assert not path.exists() and registered(sandbox) == 1
    assert sandbox.everything() == before


def test_links_are_removed_and_never_followed(sandbox):
    """R-E1: the linked data of the user survives; read-only folders go."""
    repo = sandbox.repo
    with pytest.raises(RuntimeError), worktree(repo, repo.head(), "r-2") as path:
        (path / "data").symlink_to(sandbox.root / "data")
        (path / "out").mkdir()
        (path / "out" / "x").write_text("x")
        (path / "out").chmod(0o500)
        raise RuntimeError
    assert not path.exists() and registered(sandbox) == 1
    assert (sandbox.root / "data" / "train.bin").read_bytes() == b"\0\1\2"


def test_many_at_once(sandbox):
    repo = sandbox.repo
    failures = []

    def one(number):
        try:
            with worktree(repo, repo.head(), f"r-{number}") as path:
                assert (path / "train.py").exists()
        except (GitError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and registered(sandbox) == 1


def test_what_a_killed_process_left_is_pruned(sandbox):
    """R-E2, R-E5."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from infrarsi.vcs.door import Repository; from infrarsi.vcs.worktrees import worktree\n"
        "repo = Repository.discover(Path(sys.argv[1]))\n"
        "with worktree(repo, repo.head(), 'killed'):\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(sandbox.root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    repo = sandbox.repo
    path = repo.common_dir / "infrarsi" / "worktrees" / "killed"
    assert prune_stale(repo) == ()
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    assert prune_stale(repo, dry_run=True) == (path,) and path.exists()
    assert prune_stale(repo) == (path,) and not path.exists()
    assert prune_stale(repo) == () and registered(sandbox) == 1


def test_no_program_of_the_repository_runs_at_checkout(sandbox, tmp_path):
    """Hooks and smudge filters are programs of the repository's choosing."""
    mark = tmp_path / "ran"
    hook = sandbox.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    commit = sandbox.commit(**{".gitattributes": "*.py filter=evil\n"})
    sandbox.git("config", "filter.evil.smudge", f"touch {mark}; cat")
    sandbox.git("config", "filter.evil.required", "true")
    with worktree(sandbox.repo, commit, "r-3") as path:
        assert (path / "train.py").read_text().startswith("line 1\n")
    assert not mark.exists()


def test_sparse_checkout_and_linked_worktree(sandbox, tmp_path):
    """R-E6: the trial sees the whole tree, also where the user's own is sparse or linked."""
    sandbox.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    sandbox.root = tmp_path / "linked"
    sandbox.git("sparse-checkout", "set", "config")
    with worktree(sandbox.repo, "HEAD", "r-4") as path:
        assert (path / "config" / "base.json").exists() and (path / "train.py").exists()
        assert path.is_relative_to(tmp_path / "project" / ".git")


def test_submodules_are_filled_from_the_users_checkout(sandbox, tmp_path):
    """R-E6."""
    sandbox.git("init", "-q", str(tmp_path / "library"))
    inner = type(sandbox)(tmp_path / "library")
    inner.commit("inner", **{"lib.py": "x = 1\n"})
    sandbox.git("submodule", "--quiet", "add", str(inner.root), "vendor/lib")
    commit = sandbox.commit()
    assert "vendor/lib" not in sandbox.repo.tracked_files()
    with worktree(sandbox.repo, commit, "r-5") as path:
        assert (path / "vendor" / "lib" / "lib.py").read_text() == "x = 1\n"
        assert not (path / "vendor" / "lib" / ".git").exists()
    sandbox.git("submodule", "--quiet", "deinit", "-f", "vendor/lib")
    with pytest.raises(GitError) as caught, worktree(sandbox.repo, commit, "r-6"):
        pass
    assert caught.value.code == "submodule-missing" and "submodule update" in caught.value.hint
    assert registered(sandbox) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", ".hidden"])
def test_names_stay_inside_the_folder(sandbox, name):
    with pytest.raises(GitError), worktree(sandbox.repo, "HEAD", name):
        pass


def test_the_users_own_worktrees_are_left_alone(sandbox, tmp_path):
    """R-E1: one on a disk that is not mounted just now stays registered."""
    linked = tmp_path / "usb"
    sandbox.git("worktree", "add", "-q", "-b", "linked", str(linked))
    linked.rename(tmp_path / "unplugged")
    with worktree(sandbox.repo, "HEAD", "r-7"):
        pass
    stale = sandbox.repo.common_dir / "infrarsi" / "worktrees" / "left"
    stale.mkdir()
    assert prune_stale(sandbox.repo) == (stale,)
    (tmp_path / "unplugged").rename(linked)
    assert type(sandbox)(linked).git("status", "--porcelain") == "" and registered(sandbox) == 2


def test_lfs_contents_come_from_this_machine_or_stay_pointers(sandbox):
    """R-E6: without git-lfs, without the network; only content with the pointer's own digest."""
    import hashlib

    from infrarsi.vcs.lfs import lfs_pointers

    def pointer(content):
        digest = hashlib.sha256(content).hexdigest()
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n", digest

    names = {"here.bin": b"in the tree", "store.bin": b"in the store", "other.bin": b"elsewhere"}
    files = {name: pointer(content)[0] for name, content in names.items()}
    assert lfs_pointers(sandbox.repo, "HEAD") == {}
    commit = sandbox.commit(**files, **{".gitattributes": "*.bin filter=lfs\n"})
    digest = pointer(b"in the store")[1]
    sandbox.write(f".git/lfs/objects/{digest[:2]}/{digest[2:4]}/{digest}", b"in the store")
    sandbox.write("here.bin", b"in the tree")
    sandbox.write("other.bin", b"changed")
    assert lfs_pointers(sandbox.repo, commit) == {name: pointer(content)[1] for name, content in names.items()}
    with worktree(sandbox.repo, commit, "r-8") as path:
        found = {name: (path / name).read_text() for name in names}
    assert found == {"here.bin": "in the tree", "store.bin": "in the store", "other.bin": files["other.bin"]}
