"""`demo`: a small repository with a real trainer, and the whole workflow on it, explained as it goes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import infrarsi
from infrarsi.commands import apply as applying
from infrarsi.commands import doctor as doctoring
from infrarsi.commands import init as initialising
from infrarsi.commands import report as reporting
from infrarsi.commands import run as running
from infrarsi.commands import verify as verifying
from infrarsi.commands.events import Notify
from infrarsi.commands.fingerprint import resolve_python
from infrarsi.errors import NegativeVerdict, TrialError, UsageError
from infrarsi.trial.engine import Engine
from infrarsi.vcs.create import DEMO_MARKER, commit_all, create_repository, demo_signing_key

TRAINERS = Path(infrarsi.__file__).parent / "demo" / "trainers"
DEMO_TRIALS, DEMO_REPEATS = 7, 3
SENTENCE = "make this training faster, change nothing it learns"
Tell = Callable[[str], None]
Show = Callable[[object], None]


@dataclass(frozen=True)
class DemoResult:
    """Where the demo stands and what came out of it."""

    folder: Path
    commit: str
    branch: str
    speedup: float
    low: float
    high: float


def demo(folder: Path, engine: Engine, notify: Notify, tell: Tell, show: Show, *, force: bool = False) -> DemoResult:
    """Make the demo repository in `folder` and run every stage on it.

    `tell` gets a sentence before each step, `show` each step's result. NegativeVerdict when nothing was accepted.
    """
    make_repository(folder, tell, force=force)
    tell(f'1. init: lock what must stay the same. $ git infrarsi init "{SENTENCE}"')
    show(initialising.init(folder, initialising.InitOptions(sentence=SENTENCE), engine, notify))
    commit_all(folder, "Lock the training contract")
    tell("The contract is committed: from here on, whoever changes it changes its digest. $ git commit")
    tell("2. doctor: how noisy is this machine, and where does the time go? $ git infrarsi doctor")
    show(doctoring.doctor(folder, engine, notify, repeats=DEMO_REPEATS))
    tell("3. run: search settings and patches together, then verify the best in interleaved blocks. $ git infrarsi run")
    show(running.run(folder, running.RunOptions(trials=DEMO_TRIALS), engine, notify))
    tell("4. report: what won, what it cost, what was refused and why. $ git infrarsi report")
    report = reporting.report(folder)
    show(report)
    tell("5. apply: one signed commit on infrarsi/promoted; your branch is not touched. $ git infrarsi apply")
    applied = applying.apply(folder)
    show(applied)
    tell("6. verify: anybody can check that commit, offline. $ git infrarsi verify infrarsi/promoted")
    verified = verifying.verify(folder, applied.branch)
    show(verified)
    if verified.decision != "pass":
        raise NegativeVerdict(
            "the promoted commit does not verify", why=f"{verified.decision}", hint="see the checks above"
        )
    verdict = applied.verdict
    return DemoResult(folder, applied.commit, applied.branch, verdict.speedup, verdict.low, verdict.high)


def make_repository(folder: Path, tell: Tell, *, force: bool = False) -> None:
    """Copy the dense trainer into a new repository, prepare its data, commit. UsageError where the folder is in use."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / ".git" / DEMO_MARKER).exists():
            raise UsageError(
                f"{folder} is not empty",
                why="the demo makes a repository of its own",
                hint="git infrarsi demo OTHER-FOLDER",
            )
        if not force:
            raise UsageError(
                f"{folder} holds a demo already", why="it was made before", hint=f"git infrarsi demo --force {folder}"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(TRAINERS / "dense", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    create_repository(folder)
    note = demo_signing_key(folder)
    if note:
        tell(note)
    python = resolve_python("python3", folder)
    done = subprocess.run([python, "prepare.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise TrialError(
            "the demo's data could not be prepared", why=done.stderr.strip()[-300:], hint="is numpy installed?"
        )
    commit_all(folder, "A small GPT, trained with two processes")
    tell(f"A small GPT, trained by two processes on the source of Python's standard library, in {folder}.")
