"""Honest changes of the baseline, class by class: what doctor tries, and how far each moves the numbers (R-A4).

One execution each. `reorder`: another number of threads (and, over three ranks or more, gradients summed in other
buckets: a sum of two does not depend on its order), the next micro-batch, the same mathematics in float64, which shows
the whole rounding error of the baseline; the other ones show what little of it they change. `reduced`: bf16 autocast,
and tf32 where there is CUDA. Where window means are compared: two runs over other rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from infrarsi.commands.bench import OnProgress
from infrarsi.commands.events import Event, Notify
from infrarsi.contract.envelopes import beyond_cap, calibrate, same_rows, trace
from infrarsi.records import NUMERICS_ORDER, Assignment, Contract, Envelope, Hardware, Knob, Numerics, TraceStep
from infrarsi.trial.engine import Execution, Progress

SMALL_BUCKET_MIB = 1.0  # DistributedDataParallel's own: 25
SLOWDOWN_LIMIT = 4.0  # float64 takes 2 times as long on a CPU, 32 times on many GPUs: its window is closed early then


@dataclass(frozen=True)
class Change:
    """One honest change: settings on the command, perturbations in the ranks.

    `other_rows`: its rows shall differ. `instead`: what is tried where the training does not run under it.
    """

    name: str
    settings: tuple[Assignment, ...] = ()
    perturb: tuple[str, ...] = ()
    other_rows: bool = False
    instead: Change | None = None


# A result of finite precision is the exact one of data about one rounding away (Wilkinson, 1963).
ROUNDING = Change("weights moved by one rounding", perturb=("rounding:1",))
Shoot = Callable[[Change, OnProgress], Execution]


def changes(contract: Contract, knobs: Sequence[Knob], hardware: Hardware, numerics: Numerics) -> tuple[Change, ...]:
    """Return the honest changes of one class that this contract and machine allow; stricter classes' not repeated."""
    if numerics == "reorder":
        found = [Change("another number of threads", perturb=("threads:other",))]
        if contract.workload.world_size > 2:
            pieces = ("threads:other", f"buckets:{SMALL_BUCKET_MIB}")
            found = [Change("other threads, and ranks summed in other pieces", perturb=pieces)]
        knob = next((k for k in knobs if k.name == "micro_batch"), None)
        if knob is not None and knob.numerics in ("bitwise", "reorder"):
            found += [Change(f"micro-batch {level.label}", level.assignments) for level in knob.levels[1:2]]
        found.append(Change("float64", perturb=("float64",), instead=ROUNDING))
        if contract.workload.data_level != "exact":
            found += [Change(f"data seed {n}", perturb=(f"data_seed:{n}",), other_rows=True) for n in (1, 2)]
        return tuple(found)
    if numerics == "reduced":
        found = [Change("bf16 autocast", perturb=("autocast_bf16",))]
        if hardware.accelerators:
            found.append(Change("tf32", perturb=("tf32",)))
        return tuple(found)
    return ()


def envelopes(
    contract: Contract,
    knobs: Sequence[Knob],
    hardware: Hardware,
    original: Sequence[Execution],
    shoot: Shoot,
    notify: Notify,
) -> tuple[tuple[Envelope, ...], tuple[str, ...]]:
    """Perturb the baseline class by class, up to the contract's; return the envelopes, and what could not be told.

    `original` are the unperturbed repeats; the first one is the reference.
    """
    world, level = contract.workload.world_size, contract.workload.data_level
    references = [trace(run.steps, world) for run in original]
    perturbed: dict[str, tuple[TraceStep, ...]] = {}
    found: list[Envelope] = []
    notes: list[str] = []
    for numerics in NUMERICS_ORDER[: NUMERICS_ORDER.index(contract.invariants.numerics) + 1]:
        cap = next((c for c in contract.invariants.caps if c.numerics == numerics), None)
        for change in changes(contract, knobs, hardware, numerics):
            notify(Event("stage", f"honest perturbation for {numerics}: {change.name}"))
            run = shoot(change, Patience(original[0]))
            if not _trained(run) and change.instead is not None:
                notes.append(f"perturbation {change.name} did not run ({_why(run)}): {change.instead.name} instead")
                change = change.instead
                run = shoot(change, Patience(original[0]))
            if not _trained(run):
                notes.append(f"perturbation {change.name} did not run ({_why(run)})")
                continue
            steps = trace(run.steps, world)
            if change.other_rows and same_rows(references[0], steps):
                notes.append(f"perturbation {change.name} read the baseline's rows: its data has a seed of its own")
                continue
            perturbed[change.name] = steps
            over = beyond_cap(references[0], steps, cap) if cap is not None else ()
            if over:
                said = f"{change.name} goes beyond the contract's cap for {numerics} ({', '.join(over)})"
                notes.append(f"{said}: it cannot pass")
        if cap is not None:
            found.append(calibrate(numerics, references, dict(perturbed), cap, data_level=level))
    return tuple(found), tuple(notes)


def _trained(run: Execution) -> bool:
    return run.outcome.kind == "ok" and bool(run.steps)


def _why(run: Execution) -> str:
    return f"{run.outcome.kind}: {run.outcome.message[:120]}" if run.outcome.message else run.outcome.kind


class Patience:
    """Closes the window of a perturbation that takes many times as long as the baseline did."""

    def __init__(self, reference: Execution, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + SLOWDOWN_LIMIT * max(1.0, reference.wall_seconds)

    def __call__(self, progress: Progress) -> Literal["continue", "stop"]:
        return "stop" if self._clock() > self._until else "continue"
