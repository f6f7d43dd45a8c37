"""The blocking call: run one plan on an engine to its end, and keep it as a Trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from infrarsi.records import Outcome, StepRecord, Trial, Violation
from infrarsi.trial.engine import Engine, Execution, Progress
from infrarsi.trial.plan import TrialPlan

OnProgress = Callable[[Progress], Literal["continue", "stop"]]
SLACK_SECONDS = 120.0


def run_trial(
    plan: TrialPlan, engine: Engine, *, on_progress: OnProgress | None = None, poll_seconds: float = 0.05
) -> Execution:
    """Run a plan to its end. `on_progress` is called after each step that all ranks have closed.

    "stop" closes the timed window early, after at least two timed steps. Whatever interrupts the wait (^C included)
    cancels the trial first and is raised again.
    """
    handle = engine.submit(plan)
    ended = False
    try:
        _wait(plan, engine, handle, on_progress, poll_seconds)
        execution = engine.result(handle)
        ended = True
    finally:
        if not ended:
            engine.cancel(handle)
    return execution


def _wait(plan: TrialPlan, engine: Engine, handle: str, on_progress: OnProgress | None, poll_seconds: float) -> None:
    until = time.monotonic() + plan.deadlines.total_seconds + SLACK_SECONDS
    seen, stopping = 0, False
    while engine.poll(handle) != "ended":
        if time.monotonic() > until:
            engine.cancel(handle)
            return
        if on_progress is not None and not stopping:
            progress = engine.progress(handle)
            if progress.last_step > seen:
                seen = progress.last_step
                wish = on_progress(progress)
                if wish == "stop" and progress.timed_step_seconds is not None:
                    stopping = True
                    engine.stop(handle)
        time.sleep(poll_seconds)


def to_trial(
    plan: TrialPlan,
    execution: Execution,
    violations: Sequence[Violation] = (),
    *,
    why: str = "",
    predicted_step_seconds: float | None = None,
    predicted_peak_bytes: float | None = None,
    engine: str = "local",
) -> Trial:
    """Return an execution as the ledger keeps it. A violation makes a run that ended well "rejected".

    `violations`: all that the caller found, those of the execution included or not. Numbers that are not finite become
    None (JSON has no NaN), each with a violation, so that nothing is hidden by it.
    """
    found = tuple(dict.fromkeys((*execution.violations, *violations)))
    steps, broken = _finite(execution.steps)
    if broken:
        found = (*found, broken)
    outcome = execution.outcome
    if found and outcome.kind == "ok":
        outcome = Outcome("rejected", found[0].message, phase=found[0].check, exit_code=outcome.exit_code)
    ends = tuple(replace(e, flops_per_step=_number(e.flops_per_step)) for e in execution.ends)
    return Trial(
        id=plan.id,
        run=plan.run,
        number=plan.number,
        candidate=plan.candidate,
        commit=plan.commit,
        role=plan.role,
        argv=plan.argv,
        environment=plan.environment,
        engine=engine,
        block=plan.block,
        outcome=outcome,
        measurement=execution.measurement,
        violations=found,
        wall_seconds=execution.wall_seconds,
        device_seconds=execution.device_seconds,
        pressure=execution.pressure,
        why=why,
        predicted_step_seconds=predicted_step_seconds,
        predicted_peak_bytes=predicted_peak_bytes,
        steps=steps,
        ends=ends,
    )


def _finite(steps: Sequence[StepRecord]) -> tuple[tuple[StepRecord, ...], Violation | None]:
    """Replace what is not finite; return the violation that says where it was first."""
    result, violation = [], None
    for step in steps:
        values = (step.loss, step.grad_norm, *step.update_sketch, *(v for _, v in step.phases))
        if all(v is None or math.isfinite(v) for v in values):
            result.append(step)
            continue
        message = f"loss, gradient norm or update is not finite at step {step.step} (rank {step.rank})"
        violation = violation or Violation("invariant", "finite", message)
        sketch = step.update_sketch if all(map(math.isfinite, step.update_sketch)) else ()
        phases = tuple((n, v) for n, v in step.phases if math.isfinite(v))
        loss, norm = _number(step.loss), _number(step.grad_norm)
        result.append(replace(step, loss=loss, grad_norm=norm, update_sketch=sketch, phases=phases))
    return tuple(result), violation


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
