"""The plan of one execution as the launcher wrote it, and the test whether this process is the one it is about."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

OPTIONS_WITH_VALUE = "XW"


class Plan(NamedTuple):
    """What to observe, for how many steps, and where to report it (a NamedTuple: dataclasses import slowly)."""

    token: str
    socket: str
    root: str
    entry: str
    mode: str
    warmup_steps: int
    timed_steps: int
    perturb: tuple[str, ...]
    memory_bytes: int | None
    timeout_seconds: float
    scope_roots: tuple[str, ...]
    original_root: str
    dump: str
    sections: list[dict[str, Any]]
    out: str
    state_map: list[dict[str, Any]]

    @property
    def last_step(self) -> int:
        """The step at whose close the window is full."""
        return self.warmup_steps + self.timed_steps


def read_plan(path: str) -> Plan:
    """Read the JSON file that INFRARSI_PLAN names. OSError, ValueError, KeyError where it is not a plan."""
    with open(path, encoding="utf-8") as file:
        value: dict[str, Any] = json.load(file)
    if value.get("schema") != 1:
        raise ValueError(f"unknown schema {value.get('schema')!r}")
    root = os.path.realpath(value["root"])
    memory = value.get("memory_bytes")
    return Plan(
        token=str(value["token"]),
        socket=str(value["socket"]),
        root=root,
        entry=str(value["entry"]),
        mode=str(value.get("mode", "trial")),
        warmup_steps=int(value["warmup_steps"]),
        timed_steps=int(value["timed_steps"]),
        perturb=tuple(str(item) for item in value.get("perturb") or ()),
        memory_bytes=None if memory is None else int(memory),
        timeout_seconds=float(value.get("timeout_seconds") or 600.0),
        scope_roots=tuple(os.path.realpath(str(item)) for item in value.get("scope_roots") or ()) or (root,),
        original_root=os.path.realpath(str(value.get("original_root") or root)),
        dump=str(value.get("dump") or ""),
        sections=list(value.get("sections") or ()),
        out=str(value.get("out") or ""),
        state_map=list(value.get("state_map") or ()),
    )


def main_of(argv: Sequence[str]) -> tuple[str, str] | None:
    """Return ("script", path) or ("module", name) of a Python command line; None for `-c`, stdin, no argument."""
    index = 1
    while index < len(argv):
        item = argv[index]
        index += 1
        if item == "--check-hash-based-pycs":
            index += 1
        elif item.startswith("--"):
            continue
        elif item == "-":
            return None
        elif item.startswith("-"):
            for position, letter in enumerate(item[1:], start=2):
                rest = item[position:]
                if letter == "c":
                    return None
                if letter == "m":
                    name = rest or (argv[index] if index < len(argv) else "")
                    return ("module", name) if name else None
                if letter in OPTIONS_WITH_VALUE:
                    index += 0 if rest else 1
                    break
        else:
            return ("script", item)
    return None


def is_entry(argv: Sequence[str], entry: str, root: str, cwd: str) -> bool:
    """Say whether the command line `argv` runs `entry` (a path below `root`, or a module name)."""
    main = main_of(argv)
    if main is None:
        return False
    kind, name = main
    if kind == "script":
        path = os.path.realpath(os.path.join(cwd, name))
        wanted = os.path.realpath(os.path.join(root, entry))
        return path in (wanted, os.path.join(wanted, "__main__.py"))
    dotted = entry.removesuffix(".py").removesuffix("/__main__").replace("/", ".").removesuffix(".__main__")
    name = name.removesuffix(".__main__")
    return dotted == name or dotted.endswith("." + name)
