"""Runs one execution of one commit under the probe: worktree, data, command, engine. Only here are plans built."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from infrarsi.contract.command import overlay
from infrarsi.contract.statemap import layouts
from infrarsi.records import Assignment, Candidate, Parameter
from infrarsi.trial import sandbox as sandboxes
from infrarsi.trial.engine import Engine, Execution, Progress
from infrarsi.trial.execute import run_trial
from infrarsi.trial.plan import Deadlines, Section, TrialPlan
from infrarsi.trial.provision import provision
from infrarsi.trial.watch import Watch
from infrarsi.vcs.door import Repository
from infrarsi.vcs.worktrees import worktree

Role = Literal["search", "verify", "ablation", "calibration", "observe", "confirm", "replay"]
Mode = Literal["trial", "observe", "profile", "replay"]
INSTALLED = ("site-packages", "dist-packages")
OnProgress = Callable[[Progress], Literal["continue", "stop"]]


@dataclass(frozen=True)
class Job:
    """What is trained and how: the part of a plan that all executions of one contract share."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    entry: str
    python: str
    world_size: int
    data: tuple[str, ...]
    setup: tuple[str, ...]
    sandbox: Literal["auto", "off", "required"]
    memory_bytes: int | None = None
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Window:
    """Optimizer steps before and inside the timed window."""

    warmup_steps: int
    timed_steps: int


@dataclass(frozen=True)
class Shot:
    """One execution to make: a commit's worktree, the overlay on its command, and what it is for."""

    worktree: Path
    commit: str
    assignments: tuple[Assignment, ...]
    window: Window
    role: Role
    mode: Mode = "trial"
    number: int = 0
    block: int = 0
    candidate: Candidate = field(default_factory=Candidate)
    perturb: tuple[str, ...] = ()
    dump: Path | None = None
    check_step: int | None = None
    sections: tuple[Section, ...] = ()
    out: Path | None = None


class Bench:
    """Executes shots of one run, one after another, and keeps their logs under `folder`."""

    def __init__(
        self, repo: Repository, job: Job, engine: Engine, run: str, folder: Path, deadlines: Deadlines | None = None
    ) -> None:
        self.repo, self.job, self.engine, self.run, self.folder = repo, job, engine, run, folder
        self.deadlines = deadlines or Deadlines()
        self.untrusted: frozenset[str] = frozenset()  # patches that a model or an agent wrote

    @contextlib.contextmanager
    def checkout(self, commit: str, *, untrusted: bool = False) -> Iterator[Path]:
        """Check `commit` out in a worktree of its own, with the declared data linked in, while the context lives.

        `untrusted`: its set-up runs code that a model or an agent wrote.
        """
        # A name that says nothing: code under trial can read where it stands.
        with worktree(self.repo, commit, f"w-{secrets.token_hex(5)}") as path:
            job = self.job
            provision(path, self.repo.root, job.data, job.setup, sandbox=job.sandbox, untrusted=untrusted)
            yield path

    def is_untrusted(self, candidate: Candidate) -> bool:
        """Return whether a candidate holds code that runs in a sandbox or not at all."""
        return bool(self.untrusted & set(candidate.patches))

    def plan(self, shot: Shot) -> TrialPlan:
        """Return the full plan of a shot: exact argv, environment, deadlines, log file."""
        overlaid = [a for a in shot.assignments if a.kind != "config"]
        argv, extra = overlay(self.job.command, self.job.entry, self.job.python, overlaid, root=shot.worktree)
        # A trial can read its name: it must not tell a search from a verification (R-A9).
        identity = f"t-{secrets.token_hex(5)}"
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        cache = self.repo.state_dir / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        return TrialPlan(
            id=identity,
            run=self.run,
            number=shot.number,
            candidate=shot.candidate,
            commit=shot.commit,
            role=shot.role,
            block=shot.block,
            worktree=shot.worktree,
            original_root=self.repo.root,
            entry=self.job.entry,
            module="-m" in self.job.command and self.job.entry not in self.job.command,
            argv=argv,
            environment=_merged(self.job.environment, extra),
            world_size=self.job.world_size,
            mode=shot.mode,
            warmup_steps=shot.window.warmup_steps,
            timed_steps=shot.window.timed_steps,
            memory_bytes=None if shot.mode == "replay" else self.job.memory_bytes,  # float64 needs twice as much
            perturb=shot.perturb,
            deadlines=self.deadlines,
            log=logs / f"{identity}.log",
            cache_dir=cache,
            sandbox=self.job.sandbox,
            untrusted=self.is_untrusted(shot.candidate),
            dump=shot.dump,
            check_step=shot.check_step,
            sections=shot.sections,
            out=shot.out,
            state_map=layouts(shot.assignments, self.job.parameters),
        )

    def execute(self, plan: TrialPlan, on_progress: OnProgress | None = None) -> Execution:
        """Run a plan to its end; KeyboardInterrupt ends the process tree first and is raised again.

        What it wrote into its own sources, or into installed packages where no sandbox keeps it off, is a violation.
        """
        tracked = self.repo.entries(plan.commit).keys()
        watch = Watch.begin(plan.worktree, tracked, self._packages(plan))
        execution = run_trial(plan, self.engine, on_progress=on_progress)
        return replace(execution, violations=(*execution.violations, *watch.violations()))

    def _packages(self, plan: TrialPlan) -> tuple[Path, ...]:
        """Return the folders of packages that this execution's code could write to; the baseline's own may do so."""
        if not plan.candidate.patches or (plan.sandbox != "off" and sandboxes.available().works):
            return ()
        return tuple(f for f in sandboxes.interpreter_folders(plan.argv) if f.name in INSTALLED)


def _merged(base: Sequence[tuple[str, str]], extra: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**dict(base), **dict(extra)}.items()))
