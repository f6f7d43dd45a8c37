"""Whether a trial is overdue, and which rank it waits for (R-D2, R-D4). Pure: time and state come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infrarsi.trial.collect import Rank
from infrarsi.trial.outcome import Deadline
from infrarsi.trial.plan import Deadlines

FINISH_SECONDS = 60.0  # from the ranks' last step to their end: dump, gather, exit


@dataclass(frozen=True)
class Clocks:
    """What has happened so far on the parent's clock. None: not yet. `worked`: when the tree last burnt CPU time."""

    started: float
    worked: float
    first_tick: float | None
    done: float | None


@dataclass(frozen=True)
class Expired:
    """The deadline that passed, how long was waited, and the rank that is behind where one can be told."""

    deadline: Deadline = ""
    waited_seconds: float = 0.0
    rank: int | None = None


def expired(
    now: float, limits: Deadlines, clocks: Clocks, ranks: Mapping[int, Rank], world_size: int
) -> Expired | None:
    """Return the deadline that has passed at `now`, or None."""
    running = now - clocks.started
    if running > limits.total_seconds:
        return Expired("total", running)
    if clocks.done is not None:
        waited = now - clocks.done
        return Expired("end", waited) if waited > FINISH_SECONDS else None
    if clocks.first_tick is None:
        if running > limits.startup_seconds:
            return Expired("startup", running)
        heard = max((r.last_seen for r in ranks.values()), default=clocks.started)
        idle = now - max(heard, clocks.worked)
        return Expired("progress", idle) if idle > limits.progress_seconds else None
    for number in range(world_size):
        rank = ranks.get(number)
        if rank is not None and rank.done is not None:
            continue
        waited = now - max(rank.last_seen if rank else 0.0, clocks.first_tick)
        if waited > limits.progress_seconds:
            return Expired("progress", waited, rank_behind(ranks, world_size))
    return None


def rank_behind(ranks: Mapping[int, Rank], world_size: int) -> int | None:
    """Return the rank that is furthest behind; None where the ranks wait at the same step and nobody can tell."""
    steps = {n: (r.last_step if (r := ranks.get(n)) else -1) for n in range(world_size)}
    lowest = min(steps.values())
    behind = [n for n, step in steps.items() if step == lowest]
    return behind[0] if len(behind) < len(steps) or len(steps) == 1 else None
