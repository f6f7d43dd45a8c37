"""The search that a run talks to: Optuna's ask and tell over EffectSampler, rebuilt from what it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infrarsi.records import Candidate, Effect, Noise, Price, Trust
from infrarsi.search.beliefs import Anchors, Beliefs
from infrarsi.search.interface import WHOLE, Observation, Parts, Proposal
from infrarsi.search.pricing import price_list
from infrarsi.search.priors import memory_shares
from infrarsi.search.projection import Projection
from infrarsi.search.sampler import ERROR, OUTCOME, PEAK, SECONDS, STATES, EffectSampler
from infrarsi.search.space import Space
from infrarsi.search.stopping import exhausted, hopeless_trial, ranked

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

LOST_AGAIN = 2
WHY = "why"
LEAST_TOLD = 0.1  # an effect counts as measured when the trials tell at least a tenth of what the prior did


class OptunaSearch:
    """Implements `Search`. State is the Optuna study, which is what it was told: replay the ledger to rebuild it."""

    def __init__(
        self,
        space: Space,
        *,
        baseline_step_seconds: float,
        baseline_peak_bytes: int,
        memory_budget: int | None,
        noise: Noise,
        seed: int = 0,
        memory_terms: Mapping[str, int] | None = None,
        journal: Path | None = None,
        parts: Parts = WHOLE,
    ) -> None:
        """Search `space` around a measured baseline. `memory_budget` in bytes per rank, None for the device's own.

        `memory_terms`: what the baseline's peak consists of, in bytes by term. `journal`: a file for optuna-dashboard.
        """
        self.space = space
        self.noise = noise
        self.reason = ""
        self.anchors = Anchors(
            step_seconds=baseline_step_seconds,
            peak_bytes=max(1, baseline_peak_bytes),
            budget=memory_budget,
            noise_floor=noise.floor,
            step_error=max(noise.between_cv, 0.005),
            shares=memory_shares(memory_terms or {}),
        )
        self.sampler = EffectSampler(space, self.anchors, seed, parts=parts)
        self.study = _new_study(self.sampler)
        self.projection = Projection(journal, self.study.study_name) if journal else None
        self._asked: dict[Candidate, Trial] = {}
        self._latest: Candidate | None = None

    def ask(self) -> Proposal | None:
        """Return the next candidate, or None with `reason` set."""
        self.reason = self._impossible()
        if self.reason:
            return None
        plan = self.sampler.plan(self.study)
        if plan.suggestion is None:
            self.reason = "every combination has been tried"
            return None
        self.reason = exhausted(plan.suggestion, plan.number, self.noise.floor)
        if self.reason:
            return None
        row = plan.suggestion.row
        trial = self.study.ask()
        for name, distribution in self.sampler.distributions().items():
            trial.suggest_categorical(name, distribution.choices)
        candidate = self.space.decode(row)
        trial.set_user_attr(WHY, plan.suggestion.why)
        self._asked[candidate] = trial
        self._latest = candidate
        predicted = plan.beliefs.predict(row[None, :])
        return Proposal(
            candidate=candidate,
            why=plan.suggestion.why,
            predicted_step_seconds=self.anchors.step_seconds * math.exp(float(predicted.time[0])),
            predicted_peak_bytes=self.anchors.peak_bytes * math.exp(float(predicted.memory[0])),
            p_feasible=math.exp(float(predicted.log_feasible[0])),
        )

    def tell(self, observation: Observation) -> None:
        """Record one finished trial, asked for or replayed from a ledger."""
        from optuna.trial import TrialState, create_trial

        attributes = {
            OUTCOME: observation.outcome,
            SECONDS: observation.step_seconds,
            PEAK: observation.peak_bytes,
            ERROR: observation.standard_error,
        }
        state = STATES.get(observation.outcome, TrialState.FAIL)
        if observation.outcome == "ok" and observation.step_seconds is None:
            state = TrialState.FAIL
        value = observation.step_seconds if state == TrialState.COMPLETE else None
        trial = self._asked.pop(observation.candidate, None)
        if trial is None:
            row = self.space.encode(observation.candidate)
            made = create_trial(
                state=state,
                value=value,
                params=self.sampler.parameters(row),
                distributions=dict(self.sampler.distributions()),
                user_attrs=attributes,
            )
            self.study.add_trial(made)
            self._show(made)
            return
        for name, attribute in attributes.items():
            trial.set_user_attr(name, attribute)
        if self.anchors.budget and observation.peak_bytes:
            trial.set_constraint("peak_bytes_over_budget", float(observation.peak_bytes - self.anchors.budget))
        self._show(self.study.tell(trial, value, state=state))

    def _show(self, trial: FrozenTrial) -> None:
        if self.projection is not None:
            self.projection.add(trial)

    def effects(self) -> tuple[Effect, ...]:
        """Return what is believed of every option, most helpful first."""
        beliefs = self._beliefs()
        time_trust, memory_trust = (np.asarray(p.hyper.trust) for p in (beliefs.time, beliefs.memory))
        departure, variance = beliefs.time.effects()
        claims = self.sampler.claims
        prior_memory = claims.memory_means(np.eye(len(self.space.effects))) @ memory_trust
        memory = prior_memory + beliefs.memory.effects()[0]
        found = []
        for e, (dimension, level) in enumerate(self.space.effects):
            chosen = self.space.dimensions[dimension]
            sources = sorted({c.source for c in chosen.claims[level]})
            trusted = float(claims.time[e] @ time_trust)
            alone = from_trials_alone(float(departure[e]), float(variance[e]), float(beliefs.time.sd[e]))
            found.append(
                Effect(
                    knob=chosen.name,
                    level="" if chosen.patch else chosen.levels[level],
                    claimed=float(claims.claimed_time[e]),
                    prior_sd=float(claims.time_sd[e]),
                    posterior=trusted + float(departure[e]),
                    posterior_sd=math.sqrt(float(variance[e])),
                    source=", ".join(sources),
                    surprise=float(departure[e] / claims.time_sd[e]),
                    memory_log_ratio=float(memory[e]),
                    measured=trusted + alone[0] if alone else None,
                    measured_sd=alone[1] if alone else None,
                )
            )
        return tuple(sorted(found, key=lambda effect: effect.posterior))

    def finalists(self, k: int) -> tuple[Candidate, ...]:
        """Return at most k tried candidates that ran, by posterior mean minus one standard deviation of the gain."""
        return tuple(self.space.decode(row) for _, row in ranked(self._beliefs())[:k])

    def should_stop_early(self, step_seconds: float) -> bool:
        """Return whether the trial asked for last, at this mean so far, is hardly the best any more."""
        if self._latest is None or self._latest.is_baseline:
            return False
        row = self.space.encode(self._latest)
        return hopeless_trial(self._beliefs(), row, step_seconds, self.anchors, self.noise)

    def prices(self) -> tuple[Price, ...]:
        """Return the price list at the current best, cheapest memory first."""
        return price_list(self._beliefs(), self.anchors)

    def trust(self) -> tuple[Trust, ...]:
        """Return how far each source of claims is believed."""
        beliefs = self._beliefs()
        time, memory = beliefs.time.hyper.trust, beliefs.memory.hyper.trust
        return tuple(Trust(s, t, m) for s, t, m in zip(self.sampler.claims.sources, time, memory, strict=True))

    def _beliefs(self) -> Beliefs:
        return self.sampler.believe(self.sampler.read(self.study)[0])

    def _impossible(self) -> str:
        """Return why nothing can be searched: no option, or a baseline that does not run here (R-C2)."""
        if not self.space.width:
            return "there is no knob and no patch to try"
        observations = self.sampler.read(self.study)[0]
        baseline = [o.outcome for o in observations if o.candidate.is_baseline]
        if baseline and "ok" not in baseline and len(baseline) >= LOST_AGAIN:
            return f"the baseline itself does not run here ({baseline[-1]})"
        if baseline and baseline[-1] == "oom" and "ok" not in baseline:
            return "the baseline itself runs out of memory: raise the budget, or start from a smaller micro-batch"
        return ""


def from_trials_alone(departure: float, variance: float, prior_sd: float) -> tuple[float, float] | None:
    """Return (departure from the claim, sd) as the data alone have it: the posterior with the prior divided out.

    None where the data hardly narrow the prior.
    """
    precision = 1 / variance - 1 / prior_sd**2
    if precision * prior_sd**2 < LEAST_TOLD:
        return None
    return departure / variance / precision, math.sqrt(1 / precision)


def _new_study(sampler: EffectSampler) -> Study:
    """Return an in-memory study: a projection of the ledger, thrown away and rebuilt at will."""
    import optuna

    # Optuna announces every study and trial on stderr, where the live table is.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler, direction="minimize", study_name="infrarsi")
