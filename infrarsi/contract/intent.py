"""`infrarsi.toml`: what people want, in their own hand. `parse` reads it strictly, `render` writes a new one.

The tables [contract], [workload], [scope] and [budget] are locked: their digest is in `infrarsi.lock`. The rest (how to
launch here, how to search) is free to change between runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from infrarsi.codec import digest, encode
from infrarsi.contract.tables import Table
from infrarsi.records import (
    NUMERICS_ORDER,
    Assignment,
    AssignmentKind,
    Budget,
    Claim,
    DataLevel,
    Knob,
    KnobKind,
    Level,
    Numerics,
    Scalar,
    Scope,
)

FILE = "infrarsi.toml"
DATA_LEVELS: tuple[DataLevel, ...] = ("exact", "same-set", "sampled")
KNOB_KINDS: tuple[KnobKind, ...] = ("flag", "torchrun", "env", "config")
# The launch tables: where the promoted assignments of each kind stand. A config key is part of the tree instead.
LAUNCH_TABLES: tuple[tuple[str, AssignmentKind], ...] = (
    ("flags", "flag"),
    ("torchrun", "torchrun"),
    ("environment", "env"),
    ("state_map", "state_map"),
)
Sandbox = Literal["auto", "off", "required"]


@dataclass(frozen=True)
class Launch:
    """How the training is started on this machine, and the settings that were promoted so far."""

    python: str
    sandbox: Sandbox
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class SearchOptions:
    """How a run searches. Zero steps: as many as doctor found necessary."""

    warmup_steps: int
    timed_steps: int
    finalists: int
    proposers: tuple[str, ...]


@dataclass(frozen=True)
class Intent:
    """Everything that `infrarsi.toml` says."""

    goal: str
    numerics: Numerics
    data_level: DataLevel
    require_signature: bool
    entry: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    world_size: int
    data: tuple[str, ...]
    setup: tuple[str, ...]
    held_out: str
    scope: Scope
    budget: Budget
    launch: Launch
    search: SearchOptions
    knobs: tuple[Knob, ...]


def parse(text: str, name: str = FILE) -> Intent:
    """Read the document. Raises UsageError that names the key, its line where it can be found, and what to write."""
    top = Table.of(text, name)
    contract, workload = top.table("contract", required=True), top.table("workload", required=True)
    intent = Intent(
        goal=contract.take("goal", str),
        numerics=cast(Numerics, contract.choice("numerics", NUMERICS_ORDER, "reorder")),
        data_level=cast(DataLevel, contract.choice("data_level", DATA_LEVELS, "exact")),
        require_signature=contract.take("require_signature", bool, False),
        entry=workload.take("entry", str),
        command=workload.strings("command"),
        environment=tuple((k, _text(v)) for k, v in workload.scalars("environment")),
        world_size=workload.take("world_size", int, 1),
        data=workload.strings("data", ()),
        setup=workload.strings("setup", ()),
        held_out=workload.take("held_out", str, ""),
        scope=_scope(top.table("scope", required=True)),
        budget=_budget(top.table("budget")),
        launch=_launch(top.table("launch")),
        search=_search(top.table("search")),
        knobs=tuple(_knob(t) for t in top.tables("knobs")),
    )
    _require(workload, "world_size", intent.world_size >= 1, "must be at least 1")
    _require(workload, "command", bool(intent.command), "must not be empty")
    for table in (contract, workload, top):
        table.finish()
    return intent


def digest_of(intent: Intent) -> str:
    """Return the digest of the locked part; [launch], [search] and [[knobs]] may change without a new contract."""
    return digest({key: value for key, value in encode(intent).items() if key not in ("launch", "search", "knobs")})


def render(intent: Intent) -> str:
    """Return a commented document that reads back as `intent`."""
    from infrarsi.contract import intenttext

    return intenttext.render(intent)


def with_launch(text: str, assignments: Sequence[Assignment]) -> str:
    """Return `text` with its [launch] tables holding exactly `assignments`; comments and all else stay as they are.

    Configuration keys are left out: they live in the tree. Equal settings give back the very same text.
    """
    from infrarsi.contract import intenttext

    wanted = tuple(a for a in assignments if a.kind != "config")
    current = parse(text).launch.assignments
    return text if set(wanted) == set(current) else intenttext.with_launch(text, wanted)


def _scope(table: Table) -> Scope:
    scope = Scope(
        editable=table.strings("editable"),
        locked=table.strings("locked", ()),
        max_files=table.take("max_files", int, 20),
        max_lines=table.take("max_lines", int, 800),
    )
    _require(table, "editable", bool(scope.editable), "must name at least one glob")
    table.finish()
    return scope


def _budget(table: Table) -> Budget:
    hours, memory = table.optional("hours", float), table.optional("memory_gb", float)
    budget = Budget(
        trials=table.take("trials", int, 30),
        seconds=None if hours is None else round(hours * 3600, 3),
        dollars=table.optional("dollars", float),
        memory_bytes=None if memory is None else round(memory * 2**30),
        error_rate=table.take("error_rate", float, 0.05),
    )
    _require(table, "trials", budget.trials >= 1, "must be at least 1")
    _require(table, "hours", budget.seconds is None or budget.seconds > 0, "must be above 0")
    _require(table, "memory_gb", budget.memory_bytes is None or budget.memory_bytes > 0, "must be above 0")
    _require(table, "dollars", budget.dollars is None or budget.dollars >= 0, "must not be negative")
    _require(table, "error_rate", 0 < budget.error_rate < 0.5, "must be above 0 and below 0.5")
    table.finish()
    return budget


def _launch(table: Table) -> Launch:
    assignments: list[Assignment] = []
    unset = table.table("unset")
    for name, kind in LAUNCH_TABLES:
        assignments += [Assignment(kind, k, _text(v) if kind == "env" else v) for k, v in table.scalars(name)]
        assignments += [Assignment(kind, target, None) for target in unset.strings(name, ())]
    unset.finish()
    launch = Launch(
        python=table.take("python", str, "python3"),
        sandbox=cast(Sandbox, table.choice("sandbox", ("auto", "off", "required"), "auto")),
        assignments=tuple(assignments),
    )
    table.finish()
    return launch


def _search(table: Table) -> SearchOptions:
    options = SearchOptions(
        warmup_steps=table.take("warmup_steps", int, 0),
        timed_steps=table.take("timed_steps", int, 0),
        finalists=table.take("finalists", int, 2),
        proposers=table.strings("proposers", ("catalogue",)),
    )
    for key in ("warmup_steps", "timed_steps"):
        _require(table, key, getattr(options, key) >= 0, "must not be negative")
    _require(table, "finalists", options.finalists >= 1, "must be at least 1")
    table.finish()
    return options


def _knob(table: Table) -> Knob:
    kind = cast(KnobKind, table.choice("kind", KNOB_KINDS))
    levels = [(Level(table.take("baseline", str)), ())] + [_level(t, kind) for t in table.tables("levels")]
    claims = tuple(c for _, c in levels)
    knob = Knob(
        name=table.take("name", str),
        kind=kind,
        levels=tuple(level for level, _ in levels),
        ordinal=table.take("ordinal", bool, False),
        claims=claims if any(claims) else (),
        numerics=cast(Numerics, table.choice("numerics", NUMERICS_ORDER, "reorder")),
        catalogue_id=table.take("catalogue_id", str, ""),
        why=table.take("why", str, ""),
    )
    labels = [level.label for level in knob.levels]
    _require(table, "levels", len(labels) > 1, f"of knob {knob.name} must hold at least one level besides the baseline")
    _require(table, "levels", len(set(labels)) == len(labels), f"of knob {knob.name} must have different labels")
    table.finish()
    return knob


def _level(table: Table, own: KnobKind) -> tuple[Level, tuple[Claim, ...]]:
    """Read one level: `set` and `unset` are of the knob's own kind, `set_env` and the like of another."""
    assignments: list[Assignment] = []
    for kind in (own, *(k for k in KNOB_KINDS if k != own)):
        suffix = "" if kind == own else f"_{kind}"
        values = table.scalars(f"set{suffix}")
        assignments += [Assignment(kind, k, _text(v) if kind == "env" else v) for k, v in values]
        assignments += [Assignment(kind, target, None) for target in table.strings(f"unset{suffix}", ())]
    level = Level(table.take("label", str), tuple(assignments))
    claims = tuple(_claim(t) for t in table.tables("claims"))
    table.finish()
    return level, claims


def _claim(table: Table) -> Claim:
    terms = ("total", "parameters", "gradients", "optimizer", "activations", "workspace")
    claim = Claim(
        source=table.take("source", str),
        time_factor=table.take("time_factor", float, 1.0),
        memory_factor=table.take("memory_factor", float, 1.0),
        confidence=table.take("confidence", float, 0.3),
        memory_term=cast(Any, table.choice("memory_term", terms, "total")),
    )
    table.finish()
    return claim


def _text(value: Scalar) -> str:
    """Environment variables are text: `OMP_NUM_THREADS = 1` means "1"."""
    return str(value)


def _require(table: Table, key: str, good: bool, rule: str) -> None:
    if not good:
        raise table.error(key, f"{table.path}.{key} {rule}", f"correct {key} under [{table.path}]")
