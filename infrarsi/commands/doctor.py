"""`doctor`: what this machine is, how noisy, where the baseline's time goes, how far honest changes move it."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands import honest
from infrarsi.commands.bench import Bench, Job, Mode, OnProgress, Shot, Window
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.examine import own_rounding
from infrarsi.commands.fingerprint import Machine, fingerprint, resolve_python
from infrarsi.commands.honest import Change
from infrarsi.commands.observe import require_training
from infrarsi.commands.replays import Replays
from infrarsi.commands.state import keep_calibration, new_run_id
from infrarsi.commands.workspace import Workspace, exclusive, load, require_data
from infrarsi.contract.envelopes import trace
from infrarsi.contract.intent import SearchOptions
from infrarsi.contract.invariants import check
from infrarsi.errors import ContractError, TrialError
from infrarsi.records import Assignment, Calibration, Contract, Envelope, Noise
from infrarsi.stats.drift import calm
from infrarsi.trial.engine import Engine, Execution

PILOT = Window(warmup_steps=2, timed_steps=4)
WINDOW_SECONDS = 3.0
MIN_TIMED_STEPS, MAX_TIMED_STEPS = 8, 60
WARMUP_STEPS = 3
DEFAULT_REPEATS = 4
MAX_DISTURBED = 2  # repeats that are taken again because other processes were in their way


@dataclass(frozen=True)
class DoctorResult:
    """The calibration, its digest, and what could not be calibrated."""

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
        parameters=workspace.contract.invariants.parameters,
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

    def shoot(self, mode: Mode = "trial") -> Execution:
        return self._execute(self.assignments, mode, (), None)

    def changed(self, change: Change, on_progress: OnProgress) -> Execution:
        """Execute it with one honest change."""
        return self._execute((*self.assignments, *change.settings), "trial", change.perturb, on_progress)

    def _execute(
        self, settings: tuple[Assignment, ...], mode: Mode, perturb: tuple[str, ...], on_progress: OnProgress | None
    ) -> Execution:
        shot = Shot(self.tree, self.commit, settings, self.window, "calibration", mode, perturb=perturb)
        return self.bench.execute(self.bench.plan(shot), on_progress)


def examine(workspace: Workspace, engine: Engine, notify: Notify, *, repeats: int) -> DoctorResult:
    """Make the calibration; the caller holds the lock."""
    repo, contract = workspace.repo, workspace.contract
    notify(Event("stage", "fingerprint of the machine and its matmul peak"))
    machine = fingerprint(workspace.intent.launch.python, repo.root, peaks=True)
    run = f"doctor-{new_run_id()}"
    bench = make_bench(workspace, engine, run, repo.state_dir / "doctor" / run)
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(bench.checkout(workspace.head))
        pilot = _Baseline(bench, tree, workspace.head, workspace.intent.launch.assignments, PILOT)
        notify(Event("stage", "a first run of the baseline"))
        window = choose_window(_measured(pilot.shoot(), workspace), workspace.intent.search)
        baseline = replace(pilot, window=window)
        runs = _repeat(baseline, workspace, repeats, notify)
        notify(Event("stage", "phases: data, forward, backward, optimizer, communication"))
        profile = baseline.shoot("profile")
        anchor, original = baseline, runs
        if workspace.promoted:
            # Every check stays anchored at the original baseline, however much was promoted since (R-A9).
            notify(Event("stage", "the original baseline, which every check is anchored at"))
            base = contract.base_commit
            anchor = _Baseline(bench, stack.enter_context(bench.checkout(base)), base, (), window)
            # Twice where only repeats say what a machine that is not bit-exact does.
            times = 2 if contract.invariants.numerics == "bitwise" else 1
            original = [_measured(anchor.shoot(), workspace) for _ in range(times)]
        _require_own_contract(contract, original[0])
        knobs, hardware = workspace.intent.knobs, machine.hardware
        envelopes, notes = honest.envelopes(contract, knobs, hardware, original, anchor.changed, notify)
        rounding, more = own_rounding(Replays(workspace, bench, window, notify))
        notes += more
    if profile.outcome.kind != "ok":
        notes += (
            f"the profile run ended with {profile.outcome.kind}, so phases are unknown: {profile.outcome.message}",
        )
    calibration = _conclude(workspace, machine, window, runs, original, profile, envelopes)
    calibration = replace(calibration, replay=rounding)
    if workspace.promoted:
        _require_anchored(contract, calibration, runs[0])
    digest = keep_calibration(repo, calibration)
    return DoctorResult(calibration, digest, notes)


def _repeat(baseline: _Baseline, workspace: Workspace, repeats: int, notify: Notify) -> list[Execution]:
    """Run the baseline against itself; what others disturbed is taken again, a few times at most (R-B3)."""
    runs: list[Execution] = []
    while len(runs) < repeats or (len(_calm(runs)) < repeats and len(runs) < repeats + MAX_DISTURBED):
        notify(Event("stage", f"A/A run {len(runs) + 1} of {max(repeats, len(runs) + 1)}: the baseline against itself"))
        runs.append(_measured(baseline.shoot(), workspace))
    return _calm(runs)


def _calm(runs: Sequence[Execution]) -> list[Execution]:
    return [runs[n] for n in calm([run.pressure for run in runs])]


def _require_own_contract(contract: Contract, run: Execution) -> None:
    violations = check(contract, None, run.steps, run.ends, numerics="bitwise")
    if violations:
        raise ContractError(
            "the baseline breaks its own contract on this machine",
            why="; ".join(v.message for v in violations[:3]),
            hint="git infrarsi init --force, if the code or the data changed",
        )


def _require_anchored(contract: Contract, calibration: Calibration, run: Execution) -> None:
    """Refuse a baseline that many promotions, each within its limits, have moved too far from the original (R-A9)."""
    violations = check(contract, calibration, run.steps, run.ends, numerics=contract.invariants.numerics)
    if violations:
        raise ContractError(
            "what was promoted since the contract was made has moved the training out of it",
            why="; ".join(v.message for v in violations[:3]),
            hint="revert a promotion, or git infrarsi init --force for a contract over the training as it is now",
            code="drifted",
        )


def _measured(execution: Execution, workspace: Workspace) -> Execution:
    written = [v.message for v in execution.violations if v.check in ("source", "packages")]
    if written:
        raise ContractError(
            "the baseline writes into its own sources while it trains",
            why="; ".join(written[:3]),
            hint="git rm --cached what it writes (logs, results) and commit, or let it write elsewhere",
            code="self-writing",
        )
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
        memory_terms=memory_terms(runs),
    )
    return replace(calibration, advice=advise(calibration, workspace))


def memory_terms(runs: Sequence[Execution]) -> tuple[tuple[str, int], ...]:
    """Return what the peak consists of on the rank and in the run where it was highest, in bytes."""
    ends = [end for run in runs for end in run.ends]
    return max(ends, key=lambda end: end.peak_allocated_bytes).memory_terms if ends else ()


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
    from infrarsi.trial.sandbox import advice as sandbox_advice

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
    advice.append(sandbox_advice(workspace.intent.launch.sandbox))
    advice.append("next: git infrarsi run")
    return tuple(advice)
