"""Ring 2, the numbers: loss, gradient norm and parameter update of an execution against the baseline's trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from infrarsi.contract.envelopes import Deviation, common, deviation
from infrarsi.records import Calibration, Contract, Envelope, Numerics, StepRecord, TraceStep, Violation

_NAMES = {"loss": "the loss", "grad_norm": "the gradient norm", "update": "the parameter update"}
_WORDS = {"loss": ("loss",), "grad_norm": ("grad norm", "gradient norm"), "update": ("update",)}


def check_finite(steps: Sequence[StepRecord]) -> Iterator[Violation]:
    """Yield the first loss and the first gradient norm that is not a number."""
    for field in ("loss", "grad_norm"):
        for step in steps:
            value = getattr(step, field)
            if value is not None and not math.isfinite(value):
                where = f"at optimizer step {step.step} on rank {step.rank}"
                yield _violation(
                    f"finite-{field}", f"{_NAMES[field]} is {value} {where}", str(value), "a finite number"
                )
                break


def check_numbers(
    contract: Contract,
    calibration: Calibration,
    merged: Sequence[TraceStep],
    numerics: Numerics,
    excused: Callable[..., bool],
) -> tuple[Violation, ...]:
    """Compare with the trace, within the envelope of `numerics`, never beyond the contract's cap (R-A4, R-A5).

    At data level `exact` step by step, at the others by window means. A window shorter than the trace scatters more:
    its envelope is widened by the square root of the ratio of lengths.
    """
    pairs = common(calibration.trace, merged)
    if not pairs:
        return (_violation("trace", "no step in common with the baseline's trace", "0 steps", "git infrarsi doctor"),)
    envelope = envelope_of(contract, calibration, numerics)
    if envelope is None:
        message = f"this machine has no envelope for the numerics class {numerics}"
        return (_violation("envelope", message, numerics, "git infrarsi doctor"),)
    by_step = contract.workload.data_level == "exact"
    factor = 1.0 if by_step else math.sqrt(len(calibration.trace) / len(pairs))
    measured = deviation(calibration.trace, merged, by_step=by_step)
    found: list[Violation] = []
    for field in Deviation._fields:
        if excused(*_WORDS[field]):
            continue
        absent = [b.step for a, b in pairs if _value(a, field) and not _shown(b, field)]
        if absent:
            message = f"{_NAMES[field]} at step {absent[0]} could not be observed, though the baseline showed it"
            found.append(_violation(field, message, "absent", "observed"))
        allowed, value = getattr(envelope, field) * factor, getattr(measured, field)
        if value > allowed:
            found.append(_beyond(field, pairs, value, allowed, numerics, by_step=by_step))
    return tuple(found)


def envelope_of(contract: Contract, calibration: Calibration, numerics: Numerics) -> Envelope | None:
    """Return the machine's envelope of a class, cut at the contract's cap, so that no calibration can loosen it."""
    envelope = next((e for e in calibration.envelopes if e.numerics == numerics), None)
    cap = next((c for c in contract.invariants.caps if c.numerics == numerics), None)
    if envelope is None or cap is None:
        return None
    loss, norm, update = (min(getattr(envelope, f), getattr(cap, f)) for f in Deviation._fields)
    return Envelope(numerics, loss, norm, update, envelope.perturbations)


def _beyond(
    field: str,
    pairs: Sequence[tuple[TraceStep, TraceStep]],
    value: float,
    allowed: float,
    numerics: Numerics,
    *,
    by_step: bool,
) -> Violation:
    where = "over the window"
    if by_step:
        worst = max(pairs, key=lambda p: getattr(deviation(p[:1], p[1:], by_step=True), field))
        where = f"at optimizer step {worst[0].step}"
    message = f"{_NAMES[field]} is {value:.1e} off the baseline's {where}; {numerics} allows {allowed:.1e}"
    return _violation(field, message, f"{value:.3e}", f"{allowed:.3e}")


def _value(step: TraceStep, field: str) -> object:
    """Return what a trace holds of a deviation's field; empty or None where it was not observed."""
    if field == "update":
        return step.update_sketch
    value = getattr(step, field)
    return None if value is None else (value,)


def _shown(step: TraceStep, field: str) -> bool:
    return bool(_value(step, field))


def _violation(name: str, message: str, observed: str, allowed: str) -> Violation:
    return Violation("invariant", name, message, observed=observed, allowed=allowed)
