"""The price of memory: milliseconds per step for each GiB saved, and buying until a fast candidate fits."""

from __future__ import annotations

import math

import numpy as np

from infrarsi.records import Price
from infrarsi.search.beliefs import Anchors, Beliefs
from infrarsi.search.priors import Array
from infrarsi.search.space import Rows

FAST_CANDIDATES = 6
DOUBTFUL = math.log(0.5)
COMFORTABLE = math.log(0.85)
RUNS = math.log(0.4)
STEPS = 4
SMALL_SECONDS = 1e-4


def price_list(beliefs: Beliefs, anchors: Anchors) -> tuple[Price, ...]:
    """Return what each other level would cost and save at the current best, cheapest memory first."""
    space = beliefs.space
    here = beliefs.incumbent
    rows, labels = [], []
    for dimension, size in enumerate(space.sizes):
        for level in range(int(size)):
            if level != here[dimension]:
                row = here.copy()
                row[dimension] = level
                rows.append(row)
                labels.append((dimension, level))
    if not rows:
        return ()
    stacked = np.array(rows, dtype=np.int64)
    keep = space.valid(stacked)
    seconds, size_bytes = _absolute(beliefs, anchors, np.vstack([here[None, :], stacked]))
    prices = []
    for at, (dimension, level) in enumerate(labels, start=1):
        if not keep[at - 1]:
            continue
        lost = 1000 * float(seconds[at] - seconds[0])
        saved = float(size_bytes[0] - size_bytes[at]) / 2**30
        per_gib = lost / saved if saved > 1e-6 else None
        name = space.dimensions[dimension]
        prices.append(Price(name.name, name.levels[level], lost, saved, per_gib))
    return tuple(sorted(prices, key=lambda p: (p.milliseconds_per_gib is None, p.milliseconds_per_gib or 0.0)))


def make_fit(beliefs: Beliefs, rows: Rows) -> Rows:
    """Return fast rows that hardly fit, and the last that ran out of memory, with the cheapest savers added one by one.

    Every intermediate is kept: which of them is worth a trial is for the score to say.
    """
    space = beliefs.space
    empty = np.zeros((0, space.width), dtype=np.int64)
    if math.isinf(beliefs.limit) or not space.width:
        return empty
    predicted = beliefs.predict(rows)
    tight = np.flatnonzero((predicted.log_fits < DOUBTFUL) & (predicted.time < beliefs.best))
    fastest = tight[np.argsort(predicted.time[tight], kind="stable")][:FAST_CANDIDATES]
    starts = np.vstack([rows[fastest], beliefs.full[-3:]])
    found = [path for row in starts for path in _buy(beliefs, row)]
    return np.array(found, dtype=np.int64) if found else empty


def _buy(beliefs: Beliefs, row: Rows) -> list[Rows]:
    """Return the row after each purchase, until it fits comfortably or nothing is for sale."""
    path: list[Rows] = []
    for _ in range(STEPS):
        moves = beliefs.space.moves(row)
        if not moves.shape[0]:
            break
        predicted = beliefs.predict(np.vstack([row[None, :], moves]))
        if predicted.log_fits[0] >= COMFORTABLE:
            break
        # Ratios to the baseline do for comparing prices: both sides scale alike.
        memory, seconds = np.exp(predicted.memory), np.exp(predicted.time)
        needed = max(float(memory[0] - math.exp(beliefs.limit)), 1e-3)
        saved = np.minimum(memory[0] - memory[1:], needed)
        lost = np.maximum(seconds[1:] - seconds[0], 0.0) + SMALL_SECONDS
        worth = np.where((saved > 0) & (predicted.log_runs[1:] > RUNS), saved / lost, -np.inf)
        at = int(np.argmax(worth))
        if not np.isfinite(worth[at]):
            break
        row = moves[at]
        path.append(row)
    return path


def _absolute(beliefs: Beliefs, anchors: Anchors, rows: Rows) -> tuple[Array, Array]:
    predicted = beliefs.predict(rows)
    return anchors.step_seconds * np.exp(predicted.time), anchors.peak_bytes * np.exp(predicted.memory)
