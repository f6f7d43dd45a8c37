"""What a user would pick instead: random search, coordinates, hill climbing, and Optuna's model-based samplers.

A model-based rival is told of a failed trial in one of three ways, with or without constraints; and may be seeded with
what our own search starts from, the claims: everything that is claimed to help, its better half, its best quarter.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from infrarsi.records import Candidate
from infrarsi.search.interface import Observation
from infrarsi.search.priors import read_claims
from infrarsi.search.space import Dimension, Rows, Space

from .recorded import Job

optuna.logging.set_verbosity(optuna.logging.ERROR)
Encoding = Literal["pruned", "penalty", "worst"]
PENALTY, WORST = 10.0, 1.5  # a failed trial as ten times the baseline, or as half more than the worst seen
OVER = 0.2  # an out-of-memory trial as this share over the budget
STARTUP = 5  # ten random trials of thirty would be a third of all; five leave room for what it learns
HELPFUL = -0.005


class Rival(Protocol):
    """A method that knows the space, the budget and what it was told."""

    def ask(self) -> Candidate:
        """Return the next candidate."""
        ...

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Learn from a trial, the baseline's included."""
        ...


class Random:
    """Uniformly random valid rows."""

    def __init__(self, landscape: Job) -> None:
        self.space, self.rng = landscape.space, np.random.default_rng(landscape.seed)

    def ask(self) -> Candidate:
        """Return the next candidate."""
        return self.space.decode(self.space.repair(self.rng.integers(self.space.sizes)[None, :])[0])

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Learn nothing."""


class Coordinates:
    """One knob at a time from the best so far, keeping what helps; `climb`: a random one-knob move each time."""

    def __init__(self, landscape: Job, *, climb: bool = False) -> None:
        self.space, self.rng, self.climb = landscape.space, np.random.default_rng(landscape.seed), climb
        self.row: Rows = np.zeros(self.space.width, dtype=np.int64)
        self.best = np.inf
        effects = list(self.space.effects)
        self.queue = [effects[i] for i in self.rng.permutation(len(effects))]

    def ask(self) -> Candidate:
        """Return the best so far with one change."""
        if self.climb or not self.queue:
            moves = self.space.moves(self.row)
            return self.space.decode(moves[int(self.rng.integers(len(moves)))])
        dimension, level = self.queue.pop()
        row = self.row.copy()
        row[dimension] = level
        return self.space.decode(self.space.repair(row[None, :])[0])

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Keep it if it is better."""
        if seen.step_seconds is not None and seen.step_seconds < self.best:
            self.best, self.row = seen.step_seconds, self.space.encode(candidate)


class Sampled:
    """One of Optuna's samplers, asked and told. Ordinal knobs are integers in their order, all others categories."""

    def __init__(
        self, landscape: Job, sampler: BaseSampler, failures: Encoding, *, constrained: bool, seeded: bool
    ) -> None:
        self.space, self.budget = landscape.space, float(landscape.capacity)
        self.failures, self.constrained = failures, constrained
        self.orders = [_order(d) for d in self.space.dimensions]
        self.study = optuna.create_study(sampler=sampler)
        self.values: list[float] = []
        self._asked: optuna.Trial | None = None
        for row in claimed(self.space) if seeded else []:
            self.study.enqueue_trial(self._parameters(row))

    def ask(self) -> Candidate:
        """Return the next candidate, made valid."""
        self._asked = self.study.ask()
        row = [self._suggest(self._asked, i, d) for i, d in enumerate(self.space.dimensions)]
        return self.space.decode(self.space.repair(np.array([row], dtype=np.int64))[0])

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Tell the time, or the failure in its encoding."""
        trial = self._asked
        if trial is None:  # the baseline is a trial of every method
            self.study.enqueue_trial(self._parameters(np.zeros(self.space.width, dtype=np.int64)))
            self.ask()
            trial = self._asked
            assert trial is not None
        if self.constrained:
            full = seen.outcome == "oom"
            peak = self.budget * (1 + OVER) if full else (seen.peak_bytes or self.budget * (1 - OVER))
            trial.set_constraint("memory", (peak - self.budget) / self.budget)
            trial.set_constraint("runs", -1.0 if seen.outcome in ("ok", "oom") else 1.0)
        if seen.step_seconds is not None:
            self.values.append(seen.step_seconds)
            self.study.tell(trial, seen.step_seconds)
        elif self.failures == "pruned" or not self.values:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, PENALTY * self.values[0] if self.failures == "penalty" else WORST * max(self.values))

    def _suggest(self, trial: optuna.Trial, index: int, dimension: Dimension) -> int:
        if _counted(dimension):
            return self.orders[index][trial.suggest_int(str(index), 0, len(dimension.levels) - 1)]
        return int(trial.suggest_categorical(str(index), list(range(len(dimension.levels)))))

    def _parameters(self, row: Rows) -> dict[str, int]:
        return {
            str(i): self.orders[i].index(int(row[i])) if _counted(d) else int(row[i])
            for i, d in enumerate(self.space.dimensions)
        }


def claimed(space: Space) -> list[Rows]:
    """Return rows that follow from the claims alone: all that is claimed to help, the better half, the best quarter."""
    gains = read_claims(space).claimed_time
    best: dict[int, tuple[float, int]] = {}
    for (dimension, level), gain in zip(space.effects, gains, strict=True):
        if gain < min(HELPFUL, best.get(dimension, (0.0, 0))[0]):
            best[dimension] = (float(gain), level)
    ranked = sorted(best, key=lambda d: best[d][0])
    rows = []
    for share in (1, 2, 4):
        row = np.zeros(space.width, dtype=np.int64)
        for dimension in ranked[: math.ceil(len(ranked) / share)]:
            row[dimension] = best[dimension][1]
        rows.append(space.repair(row[None, :])[0])
    return [row for i, row in enumerate(rows) if row.any() and not any((row == r).all() for r in rows[:i])]


def _counted(dimension: Dimension) -> bool:
    """Return whether an integer stands for its levels; for two of them it says what a category says, and costs less."""
    return dimension.ordinal or len(dimension.levels) == 2


def _order(dimension: Dimension) -> list[int]:
    """Return the levels in the order of their numbers: the baseline's comes first otherwise."""
    try:
        return sorted(range(len(dimension.levels)), key=lambda i: float(dimension.levels[i]))
    except ValueError:
        return list(range(len(dimension.levels)))


def _sampled(kind: str, failures: Encoding, landscape: Job, *, constrained: bool, seeded: bool) -> Sampled:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both are experimental in one option or another
        sampler: BaseSampler
        if kind == "tpe":
            sampler = TPESampler(seed=landscape.seed, multivariate=True, group=True, n_startup_trials=STARTUP)
        else:
            sampler = GPSampler(seed=landscape.seed, n_startup_trials=STARTUP, deterministic_objective=False)
    return Sampled(landscape, sampler, failures, constrained=constrained, seeded=seeded)


def _model_based() -> dict[str, Callable[[Job], Rival]]:
    found: dict[str, Callable[[Job], Rival]] = {}
    encodings: tuple[Encoding, ...] = ("pruned", "penalty", "worst")
    for kind in ("tpe", "gp"):
        for constrained in (False, True):
            for seeded in (False, True):
                for failures in encodings:
                    name = (
                        f"{'seeded ' if seeded else ''}{kind}{' with constraints' if constrained else ''}, {failures}"
                    )
                    found[name] = functools.partial(_sampled, kind, failures, constrained=constrained, seeded=seeded)
    return found


RIVALS: dict[str, Callable[[Job], Rival]] = {
    "random": Random,
    "coordinates": Coordinates,
    "keep if better": functools.partial(Coordinates, climb=True),
    **_model_based(),
}
