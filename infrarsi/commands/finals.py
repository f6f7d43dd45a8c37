"""The finals: finalists against the baseline in interleaved blocks, removal of what does not help, the last word.

Only fresh executions count, never those that selected the finalists (R-B2). Every look and every finalist spends from
one error rate; the removal step decides nothing about acceptance, and what remains after it is verified again.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.campaign import Campaign, describe
from infrarsi.commands.state import Tried
from infrarsi.errors import GitError
from infrarsi.records import Candidate, Effect, Pair, Trial, Verdict
from infrarsi.stats.drift import contaminated
from infrarsi.stats.paired import Design, Judgement, interval, judge

LOOKS = (5, 9)  # with fewer than five pairs the t quantile alone would cost a quarter of the speed-up
ABLATION_PAIRS = 3
UNKNOWN_GAIN = (1.0, 0.0, 1e9)
MAX_VOIDED = 4
UNBOUNDED = 1e9  # JSON has no infinity; readers take this for "no upper bound"


@dataclass(frozen=True)
class Contest:
    """One comparison in progress: a candidate against a reference, under one stage of the ledger."""

    stage: str
    number: int
    reference: Tried
    candidate: Tried


def finals(campaign: Campaign, finalists: Sequence[Candidate]) -> Verdict | None:
    """Run what is left of the finals and return the verdict that counts; None when there is no finalist."""
    state = campaign.state
    design = Design(LOOKS, campaign.workspace.contract.budget.error_rate, max(1, len(finalists)) + 1)
    if not state.finalists:
        chosen = [campaign.build(c, "finalist") for c in finalists]
        body = [{"number": t.number, "candidate": t.candidate, "commit": t.commit} for t in chosen]
        record = {"candidates": body, "pairs_per_look": list(LOOKS), "error_rate": design.error_rate}
        campaign.record("finalists", record)
    chosen = [state.candidates[n] for n in state.finalists]
    if not chosen:
        return None
    # The design is the one that the finalists were chosen under, also after a resume.
    design = Design(LOOKS, design.error_rate, len(chosen) + 1)
    baseline = campaign.build(Candidate(), "the baseline")
    verdicts: list[Verdict] = []
    for tried in chosen:  # best belief first; the next one is needed only where this one fails
        verdicts.append(_contest(campaign, Contest("finalist", tried.number, baseline, tried), design))
        if verdicts[-1].decision == "accepted":
            break
    if verdicts[-1].decision != "accepted":
        return _final(campaign, max(verdicts, key=lambda v: v.speedup))
    winner = state.tried(verdicts[-1].candidate)
    assert winner is not None
    minimal = reduce(campaign, winner)
    if minimal.number == winner.number:
        return _final(campaign, state.verdicts[("finalist", winner.number)])
    campaign.say(f"verifying what remains: {describe(minimal.candidate)}")
    verdict = _contest(campaign, Contest("final", minimal.number, baseline, minimal), design)
    if verdict.decision == "accepted":
        return verdict
    # What was removed did matter after all: fall back to the finalist, which has its own verdict.
    return _final(campaign, state.verdicts[("finalist", winner.number)])


def _final(campaign: Campaign, verdict: Verdict) -> Verdict:
    tried = campaign.state.tried(verdict.candidate)
    assert tried is not None
    if ("final", tried.number) not in campaign.state.verdicts or campaign.state.final != verdict:
        campaign.record("verdict", {"stage": "final", "number": tried.number, "verdict": verdict})
    return verdict


def _contest(campaign: Campaign, contest: Contest, design: Design) -> Verdict:
    """Take pairs until a look decides, or the last look has been taken; resumes where the ledger ends."""
    state = campaign.state
    key = (contest.stage, contest.number)
    if key in state.verdicts:
        return state.verdicts[key]
    campaign.say(
        f"{contest.stage}: {describe(contest.candidate.candidate)} against the baseline, in interleaved blocks"
    )
    with contextlib.ExitStack() as stack:
        trees = [
            stack.enter_context(campaign.checkout(t, f"{contest.stage}-{role}-{contest.number}"))
            for role, t in (("a", contest.reference), ("b", contest.candidate))
        ]
        verdict = _take_pairs(campaign, contest, design, trees)
    campaign.record("verdict", {"stage": contest.stage, "number": contest.number, "verdict": verdict})
    return verdict


def _take_pairs(campaign: Campaign, contest: Contest, design: Design, trees: Sequence[Path]) -> Verdict:
    floor = campaign.calibration.noise.floor
    memory: float | None = None
    for look, wanted in enumerate(design.pairs_per_look):
        while len(good := _good(campaign, contest)) < wanted:
            done = len(campaign.state.pairs.get((contest.stage, contest.number), ()))
            if done - len(good) > MAX_VOIDED:
                busy = Judgement("inconclusive", 1.0, 0.0, UNBOUNDED, "the machine was too busy to tell")
                return _verdict(contest, design, good, look, busy, floor)
            trials = block(campaign, contest, trees, done)
            bad = next((t for t in trials.values() if t.outcome.kind != "ok"), None)
            if bad is not None and bad is trials["candidate"]:
                reason = f"{bad.outcome.kind} in verification: {bad.outcome.message}"
                return _verdict(contest, design, good, look, Judgement("rejected", 0.0, 0.0, 0.0, reason), floor)
            pair = _pair(campaign, trials, campaign.state.pairs.get((contest.stage, contest.number), ()))
            record = {"stage": contest.stage, "number": contest.number, "pair": pair, "look": look}
            campaign.record("pair", record)
            memory = _memory_ratio(trials) or memory
        judgement = judge(_good(campaign, contest), floor=floor, design=design, look=look)
        if judgement.decision is not None:
            return replace(_verdict(contest, design, good, look, judgement, floor), memory_ratio=memory)
    raise AssertionError("the last look always decides")


def _good(campaign: Campaign, contest: Contest) -> list[Pair]:
    return [p for p in campaign.state.pairs.get((contest.stage, contest.number), ()) if not p.voided]


def block(campaign: Campaign, contest: Contest, trees: Sequence[Path], number: int) -> dict[str, Trial]:
    """Execute one pair, A B in even blocks and B A in odd ones, so that a steady drift cancels."""
    arms = [("reference", contest.reference, trees[0]), ("candidate", contest.candidate, trees[1])]
    if number % 2:
        arms.reverse()
    role = "ablation" if contest.stage == "ablation" else "verify"
    return {name: campaign.shoot(t, tree, role, block=number) for name, t, tree in arms}  # type: ignore[arg-type]


def usual_baseline(earlier: Sequence[Pair], now: float) -> float:
    """Return the seconds per step that the reference had in this contest so far, the present one included.

    Not doctor's figure: on a shared machine all runs move together by the hour, and pairs are made to bear that. What
    voids a pair is a reference that moved since its neighbours were taken (R-B3).
    """
    return statistics.median([*(p.baseline_step_seconds for p in earlier if p.baseline_step_seconds > 0), now])


def _pair(campaign: Campaign, trials: dict[str, Trial], earlier: Sequence[Pair]) -> Pair:
    a, b = trials["reference"], trials["candidate"]
    if a.measurement is None or b.measurement is None:
        return Pair(0.0, 0.0, a.id, b.id, voided=f"the baseline ended with {a.outcome.kind}")
    expected = usual_baseline(earlier, a.measurement.mean_step_seconds)
    voided = contaminated(a.pressure, b.pressure, a.measurement.mean_step_seconds, expected, campaign.calibration.noise)
    return Pair(a.measurement.mean_step_seconds, b.measurement.mean_step_seconds, a.id, b.id, voided)


def _memory_ratio(trials: dict[str, Trial]) -> float | None:
    a, b = trials["reference"].measurement, trials["candidate"].measurement
    return b.peak_allocated_bytes / a.peak_allocated_bytes if a and b and a.peak_allocated_bytes else None


def _verdict(
    contest: Contest, design: Design, pairs: Sequence[Pair], look: int, judged: Judgement, floor: float
) -> Verdict:
    return Verdict(
        decision=judged.decision or "inconclusive",
        candidate=contest.candidate.candidate,
        commit=contest.candidate.commit,
        speedup=judged.speedup,
        low=judged.low,
        high=min(judged.high, UNBOUNDED),
        floor=floor,
        error_rate=design.error_rate,
        pairs=tuple(pairs),
        looks=look + 1,
        finalists=design.finalists,
        reason=judged.reason,
    )


def reduce(campaign: Campaign, winner: Tried) -> Tried:
    """Remove what does not earn its place within noise (R-F3): what seems idle at once, then one by one."""
    current = winner
    idle = idle_parts(winner.candidate, campaign.state.effects, campaign.calibration.noise.between_cv)
    groups = [idle] if 1 < len(idle) < len(parts(winner.candidate)) else []
    for group in [*groups, *((part,) for part in parts(winner.candidate))]:
        left = parts(current.candidate)
        if len(left) <= len(group) or not set(group) <= set(left):
            continue
        if not _earns_its_place(campaign, current, group):
            current = campaign.build(without(current.candidate, *group), f"without {', '.join(group)}")
    return current


def idle_parts(candidate: Candidate, effects: Sequence[Effect], between_cv: float) -> tuple[str, ...]:
    """Return the parts whose gain, by the search's belief, cannot be told from nothing."""
    level = {s.knob: s.level for s in candidate.settings}
    known = {e.knob: e for e in effects if e.level == level.get(e.knob, e.level)}
    return tuple(
        part
        for part in parts(candidate)
        if part in known and known[part].posterior + known[part].posterior_sd > -between_cv / 2
    )


def parts(candidate: Candidate) -> tuple[str, ...]:
    """Return the removable components of a candidate by name."""
    return (*(s.knob for s in candidate.settings), *candidate.patches)


def without(candidate: Candidate, *gone: str) -> Candidate:
    """Return the candidate less some components."""
    return Candidate(
        tuple(s for s in candidate.settings if s.knob not in gone), tuple(p for p in candidate.patches if p not in gone)
    )


def _earns_its_place(campaign: Campaign, current: Tried, group: tuple[str, ...]) -> bool:
    """Compare `current` with itself less `group`, pair by pair, until the gain or its absence is plain."""
    name = ", ".join(group)
    done = next((a for a in campaign.state.ablations if a["removed"] == name), None)
    if done is not None:
        return bool(done["kept"])
    try:
        less = campaign.build(without(current.candidate, *group), f"without {name}")
    except GitError as error:
        return _kept(campaign, current, name, True, UNKNOWN_GAIN, f"the rest does not build without it: {error.what}")
    campaign.say(f"ablation: does {name} earn its place?")
    contest = Contest("ablation", less.number, less, current)
    with (
        campaign.checkout(less, f"ablation-a-{less.number}") as a,
        campaign.checkout(current, f"ablation-b-{less.number}") as b,
    ):
        while True:
            kept, gain, reason = _one_ablation_pair(campaign, contest, (a, b))
            if kept is not None:
                return _kept(campaign, current, name, kept, gain, reason)


def _one_ablation_pair(
    campaign: Campaign, contest: Contest, trees: Sequence[Path]
) -> tuple[bool | None, tuple[float, float, float], str]:
    """Take one pair; return (kept or None for another pair, gain with band, reason)."""
    key = ("ablation", contest.number)
    trials = block(campaign, contest, trees, len(campaign.state.pairs.get(key, ())))
    if trials["candidate"].outcome.kind != "ok" or trials["reference"].outcome.kind != "ok":
        return True, UNKNOWN_GAIN, f"without it the outcome is {trials['reference'].outcome.kind}"
    pair = _pair(campaign, trials, campaign.state.pairs.get(key, ()))
    campaign.record("pair", {"stage": "ablation", "number": contest.number, "pair": pair, "look": 0})
    taken = campaign.state.pairs[key]
    good = [p for p in taken if not p.voided]
    gain = gain_of(good, campaign.calibration.noise.between_cv)
    if good and gain[1] > 1.0:
        return True, gain, "slower without it"
    if good and gain[2] < 1.0:
        return False, gain, "faster without it"
    if len(good) >= ABLATION_PAIRS:
        return False, gain, "no gain that can be told from noise"
    if len(taken) >= ABLATION_PAIRS + MAX_VOIDED:
        return True, gain, "the machine was too busy to tell, so it stays"
    return None, gain, ""


def gain_of(pairs: Sequence[Pair], between_cv: float) -> tuple[float, float, float]:
    """Return (gain, low, high) of keeping a part: mean ratio and a band of about 95 %.

    The band is two sigmas of doctor's between-run noise, since one or two pairs cannot estimate their own spread; from
    three pairs on, the pairs' own t interval where that is narrower (a doctor's noise from a busier hour).
    """
    if not pairs:
        return 1.0, 0.0, math.inf
    logs = [math.log(p.baseline_step_seconds / p.candidate_step_seconds) for p in pairs]
    mean = sum(logs) / len(logs)
    band = 2 * max(between_cv, 0.005) * math.sqrt(2 / len(logs))
    if len(logs) >= 3:
        own = math.log(interval(logs, 0.05)[0] / max(interval(logs, 0.05)[1], 1e-9))
        band = min(band, own)
    return math.exp(mean), math.exp(mean - band), math.exp(mean + band)


def _kept(
    campaign: Campaign, current: Tried, part: str, kept: bool, gain: tuple[float, float, float], reason: str
) -> bool:
    body = {"number": current.number, "removed": part, "kept": kept, "reason": reason}
    campaign.record("ablation", {**body, "speedup": gain[0], "low": gain[1], "high": min(gain[2], UNBOUNDED)})
    return kept
