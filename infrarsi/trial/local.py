"""The default engine: the user's own launcher on this machine, under our guard, reporting to a socket of ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from infrarsi.codec import digest
from infrarsi.errors import TrialError
from infrarsi.records import Outcome
from infrarsi.trial import sandbox as sandboxes
from infrarsi.trial.engine import Execution, Progress, State
from infrarsi.trial.environment import Interpreter, interpreter, is_python, locate
from infrarsi.trial.plan import TrialPlan, trial_environment, write_orders
from infrarsi.trial.session import GUARD_SECONDS, LEAVE_SECONDS, Session, read_log
from infrarsi.trial.supervise import Guarded, sweep

INJECT = Path(__file__).resolve().parent.parent / "probe" / "inject"
MAX_CACHE_SLOTS = 64


@dataclass
class _Handle:
    """One submitted trial: its session, and what is given back when it ends."""

    session: Session
    scratch: Path
    slot: IO[bytes]
    execution: Execution | None = None


class LocalEngine:
    """Runs trials on this machine. `inject` is the folder with the probe's sitecustomize, put first on PYTHONPATH."""

    name = "local"

    def __init__(self, inject: Path | None = None, *, grace_seconds: float = 2.0) -> None:
        self.inject = INJECT if inject is None else inject
        self.grace_seconds = grace_seconds
        self._handles: dict[str, _Handle] = {}
        self._swept = False

    def submit(self, plan: TrialPlan) -> str:
        """Start a trial. TrialError where its sandbox or interpreter is missing."""
        if plan.id in self._handles:
            raise TrialError(f"trial {plan.id} was submitted already", code="twice")
        if plan.timed_steps < 1:
            raise TrialError("a trial needs at least one timed step", why=f"timed_steps = {plan.timed_steps}")
        if not self._swept:
            self._swept = True
            sweep()
        sandboxed = sandboxes.wanted(plan.sandbox, untrusted=plan.untrusted)
        with contextlib.ExitStack() as undo:
            scratch = Path(tempfile.mkdtemp(prefix="irsi-", dir=_short_temporary_folder()))
            undo.callback(shutil.rmtree, scratch, ignore_errors=True)
            slot, cache = _cache_slot(plan)
            undo.callback(slot.close)
            handle = self._start(replace(plan, cache_dir=cache), scratch, slot, sandboxed)
            undo.pop_all()
        self._handles[plan.id] = handle
        handle.session.thread.start()
        return plan.id

    def _start(self, plan: TrialPlan, scratch: Path, slot: IO[bytes], sandboxed: bool) -> _Handle:
        token, address = secrets.token_hex(16), scratch / "s"
        orders = scratch / "plan.json"
        write_orders(plan, orders, token=token, socket=address)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(address))
            listener.listen(max(16, 2 * plan.world_size))
            listener.setblocking(False)
            environment = trial_environment(plan, self.inject, scratch, orders)
            argv = _with_interpreter(plan, environment)
            for folder in (plan.log.parent, *_outputs(plan)):
                folder.mkdir(parents=True, exist_ok=True)
            if sandboxed:
                readable = (
                    *plan.readable,
                    *_section_paths(plan),
                    *sandboxes.interpreter_folders(argv),
                    self.inject.parent,
                )
                writable = (*plan.writable, plan.worktree, plan.cache_dir, scratch, *_outputs(plan))
                argv = sandboxes.wrap(argv, sandboxes.View(plan.worktree, plan.original_root, writable, readable))
            guarded = Guarded.start(
                argv,
                environment=environment,
                cwd=plan.worktree,
                log=plan.log,
                deadline_seconds=plan.deadlines.total_seconds + 2 * GUARD_SECONDS,
                grace_seconds=self.grace_seconds,
                scratch=scratch,
            )
        except (TrialError, OSError):
            listener.close()
            raise
        return _Handle(Session(plan, listener, token, guarded), scratch, slot)

    def poll(self, handle: str) -> State:
        """Say whether a trial still runs."""
        known = self._handles.get(handle)
        if known is None:
            return "unknown"
        return "running" if known.session.thread.is_alive() else "ended"

    def progress(self, handle: str) -> Progress:
        """Say how far a trial is."""
        return self._known(handle).session.progress()

    def stop(self, handle: str) -> None:
        """Close the timed window early; what was measured so far counts."""
        self._known(handle).session.request("stop")

    def cancel(self, handle: str) -> None:
        """End a trial and its whole process tree, and wait until nothing of it is left."""
        known = self._handles.get(handle)
        if known is None or known.execution is not None:
            return
        known.session.request("cancel")
        self.result(handle)

    def logs(self, handle: str) -> str:
        """Return the launcher's output so far."""
        return read_log(self._known(handle).session.plan.log)

    def result(self, handle: str) -> Execution:
        """Return what an ended trial showed; one that still runs gets until its deadlines."""
        known = self._known(handle)
        if known.execution is None:
            session = known.session
            limit = 3 * GUARD_SECONDS + LEAVE_SECONDS
            if not session.requests & {"cancel"}:
                limit += session.plan.deadlines.total_seconds
            session.thread.join(limit)
            execution = session.result()
            if execution is None:
                session.guarded.stop()
                known.execution = _lost(session)
            else:
                known.execution = execution
            shutil.rmtree(known.scratch, ignore_errors=True)
            known.slot.close()
        return known.execution

    def _known(self, handle: str) -> _Handle:
        if handle not in self._handles:
            raise TrialError(f"there is no trial {handle} here", code="unknown-trial")
        return self._handles[handle]


def _outputs(plan: TrialPlan) -> tuple[Path, ...]:
    """The folders that the probe writes check steps and replayed gradients to."""
    return tuple(path for path in (plan.dump, plan.out) if path is not None)


def _section_paths(plan: TrialPlan) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for s in plan.sections for path in (s.weights.parent, s.rows)))


def _lost(session: Session) -> Execution:
    message = "the thread that watched the trial ended without a result"
    return Execution(
        Outcome("lost", message), None, (), (), (), (), (), 0.0, 0.0, 0.0, read_log(session.plan.log)[-4096:]
    )


def _with_interpreter(plan: TrialPlan, environment: dict[str, str]) -> tuple[str, ...]:
    """Name the true interpreter instead of a shim, put its folder first on PATH, and keep the user's own packages.

    With HOME hidden a `pip install --user` would be invisible: PYTHONUSERBASE says where it is.
    """
    argv = (locate(plan.argv[0], plan.original_root), *plan.argv[1:])
    program = argv[0] if is_python(argv[0]) else "python3"
    try:
        found: Interpreter = interpreter(program)
    except TrialError:
        if is_python(argv[0]):
            raise
        return argv
    if found.user_base:
        environment["PYTHONUSERBASE"] = found.user_base
    if not is_python(argv[0]):
        return argv
    folder = str(Path(found.executable).parent)
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    return (found.executable, *argv[1:])


def _short_temporary_folder() -> str | None:
    """A socket's path holds 107 bytes: use the system's folder where TMPDIR is long."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 and os.access("/tmp", os.W_OK) else None


def _cache_slot(plan: TrialPlan) -> tuple[IO[bytes], Path]:
    """Lock a compile cache for this trial: warm from trial to trial, never shared by two at once (R-D3).

    Candidates with patches keep to caches of their own: code under trial must not write what the baseline loads.
    """
    patches = plan.candidate.patches
    family = digest([plan.run, list(patches)])[:12] if patches else "unpatched"
    for folder, lock in _slots(plan.cache_dir / family):
        file = lock.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        folder.mkdir(exist_ok=True)
        return file, folder
    raise TrialError("all compile caches are in use", why=f"{MAX_CACHE_SLOTS} trials at once in {plan.cache_dir}")


def _slots(family: Path) -> Iterator[tuple[Path, Path]]:
    family.mkdir(parents=True, exist_ok=True)
    for number in range(MAX_CACHE_SLOTS):
        yield family / str(number), family / f"{number}.lock"
