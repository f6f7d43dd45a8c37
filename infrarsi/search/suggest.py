"""Choosing the next candidate: first bold and diverse, then by expected feasible gain over a pool that is climbed.

The first candidate after the baseline is everything that is claimed to help, together: many independent gains multiply,
and where it fails the next ones find out what did it. The rest of the start maximises score plus distance to what was
tried. Later the pool is mutations and crossovers of the best, random mixes, and fast candidates made to fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from infrarsi.search.beliefs import Beliefs
from infrarsi.search.pricing import make_fit
from infrarsi.search.priors import Array
from infrarsi.search.reasons import because
from infrarsi.search.space import Rows, Space
from infrarsi.stats.acquisition import log_expected_improvement, probability_below

INITIAL = 5
MUTATIONS, MIXES, CROSSOVERS = 400, 200, 100
MOST_CHANGES = 3  # of a mutation
PARENTS = 4
CLIMBERS, ROUNDS = 8, 4
ENUMERATED = 512
DIVERSITY_WEIGHT, DIVERSITY_CAP = 6.0, 0.2
HELPFUL = -0.005
LIKELY_FITS = math.log(0.5)
RISKY = math.log(0.2)
# Failures cost a whole trial and teach little. Over ten jobs of each simulated kind, the power 3 in place of 2 took
# failed trials from 4.5 to 3.2 of thirty and changed the share of the best known speed-up by less than its noise.
RISK_AVERSION = 3.0


@dataclass(frozen=True)
class Suggestion:
    """One row to try, why, and what was expected: gain as expected fall of log time, chance of a visible gain."""

    row: Rows
    why: str
    log_gain: float
    chance: float


def suggest(beliefs: Beliefs, rng: Generator, number: int, floor: float, *, pairing: bool = True) -> Suggestion | None:
    """Return the next row, given that `number` candidates were tried; None when every combination was tried."""
    space = beliefs.space
    if number == 0 and beliefs.is_new(np.zeros((1, space.width), dtype=np.int64))[0]:
        return Suggestion(np.zeros(space.width, dtype=np.int64), "the baseline, measured in this session", 0.0, 1.0)
    bold = everything_helpful(beliefs)
    if number <= 1 and bold.any() and beliefs.is_new(bold[None, :])[0]:
        return _explained(beliefs, bold, floor, "everything that is claimed to help, together")
    early = number <= INITIAL
    rows = pool(beliefs, bold, rng, pairing=pairing and not early)
    rows = rows[beliefs.is_new(rows)]
    if not rows.shape[0]:
        return None
    rows, values = climb(beliefs, rows, early=early)
    best = rows[int(np.argmax(values))]
    return _explained(beliefs, best, floor, "far from what was tried" if early else "")


def score(beliefs: Beliefs, rows: Rows, *, early: bool) -> Array:
    """Return log expected feasible improvement of n rows; at the start plus a reward for being different."""
    predicted = beliefs.predict(rows)
    sd = np.sqrt(predicted.time_variance)
    value = log_expected_improvement(predicted.time, sd, beliefs.best) + RISK_AVERSION * predicted.log_feasible
    if early:
        value = value + DIVERSITY_WEIGHT * np.minimum(DIVERSITY_CAP, _distance(beliefs, rows))
    result: Array = np.where(beliefs.space.valid(rows), value, -np.inf)
    return result


def pool(beliefs: Beliefs, bold: Rows, rng: Generator, *, pairing: bool) -> Rows:
    """Return distinct valid rows to choose from; `bold` is everything believed to help."""
    space = beliefs.space
    if space.combinations <= ENUMERATED:
        grid = np.indices([int(s) for s in space.sizes]).reshape(space.width, -1).T
        return np.unique(grid[space.valid(grid)].astype(np.int64), axis=0)
    parents = _parents(beliefs)
    made = [
        mutations(space, parents, rng, MUTATIONS),
        _mixes(space, beliefs.incumbent, rng, MIXES),
        _crossovers(np.vstack([parents, bold[None, :]]), rng, CROSSOVERS),
        bold[None, :],
    ]
    rows = np.unique(space.repair(np.vstack(made)), axis=0)
    if pairing:
        rows = np.unique(np.vstack([rows, space.repair(make_fit(beliefs, rows))]), axis=0)
    return rows[space.valid(rows)]


def climb(beliefs: Beliefs, rows: Rows, *, early: bool) -> tuple[Rows, Array]:
    """Improve the best rows by one-coordinate moves; returns the untried rows met at the end with their scores."""
    values = score(beliefs, rows, early=early)
    order = np.argsort(-values, kind="stable")[:CLIMBERS]
    current, height = rows[order], values[order]
    for _ in range(ROUNDS):
        moved = False
        moves = [beliefs.space.moves(row) for row in current]
        stacked = np.vstack(moves)
        scores = np.where(beliefs.is_new(stacked), score(beliefs, stacked, early=early), -np.inf)
        start = 0
        for i, group in enumerate(moves):
            part = scores[start : start + len(group)]
            start += len(group)
            if part.size and part.max() > height[i] + 1e-9:
                current[i], height[i] = group[int(np.argmax(part))], part.max()
                moved = True
        if not moved:
            break
    return current, height


def everything_helpful(beliefs: Beliefs) -> Rows:
    """Return the row of all options believed to help, in order of gain, as far as they fit and go together."""
    space = beliefs.space
    trust = np.asarray(beliefs.time.hyper.trust)
    gain = beliefs.priors.time @ trust + beliefs.time.effects()[0]
    row = np.zeros(space.width, dtype=np.int64)
    for effect in np.argsort(gain, kind="stable"):
        if gain[effect] > HELPFUL:
            break
        dimension, level = space.effects[int(effect)]
        if row[dimension]:
            continue
        option = row.copy()
        option[dimension] = level
        needed = [b for a, b in space.needs if a == dimension]
        option[needed] = np.maximum(option[needed], 1)
        if not space.valid(option[None, :])[0]:
            continue
        predicted = beliefs.predict(np.vstack([row, option]))
        fits = predicted.log_fits[1] > LIKELY_FITS or predicted.log_fits[1] >= predicted.log_fits[0]
        if fits and predicted.log_runs[1] - predicted.log_runs[0] > RISKY:
            row = option
    return row


def _explained(beliefs: Beliefs, row: Rows, floor: float, why: str) -> Suggestion:
    predicted = beliefs.predict(row[None, :])
    sd = np.sqrt(predicted.time_variance)
    log_gain = float((log_expected_improvement(predicted.time, sd, beliefs.best) + predicted.log_feasible)[0])
    visible = probability_below(predicted.time, sd, beliefs.best - math.log1p(floor))[0]
    chance = float(visible * np.exp(predicted.log_feasible[0]))
    return Suggestion(row, because(beliefs, row, chance, why), log_gain, chance)


def _distance(beliefs: Beliefs, rows: Rows) -> Array:
    """Return the least share of dimensions in which each row differs from one that was tried."""
    tried = np.array([np.frombuffer(t, dtype=np.int64) for t in sorted(beliefs.tried)])
    if not tried.size:
        return np.ones(rows.shape[0])
    result: Array = (rows[:, None, :] != tried[None, :, :]).mean(axis=2).min(axis=1)
    return result


def _parents(beliefs: Beliefs) -> Rows:
    baseline = np.zeros((1, beliefs.space.width), dtype=np.int64)
    known = np.unique(np.vstack([baseline, beliefs.good]), axis=0)
    order = np.argsort(beliefs.predict(known).time, kind="stable")[:PARENTS]
    return known[order]


def mutations(space: Space, parents: Rows, rng: Generator, count: int) -> Rows:
    """Return random changes of one to three dimensions to random parents; they may break constraints."""
    rows = parents[rng.integers(len(parents), size=count)]
    rank = rng.random((count, space.width)).argsort(axis=1).argsort(axis=1)
    changed = rank < rng.integers(1, MOST_CHANGES + 1, size=(count, 1))
    return np.where(changed, rng.integers(space.sizes, size=rows.shape), rows).astype(np.int64)


def _mixes(space: Space, incumbent: Rows, rng: Generator, count: int) -> Rows:
    random = rng.integers(space.sizes, size=(count, space.width))
    keep = rng.random((count, space.width)) < rng.random((count, 1))
    return np.where(keep, incumbent, random).astype(np.int64)


def _crossovers(parents: Rows, rng: Generator, count: int) -> Rows:
    left = parents[rng.integers(len(parents), size=count)]
    right = parents[rng.integers(len(parents), size=count)]
    return np.where(rng.random(left.shape) < 0.5, left, right).astype(np.int64)
