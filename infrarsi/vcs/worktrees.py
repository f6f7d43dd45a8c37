"""Worktrees for candidates on trial: made under the common git folder, locked, and gone at the end whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from infrarsi.errors import GitError
from infrarsi.vcs import lfs
from infrarsi.vcs.door import Repository

LOCK_SECONDS = 120.0
_REASON = re.compile(r"infrarsi process (?P<pid>\d+) started (?P<started>\d+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Worktree:
    """One of our worktrees. `alive`: the process that made it still runs."""

    path: Path
    pid: int
    alive: bool


@contextlib.contextmanager
def worktree(repo: Repository, commit: str, name: str) -> Iterator[Path]:
    """Check `commit` out, detached, at `<state>/worktrees/<name>`; remove it on the way out, also on error."""
    if not _NAME.fullmatch(name):
        raise GitError(f"{name!r} is not a name for a worktree", code="bad-name")
    path = _folder(repo) / name
    with _serialised(repo):
        if path.exists():
            if any(tree.path == path and tree.alive for tree in live(repo)):
                raise GitError(f"worktree {name} is in use", why=f"{path} belongs to a live process", code="busy")
            _remove(repo, path)
        _add(repo, commit, path)
    try:
        yield path
    finally:
        with _serialised(repo):
            _remove(repo, path)


def live(repo: Repository) -> tuple[Worktree, ...]:
    """Return the tool's registered worktrees, each with whether its process still runs."""
    found = []
    folder = _folder(repo)
    path = Path()
    for line in repo.git("worktree", "list", "--porcelain").text.splitlines():
        if line.startswith("worktree "):
            path = Path(line.removeprefix("worktree "))
        elif (match := _REASON.search(line)) and path.parent == folder:
            pid = int(match["pid"])
            found.append(Worktree(path, pid, _start_time(pid) == int(match["started"])))
    return tuple(found)


def prune_stale(repo: Repository, *, dry_run: bool = False) -> tuple[Path, ...]:
    """Remove the worktrees of processes that are gone; return them. Live ones and the user's own are left alone."""
    folder = _folder(repo)
    with _serialised(repo):
        registered = {tree.path: tree.alive for tree in live(repo)}
        present = {path for path in folder.iterdir() if path.is_dir()} if folder.exists() else set()
        stale = sorted(path for path in present | registered.keys() if not registered.get(path, False))
        for path in stale if not dry_run else ():
            _remove(repo, path)
    return tuple(stale)


def _folder(repo: Repository) -> Path:
    # Resolved as git prints it, so that paths compare.
    return (repo.common_dir / "infrarsi" / "worktrees").resolve()


@contextlib.contextmanager
def _serialised(repo: Repository) -> Iterator[None]:
    """Parallel `worktree add` fails at random ("failed to read .git/worktrees/x/commondir"): one at a time."""
    try:
        with FileLock(repo.state_dir / "worktrees.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise GitError("the worktrees are locked by another process", why=str(error), code="busy") from error
    except OSError as error:
        raise GitError("the repository cannot be written", why=str(error), code="read-only") from error


def _add(repo: Repository, commit: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    reason = f"infrarsi process {pid} started {_start_time(pid)}"
    config = filters_off(repo)
    try:
        repo.git("worktree", "add", "--detach", "--lock", "--reason", reason, str(path), commit, config=config)
        lfs.fill(repo, commit, path)
        _fill_submodules(repo, commit, path)
    except BaseException:
        _remove(repo, path)
        raise


def filters_off(repo: Repository) -> list[tuple[str, str]]:
    """Return the configuration that blanks every smudge and clean filter (`lfs` does without git-lfs).

    A filter is a program of the repository's choosing that would run at each checkout.
    """
    done = repo.git("config", "--name-only", "-z", "--get-regexp", r"^filter\..*\.(smudge|clean|process)$", ok=(0, 1))
    names = {key.removeprefix("filter.").rpartition(".")[0] for key in done.text.split("\0") if key}
    blank = [(f"filter.{name}.{part}", "") for name in sorted(names) for part in ("smudge", "clean", "process")]
    return blank + [(f"filter.{name}.required", "false") for name in sorted(names)]


def _fill_submodules(repo: Repository, commit: str, path: Path) -> None:
    """Put the files of each submodule in place, from the user's own checkout of it; no network, no .git in them."""
    links = [(name, e.oid) for name, e in repo.entries(commit).items() if e.mode == "160000"]
    for name, oid in links:
        source = repo.root / name
        if not (source / ".git").exists():
            raise GitError(
                f"submodule {name} is not checked out",
                why="a trial needs its files",
                hint="git submodule update --init --recursive",
                code="submodule-missing",
            )
        inner = Repository.discover(source)
        env = {"GIT_INDEX_FILE": str(path.parent / f".{path.name}.index")}
        try:
            inner.git("read-tree", inner.resolve(oid), env=env)
            inner.git(
                "checkout-index", "--all", "--force", f"--prefix={path / name}/", env=env, config=filters_off(inner)
            )
        finally:
            Path(env["GIT_INDEX_FILE"]).unlink(missing_ok=True)
        _fill_submodules(inner, oid, path / name)


def _remove(repo: Repository, path: Path) -> None:
    """Remove files and registration. Links are removed, never followed; read-only folders are opened first.

    Never `worktree prune`: it would also forget a worktree of the user's whose disk is not mounted just now.
    """
    repo.git("worktree", "unlock", str(path), ok=(0, 128))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_open_and_retry)
    repo.git("worktree", "remove", "--force", str(path), ok=(0, 1, 128, 255))


def _open_and_retry(function: Callable[[str], object], name: str, _error: object) -> None:
    for folder in (Path(name).parent, Path(name)):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(stat.S_IRWXU)
    if function is os.rmdir or function is os.unlink:
        function(name)
    else:
        shutil.rmtree(name, ignore_errors=True)


def _start_time(pid: int) -> int | None:
    """Return the kernel's start time of a process, so that a reused pid is not taken for the old process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
