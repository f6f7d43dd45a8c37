"""Brings into a worktree what git left out: the declared data, linked, and the result of one set-up command."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from infrarsi.errors import TrialError, UsageError
from infrarsi.trial import sandbox as sandboxes
from infrarsi.trial.environment import base_environment, harness, interpreter, is_python, locate
from infrarsi.trial.plan import Sandbox
from infrarsi.trial.supervise import run_guarded

SETUP_SECONDS = 900.0


def provision(
    worktree: Path,
    original_root: Path,
    data: Sequence[str],
    setup: Sequence[str],
    *,
    sandbox: Sandbox = "auto",
    untrusted: bool = False,
    timeout_seconds: float = SETUP_SECONDS,
) -> None:
    """Link each declared data path that the commit does not hold, then run `setup` (one argv) in the worktree.

    What the commit holds is never replaced. `untrusted`: the set-up runs code of a model or an agent. Raises TrialError
    for missing data and for a failing set-up.
    """
    for name in data:
        _link(worktree, original_root, name)
    if setup:
        sandboxed = sandboxes.wanted(sandbox, untrusted=untrusted)
        _set_up(worktree, original_root, tuple(setup), sandboxed, timeout_seconds)


def _link(worktree: Path, original_root: Path, name: str) -> None:
    relative = PurePosixPath(name)
    if ".." in relative.parts:
        raise UsageError(f"data path {name} leaves the repository", hint="name it by an absolute path, or move it in")
    source = original_root / relative
    if not source.exists():
        raise TrialError(
            f"the data {name} is not there",
            why=f"{source} does not exist",
            hint="prepare the data as the repository's README says, then run this again",
            code="no-data",
        )
    if relative.is_absolute():
        return
    _require_inside(worktree, relative)
    _link_missing(worktree / relative, source)


def _require_inside(worktree: Path, relative: PurePosixPath) -> None:
    """A parent that is a link of the commit would lead the new link elsewhere."""
    for parent in list(relative.parents)[:-1]:
        if (worktree / parent).is_symlink():
            raise TrialError(f"{parent} is a symbolic link in this commit", why=f"the data {relative} lies below it")


def _link_missing(target: Path, source: Path) -> None:
    """Link `source` at `target`; where the commit holds a folder there, link only what is missing in it."""
    if target.is_symlink():
        return
    if target.is_dir() and source.is_dir():
        for child in sorted(source.iterdir()):
            _link_missing(target / child.name, child)
        return
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def _set_up(
    worktree: Path, original_root: Path, argv: tuple[str, ...], sandboxed: bool, timeout_seconds: float
) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="irsi-setup-"))
    try:
        environment = {**base_environment(scratch), **harness("setup", scratch / "none")}
        del environment["INFRARSI_PLAN"]
        if is_python(argv[0]):
            argv = (interpreter(locate(argv[0], original_root)).executable, *argv[1:])
        if sandboxed:
            view = sandboxes.View(
                worktree, original_root, writable=(worktree, scratch), readable=sandboxes.interpreter_folders(argv)
            )
            argv = sandboxes.wrap(argv, view)
        log = scratch / "log"
        status = run_guarded(argv, environment=environment, cwd=worktree, log=log, timeout_seconds=timeout_seconds)
        if status.exit_code != 0:
            text = log.read_text(errors="replace").strip()[-600:] if log.exists() else ""
            late = status.reason == "deadline"
            raise TrialError(
                "the set-up command did not end in time" if late else f"the set-up command failed ({status.exit_code})",
                why=text or " ".join(argv),
                hint="run it by hand in a fresh clone; it is `setup` under [workload] in infrarsi.toml",
                code="setup",
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
