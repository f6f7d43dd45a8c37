"""When a pair says more about the machine than about the candidate: contention, and a baseline that has moved.

Both arms of a pair are voided together, and only for reasons that do not depend on what the candidate showed: dropping
a pair because the candidate was slow in it would be choosing the result. The limit on the baseline is generous for the
same cause: cutting ordinary slow or fast baselines off would bend the ratios that remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from infrarsi.records import Noise

PRESSURE_LIMIT = 0.25  # share of the window in which other processes held the CPUs
PRESSURE_DIFFERENCE = 0.10  # one arm disturbed clearly more than the other
SIGMAS = 4.0


def contaminated(
    baseline_pressure: float,
    candidate_pressure: float,
    baseline_step_seconds: float,
    expected_step_seconds: float,
    noise: Noise,
) -> str:
    """Return why a pair has to be voided, or the empty string.

    Pressures are shares of the timed window, 0 to 1. `expected_step_seconds` is the
    baseline's usual figure by the same clock: of this contest so far.
    """
    worst = max(baseline_pressure, candidate_pressure)
    if worst > PRESSURE_LIMIT:
        return f"other processes held the machine for {worst:.0%} of the time"
    if abs(baseline_pressure - candidate_pressure) > PRESSURE_DIFFERENCE:
        return f"other processes disturbed one arm only ({baseline_pressure:.0%} against {candidate_pressure:.0%})"
    if baseline_step_seconds <= 0 or expected_step_seconds <= 0:
        return "the baseline has no time"
    moved = math.log(baseline_step_seconds / expected_step_seconds)
    if abs(moved) > drift_limit(noise):
        direction = "slower" if moved > 0 else "faster"
        return f"the baseline was {abs(math.expm1(moved)):.0%} {direction} than usual here"
    return ""


def calm(pressures: Sequence[float]) -> tuple[int, ...]:
    """Return which of several executions of one commit were left alone: by the limits that void a pair.

    Where fewer than two were, the machine is like that, and all of them count.
    """
    least = min(pressures, default=0.0)
    limit = min(PRESSURE_LIMIT, least + PRESSURE_DIFFERENCE)
    found = tuple(n for n, pressure in enumerate(pressures) if pressure <= limit)
    return found if len(found) > 1 else tuple(range(len(pressures)))


def drift_limit(noise: Noise) -> float:
    """Return how far, in log seconds, a baseline may lie from its usual time before its pair is voided."""
    return max(noise.floor, SIGMAS * noise.between_cv, 1.5 * abs(noise.drift), 0.02)
