"""The finals: finalists against the baseline in interleaved blocks, removal of what does not help, the last word.

Every look and every finalist spends from one error rate; the removal step decides nothing about acceptance, and what
remains after it is verified again on fresh executions.
"""

from __future__ import annotations

from collections.abc import Sequence

from infrarsi.commands.ablation import reduce
from infrarsi.commands.campaign import Campaign, describe
from infrarsi.commands.contest import Contest, hold
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
    # One share of the error rate for each finalist, and one for the minimal candidate; as planned, also after a resume.
    design = Design(state.looks, campaign.workspace.contract.budget.error_rate, len(chosen) + 1)
    baseline = campaign.build(Candidate(), "the baseline")
    verdicts: list[Verdict] = []
    for tried in chosen:  # best belief first; the next one is needed only where this one fails
        verdicts.append(hold(campaign, Contest("finalist", tried.number, baseline, tried), design))
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
    verdict = hold(campaign, Contest("minimal", minimal.number, baseline, minimal), design)
    if verdict.decision == "accepted":
        return _final(campaign, verdict)
    # What was removed did matter after all: fall back to the finalist, which has its own verdict.
    return _final(campaign, state.verdicts[("finalist", winner.number)])


def _final(campaign: Campaign, verdict: Verdict) -> Verdict:
    tried = campaign.state.tried(verdict.candidate)
    assert tried is not None
    if ("final", tried.number) not in campaign.state.verdicts or campaign.state.final != verdict:
        campaign.record("verdict", {"stage": "final", "number": tried.number, "verdict": verdict})
    return verdict
