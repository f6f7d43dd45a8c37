"""What the baseline's own repeats say about the machine: variation, autocorrelation, warm-up, drift, and the floor.

Step times of one process are correlated and share whatever that process was dealt (page placement, clock frequency,
neighbours), so the spread of step times says little about the next process. The spread *between* processes is what a
comparison of two commits has to beat, and what the floor is made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from infrarsi.records import Noise

FLOOR_MINIMUM = 0.005  # clocks, synchronisation and rounding are not better than this on any machine met so far
FLOOR_PAIRS = 8  # the last look of a verdict: what can be told from noise at all
FLOOR_ERROR = 0.05
TARGET_ERROR = 0.005  # relative standard error of a timed window that is worth paying steps for
TIMED_STEPS = (5, 200)


def estimate_noise(runs: Sequence[Sequence[float]]) -> Noise:
    """Return the noise of A/A processes; `runs[i]` are the step seconds of process i, in the order they ran.

    Raises ValueError where no run has three positive step times.
    """
    series = [np.asarray(run, dtype=float) for run in runs]
    series = [run[np.isfinite(run) & (run > 0)] for run in series]
    series = [run for run in series if run.size >= 3]
    if not series:
        raise ValueError("noise needs at least one run of three steps")
    warmup = max(warmup_length(run) for run in series)
    steady = [run[min(warmup, run.size - 3) :] for run in series]
    within = _pooled_cv(steady)
    correlation = _autocorrelation(steady)
    expected = within * math.sqrt(inflation(correlation) / float(np.mean([run.size for run in steady])))
    means = np.log([run.mean() for run in steady])
    between = _between(means, expected, within)
    return Noise(
        within_cv=within,
        between_cv=between,
        autocorrelation=correlation,
        drift=_drift(means),
        warmup_steps=warmup,
        timed_steps=_timed_steps(within, correlation),
        floor=floor_of(between, len(steady)),
        repeats=len(steady),
    )


def floor_of(between_cv: float, repeats: int) -> float:
    """Return the smallest visible gain: the half width of a one-sided 95 % interval over the last look's pairs.

    Student's t, since two or three repeats know their own spread badly: fewer repeats, higher floor.
    """
    from scipy.special import stdtrit

    quantile = float(stdtrit(max(1, repeats), 1 - FLOOR_ERROR))
    return max(FLOOR_MINIMUM, quantile * math.sqrt(2 / FLOOR_PAIRS) * between_cv)


def repeats_for(gain: float, between_cv: float, *, error_rate: float = FLOOR_ERROR, limit: int = 64) -> int | None:
    """Return how many pairs make a gain of `gain` (0.02 for 2 %) visible, or None where `limit` are not enough."""
    from scipy.special import stdtrit

    for pairs in range(3, limit + 1):
        half = float(stdtrit(pairs - 1, 1 - error_rate)) * math.sqrt(2 / pairs) * between_cv
        if half < math.log1p(gain):
            return pairs
    return None


def warmup_length(steps: NDArray[np.float64]) -> int:
    """Return how many leading steps are slower than the second half says they should be, at most a third of all.

    Judged against the median and spread of the second half, so that one straggler at the end is no warm-up.
    """
    tail = steps[steps.size // 2 :]
    centre = float(np.median(tail))
    spread = 1.4826 * float(np.median(np.abs(tail - centre)))
    limit = centre + max(4 * spread, 0.05 * centre)
    slow = steps[: steps.size // 3] > limit
    return int(np.argmin(slow)) if not slow.all() else slow.size


def inflation(autocorrelation: float) -> float:
    """Return the factor by which the variance of an AR(1) mean exceeds that of independent samples."""
    bounded = min(max(autocorrelation, 0.0), 0.95)
    return (1 + bounded) / (1 - bounded)


def _pooled_cv(runs: Sequence[NDArray[np.float64]]) -> float:
    squares = sum(float(((run / run.mean() - 1) ** 2).sum()) for run in runs)
    return math.sqrt(squares / sum(run.size - 1 for run in runs))


def _autocorrelation(runs: Sequence[NDArray[np.float64]]) -> float:
    """Return the pooled lag-1 autocorrelation, corrected for its bias of -(1 + 4 rho) / n in short series."""
    top = bottom = 0.0
    for run in runs:
        centred = run / run.mean() - 1
        top += float((centred[1:] * centred[:-1]).sum())
        bottom += float((centred**2).sum())
    if bottom == 0:
        return 0.0
    size = float(np.mean([run.size for run in runs]))
    raw = top / bottom
    corrected = (size * raw + 1) / (size - 4) if size > 8 else raw
    return min(max(corrected, -0.9), 0.95)


def _between(means: NDArray[np.float64], expected: float, within: float) -> float:
    """Return the sd of a process mean: what was seen, steadied by what the steps alone would give, never below it."""
    if means.size < 2:
        return max(expected, within)  # one process says nothing about the next one
    seen = float(means.var(ddof=1))
    pooled = ((means.size - 1) * seen + expected**2) / means.size
    return math.sqrt(max(seen, pooled, expected**2))


def _drift(means: NDArray[np.float64]) -> float:
    """Return the fitted relative change of step time from the first process to the last; 0.03 is 3 % slower."""
    if means.size < 2:
        return 0.0
    slope = float(np.polyfit(np.arange(means.size), means, 1)[0])
    return math.expm1(slope * (means.size - 1))


def _timed_steps(within: float, correlation: float) -> int:
    wanted = math.ceil((within / TARGET_ERROR) ** 2 * inflation(correlation))
    return min(max(wanted, TIMED_STEPS[0]), TIMED_STEPS[1])
