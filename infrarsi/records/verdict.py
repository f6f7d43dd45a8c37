"""What follows from the trials: calibration, verdict, effects, and the ledger line that keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from infrarsi.records.contract import Candidate, Numerics
from infrarsi.records.replay import ReplayFigure

Decision = Literal["accepted", "rejected", "inconclusive"]


@dataclass(frozen=True)
class Hardware:
    """Fingerprint of one machine; no host name."""

    cpu: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    accelerators: tuple[str, ...]
    accelerator_memory_bytes: int
    links: str
    torch: str
    driver: str
    python: str
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise:
    """A/A results: coefficients of variation within and between processes, and what follows from them.

    `floor` is the smallest visible gain as a ratio minus one: gains below it cannot be told from noise.
    """

    within_cv: float
    between_cv: float
    autocorrelation: float
    drift: float
    warmup_steps: int
    timed_steps: int
    floor: float
    repeats: int


@dataclass(frozen=True)
class Moved:
    """How far one honest change moved the baseline's numbers, relative."""

    name: str
    loss: float
    grad_norm: float
    update: float


@dataclass(frozen=True)
class Envelope:
    """Relative tolerances of one numerics class, from honest perturbations, capped by the contract.

    `moved` is what each of them showed; `limits` says for loss, gradient norm and update what the tolerance is:
    measured, the least one (`floor`), or the contract's most (`cap`).
    """

    numerics: Numerics
    loss: float
    grad_norm: float
    update: float
    perturbations: tuple[str, ...]
    moved: tuple[Moved, ...] = ()
    limits: tuple[Literal["measured", "floor", "cap"], ...] = ()


@dataclass(frozen=True)
class TraceStep:
    """One optimizer step of the baseline over all ranks: the reference that candidates are compared with.

    `loss` is what the gradients come from: per rank the sum over backward calls, then the mean over ranks.
    `loss_per_call` is the mean over all backward calls, for trainers that divide the gradients and not the loss;
    `backward_calls` is how many one rank made.
    `parts` is how many different row hashes the ranks had: fewer mean that ranks trained on the same rows.
    `unique_rows` is summed over ranks; None where a rank did not observe it.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    update_sketch: tuple[float, ...]
    row_hash: str
    token_hash: str
    rows: int
    tokens: int
    clip_calls: int
    hyper_digest: str
    loss_per_call: float | None = None
    backward_calls: int = 0
    parts: int = 0
    unique_rows: int | None = None


@dataclass(frozen=True)
class Calibration:
    """What doctor learnt about this machine under this contract.

    `replay`: how far the baseline's own rounding takes its gradients from float64, and what is allowed, per precision.
    `memory_terms`: what the peak consists of on the fullest rank, in bytes (`probe.memory.Held`).
    """

    contract_digest: str
    commit: str
    hardware: Hardware
    noise: Noise
    envelopes: tuple[Envelope, ...]
    trace: tuple[TraceStep, ...]
    step_seconds: float
    tokens_per_second: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phases: tuple[tuple[str, float], ...]
    hot_lines: tuple[tuple[str, float], ...]
    flops_per_step: float | None
    peak_flops: tuple[tuple[str, float], ...]
    mfu: float | None
    advice: tuple[str, ...] = ()
    replay: tuple[ReplayFigure, ...] = ()
    memory_terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Pair:
    """One interleaved block pair: wall seconds per step of baseline and candidate, and the trials they came from."""

    baseline_step_seconds: float
    candidate_step_seconds: float
    baseline_trial: str
    candidate_trial: str
    voided: str = ""


@dataclass(frozen=True)
class Verdict:
    """Accepted, rejected or inconclusive, with the interval of the speed-up (baseline / candidate seconds)."""

    decision: Decision
    candidate: Candidate
    commit: str
    speedup: float
    low: float
    high: float
    floor: float
    error_rate: float
    pairs: tuple[Pair, ...]
    looks: int
    finalists: int
    reason: str
    against: Literal["baseline", "original"] = "baseline"
    memory_ratio: float | None = None


@dataclass(frozen=True)
class Effect:
    """What the search believes of one option: log time ratio, prior and posterior, and how surprised it was.

    `measured` and `measured_sd`: what the trials alone say, without the claim; None where no trial tells.
    """

    knob: str
    level: str
    claimed: float
    prior_sd: float
    posterior: float
    posterior_sd: float
    source: str
    surprise: float
    memory_log_ratio: float = 0.0
    measured: float | None = None
    measured_sd: float | None = None


@dataclass(frozen=True)
class Price:
    """What one change at the current best would cost: milliseconds per step lost against GiB saved (negative: gained).

    `milliseconds_per_gib` is None where the change saves no memory.
    """

    knob: str
    level: str
    milliseconds: float
    gibibytes: float
    milliseconds_per_gib: float | None


@dataclass(frozen=True)
class Trust:
    """How far the claims of one source are believed after the trials: 0 not at all, 1 as stated."""

    source: str
    time: float
    memory: float


@dataclass(frozen=True)
class LedgerLine:
    """One appended event. `hash` is sha256 over `prev`, `seq`, `kind`, `at` and the canonical body."""

    seq: int
    kind: str
    at: str
    body: dict[str, Any] = field(hash=False)
    prev: str
    hash: str
