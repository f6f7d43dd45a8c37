"""`run`: search settings and patches together, verify the finalists, drop what does not help, seal the evidence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import infrarsi
from infrarsi.codec import decode
from infrarsi.commands import doctor as doctoring
from infrarsi.commands.campaign import Campaign
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.finals import finals
from infrarsi.commands.fingerprint import fingerprint
from infrarsi.commands.hunt import hunt
from infrarsi.commands.seal import seal_run
from infrarsi.commands.state import (
    RunState,
    doctor_ledger,
    latest_calibration,
    list_runs,
    new_run_id,
    open_run,
    replay,
    runs_folder,
)
from infrarsi.commands.workspace import CommitReader, Workspace, editable_sources, exclusive, load
from infrarsi.contract.flags import Flag, read_flags
from infrarsi.errors import ContractError, Interrupted, UsageError
from infrarsi.ledger import Ledger
from infrarsi.records import NUMERICS_ORDER, Calibration, Hardware, Knob, Patch, Verdict
from infrarsi.search.interface import Search
from infrarsi.trial.engine import Engine

FINALS_TRIALS = 24  # executions kept in reserve for verification and removal when a time budget is set


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
    with exclusive(workspace.repo, "run"):
        for warning in workspace.warnings:
            notify(Event("warning", warning))
        machine = fingerprint(workspace.intent.launch.python, workspace.repo.root)
        unfinished = None if options.fresh else _unfinished(workspace, machine.hardware)
        calibration = latest_calibration(workspace.repo, workspace.digest, machine.hardware)
        if calibration is None or calibration.commit != workspace.head:
            notify(Event("stage", "this machine is not calibrated for this baseline yet: doctor first"))
            calibration = doctoring.examine(workspace, engine, notify, repeats=doctoring.DEFAULT_REPEATS).calibration
        campaign = _resume(workspace, calibration, engine, notify, unfinished)
        resumed = campaign is not None
        if campaign is None:
            campaign = _begin(workspace, calibration, engine, notify, options)
        try:
            return _carry_out(campaign, options, resumed)
        except KeyboardInterrupt:
            done = len(campaign.state.trials)
            raise Interrupted(
                f"run {campaign.state.run} stopped",
                why=f"{done} finished trials are kept; the one in flight is void",
                hint="git infrarsi run resumes it; git infrarsi run --fresh starts another",
            ) from None


def _carry_out(campaign: Campaign, options: RunOptions, resumed: bool) -> RunResult:
    state, workspace = campaign.state, campaign.workspace
    began = time.monotonic()
    search = make_search(campaign, options.seed)
    budget = workspace.contract.budget
    trials = options.trials or budget.trials
    reason = hunt(campaign, search, trials=trials, deadline=_deadline(campaign, options.seconds or budget.seconds))
    verdict = state.final or finals(campaign, _finalists(campaign, search))
    campaign.record("effects", {"effects": list(search.effects())})
    devices = sum(t.device_seconds for t in state.trials)
    ended = {"reason": reason, "wall_seconds": time.monotonic() - began, "device_seconds": devices}
    campaign.record("run-ended", ended)
    evidence = seal_run(workspace, state.run, campaign.ledger, campaign.calibration)
    return RunResult(state.run, verdict, evidence, reason, resumed, workspace.warnings)


def _deadline(campaign: Campaign, seconds: float | None) -> float | None:
    """Return when the search must stop so that the finals still fit; earlier sittings count (R-E2)."""
    if seconds is None:
        return None
    trials = [t.wall_seconds for t in campaign.state.trials if t.wall_seconds > 0]
    reserve = FINALS_TRIALS * (sum(trials) / len(trials) if trials else 10 * campaign.calibration.step_seconds)
    return time.monotonic() + max(0.0, seconds - campaign.state.busy_seconds - min(reserve, seconds / 2))


def make_search(campaign: Campaign, seed: int) -> Search:
    """Return the search over this run's knobs and patches, anchored at the calibrated baseline."""
    from infrarsi.search.space import Space
    from infrarsi.search.study import OptunaSearch

    calibration = campaign.calibration
    return OptunaSearch(
        Space(campaign.state.knobs, campaign.state.patches),
        baseline_step_seconds=calibration.step_seconds,
        baseline_peak_bytes=calibration.peak_allocated_bytes,
        memory_budget=campaign.workspace.contract.budget.memory_bytes,
        noise=calibration.noise,
        seed=campaign.state.started.get("seed", seed),
    )


def _finalists(campaign: Campaign, search: Search) -> tuple:  # type: ignore[type-arg]
    """Return the candidates worth verifying: measured clean, and faster than the baseline by more than nothing."""
    if campaign.state.finalists:
        return tuple(campaign.state.candidates[n].candidate for n in campaign.state.finalists)
    chosen = search.finalists(campaign.workspace.intent.search.finalists)
    return tuple(c for c in chosen if not c.is_baseline)


def _unfinished(workspace: Workspace, hardware: Hardware) -> str | None:
    """Return the newest run when it is unfinished; refuse one that began under something else (R-E3)."""
    runs = list_runs(workspace.repo)
    if not runs:
        return None
    name, _, state = open_run(workspace.repo, runs[-1])
    if state.ended is not None or not state.started:
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
            f"run {name} is unfinished and cannot be resumed here",
            why=f"{' and '.join(differs)} changed since it began",
            hint="git infrarsi run --fresh starts another run (the unfinished one is kept)",
            code="resume-mismatch",
        )
    return name


def _resume(
    workspace: Workspace, calibration: Calibration, engine: Engine, notify: Notify, name: str | None
) -> Campaign | None:
    if name is None:
        return None
    folder = runs_folder(workspace.repo) / name
    ledger = Ledger(folder / "ledger.jsonl")
    state = replay(name, list(ledger.replay()))
    lost = sorted(state.in_flight)
    state.in_flight.clear()
    bench = doctoring.make_bench(workspace, engine, name, folder)
    campaign = Campaign(workspace, calibration, bench, ledger, state, notify)
    notify(Event("run-started", body=state.started))
    campaign.record("run-resumed", {"reason": "an earlier sitting ended before the run did", "interrupted": lost})
    return campaign


def _begin(
    workspace: Workspace, calibration: Calibration, engine: Engine, notify: Notify, options: RunOptions
) -> Campaign:
    knobs, patches, refused = options_to_try(workspace, calibration, options.patches)
    if not knobs and not patches:
        raise UsageError(
            "there is nothing to try",
            why="no knob is in infrarsi.toml, and no codemod of the catalogue applies to the editable files",
            hint="add [[knobs]] to infrarsi.toml, or give a patch: git infrarsi run --patch FILE",
        )
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
        "calibration_digest": doctor_ledger(workspace.repo).of_kind("calibration")[-1].hash,
        "hardware": calibration.hardware,
        "knobs": list(knobs),
        "patches": list(patches),
        "launch": list(workspace.intent.launch.assignments),
        "budget": workspace.contract.budget,
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
    for patch, reason in refused:
        body = {"patch": patch.id, "title": patch.title, "source": patch.source, "reason": reason}
        campaign.record("patch-refused", body)
    return campaign


def options_to_try(
    workspace: Workspace, calibration: Calibration, files: Sequence[Path]
) -> tuple[tuple[Knob, ...], tuple[Patch, ...], list[tuple[Patch, str]]]:
    """Return the knobs of infrarsi.toml, the patches that apply, and the patches that were refused with the reason."""
    from infrarsi.propose.patches import propose_patches
    from infrarsi.propose.patchfile import read_patch_files

    repo, scope = workspace.repo, workspace.contract.scope
    numerics = workspace.contract.invariants.numerics
    limit = NUMERICS_ORDER.index(numerics)
    knobs = tuple(k for k in workspace.intent.knobs if NUMERICS_ORDER.index(k.numerics) <= limit)
    require_known_flags(knobs, read_flags(repo.root, workspace.intent.entry), workspace.intent.entry)
    sources = editable_sources(repo, workspace.head, scope)
    proposed = list(propose_patches(sources, scope=scope, allowed=numerics, hardware=calibration.hardware))
    proposed += [replace(p, numerics=numerics) for p in read_patch_files(files)]
    good, refused = [], []
    for patch in proposed:
        reason = why_not(workspace, patch)
        if reason:
            refused.append((patch, reason))
        else:
            good.append(patch)
    return knobs, tuple(good), refused


def require_known_flags(knobs: Sequence[Knob], flags: Sequence[Flag], entry: str) -> None:
    """Refuse a knob whose flag the script does not have: argparse would only say so after start-up, trial by trial."""
    import difflib

    known = {f.name for f in flags}
    if not known:
        return
    for knob in knobs:
        for target in {a.target for level in knob.levels for a in level.assignments if a.kind == "flag"}:
            if target not in known:
                near = difflib.get_close_matches(target, known, 1)
                raise UsageError(
                    f"knob {knob.name}: {entry} has no flag {target}",
                    why=f"its flags are {', '.join(sorted(known)[:12])}…",
                    hint=f"did you mean {near[0]}? edit [[knobs]] in infrarsi.toml" if near else "edit infrarsi.toml",
                    code="unknown-flag",
                )


def why_not(workspace: Workspace, patch: Patch) -> str:
    """Return why a patch cannot be tried, before any trial second is spent on it (R-F1); empty when it can."""
    from infrarsi.contract.scope import check_changes
    from infrarsi.contract.static import check_source
    from infrarsi.errors import InfrarsiError
    from infrarsi.vcs.commits import build_candidate

    repo, contract = workspace.repo, workspace.contract
    limit = NUMERICS_ORDER.index(contract.invariants.numerics)
    if NUMERICS_ORDER.index(patch.numerics) > limit:
        return f"it is {patch.numerics}; the contract allows {contract.invariants.numerics}"
    try:
        commit = build_candidate(repo, workspace.head, [patch.diff], {}, f"check {patch.id}")
    except InfrarsiError as error:
        return f"{error.what}: {error.why}"
    changes = repo.changes(workspace.head, commit)
    before, after = CommitReader(repo, workspace.head), CommitReader(repo, commit)
    found = list(check_changes(contract.scope, contract.locked, changes, before, after))
    for change in changes:
        if change.path.endswith(".py") and change.status != "D":
            found += check_source(change.path, before.read(change.path), after.read(change.path) or b"")
    return found[0].message if found else ("" if changes else "it changes nothing")
