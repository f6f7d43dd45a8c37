"""Presents slices of a parameter that is laid out otherwise (a fused qkv matrix) under the baseline's names.

Whatever the probe observes of parameters goes through the pairs of name and parameter, so a slice takes a parameter's
place there: its weights and its gradient are live views of the fused one's. What a map may say was settled by the
launcher, which knows the baseline's names and shapes; here it is held against the model that trains. A slice is one of
a plain tensor: sharded ones are refused, since a slice of a shard is none of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .sharding import shards


class StateMapError(ValueError):
    """A map that does not fit the model that trains; the message says why."""


class Piece(NamedTuple):
    """One old parameter: its name and its shape."""

    name: str
    shape: tuple[int, ...]


class Mapped(NamedTuple):
    """One new parameter, which is its pieces one after another along `dim`."""

    new: str
    dim: int
    dtype: str
    pieces: tuple[Piece, ...]


class Slice(Tensor):
    """A part of a parameter under a name of its own, along `axis` from `begin`.

    It has a shape and no memory (device "meta"): what is read of it is read of the whole at that moment, and no storage
    that a trainer has replaced is kept alive.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    whole: Tensor
    axis: int
    begin: int
    length: int

    @staticmethod
    def of(whole: Tensor, axis: int, begin: int, length: int) -> Slice:
        """Return the slice of `length` from `begin` along a dimension."""
        shape = list(whole.shape)
        shape[axis] = length
        made: Any = Tensor._make_subclass(Slice, torch.empty(shape, dtype=whole.dtype, device="meta"))
        made.whole, made.axis, made.begin, made.length = whole, axis, begin, length
        found: Slice = made
        return found

    def cut(self, tensor: Tensor) -> Tensor:
        """Return this slice of a tensor that is laid out as the whole is: its weights, gradient, optimizer state."""
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        return tensor.detach().narrow(self.axis, self.begin, self.length)

    @property
    def _local_tensor(self) -> Tensor:
        return self.cut(self.whole)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The type that the whole has now."""
        return self.whole.dtype

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the whole is trained now."""
        return self.whole.requires_grad

    def full_tensor(self) -> Tensor:
        """Return the weights as they are now."""
        return self.cut(self.whole).contiguous()

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """The gradient as it is now: a view of the whole's."""
        gradient = self.whole.grad
        return None if gradient is None else self.cut(gradient)


def whole_of(parameter: Tensor) -> Tensor:
    """Return the parameter that an optimizer steps."""
    return parameter.whole if isinstance(parameter, Slice) else parameter


def lead_of(parameter: Tensor) -> int | None:
    """Return where a parameter begins in the flat one that an optimizer steps; None where it lies in pieces there."""
    if not isinstance(parameter, Slice):
        return 0
    return parameter.begin * math.prod(parameter.whole.shape[1:]) if parameter.axis == 0 else None


def cut(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return what a piece of an optimizer's state says of a parameter, or of a slice."""
    return parameter.cut(tensor) if isinstance(parameter, Slice) else tensor


class StateMap:
    """The map of one execution; empty where nothing is laid out otherwise."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._mapped = {str(entry["new"]): _mapped(entry) for entry in entries}

    def __bool__(self) -> bool:
        return bool(self._mapped)

    def names(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that are presented for the names of a model's parameters."""
        found: set[str] = set()
        for name in names:
            mapped = self._mapped.get(name)
            found |= {name} if mapped is None else {piece.name for piece in mapped.pieces}
        return frozenset(found)

    def present(self, pairs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Return the pairs by name, mapped parameters as their slices. StateMapError where the map does not fit."""
        if not self._mapped:
            return list(pairs)
        found: list[tuple[str, Tensor]] = []
        missing = self._mapped.keys() - {name for name, _ in pairs}
        if missing:
            raise StateMapError(f"the state map names {min(missing)}, which the model does not have")
        for name, parameter in pairs:
            mapped = self._mapped.get(name)
            found += [(name, parameter)] if mapped is None else _slices(mapped, parameter)
        found.sort(key=lambda pair: pair[0])
        for (name, _), (following, _) in pairwise(found):
            if name == following:
                raise StateMapError(f"the state map makes {name}, which the model has as well")
        return found


def _mapped(entry: Mapping[str, Any]) -> Mapped:
    pieces = tuple(Piece(str(name), tuple(int(n) for n in shape)) for name, shape in entry["pieces"])
    return Mapped(str(entry["new"]), int(entry["dim"]), str(entry["dtype"]), pieces)


def _slices(mapped: Mapped, parameter: Tensor) -> list[tuple[str, Tensor]]:
    """Return the slices of one parameter by name. StateMapError where they are no exact partition of it."""
    new, dim = mapped.new, mapped.dim
    if shards(parameter) != 1 or getattr(parameter, "placements", None) is not None:
        raise StateMapError(f"{new} is sharded: a state map holds for whole parameters only (one process, or DDP)")
    dtype = str(parameter.dtype).removeprefix("torch.")
    if dtype not in (mapped.dtype, "float64"):  # a replay in double precision widens every parameter
        raise StateMapError(f"{new} is {dtype}; what the state map puts there was {mapped.dtype}")
    shape = tuple(int(n) for n in parameter.shape)
    wanted = list(mapped.pieces[0].shape)
    wanted[dim] = sum(piece.shape[dim] for piece in mapped.pieces)
    if shape != tuple(wanted):
        raise StateMapError(f"{new} has shape {shape}; the parts that the state map names make {tuple(wanted)}")
    found: list[tuple[str, Tensor]] = []
    begin = 0
    for piece in mapped.pieces:
        found.append((piece.name, Slice.of(parameter, dim, begin, piece.shape[dim])))
        begin += piece.shape[dim]
    return found
