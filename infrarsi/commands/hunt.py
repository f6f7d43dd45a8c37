"""The search loop: ask for a candidate, build it, try it, append to the ledger, tell the search."""

from __future__ import annotations

import time
from typing import Literal

from infrarsi.commands.campaign import Campaign
from infrarsi.errors import GitError
from infrarsi.records import Outcome, Trial
from infrarsi.search.interface import Observation, Proposal, Search
from infrarsi.trial.engine import Progress


def hunt(campaign: Campaign, search: Search, *, trials: int) -> str:
    """Search until the budget is used or nothing is worth trying; return why it ended.

    The campaign's deadline holds for the finals too, so the search leaves them their reserve. Finished trials of an
    earlier sitting are replayed first, never repeated.
    """
    for trial in campaign.state.search_trials:
        search.tell(observation(campaign, trial))
    while not campaign.state.search_ended:
        reason = _ended(campaign, trials)
        proposal = None if reason else search.ask()
        if proposal is None:
            reason = reason or getattr(search, "reason", "") or "nothing left that is worth a trial"
            learnt = {"effects": search.effects(), "prices": search.prices(), "trust": search.trust()}
            campaign.record("effects", {name: list(values) for name, values in learnt.items()})
            campaign.record("search-ended", {"reason": reason})
            break
        search.tell(observation(campaign, attempt(campaign, search, proposal)))
    return campaign.state.search_ended


def _ended(campaign: Campaign, trials: int) -> str:
    done = campaign.state.search_trials
    if len(done) >= trials:
        return f"the budget of {trials} trials is used"
    if campaign.deadline is not None and time.monotonic() + campaign.reserve_seconds() > campaign.deadline:
        return "the time budget is used, less what the verification needs"
    if len(done) > 3 and all(t.outcome.kind == "oom" for t in done):
        peaks = [t.measurement.peak_allocated_bytes for t in done if t.measurement]
        return "everything runs out of memory" + (f"; smallest known peak {min(peaks):,} bytes" if peaks else "")
    return ""


def attempt(campaign: Campaign, search: Search, proposal: Proposal) -> Trial:
    """Build and execute one proposal; conflicts and ring 1 refusals cost no trial seconds."""
    candidate = proposal.candidate
    try:
        tried = campaign.build(candidate, proposal.why, proposal.predicted_step_seconds, proposal.predicted_peak_bytes)
    except GitError as error:
        number = campaign.next_number()
        message = f"{error.what}: {error.why}" if error.why else error.what
        return campaign.refuse(number, candidate, Outcome("conflict", message))
    violations = campaign.violations(tried)
    if violations:
        return campaign.refuse(tried.number, candidate, Outcome("rejected", violations[0].message), violations)

    def watch(progress: Progress) -> Literal["continue", "stop"]:
        seconds = progress.timed_step_seconds
        if seconds is None or candidate.is_baseline:
            return "continue"
        return "stop" if search.should_stop_early(seconds) else "continue"

    with campaign.checkout(tried) as tree:
        return campaign.shoot(tried, tree, "search", why=proposal.why, on_progress=watch)


def observation(campaign: Campaign, trial: Trial) -> Observation:
    """Return what the search learns from a trial: time only from a clean one, memory also from a failed one."""
    measured = trial.measurement if trial.outcome.kind == "ok" else None
    noise = campaign.calibration.noise
    error = max(noise.between_cv, noise.within_cv / max(1, measured.steps if measured else 1) ** 0.5)
    if measured is not None and measured.stopped_early:
        error = max(2 * error, 0.05)
    return Observation(
        candidate=trial.candidate,
        outcome=trial.outcome.kind,
        step_seconds=measured.mean_step_seconds if measured else None,
        peak_bytes=measured.peak_allocated_bytes if measured else None,
        standard_error=error,
    )
