"""The finals: finalists against the baseline in interleaved blocks, removal of what does not help, the last word.

Every look and every finalist spends from one error rate; the removal step decides nothing about acceptance, and what
remains after it is verified again on fresh executions.

With k finalists each one may err with a k-th of the rate, and so may the minimal candidate, without a share of its own:
it is verified only after a finalist was accepted. Either that one was accepted wrongly, and the run has erred already,
or it is truly faster, and then at most k - 1 finalists can have been accepted wrongly. Both ways the run's error is at
most k shares: the argument of a closed test (Marcus, Peritz, Gabriel, Biometrika 63, 1976).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infrarsi.commands.ablation import reduce
from infrarsi.commands.campaign import Campaign, describe
from infrarsi.commands.contest import Contest, hold
from infrarsi.commands.vetting import vet_finalist
from infrarsi.records import Candidate, Verdict
from infrarsi.stats.paired import Design

LOOKS = (5, 9)  # with four pairs the t quantile alone makes the interval half as wide again as with five


def finals(campaign: Campaign, finalists: Sequence[Candidate]) -> Verdict | None:
    """Run what is left of the finals and return the verdict that counts; None when there is no finalist."""
    state = campaign.state
    if not state.finalists:
        chosen = [campaign.build(c, "finalist") for c in finalists]
        body = [{"number": t.number, "candidate": t.candidate, "commit": t.commit} for t in chosen]
        rate = campaign.workspace.contract.budget.error_rate
        campaign.record("finalists", {"candidates": body, "pairs_per_look": list(LOOKS), "error_rate": rate})
    chosen = [state.candidates[n] for n in state.finalists]
    if not chosen:
        return None
    # One share of the error rate for each finalist, as planned, also after a resume.
    design = Design(state.looks, campaign.workspace.contract.budget.error_rate, len(chosen))
    baseline = campaign.build(Candidate(), "the baseline")
    verdicts: list[Verdict] = []
    for tried in chosen:  # best belief first; the next one is needed only where this one fails
        contest = Contest("finalist", tried.number, baseline, tried)
        verdicts.append(hold(campaign, contest, design))
        if verdicts[-1].decision == "accepted":
            verdicts[-1] = _settled(campaign, contest, design)
        if verdicts[-1].decision == "accepted":
            return _final(campaign, verdicts[-1])
    # While one finalist is undecided, so is the run (R-B6).
    return _final(campaign, max(verdicts, key=lambda v: (v.decision == "inconclusive", v.speedup)))


def _settled(campaign: Campaign, contest: Contest, design: Design) -> Verdict:
    """Return the verdict on a finalist that is faster: on what is left of it without idle parts, else on itself.

    What is promoted is examined, and only that: an examination costs as much as several trials.
    """
    minimal = reduce(campaign, contest.candidate)
    if minimal.number != contest.number:
        campaign.say(f"verifying what remains: {describe(minimal.candidate)}")
        smaller = Contest("minimal", minimal.number, contest.reference, minimal)
        if hold(campaign, smaller, design).decision == "accepted":
            verdict = _examined(campaign, smaller)
            if verdict.decision == "accepted":
                return verdict
        # What was removed did matter after all: fall back to the finalist, which has its own verdict on speed.
    return _examined(campaign, contest)


def _examined(campaign: Campaign, contest: Contest) -> Verdict:
    """Return the verdict on a candidate that is faster, once what it computes has been examined."""
    verdict = campaign.state.verdicts[(contest.stage, contest.number)]
    examination = vet_finalist(campaign, contest.candidate, contest.stage)
    if examination.passed:
        return verdict
    verdict = replace(verdict, decision="rejected", reason=examination.reason)
    campaign.record("verdict", {"stage": contest.stage, "number": contest.number, "verdict": verdict})
    return verdict


def _final(campaign: Campaign, verdict: Verdict) -> Verdict:
    tried = campaign.state.tried(verdict.candidate)
    assert tried is not None
    campaign.drop_dumps()
    if ("final", tried.number) not in campaign.state.verdicts or campaign.state.final != verdict:
        campaign.record("verdict", {"stage": "final", "number": tried.number, "verdict": verdict})
    return verdict
