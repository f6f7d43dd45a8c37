"""What there is to draw of one run: frozen records, computed once by `view.from_ledger`, drawn by every reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infrarsi.records import Budget, Effect, Examination, Hardware, Noise, Price, Trust, Verdict, Violation

RunStage = Literal["empty", "searching", "verifying", "finished"]


@dataclass(frozen=True)
class SpeedUp:
    """Baseline seconds over candidate seconds. A ratio never travels without its interval (R-B6)."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class TrialRow:
    """One execution. `estimate` is from one search trial, widened by the noise floor: a hint, never a verdict."""

    id: str
    number: int
    label: str
    role: str
    outcome: str
    message: str
    at: str
    estimate: SpeedUp | None
    step_seconds: float | None
    peak_bytes: int | None
    predicted_step_seconds: float | None
    predicted_peak_bytes: float | None
    wall_seconds: float
    device_seconds: float
    violations: tuple[Violation, ...]
    why: str
    stopped_early: bool = False

    @property
    def failed(self) -> bool:
        """It ended otherwise than clean; its cost counts all the same (R-C3)."""
        return self.outcome != "ok"


@dataclass(frozen=True)
class Interrupted:
    """A trial that started and has no result: the tool or the machine stopped. Its cost is not known."""

    id: str
    number: int
    role: str
    at: str


@dataclass(frozen=True)
class VerdictRow:
    """One verdict of the finals. `speedup` is None where nothing was measured (it failed in verification)."""

    stage: str
    number: int
    label: str
    decision: str
    speedup: SpeedUp | None
    pairs: int
    voided: int
    reason: str


@dataclass(frozen=True)
class Ablation:
    """What removing one component showed: the speed-up of having it over not having it."""

    part: str
    kept: bool
    speedup: SpeedUp | None
    reason: str


@dataclass(frozen=True)
class Component:
    """One part of the candidate that the verdict is about."""

    kind: Literal["setting", "patch"]
    name: str
    value: str
    title: str
    source: str
    numerics: str
    why: str
    assignments: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathAudit:
    """One source path that the candidate touches. `allowed` is None where no contract was at hand to ask."""

    path: str
    status: str
    added: int | None
    removed: int | None
    old_mode: str
    new_mode: str
    old_oid: str
    new_oid: str
    origin: tuple[str, ...]
    allowed: bool | None


@dataclass(frozen=True)
class Refusal:
    """A patch that was refused before it cost a trial second (R-F1)."""

    patch: str
    title: str
    source: str
    reason: str


@dataclass(frozen=True)
class OutcomeCost:
    """What all trials of one outcome cost together."""

    outcome: str
    trials: int
    wall_seconds: float
    device_seconds: float


@dataclass(frozen=True)
class Cost:
    """What the run cost, failed trials included (R-C3). `dollars` is None where a call's price is unknown (R-H1)."""

    trials: int
    failed: int
    interrupted: int
    wall_seconds: float
    device_seconds: float
    failed_device_seconds: float
    by_outcome: tuple[OutcomeCost, ...]
    llm_calls: int
    llm_tokens: int
    dollars: float | None
    unpriced_calls: int
    examined: int = 0
    examined_device_seconds: float = 0.0


@dataclass(frozen=True)
class Baseline:
    """The baseline as doctor and the run's start recorded it. MFU is against the measured peak (R-B5)."""

    step_seconds: float | None
    peak_bytes: int | None
    tokens_per_second: float | None
    mfu: float | None
    floor: float | None
    phases: tuple[tuple[str, float], ...]
    noise: Noise | None
    hardware: Hardware | None


@dataclass(frozen=True)
class RunReport:
    """Everything to draw of one run, in the order in which it is drawn."""

    run: str
    goal: str
    stage: RunStage
    sentence: str
    started_at: str
    ended_at: str
    version: str
    contract_digest: str
    base_commit: str
    original_commit: str
    calibration_digest: str
    budget: Budget | None
    baseline: Baseline
    verdict: Verdict | None
    speedup: SpeedUp | None
    mfu: SpeedUp | None
    components: tuple[Component, ...]
    ablations: tuple[Ablation, ...]
    verdicts: tuple[VerdictRow, ...]
    trials: tuple[TrialRow, ...]
    interrupted: tuple[Interrupted, ...]
    refusals: tuple[Refusal, ...]
    effects: tuple[Effect, ...]
    cost: Cost
    audit: tuple[PathAudit, ...]
    diff: str
    search_reason: str
    end_reason: str
    resumed: int
    data_level: str = ""
    numerics: str = ""
    unobserved: tuple[str, ...] = ()
    examinations: tuple[tuple[str, str, Examination], ...] = ()
    prices: tuple[Price, ...] = ()
    trust: tuple[Trust, ...] = ()

    @property
    def search_trials(self) -> tuple[TrialRow, ...]:
        """The trials that looked for candidates."""
        return tuple(t for t in self.trials if t.role == "search")

    @property
    def memory_budget(self) -> int | None:
        """Bytes per device or rank that a candidate may use."""
        return self.budget.memory_bytes if self.budget else None

    @property
    def accepted(self) -> bool:
        """There is an accepted verdict, and nothing less counts as a win."""
        return self.verdict is not None and self.verdict.decision == "accepted"
