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

SIGMAS, VISIBLE_SIGMAS = 3.0, 2.0
SMALL_GAIN = math.log(1.05)
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
    """A speed-up inside the window, how much of it the last steps lack, and the variances of both.

    As natural logarithms of a ratio; `change` is negative where the last steps gain more.
    """

    gain: float
    change: float
    gain_variance: float
    variance: float

    @property
    def lost(self) -> float:
        """How much of the gain is gone."""
        return max(0.0, self.change)

    @property
    def allowed(self) -> float:
        """How much of it may be, by noise or by honest change."""
        return max(GAIN_SHARE * max(self.gain, 0.0), SIGMAS * math.sqrt(self.variance))

    @property
    def held(self) -> bool:
        """Whether the gain lasts, as far as can be seen."""
        return self.lost <= self.allowed

    @property
    def visible(self) -> bool:
        """Whether these runs show a gain at all, beyond two standard errors."""
        return self.gain > VISIBLE_SIGMAS * math.sqrt(self.gain_variance)

    def resolves(self, promised: float) -> bool:
        """Whether it would have been seen, had all of the gain been gone: this one or the one that was promised.

        Gains too small to matter need no proof.
        """
        return self.allowed < max(self.gain, promised, SMALL_GAIN)


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
    gains, variances = [], []
    for steps in (window, behind):
        gain = variance = 0.0
        for sign, times in ((1, baseline), (-1, candidate)):
            seconds = [times[step] for step in steps if times.get(step, 0.0) > 0]
            if len(seconds) < MIN_STEPS:
                raise ValueError(f"{len(seconds)} timed steps from step {steps.start} on")
            gain += sign * math.log(statistics.median(seconds))
            variance += MEDIAN_VARIANCE * spread**2 * inflation(noise.autocorrelation) / len(seconds)
        gains.append(gain)
        variances.append(variance)
    return Lasting(gains[0], gains[0] - gains[1], variances[0], sum(variances))


def pooled(found: Sequence[Lasting]) -> Lasting:
    """Return what several pairs of runs say together, each weighted by its inverse variance."""
    weights = [1 / each.variance for each in found]
    total = sum(weights)
    gain = sum(w * each.gain for w, each in zip(weights, found, strict=True)) / total
    change = sum(w * each.change for w, each in zip(weights, found, strict=True)) / total
    gain_variance = sum(w**2 * each.gain_variance for w, each in zip(weights, found, strict=True)) / total**2
    return Lasting(gain, change, gain_variance, 1 / total)


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
