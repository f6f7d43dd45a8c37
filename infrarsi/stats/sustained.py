"""Whether a gain lasts beyond the window that it was measured in.

Work that was done ahead of the window, with its results kept, gives every number of an honest run in less time; but it
covers only as many steps as were prepared. So a finalist trains on for a number of steps that nobody knows before, and
its gain in the last of them is compared with its gain inside the window. Preparing for more steps costs time before the
first one: `enough_steps` says how long the run must be so that this time cannot have paid for all of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infrarsi.records import Noise
from infrarsi.stats.noise import inflation

SIGMAS = 3.0
GAIN_SHARE = 0.5  # of the logarithm of the speed-up may be gone in the last steps, whatever the noise
LAST_SHARE = 1 / 3  # of all timed steps are "the last ones"
MIN_STEPS = 3
LEAST_SPREAD = 0.02  # no machine is steadier from step to step, whatever a short calibration says
# Training ahead takes at least this share of the baseline's time for the same steps: what is prepared is itself worth
# timing, so it is hardly more than three times as fast (the best promotions known are), and two fifths are left over.
AHEAD_SHARE = 0.2
START_NOISE_SECONDS, START_NOISE_SHARE = 1.0, 0.1  # two starts of one training differ by this
MEDIAN_VARIANCE = math.pi / 2  # of the median of normal samples, over that of their mean


class Lasting(NamedTuple):
    """How much of a speed-up is gone in the last steps, and how much may be, as natural logarithms of a ratio."""

    lost: float
    allowed: float


def lasting(baseline: Mapping[int, float], candidate: Mapping[int, float], window: range, noise: Noise) -> Lasting:
    """Compare the speed-up in the last third of all steps with the one in `window`; maps are step to wall seconds.

    Medians, since one straggler says nothing. Their standard error, for AR(1) samples, comes from doctor's spread in
    a run or the present baseline's, whichever is wider: the candidate's own would let it choose its limit.
    ValueError where there are fewer than three steps on either side.
    """
    last = max(set(baseline) & set(candidate), default=0)
    first = min(set(baseline) & set(candidate), default=0)
    behind = range(max(window.stop, last + 1 - max(MIN_STEPS, round((last + 1 - first) * LAST_SHARE))), last + 1)
    spread = max(noise.within_cv, LEAST_SPREAD, _robust_cv([baseline[step] for step in window if step in baseline]))
    variance = 0.0
    gains = []
    for steps in (window, behind):
        gain = 0.0
        for sign, times in ((1, baseline), (-1, candidate)):
            seconds = [times[step] for step in steps if times.get(step, 0.0) > 0]
            if len(seconds) < MIN_STEPS:
                raise ValueError(f"{len(seconds)} timed steps from step {steps.start} on")
            gain += sign * math.log(statistics.median(seconds))
            variance += MEDIAN_VARIANCE * spread**2 * inflation(noise.autocorrelation) / len(seconds)
        gains.append(gain)
    allowed = max(GAIN_SHARE * max(gains[0], 0.0), SIGMAS * math.sqrt(variance))
    return Lasting(max(0.0, gains[0] - gains[1]), allowed)


def _robust_cv(seconds: Sequence[float]) -> float:
    """Return the coefficient of variation from the median absolute deviation, which one straggler does not widen."""
    if len(seconds) < MIN_STEPS:
        return 0.0
    centre = statistics.median(seconds)
    return 1.4826 * statistics.median(abs(x - centre) for x in seconds) / centre if centre > 0 else 0.0


def enough_steps(baseline_start: float, candidate_start: float, baseline_step: float) -> int:
    """Return how many steps a run needs so that the candidate's longer start cannot have trained for all of them.

    Seconds of the whole execution but for its steps, and seconds per step of the baseline.
    """
    noise = max(START_NOISE_SECONDS, START_NOISE_SHARE * baseline_start)
    ahead = max(0.0, candidate_start - baseline_start - noise)
    return math.ceil(ahead / (AHEAD_SHARE * baseline_step))
