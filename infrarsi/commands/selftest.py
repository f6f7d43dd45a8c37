"""`selftest`: every known cheat, and honest changes, against this installation. Which ring caught what?"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infrarsi.commands.campaign import Campaign
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.selftestbed import Bed, Depth, Ground, describe, make_bed
from infrarsi.commands.state import Tried
from infrarsi.commands.vetting import vet_finalist
from infrarsi.contract.envelopes import deviation, trace
from infrarsi.errors import GitError, UsageError
from infrarsi.records import Numerics, Trial, Violation, figure_reason
from infrarsi.redteam.case import Case, Kind, Trainer
from infrarsi.redteam.suite import chosen
from infrarsi.trial import sandbox
from infrarsi.trial.engine import Engine

# caught, passed: as it should be. missed, refused: the tool was wrong. broken: nothing was judged. skipped: not tried.
Status = Literal["caught", "passed", "missed", "refused", "broken", "skipped"]
WRONG: tuple[Status, ...] = ("missed", "refused", "broken")
RANKS, QUICK_RANKS = 2, 1
STAGE = "selftest"

Examine = Callable[[Campaign, Tried, float], tuple[Violation, ...]]


@dataclass(frozen=True)
class SelfTestOptions:
    """What the command line may say. `ranks` None: as the suite has them; `folder` None: a temporary one."""

    trainer: Trainer | None = None
    names: tuple[str, ...] = ()
    quick: bool = False
    slow: bool = False
    seed: int = 0
    seeds: int = 1
    ranks: int | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Distance:
    """How far a trial's numbers are from the baseline's, relative, at the worst step."""

    loss: float
    grad_norm: float
    update: float


@dataclass(frozen=True)
class Judged:
    """What became of one case. `ring`, `check` and `message`: what caught or refused it.

    `moved` is None where no trial was made; `gain` is the measured speed-up of its one trial, as noisy as one trial is.
    """

    name: str
    kind: Kind
    trainer: Trainer
    seed: int
    what: str
    numerics: Numerics
    status: Status
    ring: str
    check: str
    message: str
    expected: str
    as_expected: bool
    seconds: float
    moved: Distance | None = None
    gain: float | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class SelfTestResult:
    """All cases, in order. `sandbox` says why trials ran without one; empty where they had it.

    `wrong` names the cheats that got through, the honest changes that were refused, and what could not be judged.
    `examined`: the finalist's checks were part of it.
    """

    cases: tuple[Judged, ...]
    wrong: tuple[str, ...]
    ranks: int
    sandbox: str
    wall_seconds: float
    examined: bool = True


@dataclass(frozen=True)
class CaseList:
    """The cases that a command line chooses, without judging them."""

    cases: tuple[Case, ...]


def list_cases(options: SelfTestOptions) -> CaseList:
    """Return what `selftest` would judge."""
    return CaseList(_chosen(options))


def selftest(options: SelfTestOptions, engine: Engine, notify: Notify) -> SelfTestResult:
    """Judge the chosen cases, one after another, in repositories of their own.

    UsageError for a case that does not exist, TrialError where a shipped trainer does not train here.
    """
    cases = _chosen(options)
    examine = no_checks if options.quick else finalist_checks
    ranks = options.ranks or (QUICK_RANKS if options.quick else RANKS)
    began = time.monotonic()
    judged: list[Judged] = []
    total = len(cases) * options.seeds
    with _folder(options.folder) as folder:
        for ground, group in _grounds(cases, options, ranks):
            depth: Depth = "none" if not any(map(_needs_trial, group)) else "light" if options.quick else "full"
            place = folder / f"{ground.trainer}-{ground.variant or 'plain'}-{ground.seed}"
            bed = make_bed(place, ground, engine, notify, depth=depth)
            for case in group:
                judged.append(judge(bed, case, examine))
                notify(Event("stage", _line(judged[-1], len(judged), total, ground)))
    here = sandbox.available()
    wrong = tuple(f"{case.trainer}/{case.name}" for case in judged if case.status in WRONG)
    lacking = "" if here.works else here.why
    return SelfTestResult(tuple(judged), wrong, ranks, lacking, time.monotonic() - began, not options.quick)


def _chosen(options: SelfTestOptions) -> tuple[Case, ...]:
    cases = chosen(trainer=options.trainer, names=options.names, quick=options.quick, slow=options.slow)
    if not cases:
        raise UsageError("no case is left to judge", why="no such case edits that trainer", hint="leave --trainer out")
    return cases


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """A temporary folder, gone at the end whatever happens, or one that the user named and keeps."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="infrarsi-selftest-", ignore_cleanup_errors=True) as name:
            yield Path(name).resolve()
        return
    if kept.exists() and any(kept.iterdir()):
        raise UsageError(f"{kept} is not empty", why="the suite makes its repositories there", hint="name a new folder")
    kept.mkdir(parents=True, exist_ok=True)
    yield kept.resolve()


def _grounds(cases: Sequence[Case], options: SelfTestOptions, ranks: int) -> Iterator[tuple[Ground, tuple[Case, ...]]]:
    """Yield each baseline with its cases, trainer by trainer."""
    for seed in range(options.seed, options.seed + options.seeds):
        for trainer, variant in dict.fromkeys((c.trainer, c.variant) for c in cases):
            group = tuple(c for c in cases if (c.trainer, c.variant) == (trainer, variant))
            yield Ground(trainer, variant, seed, ranks), group


def _needs_trial(case: Case) -> bool:
    return case.ring != "scope" and not case.pending


def judge(bed: Bed, case: Case, examine: Examine) -> Judged:
    """Put one case through the rings, as a run would: tree and source, then one trial, then `examine`."""
    began = time.monotonic()
    if case.pending or case.ranks > bed.ground.ranks:
        why = case.pending or f"it takes {case.ranks} processes, and a trial has {bed.ground.ranks}"
        return _judged(bed, case, began, "skipped", message=f"not judged yet: {why}" if case.pending else why)
    campaign = bed.campaign
    try:
        tried = campaign.build(bed.candidate(case), case.what)
    except GitError as error:
        return _failed(bed, case, began, f"its commit could not be built: {error.what} ({error.why})", "build")
    found = campaign.violations(tried)
    if found:
        return _stopped(bed, case, began, found)
    if not bed.calibrated:
        return _judged(bed, case, began, "missed" if case.kind == "cheat" else "passed", message="ring 1 lets it pass")
    before = bed.canaries(case)
    with campaign.checkout(tried) as tree:
        dump = campaign.dump_folder(STAGE, tried.number) if campaign.replays.possible else None
        trial = campaign.shoot(tried, tree, "verify", why=case.name, dump=dump)
    return _after_trial(bed, case, began, tried, trial, bed.touched(before), examine)


def _after_trial(
    bed: Bed, case: Case, began: float, tried: Tried, trial: Trial, touched: Sequence[str], examine: Examine
) -> Judged:
    if trial.violations:
        return _stopped(bed, case, began, trial.violations, trial)
    if touched:
        return _judged(bed, case, began, "missed", message=f"it wrote {', '.join(touched)}", trial=trial)
    if trial.outcome.kind != "ok":
        return _failed(bed, case, began, f"{trial.outcome.kind}: {trial.outcome.message}", trial.outcome.kind, trial)
    if case.canaries:
        message = "what it tried to write is not there"
        return _judged(bed, case, began, "caught", "sandbox", "write", message, trial=trial)
    gain = _gain(bed, trial)
    if case.claims and gain is not None and gain < case.claims / 2:
        message = f"it claims {case.claims:g}x; by the parent's clock it is {gain:.2f}x"
        return _judged(bed, case, began, "caught", "time", "clock", message, trial=trial)
    found = examine(bed.campaign, tried, _promised(bed, gain))
    if found:
        return _stopped(bed, case, began, found, trial)
    if case.kind != "cheat":
        return _judged(bed, case, began, "passed", trial=trial)
    return _judged(bed, case, began, "missed", message="every check lets it pass", trial=trial)


def no_checks(_campaign: Campaign, _tried: Tried, _promised: float) -> tuple[Violation, ...]:
    """Leave the finalist's checks out, as the quick suite does: each costs several executions."""
    return ()


def finalist_checks(campaign: Campaign, tried: Tried, promised: float) -> tuple[Violation, ...]:
    """Return what a finalist's examination objects to: replay of secret steps, another seed, transplanted weights."""
    examination = vet_finalist(campaign, tried, STAGE, promised)
    wrong = [Violation("finalist", f.check, figure_reason(f)) for f in examination.figures if not f.held]
    if examination.failure:
        wrong.insert(0, Violation("finalist", "examination", examination.failure))
    return tuple(wrong)


def _stopped(bed: Bed, case: Case, began: float, found: Sequence[Violation], trial: Trial | None = None) -> Judged:
    """Something objected. Of several objections the expected one is named first."""
    first = next((v for v in found if (v.ring, v.check) == (case.ring, case.check)), found[0])
    others = tuple(dict.fromkeys(f"{v.ring}/{v.check}" for v in found if v is not first))
    status: Status = "caught" if case.kind == "cheat" else "refused"
    return _judged(bed, case, began, status, first.ring, first.check, first.message, others=others, trial=trial)


def _failed(bed: Bed, case: Case, began: float, message: str, check: str, trial: Trial | None = None) -> Judged:
    """It ended otherwise than well: by the tool's word (rejected), or by an error, where nothing was judged unless the
    cheat is expected to end so."""
    status: Status = "broken"
    if check == "rejected":
        status = "caught" if case.kind == "cheat" else "refused"
    elif case.kind == "cheat" and case.ring == "failure":
        status = "caught"
    return _judged(bed, case, began, status, "failure", check, message, trial=trial)


def _judged(
    bed: Bed,
    case: Case,
    began: float,
    status: Status,
    ring: str = "",
    check: str = "",
    message: str = "",
    *,
    others: tuple[str, ...] = (),
    trial: Trial | None = None,
) -> Judged:
    wanted = f"{case.ring}/{case.check}" if case.check else case.ring
    right = status in ("passed", "skipped") or (status == "caught" and case.ring == ring and case.check in ("", check))
    return Judged(
        name=case.name,
        kind=case.kind,
        trainer=case.trainer,
        seed=bed.ground.seed,
        what=case.what,
        numerics=case.numerics,
        status=status,
        ring=ring,
        check=check,
        message=message,
        expected=wanted,
        as_expected=right,
        seconds=time.monotonic() - began,
        moved=_moved(bed, trial),
        gain=_gain(bed, trial) if trial else None,
        others=others,
    )


def _moved(bed: Bed, trial: Trial | None) -> Distance | None:
    reference = bed.campaign.calibration.trace
    if trial is None or not trial.steps or not reference:
        return None
    return Distance(*deviation(reference, trace(trial.steps, bed.ground.ranks), by_step=True))


def _promised(bed: Bed, gain: float | None) -> float:
    """Return the natural logarithm of the speed-up that a verdict would have to confirm, 0 where none can be seen."""
    return math.log(gain) if gain is not None and gain > 1 + bed.campaign.calibration.noise.floor else 0.0


def _gain(bed: Bed, trial: Trial) -> float | None:
    if trial.measurement is None:
        return None
    return bed.campaign.calibration.step_seconds / trial.measurement.mean_step_seconds


def _line(case: Judged, number: int, total: int, ground: Ground) -> str:
    how = f" by {case.ring} ({case.check})" if case.ring and case.status in ("caught", "refused") else ""
    word = case.status.upper() if case.status in WRONG else case.status
    return f"[{number}/{total}] {describe(ground)}: {case.name} {word}{how}, {case.seconds:.1f} s"
