"""Where the red-team suite's cases are tried: a repository of its own per baseline, under a real contract.

A bed is what a user has after `init`, `git commit` and `doctor`, on a small model with a short window; candidates are
built, checked and executed by the same campaign as in a run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from infrarsi.commands import doctor as doctoring
from infrarsi.commands import init as initialising
from infrarsi.commands.bench import Shot, Window
from infrarsi.commands.campaign import Campaign
from infrarsi.commands.demo import TRAINERS
from infrarsi.commands.events import Event, Notify, silent
from infrarsi.commands.observe import require_training
from infrarsi.commands.state import RunState, new_run_id
from infrarsi.commands.workspace import CommitReader, Workspace, exclusive, load
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.data import digest_data
from infrarsi.contract.envelopes import DEFAULT_CAPS, calibrate, trace
from infrarsi.contract.intent import Intent, Launch, SearchOptions
from infrarsi.contract.scope import lock_digests
from infrarsi.contract.statemap import parse
from infrarsi.errors import TrialError
from infrarsi.ledger import Ledger
from infrarsi.records import (
    Assignment,
    Budget,
    Calibration,
    Candidate,
    Contract,
    Hardware,
    Invariants,
    Knob,
    Level,
    Noise,
    Patch,
    Scope,
    Setting,
    Workload,
)
from infrarsi.redteam.case import OUTSIDE, VARIANTS, Case, Trainer
from infrarsi.redteam.patch import diff_of
from infrarsi.trial.engine import Engine
from infrarsi.trial.plan import Deadlines
from infrarsi.vcs.create import commit_all, create_repository
from infrarsi.vcs.door import Repository

# Small enough that a trial is little more than the start of its processes; large enough that a step takes measurable
# time and every kind of parameter is there.
FLAGS: Mapping[Trainer, tuple[str, ...]] = {
    "dense": ("--n_layer=4", "--n_head=4", "--n_embd=64", "--block_size=32", "--batch_size=2", "--accum=4"),
    "moe": ("--n_layer=2", "--n_head=4", "--n_embd=64", "--block_size=32", "--batch_size=2", "--accum=4"),
}
STEPS = 1500  # a program that the probe lost sight of ends by itself; long starts are looked into for many steps
SEARCH = SearchOptions(warmup_steps=2, timed_steps=8, finalists=1, proposers=())
DEADLINES = Deadlines(startup_seconds=180.0, progress_seconds=60.0, total_seconds=300.0)
REPEATS = 2
EDITABLE, LOCKED = ("*.py",), ("data/**", "train.py::get_lr")
DATA, HELD_OUT = ("data/train.bin", "data/val.bin"), "data/val.bin"
SEED = 1337
Depth = Literal["none", "light", "full"]


@dataclass(frozen=True)
class Ground:
    """Which baseline a case is tried on."""

    trainer: Trainer
    variant: str
    seed: int
    ranks: int


class Bed:
    """One repository with its contract and its campaign. `calibrated`: trials can be judged, not only trees."""

    def __init__(self, ground: Ground, campaign: Campaign, outside: Path, *, calibrated: bool) -> None:
        self.ground, self.campaign, self.outside, self.calibrated = ground, campaign, outside, calibrated
        repo, base = campaign.workspace.repo, campaign.base
        blobs = {path: repo.read_blob(base, path) for path in repo.tracked_files(base)}
        self.sources = {path: blob.decode() for path, blob in blobs.items() if blob is not None}

    def candidate(self, case: Case) -> Candidate:
        """Register a case's patch and settings with the campaign, and return the candidate that they make."""
        campaign = self.campaign
        settings: tuple[Setting, ...] = ()
        patches: tuple[str, ...] = ()
        if case.changes_tree:
            diff = diff_of(case, self.sources, str(self.outside))
            state_map = parse(case.state_map)
            patch = Patch(case.name, case.what, diff, "selftest", numerics=case.numerics, state_map=state_map)
            campaign.patches = {**campaign.patches, patch.id: patch}
            patches = (patch.id,)
        if case.assignments:
            levels = (Level("baseline"), Level("changed", case.assignments))
            campaign.knobs = {**campaign.knobs, case.name: Knob(case.name, "flag", levels, numerics=case.numerics)}
            settings = (Setting(case.name, "changed"),)
        return Candidate(settings, patches)

    def canaries(self, case: Case) -> dict[str, bytes | None]:
        """Return the bytes of each file that the case must leave as it is, None where there is none."""
        return {name: _bytes(self._place(name)) for name in case.canaries}

    def touched(self, before: Mapping[str, bytes | None]) -> tuple[str, ...]:
        """Return the files that are not what they were, and put them back, for the cases that follow."""
        changed = sorted(name for name, content in before.items() if _bytes(self._place(name)) != content)
        for name in changed:
            content = before[name]
            if content is None:
                self._place(name).unlink()
            else:
                self._place(name).write_bytes(content)
        return tuple(changed)

    def _place(self, name: str) -> Path:
        return self.campaign.workspace.repo.root / name.replace(OUTSIDE, str(self.outside))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def make_bed(folder: Path, ground: Ground, engine: Engine, notify: Notify, *, depth: Depth) -> Bed:
    """Make a repository in `folder`, lock its contract and, where trials are to be judged, calibrate it.

    `depth`: `full` is doctor's calibration; `light` one run of the baseline and the narrowest envelopes that there are;
    `none` is for ring 1 alone. TrialError where the trainer does not train on this machine.
    """
    root, outside = folder / "repository", folder / "outside"
    outside.mkdir(parents=True)
    shutil.copytree(TRAINERS / ground.trainer, root, ignore=shutil.ignore_patterns("__pycache__"))
    create_repository(root)
    _prepare(root)
    intent = intent_of(ground)
    (root / intents.FILE).write_text(intents.render(intent))
    commit_all(root, f"The shipped {ground.trainer} trainer")
    if depth != "none":
        notify(Event("stage", f"{describe(ground)}: locking the contract"))
        initialising.init(root, initialising.InitOptions(), engine, silent)
    else:
        repo = Repository.discover(root)
        (root / locks.FILE).write_text(locks.render(paper_contract(repo, repo.head(), intent)))
    commit_all(root, "Lock the training contract")
    workspace = load(root)
    calibration = no_calibration(workspace)
    if depth != "none":
        notify(Event("stage", f"{describe(ground)}: calibrating this machine"))
        with exclusive(workspace.repo, "selftest"):
            if depth == "full":
                calibration = doctoring.examine(workspace, engine, silent, repeats=REPEATS).calibration
            else:
                calibration = _light(workspace, calibration, engine)
    return Bed(ground, _campaign(workspace, calibration, engine), outside, calibrated=depth != "none")


def _light(workspace: Workspace, nothing: Calibration, engine: Engine) -> Calibration:
    """Run the baseline once; with no honest change to widen them, the envelopes stay at their floors."""
    run = f"light-{new_run_id()}"
    bench = doctoring.make_bench(workspace, engine, run, workspace.repo.state_dir / "doctor" / run)
    bench.deadlines = DEADLINES
    window = Window(SEARCH.warmup_steps, SEARCH.timed_steps)
    with bench.checkout(workspace.head) as tree:
        execution = bench.execute(bench.plan(Shot(tree, workspace.head, (), window, "calibration")))
    require_training(execution, "the baseline does not train on this machine")
    contract = workspace.contract
    reference = trace(execution.steps, contract.workload.world_size)
    caps, level = contract.invariants.caps, contract.workload.data_level
    measured = execution.measurement
    return replace(
        nothing,
        trace=reference,
        envelopes=tuple(calibrate(cap.numerics, [reference], {}, cap, data_level=level) for cap in caps),
        step_seconds=measured.mean_step_seconds if measured else nothing.step_seconds,
    )


def describe(ground: Ground) -> str:
    """Return a baseline in a few words."""
    variant = f" with {ground.variant}" if ground.variant else ""
    return f"{ground.trainer}{variant}, seed {ground.seed}"


def _prepare(root: Path) -> None:
    command = [sys.executable, "prepare.py", "--megabytes=1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        why = done.stderr.strip()[-300:]
        raise TrialError("the trainer's data could not be prepared", why=why, hint="is numpy installed?")


def intent_of(ground: Ground) -> Intent:
    """Return the contract's intent: the trainer's own command, one locked function, bf16 allowed where asked for."""
    launcher = ("torchrun", "--standalone", f"--nproc_per_node={ground.ranks}") if ground.ranks > 1 else ("python3",)
    flags = (*FLAGS[ground.trainer], f"--steps={STEPS}", f"--seed={SEED + ground.seed}", *VARIANTS[ground.variant])
    micro_batch = Knob(
        "micro_batch",
        "flag",
        (
            Level("2 x 4"),
            Level("4 x 2", (Assignment("flag", "--batch_size", 4), Assignment("flag", "--accum", 2))),
        ),
        ordinal=True,
    )
    # Balance over a micro-batch, and dropout drawn per micro-batch, make its size part of the mathematics.
    plain = ground.trainer == "dense" and not ground.variant
    return Intent(
        goal="red-team suite",
        numerics="reduced",
        data_level="exact",
        require_signature=False,
        entry="train.py",
        command=(*launcher, "train.py", *flags),
        environment=(("OMP_NUM_THREADS", "1"),),
        world_size=ground.ranks,
        data=DATA,
        setup=(),
        held_out=HELD_OUT,
        scope=Scope(EDITABLE, LOCKED),
        budget=Budget(),
        launch=Launch(sys.executable, "auto", ()),
        search=SEARCH,
        knobs=(micro_batch,) if plain else (),
    )


def paper_contract(repo: Repository, head: str, intent: Intent) -> Contract:
    """Return a contract without any observed fact: enough for ring 1, which compares trees, and for nothing else."""
    return Contract(
        goal=intent.goal,
        base_commit=head,
        workload=Workload(
            entry=intent.entry,
            command=intent.command,
            environment=intent.environment,
            world_size=intent.world_size,
            rows_per_step=0,
            tokens_per_step=0,
            data_level=intent.data_level,
            data=digest_data(repo.root, intent.data),
            held_out=intent.held_out,
        ),
        scope=intent.scope,
        locked=lock_digests(intent.scope, repo.tracked_files(head), CommitReader(repo, head)),
        invariants=Invariants((), (), 1, 1, intent.numerics, DEFAULT_CAPS),
        budget=intent.budget,
        intent_digest=intents.digest_of(intent),
    )


def no_calibration(workspace: Workspace) -> Calibration:
    """Return a calibration without a trace: whatever is judged under it is refused."""
    hardware = Hardware("", (), 0, 0, (), 0, "", "", "", "")
    noise = Noise(0.0, 0.0, 0.0, 0.0, SEARCH.warmup_steps, SEARCH.timed_steps, 0.0, 0)
    return Calibration(
        contract_digest=workspace.digest,
        commit=workspace.head,
        hardware=hardware,
        noise=noise,
        envelopes=(),
        trace=(),
        step_seconds=1.0,
        tokens_per_second=1.0,
        peak_allocated_bytes=0,
        peak_reserved_bytes=0,
        phases=(),
        hot_lines=(),
        flops_per_step=None,
        peak_flops=(),
        mfu=None,
    )


def _campaign(workspace: Workspace, calibration: Calibration, engine: Engine) -> Campaign:
    run = new_run_id()
    folder = workspace.repo.state_dir / "runs" / run
    ledger = Ledger(folder / "ledger.jsonl")
    state = RunState(run)
    state.started = ledger.append("run-started", {"run": run, "base_commit": workspace.head}).body
    bench = doctoring.make_bench(workspace, engine, run, folder)
    bench.deadlines = DEADLINES
    return Campaign(workspace, calibration, bench, ledger, state, silent)
