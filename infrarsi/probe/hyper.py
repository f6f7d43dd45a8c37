"""Hyper-parameters of the optimizers, per parameter group and step."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

# How a step is computed (not what it computes), the parameters themselves, and what schedulers leave behind.
NOT_HYPER = frozenset(
    ("params", "param_names", "fused", "foreach", "capturable", "differentiable", "initial_lr", "swa_lr", "max_lr")
)
Group = tuple[str, int, tuple[tuple[str, Any], ...]]


def groups_of(optimizer: Optimizer) -> tuple[Group, ...]:
    """Return (optimizer class, group index, sorted values) of each group, with the group's element count."""
    name = type(optimizer).__name__
    out: list[Group] = []
    for index, group in enumerate(optimizer.param_groups):
        values = [(str(key), scalar(value)) for key, value in group.items() if key not in NOT_HYPER]
        values.append(("elements", sum(map(Tensor.numel, group["params"]))))
        out.append((name, index, tuple(sorted(values))))
    return tuple(out)


def scalar(value: Any) -> str | int | float | bool:
    """Return a value as JSON has it; a tensor learning rate as its number, anything compound as text."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    if isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(str(scalar(item)) for item in value) + ")"
    return str(value)


def digest_of(groups: tuple[Group, ...]) -> str:
    """Return a short digest of all groups of one step."""
    return hashlib.sha256(json.dumps(groups, default=str).encode()).hexdigest()[:16]


def message_of(groups: tuple[Group, ...]) -> list[dict[str, Any]]:
    """Return the groups as the `hyper` message and RankEnd have them."""
    return [
        {"optimizer": name, "group": index, "values": [[key, value] for key, value in values]}
        for name, index, values in groups
    ]
