"""One run in progress: builds candidates, executes them, and writes every fact to the ledger before acting on it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infrarsi.commands.bench import Bench, OnProgress, Role, Shot, Window
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.replays import Replays
from infrarsi.commands.state import RunState, Tried, _fold
from infrarsi.commands.workspace import CommitReader, Workspace, editable_sources
from infrarsi.contract.configfile import set_key
from infrarsi.contract.data import data_signature, data_touched
from infrarsi.contract.invariants import check
from infrarsi.contract.ring import check_tree
from infrarsi.contract.statemap import CODE, layouts
from infrarsi.errors import ContractError, GitError
from infrarsi.ledger import Ledger
from infrarsi.propose.patches import SOURCE as CATALOGUE
from infrarsi.propose.patches import compose, is_trusted
from infrarsi.records import (
    NUMERICS_ORDER,
    Assignment,
    Calibration,
    Candidate,
    Knob,
    Numerics,
    Outcome,
    Patch,
    Trial,
    Violation,
)
from infrarsi.trial.environment import installed_names
from infrarsi.trial.execute import to_trial
from infrarsi.vcs.commits import build_candidate

FINALS_TRIALS = 24  # executions that verification and removal take, roughly
FIRST_GUESS_SECONDS = 10.0  # of one execution, before there was one: start-up of the ranks for the most part
CHECKS = "checks"  # below a run's folder: check steps that wait for their replay
KEEP_STEPS = ("calibration", "verify", "confirm", "ablation")


class Campaign:
    """The collaborators of one run, and the few operations that search and finals are made of."""

    def __init__(
        self,
        workspace: Workspace,
        calibration: Calibration,
        bench: Bench,
        ledger: Ledger,
        state: RunState,
        notify: Notify,
    ) -> None:
        self.workspace, self.calibration, self.bench = workspace, calibration, bench
        self.ledger, self.state, self.notify = ledger, state, notify
        self.knobs: Mapping[str, Knob] = {k.name: k for k in state.knobs}
        self.patches: Mapping[str, Patch] = {p.id: p for p in state.patches}
        bench.untrusted = frozenset(p.id for p in state.patches if not is_trusted(p))
        self.base: str = state.started["base_commit"]
        self.deadline: float | None = None
        self.replays = Replays(workspace, bench, self.window, notify)

    @property
    def window(self) -> Window:
        """The window of every trial: the user's, else doctor's."""
        options, noise = self.workspace.intent.search, self.calibration.noise
        return Window(options.warmup_steps or noise.warmup_steps, options.timed_steps or noise.timed_steps)

    def overdue(self) -> bool:
        """Return whether the whole run's time budget is used."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def reserve_seconds(self) -> float:
        """Return what the finals will need, by what an execution took so far in this run."""
        walls = [t.wall_seconds for t in self.state.trials if t.wall_seconds > 0]
        return FINALS_TRIALS * (sum(walls) / len(walls) if walls else FIRST_GUESS_SECONDS)

    def record(self, kind: str, body: Any) -> None:
        """Append one event, fold it into the state, tell the reader."""
        line = self.ledger.append(kind, body)
        _fold(self.state, line.kind, line.body)
        self.notify(Event(kind, body=line.body))

    def say(self, text: str) -> None:
        """Tell the reader what is going on, without a ledger line."""
        self.notify(Event("stage", text))

    def numerics(self, candidate: Candidate) -> Numerics:
        """Return the widest numerics class of a candidate's parts; the proposer's word counts for nothing else."""
        if self.workspace.promoted:
            # Checks stay anchored at the original baseline, so what was promoted since is part of every candidate.
            return self.workspace.contract.invariants.numerics
        classes = [self.knobs[s.knob].numerics for s in candidate.settings]
        classes += [self.patches[p].numerics for p in candidate.patches]
        return max(classes, key=NUMERICS_ORDER.index, default="bitwise")

    def assignments(self, candidate: Candidate) -> tuple[Assignment, ...]:
        """Return the overlay of a candidate: what is promoted already, its settings, its patches' state maps.

        The later wins.
        """
        merged = {(a.kind, a.target): a for a in self.workspace.intent.launch.assignments}
        for setting in candidate.settings:
            level = next(v for v in self.knobs[setting.knob].levels if v.label == setting.level)
            merged.update({(a.kind, a.target): a for a in level.assignments})
        for patch in candidate.patches:
            merged.update({(a.kind, a.target): a for a in self.patches[patch].state_map})
        return tuple(merged.values())

    def next_number(self) -> int:
        """Return a number that no candidate of this run has, refused ones included."""
        return max([*self.state.candidates, *(t.number for t in self.state.trials)], default=-1) + 1

    def build(self, candidate: Candidate, why: str, step: float | None = None, peak: float | None = None) -> Tried:
        """Return the candidate's commit on its branch, made if this run has none. GitError where parts conflict."""
        existing = self.state.tried(candidate)
        if existing is not None:
            return existing
        number = self.next_number()
        commit = self.base if candidate.is_baseline else self._commit(candidate, number)
        repo = self.workspace.repo
        repo.update_ref(f"refs/heads/infrarsi/{self.state.run}/{number}", commit)
        body = {
            "number": number,
            "candidate": candidate,
            "commit": commit,
            "tree": repo.tree_of(commit),
            "why": why,
            "predicted_step_seconds": step,
            "predicted_peak_bytes": peak,
        }
        self.record("candidate", body)
        return self.state.candidates[number]

    def _commit(self, candidate: Candidate, number: int) -> str:
        repo = self.workspace.repo
        chosen = [self.patches[p] for p in candidate.patches]
        message = f"infrarsi candidate {self.state.run}/{number}: {describe(candidate)}"
        diffs = [p.diff for p in chosen if p.source != CATALOGUE]
        commit = build_candidate(repo, self.base, diffs, {}, message)
        edits: dict[str, bytes | None] = dict(self._composed(commit, [p.id for p in chosen if p.source == CATALOGUE]))
        for assignment in self.assignments(candidate):
            if assignment.kind == "config":
                path, _, key = assignment.target.partition(":")
                before = edits.get(path) or repo.read_blob(commit, path)
                if before is None or assignment.value is None:
                    raise GitError(f"{path} has no key {key} to set", code="config-key")
                edits[path] = set_key(before.decode(), path, key, assignment.value).encode()
        return build_candidate(repo, self.base, diffs, edits, message) if edits else commit

    def _composed(self, commit: str, codemods: list[str]) -> dict[str, bytes]:
        """Run the codemods over the commit's sources: several edit neighbouring lines, and conflict as diffs."""
        if not codemods:
            return {}
        scope = self.workspace.contract.scope
        files = editable_sources(self.workspace.repo, commit, scope)
        after = compose(files, codemods, scope=scope)
        return {path: text.encode(errors="surrogateescape") for path, text in after.items() if text != files[path]}

    def violations(self, tried: Tried) -> tuple[Violation, ...]:
        """Ring 1: the candidate's tree against the base's, before anything runs."""
        repo, contract = self.workspace.repo, self.workspace.contract
        changes = repo.changes(self.base, tried.commit)
        before, after = CommitReader(repo, self.base), CommitReader(repo, tried.commit)
        installed = installed_names(self.bench.job.python)
        found = check_tree(contract, changes, before, after, installed=installed)
        try:
            layouts(self.assignments(tried.candidate), contract.invariants.parameters)
        except ContractError as error:
            found += (Violation("scope", CODE, f"{error.what}: {error.why}"),)
        return found

    @contextlib.contextmanager
    def checkout(self, tried: Tried) -> Iterator[Path]:
        """Check a candidate out for as long as it is on trial."""
        untrusted = self.bench.is_untrusted(tried.candidate)
        with self.bench.checkout(tried.commit, untrusted=untrusted) as path:
            yield path

    def shoot(
        self,
        tried: Tried,
        tree: Path,
        role: Role,
        *,
        block: int = 0,
        why: str = "",
        on_progress: OnProgress | None = None,
        dump: Path | None = None,
    ) -> Trial:
        """Execute a candidate once and record it, whatever happens; ^C voids the trial and is raised again.

        `dump`: where one secret check step of it is written for a replay.
        """
        shot = Shot(
            worktree=tree,
            commit=tried.commit,
            assignments=self.assignments(tried.candidate),
            window=self.window,
            role=role,
            number=tried.number,
            block=block,
            candidate=tried.candidate,
            dump=dump,
        )
        return self.execute(shot, self.calibration, why=why, on_progress=on_progress)

    def execute(
        self, shot: Shot, calibration: Calibration | None, *, why: str = "", on_progress: OnProgress | None = None
    ) -> Trial:
        """Execute a shot and record it as a trial. `calibration` None: the caller compares what it showed."""
        plan = self.bench.plan(shot)
        self.record("trial-started", {"id": plan.id, "number": shot.number, "role": shot.role, "block": shot.block})
        data = [d.name for d in self.workspace.contract.workload.data]
        before = data_signature(self.workspace.repo.root, data)
        execution = self.bench.execute(plan, on_progress)
        found: tuple[Violation, ...] = execution.violations
        found += data_touched(before, data_signature(self.workspace.repo.root, data))
        if execution.outcome.kind == "ok" and calibration is not None:
            numerics = self.numerics(shot.candidate)
            contract = self.workspace.contract
            found += check(contract, calibration, execution.steps, execution.ends, numerics=numerics)
        trial = to_trial(plan, execution, found, why=why)
        keep = trial.role in KEEP_STEPS or trial.outcome.kind == "rejected"
        trial = trial if keep else replace(trial, steps=(), ends=())
        self.record("trial", trial)
        return trial

    def dump_folder(self, stage: str, number: int) -> Path:
        """Return where the check steps of a candidate's verification are written, until they have been replayed."""
        return self.bench.folder / CHECKS / f"{stage}-{number}"

    def drop_dumps(self) -> None:
        """Remove check steps of candidates that were never examined: they lost, or a smaller one stands for them."""
        shutil.rmtree(self.bench.folder / CHECKS, ignore_errors=True)

    def refuse(
        self, number: int, candidate: Candidate, outcome: Outcome, violations: tuple[Violation, ...] = ()
    ) -> Trial:
        """Record a candidate that cost no trial second: it conflicts, or ring 1 refused it (R-F1)."""
        trial = Trial(
            id=f"refused-{number}",
            run=self.state.run,
            number=number,
            candidate=candidate,
            commit="",
            role="search",
            argv=(),
            environment=(),
            engine="none",
            block=0,
            outcome=outcome,
            measurement=None,
            violations=violations,
            wall_seconds=0.0,
            device_seconds=0.0,
            pressure=0.0,
        )
        self.record("trial", trial)
        return trial


def describe(candidate: Candidate) -> str:
    """Return a candidate in one line: `micro_batch=16 x 2, +sdpa`."""
    parts = [f"{s.knob}={s.level}" for s in candidate.settings] + [f"+{p}" for p in candidate.patches]
    return ", ".join(parts) or "baseline"
