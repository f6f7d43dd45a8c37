"""What a user would pick instead: random search, TPE with three encodings of failures, coordinates, hill climbing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import optuna
from optuna.trial import TrialState

from infrarsi.records import Candidate
from infrarsi.search.interface import Observation
from infrarsi.search.space import Rows

from .landscapes import Landscape

optuna.logging.set_verbosity(optuna.logging.ERROR)
PENALTY, WORST = 10.0, 1.5  # a failed trial as ten times the baseline, or as half more than the worst seen


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

    def __init__(self, landscape: Landscape, budget: int, seed: int) -> None:
        self.space, self.rng = landscape.space, np.random.default_rng(seed)

    def ask(self) -> Candidate:
        """Return the next candidate."""
        return self.space.decode(self.space.repair(self.rng.integers(self.space.sizes)[None, :])[0])

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Learn nothing."""


class Tpe:
    """Optuna's TPE; `failures` is how it is told of a trial without a time."""

    def __init__(self, landscape: Landscape, budget: int, seed: int, *, failures: str = "pruned") -> None:
        self.space, self.failures, self.budget = landscape.space, failures, budget
        # Ten random trials of thirty would be a third of all; five leave room for what it learns.
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=5)
        self.study = optuna.create_study(sampler=sampler)
        self.values: list[float] = []
        self._asked: optuna.Trial | None = None

    def ask(self) -> Candidate:
        """Return the next candidate, made valid."""
        self._asked = self.study.ask()
        row = [self._asked.suggest_int(str(i), 0, int(size) - 1) for i, size in enumerate(self.space.sizes)]
        return self.space.decode(self.space.repair(np.array([row], dtype=np.int64))[0])

    def tell(self, candidate: Candidate, seen: Observation) -> None:
        """Tell the time, or the failure in its encoding."""
        value = seen.step_seconds
        if self._asked is None:  # the baseline
            self.values += [] if value is None else [value]
            return
        if value is not None:
            self.values.append(value)
            self.study.tell(self._asked, value)
        elif self.failures == "pruned":
            self.study.tell(self._asked, state=TrialState.PRUNED)
        else:
            made_up = PENALTY * self.values[0] if self.failures == "penalty" else WORST * max(self.values)
            self.study.tell(self._asked, made_up)


class Coordinates:
    """One knob at a time from the best so far, keeping what helps; `climb`: a random one-knob move each time."""

    def __init__(self, landscape: Landscape, budget: int, seed: int, *, climb: bool = False) -> None:
        self.space, self.rng, self.climb = landscape.space, np.random.default_rng(seed), climb
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


RIVALS: dict[str, Callable[[Landscape, int, int], Rival]] = {
    "random": Random,
    "tpe, failures pruned": lambda *given: Tpe(*given, failures="pruned"),
    "tpe, failures as a penalty": lambda *given: Tpe(*given, failures="penalty"),
    "tpe, failures as the worst": lambda *given: Tpe(*given, failures="worst"),
    "coordinates": Coordinates,
    "keep if better": lambda *given: Coordinates(*given, climb=True),
}
