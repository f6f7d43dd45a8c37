"""When to stop: a trial that will not be the best any more, and a search that has nothing visible left to find."""

from __future__ import annotations

import math

import numpy as np

from infrarsi.records import Noise
from infrarsi.search.beliefs import Anchors, Beliefs
from infrarsi.search.space import Rows
from infrarsi.search.suggest import INITIAL, Suggestion

HOPELESS = 0.02
PATIENCE = 2  # so many hopeful-looking trials beyond the initial ones before the search may end by itself
EARLY_STEPS = 2  # the first moment at which a trial is looked at
STRAGGLER = 1.5
PRIOR_SD = 0.15


def hopeless_trial(beliefs: Beliefs, row: Rows, step_seconds: float, anchors: Anchors, noise: Noise) -> bool:
    """Return whether P(better than the best so far) is below 2 %, after a few timed steps at this mean.

    The prediction counts, but never as surer than 15 %: a model that is sure of itself must not stop what would prove
    it wrong.
    """
    if step_seconds <= 0:
        return False
    predicted = beliefs.predict(row[None, :])
    prior_variance = max(float(predicted.time_variance[0]), PRIOR_SD**2)
    seen = math.log(step_seconds / anchors.step_seconds)
    seen_variance = STRAGGLER**2 * (noise.within_cv**2 / EARLY_STEPS + noise.between_cv**2) + 0.01**2
    precision = 1 / prior_variance + 1 / seen_variance
    mean = (float(predicted.time[0]) / prior_variance + seen / seen_variance) / precision
    z = (beliefs.best - mean) * math.sqrt(precision)
    return 0.5 * math.erfc(-z / math.sqrt(2)) < HOPELESS


def exhausted(suggestion: Suggestion, number: int, floor: float) -> str:
    """Return why the search should end before its budget, in plain words, or the empty string.

    Both must hold: the next trial gains less than can be seen, on average; and it hardly has a chance of more.
    """
    if number <= INITIAL + PATIENCE:
        return ""
    gain = math.expm1(math.exp(min(suggestion.log_gain, 0.0)))
    if gain >= floor or suggestion.chance >= HOPELESS:
        return ""
    return (
        f"the most promising candidate left has a chance of {suggestion.chance:.1%} to be faster by the {floor:.1%} "
        f"that can be seen here (it gains {gain:.2%} on average)"
    )


def ranked(beliefs: Beliefs) -> list[tuple[float, Rows]]:
    """Return (upper estimate of log time, row) of tried rows that ran and are believed faster than the baseline.

    The estimate is posterior mean plus one standard deviation: gain less one standard deviation, best first.
    """
    if not beliefs.good.shape[0]:
        return []
    rows = np.unique(beliefs.good, axis=0)
    predicted = beliefs.predict(np.vstack([np.zeros((1, beliefs.space.width), dtype=np.int64), rows]))
    upper = predicted.time[1:] + np.sqrt(predicted.time_variance[1:])
    faster = predicted.time[1:] < predicted.time[0]
    order = np.argsort(upper, kind="stable")
    return [(float(upper[i]), rows[i]) for i in order if faster[i] and rows[i].any()]
