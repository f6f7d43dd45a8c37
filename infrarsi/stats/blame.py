"""Which level, or which pair of levels, makes candidates fail: a noisy-or over pairs, baseline levels included.

"This patch with that setting left as it is" is a pair too, and a frequent one. Every level of every knob has an index;
a candidate is a row of zeros and ones with one level per knob. Each pair (and each single level, on the diagonal) has a
small prior probability of failing; whatever was part of a good run is cleared. A failure shares its blame over what it
contains and what is not yet cleared, by prior odds, reweighted a few times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infrarsi.stats.kernel import Array

SINGLE = 0.02
PAIR = 0.004
DECLARED = 0.5
CLEARED = 1e-5
OOM_FACTOR = 0.1  # it ran until it was full: most of what could go wrong did not
LARGEST = 0.95
REWEIGHTINGS = 4


@dataclass(frozen=True)
class Blame:
    """`probability`, L by L and symmetric: that a pair of levels fails a run; single levels on the diagonal."""

    probability: Array

    def log_ok(self, levels: Array) -> Array:
        """Return log P(no failure) for each row of `levels` (n by L)."""
        surviving = np.log1p(-self.probability)
        pairs = np.einsum("nl,nl->n", levels @ surviving, levels)
        singles = levels @ np.diag(surviving)
        result: Array = 0.5 * (pairs + singles)
        return result


def priors(knob: NDArray[np.int64], baseline: NDArray[np.bool_], declared: Array) -> Array:
    """Return the prior, L by L. `knob[l]` and `baseline[l]` describe the levels; `declared` is 1 at declared conflicts.

    The baseline runs, so everything within it is cleared from the start.
    """
    result = np.full((knob.size, knob.size), PAIR)
    np.fill_diagonal(result, SINGLE)
    result[declared > 0] = DECLARED
    result[np.outer(baseline, baseline)] = CLEARED
    same = knob[:, None] == knob[None, :]
    np.fill_diagonal(same, False)
    result[same] = 0.0  # two levels of one knob never meet
    return result


def assign(prior: Array, good: Array, full: Array, failed: Array, weights: Array | None = None) -> Blame:
    """Return the blame after runs that were good, out of memory (`full`) and failed: rows of levels, n by L each.

    `weights` (f by L by L), where given, multiplies the odds of each pair per failure: a patch that does not apply
    does not do so because of an environment variable.
    """
    probability = prior.copy()
    if full.size:
        probability[(full.T @ full) > 0] *= OOM_FACTOR
    if good.size:
        cleared = (good.T @ good) > 0
        probability[cleared] = np.minimum(probability[cleared], CLEARED)
    if not failed.size:
        return Blame(probability)
    upper = np.triu(np.ones_like(probability))
    contained = failed[:, :, None] * failed[:, None, :] * upper
    if weights is not None:
        contained = contained * weights
    start = probability.copy()
    for _ in range(REWEIGHTINGS):
        odds = np.clip(probability, 0.0, LARGEST)
        odds = odds / (1 - odds)
        shares = contained * odds
        total = shares.sum(axis=(1, 2), keepdims=True)
        blamed = (shares / np.maximum(total, 1e-12)).sum(axis=0)
        blamed = blamed + np.triu(blamed, 1).T
        probability = np.where(start > CLEARED, np.minimum(LARGEST, start + (1 - start) * blamed), start)
    return Blame(probability)
