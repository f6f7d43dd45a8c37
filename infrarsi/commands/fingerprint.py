"""What machine this is, asked of the training's own interpreter (the tool may live in another environment)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

import infrarsi
from infrarsi.codec import decode
from infrarsi.errors import TrialError
from infrarsi.records import Hardware

SECONDS = 600  # two matmul peaks on a machine that does other things too
MACHINE = Path(infrarsi.__file__).parent / "probe" / "machine.py"


@dataclass(frozen=True)
class Machine:
    """The fingerprint, and the measured matmul peaks in FLOP/s by dtype (empty unless asked for)."""

    hardware: Hardware
    peaks: tuple[tuple[str, float], ...]


def fingerprint(python: str, root: Path, *, peaks: bool = False) -> Machine:
    """Run `machine.py` under `python`. TrialError where that interpreter is missing or has no torch."""
    program = resolve_python(python, root)
    command = [program, str(MACHINE), *([] if peaks else ["--no-peaks"])]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "INFRARSI_PLAN")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        raise TrialError(
            "this machine could not be measured",
            why=f"its fingerprint and matmul peaks were not there after {SECONDS} s",
            hint="try again when the machine is less busy",
            code="fingerprint-timeout",
        ) from error
    if done.returncode != 0:
        raise TrialError(
            f"{python} cannot run a training",
            why=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}",
            hint=f"set python under [launch] in infrarsi.toml, or: {python} -m pip install torch",
        )
    value = json.loads(done.stdout)
    names = {f.name for f in fields(Hardware)}
    hardware = decode(Hardware, {key: item for key, item in value.items() if key in names})
    return Machine(hardware, tuple(sorted((k, float(v)) for k, v in (value.get("peaks") or {}).items())))


def resolve_python(python: str, root: Path) -> str:
    """Return the absolute path of the training interpreter (relative paths count from the repository's root)."""
    if "/" in python:
        path = root / python
        found = str(path) if path.exists() else None
    else:
        found = shutil.which(python)
    if found is None:
        raise TrialError(
            f"the training interpreter {python} was not found",
            why="[launch] python in infrarsi.toml names it",
            hint="activate the training's environment, or set python under [launch]",
        )
    return found
