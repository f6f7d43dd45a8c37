"""What is believed after some trials: the fitted time model, memory model and blame, and predictions from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from infrarsi.search.interface import WHOLE, Observation, Parts
from infrarsi.search.priors import MEMORY_SHARES, Array, Priors
from infrarsi.search.space import Rows, Space
from infrarsi.stats.blame import Blame, assign, priors
from infrarsi.stats.gaussian import Data, Grid, Posterior, fit
from infrarsi.stats.memory import MEMORY_GRID, Censored, fit_memory, probability_of_fitting

FAILED = ("crash", "hang", "timeout", "conflict", "rejected")
SMALLEST_ERROR = 0.004
FRAGMENTED = 0.8  # an out-of-memory with less than this share of the budget allocated is fragmentation, not fullness
TREE_ODDS = 20.0


@dataclass(frozen=True)
class Anchors:
    """The measured baseline and the limits. `noise_floor` is doctor's smallest visible gain; `budget` bytes or None.

    `shares`: of each memory term in the baseline's peak.
    """

    step_seconds: float
    peak_bytes: int
    budget: int | None
    noise_floor: float
    step_error: float
    shares: tuple[float, ...] = MEMORY_SHARES


@dataclass(frozen=True)
class Prediction:
    """Log ratios to the baseline at n rows: time mean and variance, memory likewise, log P(fits), log P(runs)."""

    time: Array
    time_variance: Array
    memory: Array
    memory_variance: Array
    log_fits: Array
    log_runs: Array

    @property
    def log_feasible(self) -> Array:
        """Return log P(fits and runs)."""
        return self.log_fits + self.log_runs


@dataclass(frozen=True)
class Beliefs:
    """The models, and the rows they were fitted to. `limit` is log(budget / baseline peak), infinity without one."""

    space: Space
    priors: Priors
    time: Posterior
    memory: Posterior
    blame: Blame
    limit: float
    good: Rows
    full: Rows
    tried: frozenset[bytes]
    incumbent: Rows
    best: float

    def predict(self, rows: Rows) -> Prediction:
        """Predict n rows."""
        points = self.space.points(rows)
        time, time_variance = self.time.predict(points, self.priors.time_means(points))
        memory, memory_variance = self.memory.predict(points, self.priors.memory_means(points))
        fits = probability_of_fitting(memory, memory_variance, self.limit)
        log_fits = np.log(np.maximum(fits, 1e-12))
        return Prediction(
            time, time_variance, memory, memory_variance, log_fits, self.blame.log_ok(self.space.levels(rows))
        )

    def is_new(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows have not been tried."""
        return np.array([row.tobytes() not in self.tried for row in rows], dtype=bool)

    def with_pending(self, rows: Rows) -> Beliefs:
        """Believe that trials in flight will show what is predicted, so that the next ones differ from them."""
        if not rows.shape[0]:
            return self
        points = self.space.points(rows)
        means = self.priors.time_means(points)
        data = self.time.data
        expected = self.time.predict(points, means)[0]
        errors = np.full(rows.shape[0], SMALLEST_ERROR)
        joined = Data(
            np.vstack([data.points, points]),
            np.concatenate([data.y, expected]),
            np.concatenate([data.noise_sd, errors]),
            np.vstack([data.means, means]),
        )
        noise = np.concatenate([self.time.noise_variance, errors**2])
        time = replace(self.time, data=joined, noise_variance=noise)
        return replace(self, time=time, tried=self.tried | {row.tobytes() for row in rows})


def believe(
    space: Space, claims: Priors, anchors: Anchors, observations: Sequence[Observation], parts: Parts = WHOLE
) -> Beliefs:
    """Fit everything to the observations. The same observations in the same order give the same beliefs."""
    rows = _rows(space, [o.candidate for o in observations])
    layout = space.layout
    timed = [i for i, o in enumerate(observations) if o.outcome == "ok" and o.step_seconds]
    peaked = [i for i, o in enumerate(observations) if o.outcome == "ok" and o.peak_bytes]
    limit, full = _limit(anchors, observations)
    time = fit(
        layout, claims.time_sd, _time_data(space, claims, anchors, observations, rows, timed), _grid(Grid(), parts)
    )
    seen = _memory_data(space, claims, anchors, observations, rows, peaked)
    points = space.points(rows[full if parts.censored else []])
    bounds = np.full(len(points), 0.0 if math.isinf(limit) else limit)
    censored = Censored(points, claims.memory_means(points), bounds)
    memory = fit_memory(layout, claims.memory_sd, seen, censored, _grid(MEMORY_GRID, parts))
    good = [i for i, o in enumerate(observations) if o.outcome == "ok"]
    fragmented = [i for i, o in enumerate(observations) if o.outcome == "oom" and i not in full]
    failed = [i for i, o in enumerate(observations) if o.outcome in FAILED] + fragmented if parts.blame else []
    blame = assign(
        level_priors(space),
        space.levels(rows[good]),
        space.levels(rows[full]),
        space.levels(rows[failed]),
        _failure_weights(space, [observations[i] for i in failed]),
    )
    known = [i for i, o in enumerate(observations) if o.outcome not in ("cancelled", "lost")]
    beliefs = Beliefs(
        space=space,
        priors=claims,
        time=time,
        memory=memory,
        blame=blame,
        limit=limit,
        good=rows[timed],
        full=rows[full],
        tried=frozenset(rows[i].tobytes() for i in known),
        incumbent=np.zeros(space.width, dtype=np.int64),
        best=0.0,
    )
    options = np.vstack([np.zeros((1, space.width), dtype=np.int64), rows[timed]])
    means = beliefs.predict(options).time
    at = int(np.argmin(means))
    return replace(beliefs, incumbent=options[at], best=float(means[at]))


def _grid(grid: Grid, parts: Parts) -> Grid:
    """Return what a fit may choose from without the parts that are left out."""
    if not parts.trust:
        grid = replace(grid, trust=((1.0, 0.0),))
    return grid if parts.interactions else replace(grid, interaction=((0.0, 0.0),))


def level_priors(space: Space) -> Array:
    """Return the prior failure probabilities of all pairs of levels of a space."""
    sizes = [int(s) for s in space.sizes]
    knob = np.repeat(np.arange(space.width), sizes)
    baseline = np.concatenate([np.arange(s) == 0 for s in sizes]) if sizes else np.zeros(0, dtype=bool)
    declared = np.zeros((knob.size, knob.size))
    for a, b in space.conflicts:
        both = np.outer((knob == a) & ~baseline, (knob == b) & ~baseline)
        declared[both | both.T] = 1.0
    return priors(knob, baseline, declared)


def _rows(space: Space, candidates: Sequence[object]) -> Rows:
    rows = [space.encode(c) for c in candidates]  # type: ignore[arg-type]
    return np.array(rows, dtype=np.int64).reshape(len(rows), space.width)


def _limit(anchors: Anchors, observations: Sequence[Observation]) -> tuple[float, list[int]]:
    """Return (log limit, indices of out-of-memory trials that were full).

    Without a stated budget the device's size is unknown, but it is at least the largest peak that fitted.
    """
    out = [i for i, o in enumerate(observations) if o.outcome == "oom"]
    if anchors.budget:
        full = [i for i in out if (observations[i].peak_bytes or anchors.budget) >= FRAGMENTED * anchors.budget]
        return math.log(anchors.budget / anchors.peak_bytes), full
    if not out:
        return math.inf, []
    peaks = [o.peak_bytes for o in observations if o.outcome == "ok" and o.peak_bytes]
    return math.log(max([anchors.peak_bytes, *peaks]) / anchors.peak_bytes), out


def _time_data(
    space: Space,
    claims: Priors,
    anchors: Anchors,
    observations: Sequence[Observation],
    rows: Rows,
    timed: list[int],
) -> Data:
    points = space.points(rows[timed])
    y = [math.log((observations[i].step_seconds or 0.0) / anchors.step_seconds) for i in timed]
    errors = [max(observations[i].standard_error, SMALLEST_ERROR) for i in timed]
    return Data(points, np.array(y), np.array(errors), claims.time_means(points))


def _memory_data(
    space: Space,
    claims: Priors,
    anchors: Anchors,
    observations: Sequence[Observation],
    rows: Rows,
    peaked: list[int],
) -> Data:
    points = space.points(rows[peaked])
    y = [math.log((observations[i].peak_bytes or 0) / anchors.peak_bytes) for i in peaked]
    return Data(points, np.array(y), np.ones(len(peaked)), claims.memory_means(points))


def _failure_weights(space: Space, failures: Sequence[Observation]) -> Array | None:
    """Return odds factors (f by L by L): a conflict or a broken contract comes from what edits the tree."""
    if not failures:
        return None
    edits = np.repeat([d.edits_tree for d in space.dimensions], space.sizes)
    baseline = np.concatenate([np.arange(int(s)) == 0 for s in space.sizes])
    suspect = edits & ~baseline
    pairs = np.where(np.outer(suspect, suspect), TREE_ODDS, 1.0)
    return np.array([pairs if o.outcome in ("conflict", "rejected") else np.ones_like(pairs) for o in failures])
