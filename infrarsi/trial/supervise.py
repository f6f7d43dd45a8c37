"""The tool's side of the guard: start a command under it, end it, and clean up by marker where the guard is gone.

Nothing is ever ended by name: only descendants, and processes whose environment carries the marker of one trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from infrarsi.errors import TrialError
from infrarsi.trial import guard
from infrarsi.trial.guard import Process

OWNER_VARIABLE = "INFRARSI_OWNER"


@dataclass(frozen=True)
class GuardStatus:
    """How a guarded command ended. `exit_code` is None where the guard was ended before it could say."""

    exit_code: int | None
    reason: str
    survivors: tuple[int, ...] = ()


def owner() -> str:
    """Return who starts trials: this process by pid, start time and pid namespace."""
    stat = guard.read_stat(os.getpid())
    return f"{os.getpid()}.{stat.started if stat else 0}.{_namespace()}"


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "?"


def end_tree(marker: str, known: Iterable[Process] = (), grace_seconds: float = 1.0) -> tuple[int, ...]:
    """End all processes of one trial: those with its marker, and the `known`; return survivors' pids."""
    known = set(known)
    tree = {*guard.marked(marker), *(p for p in known if guard.is_alive(p))}
    guard.send(tree, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while any(guard.is_alive(p) for p in tree) and time.monotonic() < until:
        time.sleep(0.02)
    until = time.monotonic() + guard.KILL_SECONDS
    while True:
        below = {d for p in tree if guard.is_alive(p) for d in guard.descendants(p.pid)}
        tree = {*guard.marked(marker), *below, *(p for p in known if guard.is_alive(p))}
        if not tree or time.monotonic() > until:
            return tuple(sorted(p.pid for p in tree))
        guard.send(tree, signal.SIGKILL)
        time.sleep(0.02)


def sweep() -> tuple[str, ...]:
    """End what a tool and its guard, both ended by SIGKILL at once, have left behind; return the markers.

    A trial is an orphan only if its owner lived in this pid namespace and is gone: a container's pids mean
    nothing here.
    """
    orphans: set[str] = set()
    for pid in guard.all_pids():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        variables = dict(e.decode(errors="replace").partition("=")[::2] for e in entries if b"=" in e)
        who, marker = variables.get(OWNER_VARIABLE, ""), variables.get(guard.MARKER_VARIABLE, "")
        pid_text, _, rest = who.partition(".")
        started, _, namespace = rest.partition(".")
        if not (marker and pid_text.isdigit() and started.isdigit() and namespace == _namespace()):
            continue
        if not guard.is_alive(Process(int(pid_text), int(started))):
            orphans.add(marker)
    for marker in orphans:
        end_tree(marker)
    return tuple(sorted(orphans))


@dataclass
class Guarded:
    """One command under a guard. `status_fd` becomes readable when the guard has ended everything, or was ended."""

    process: subprocess.Popen[bytes]
    marker: str
    status_fd: int
    known: set[Process] = field(default_factory=set)
    _status: GuardStatus | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        log: Path,
        deadline_seconds: float,
        grace_seconds: float = 2.0,
        scratch: Path | None = None,
    ) -> Self:
        """Start `argv` with exactly this environment, output to `log`. TrialError where no process can be made.

        `scratch` is a folder that the guard removes where this process is gone before it could.
        """
        marker = environment[guard.MARKER_VARIABLE]
        order = {
            "argv": list(argv),
            "environment": dict(environment),
            "cwd": str(cwd),
            "marker": marker,
            "deadline_seconds": deadline_seconds,
            "grace_seconds": grace_seconds,
            "scratch": str(scratch) if scratch else "",
        }
        own = {name: environment[name] for name in (guard.MARKER_VARIABLE, OWNER_VARIABLE) if name in environment}
        status_read, status_write = os.pipe()
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", guard.__file__, str(status_write)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=own,
                    pass_fds=(status_write,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(status_read)
            raise TrialError("a trial process cannot be started", why=str(error), code="spawn") from error
        finally:
            os.close(status_write)
        guarded = cls(process, marker, status_read)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        return guarded

    def look(self) -> int:
        """Note the tree as it is now (for the day the guard is ended) and return its CPU use in clock ticks."""
        tree = guard.descendants(self.process.pid)
        self.known.update(tree)
        return sum(stat.cpu_ticks for p in tree if (stat := guard.read_stat(p.pid)) is not None)

    def stop(self) -> None:
        """Ask the guard to end the tree; it does so too when this process goes away."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(b"s")
            self.process.stdin.close()

    def finish(self, timeout_seconds: float) -> GuardStatus:
        """Wait for the guard's word, at most `timeout_seconds`; end the tree ourselves where it does not come."""
        if self._status is not None:
            return self._status
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.known.update(guard.descendants(self.process.pid))
            self.process.kill()
            self.process.wait(5.0)
        self.stop()
        os.set_blocking(self.status_fd, False)
        try:
            text = os.read(self.status_fd, 65536)
        except BlockingIOError:
            text = b""
        os.close(self.status_fd)
        try:
            report = json.loads(text)
            status = GuardStatus(report["exit_code"], report["reason"], tuple(report["survivors"]))
        except (ValueError, KeyError):
            status = GuardStatus(None, "guard-lost")
        if status.survivors or status.reason == "guard-lost":
            left = end_tree(self.marker, self.known, grace_seconds=0.5)
            status = GuardStatus(status.exit_code, status.reason, left)
        self._status = status
        return status


def run_guarded(
    argv: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: Path, timeout_seconds: float
) -> GuardStatus:
    """Run a command to its end under a guard (set-up commands). KeyboardInterrupt ends its tree and is raised again."""
    guarded = Guarded.start(argv, environment=environment, cwd=cwd, log=log, deadline_seconds=timeout_seconds)
    try:
        return guarded.finish(timeout_seconds + guard.KILL_SECONDS + 5.0)
    finally:
        guarded.stop()
        guarded.finish(guard.KILL_SECONDS + 5.0)
