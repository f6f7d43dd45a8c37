"""Removal of what does not help (R-F3): each part of the winner out in turn, measured against the whole.

A few pairs cannot tell a gain of some percent from this machine's noise, and dropping several such parts would add up.
So the decision joins the pairs with what the search believes of the part (claims and all its trials), by the product of
two normal densities, and a part must be worth `MIN_WORTH`. Acceptance never rests on this: what remains is verified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.commands.campaign import Campaign
from infrarsi.commands.contest import MAX_VOIDED, UNBOUNDED, Contest, block, make_pair
from infrarsi.commands.state import Tried
from infrarsi.errors import GitError
from infrarsi.records import Candidate, Effect, Pair

MIN_WORTH = 0.01  # log seconds per step; a part that gains less is not worth its lines
SURE = 0.95
WEAK = 0.05  # parts believed to gain less than this are tried out all at once first: together they can be seen
PART_PAIRS, GROUP_PAIRS = 2, 3
# How far an effect among the winner's other parts may lie from its effect over all trials: log seconds, and as a share
# of the effect, since one that is large elsewhere can be nothing here (no_sync where there is one micro-step).
INTERACTION_SD, INTERACTION_SHARE = 0.05, 0.5
DOCTOR_PAIRS = 3  # weight of doctor's noise, in degrees of freedom, beside the pairs' own spread


@dataclass(frozen=True)
class Worth:
    """Belief about the gain of keeping `parts` parts, in log seconds per step: mean and standard deviation."""

    mean: float
    sd: float
    parts: int = 1

    @property
    def least(self) -> float:
        """Return what the parts must be worth together."""
        return MIN_WORTH * self.parts

    @property
    def sure(self) -> float:
        """Return the probability that the gain exceeds `least`."""
        return 0.5 * math.erfc((self.least - self.mean) / (self.sd * math.sqrt(2)))

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Return the speed-up of keeping it, with its two-sigma band."""
        return math.exp(self.mean), math.exp(self.mean - 2 * self.sd), math.exp(self.mean + 2 * self.sd)


def reduce(campaign: Campaign, winner: Tried) -> Tried:
    """Return the winner less what does not earn its place: the weak parts all at once, the others one by one.

    Weak parts stand or fall together: one by one, each could be dropped within noise, and all their gain with them.
    """
    current = winner
    weak = weak_parts(winner.candidate, campaign.state.effects)
    together = weak if 1 < len(weak) < len(parts(winner.candidate)) else ()
    alone = [(part,) for part in parts(winner.candidate) if part not in together]
    for group in [together, *alone] if together else alone:
        left = parts(current.candidate)
        if len(left) <= len(group) or not set(group) <= set(left):
            continue
        if not earns_its_place(campaign, current, group):
            current = campaign.build(without(current.candidate, *group), f"without {', '.join(group)}")
    return current


def believed(candidate: Candidate, group: Sequence[str], effects: Sequence[Effect]) -> Worth:
    """Return what the search believes a group of parts is worth together; wide where it knows nothing of one."""
    level = {s.knob: s.level for s in candidate.settings}
    known = {e.knob: e for e in effects if e.level == level.get(e.knob, e.level)}
    mean = -sum(known[part].posterior for part in group if part in known)
    variance = INTERACTION_SD**2
    for part in group:
        effect = known.get(part)
        variance += 0.3**2 if effect is None else effect.posterior_sd**2 + (INTERACTION_SHARE * effect.posterior) ** 2
    return Worth(mean, math.sqrt(variance), len(group))


def weak_parts(candidate: Candidate, effects: Sequence[Effect]) -> tuple[str, ...]:
    """Return the parts that by the search's belief gain too little to be seen one by one."""
    return tuple(p for p in parts(candidate) if believed(candidate, (p,), effects).mean < WEAK)


def parts(candidate: Candidate) -> tuple[str, ...]:
    """Return the removable components of a candidate by name."""
    return (*(s.knob for s in candidate.settings), *candidate.patches)


def without(candidate: Candidate, *gone: str) -> Candidate:
    """Return the candidate less some components."""
    return Candidate(
        tuple(s for s in candidate.settings if s.knob not in gone), tuple(p for p in candidate.patches if p not in gone)
    )


def earns_its_place(campaign: Campaign, current: Tried, group: tuple[str, ...]) -> bool:
    """Compare `current` with itself less `group`, pair by pair, until the worth or its absence is plain."""
    name = ", ".join(group)
    done = next((a for a in campaign.state.ablations if a["removed"] == name), None)
    if done is not None:
        return bool(done["kept"])
    belief = believed(current.candidate, group, campaign.state.effects)
    try:
        less = campaign.build(without(current.candidate, *group), f"without {name}")
    except GitError as error:
        return _kept(campaign, current, name, True, belief, f"the rest does not build without it: {error.what}")
    campaign.say(f"ablation: does {name} earn its place?")
    contest = Contest("ablation", less.number, less, current)
    with (
        campaign.checkout(less) as a,
        campaign.checkout(current) as b,
    ):
        while True:
            kept, worth, reason = _one_pair(campaign, contest, (a, b), belief)
            if kept is not None:
                return _kept(campaign, current, name, kept, worth, reason)


def _one_pair(
    campaign: Campaign, contest: Contest, trees: Sequence[Path], belief: Worth
) -> tuple[bool | None, Worth, str]:
    """Take one pair; return (kept, or None for another pair; worth; reason)."""
    key = ("ablation", contest.number)
    earlier = campaign.state.pairs.get(key, [])
    trials = block(campaign, contest, trees, len(earlier))
    without_it, with_it = trials["reference"].outcome.kind, trials["candidate"].outcome.kind
    if without_it != "ok" or with_it != "ok":
        return True, belief, f"it stays: {with_it} with it, {without_it} without it"
    if campaign.overdue():
        return True, belief, "it stays: the time budget is used"
    pair = make_pair(campaign, trials, earlier)
    campaign.record("pair", {"stage": "ablation", "number": contest.number, "pair": pair, "look": 0})
    taken = campaign.state.pairs[key]
    good = [p for p in taken if not p.voided]
    worth = update(belief, good, campaign.calibration.noise.between_cv)
    if good and worth.sure > SURE:
        return True, worth, "slower without it"
    if good and worth.sure < 1 - SURE:
        return False, worth, "no slower without it"
    enough = GROUP_PAIRS if worth.parts > 1 else PART_PAIRS
    if len(good) >= enough:
        kept = worth.mean > worth.least
        return kept, worth, "more likely than not slower without it" if kept else "not worth its place within noise"
    if len(taken) >= enough + MAX_VOIDED:
        return True, worth, "the machine was too busy to tell, so it stays"
    return None, worth, ""


def update(belief: Worth, pairs: Sequence[Pair], between_cv: float) -> Worth:
    """Return the belief after `pairs` (baseline: without the part; candidate: with it).

    The spread of one pair joins doctor's between-run noise with the pairs' own spread, weighted by their degrees of
    freedom: two or three pairs cannot estimate it alone.
    """
    if not pairs:
        return belief
    logs = [math.log(p.baseline_step_seconds / p.candidate_step_seconds) for p in pairs]
    mean = sum(logs) / len(logs)
    own = sum((x - mean) ** 2 for x in logs)
    doctor = 2 * max(between_cv, 0.005) ** 2
    variance = (DOCTOR_PAIRS * doctor + own) / (DOCTOR_PAIRS + len(logs) - 1) / len(logs)
    weight, prior = 1 / variance, 1 / belief.sd**2
    joined = (weight * mean + prior * belief.mean) / (weight + prior)
    return Worth(joined, 1 / math.sqrt(weight + prior), belief.parts)


def _kept(campaign: Campaign, current: Tried, part: str, kept: bool, worth: Worth, reason: str) -> bool:
    gain, low, high = worth.ratios
    body = {"number": current.number, "removed": part, "kept": kept, "reason": reason}
    campaign.record("ablation", {**body, "speedup": gain, "low": low, "high": min(high, UNBOUNDED)})
    return kept
