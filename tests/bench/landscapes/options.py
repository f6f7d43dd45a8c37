"""The options of simulated jobs: launch knobs whose first level is the baseline's, and code patches."""

from __future__ import annotations

from dataclasses import dataclass, field

Changes = dict[str, float]


@dataclass(frozen=True)
class Option:
    """A knob with its levels (label, changes to the plan). The first level is the baseline's and may change it too."""

    name: str
    levels: tuple[tuple[str, Changes], ...]
    ordinal: bool = False
    kind: str = "flag"


@dataclass(frozen=True)
class CodeChange:
    """A patch. `risk`: how readily it fails in company; `decoy`: it reads well and does next to nothing."""

    name: str
    changes: Changes = field(default_factory=dict)
    risk: float = 1.0
    needs: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def counted(name: str, key: str, values: list[float], kind: str = "flag") -> Option:
    """Return an ordinal knob that sets one field; the baseline's value first."""
    return Option(name, tuple((f"{v:g}", {key: v}) for v in values), True, kind)


def switch(name: str, changes: Changes, kind: str = "flag") -> Option:
    """Return an on/off knob."""
    return Option(name, (("off", {}), ("on", changes)), False, kind)


PLAIN = {"shard_parameters": 0.0, "shard_gradients": 0.0, "shard_optimizer": 0.0, "within_node": 0.0}
ZERO1 = {**PLAIN, "shard_optimizer": 1.0}
ZERO2 = {**ZERO1, "shard_gradients": 1.0}
ZERO3 = {**ZERO2, "shard_parameters": 1.0}
HYBRID = {**ZERO3, "within_node": 1.0}
SHARDING = {"ddp": PLAIN, "zero1": ZERO1, "zero2": ZERO2, "zero3": ZERO3, "hybrid": HYBRID}
CHECKPOINTING = {
    "none": {"recompute": 0.0, "kept": 1.0},
    "selective": {"recompute": 0.22, "kept": 0.5},
    "full": {"recompute": 1.0, "kept": 0.10},
}
COMPILE = {
    "eager": {},
    "default": {"*traffic": 0.55, "*launches": 0.45, "+workspace": 3e8},
    "reduce-overhead": {"*traffic": 0.57, "*launches": 0.45, "*launch_cost": 0.15, "+workspace": 1.6e9},
    "max-autotune": {"*traffic": 0.5, "*launches": 0.42, "*gemm": 1.09, "+workspace": 1.1e9},
}
ATTENTION = {
    "math": {"materialised": 1.0, "attention": 0.4},
    "efficient": {"materialised": 0.08, "attention": 0.33},
    "flash": {"materialised": 0.03, "attention": 0.5},
    "cudnn": {"materialised": 0.03, "attention": 0.58, "+workspace": 4e8},
}
OPTIMIZER = {
    "for-loop": {"optimizer_launches": 1.0},
    "foreach": {"optimizer_launches": 0.14, "optimizer_traffic": 1.3, "+workspace": 2e8},
    "fused": {"optimizer_launches": 0.03, "optimizer_traffic": 0.8},
}
DISPATCH = {
    "loop": {"expert_launches": 8.0, "expert_efficiency": 0.45},
    "sorted": {"expert_launches": 5.0, "expert_efficiency": 0.5, "+workspace": 2e8},
    "grouped": {"expert_launches": 0.6, "expert_efficiency": 0.5, "+workspace": 5e8},
    "padded": {"expert_launches": 0.5, "expert_efficiency": 0.4, "+workspace": 1.2e9},
}
ALGORITHM = {
    "auto": {},
    "ring": {"algorithm_bandwidth": 1.06, "algorithm_latency": 1.7},
    "tree": {"algorithm_bandwidth": 0.85, "algorithm_latency": 0.5},
    "nvls": {"algorithm_bandwidth": 1.25, "algorithm_latency": 0.8, "+workspace": 5e8},
}


def chosen(name: str, table: dict[str, Changes], order: list[str], *, ordinal: bool = False) -> Option:
    """Return a knob over some entries of a table, the first of `order` being the baseline's."""
    return Option(name, tuple((label, table[label]) for label in order), ordinal)


LOADER = (
    counted("workers", "workers", [0, 1, 2, 4, 8, 16]),
    counted("prefetch_factor", "prefetch", [2, 4, 8]),
    switch("pin_memory", {"pinned": 1.0}),
)
HOST = (
    counted("OMP_NUM_THREADS", "threads", [8, 1, 4, 16], "env"),
    switch("affinity", {"bound": 1.0}, "env"),
    switch("expandable_segments", {"fragmentation": 0.015}, "env"),
    Option("gc_threshold", (("0", {}), ("0.6", {"*fragmentation": 0.7, "allocator_calls": 1.0})), False, "env"),
)
COLLECTIVES = (
    counted("NCCL_MAX_NCHANNELS", "channels", [8, 2, 4, 16, 32], "env"),
    chosen("NCCL_ALGO", ALGORITHM, ["auto", "ring", "tree", "nvls"]),
    counted("bucket_cap_mb", "bucket", [25e6, 5e6, 50e6, 100e6, 400e6]),
    switch("overlap", {"overlap": 0.9, "+workspace": 2e8}),
    switch("no_sync", {"reduce_each_micro": 0.0}),
    Option("reduce_dtype", (("fp32", {}), ("bf16", {"wire_bytes": 2.0}))),
)
SHARDED = (
    switch("keep_gathered", {"gathers": 1.0}),
    switch("forward_prefetch", {"prefetched": 1.0}),
)

PATCHES = (
    CodeChange("no-item-sync", {"*stalls": 0.1}, 0.2),
    CodeChange("log-less", {"*stalls": 0.6, "*other": 0.7}, 0.2, conflicts=("log-async",)),
    CodeChange("log-async", {"*stalls": 0.5, "*other": 0.8, "+launch_cost": 0.04}, 0.5),
    CodeChange("fused-loss", {"*loss_traffic": 0.3, "*loss_memory": 0.12}, 1.5, conflicts=("chunked-loss",)),
    CodeChange("chunked-loss", {"*loss_memory": 0.2, "*loss_traffic": 1.15, "*launches": 1.05}, 0.6),
    CodeChange("fused-norm", {"*norm_traffic": 0.8, "*launches": 0.92}, 1.2),
    CodeChange("fused-rope", {"*traffic": 0.92, "*launches": 0.92}, 1.0, needs=("cached-rope",)),
    CodeChange("cached-rope", {"*traffic": 0.96, "*launches": 0.96}, 0.4),
    CodeChange("fused-mlp", {"*traffic": 0.85, "*gemm": 1.01, "*launches": 0.95}, 1.3),
    CodeChange("fused-qkv", {"*gemm": 1.03, "*launches": 0.96}, 0.8),
    CodeChange("no-contiguous", {"*traffic": 0.95}, 0.6),
    CodeChange("no-empty-cache", {"*other": 0.5, "*fragmentation": 1.3}, 0.2),
    CodeChange("non-blocking-copy", {"*stalls": 0.8}, 0.3),
    CodeChange("foreach-clip", {"*other": 0.75}, 0.4),
    CodeChange("set-to-none", {"*optimizer_traffic": 0.93, "*fragmentation": 1.05}, 0.2),
    CodeChange("bf16-state", {"optimizer_bytes": 4.0}, 0.8),
    CodeChange("cached-mask", {"*traffic": 0.97, "*materialised": 0.8}, 0.5),
    CodeChange("packed-samples", {"*padding": 0.3, "*decode": 1.2}, 0.9),
    CodeChange("cached-tokens", {"*decode": 0.35}, 0.3),
    CodeChange("faster-decode", {"*decode": 0.6}, 0.6),
    CodeChange("aligned-vocabulary", {"*loss_traffic": 0.85, "*gemm": 1.01}, 0.5),
    CodeChange("graph-safe-step", {"*launch_cost": 0.9}, 1.0),
    CodeChange("preallocated", {"*launches": 0.98, "+workspace": 3e8, "*fragmentation": 0.6}, 0.5),
    CodeChange("smaller-buffers", {"*workspace": 0.6}, 0.4),
    CodeChange("hand-written-kernel", {"*traffic": 1.12, "*launches": 0.9}, 1.6),
    CodeChange("manual-threads", {"*launch_cost": 1.15}, 0.4),
    CodeChange("renamed-loops", {}, 0.1),
    CodeChange("hoisted-constants", {"*launches": 0.995}, 0.1),
    CodeChange("unrolled-layers", {"*launch_cost": 0.99, "+workspace": 1e8}, 0.6),
)
EXPERT_PATCHES = (
    CodeChange("batched-experts", {"*expert_launches": 0.35, "*expert_efficiency": 1.05, "+workspace": 4e8}, 1.4),
    CodeChange("fused-router", {"*expert_launches": 0.85, "*traffic": 0.95}, 0.9),
    CodeChange("fused-permute", {"*traffic": 0.88, "+workspace": 1e8}, 1.2, needs=("fused-router",)),
)
