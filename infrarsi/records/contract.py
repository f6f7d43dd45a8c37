"""What must stay the same, and what may be tried: contract, knobs, patches, candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Numerics = Literal["bitwise", "reorder", "reduced", "semantic"]
NUMERICS_ORDER: tuple[Numerics, ...] = ("bitwise", "reorder", "reduced", "semantic")
DataLevel = Literal["exact", "same-set", "sampled"]
MemoryTerm = Literal["total", "parameters", "gradients", "optimizer", "activations", "workspace"]
KnobKind = Literal["flag", "torchrun", "env", "config"]
AssignmentKind = Literal[KnobKind, "state_map"]
Scalar = str | int | float | bool
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Scope:
    """What a candidate may change: gitignore-style globs, and `path::symbol` locks inside editable files."""

    editable: tuple[str, ...]
    locked: tuple[str, ...] = ()
    max_files: int = 20
    max_lines: int = 800


@dataclass(frozen=True)
class Digest:
    """sha256 of a locked path (`train.py`), of a locked symbol (`train.py::get_batch`) or of a data file."""

    name: str
    sha256: str
    bytes: int = 0


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model under its canonical name (no `module.` or `_orig_mod.` prefix)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True


@dataclass(frozen=True)
class HyperParameters:
    """One optimizer parameter group at one step: `(("lr", 6e-4), ("betas", "(0.9, 0.95)"), …)`, sorted."""

    step: int
    optimizer: str
    group: int
    values: tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class Workload:
    """What is trained, on what, how much per optimizer step (summed over ranks)."""

    entry: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    world_size: int
    rows_per_step: int
    tokens_per_step: int
    data_level: DataLevel
    data: tuple[Digest, ...]
    held_out: str = ""


@dataclass(frozen=True)
class Caps:
    """Upper limits on every envelope of one numerics class, relative; a noisy calibration cannot exceed them."""

    numerics: Numerics
    loss: float
    grad_norm: float
    update: float


@dataclass(frozen=True)
class Invariants:
    """What must stay the same while a candidate trains."""

    parameters: tuple[Parameter, ...]
    hyper_parameters: tuple[HyperParameters, ...]
    optimizer_steps: int
    clips_per_step: int
    numerics: Numerics
    caps: tuple[Caps, ...]
    unobserved: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """What a run may spend. `None` means no limit of that kind. `memory_bytes` is per device or rank."""

    trials: int = 30
    seconds: float | None = None
    dollars: float | None = None
    memory_bytes: int | None = None
    error_rate: float = 0.05


@dataclass(frozen=True)
class Contract:
    """The lock: portable facts only (no host, hardware, absolute path or time). Its digest is its identity."""

    goal: str
    base_commit: str
    workload: Workload
    scope: Scope
    locked: tuple[Digest, ...]
    invariants: Invariants
    budget: Budget
    intent_digest: str
    require_signature: bool = False
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Assignment:
    """One target set to one value: flag `--batch_size`, torchrun flag, environment variable, `file.yaml:a.b` key.

    `value` None removes the flag or variable. A boolean flag without a value (store_true) has value True. Of kind
    `state_map`, the target is a parameter, the value says which of the contract's parameters it holds.
    """

    kind: AssignmentKind
    target: str
    value: Scalar | None


@dataclass(frozen=True)
class Level:
    """One value of a knob, as the assignments that produce it. The baseline's level has none."""

    label: str
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What a source says an option does, as ratios new / old (1.0: nothing). `confidence` in 0..1."""

    source: str
    time_factor: float = 1.0
    memory_factor: float = 1.0
    confidence: float = 0.3
    memory_term: MemoryTerm = "total"


@dataclass(frozen=True)
class Knob:
    """One launch choice. `levels[0]` is the baseline's; `claims[i]` belongs to `levels[i]`."""

    name: str
    kind: KnobKind
    levels: tuple[Level, ...]
    ordinal: bool = False
    claims: tuple[tuple[Claim, ...], ...] = ()
    numerics: Numerics = "reorder"
    catalogue_id: str = ""
    why: str = ""


@dataclass(frozen=True)
class Patch:
    """A code change in scope: a unified diff against the run's base, and what its source claims."""

    id: str
    title: str
    diff: str
    source: str
    claims: tuple[Claim, ...] = ()
    numerics: Numerics = "semantic"
    needs: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    catalogue_id: str = ""
    why: str = ""
    state_map: tuple[Assignment, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One knob at one level."""

    knob: str
    level: str


@dataclass(frozen=True)
class Candidate:
    """Settings and patches together; both sorted, so that equal candidates compare equal."""

    settings: tuple[Setting, ...] = ()
    patches: tuple[str, ...] = ()

    @property
    def is_baseline(self) -> bool:
        """Nothing differs from the run's baseline."""
        return not self.settings and not self.patches
