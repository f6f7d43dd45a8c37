"""Why a candidate is worth a trial, in one sentence: what it changes, what is expected of it, and what makes it fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from infrarsi.search.beliefs import Beliefs
from infrarsi.search.space import Dimension, Rows

NAMED = 4  # changes that are named one by one; a bold candidate has dozens
DOUBTFUL, LIKELY = math.log(0.5), math.log(0.6)


def because(beliefs: Beliefs, row: Rows, chance: float, why: str) -> str:
    """Return the sentence for one row (D levels).

    `chance` is that of a gain over the best so far that can be seen; `why` how it was found, may be empty.
    """
    changed = np.flatnonzero(row != beliefs.incumbent)
    found = [why] if why else []
    if changed.size:
        found.append(f"{_changes(beliefs, row, changed)} at the best so far, {_expected(beliefs, row)}")
    found += _savers(beliefs, row, changed)
    found.append(f"a chance of {chance:.0%} to beat the best so far by more than can be missed")
    return "; ".join(found)


def _changes(beliefs: Beliefs, row: Rows, changed: Rows) -> str:
    names = [_change(beliefs.space.dimensions[d], int(beliefs.incumbent[d]), int(row[d])) for d in changed]
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more changes"


def _change(dimension: Dimension, before: int, after: int) -> str:
    if dimension.patch:
        return f"{'with' if after else 'without'} {dimension.name}"
    return f"{dimension.name} {dimension.levels[before]} -> {dimension.levels[after]}"


def _expected(beliefs: Beliefs, row: Rows) -> str:
    """Return what the time model expects against the best so far, in percent of its step time, and how surely."""
    predicted = beliefs.predict(row[None, :])
    ratio = math.exp(float(predicted.time[0]) - beliefs.best)
    spread = math.sqrt(float(predicted.time_variance[0]))
    share = math.exp(float(predicted.log_feasible[0]))
    return f"expected {ratio:.2f} times its step time (give or take {spread:.0%}), {share:.0%} sure to fit and run"


def _savers(beliefs: Beliefs, row: Rows, changed: Sequence[int] | Rows) -> list[str]:
    """Return which changes make it fit: without one of them it hardly would."""
    if not len(changed) or math.isinf(beliefs.limit):
        return []
    without = np.repeat(row[None, :], len(changed), axis=0)
    for at, dimension in enumerate(changed):
        without[at, dimension] = beliefs.incumbent[dimension]
    fits = beliefs.predict(np.vstack([row[None, :], without])).log_fits
    if fits[0] < LIKELY:
        return []
    names = [
        f"{beliefs.space.dimensions[d].name} makes it fit ({math.exp(fits[0]):.0%} rather than {math.exp(alone):.0%})"
        for d, alone in zip(changed, fits[1:], strict=True)
        if alone < DOUBTFUL
    ]
    return names[:NAMED]
