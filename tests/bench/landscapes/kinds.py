"""Kinds of jobs: machine, model, and which options each has; seeds perturb all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import options as o
from .job import Machine, Model
from .options import Option


@dataclass(frozen=True)
class Kind:
    """One kind of job. `tightness`: range of the device's memory over what the baseline reserves."""

    machine: Machine
    model: Model
    knobs: Callable[[], list[Option]]
    stalls: float
    tightness: tuple[float, float]
    noise: tuple[float, float]
    patches: int = 10


def _machine(devices: int, nodes: int, inter: float = 25e9, launch: float = 6e-6, cores: int = 16) -> Machine:
    return Machine(devices, nodes, 4e14, 2e12, 2e11, inter, 1.2e-5, launch, cores * devices, 1.2e10)


def _model(layers: int, hidden: int, sequence: int, samples: int, experts: int = 0, decode: float = 2e-4) -> Model:
    return Model(
        layers, hidden, hidden // 64, sequence, 50_000, samples, experts, 2, decode, 8.0 * sequence, 0.5, 1500.0,
        0.25, 8e-3,
    )  # fmt: skip


def _one_device() -> list[Option]:
    return [
        o.counted("micro_batch", "micro", [4, 1, 2, 8, 16, 32]),
        o.chosen("checkpointing", o.CHECKPOINTING, ["none", "selective", "full"], ordinal=True),
        o.chosen("compile", o.COMPILE, ["eager", "default", "reduce-overhead", "max-autotune"]),
        o.chosen("attention", o.ATTENTION, ["math", "efficient", "flash"]),
        o.chosen("optimizer", o.OPTIMIZER, ["for-loop", "foreach", "fused"]),
        *o.LOADER,
        *o.HOST,
    ]


def _node() -> list[Option]:
    sharding = o.chosen("sharding", o.SHARDING, ["ddp", "zero1", "zero2", "zero3"])
    return [*_one_device(), sharding, *o.SHARDED, *o.COLLECTIVES]


def _cluster() -> list[Option]:
    sharding = o.chosen("sharding", o.SHARDING, ["zero3", "ddp", "zero1", "zero2", "hybrid"])
    kept = [k for k in _node() if k.name not in ("sharding", "prefetch_factor", "gc_threshold")]
    return [*kept, sharding, o.counted("tensor_parallel", "tensor", [1, 2, 4, 8])]


def _experts(base: Callable[[], list[Option]], most: list[float]) -> Callable[[], list[Option]]:
    return lambda: [
        *base(),
        o.chosen("dispatch", o.DISPATCH, ["loop", "sorted", "grouped", "padded"]),
        *([o.counted("expert_parallel", "expert", most), o.counted("chunks", "chunks", [1, 2, 4])] if most else []),
    ]


KINDS: dict[str, Kind] = {
    "small-device": Kind(_machine(1, 1), _model(12, 768, 512, 64), _one_device, 1.0, (1.1, 2.0), (0.01, 0.06)),
    "loader-bound": Kind(
        _machine(1, 1, cores=8), _model(10, 512, 256, 128, decode=4e-3), _one_device, 0.3, (1.2, 2.0), (0.02, 0.08)
    ),
    "long-context": Kind(_machine(1, 1), _model(16, 1024, 4096, 32), _one_device, 0.3, (1.05, 1.4), (0.006, 0.04)),
    "dense-node": Kind(_machine(8, 1), _model(24, 2048, 1024, 256), _node, 0.5, (1.1, 1.6), (0.01, 0.06)),
    "dense-cluster": Kind(_machine(8, 4), _model(32, 4096, 2048, 1024), _cluster, 0.3, (1.1, 1.6), (0.02, 0.08)),
    "expert-device": Kind(
        _machine(1, 1), _model(8, 768, 512, 64, 8), _experts(_one_device, []), 0.6, (1.1, 1.7), (0.01, 0.05)
    ),
    "expert-cluster": Kind(
        _machine(8, 4), _model(16, 2048, 1024, 1024, 32), _experts(_cluster, [8, 1, 4, 16, 32]), 0.3, (1.1, 1.6),
        (0.02, 0.08), 8,
    ),
}  # fmt: skip
