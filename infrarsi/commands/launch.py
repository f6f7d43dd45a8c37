"""`launch`: the training itself, with the promoted settings and without the probe, in the user's own tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.commands.fingerprint import resolve_python
from infrarsi.contract import intent as intents
from infrarsi.contract.command import overlay
from infrarsi.errors import ContractError
from infrarsi.vcs.door import Repository


@dataclass(frozen=True)
class LaunchPlan:
    """What to execute: argv, variables to add to the user's environment, folder."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    folder: Path


def launch(start: Path, extra: Sequence[str] = ()) -> LaunchPlan:
    """Return the launch of the work tree's infrarsi.toml; `extra` arguments go to the training's entry."""
    repo = Repository.discover(start)
    path = repo.root / intents.FILE
    if not path.exists():
        raise ContractError("there is no contract here", why=f"{intents.FILE} is missing", hint='git infrarsi init "…"')
    intent = intents.parse(path.read_text())
    python = resolve_python(intent.launch.python, repo.root)
    argv, environment = overlay(intent.command, intent.entry, python, intent.launch.assignments, root=repo.root)
    merged = {**dict(intent.environment), **dict(environment)}
    return LaunchPlan((*argv, *extra), tuple(sorted(merged.items())), repo.root)
