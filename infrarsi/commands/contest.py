"""One comparison: a candidate against a reference, pair by pair in interleaved order, until a look decides.

Only fresh executions count, never those that selected the candidate (R-B2).
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.bench import Role
from infrarsi.commands.campaign import Campaign, describe
from infrarsi.commands.state import Tried
from infrarsi.records import Pair, Trial, Verdict
from infrarsi.stats.drift import contaminated
from infrarsi.stats.paired import Design, Judgement, judge
from infrarsi.trial.pressure import between, sample

MAX_VOIDED = 4
CALM_SECONDS = 30.0
CALM_PRESSURE = 0.10
UNBOUNDED = 1e9  # JSON has no infinity; readers take this for "no upper bound"


@dataclass(frozen=True)
class Contest:
    """One comparison in progress: a candidate against a reference, under one stage of the ledger."""

    stage: str
    number: int
    reference: Tried
    candidate: Tried


def hold(campaign: Campaign, contest: Contest, design: Design) -> Verdict:
    """Take pairs until a look decides, or the last look has been taken; resumes where the ledger ends."""
    state = campaign.state
    key = (contest.stage, contest.number)
    if key in state.verdicts:
        return state.verdicts[key]
    campaign.say(
        f"{contest.stage}: {describe(contest.candidate.candidate)} against the baseline, in interleaved blocks"
    )
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(campaign.checkout(t)) for t in (contest.reference, contest.candidate)]
        verdict = _take_pairs(campaign, contest, design, trees)
    campaign.record("verdict", {"stage": contest.stage, "number": contest.number, "verdict": verdict})
    return verdict


def _take_pairs(campaign: Campaign, contest: Contest, design: Design, trees: Sequence[Path]) -> Verdict:
    floor = campaign.calibration.noise.floor
    memory: float | None = None
    # One trial of the candidate, nobody knows which, writes a secret step down for the replay.
    checked = secrets.randbelow(design.pairs_per_look[0])
    for look, wanted in enumerate(design.pairs_per_look):
        while len(good := good_pairs(campaign, contest)) < wanted:
            if campaign.overdue():
                late = Judgement("inconclusive", 1.0, 0.0, UNBOUNDED, "the time budget was used before enough pairs")
                return _verdict(contest, design, good, look, late, floor)
            done = len(campaign.state.pairs.get((contest.stage, contest.number), ()))
            if done - len(good) > MAX_VOIDED:
                busy = Judgement("inconclusive", 1.0, 0.0, UNBOUNDED, "the machine was too busy to tell")
                return _verdict(contest, design, good, look, busy, floor)
            trials = block(campaign, contest, trees, done, checked=done == checked)
            bad = trials["candidate"]
            # A failing reference says something about the machine, and so does a trial that was lost: void the pair.
            if trials["reference"].outcome.kind == "ok" and bad.outcome.kind not in ("ok", "lost", "cancelled"):
                reason = f"{bad.outcome.kind} in verification: {bad.outcome.message}"
                return _verdict(contest, design, good, look, Judgement("rejected", 0.0, 0.0, 0.0, reason), floor)
            pair = make_pair(campaign, trials, campaign.state.pairs.get((contest.stage, contest.number), ()))
            record = {"stage": contest.stage, "number": contest.number, "pair": pair, "look": look}
            campaign.record("pair", record)
            memory = _memory_ratio(trials) or memory
            if pair.voided:
                await_calm()
        judgement = judge(good_pairs(campaign, contest), floor=floor, design=design, look=look)
        if judgement.decision is not None:
            return replace(_verdict(contest, design, good, look, judgement, floor), memory_ratio=memory)
    raise AssertionError("the last look always decides")


def await_calm(limit_seconds: float = CALM_SECONDS) -> None:
    """Wait, for a bounded time (R-B3), until other processes leave the machine alone."""
    deadline = time.monotonic() + limit_seconds
    before = sample(0)
    while time.monotonic() < deadline:
        time.sleep(1.0)
        now = sample(0)
        if between(before, now) < CALM_PRESSURE:
            return
        before = now


def good_pairs(campaign: Campaign, contest: Contest) -> list[Pair]:
    """Return the contest's pairs that were not voided."""
    return [p for p in campaign.state.pairs.get((contest.stage, contest.number), ()) if not p.voided]


def block(
    campaign: Campaign, contest: Contest, trees: Sequence[Path], number: int, *, checked: bool = False
) -> dict[str, Trial]:
    """Execute one pair, A B in even blocks and B A in odd ones, so that a steady drift cancels.

    `checked`: the candidate's trial writes a check step down.
    """
    arms = [("reference", contest.reference, trees[0]), ("candidate", contest.candidate, trees[1])]
    if number % 2:
        arms.reverse()
    role: Role = "ablation" if contest.stage == "ablation" else "verify"
    folder = campaign.dump_folder(contest.stage, contest.number)
    dumps = {"candidate": folder} if checked and campaign.replays.possible else {}
    return {name: campaign.shoot(t, tree, role, block=number, dump=dumps.get(name)) for name, t, tree in arms}


def usual_baseline(earlier: Sequence[Pair], now: float) -> float:
    """Return the seconds per step that the reference had in this contest so far, the present one included.

    Not doctor's figure: on a shared machine all runs move together by the hour, and pairs are made to bear that. What
    voids a pair is a reference that moved since its neighbours were taken (R-B3).
    """
    return statistics.median([*(p.baseline_step_seconds for p in earlier if p.baseline_step_seconds > 0), now])


def make_pair(campaign: Campaign, trials: dict[str, Trial], earlier: Sequence[Pair]) -> Pair:
    """Return the pair of a block, voided where it says more about the machine than about the candidate."""
    a, b = trials["reference"], trials["candidate"]
    if a.measurement is None or b.measurement is None:
        return Pair(0.0, 0.0, a.id, b.id, voided=f"baseline {a.outcome.kind}, candidate {b.outcome.kind}")
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
