"""Bubblewrap around a trial: no network but loopback, HOME hidden, everything read-only but worktree and scratch."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.errors import TrialError
from infrarsi.trial.environment import interpreter, is_python
from infrarsi.trial.plan import Sandbox

DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps", "/dev/kfd", "/dev/dri", "/dev/infiniband")
# Root keeps its capabilities in bubblewrap unless told otherwise, and could mount everything writable again.
ISOLATION = (
    *("--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL"),
)
# Root may write kernel settings without any capability (`core_pattern` names a program that runs outside).
SYSTEM = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys"),
    *("--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"),
)
# Where people keep secrets beside their code; a training that needs such a file does not get it.
SECRET_FILES = (".env", ".env.*", ".netrc", ".npmrc", ".pypirc", ".git-credentials", "*.pem", "*.key", "secrets.*")


@dataclass(frozen=True)
class Availability:
    """Whether bubblewrap works here, tried once; `why` says what is missing."""

    works: bool
    why: str = ""


@dataclass(frozen=True)
class View:
    """What the sandboxed command sees beyond the read-only system."""

    worktree: Path
    original_root: Path
    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()


@functools.cache
def available() -> Availability:
    """Try an empty sandbox. It may be installed and still not permitted (no user namespaces in many containers)."""
    program = shutil.which("bwrap")
    if program is None:
        return Availability(False, "bwrap (bubblewrap) is not installed")
    argv = [program, *SYSTEM, *ISOLATION, "true"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Availability(False, f"bwrap does not start: {error}")
    if done.returncode != 0:
        return Availability(False, f"bwrap is not permitted here: {done.stderr.strip()[:200]}")
    return Availability(True)


def wanted(sandbox: Sandbox, *, untrusted: bool) -> bool:
    """Return whether to run inside bubblewrap. TrialError where it is needed and does not work here."""
    if sandbox == "off":
        return False
    state = available()
    if state.works:
        return True
    if sandbox == "required" or untrusted:
        what = "this trial needs a sandbox" if sandbox == "required" else "code written by a model needs a sandbox"
        raise TrialError(
            what,
            why=state.why,
            hint='install bubblewrap, or say sandbox = "off" under [launch] in infrarsi.toml',
            code="sandbox",
        )
    return False


def advice(sandbox: Sandbox) -> str:
    """Return in plain words whether trials are kept apart from the rest of this machine, and what can be done."""
    state = available()
    if sandbox == "off":
        how = " although bubblewrap works here" if state.works else ""
        return f'trials run without a sandbox{how}: infrarsi.toml says sandbox = "off" under [launch]'
    if state.works:
        return "trials run in a sandbox: no network, HOME hidden, everything read-only but their own worktree"
    return (
        f"trials run without a sandbox ({state.why}): patches written by a model are refused; "
        'install bubblewrap, or say sandbox = "off" under [launch] in infrarsi.toml'
    )


def interpreter_folders(argv: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders that the command's interpreter loads from: a venv often lies in HOME or in the repository."""
    program = argv[0] if is_python(argv[0]) else "python3"
    try:
        found = interpreter(program)
    except TrialError:
        return ()
    executable = Path(found.executable)
    folders = [*found.folders, executable.parent, executable.resolve().parent]
    return tuple(folder for folder in folders if folder.exists())


def wrap(argv: Sequence[str], view: View) -> tuple[str, ...]:
    """Return the command that runs `argv` in the sandbox, from the worktree, with the environment it is given."""
    program = shutil.which("bwrap") or "bwrap"
    hidden = [folder for folder in _hidden() if folder.is_dir()]
    result = [program, *ISOLATION, *SYSTEM]
    for pattern in DEVICES:
        for device in sorted(Path("/").glob(pattern.lstrip("/"))):
            result += ["--dev-bind", str(device), str(device)]
    for folder in hidden:
        result += ["--tmpfs", str(folder)]
    readable = {*view.readable, view.original_root, *_git_folders(view.worktree), *_link_targets(view.worktree)}
    # Parents before children, read-only before writable: a later mount covers an earlier one.
    for path in sorted(readable):
        if path.exists() and any(path.is_relative_to(folder) for folder in hidden):
            result += ["--ro-bind", str(path), str(path)]
    for path in sorted({view.worktree, *view.writable}):
        if path.exists():
            result += ["--bind", str(path), str(path)]
    pointer = view.worktree / ".git"
    if pointer.is_file():
        # Our own git calls follow this file afterwards: a trial must not lead them elsewhere.
        result += ["--ro-bind", str(pointer), str(pointer)]
    for path in _secrets(view):
        result += ["--ro-bind", "/dev/null", str(path)]
    return (*result, "--chdir", str(view.worktree), "--", *argv)


def _secrets(view: View) -> Iterator[Path]:
    """Files that may hold a token: git's configuration (`https://user:token@host`), and what `SECRET_FILES` names.

    Without its configuration git still answers `rev-parse`, `log` and the like.
    """
    for folder in _git_folders(view.worktree):
        yield from (path for name in ("config", "credentials") if (path := folder / name).is_file())
        yield from (path for path in folder.glob("worktrees/*/config.worktree") if path.is_file())
    found = {path for pattern in SECRET_FILES for path in view.original_root.glob(pattern)}
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def _hidden() -> Iterator[Path]:
    """Homes (signing keys, tokens), temporary files and the sockets of other services."""
    homes = [Path(os.environ.get("HOME", "/root")), Path.home(), Path("/root"), Path("/home")]
    for home in dict.fromkeys(p.resolve() for p in homes):
        if home != Path("/"):
            yield home
    yield from (Path("/tmp"), Path("/var/tmp"), Path("/run"))


def _git_folders(worktree: Path) -> Iterator[Path]:
    """The git directory of a linked worktree, so that `git rev-parse` in a training script still answers."""
    pointer = worktree / ".git"
    if pointer.is_file():
        folder = Path(pointer.read_text().partition("gitdir:")[2].strip())
        if folder.parent.name == "worktrees":
            yield folder.parent.parent


def _link_targets(worktree: Path) -> Iterator[Path]:
    """Where the worktree's links lead: data may lie behind a link of the user's, outside the repository."""
    for folder, names, files in os.walk(worktree):
        names[:] = [name for name in names if name != ".git"]
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink():
                yield path.resolve()
