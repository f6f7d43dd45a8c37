"""The verdict: interleaved block pairs, Student's t on their log ratios, one error rate for everything looked at.

H0 is "the true speed-up is at the floor". A candidate is accepted only where the lower bound lies above it. The error
rate is split over the finalists (the best of k is not one) and over the looks (Bonferroni: valid whatever the
dependence between looks and finalists, and for any stopping). Looks with more pairs get more of it, since with two
degrees of freedom even a tenth of a percent hardly helps.

Rejecting promotes nothing, so it needs no split over finalists: its looks together wrong a candidate above the floor
with at most the same error rate. What can be told neither way is inconclusive, never a win or a loss.

Both arms are taken to scatter alike. What no procedure sees in nine pairs: a candidate that, alone, is slow in one
execution of ten. It is judged by the executions that it showed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infrarsi.records import Decision, Pair

SMALLEST_SD = 1e-4  # log ratios that agree better than a clock can measure know no more than the clock


@dataclass(frozen=True)
class Design:
    """How often a comparison may be looked at, with how many pairs, and what all of it may err together."""

    pairs_per_look: tuple[int, ...]
    error_rate: float
    finalists: int

    def alpha(self, look: int) -> float:
        """Return the one-sided error that look number `look` (from 0) of one finalist may spend."""
        weights = [pairs - 1 for pairs in self.pairs_per_look]
        return self.error_rate / max(1, self.finalists) * weights[look] / sum(weights)

    def rejection_alpha(self, look: int) -> float:
        """Return the one-sided error that a rejection at `look` may spend: at the last one what the others left."""
        if look < len(self.pairs_per_look) - 1:
            return self.alpha(look)
        return self.error_rate - sum(self.alpha(earlier) for earlier in range(look))


@dataclass(frozen=True)
class Judgement:
    """One look at the pairs. `decision` None: take more pairs. Speed-ups are baseline over candidate seconds."""

    decision: Decision | None
    speedup: float
    low: float
    high: float
    reason: str


def judge(pairs: Sequence[Pair], *, floor: float, design: Design, look: int) -> Judgement:
    """Judge the pairs at a planned look; the last look always decides.

    Only the first `design.pairs_per_look[look]` pairs that were not voided count: a look at more pairs than planned
    would be a look that nothing paid for, and a resumed run must judge as the interrupted one did.
    """
    planned = design.pairs_per_look[look]
    logs = [log_ratio(pair) for pair in pairs if not pair.voided][:planned]
    last = look == len(design.pairs_per_look) - 1
    speedup, low, high = interval(logs, design.alpha(look))
    bar = 1 + floor
    if len(logs) < planned:
        decision: Decision | None = "inconclusive" if last else None
        return Judgement(decision, speedup, low, high, f"only {len(logs)} of {planned} planned pairs are clean")
    if low > bar:
        return Judgement("accepted", speedup, low, high, f"at least {low:.3f}x, above the floor of {bar:.3f}x")
    if high < bar:
        return Judgement("rejected", speedup, low, high, f"at most {high:.3f}x, below the floor of {bar:.3f}x")
    if not last:
        return Judgement(None, speedup, low, high, f"between {low:.3f}x and {high:.3f}x: more pairs are needed")
    most = interval(logs, design.rejection_alpha(look))[2]
    if most < bar:
        reason = f"no gain is visible: {speedup:.3f}x measured, at most {most:.3f}x; the floor is {bar:.3f}x"
        return Judgement("rejected", speedup, low, high, reason)
    reason = f"{len(logs)} pairs leave it open: between {low:.3f}x and {high:.3f}x, the floor is {bar:.3f}x"
    return Judgement("inconclusive", speedup, low, high, reason)


def log_ratio(pair: Pair) -> float:
    """Return log(baseline seconds / candidate seconds): positive where the candidate is faster."""
    return math.log(pair.baseline_step_seconds / pair.candidate_step_seconds)


def interval(log_ratios: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """Return (ratio, low, high) of the mean log ratio; each bound errs with probability `alpha` on its side.

    Exchanging the arms turns (r, l, h) into (1/r, 1/h, 1/l). Fewer than two ratios bound nothing.
    """
    from scipy.special import stdtrit

    values = np.asarray(log_ratios, dtype=float)
    if values.size == 0:
        return 1.0, 0.0, math.inf
    mean = float(values.mean())
    if values.size == 1:
        return math.exp(mean), 0.0, math.inf
    error = max(float(values.std(ddof=1)), SMALLEST_SD) / math.sqrt(values.size)
    half = float(stdtrit(values.size - 1, 1 - alpha)) * error
    return math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 700.0))
