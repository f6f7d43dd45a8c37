"""One trial in progress on this machine: serves the ranks' socket, stamps what arrives, keeps the deadlines."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infrarsi.records import Outcome, Violation
from infrarsi.trial import pressure
from infrarsi.trial.collect import Collector, clock_disagreement, measure
from infrarsi.trial.deadlines import Clocks, Expired, expired
from infrarsi.trial.engine import Execution, Progress
from infrarsi.trial.outcome import Evidence, classify
from infrarsi.trial.plan import TrialPlan
from infrarsi.trial.pressure import TICKS_PER_SECOND
from infrarsi.trial.secretstep import SecretStep
from infrarsi.trial.supervise import Guarded, GuardStatus

MAX_LINE_BYTES = 64 * 2**20
LOG_TAIL_BYTES = 16_384
LOG_READ_BYTES = 2 * 2**20
LEAVE_SECONDS = 10.0
LOOK_SECONDS = 1.0
GUARD_SECONDS = 30.0
IDLE_SHARE = 0.005
STOP_MARGIN_SECONDS = 0.25


@dataclass
class _Peer:
    """One connection of one rank; `rank` is None before its hello."""

    connection: socket.socket
    rank: int | None = None
    buffer: bytes = b""


class Session:
    """Serves one execution from a thread of its own. The public methods may be called from any thread."""

    def __init__(self, plan: TrialPlan, listener: socket.socket, token: str, guarded: Guarded) -> None:
        self.plan, self.listener, self.guarded = plan, listener, guarded
        self.collector = Collector(token, plan.world_size)
        self.started = time.monotonic()
        self.closes_after = plan.closes_after
        self.expired = Expired()
        self.cancelled = self.released = False
        self.faulty = True
        self.log_bytes: int | None = None
        self.guard_status: GuardStatus | None = None
        self.oom_before = pressure.oom_kills()
        self.opened: pressure.Sample | None = None
        self.closed: pressure.Sample | None = None
        self.peers: dict[int, _Peer] = {}
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = os.pipe()
        self.requests: set[Literal["stop", "cancel"]] = set()
        self.stop_sent = False
        self.secret = SecretStep(plan.opens_after, plan.closes_after, fixed=plan.check_step) if plan.dump else None
        self._cpu = (self.started, 0)
        self._looked = 0.0
        self._first_tick: float | None = None
        self._done_at: float | None = None
        self._result: Execution | None = None
        self.thread = threading.Thread(target=self._serve, name=f"trial-{plan.id}", daemon=True)

    # -- called by the engine, from any thread

    def request(self, what: Literal["stop", "cancel"]) -> None:
        """Ask the serving thread to stop early or to cancel."""
        self.requests.add(what)
        with contextlib.suppress(OSError):
            os.write(self.wake_write, b"x")

    def progress(self) -> Progress:
        """Return how far the trial is, by the slowest rank."""
        last, first = self.collector.last_step, self.plan.opens_after
        arrivals: tuple[float, ...] = ()
        if last >= first:
            slowest = max(list(self.collector.ranks.values()), key=lambda r: r.ticks.get(last, (0.0, 0.0))[0])
            arrivals = tuple(slowest.ticks[k][0] for k in range(first, last + 1) if k in slowest.ticks)
        return Progress(last, self.plan.warmup_steps, self.plan.timed_steps, arrivals)

    def result(self) -> Execution | None:
        """Return the execution once the thread has ended."""
        return self._result

    # -- the serving thread

    def _serve(self) -> None:
        try:
            self.selector.register(self.listener, selectors.EVENT_READ, "listener")
            self.selector.register(self.guarded.status_fd, selectors.EVENT_READ, "guard")
            self.selector.register(self.wake_read, selectors.EVENT_READ, "wake")
            while self._turn():
                pass
            self.faulty = False
        finally:
            # Also after a fault of our own nothing may survive.
            self.guarded.stop()
            self.selector.close()
            self.guard_status = self.guarded.finish(GUARD_SECONDS)
            for peer in self.peers.values():
                peer.connection.close()
            self.listener.close()
            wall = time.monotonic() - self.started
            self._result = self._conclude(wall)
            for descriptor in (self.wake_read, self.wake_write):
                os.close(descriptor)

    def _turn(self) -> bool:
        """Handle what has arrived; return whether to go on."""
        events = self.selector.select(0.2)
        arrival = time.monotonic()
        over = False
        for key, _ in events:
            if key.data == "listener":
                self._accept()
            elif key.data == "guard":
                over = True
            elif key.data == "wake":
                os.read(self.wake_read, 4096)
            else:
                self._receive(key.data, arrival)
        if over:
            self._drain()
            return False
        return self._decide(arrival)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            peer = _Peer(connection)
            self.peers[connection.fileno()] = peer
            self.selector.register(connection, selectors.EVENT_READ, peer)

    def _receive(self, peer: _Peer, arrival: float) -> bool:
        """Read what a rank has sent; return False when its connection has ended."""
        try:
            data = peer.connection.recv(2**18)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data or len(peer.buffer) > MAX_LINE_BYTES:
            self._close(peer)
            return False
        *lines, peer.buffer = (peer.buffer + data).split(b"\n")
        for line in lines:
            self._take(peer, line, arrival)
        return True

    def _take(self, peer: _Peer, line: bytes, arrival: float) -> None:
        if not line.strip():
            return
        before = self.collector.last_step
        rank = self.collector.feed(line, arrival, peer.rank)
        if rank is None:
            return
        if peer.rank is None:
            peer.rank = rank.rank
        if rank.end is not None:
            self._send(peer, {"t": "bye"})
        if self._first_tick is None and rank.ticks:
            self._first_tick = arrival
        after = self.collector.last_step
        if before < self.plan.opens_after <= after:
            self.opened = pressure.sample(self.guarded.look())
        if before < self.closes_after <= after:
            self.closed = pressure.sample(self.guarded.look())

    def _close(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            self.selector.unregister(peer.connection)
        peer.connection.close()

    def _send(self, peer: _Peer, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            peer.connection.send(json.dumps(message).encode() + b"\n")

    def _broadcast(self, message: dict[str, object]) -> None:
        for peer in self.peers.values():
            if peer.rank is not None:
                self._send(peer, message)

    def _decide(self, now: float) -> bool:
        """Act on requests, deadlines and the end of the window; return whether the trial goes on."""
        if "cancel" in self.requests:
            self.cancelled = not self.collector.complete
            return self._give_up()
        if "stop" in self.requests and not self.stop_sent:
            self._stop_early()
        if self.secret is not None:
            self._check(self.secret)
        if self.collector.all_done and not self.released:
            self.released = True
            self._done_at = now
            self._broadcast({"t": "release"})
        if self.collector.complete and self._done_at is not None:
            # The ranks are about to leave; the launcher gets a moment to do so too.
            last_seen = max(r.last_seen for r in self.collector.ranks.values())
            return now - last_seen < LEAVE_SECONDS or self._give_up()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._note_cpu(now, self.guarded.look())
        return self._check_deadlines(now)

    def _check(self, secret: SecretStep) -> None:
        """Announce the secret step when its time has come, and let the ranks go on when all have written it."""
        ranks = list(self.collector.ranks.values())
        furthest = max((rank.last_step for rank in ranks), default=0)
        if not self.stop_sent:
            step = secret.order(self.collector.last_step, furthest, self.progress().timed_step_seconds)
            if step is not None:
                self._broadcast({"t": "check", "step": step})
        if secret.resume([rank.checked for rank in ranks], [rank.last_step for rank in ranks]):
            self._broadcast({"t": "resume"})

    def _stop_early(self) -> None:
        """Close the window a few steps from now: no rank may be past that step when it hears of it."""
        progress = self.progress()
        seconds = progress.timed_step_seconds
        if seconds is None:
            return
        seen = max(rank.last_step for rank in self.collector.ranks.values())
        margin = max(2, math.ceil(STOP_MARGIN_SECONDS / max(seconds, 1e-6)))
        after = max(seen + margin, self.plan.opens_after + 2)
        self.stop_sent = True
        if after < self.plan.closes_after:
            self.closes_after = after
            self._broadcast({"t": "stop", "after": after})

    def _note_cpu(self, now: float, ticks: int) -> None:
        """Remember when the tree last did real work: a sleeping rank burns no CPU, a compiling one does."""
        since, before = self._cpu
        if ticks - before > IDLE_SHARE * TICKS_PER_SECOND * (now - since) or ticks < before:
            self._cpu = (now, ticks)

    def _check_deadlines(self, now: float) -> bool:
        clocks = Clocks(self.started, self._cpu[0], self._first_tick, self._done_at)
        found = expired(now, self.plan.deadlines, clocks, self.collector.ranks, self.plan.world_size)
        if found is None:
            return True
        self.expired = found
        return self._give_up()

    def _give_up(self) -> bool:
        """End the tree. What the log says from now on is our own doing."""
        with contextlib.suppress(OSError):
            self.log_bytes = self.plan.log.stat().st_size
        self.guarded.look()
        return False

    def _drain(self) -> None:
        """Read what the ranks had sent before they ended."""
        with contextlib.suppress(OSError):
            self.listener.setblocking(False)
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                self.peers[connection.fileno()] = _Peer(connection)
        for peer in self.peers.values():
            while peer.connection.fileno() >= 0 and self._receive(peer, time.monotonic()):
                if not _readable(peer.connection):
                    break

    def _conclude(self, wall: float) -> Execution:
        plan, collector = self.plan, self.collector
        log = read_log(plan.log, self.log_bytes)
        assert self.guard_status is not None
        checked = self.secret.checked if self.secret else None
        steps = collector.records(plan.opens_after, self.closes_after, checked)
        ends = collector.ends()
        evidence = Evidence(
            exit_code=self.guard_status.exit_code,
            log=log,
            errors=tuple(collector.errors),
            deadline=self.expired.deadline,
            cancelled=self.cancelled,
            complete=collector.complete,
            steps=collector.last_step,
            steps_wanted=plan.closes_after,
            oom_kills=pressure.oom_kills() - self.oom_before,
            memory_bytes=plan.memory_bytes,
            waited_seconds=self.expired.waited_seconds,
            waiting_rank=self.expired.rank,
        )
        ranks = list(collector.ranks.values())
        clocks, disagreement = clock_disagreement(ranks, plan.opens_after, min(self.closes_after, collector.last_step))
        if self.guard_status.survivors:
            collector.violate(
                "survivors", "processes of the trial could not be ended", str(self.guard_status.survivors)
            )
        found: tuple[Violation, ...] = tuple(collector.violations) + ((disagreement,) if disagreement else ())
        wanted = plan.closes_after - plan.opens_after
        complete = collector.complete
        first = collector.ranks.get(0)
        return Execution(
            outcome=Outcome("lost", "infrarsi failed while it watched the trial")
            if self.faulty
            else classify(evidence),
            measurement=measure(steps, ends, steps_wanted=wanted, clocks=clocks) if complete else None,
            steps=steps,
            ends=ends,
            hyper=tuple(first.hyper) if first else (),
            parameters=first.parameters if first else (),
            violations=found,
            wall_seconds=wall,
            device_seconds=wall * plan.world_size,
            pressure=pressure.between(self.opened, self.closed) if self.opened and self.closed else 0.0,
            log_tail=log[-LOG_TAIL_BYTES:],
            checked=checked,
        )


def _readable(connection: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def read_log(path: Path, up_to: int | None = None) -> str:
    """Return the last part of a log, as far as `up_to` bytes where given."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) if up_to is None else up_to
            start = max(0, size - LOG_READ_BYTES)
            file.seek(start)
            return file.read(size - start).decode(errors="replace")
    except OSError:
        return ""
