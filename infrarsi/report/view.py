"""From a run's ledger to a `RunReport`: a pure function of the replay, of what git says, and of the calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from infrarsi.codec import decode
from infrarsi.records import (
    Budget,
    Calibration,
    Candidate,
    Change,
    Contract,
    Hardware,
    Knob,
    LedgerLine,
    Patch,
    Trial,
    Verdict,
)
from infrarsi.report import sentence
from infrarsi.report.audit import audit_paths, components_of
from infrarsi.report.model import Baseline, Cost, OutcomeCost, RunReport, SpeedUp, TrialRow, VerdictRow
from infrarsi.report.replay import Replay, speed_up, what_failed
from infrarsi.report.text import describe

__all__ = ["RunReport", "from_ledger"]


def from_ledger(
    lines: Sequence[LedgerLine],
    *,
    changes: Sequence[Change] = (),
    diff: str = "",
    contract: Contract | None = None,
    calibration: Calibration | None = None,
) -> RunReport:
    """Return the report of a run. `changes` and `diff` are the winner's tree against the run's base."""
    run = Replay()
    for line in lines:
        run.fold(line)
    started, verdict = run.started, run.final
    knobs = tuple(decode(Knob, value) for value in started.get("knobs", ()))
    patches = tuple(decode(Patch, value) for value in started.get("patches", ()))
    baseline = _baseline(started, calibration)
    rows = tuple(_trial_row(at, trial, baseline) for at, trial in run.trials)
    speedup = speed_up(verdict.speedup, verdict.low, verdict.high) if verdict else None
    searched = sum(row.role == "search" for row in rows)
    return RunReport(
        run=started.get("run", ""),
        goal=started.get("goal", ""),
        stage=run.stage,
        sentence=sentence.say(verdict, run.stage, trials=searched, search_reason=run.search_reason),
        started_at=run.started_at,
        ended_at=run.ended_at,
        version=started.get("version", ""),
        contract_digest=started.get("contract_digest", ""),
        base_commit=started.get("base_commit", ""),
        original_commit=started.get("original_commit", ""),
        calibration_digest=started.get("calibration_digest", ""),
        budget=decode(Budget, started["budget"]) if "budget" in started else None,
        baseline=baseline,
        verdict=verdict,
        speedup=speedup,
        mfu=_mfu(baseline.mfu, verdict, speedup),
        components=components_of(verdict.candidate, knobs, patches) if verdict else (),
        ablations=tuple(run.ablations),
        verdicts=tuple(_verdict_row(stage, number, v, run) for stage, number, v in run.verdicts),
        trials=rows,
        interrupted=tuple(run.open.values()),
        refusals=tuple(run.refusals),
        effects=run.effects,
        cost=_cost(run),
        audit=audit_paths(changes, diff, contract, verdict.candidate if verdict else Candidate(), knobs, patches),
        diff=diff,
        search_reason=run.search_reason,
        end_reason=run.ended.get("reason", "") if run.ended else "",
        resumed=run.resumed,
        data_level=contract.workload.data_level if contract else "",
        numerics=contract.invariants.numerics if contract else "",
        unobserved=contract.invariants.unobserved if contract else (),
        examinations=tuple(run.examinations),
        prices=run.prices,
        trust=run.trust,
    )


def _baseline(started: dict[str, Any], calibration: Calibration | None) -> Baseline:
    base = Baseline(
        step_seconds=started.get("baseline_step_seconds"),
        peak_bytes=started.get("baseline_peak_bytes"),
        tokens_per_second=None,
        mfu=None,
        floor=started.get("floor"),
        phases=(),
        noise=None,
        hardware=decode(Hardware, started["hardware"]) if "hardware" in started else None,
    )
    if calibration is None:
        return base
    return replace(
        base,
        step_seconds=base.step_seconds or calibration.step_seconds,
        tokens_per_second=calibration.tokens_per_second,
        mfu=calibration.mfu,
        phases=calibration.phases,
        noise=calibration.noise,
        hardware=base.hardware or calibration.hardware,
    )


def _mfu(before: float | None, verdict: Verdict | None, speedup: SpeedUp | None) -> SpeedUp | None:
    """Return the winner's MFU with its interval: the baseline's FLOPs per step over the winner's seconds (R-B5)."""
    if before is None or speedup is None or verdict is None or verdict.decision != "accepted":
        return None
    return SpeedUp(before * speedup.ratio, before * speedup.low, before * speedup.high)


def _trial_row(at: str, trial: Trial, baseline: Baseline) -> TrialRow:
    measured, floor = trial.measurement, baseline.floor or 0.0
    seconds = measured.mean_step_seconds if measured and measured.steps else None
    estimate = None
    if seconds and baseline.step_seconds and trial.outcome.kind == "ok":
        value = baseline.step_seconds / seconds
        estimate = SpeedUp(value, value / (1 + floor), value * (1 + floor))
    return TrialRow(
        id=trial.id,
        number=trial.number,
        label=describe(trial.candidate),
        role=trial.role,
        outcome=trial.outcome.kind,
        message=what_failed(trial),
        at=at,
        estimate=estimate,
        step_seconds=seconds,
        peak_bytes=measured.peak_allocated_bytes if measured else None,
        predicted_step_seconds=trial.predicted_step_seconds,
        predicted_peak_bytes=trial.predicted_peak_bytes,
        wall_seconds=trial.wall_seconds,
        device_seconds=trial.device_seconds,
        violations=trial.violations,
        why=trial.why,
        stopped_early=bool(measured and measured.stopped_early),
    )


def _verdict_row(stage: str, number: int, verdict: Verdict, run: Replay) -> VerdictRow:
    voided = sum(bool(pair.voided) for pair in run.pairs.get((stage, number), ()))
    speedup = speed_up(verdict.speedup, verdict.low, verdict.high)
    label = describe(verdict.candidate)
    return VerdictRow(stage, number, label, verdict.decision, speedup, len(verdict.pairs), voided, verdict.reason)


def _cost(run: Replay) -> Cost:
    trials = [trial for _, trial in run.trials]
    failed = [t for t in trials if t.outcome.kind != "ok"]
    kinds = dict.fromkeys(t.outcome.kind for t in trials)
    by_outcome = tuple(
        OutcomeCost(
            kind,
            sum(t.outcome.kind == kind for t in trials),
            math.fsum(t.wall_seconds for t in trials if t.outcome.kind == kind),
            math.fsum(t.device_seconds for t in trials if t.outcome.kind == kind),
        )
        for kind in kinds
    )
    prices = [call.get("dollars") for call in run.calls]
    unpriced = sum(price is None for price in prices)
    return Cost(
        trials=len(trials),
        failed=len(failed),
        interrupted=len(run.open),
        wall_seconds=math.fsum(t.wall_seconds for t in trials),
        device_seconds=math.fsum(t.device_seconds for t in trials),
        failed_device_seconds=math.fsum(t.device_seconds for t in failed),
        by_outcome=by_outcome,
        llm_calls=len(run.calls),
        llm_tokens=sum(int(call.get("input_tokens") or 0) + int(call.get("output_tokens") or 0) for call in run.calls),
        dollars=None if unpriced else math.fsum(price for price in prices if price is not None),
        unpriced_calls=unpriced,
        examined=len(run.examinations),
        examined_device_seconds=math.fsum(e.device_seconds for *_, e in run.examinations),
    )
