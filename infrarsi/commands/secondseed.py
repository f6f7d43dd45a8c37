"""A finalist from another seed and for longer: the same training again, and a gain that lasts beyond the timed window.

How much longer is drawn anew each time, and grows with the time that the candidate takes before its first step: what it
prepared there for the window runs out (`stats.sustained`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.bench import Shot, Window
from infrarsi.commands.campaign import Campaign
from infrarsi.commands.examine import FinalWeights, Recorded, recorded
from infrarsi.commands.state import Tried
from infrarsi.contract.envelopes import trace
from infrarsi.contract.numbers import envelope_of
from infrarsi.records import ReplayFigure, Trial
from infrarsi.stats.sustained import enough_steps, lasting
from infrarsi.trial.collect import slowest_steps, start_seconds
from infrarsi.trial.outcome import TOO_SHORT

MAX_SEED_SHIFT = 1_000_000
# The loss after a window, where the envelope's last step was inside it: rounding has grown a little further.
AFTER_WINDOW = 2.0
MAX_BASELINE_SECONDS = 300.0  # for the baseline's steps of one longer run
ATTEMPTS = 3


@dataclass(frozen=True)
class Second:
    """What the runs from another seed gave: why they do not count, or what there is to examine."""

    failure: str
    steps: tuple[Recorded, ...] = ()
    finals: FinalWeights | None = None
    figures: tuple[ReplayFigure, ...] = ()
    skipped: tuple[str, ...] = ()


def second_seed(campaign: Campaign, tried: Tried, tree: Path, folder: Path) -> Second:
    """Run the original baseline and a candidate over the same steps from another seed; compare what they show.

    Once more where the gain did not last, since a busy machine can look so, and longer where a long start asks for it.
    """
    usual = campaign.window.timed_steps
    taken = _attempt(campaign, tried, tree, folder / "1", _longer(usual))
    if taken.short:
        note = f"sustained gain: the command makes {taken.made} steps, and {taken.wanted} are needed to see it"
        taken = _attempt(campaign, tried, tree, folder / "2", usual)
        if taken.short:
            return Second(f"with another seed the baseline makes {taken.made} steps, and a trial {taken.wanted}")
        return replace(taken.second, skipped=(note,))
    most = int(MAX_BASELINE_SECONDS / campaign.calibration.step_seconds)
    for number in range(2, ATTEMPTS + 1):
        gone = any(not figure.held for figure in taken.second.figures)
        early = taken.timed < min(taken.needed, most)
        if taken.second.failure or not (gone or early):
            break
        timed = max(_longer(usual), min(taken.needed + secrets.randbelow(1 + taken.needed // 2), most))
        campaign.say(f"once more, for {timed} steps: {'its gain did not last' if gone else 'it starts slowly'}")
        again = _attempt(campaign, tried, tree, folder / str(number), timed)
        if again.short:
            break
        taken = again
        if gone:
            break
    if taken.second.failure or taken.needed <= taken.timed:
        return taken.second
    note = (
        f"sustained gain after {taken.timed} timed steps: it takes so long to its first step that {taken.needed} would "
        "be needed to see that it did not train ahead"
    )
    return replace(taken.second, skipped=(*taken.second.skipped, note))


def _longer(usual: int) -> int:
    """Draw the timed steps of a longer run: half a window more at least, so that the last third lies behind it."""
    return usual + usual // 2 + 1 + secrets.randbelow(usual)


@dataclass(frozen=True)
class _Attempt:
    """One pair of runs: what it gave; steps timed, made and wanted; steps that the candidate's start asks for."""

    second: Second
    timed: int
    made: int
    wanted: int
    needed: int = 0

    @property
    def short(self) -> bool:
        """Whether the command ended by itself before the last step that was wanted."""
        return not self.second.failure and self.made < self.wanted


def _attempt(campaign: Campaign, tried: Tried, tree: Path, folder: Path, timed: int) -> _Attempt:
    shift = f"seed:{1 + secrets.randbelow(MAX_SEED_SHIFT)}"
    contract, calibration, window = campaign.workspace.contract, campaign.calibration, campaign.window
    wanted = window.warmup_steps + timed

    def ended(failure: str, made: int) -> _Attempt:
        return _Attempt(Second(failure), timed, made, wanted)

    shot = Shot(tree, tried.commit, (), Window(window.warmup_steps, timed), "confirm", perturb=(shift,))
    with campaign.replays.baseline() as code:
        theirs = replace(shot, worktree=code.tree, commit=code.commit, dump=folder / "baseline")
        baseline = campaign.execute(theirs, None)
    made = _last(baseline)
    if baseline.outcome.phase == TOO_SHORT:
        return ended("", made)
    if baseline.outcome.kind != "ok":
        return ended(f"with another seed the baseline does not train: {baseline.outcome.message}", made)
    # Its numbers are compared as in any trial; later steps only for time, since rounding grows beyond what doctor saw.
    compared = trace(baseline.steps, contract.workload.world_size)[: window.warmup_steps + window.timed_steps]
    candidate = tried.candidate
    mine = replace(shot, assignments=campaign.assignments(candidate), candidate=candidate, number=tried.number)
    trial = campaign.execute(replace(mine, dump=folder / "candidate"), replace(calibration, trace=compared))
    if trial.outcome.kind != "ok":
        return ended(f"with another seed: {trial.outcome.kind}: {trial.outcome.message}", made)
    envelope = envelope_of(contract, calibration, campaign.numerics(candidate))
    finals = None
    if envelope is not None and "loss" not in contract.invariants.unobserved:
        allowed = AFTER_WINDOW * envelope.loss * max(1.0, timed / window.timed_steps)
        finals = FinalWeights(folder / "candidate" / "final.pt", folder / "baseline" / "final.pt", allowed)
    figures, skipped = _sustained(campaign, (baseline, trial), timed)
    needed = enough_steps(start_seconds(baseline), start_seconds(trial), calibration.step_seconds)
    second = Second("", recorded(folder / "candidate"), finals, figures, skipped)
    return _Attempt(second, timed, made, wanted, needed)


def _sustained(
    campaign: Campaign, trials: Sequence[Trial], timed: int
) -> tuple[tuple[ReplayFigure, ...], tuple[str, ...]]:
    """Return the figure of a gain that lasts; a note where too few steps were timed."""
    window = campaign.window
    if timed <= window.timed_steps:
        return (), ()
    opens = window.warmup_steps + 1
    baseline, candidate = (slowest_steps(trial.steps) for trial in trials)
    inside = range(opens, opens + window.timed_steps)
    try:
        found = lasting(baseline, candidate, inside, campaign.calibration.noise)
    except ValueError as error:
        return (), (f"sustained gain: {error}",)
    return (ReplayFigure("sustained", window.warmup_steps + timed, "", found.lost, found.allowed),), ()


def _last(trial: Trial) -> int:
    return max((step.step for step in trial.steps), default=0)
