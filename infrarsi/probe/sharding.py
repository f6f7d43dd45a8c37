"""What a rank holds of a sharded tensor (DTensor: FSDP2, tensor parallelism), and sums over those ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .model import local

Number = Tensor | float


def shards(tensor: Tensor) -> int | None:
    """Return into how many shards a tensor is split: 1 where this rank holds all of it.

    None where what this rank holds cannot be placed: sums that are still to be reduced, interleaved shards, a
    FlatParameter of FSDP1 and the like.
    """
    if type(tensor).__name__ == "FlatParameter" or hasattr(tensor, "_local_shape"):
        return None
    placements: Any = getattr(tensor, "placements", None)
    if placements is None:
        return 1
    count = 1
    for number, placement in enumerate(placements):
        if type(placement).__name__ == "Shard":
            count *= int(tensor.device_mesh.size(number))  # type: ignore[attr-defined]
        elif not placement.is_replicate():
            return None
    return count


def box(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape, offset in each dimension) of the part of a DTensor that this rank holds."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    described: Any = tensor
    shape, offset = compute_local_shape_and_global_offset(described.shape, described.device_mesh, described.placements)
    return tuple(shape), tuple(offset) or (0,) * len(shape)


def number_of(tensor: Tensor) -> Number:
    """Return a scalar as a number where that waits for nothing (CPU), else as a float64 copy on its device.

    A copy, since a captured graph writes its next loss into the same tensor.
    """
    if tensor.device.type == "cpu":
        return float(tensor.item())
    number = tensor.detach().to(torch.float64, copy=True)
    return number.reshape(()) if number.ndim else number


def norm_square(norm: Tensor) -> Number:
    """Return the square of a norm that torch computed, such that the mean over ranks is the whole one's square.

    Of a 2-norm that is still to be reduced (DTensor's partial norms) each rank holds the norm of its shards. Other
    partial norms are reduced here: a collective, in a call that was one for every rank.
    """
    placements: Any = getattr(norm, "placements", None)
    if placements is None:
        number = number_of(norm)
        return number * number
    open_ones = [number for number, placement in enumerate(placements) if placement.is_partial()]
    if all(getattr(placements[number], "norm_type", None) == 2 for number in open_ones):
        number = number_of(local(norm))
        factor = 1
        for dimension in open_ones:
            factor *= int(norm.device_mesh.size(dimension))  # type: ignore[attr-defined]
        return number * number * factor
    whole = number_of(norm.full_tensor())  # type: ignore[attr-defined]
    return whole * whole


class Ranks:
    """The ranks that together hold the shards of a model. ValueError where no one set of them can be told."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        import torch.distributed as dist

        self._reduce: Any = dist.all_reduce
        meshes: list[Any] = []
        dimensions: set[int] = set()
        for parameter in parameters:
            mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
            if mesh is not None and mesh not in meshes:
                meshes.append(mesh)
            dimensions |= {number for number, placement in enumerate(placements) if placement.is_shard()}
        if any(mesh.size() == dist.get_world_size() for mesh in meshes):
            self._groups: list[Any] = [None]
        elif len(meshes) == 1:
            self._groups = [meshes[0].get_group(number) for number in sorted(dimensions)]
        else:
            raise ValueError("the parameters are sharded over several sets of ranks")

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks. A collective: all of them call it at the close of every optimizer step."""
        for group in self._groups:
            self._reduce(values, group=group)
        return values


def scales(parameters: Iterable[Tensor]) -> Tensor | None:
    """Return each tensor's number of shards, float64; None where every one is 1."""
    counts = [shards(p) or 1 for p in parameters]
    return None if all(count == 1 for count in counts) else torch.tensor(counts, dtype=torch.float64)
