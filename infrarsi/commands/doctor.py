"""`doctor`: what this machine is, how noisy, where the baseline's time goes, how far honest changes move it."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.bench import Bench, Job, Shot, Window
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.fingerprint import Machine, fingerprint, resolve_python
from infrarsi.commands.observe import require_training
from infrarsi.commands.state import doctor_ledger, new_run_id
from infrarsi.commands.workspace import Workspace, exclusive, load, require_data
from infrarsi.contract.envelopes import beyond_cap, calibrate, trace
from infrarsi.contract.intent import SearchOptions
from infrarsi.contract.invariants import check
from infrarsi.errors import ContractError, TrialError
from infrarsi.records import NUMERICS_ORDER, Assignment, Calibration, Contract, Envelope, Noise, Numerics, TraceStep
from infrarsi.trial.engine import Engine, Execution

PILOT = Window(warmup_steps=2, timed_steps=4)
WINDOW_SECONDS = 3.0
MIN_TIMED_STEPS, MAX_TIMED_STEPS = 8, 60
WARMUP_STEPS = 3
DEFAULT_REPEATS = 4


@dataclass(frozen=True)
class DoctorResult:
    """The calibration, its hash in the ledger, and what could not be calibrated."""

    calibration: Calibration
    calibration_digest: str
    notes: tuple[str, ...]


def doctor(start: Path, engine: Engine, notify: Notify, *, repeats: int = DEFAULT_REPEATS) -> DoctorResult:
    """Calibrate this machine for the contract at `start`.

    Raises TrialError where the baseline does not train here, ContractError where it breaks its own contract.
    """
    workspace = load(start)
    with exclusive(workspace.repo, "doctor"):
        require_data(workspace)
        return examine(workspace, engine, notify, repeats=repeats)


def make_bench(workspace: Workspace, engine: Engine, run: str, folder: Path) -> Bench:
    """Return the bench of a workspace: the contract's command on the training interpreter of this machine."""
    work = workspace.contract.workload
    job = Job(
        command=work.command,
        environment=work.environment,
        entry=work.entry,
        python=resolve_python(workspace.intent.launch.python, workspace.repo.root),
        world_size=work.world_size,
        data=workspace.intent.data,
        setup=workspace.intent.setup,
        sandbox=workspace.intent.launch.sandbox,
        memory_bytes=workspace.contract.budget.memory_bytes,
    )
    return Bench(workspace.repo, job, engine, run, folder)


@dataclass(frozen=True)
class _Baseline:
    """The baseline under examination: a worktree, the overlay in force, the window."""

    bench: Bench
    tree: Path
    commit: str
    assignments: tuple[Assignment, ...]
    window: Window

    def shoot(self, mode: str = "trial", extra: Sequence[Assignment] = (), perturb: tuple[str, ...] = ()) -> Execution:
        shot = Shot(
            self.tree,
            self.commit,
            (*self.assignments, *extra),
            self.window,
            "calibration",
            "profile" if mode == "profile" else "trial",
            perturb=perturb,
        )
        return self.bench.execute(self.bench.plan(shot))


def examine(workspace: Workspace, engine: Engine, notify: Notify, *, repeats: int) -> DoctorResult:
    """Make the calibration; the caller holds the lock."""
    repo, contract = workspace.repo, workspace.contract
    notify(Event("stage", "fingerprint of the machine and its matmul peak"))
    machine = fingerprint(workspace.intent.launch.python, repo.root, peaks=True)
    run = f"doctor-{new_run_id()}"
    bench = make_bench(workspace, engine, run, repo.state_dir / "doctor" / run)
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(bench.checkout(workspace.head, "head"))
        pilot = _Baseline(bench, tree, workspace.head, workspace.intent.launch.assignments, PILOT)
        notify(Event("stage", "a first run of the baseline"))
        window = choose_window(_measured(pilot.shoot(), workspace), workspace.intent.search)
        baseline = replace(pilot, window=window)
        runs = []
        for number in range(repeats):
            notify(Event("stage", f"A/A run {number + 1} of {repeats}: the baseline against itself"))
            runs.append(_measured(baseline.shoot(), workspace))
        notify(Event("stage", "phases: data, forward, backward, optimizer, communication"))
        profile = baseline.shoot("profile")
        anchor, original = baseline, runs
        if workspace.promoted:
            # Every check stays anchored at the original baseline, however much was promoted since (R-A9).
            notify(Event("stage", "the original baseline, which every check is anchored at"))
            base = contract.base_commit
            anchor = _Baseline(bench, stack.enter_context(bench.checkout(base, "original")), base, (), window)
            original = [_measured(anchor.shoot(), workspace)]
        _require_own_contract(contract, original[0])
        envelopes, notes = _envelopes(workspace, anchor, original, notify)
    if profile.outcome.kind != "ok":
        notes += (
            f"the profile run ended with {profile.outcome.kind}, so phases are unknown: {profile.outcome.message}",
        )
    calibration = _conclude(workspace, machine, window, runs, original, profile, envelopes)
    line = doctor_ledger(repo).append("calibration", calibration)
    return DoctorResult(calibration, line.hash, notes)


def _require_own_contract(contract: Contract, run: Execution) -> None:
    violations = check(contract, None, run.steps, run.ends, numerics="bitwise")
    if violations:
        raise ContractError(
            "the baseline breaks its own contract on this machine",
            why="; ".join(v.message for v in violations[:3]),
            hint="git infrarsi init --force, if the code or the data changed",
        )


def _measured(execution: Execution, workspace: Workspace) -> Execution:
    budget = workspace.contract.budget.memory_bytes
    if execution.outcome.kind == "oom" and budget is not None:
        raise TrialError(
            "the baseline does not fit into the memory budget",
            why=f"memory_gb allows {budget / 2**30:.1f} GiB per rank; {execution.outcome.message}",
            hint="raise memory_gb under [budget] in infrarsi.toml, then: git infrarsi init --force",
            code="baseline-oom",
        )
    require_training(execution, "the baseline does not train on this machine")
    if execution.measurement is None:
        raise TrialError(
            "the baseline ended before its timed window was full",
            why=f"it made {len({s.step for s in execution.steps})} optimizer steps",
            hint="give it more steps (its own --max_steps or --iters flag) in [workload] command",
            code="too-short",
        )
    return execution


def choose_window(pilot: Execution, options: SearchOptions) -> Window:
    """Return warm-up and timed steps: the user's, else about three seconds of steps, and enough of them for a mean."""
    assert pilot.measurement is not None
    step = pilot.measurement.mean_step_seconds
    timed = min(MAX_TIMED_STEPS, max(MIN_TIMED_STEPS, math.ceil(WINDOW_SECONDS / step)))
    return Window(options.warmup_steps or WARMUP_STEPS, options.timed_steps or timed)


def _envelopes(
    workspace: Workspace, baseline: _Baseline, original: Sequence[Execution], notify: Notify
) -> tuple[tuple[Envelope, ...], tuple[str, ...]]:
    """Perturb the baseline honestly, class by class up to the contract's, and see how far its numbers move."""
    contract = workspace.contract
    world = contract.workload.world_size
    references = [trace(run.steps, world) for run in original]
    perturbed: dict[str, tuple[TraceStep, ...]] = {}
    envelopes: list[Envelope] = []
    notes: list[str] = []
    limit = NUMERICS_ORDER.index(contract.invariants.numerics)
    for numerics in NUMERICS_ORDER[: limit + 1]:
        for name, extra, perturb in _perturbations(workspace, numerics):
            notify(Event("stage", f"honest perturbation for {numerics}: {name}"))
            run = baseline.shoot("trial", extra, perturb)
            if run.outcome.kind == "ok" and run.steps:
                perturbed[name] = trace(run.steps, world)
                notes += _beyond(name, numerics, references[0], perturbed[name], workspace)
            else:
                notes.append(f"perturbation {name} did not run ({run.outcome.kind}): {run.outcome.message[:120]}")
        cap = next((c for c in contract.invariants.caps if c.numerics == numerics), None)
        if cap is not None:
            level = contract.workload.data_level
            envelopes.append(calibrate(numerics, references, dict(perturbed), cap, data_level=level))
    return tuple(envelopes), tuple(notes)


def _beyond(
    name: str, numerics: Numerics, reference: Sequence[TraceStep], other: Sequence[TraceStep], workspace: Workspace
) -> list[str]:
    """Say where an honest change moves the numbers beyond the contract's cap: such changes cannot be accepted here."""
    cap = next((c for c in workspace.contract.invariants.caps if c.numerics == numerics), None)
    over = beyond_cap(reference, other, cap) if cap is not None else ()
    return [f"{name} goes beyond the contract's cap for {numerics} ({', '.join(over)}): it cannot pass"] if over else []


def _perturbations(
    workspace: Workspace, numerics: Numerics
) -> list[tuple[str, tuple[Assignment, ...], tuple[str, ...]]]:
    """Return (name, extra assignments, probe perturbations) of one class."""
    sampled = workspace.contract.workload.data_level == "sampled"
    if numerics == "bitwise":
        return []
    if numerics == "reorder":
        found: list[tuple[str, tuple[Assignment, ...], tuple[str, ...]]] = [("two threads", (), ("threads:2",))]
        knob = next((k for k in workspace.intent.knobs if k.name == "micro_batch"), None)
        if knob is not None and knob.numerics in ("bitwise", "reorder"):
            found += [(f"micro-batch {level.label}", level.assignments, ()) for level in knob.levels[1:2]]
        if sampled:
            found += [(f"data seed {n}", (), (f"data_seed:{n}",)) for n in (1, 2)]
        return found
    if numerics == "reduced":
        return [("bf16 autocast", (), ("autocast_bf16",))]
    return []


def _conclude(
    workspace: Workspace,
    machine: Machine,
    window: Window,
    runs: Sequence[Execution],
    original: Sequence[Execution],
    profile: Execution,
    envelopes: tuple[Envelope, ...],
) -> Calibration:
    from infrarsi.stats.noise import estimate_noise

    measured = [run.measurement for run in runs if run.measurement is not None]
    noise = estimate_noise([m.step_seconds for m in measured])
    noise = replace(noise, warmup_steps=window.warmup_steps, timed_steps=window.timed_steps)
    step = statistics.median(m.mean_step_seconds for m in measured)
    phases = mean_phases(profile)
    flops = sum(e.flops_per_step or 0.0 for e in profile.ends) or None
    peak = peak_flops(machine, workspace.contract.workload.world_size)
    mfu = flops / step / peak if flops and peak else None
    calibration = Calibration(
        contract_digest=workspace.digest,
        commit=workspace.head,
        hardware=machine.hardware,
        noise=noise,
        envelopes=envelopes,
        trace=trace(original[0].steps, workspace.contract.workload.world_size),
        step_seconds=step,
        tokens_per_second=workspace.contract.workload.tokens_per_step / step,
        peak_allocated_bytes=max(m.peak_allocated_bytes for m in measured),
        peak_reserved_bytes=max(m.peak_reserved_bytes for m in measured),
        phases=phases,
        hot_lines=hot_lines(profile),
        flops_per_step=flops,
        peak_flops=machine.peaks,
        mfu=mfu,
    )
    return replace(calibration, advice=advise(calibration, workspace))


def mean_phases(profile: Execution) -> tuple[tuple[str, float], ...]:
    """Return seconds per step of each phase, averaged over the window's steps and the ranks."""
    totals: dict[str, list[float]] = {}
    for step in profile.steps:
        if step.in_window:
            for name, seconds in step.phases:
                totals.setdefault(name, []).append(seconds)
    return tuple((name, statistics.fmean(values)) for name, values in totals.items())


def hot_lines(profile: Execution) -> tuple[tuple[str, float], ...]:
    """Return the source lines that most host time was seen in: seconds per step, the slowest rank's."""
    slowest: dict[str, float] = {}
    for end in profile.ends:
        for line, seconds in end.hot_lines:
            slowest[line] = max(seconds, slowest.get(line, 0.0))
    return tuple(sorted(slowest.items(), key=lambda item: -item[1])[:8])


def peak_flops(machine: Machine, world_size: int) -> float | None:
    """Return the float32 matmul peak of the devices in use, the denominator of MFU (R-B5)."""
    peaks = dict(machine.peaks)
    peak = peaks.get("float32") or max(peaks.values(), default=0.0)
    devices = min(world_size, len(machine.hardware.accelerators)) or 1  # on a CPU the ranks share one
    return peak * devices if peak else None


def advise(calibration: Calibration, workspace: Workspace) -> tuple[str, ...]:
    """Return what a person can do next, the largest effect first."""
    from infrarsi.stats.noise import repeats_for

    advice = []
    noise: Noise = calibration.noise
    total = sum(seconds for _, seconds in calibration.phases) or 1.0
    share = {name: seconds / total for name, seconds in calibration.phases}
    if share.get("communication", 0) > 0.15:
        advice.append(f"communication takes {share['communication']:.0%} of a step: accumulate without synchronising")
    if share.get("data", 0) > 0.10:
        advice.append(f"data takes {share['data']:.0%} of a step: load it in workers, or ahead of time")
    if share.get("optimizer", 0) > 0.10:
        advice.append(f"the optimizer takes {share['optimizer']:.0%} of a step: a fused one does it in one pass")
    if share.get("other", 0) > 0.10:
        advice.append(f"{share['other']:.0%} of a step is none of these: look for host syncs and logging")
    peaks = dict(calibration.peak_flops)
    if workspace.contract.invariants.numerics in ("bitwise", "reorder") and peaks.get("bfloat16", 0) > 2 * peaks.get(
        "float32", math.inf
    ):
        advice.append(
            f"bf16 matmuls are {peaks['bfloat16'] / peaks['float32']:.0f}x faster here; if they are fine with you: "
            "git infrarsi init --force --numerics reduced"
        )
    if noise.floor > 0.05:
        pairs = repeats_for(0.02, noise.between_cv)
        more = f"a gain of 2% would take {pairs} pairs" if pairs else "a gain of 2% cannot be seen in 64 pairs"
        advice.append(f"gains under {noise.floor:.1%} are invisible here ({more}): stop other work on this machine")
    advice.append("next: git infrarsi run")
    return tuple(advice)
