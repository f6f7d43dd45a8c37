"""`run`: search settings and patches together, verify the finalists, drop what does not help, seal the evidence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import infrarsi
from infrarsi.codec import decode
from infrarsi.commands import doctor as doctoring
from infrarsi.commands.campaign import Campaign
from infrarsi.commands.choices import Choices, choices
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.finals import finals
from infrarsi.commands.fingerprint import fingerprint
from infrarsi.commands.hunt import hunt
from infrarsi.commands.interrupts import interrupts
from infrarsi.commands.seal import seal_run
from infrarsi.commands.state import (
    RunState,
    calibration_by_digest,
    latest_calibration,
    list_runs,
    new_run_id,
    open_run,
    replay,
    runs_folder,
)
from infrarsi.commands.vetting import sound_patches, vet_patches
from infrarsi.commands.workspace import Workspace, exclusive, load, require_data
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.errors import ContractError, GitError, Interrupted
from infrarsi.ledger import Ledger
from infrarsi.records import Budget, Calibration, Candidate, Hardware, Verdict
from infrarsi.search.interface import Search
from infrarsi.trial.engine import Engine
from infrarsi.vcs.door import Repository


@dataclass(frozen=True)
class RunOptions:
    """What the command line may say; None takes the contract's budget."""

    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    patches: tuple[Path, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class RunResult:
    """The run's id, the verdict that counts (None: no finalist), the sealed evidence and why the search ended."""

    run: str
    verdict: Verdict | None
    evidence: str
    reason: str
    resumed: bool
    warnings: tuple[str, ...] = ()


def run(start: Path, options: RunOptions, engine: Engine, notify: Notify) -> RunResult:
    """Search and verify; resumes an unfinished run of the same contract, baseline and hardware.

    Raises Interrupted on ^C, with the command that resumes.
    """
    workspace = load(start)
    with exclusive(workspace.repo, "run"), _resumable(workspace.repo, options.fresh):
        for warning in workspace.warnings:
            notify(Event("warning", warning))
        machine = fingerprint(workspace.intent.launch.python, workspace.repo.root)
        unfinished = None if options.fresh else _unfinished(workspace, machine.hardware)
        require_data(workspace)
        campaign = _resume(workspace, engine, notify, unfinished)
        resumed = campaign is not None
        if resumed and options.patches:
            notify(Event("warning", "a resumed run keeps its own patches; to try --patch: git infrarsi run --fresh"))
        if campaign is None:
            chosen = choices(workspace, machine.hardware, options.patches)
            calibrated = latest_calibration(workspace.repo, workspace.digest, machine.hardware)
            if calibrated is None or not _fits(calibrated[1], workspace):
                notify(Event("stage", "this machine is not calibrated for this baseline yet: doctor first"))
                result = doctoring.examine(workspace, engine, notify, repeats=doctoring.DEFAULT_REPEATS)
                calibrated = (result.calibration_digest, result.calibration)
            campaign = _begin(workspace, calibrated, chosen, engine, notify, options)
        return _carry_out(campaign, options, resumed)


@contextlib.contextmanager
def _resumable(repo: Repository, fresh: bool) -> Iterator[None]:
    """Turn ^C into Interrupted with the command that resumes, from the run's first ledger line to its sealing.

    Before that line (doctor) there is nothing to resume, and KeyboardInterrupt goes on as it is.
    """
    others = set(list_runs(repo)) if fresh else set()
    try:
        with interrupts():
            yield
    except KeyboardInterrupt:
        stopped = _newest_unfinished(repo)
        if stopped is None or stopped.run in others:
            raise
        raise Interrupted(
            f"run {stopped.run} stopped",
            why=f"{len(stopped.trials)} finished trials are kept; the one in flight is void",
            hint="git infrarsi run resumes it; git infrarsi run --fresh starts another",
        ) from None


def _fits(calibration: Calibration, workspace: Workspace) -> bool:
    """Return whether a calibration is of this baseline, and covers every step that a trial will make.

    Steps beyond its trace would go unchecked.
    """
    options, noise = workspace.intent.search, calibration.noise
    steps = (options.warmup_steps or noise.warmup_steps) + (options.timed_steps or noise.timed_steps)
    return steps <= noise.warmup_steps + noise.timed_steps and _same_baseline(workspace, calibration.commit)


def _same_baseline(workspace: Workspace, commit: str) -> bool:
    """Return whether HEAD trains what `commit` trained: equal but for knobs, search options and the two files."""
    repo = workspace.repo
    if commit == workspace.head:
        return True
    try:
        changed = {c.path for c in repo.changes(commit, workspace.head)} - {intents.FILE, locks.FILE}
        blob = repo.read_blob(commit, intents.FILE)
    except GitError:  # The calibrated commit is gone (an amended or collected one).
        return False
    return not changed and blob is not None and intents.parse(blob.decode()).launch == workspace.intent.launch


def _carry_out(campaign: Campaign, options: RunOptions, resumed: bool) -> RunResult:
    state, workspace = campaign.state, campaign.workspace
    began = time.monotonic()
    vet_patches(campaign)
    search = make_search(campaign, options.seed)
    budget = decode(Budget, state.started["budget"])
    trials, seconds = options.trials or budget.trials, options.seconds or budget.seconds
    earlier = state.busy_seconds
    if seconds is not None:  # earlier sittings count: the budget is not reset by an interruption (R-E2)
        campaign.deadline = began + max(0.0, seconds - earlier)
    reason = hunt(campaign, search, trials=trials)
    verdict = state.final or finals(campaign, _finalists(campaign, search))
    if state.ended is None:
        devices = sum(t.device_seconds for t in state.trials)
        ended = {"reason": reason, "wall_seconds": earlier + time.monotonic() - began, "device_seconds": devices}
        campaign.record("run-ended", ended)
    evidence = seal_run(workspace, state.run, campaign.ledger, campaign.calibration)
    return RunResult(state.run, verdict, evidence, reason, resumed, workspace.warnings)


def make_search(campaign: Campaign, seed: int) -> Search:
    """Return the search over this run's knobs and patches, anchored at the calibrated baseline."""
    from infrarsi.search.projection import FILE
    from infrarsi.search.space import Space
    from infrarsi.search.study import OptunaSearch

    calibration = campaign.calibration
    return OptunaSearch(
        Space(campaign.state.knobs, sound_patches(campaign)),
        baseline_step_seconds=calibration.step_seconds,
        baseline_peak_bytes=calibration.peak_allocated_bytes,
        memory_budget=campaign.workspace.contract.budget.memory_bytes,
        noise=calibration.noise,
        seed=campaign.state.started.get("seed", seed),
        memory_terms=dict(calibration.memory_terms),
        journal=campaign.bench.folder / FILE,
    )


def _finalists(campaign: Campaign, search: Search) -> tuple[Candidate, ...]:
    """Return the candidates to verify, best belief first: the ones chosen before an interruption, else the search's."""
    if campaign.state.finalists:
        return tuple(campaign.state.candidates[n].candidate for n in campaign.state.finalists)
    chosen = search.finalists(campaign.workspace.intent.search.finalists)
    return tuple(c for c in chosen if not c.is_baseline)


def _newest_unfinished(repo: Repository) -> RunState | None:
    """Return the newest run when it has begun and is not both ended and sealed."""
    runs = list_runs(repo)
    if not runs:
        return None
    name, _, state = open_run(repo, runs[-1])
    sealed = f"refs/infrarsi/runs/{name}" in repo.for_each_ref("refs/infrarsi/runs")
    return None if (state.ended is not None and sealed) or not state.started else state


def _unfinished(workspace: Workspace, hardware: Hardware) -> str | None:
    """Return the newest run when it is unfinished; refuse one that began under something else (R-E3)."""
    state = _newest_unfinished(workspace.repo)
    if state is None:
        return None
    differs = []
    if state.started["contract_digest"] != workspace.digest:
        differs.append("the contract")
    if state.started["base_commit"] != workspace.head:
        differs.append("the baseline commit")
    if decode(Hardware, state.started["hardware"]) != hardware:
        differs.append("the hardware")
    if differs:
        raise ContractError(
            f"run {state.run} is unfinished and cannot be resumed here",
            why=f"{' and '.join(differs)} changed since it began",
            hint="git infrarsi run --fresh starts another run (the unfinished one is kept)",
            code="resume-mismatch",
        )
    return state.run


def _resume(workspace: Workspace, engine: Engine, notify: Notify, name: str | None) -> Campaign | None:
    """Open an unfinished run under the calibration that it began with: floor, window and envelopes stay the same."""
    if name is None:
        return None
    folder = runs_folder(workspace.repo) / name
    ledger = Ledger(folder / "ledger.jsonl")
    state = replay(name, list(ledger.replay()))
    calibration = calibration_by_digest(workspace.repo, state.started["calibration_digest"])
    if calibration is None:
        raise ContractError(
            f"run {name} cannot be resumed",
            why="the calibration that it began with is gone from this machine",
            hint="git infrarsi run --fresh",
        )
    lost = sorted(state.in_flight)
    state.in_flight.clear()
    bench = doctoring.make_bench(workspace, engine, name, folder)
    campaign = Campaign(workspace, calibration, bench, ledger, state, notify)
    notify(Event("run-started", body=state.started))
    campaign.record("run-resumed", {"reason": "an earlier sitting ended before the run did", "interrupted": lost})
    return campaign


def _begin(
    workspace: Workspace,
    calibrated: tuple[str, Calibration],
    chosen: Choices,
    engine: Engine,
    notify: Notify,
    options: RunOptions,
) -> Campaign:
    calibration_digest, calibration = calibrated
    budget = workspace.contract.budget
    run_id = new_run_id()
    folder = runs_folder(workspace.repo) / run_id
    ledger = Ledger(folder / "ledger.jsonl")
    state = RunState(run_id)
    started = {
        "run": run_id,
        "goal": workspace.contract.goal,
        "contract_digest": workspace.digest,
        "base_commit": workspace.head,
        "original_commit": workspace.contract.base_commit,
        "calibration_digest": calibration_digest,
        "hardware": calibration.hardware,
        "knobs": list(chosen.knobs),
        "patches": list(chosen.patches),
        "launch": list(workspace.intent.launch.assignments),
        # In force for this run, so that a resumed one keeps to what the command line said.
        "budget": replace(budget, trials=options.trials or budget.trials, seconds=options.seconds or budget.seconds),
        "floor": calibration.noise.floor,
        "baseline_step_seconds": calibration.step_seconds,
        "baseline_peak_bytes": calibration.peak_allocated_bytes,
        "seed": options.seed,
        "version": infrarsi.__version__,
    }
    line = ledger.append("run-started", started)
    state.started = line.body
    notify(Event("run-started", body=line.body))
    bench = doctoring.make_bench(workspace, engine, run_id, folder)
    campaign = Campaign(workspace, calibration, bench, ledger, state, notify)
    for patch, reason in chosen.refused:
        body = {"patch": patch.id, "title": patch.title, "source": patch.source, "reason": reason}
        campaign.record("patch-refused", body)
    return campaign
