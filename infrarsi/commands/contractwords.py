"""A contract in plain words: what is locked, what may change, what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infrarsi.commands.workspace import COMMIT_HINT
from infrarsi.contract import lock as locks
from infrarsi.contract.intent import Intent
from infrarsi.contract.sentence import Wishes
from infrarsi.records import Contract


@dataclass(frozen=True)
class InitResult:
    """What was locked, in records and in plain sentences."""

    intent: Intent
    contract: Contract
    digest: str
    created: bool
    locked: tuple[str, ...]
    may_change: tuple[str, ...]
    understood: tuple[str, ...]
    not_understood: tuple[str, ...]
    notes: tuple[str, ...]
    next_command: str
    committed: bool = False


def describe(
    intent: Intent, contract: Contract, wishes: Wishes, notes: Sequence[str], *, created: bool, committed: bool
) -> InitResult:
    """Say in plain words what is locked and what may change."""
    work = contract.workload
    parameters = sum(_size(p.shape) for p in contract.invariants.parameters)
    locked = (
        f"{work.rows_per_step} rows ({work.tokens_per_step} tokens) per optimizer step, data level {work.data_level}",
        f"{parameters:,} parameters in {len(contract.invariants.parameters)} tensors: names, shapes, dtypes",
        "the optimizer and its hyper-parameters at every step, gradient clipping included",
        "loss, gradient norm and parameter update, within what honest reorderings do"
        if intent.numerics == "reorder"
        else f"loss, gradient norm and parameter update, within the numerics class {intent.numerics}",
        *(f"{d.name} ({d.bytes:,} bytes)" for d in work.data[:5]),
        *([f"{len(work.data) - 5} more data files"] if len(work.data) > 5 else []),
        *(f"{name}" for name in intent.scope.locked),
    )
    may_change = (
        f"code in {', '.join(intent.scope.editable)} (at most {intent.scope.max_files} files, "
        f"{intent.scope.max_lines} lines)",
        *(f"{k.name}: {', '.join(level.label for level in k.levels)}" for k in intent.knobs),
    )
    offered = (
        ()
        if intent.numerics in ("reduced", "semantic")
        else (
            "bf16 and tf32 are not allowed; if lower precision is fine: git infrarsi init --force --numerics reduced",
        )
    )
    return InitResult(
        intent=intent,
        contract=contract,
        digest=locks.contract_digest(contract),
        created=created,
        locked=locked,
        may_change=may_change,
        understood=wishes.understood,
        not_understood=wishes.not_understood,
        notes=(*notes, *offered, *_idle_wishes(wishes)),
        next_command="git infrarsi doctor" if committed else COMMIT_HINT,
        committed=committed,
    )


def _idle_wishes(wishes: Wishes) -> tuple[str, ...]:
    """Say which understood wishes nothing acts on yet: understanding is not doing."""
    idle = []
    if wishes.target_speedup is not None:
        idle.append(f"the wished speed-up of {wishes.target_speedup:g}x has no effect: run reports what there is")
    if wishes.model_provider is not None:
        idle.append("no model is asked in this version, whatever the sentence says")
    if wishes.dollars is not None:
        idle.append("nothing in this version costs dollars; that budget is kept for when something does")
    return tuple(idle)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
