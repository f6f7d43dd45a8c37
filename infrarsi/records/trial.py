"""What one execution showed: steps, ranks, outcome, measurement, violations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infrarsi.records.contract import Candidate, HyperParameters, Parameter

OutcomeKind = Literal["ok", "oom", "timeout", "hang", "crash", "conflict", "rejected", "cancelled", "lost"]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step as one rank saw it, stamped on arrival by the parent's monotonic clock.

    `loss` is the sum over the step's backward calls of what backward was called on, unscaled. `row_hash` and
    the token sums are order-independent (sums modulo 2**64, as hex) over the sample rows of this rank.
    `unique_rows` is how many of its rows differ from each other; None where that was not observed. `shadow_error` is
    how far the parameters' change is from what their optimizer's rule makes of the gradients, relative to the latter.
    """

    rank: int
    step: int
    arrival_seconds: float
    rank_seconds: float
    loss: float | None
    backward_calls: int
    rows: int
    tokens: int
    row_hash: str
    token_hash: str
    grad_norm: float | None
    clip_calls: int
    update_sketch: tuple[float, ...]
    hyper_digest: str
    in_window: bool = False
    check: bool = False
    phases: tuple[tuple[str, float], ...] = ()
    unique_rows: int | None = None
    shadow_error: float | None = None


@dataclass(frozen=True)
class RankEnd:
    """What a rank reported after its window: memory, state of the model, origins of modules, tampering."""

    rank: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    parameters: tuple[Parameter, ...]
    parameter_hash: str
    hyper_parameters: tuple[HyperParameters, ...]
    modules_outside: tuple[str, ...]
    hooks_intact: bool
    optimizer_steps: int
    unobserved: tuple[str, ...] = ()
    opened_files: tuple[str, ...] = ()
    flops_per_step: float | None = None
    data_functions: tuple[str, ...] = ()
    overhead_seconds: float = 0.0
    hot_lines: tuple[tuple[str, float], ...] = ()
    state_map_refused: str = ""
    memory_terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How an execution ended. For a failure: the first failing rank, its message and signal (root cause)."""

    kind: OutcomeKind
    message: str = ""
    rank: int | None = None
    signal: str = ""
    phase: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class Measurement:
    """The timed window of one execution: the parent's clock over the slowest rank."""

    window_seconds: float
    steps: int
    step_seconds: tuple[float, ...]
    tokens: int
    tokens_per_second: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    clock_disagreement: float
    stopped_early: bool = False

    @property
    def mean_step_seconds(self) -> float:
        """Wall seconds per optimizer step over the window."""
        return self.window_seconds / self.steps


@dataclass(frozen=True)
class Violation:
    """One invariant that did not hold: `ring` is scope, invariant, time or finalist."""

    ring: Literal["scope", "invariant", "time", "finalist"]
    check: str
    message: str
    observed: str = ""
    allowed: str = ""


@dataclass(frozen=True)
class Trial:
    """One execution of a candidate, as the ledger keeps it. `role` says what the execution was for.

    `device_seconds` is wall seconds times devices (or ranks on CPU), failed executions included.
    """

    id: str
    run: str
    number: int
    candidate: Candidate
    commit: str
    role: Literal["search", "verify", "ablation", "calibration", "observe", "confirm", "replay"]
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    engine: str
    block: int
    outcome: Outcome
    measurement: Measurement | None
    violations: tuple[Violation, ...]
    wall_seconds: float
    device_seconds: float
    pressure: float
    why: str = ""
    predicted_step_seconds: float | None = None
    predicted_peak_bytes: float | None = None
    steps: tuple[StepRecord, ...] = ()
    ends: tuple[RankEnd, ...] = ()


@dataclass(frozen=True)
class Change:
    """One path that differs between two trees (`git diff-tree --raw`). Modes are octal text, `000000` for absent."""

    path: str
    old_mode: str
    new_mode: str
    old_oid: str
    new_oid: str
    status: Literal["A", "M", "D", "T"]
