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
from infrarsi.stats.sustained import Lasting, enough_steps, lasting, pooled
from infrarsi.trial.collect import slowest_steps, start_seconds
from infrarsi.trial.outcome import TOO_SHORT

MAX_SEED_SHIFT = 1_000_000
# The loss after a window, where the envelope's last step was inside it: rounding has grown a little further.
AFTER_WINDOW = 2.0
MAX_BASELINE_SECONDS = 300.0  # for the baseline's steps of one longer run
ATTEMPTS = 6  # pairs of runs: at most one that starts slowly, and four or five that are taken together


@dataclass(frozen=True)
class Second:
    """What the runs from another seed gave: why they do not count, or what there is to examine."""

    failure: str
    steps: tuple[Recorded, ...] = ()
    finals: FinalWeights | None = None
    figures: tuple[ReplayFigure, ...] = ()
    skipped: tuple[str, ...] = ()


def second_seed(campaign: Campaign, tried: Tried, tree: Path, folder: Path, promised: float) -> Second:
    """Run the original baseline and a candidate over the same steps from another seed; compare what they show.

    Once more where the gain did not last, since a busy machine can look so; longer where a long start asks for it; and
    again, all pairs of runs taken together, where their noise would hide a gain that is gone. `promised` is the natural
    logarithm of the speed-up that was measured, 0 where none was.
    """
    usual = campaign.window.timed_steps
    most = int(MAX_BASELINE_SECONDS / campaign.calibration.step_seconds)
    counted: list[Lasting] = []
    taken: _Attempt | None = None
    least, repeated = 0, False
    for number in range(1, ATTEMPTS + 1):
        again = _attempt(campaign, tried, tree, folder / str(number), min(max(_longer(usual), least), max(most, usual)))
        if again.short and taken is None:
            return _as_far_as_it_goes(campaign, tried, tree, folder / "usual", again)
        if again.short:
            break
        taken = again
        if taken.second.failure or taken.lasting is None:
            break
        if taken.timed < min(taken.needed, most):
            least = taken.needed + secrets.randbelow(1 + taken.needed // 2)
            campaign.say(f"once more, for more than {taken.needed} steps: it starts slowly")
            continue
        counted.append(taken.lasting)
        total = pooled(counted)
        if total.held and (total.resolves(promised) or not (promised or total.visible)):
            break
        if total.held:
            campaign.say(f"once more: the noise is {total.allowed:.2g}, and the gain that has to last {total.gain:.2g}")
        elif repeated:
            break
        else:
            campaign.say("once more: its gain did not last")
            counted.clear()
            repeated = True
    return _judged(campaign, taken, counted, promised)


def _as_far_as_it_goes(campaign: Campaign, tried: Tried, tree: Path, folder: Path, first: _Attempt) -> Second:
    """Compare over the usual window where the command ends by itself before a longer one."""
    note = f"sustained gain: the command makes {first.made} steps, and {first.wanted} are needed to see it"
    taken = _attempt(campaign, tried, tree, folder, campaign.window.timed_steps)
    if taken.short:
        return Second(f"with another seed the baseline makes {taken.made} steps, and a trial {taken.wanted}")
    return replace(taken.second, skipped=(*taken.second.skipped, note))


def _judged(campaign: Campaign, taken: _Attempt | None, counted: Sequence[Lasting], promised: float) -> Second:
    """Return the last pair of runs with what all that count say of the gain."""
    assert taken is not None, "the first pair of runs either counts or is handled by itself"
    second = taken.second
    if second.failure or taken.lasting is None:
        return second
    total = pooled(counted or [taken.lasting])
    unseen = total.held and not total.resolves(promised)
    if unseen and (promised or total.visible):
        return Second(
            f"the machine is too busy to see whether its gain lasts: {max(total.gain, promised):.2g} (natural "
            f"logarithm), of which {total.allowed:.2g} could be gone unseen after {len(counted) or 1} pairs of runs"
        )
    steps = campaign.window.warmup_steps + taken.timed
    figures = (*second.figures, ReplayFigure("sustained", steps, "", total.lost, total.allowed))
    skipped = second.skipped
    if unseen:
        skipped = (*skipped, "sustained gain: these runs show no gain that could be lost")
    if taken.timed < taken.needed:
        note = (
            f"sustained gain after {taken.timed} timed steps: it takes so long to its first step that {taken.needed} "
            "would be needed to see that it did not train ahead"
        )
        skipped = (*skipped, note)
    return replace(second, figures=figures, skipped=skipped)


def _longer(usual: int) -> int:
    """Draw the timed steps of a longer run: half a window more at least, so that the last third lies behind it."""
    return usual + usual // 2 + 1 + secrets.randbelow(usual)


@dataclass(frozen=True)
class _Attempt:
    """One pair of runs: what it gave; steps timed, made, wanted and asked for by its start; how its gain lasts."""

    second: Second
    timed: int
    made: int
    wanted: int
    needed: int = 0
    lasting: Lasting | None = None

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
    lasts, skipped = _sustained(campaign, (baseline, trial), timed)
    needed = enough_steps(start_seconds(baseline), start_seconds(trial), calibration.step_seconds)
    second = Second("", recorded(folder / "candidate"), finals, skipped=skipped)
    return _Attempt(second, timed, made, wanted, needed, lasts)


def _sustained(campaign: Campaign, trials: Sequence[Trial], timed: int) -> tuple[Lasting | None, tuple[str, ...]]:
    """Return how much of the gain lasts; a note where too few steps were timed."""
    window = campaign.window
    if timed <= window.timed_steps:
        return None, ()
    opens = window.warmup_steps + 1
    baseline, candidate = (slowest_steps(trial.steps) for trial in trials)
    inside = range(opens, opens + window.timed_steps)
    try:
        return lasting(baseline, candidate, inside, campaign.calibration.noise), ()
    except ValueError as error:
        return None, (f"sustained gain: {error}",)


def _last(trial: Trial) -> int:
    return max((step.step for step in trial.steps), default=0)
