"""The search as an Optuna sampler: categorical parameters, state rebuilt from the study's trials at every step.

Parameters are named after knobs, patches as `+id` with the values off and on. What Optuna has no field for is kept in
user attributes: `outcome`, `step_seconds`, `peak_bytes`, `standard_error`. An out-of-memory trial is PRUNED and a
failed one FAIL, so that optuna-dashboard shows them as what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from infrarsi.records import OutcomeKind
from infrarsi.search.beliefs import Anchors, Beliefs, believe
from infrarsi.search.interface import WHOLE, Observation, Parts
from infrarsi.search.priors import read_claims
from infrarsi.search.space import Rows, Space
from infrarsi.search.suggest import Suggestion, suggest

if TYPE_CHECKING:
    from optuna.study import Study

OUTCOME, SECONDS, PEAK, ERROR = "outcome", "step_seconds", "peak_bytes", "standard_error"
STATES: dict[str, TrialState] = {"ok": TrialState.COMPLETE, "oom": TrialState.PRUNED}


@dataclass(frozen=True)
class Plan:
    """The beliefs at one moment and what follows: a suggestion, or None when every combination was tried."""

    beliefs: Beliefs
    suggestion: Suggestion | None
    number: int


class EffectSampler(BaseSampler):
    """Suggests by one additive model of time and memory over all trials, out-of-memory ones as censored."""

    def __init__(self, space: Space, anchors: Anchors, seed: int = 0, *, parts: Parts = WHOLE) -> None:
        """Sample from `space` around a measured baseline; the same seed and trials give the same suggestion."""
        self.space = space
        self.anchors = anchors
        self.seed = seed
        self.parts = parts
        self.claims = read_claims(space, anchors.shares)
        self._fallback = RandomSampler(seed=seed)
        self._fitted: tuple[tuple[Observation, ...], Beliefs] | None = None
        self._seen: dict[tuple[str, int], Observation] = {}
        self._planned: tuple[tuple[Observation, ...], bytes, Plan] | None = None

    def distributions(self) -> dict[str, CategoricalDistribution]:
        """Return one categorical distribution per dimension."""
        return {
            parameter(self.space, i): CategoricalDistribution(d.levels) for i, d in enumerate(self.space.dimensions)
        }

    def parameters(self, row: Rows) -> dict[str, Any]:
        """Return a row as Optuna parameters."""
        return {parameter(self.space, i): d.levels[int(row[i])] for i, d in enumerate(self.space.dimensions)}

    def row_of(self, trial: FrozenTrial) -> Rows | None:
        """Return the row of a trial, or None for one that has no parameters of ours (yet)."""
        names = [parameter(self.space, i) for i in range(self.space.width)]
        if any(name not in trial.params for name in names):
            return None
        levels = [d.levels.index(trial.params[n]) for d, n in zip(self.space.dimensions, names, strict=True)]
        return np.array(levels, dtype=np.int64)

    def believe(self, observations: Sequence[Observation]) -> Beliefs:
        """Return the beliefs after these observations; fitted once for each list."""
        key = tuple(observations)
        if self._fitted is None or self._fitted[0] != key:
            self._fitted = (key, believe(self.space, self.claims, self.anchors, key, self.parts))
        return self._fitted[1]

    def plan(self, study: Study) -> Plan:
        """Return what to try next given all trials of the study; running ones are believed to go as predicted."""
        finished, pending = self.read(study)
        key = tuple(finished)
        pending_key = pending.tobytes()
        if self._planned is not None and self._planned[:2] == (key, pending_key):
            return self._planned[2]
        beliefs = self.believe(key).with_pending(pending)
        number = len(key) + len(pending)
        rng = np.random.default_rng([self.seed, number])
        found = suggest(beliefs, rng, number, self.anchors.noise_floor, pairing=self.parts.pairing)
        plan = Plan(beliefs, found, number)
        self._planned = (key, pending_key, plan)
        return plan

    def read(self, study: Study) -> tuple[list[Observation], Rows]:
        """Return (observations of finished trials, rows of running ones), in trial order."""
        finished: list[Observation] = []
        running: list[Rows] = []
        for trial in study.get_trials(deepcopy=False):
            known = self._seen.get((study.study_name, trial.number))
            if known is not None:
                finished.append(known)
                continue
            row = self.row_of(trial)
            if row is None:
                continue
            if trial.state == TrialState.RUNNING:
                running.append(row)
            elif trial.state.is_finished():
                # Finished trials do not change any more: read each once.
                self._seen[(study.study_name, trial.number)] = self._observation(trial, row)
                finished.append(self._seen[(study.study_name, trial.number)])
        return finished, np.array(running, dtype=np.int64).reshape(len(running), self.space.width)

    def _observation(self, trial: FrozenTrial, row: Rows) -> Observation:
        attributes = trial.user_attrs
        default = "ok" if trial.state == TrialState.COMPLETE else "crash"
        value = trial.values[0] if trial.values else None
        return Observation(
            candidate=self.space.decode(row),
            outcome=cast(OutcomeKind, attributes.get(OUTCOME, default)),
            step_seconds=attributes.get(SECONDS, value),
            peak_bytes=attributes.get(PEAK),
            standard_error=attributes.get(ERROR, self.anchors.step_error),
        )

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space: it does not depend on the trial."""
        return dict(self.distributions())

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the suggestion; the best known row when nothing new is left."""
        if not search_space:
            return {}
        plan = self.plan(study)
        return self.parameters(plan.suggestion.row if plan.suggestion else plan.beliefs.incumbent)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample a parameter that is not part of the space at random."""
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)


def parameter(space: Space, dimension: int) -> str:
    """Return the Optuna name of a dimension."""
    chosen = space.dimensions[dimension]
    return f"+{chosen.name}" if chosen.patch else chosen.name
