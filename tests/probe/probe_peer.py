"""A parent for probed processes: an AF_UNIX server that speaks the protocol, and a runner for small trainers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().parents[2] / "infrarsi" / "probe"
INJECT = PROBE / "inject"


class Peer:
    """Collects the messages of all ranks; releases them once `ranks` are done, says bye at each end."""

    def __init__(self, path: Path, ranks: int = 1, *, stop_after: int | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.arrivals: list[float] = []
        self._ranks = ranks
        self._stop_after = stop_after
        self._done: list[socket.socket] = []
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(16)
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        for line in connection.makefile("rb"):
            message = json.loads(line)
            with self._lock:
                self.messages.append(message)
                self.arrivals.append(time.perf_counter())
                if message["t"] == "hello" and self._stop_after is not None:
                    connection.sendall(json.dumps({"t": "stop", "after": self._stop_after}).encode() + b"\n")
                if message["t"] == "done":
                    self._done.append(connection)
                    if len(self._done) == self._ranks:
                        for other in self._done:
                            other.sendall(b'{"t":"release"}\n')
                if message["t"] == "end":
                    connection.sendall(b'{"t":"bye"}\n')

    def close(self) -> None:
        self._server.close()
        for thread in self._threads:
            thread.join(10)

    def of(self, kind: str, rank: int | None = None) -> list[dict[str, Any]]:
        return [m for m in self.messages if m["t"] == kind and rank in (None, m.get("rank"))]


class Run:
    """What a probed run left: messages, exit code, output."""

    def __init__(self, peer: Peer, code: int, output: str) -> None:
        self.peer, self.code, self.output = peer, code, output
        self.of = peer.of

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.of("step")

    @property
    def end(self) -> dict[str, Any]:
        assert self.of("end"), f"no end: {[m['t'] for m in self.peer.messages]}\n{self.of('error')}\n{self.output}"
        return self.of("end")[0]


def run(
    folder: Path,
    argv: Sequence[str],
    *,
    entry: str = "train.py",
    ranks: int = 1,
    mode: str = "trial",
    warmup: int = 1,
    timed: int = 3,
    perturb: Sequence[str] = (),
    memory_bytes: int | None = None,
    stop_after: int | None = None,
    original_root: Path | None = None,
    environment: Mapping[str, str] | None = None,
    state_map: Sequence[Mapping[str, Any]] = (),
    probed: bool = True,
    timeout: float = 120.0,
) -> Run:
    """Run `argv` (without the interpreter) in `folder` under the probe."""
    scratch = folder.parent / f"{folder.name}-wire-{time.monotonic_ns()}"
    scratch.mkdir()
    peer = Peer(scratch / "s", ranks, stop_after=stop_after)
    plan = {
        "schema": 1, "token": "secret", "socket": str(scratch / "s"), "root": str(folder), "entry": entry,
        "module": False, "mode": mode, "warmup_steps": warmup, "timed_steps": timed, "perturb": list(perturb),
        "memory_bytes": memory_bytes, "timeout_seconds": 60, "scope_roots": [str(folder)],
        "original_root": str(original_root or folder), "state_map": list(state_map),
    }  # fmt: skip
    (scratch / "plan.json").write_text(json.dumps(plan))
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "INFRARSI_PLAN")}
    variables.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"})
    variables.update(environment or {})
    if probed:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT), variables.get("PYTHONPATH"))))
        variables["INFRARSI_PLAN"] = str(scratch / "plan.json")
    done = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout, check=False
    )
    peer.close()
    return Run(peer, done.returncode, done.stdout + done.stderr)
