"""The verdict in one plain sentence. Undecided is neither a win nor a loss, and is never called one (R-B6)."""

from __future__ import annotations

import math

from infrarsi.records import Verdict
from infrarsi.report.model import RunStage
from infrarsi.report.text import describe, first_line, percent, plural, ratio


def say(verdict: Verdict | None, stage: RunStage, *, trials: int, search_reason: str = "") -> str:
    """Return the sentence a person reads first."""
    if stage == "empty":
        return "Nothing was recorded: the run ended before it began."
    if verdict is None:
        return _without_verdict(stage, trials, search_reason)
    return {"accepted": _accepted, "rejected": _rejected, "inconclusive": _inconclusive}[verdict.decision](verdict)


def _without_verdict(stage: RunStage, trials: int, search_reason: str) -> str:
    if stage == "finished":
        why = f" ({first_line(search_reason)})" if search_reason else ""
        return f"Nothing to promote: none of {plural(trials, 'trial')} was worth verifying{why}."
    doing = "still searching" if stage == "searching" else "still verifying"
    return f"Not finished: {doing} after {plural(trials, 'trial')}; nothing is decided. git infrarsi run resumes it."


def _accepted(verdict: Verdict) -> str:
    than = "the baseline" if verdict.against == "baseline" else "the original baseline"
    return (
        f"Accepted: {ratio(verdict.speedup)} as fast as {than}, between {ratio(verdict.low)} and {ratio(verdict.high)} "
        f"over {plural(len(verdict.pairs), 'interleaved pair')} at an error rate of {percent(verdict.error_rate, 0)}; "
        f"gains under {percent(verdict.floor)} are invisible on this machine."
    )


def _rejected(verdict: Verdict) -> str:
    label = describe(verdict.candidate)
    if verdict.speedup <= 0:
        return f"Nothing to promote: the best candidate ({label}) failed in verification: {first_line(verdict.reason)}."
    return (
        f"Nothing to promote: the best candidate ({label}) measured {ratio(verdict.speedup)}, between "
        f"{ratio(verdict.low)} and {ratio(verdict.high)}, and was rejected: {first_line(verdict.reason)}."
    )


def _inconclusive(verdict: Verdict) -> str:
    label, reason = describe(verdict.candidate), first_line(verdict.reason)
    if not verdict.pairs or not math.isfinite(verdict.high) or verdict.low <= 0:
        return f"Undecided: {label} could not be measured well enough to say anything: {reason}."
    return (
        f"Undecided: {label} is between {ratio(verdict.low)} and {ratio(verdict.high)} of the baseline's speed "
        f"after {plural(len(verdict.pairs), 'interleaved pair')}, neither a win nor a loss: {reason}."
    )
