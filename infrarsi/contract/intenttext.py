"""Writes `infrarsi.toml` with tomlkit: a new one with comments, or new launch settings in one that people edited."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import tomlkit
from tomlkit.items import InlineTable, Table

from infrarsi.contract.intent import KNOB_KINDS, LAUNCH_TABLES, Intent
from infrarsi.records import Assignment, AssignmentKind, Claim, Knob, KnobKind, Level

_HEAD = (
    "What this repository's training must keep, and what may be tried to make it faster.",
    "[contract], [workload], [scope] and [budget] are locked by infrarsi.lock: after a change there,",
    "`git infrarsi init --force` makes a new contract. The tables below them are free.",
)
_INLINE_WIDTH = 100


def render(intent: Intent) -> str:
    """Return the whole document for `intent`, with comments."""
    document = tomlkit.document()
    for line in _HEAD:
        document.add(tomlkit.comment(line))
    for name, table in (
        ("contract", _contract(intent)),
        ("workload", _workload(intent)),
        ("scope", _scope(intent)),
        ("budget", _budget(intent)),
        ("launch", _launch(intent)),
        ("search", _search(intent)),
    ):
        document.add(tomlkit.nl())
        document.add(name, table)
    if intent.knobs:
        knobs = tomlkit.aot()
        for knob in intent.knobs:
            knobs.append(_knob(knob))
        document.add(tomlkit.nl())
        document.add(
            tomlkit.comment("What may be tried at launch. The baseline is the value in use; each level sets others.")
        )
        document.add("knobs", knobs)
    return tomlkit.dumps(document)


def with_launch(text: str, assignments: Sequence[Assignment]) -> str:
    """Return `text` with exactly `assignments` in its launch tables, everything else byte for byte as it was."""
    document = tomlkit.parse(text)
    launch = document.get("launch")
    if launch is None:
        launch = tomlkit.table()
        document.add(tomlkit.nl())
        document.add("launch", launch)
        launch = document["launch"]
    for name, values in _launch_tables(assignments):
        _put(launch, name, values)
    return tomlkit.dumps(document)


def _launch_tables(assignments: Sequence[Assignment]) -> list[tuple[str, dict[str, Any]]]:
    """Return what each launch table holds; `unset` lists the baseline's flags and variables that are taken away."""
    tables = [
        (name, {a.target: a.value for a in assignments if _is(a, kind, unset=False)}) for name, kind in LAUNCH_TABLES
    ]
    unset = {name: [a.target for a in assignments if _is(a, kind, unset=True)] for name, kind in LAUNCH_TABLES}
    return [*tables, ("unset", {name: targets for name, targets in unset.items() if targets})]


def _put(launch: Any, name: str, values: dict[str, Any]) -> None:
    """Make table `name` hold exactly `values`, leaving what is equal already as it is written."""
    table = launch.get(name)
    if table is None:
        if not values:
            return
        launch.add(name, tomlkit.table())
        table = launch[name]
    for key in [k for k in table if k not in values]:
        del table[key]
    for key, value in values.items():
        if key not in table or table[key] != value or type(table[key].unwrap()) is not type(value):
            table[key] = value


def _contract(intent: Intent) -> Table:
    table = tomlkit.table()
    table.add("goal", intent.goal)
    _say(table, "numerics", intent.numerics, "bitwise | reorder | reduced (bf16, tf32, fp8) | semantic")
    _say(table, "data_level", intent.data_level, "exact: same rows at each step | same-set | sampled")
    _say(table, "require_signature", intent.require_signature, "a promoted commit must be signed by the user")
    return table


def _say(table: Table, key: str, value: Any, comment: str) -> None:
    table.add(key, tomlkit.item(value).comment(comment))


def _workload(intent: Intent) -> Table:
    table = tomlkit.table()
    table.add("entry", intent.entry)
    table.add("command", _strings(intent.command))
    table.add("world_size", intent.world_size)
    table.add(tomlkit.comment("Files or folders that the training reads; locked by their digests."))
    table.add("data", _strings(intent.data))
    table.add(tomlkit.comment("One command, run once in each new worktree before a trial; [] for none."))
    table.add("setup", _strings(intent.setup))
    table.add("held_out", intent.held_out)
    if intent.environment:
        environment = tomlkit.table()
        for key, value in intent.environment:
            environment.add(key, value)
        table.add("environment", environment)
    return table


def _scope(intent: Intent) -> Table:
    table = tomlkit.table()
    table.add(
        tomlkit.comment("Globs as in .gitignore. Locked wins; `train.py::get_batch` locks one function or class.")
    )
    table.add("editable", _strings(intent.scope.editable))
    table.add("locked", _strings(intent.scope.locked))
    table.add("max_files", intent.scope.max_files)
    table.add("max_lines", intent.scope.max_lines)
    return table


def _budget(intent: Intent) -> Table:
    table, budget = tomlkit.table(), intent.budget
    table.add("trials", budget.trials)
    if budget.seconds is not None:
        table.add("hours", budget.seconds / 3600)
    if budget.dollars is not None:
        _say(table, "dollars", budget.dollars, "for a model's proposals, if one is asked")
    if budget.memory_bytes is not None:
        _say(table, "memory_gb", _gibibytes(budget.memory_bytes), "GiB per device, or per rank on CPU")
    _say(table, "error_rate", budget.error_rate, "how often a useless change may be accepted")
    return table


def _gibibytes(size: int) -> float:
    """Return the shortest decimal that is read as so many bytes again: a person wrote 0.6, not 0.599999999627471."""
    whole = size / 2**30
    shortened = (float(f"{whole:.{digits}g}") for digits in range(1, 17))
    return next((short for short in shortened if round(short * 2**30) == size), whole)


def _launch(intent: Intent) -> Table:
    table = tomlkit.table()
    _say(table, "python", intent.launch.python, "the interpreter of the training")
    _say(table, "sandbox", intent.launch.sandbox, "auto | off | required (bubblewrap)")
    for name, values in _launch_tables(intent.launch.assignments):
        _put(table, name, values)
    return table


def _is(assignment: Assignment, kind: AssignmentKind, *, unset: bool) -> bool:
    return assignment.kind == kind and (assignment.value is None) == unset


def _search(intent: Intent) -> Table:
    table, search = tomlkit.table(), intent.search
    _say(table, "warmup_steps", search.warmup_steps, "0: as doctor found")
    _say(table, "timed_steps", search.timed_steps, "0: as doctor found")
    _say(table, "finalists", search.finalists, "how many are compared with the baseline in interleaved blocks")
    table.add("proposers", _strings(search.proposers))
    return table


def _knob(knob: Knob) -> Table:
    table = tomlkit.table()
    table.add("name", knob.name)
    table.add("kind", knob.kind)
    table.add("baseline", knob.levels[0].label)
    table.add("ordinal", knob.ordinal)
    table.add("numerics", knob.numerics)
    if knob.catalogue_id:
        table.add("catalogue_id", knob.catalogue_id)
    if knob.why:
        table.add("why", knob.why)
    levels = tomlkit.aot()
    for number, level in enumerate(knob.levels[1:], start=1):
        levels.append(_level(level, knob.kind, knob.claims[number] if number < len(knob.claims) else ()))
    table.add("levels", levels)
    return table


def _level(level: Level, own: KnobKind, claims: Sequence[Claim]) -> Table:
    table = tomlkit.table()
    table.add("label", level.label)
    for kind in (own, *(k for k in KNOB_KINDS if k != own)):
        suffix = "" if kind == own else f"_{kind}"
        values = {a.target: a.value for a in level.assignments if _is(a, kind, unset=False)}
        unset = [a.target for a in level.assignments if _is(a, kind, unset=True)]
        if values:
            table.add(f"set{suffix}", _inline(values.items()))
        if unset:
            table.add(f"unset{suffix}", _strings(unset))
    if claims:
        array = tomlkit.array()
        for claim in claims:
            array.append(_inline(_claim(claim)))
        table.add("claims", array.multiline(len(claims) > 1))
    return table


def _claim(claim: Claim) -> list[tuple[str, Any]]:
    """Return what differs from the defaults, so that a person reads only what is claimed."""
    plain = Claim(claim.source)
    names = ("time_factor", "memory_factor", "confidence", "memory_term")
    return [("source", claim.source)] + [
        (n, getattr(claim, n)) for n in names if getattr(claim, n) != getattr(plain, n)
    ]


def _inline(values: Iterable[tuple[str, Any]]) -> InlineTable:
    table = tomlkit.inline_table()
    for key, value in values:
        table.add(key, value)
    return table


def _strings(values: Sequence[str]) -> Any:
    """Return a list, over several lines where one would be too long to read."""
    array = tomlkit.array()
    array.extend(values)
    return array.multiline(len(json.dumps(list(values))) > _INLINE_WIDTH)
