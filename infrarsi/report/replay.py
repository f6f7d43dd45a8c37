"""A run's ledger sorted by kind, for the report. Lines of kinds that a newer version adds are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from infrarsi.codec import decode
from infrarsi.records import Effect, Examination, LedgerLine, Pair, Price, Trial, Trust, Verdict
from infrarsi.report.model import Ablation, Interrupted, Refusal, RunStage, SpeedUp


def speed_up(ratio: float, low: float, high: float) -> SpeedUp | None:
    """Return the ratio with its interval; None where nothing was measured (ratio 0, or an interval without bounds)."""
    known = ratio > 0 and low > 0 and math.isfinite(high) and high < 1e9
    return SpeedUp(ratio, low, high) if known else None


def what_failed(trial: Trial) -> str:
    """Return what went wrong: the first violation, else the root error with its rank and signal (R-D5)."""
    if trial.violations:
        return trial.violations[0].message
    outcome = trial.outcome
    where = [f"rank {outcome.rank}"] if outcome.rank is not None else []
    where += [outcome.signal] if outcome.signal else []
    return f"{outcome.message} ({', '.join(where)})" if where and outcome.message else outcome.message


@dataclass
class Replay:
    """The replay. Mutable while it is built, read-only afterwards."""

    started: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    ended: dict[str, Any] | None = None
    ended_at: str = ""
    search_reason: str = ""
    resumed: int = 0
    trials: list[tuple[str, Trial]] = field(default_factory=list)
    open: dict[str, Interrupted] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    pairs: dict[tuple[str, int], list[Pair]] = field(default_factory=dict)
    verdicts: list[tuple[str, int, Verdict]] = field(default_factory=list)
    ablations: list[Ablation] = field(default_factory=list)
    effects: tuple[Effect, ...] = ()
    prices: tuple[Price, ...] = ()
    trust: tuple[Trust, ...] = ()
    calls: list[dict[str, Any]] = field(default_factory=list)
    examinations: list[tuple[str, str, Examination]] = field(default_factory=list)

    def fold(self, line: LedgerLine) -> None:
        """Take one line in; kinds of a newer version are left out."""
        body = line.body
        match line.kind:
            case "run-started":
                self.started, self.started_at = body, line.at
            case "run-resumed":
                self.resumed += 1
            case "patch-refused":
                self.refusals.append(Refusal(body["patch"], body["title"], body["source"], body["reason"]))
            case "trial-started":
                self.open[body["id"]] = Interrupted(body["id"], body["number"], body["role"], line.at)
            case "trial":
                trial = decode(Trial, body)
                self.open.pop(trial.id, None)
                self.trials.append((line.at, trial))
            case "search-ended":
                self.search_reason = body["reason"]
            case "pair":
                self.pairs.setdefault((body["stage"], body["number"]), []).append(decode(Pair, body["pair"]))
            case "verdict":
                self.verdicts.append((body["stage"], body["number"], decode(Verdict, body["verdict"])))
            case "examination":
                examination = decode(Examination, body["examination"])
                self.examinations.append((body["stage"], body["subject"], examination))
            case "ablation":
                speedup = speed_up(body["speedup"], body["low"], body["high"])
                self.ablations.append(Ablation(body["removed"], body["kept"], speedup, body["reason"]))
            case "effects":
                self.effects = tuple(decode(Effect, value) for value in body["effects"])
                self.prices = tuple(decode(Price, value) for value in body.get("prices", ()))
                self.trust = tuple(decode(Trust, value) for value in body.get("trust", ()))
            case "llm-call":
                self.calls.append(body)
            case "run-ended":
                self.ended, self.ended_at = body, line.at

    @property
    def stage(self) -> RunStage:
        if not self.started:
            return "empty"
        if self.ended is not None:
            return "finished"
        return "verifying" if self.search_reason else "searching"

    @property
    def final(self) -> Verdict | None:
        """The last verdict of the last stage is the one that counts."""
        return next((v for stage, _, v in reversed(self.verdicts) if stage == "final"), None)
