"""Runs one launcher and ends its whole process tree, whatever happens to the tool that asked for it.

A stand-alone standard-library script (`python -I -S guard.py`), because it must outlive the tool by a second. The tool
writes one JSON line to its stdin and keeps that pipe open: end of file means that the tool is gone, however it died.
The guard is a child subreaper (prctl(2)), so ranks that torchrun leaves behind, in sessions of their own, become its
children and are found by parentage; the marker in their environment finds them also where the guard itself was ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

MARKER_VARIABLE = "INFRARSI_TRIAL"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 10.0


class Process(NamedTuple):
    """One process by pid and start time (clock ticks after boot), so that a reused pid is never taken for it."""

    pid: int
    started: int


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that matter here; CPU in clock ticks, ended and reaped children included."""

    parent: int
    state: str
    started: int
    cpu_ticks: int


def read_stat(pid: int) -> Stat | None:
    """Return what /proc says of a process, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The command name may hold spaces and parentheses: the fields start after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(int(fields[1]), fields[0], int(fields[19]), sum(int(f) for f in fields[11:15]))


def all_pids() -> list[int]:
    """Return every process id that /proc shows."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def descendants(root: int) -> list[Process]:
    """Return the live descendants of `root` (zombies left out)."""
    stats = {pid: stat for pid in all_pids() if (stat := read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[Process] = []
    stack = [root]
    while stack:
        for pid in children.pop(stack.pop(), ()):
            stack.append(pid)
            if stats[pid].state not in "ZX":
                found.append(Process(pid, stats[pid].started))
    return found


def marked(marker: str) -> list[Process]:
    """Return the live processes that carry this trial's marker in their environment."""
    needle = f"{MARKER_VARIABLE}={marker}".encode()
    found = []
    for pid in all_pids():
        if pid == os.getpid():
            continue
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in entries and (stat := read_stat(pid)) is not None and stat.state not in "ZX":
            found.append(Process(pid, stat.started))
    return found


def is_alive(process: Process) -> bool:
    """Return whether this very process still runs."""
    stat = read_stat(process.pid)
    return stat is not None and stat.started == process.started and stat.state not in "ZX"


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal each process that is still itself."""
    for process in processes:
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def reap() -> dict[int, int]:
    """Collect ended children without waiting; return exit codes by pid (negative: the signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Guard:
    """The guard's one job: start, watch, end everything, say how it went."""

    def __init__(self, spec: dict[str, Any], status: int) -> None:
        self.spec, self.status = spec, status
        self.marker: str = spec["marker"]
        self.exit_code: int | None = None
        self.deadline = time.monotonic() + float(spec["deadline_seconds"])
        self.signalled = False
        self.wake, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)

    def run(self) -> None:
        """Start the launcher, wait for one of the reasons to end, end the tree, write the status."""
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.launcher = self._start()
        reason = self._watch()
        survivors = self._end_all(0.2 if reason == "exit" else float(self.spec["grace_seconds"]))
        if reason == "orphaned" and self.spec["scratch"]:
            # Nobody else is left to do it.
            shutil.rmtree(self.spec["scratch"], ignore_errors=True)
        report = {"exit_code": self.exit_code, "reason": reason, "survivors": survivors}
        with contextlib.suppress(OSError):
            os.write(self.status, json.dumps(report).encode())

    def _on_signal(self, *_: object) -> None:
        self.signalled = True

    def _start(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            # The launcher goes with the guard, should that be ended by SIGKILL.
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.spec["cwd"])
            os.execvpe(self.spec["argv"][0], self.spec["argv"], self.spec["environment"])
        except OSError as error:
            os.write(2, f"cannot start {self.spec['argv'][0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def _watch(self) -> str:
        while True:
            ended = reap()
            if self.launcher in ended:
                self.exit_code = ended[self.launcher]
                return "exit"
            if self.signalled:
                return "signal"
            left = self.deadline - time.monotonic()
            if left <= 0:
                return "deadline"
            ready, _, _ = select.select([0, self.wake], [], [], min(left, 5.0))
            if self.wake in ready:
                os.read(self.wake, 4096)
            if 0 in ready:
                return "stop" if os.read(0, 1) else "orphaned"

    def _tree(self) -> list[Process]:
        return sorted({*descendants(os.getpid()), *marked(self.marker)})

    def _reap(self) -> None:
        ended = reap()
        if self.exit_code is None:
            self.exit_code = ended.get(self.launcher)

    def _end_all(self, grace_seconds: float) -> list[int]:
        """SIGTERM, then SIGKILL until nothing is left: what forks meanwhile is found by the next look."""
        tree = self._tree()
        send(tree, signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        while tree and time.monotonic() < until:
            self._reap()
            tree = [p for p in tree if is_alive(p)]
            if tree:
                time.sleep(0.02)
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            self._reap()
            tree = self._tree()
            if not tree:
                return []
            send(tree, signal.SIGKILL)
            time.sleep(0.02)
        return [p.pid for p in tree]


def main() -> int:
    """Read the order from stdin, carry it out. The status goes to the descriptor named by the first argument."""
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 65536)
        if not byte:
            return 0
        line += byte
    Guard(json.loads(line), status).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
