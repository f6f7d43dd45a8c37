"""A contract and a calibration made of one probed run, so that another one can be held to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probe_peer import Run

from infrarsi.contract.envelopes import calibrate, default_caps, trace
from infrarsi.contract.invariants import check
from infrarsi.records import (
    Budget,
    Calibration,
    Contract,
    Hardware,
    Invariants,
    Noise,
    Numerics,
    RankEnd,
    Scope,
    StepRecord,
    Violation,
    Workload,
)
from infrarsi.trial import fields


def steps_of(run: Run) -> tuple[StepRecord, ...]:
    """Return the run's step records, as the parent reads them."""
    return tuple(fields.step_record(m["rank"], m["step"], (0.0, 0.0), m, True) for m in run.steps)


def ends_of(run: Run) -> tuple[RankEnd, ...]:
    """Return the ranks' ends, with every hyper-parameter that they reported.

    Without the modules' origins: HOME is no scratch folder here, and the interpreter may lie in it.
    """
    found = []
    for message in sorted(run.of("end"), key=lambda m: m["rank"]):
        rank = message["rank"]
        hyper = [h for m in run.of("hyper", rank) for h in fields.hyper_parameters(m, m["step"])]
        found.append(replace(fields.rank_end(rank, message, (), tuple(hyper)), modules_outside=()))
    return tuple(found)


def contract_of(run: Run, numerics: Numerics = "reorder", **changes: Any) -> Contract:
    """Return the contract that a run would give as a baseline, at data level `exact`."""
    steps, ends = steps_of(run), ends_of(run)
    first = trace(steps, len(ends))[0]
    made = len({s.step for s in steps})
    invariants: dict[str, Any] = {
        "parameters": ends[0].parameters,
        "hyper_parameters": ends[0].hyper_parameters,
        "optimizer_steps": max(1, round(ends[0].optimizer_steps / made)),
        "clips_per_step": max(s.clip_calls for s in steps),
        "numerics": numerics,
        "caps": default_caps("exact"),
        "unobserved": ends[0].unobserved,
        **changes,
    }
    return Contract(
        goal="x",
        base_commit="a" * 40,
        workload=Workload("train.py", ("python",), (), len(ends), first.rows, first.tokens, "exact", ()),
        scope=Scope(("*.py",)),
        locked=(),
        invariants=Invariants(**invariants),
        budget=Budget(),
        intent_digest="",
    )


def calibration_of(run: Run, contract: Contract) -> Calibration:
    """Return a calibration whose envelopes are their floors: nothing but the run itself has been seen."""
    reference = trace(steps_of(run), len(ends_of(run)))
    caps = contract.invariants.caps
    return Calibration(
        contract_digest="",
        commit="",
        hardware=Hardware("cpu", (), 2, 1, (), 0, "", "2", "", "3"),
        noise=Noise(0, 0, 0, 0, 2, 6, 0.01, 4),
        envelopes=tuple(calibrate(c.numerics, [reference], {}, c, data_level="exact") for c in caps),
        trace=reference,
        step_seconds=1.0,
        tokens_per_second=1.0,
        peak_allocated_bytes=1,
        peak_reserved_bytes=1,
        phases=(),
        hot_lines=(),
        flops_per_step=None,
        peak_flops=(),
        mfu=None,
    )


def held_to(baseline: Run, other: Run, numerics: Numerics = "reorder") -> tuple[Violation, ...]:
    """Return what of the baseline's contract another run breaks."""
    contract = contract_of(baseline, numerics)
    return check(contract, calibration_of(baseline, contract), steps_of(other), ends_of(other), numerics=numerics)
