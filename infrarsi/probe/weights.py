"""Weights, buffers and gradients under their canonical names: whole, whatever shards them, to files and back.

A sharded tensor is gathered one at a time (`DTensor.full_tensor`, a collective: every rank calls it for every name, in
the order of the names), and only the first rank writes, so that what DDP, FSDP2 or one process wrote is the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .model import INNER_PREFIXES, local, unwrap

BUFFER = "buffer:"
Pairs = Sequence[tuple[str, Tensor]]


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor, detached. A collective where the tensor is sharded."""
    gather = getattr(tensor, "full_tensor", None)
    return (gather() if gather is not None else tensor).detach()


def weights_of(module: nn.Module, pairs: Pairs) -> dict[str, Tensor]:
    """Return parameters and persistent buffers; the buffers' names begin with `buffer:`."""
    found = dict(pairs)
    found.update({BUFFER + name: value for name, value in persistent_buffers(module)})
    return found


def gradients_of(pairs: Pairs) -> dict[str, Tensor]:
    """Return the gradients that are there."""
    return {name: p.grad for name, p in pairs if p.grad is not None}


def persistent_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return what a state dict of the unwrapped model holds beside its parameters, by canonical name."""
    found: list[tuple[str, Tensor]] = []
    for prefix, part in unwrap(module).named_modules():
        for name, value in part._buffers.items():
            if value is not None and name not in part._non_persistent_buffers_set:
                full = f"{prefix}.{name}" if prefix else name
                for inner in INNER_PREFIXES:
                    full = full.replace(inner, "")
                found.append((full, value))
    return sorted(found, key=lambda pair: pair[0])


def save(path: Path, tensors: Mapping[str, Tensor], *, write: bool, about: Mapping[str, Any] | None = None) -> None:
    """Write {"about": …, "tensors": {name: tensor on the host}}; without `write` only take part in the gathering.

    OSError where the disk is full. Tensors that are on the host and whole are written from where they lie.
    """
    held: dict[str, Tensor] = {}
    for name in sorted(tensors):
        value = whole(tensors[name])
        if write:
            value = value.cpu()
            # Of a view (a slice of a fused parameter) torch would write the storage that it lies in.
            part = not value.is_sparse and value.untyped_storage().nbytes() > value.nbytes
            held[name] = value.clone() if part else value
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save({"about": dict(about or {}), "tensors": held}, partial)
        partial.replace(path)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `save` wrote: (about, tensors mapped from the file). Nothing but tensors and plain values loads."""
    content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    return content["about"], content["tensors"]


def load(module: nn.Module, pairs: Pairs, saved: Mapping[str, Tensor]) -> None:
    """Copy saved weights into a model, whatever shards it. ValueError where a name is missing or a shape differs."""
    buffers = [(BUFFER + name, value) for name, value in persistent_buffers(module)]
    with torch.no_grad():
        for name, target in (*pairs, *buffers):
            value = saved.get(name)
            if value is None and name.startswith(BUFFER):
                continue  # one that only this code has, such as a table of positions
            if value is None or value.shape != target.shape:
                there = "absent" if value is None else f"of shape {tuple(value.shape)}"
                raise ValueError(f"{name} has shape {tuple(target.shape)}; in the saved weights it is {there}")
            local(target).copy_(_part_of(value, target))


def _part_of(value: Tensor, target: Tensor) -> Tensor:
    """Return what this rank holds of a whole tensor."""
    placements = getattr(target, "placements", None)
    if placements is None:
        return value
    from torch.distributed.tensor import distribute_tensor

    device = local(target).device
    # Every rank has read the whole tensor, so nothing is sent.
    sharded = distribute_tensor(value.to(device), target.device_mesh, placements, src_data_rank=None)  # type: ignore[attr-defined]
    return local(sharded)
