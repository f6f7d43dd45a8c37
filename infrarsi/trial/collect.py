"""Turns the ranks' NDJSON messages into records. The ranks are not trusted: every field is checked, arrival is ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infrarsi.records import HyperParameters, Measurement, Parameter, RankEnd, StepRecord, Trial, Violation
from infrarsi.trial import fields
from infrarsi.trial.outcome import RankError

CLOCK_TOLERANCE = 0.05
CLOCK_SLACK_SECONDS = 0.25
MAX_VIOLATIONS = 20


@dataclass
class Rank:
    """What one rank has reported so far. Ticks are (parent's clock, rank's clock) by step.

    `last_step`: the last optimizer step that it has closed. `checked`: the check step that it has written down.
    """

    rank: int
    last_seen: float
    ticks: dict[int, tuple[float, float]] = field(default_factory=dict)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    hyper: list[HyperParameters] = field(default_factory=list)
    parameters: tuple[Parameter, ...] = ()
    done: int | None = None
    end: RankEnd | None = None
    last_step: int = 0
    checked: int | None = None


class Collector:
    """The state of one execution as the messages tell it. Knows nothing of sockets."""

    def __init__(self, token: str, world_size: int) -> None:
        self.token, self.world_size = token, world_size
        self.ranks: dict[int, Rank] = {}
        self.errors: list[RankError] = []
        self.violations: list[Violation] = []

    def feed(self, line: bytes, arrival: float, bound: int | None) -> Rank | None:
        """Take one line that arrived at `arrival` on a connection of rank `bound` (None before its hello).

        Returns the rank, or None for a line that counts for nothing; what is wrong becomes a violation.
        """
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise fields.Malformed("not an object")
            if bound is None:
                return self._hello(message, arrival)
            rank = self.ranks[bound]
            handler = _HANDLERS.get(message.get("t", ""))
            if handler is None:
                raise fields.Malformed(f"unknown message {str(message.get('t'))[:40]!r}")
            handler(self, rank, message, arrival)
        except (ValueError, OverflowError, RecursionError) as error:
            who = "a process" if bound is None else f"rank {bound}"
            self.violate("protocol", f"{who} sent a message that cannot be read: {error}")
            return None
        rank.last_seen = arrival
        return rank

    def violate(self, check: str, message: str, observed: str = "", allowed: str = "") -> None:
        """Note a violation of the time ring, up to a number that says enough."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation("time", check, message, observed, allowed))

    @property
    def last_step(self) -> int:
        """The last step that every rank has closed."""
        if len(self.ranks) < self.world_size:
            return 0
        return min(rank.last_step for rank in list(self.ranks.values()))

    @property
    def all_done(self) -> bool:
        """Every rank waits for its release."""
        return len(self.ranks) >= self.world_size and all(r.done is not None for r in self.ranks.values())

    @property
    def complete(self) -> bool:
        """Every rank has reported its end."""
        return len(self.ranks) >= self.world_size and all(r.end is not None for r in self.ranks.values())

    def _hello(self, message: dict[str, Any], arrival: float) -> Rank | None:
        if message.get("t") != "hello" or message.get("token") != self.token:
            raise fields.Malformed("no hello with this trial's token")
        number, world = fields.whole(message, "rank"), fields.whole(message, "world")
        if world != self.world_size:
            self.violate("world-size", "another number of ranks than planned", str(world), str(self.world_size))
        if not 0 <= number < self.world_size:
            raise fields.Malformed(f"rank {number} of {self.world_size}")
        if number in self.ranks and self.ranks[number].ticks:
            self.violate("restart", f"rank {number} reported twice: two processes, or a restarted one")
        self.ranks[number] = Rank(number, arrival)
        return self.ranks[number]

    def _model(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        rank.parameters = fields.parameters(message)

    def _tick(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        step = fields.whole(message, "step")
        if step != rank.last_step + 1:
            self.violate("tick-order", f"rank {rank.rank} closed step {step} after step {rank.last_step}")
        rank.ticks.setdefault(step, (arrival, fields.number_of(message, "clock")))
        rank.last_step = max(rank.last_step, step)

    def _step(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        step = fields.whole(message, "step")
        if step not in rank.ticks:
            raise fields.Malformed(f"step {step} without its tick")
        rank.steps.setdefault(step, message)

    def _hyper(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        rank.hyper.extend(fields.hyper_parameters(message, fields.whole(message, "step")))

    def _checked(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        rank.checked = fields.whole(message, "step")

    def _done(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        rank.done = fields.whole(message, "step")

    def _end(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        rank.end = fields.rank_end(rank.rank, message, rank.parameters, tuple(rank.hyper))

    def _error(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        kind, text, phase = (str(message.get(k, ""))[:2000] for k in ("kind", "message", "phase"))
        if kind == "probe":
            # A fault of the observer, not of the training: what it reports from now on proves nothing.
            self.violate("probe", f"the probe failed on rank {rank.rank} in phase {phase}: {text}")
            return
        self.errors.append(RankError(rank.rank, kind, text, message.get("oom") is True, phase))

    def _exit(self, rank: Rank, message: dict[str, Any], arrival: float) -> None:
        """The program ended by itself: its steps say how far it came, and the guard says how it ended."""

    def records(self, opens_after: int, closes_after: int, checked: int | None = None) -> tuple[StepRecord, ...]:
        """Return every step of every rank that has both its tick and its values, by step and rank.

        `checked` is the step that we ordered to be checked: the only one that is left out of the time.
        """
        result = []
        for rank in self.ranks.values():
            for step, message in rank.steps.items():
                try:
                    result.append(
                        fields.step_record(
                            rank.rank, step, rank.ticks[step], message, opens_after < step <= closes_after
                        )
                    )
                except fields.Malformed as error:
                    self.violate("protocol", f"rank {rank.rank}, step {step}: {error}")
        marked = (replace(r, check=True) if r.step == checked else r for r in result)
        return tuple(sorted(marked, key=lambda r: (r.step, r.rank)))

    def ends(self) -> tuple[RankEnd, ...]:
        """Return the ranks' ends, by rank."""
        return tuple(r.end for _, r in sorted(self.ranks.items()) if r.end is not None)


_HANDLERS: dict[str, Callable[[Collector, Rank, dict[str, Any], float], None]] = {
    "model": Collector._model,
    "tick": Collector._tick,
    "step": Collector._step,
    "hyper": Collector._hyper,
    "checked": Collector._checked,
    "done": Collector._done,
    "end": Collector._end,
    "error": Collector._error,
    "exit": Collector._exit,
}


def window_seconds(steps: Sequence[StepRecord]) -> tuple[float, int]:
    """Return wall seconds and number of the timed steps of the slowest rank, by the parent's clock.

    Check steps are left out. The window opens at the close of the step before the first timed one. (0.0, 0) where
    there is no window.
    """
    durations = max((list(d.values()) for d in _durations(steps).values()), key=sum, default=[])
    return sum(durations), len(durations)


def slowest_steps(steps: Sequence[StepRecord]) -> dict[int, float]:
    """Return wall seconds of each timed step, by the parent's clock, of the rank that was slowest over all of them."""
    return max(_durations(steps).values(), key=lambda d: sum(d.values()), default={})


def start_seconds(trial: Trial) -> float:
    """Return how long an execution took beside its steps: to the close of the first one, and after the last one."""
    arrivals = [step.arrival_seconds for step in trial.steps]
    return trial.wall_seconds - (max(arrivals) - min(arrivals) if arrivals else 0.0)


def _durations(steps: Sequence[StepRecord]) -> dict[int, dict[int, float]]:
    """Wall seconds of each timed step that is no check step, by rank."""
    arrivals: dict[int, dict[int, float]] = {}
    for step in steps:
        arrivals.setdefault(step.rank, {})[step.step] = step.arrival_seconds
    result: dict[int, dict[int, float]] = {}
    for step in sorted(steps, key=lambda s: s.step):
        before = arrivals[step.rank].get(step.step - 1)
        if step.in_window and not step.check and before is not None:
            result.setdefault(step.rank, {})[step.step] = step.arrival_seconds - before
    return result


def measure(
    steps: Sequence[StepRecord], ends: Sequence[RankEnd], *, steps_wanted: int, clocks: float
) -> Measurement | None:
    """Return the measurement of the timed window, or None where a rank's window has fewer than two steps."""
    by_rank = _durations(steps)
    if (
        not by_rank
        or not ends
        or len(by_rank) < len(ends)
        or min(len(d) for d in by_rank.values()) < min(2, steps_wanted)
    ):
        return None
    window, count = window_seconds(steps)
    if window <= 0:
        return None
    slowest = max(by_rank.values(), key=lambda d: sum(d.values()))
    tokens = sum(s.tokens for s in steps if s.in_window and not s.check)
    timed = len({s.step for s in steps if s.in_window})
    return Measurement(
        window_seconds=window,
        steps=count,
        step_seconds=tuple(slowest.values()),
        tokens=tokens,
        tokens_per_second=tokens / window,
        peak_allocated_bytes=max(e.peak_allocated_bytes for e in ends),
        peak_reserved_bytes=max(e.peak_reserved_bytes for e in ends),
        clock_disagreement=clocks,
        stopped_early=timed < steps_wanted,
    )


def clock_disagreement(ranks: Sequence[Rank], first: int, last: int) -> tuple[float, Violation | None]:
    """Compare each rank's own clock with ours over the window; return the largest relative difference.

    The violation is given where the two differ by more than 5 % and a quarter of a second: messages can wait that long
    on a busy machine, and a rank that lies about time gains nothing, since the metric is our clock.
    """
    worst, violation = 0.0, None
    for rank in ranks:
        if first not in rank.ticks or last not in rank.ticks or last <= first:
            continue
        ours, theirs = (rank.ticks[last][i] - rank.ticks[first][i] for i in (0, 1))
        difference = abs(ours - theirs)
        relative = difference / ours if ours > 0 else math.inf
        worst = max(worst, relative)
        if difference > CLOCK_TOLERANCE * ours + CLOCK_SLACK_SECONDS:
            violation = Violation(
                "time",
                "clock",
                f"rank {rank.rank}'s clock and ours disagree over the timed window",
                f"{theirs:.3f} s by its clock, {ours:.3f} s by ours",
                f"{CLOCK_TOLERANCE:.0%} and {CLOCK_SLACK_SECONDS} s",
            )
    return min(worst, 1e6), violation
