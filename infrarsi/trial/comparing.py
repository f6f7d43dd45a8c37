"""Compares files of tensors in the training's own interpreter: the tool itself imports no torch for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.errors import TrialError
from infrarsi.records import GradientGroup
from infrarsi.trial.environment import base_environment

PROGRAM = Path(__file__).resolve().parent.parent / "probe" / "compare.py"
DEADLINE_SECONDS = 1800.0


@dataclass(frozen=True)
class Comparison:
    """A candidate's file against a reference's; `others` are variants of the reference to be compared with it too."""

    candidate: Path
    reference: Path
    others: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Compared:
    """The groups of parameters, the names that only one side has, and what the candidate's file says about itself."""

    groups: tuple[GradientGroup, ...]
    unlike: tuple[str, ...]
    dropout: bool = False


def compare_files(python: str, comparisons: Sequence[Comparison], scratch: Path) -> tuple[Compared, ...]:
    """Return one result per comparison. TrialError where a file is missing or cannot be read."""
    asked = [
        {"candidate": str(c.candidate), "reference": str(c.reference), "others": [str(p) for p in c.others]}
        for c in comparisons
    ]
    try:
        done = subprocess.run(
            [python, "-I", str(PROGRAM)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env=base_environment(scratch),
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrialError("the replay could not be compared", why=str(error), code="compare") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise TrialError("the replay could not be compared", why=last[0], code="compare")
    return tuple(_compared(result) for result in json.loads(done.stdout))


def _compared(result: dict[str, object]) -> Compared:
    about, groups, names = result["about"], result["groups"], result["unlike"]
    assert isinstance(about, dict) and isinstance(groups, list) and isinstance(names, list)
    return Compared(
        groups=tuple(GradientGroup(g[0], g[1], g[2], g[3], tuple(g[4])) for g in groups),
        unlike=tuple(str(name) for name in names),
        dropout=about.get("dropout") is True,
    )
