"""A training job and its machine as constants, and everything that settings and patches can change about a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

GIB = 2.0**30
SPREAD = 0.2  # standard deviation of the log of every perturbed constant


@dataclass(frozen=True)
class Machine:
    """Devices and links. Rates per second; `launch_seconds` is host time for one kernel launch."""

    devices_per_node: int
    nodes: int
    flops: float
    memory_bandwidth: float
    intra_bandwidth: float
    inter_bandwidth: float
    latency: float
    launch_seconds: float
    host_cores: int
    copy_bandwidth: float

    @property
    def world(self) -> int:
        """Number of devices."""
        return self.devices_per_node * self.nodes


@dataclass(frozen=True)
class Model:
    """A transformer and its batch. `experts` 0 for a dense one; `samples` is the global batch, which is workload."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    samples: int
    experts: int
    routed: int
    sample_seconds: float
    sample_bytes: float
    gemm_efficiency: float
    saturation_tokens: float
    imbalance: float
    other_seconds: float

    @property
    def dense_parameters(self) -> float:
        """Parameters outside experts."""
        share = 12.0 if not self.experts else 6.0
        return share * self.layers * self.hidden**2 + self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> float:
        """Parameters of all experts together."""
        return 6.0 * self.layers * self.hidden**2 * self.experts


@dataclass
class Plan:
    """How one step is executed. Defaults are a plain eager data-parallel loop; settings and patches overwrite them."""

    micro: float = 4
    tensor: float = 1
    expert: float = 1
    shard_parameters: float = 0
    shard_gradients: float = 0
    shard_optimizer: float = 0
    within_node: float = 0
    gathers: float = 2
    prefetched: float = 0
    recompute: float = 0
    kept: float = 1
    traffic: float = 1
    launches: float = 1
    launch_cost: float = 1
    gemm: float = 1
    materialised: float = 1
    attention: float = 0.4
    optimizer_launches: float = 1
    optimizer_traffic: float = 1
    optimizer_bytes: float = 8
    workers: float = 0
    prefetch: float = 2
    pinned: float = 0
    decode: float = 1
    overlap: float = 0.6
    bucket: float = 25e6
    channels: float = 8
    algorithm_latency: float = 1
    algorithm_bandwidth: float = 1
    wire_bytes: float = 4
    reduce_each_micro: float = 1
    fragmentation: float = 0.06
    allocator_calls: float = 0
    threads: float = 1
    bound: float = 0
    stalls: float = 0
    norm_traffic: float = 1
    loss_traffic: float = 1
    loss_memory: float = 1
    expert_launches: float = 8
    expert_efficiency: float = 0.55
    chunks: float = 1
    workspace: float = 0
    padding: float = 0.06
    other: float = 1
    broken: float = 0

    def apply(self, changes: Mapping[str, float], strength: float = 1.0) -> None:
        """Set what `changes` names; a leading `*` multiplies (to the power of `strength`), a leading `+` adds."""
        for name, value in changes.items():
            if name[0] == "*":
                setattr(self, name[1:], getattr(self, name[1:]) * value**strength)
            elif name[0] == "+":
                setattr(self, name[1:], getattr(self, name[1:]) + value * strength)
            else:
                setattr(self, name, value)


Constants = TypeVar("Constants", Machine, Model)


def perturbed(thing: Constants, rng: np.random.Generator) -> Constants:
    """Return `thing` with every rate and cost multiplied by its own log-normal factor; counts stay as they are."""
    changed = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, float):
            changed[field.name] = value * float(np.exp(rng.normal(0.0, SPREAD)))
    if isinstance(thing, Model):
        changed["gemm_efficiency"] = min(0.75, changed["gemm_efficiency"])
        changed["layers"] = max(2, round(thing.layers * float(np.exp(rng.normal(0.0, SPREAD)))))
    return replace(thing, **changed)
