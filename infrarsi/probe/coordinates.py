"""A few sampled coordinates of each parameter, read as one vector: the same ones whatever shards the parameter.

They are chosen on the flat index of the whole parameter, seeded by its canonical name and shape; each rank reads those
that its shard holds. `factor` is the number of shards: the mean over ranks of factor times what each rank holds is what
one process that holds everything would have.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .model import local
from .sharding import box, shards
from .statemap import cut, lead_of, whole_of

COORDINATES = 8


class Unreadable(RuntimeError):
    """Sampled coordinates that cannot be read; the message says why."""


class Part:
    """The sampled coordinates of one parameter that this rank holds: `count` of them, at `begin` in the vector.

    `flat` are their indices in what this rank holds (of `shape`), `positions` their numbers among all the parameter's
    coordinates, of which there are `chosen`; `source` is where their choice left the parameter's random numbers.
    """

    def __init__(
        self,
        parameter: Tensor,
        begin: int,
        flat: list[int],
        shape: Sequence[int],
        positions: list[int],
        chosen: int,
        source: random.Random,
    ) -> None:
        self.parameter = parameter
        self.begin = begin
        self.flat = flat
        self.count = len(flat)
        self.positions = positions
        self.chosen = chosen
        self.source = source
        self.factor = float(shards(parameter) or 1)
        self.placements = getattr(parameter, "placements", None)
        self._shape = tuple(shape)
        self.complex = parameter.is_complex()
        steps = {b - a for a, b in pairwise(flat)}
        self.even = len(steps) <= 1
        self.offset = flat[0]
        self.size, self.stride = (self.count,), (steps.pop() if len(steps) == 1 else 1,)
        # What a plain view takes; of a parameter that has none, nothing that can be taken apart.
        self.plain: Any = None
        lead = lead_of(parameter)
        if self.even and not self.complex and lead is not None:
            self.plain = (whole_of(parameter), self.size, self.stride, lead + self.offset)
        self._places: tuple[Tensor, ...] | None = None

    @property
    def end(self) -> int:
        """Where the part ends in the vector."""
        return self.begin + self.count

    def of(self, tensor: Tensor) -> Tensor:
        """Return the coordinates of this rank's plain tensor: a parameter, its gradient or state of its optimizer.

        Evenly spaced ones of a contiguous tensor are a view, which costs less than an index.
        """
        if self.complex:
            tensor = torch.view_as_real(tensor.detach())
        if tensor.is_sparse:
            return self._of_sparse(tensor)
        if self.even and tensor.is_contiguous():
            return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)
        return tensor[self._indices(tensor.device)]

    def _indices(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the indices per dimension."""
        if self._places is None:
            flat, columns = torch.tensor(self.flat, device=device), []
            for size in reversed(self._shape):
                columns.append(flat % size)
                flat = flat // size
            self._places = tuple(reversed(columns))
        return self._places

    def _of_sparse(self, tensor: Tensor) -> Tensor:
        """Add up the entries of a sparse gradient that fall on the coordinates (rows may be listed more than once)."""
        rows, values = tensor._indices(), tensor._values()
        places = self._indices(values.device)
        hit = torch.ones(self.count, rows.shape[1], dtype=torch.bool, device=values.device)
        for dimension in range(tensor.sparse_dim()):
            hit &= places[dimension][:, None] == rows[dimension][None]
        at: Any = (slice(None), *places[tensor.sparse_dim() :])
        return torch.where(hit, values[at].T, 0.0).sum(dim=1)


class Coordinates:
    """The sampled coordinates of all trainable parameters, in the order of their names."""

    def __init__(self, pairs: list[tuple[str, Tensor]]) -> None:
        self.parts: list[Part] = []
        self.size = 0
        self.unreadable: set[str] = set()
        trained = [(name, p) for name, p in pairs if p.requires_grad and p.numel() > 0]
        for name, parameter in trained:
            self._add(name, parameter)
        # Of the whole model, not of what this rank happens to hold: all ranks must decide alike.
        self.sharded = any((shards(p) or 1) > 1 for _, p in trained)
        self.device = local(trained[0][1]).device if trained else torch.device("cpu")
        factors = [part.factor for part in self.parts for _ in part.flat]
        self.factors = torch.tensor(factors, dtype=torch.float64, device=self.device)
        epsilons = [torch.finfo(part.parameter.dtype).eps for part in self.parts for _ in part.flat]
        self.epsilons = torch.tensor(epsilons, dtype=torch.float64, device=self.device)
        self._wholes = [whole_of(part.parameter) for part in self.parts]
        self._special = any(_is_special(whole, self.device) for whole in self._wholes)
        self._by_parameter: dict[int, list[Part]] = {}
        for whole, part in zip(self._wholes, self.parts, strict=True):
            self._by_parameter.setdefault(id(whole), []).append(part)
        self._views: list[Tensor] = []
        self._pointers: list[int] = []

    def _add(self, name: str, parameter: Tensor) -> None:
        count, whole = shards(parameter), [*parameter.shape, *((2,) if parameter.is_complex() else ())]
        shape, begins = whole, [0] * len(whole)
        if count is None or (count > 1 and box(parameter)[0] != tuple(local(parameter).shape)):
            self.unreadable.add(name)
            return
        if count > 1:
            held, offsets = box(parameter)
            shape, begins = [*held, *whole[len(held) :]], [*offsets, *begins[len(held) :]]
        source = random.Random(hashlib.blake2b(f"{name}:{tuple(parameter.shape)}".encode(), digest_size=8).digest())
        chosen, offset, stride = spots(math.prod(whole), source)
        positions, flat = _inside([offset + k * stride for k in range(chosen)], whole, shape, begins)
        if flat:
            self.parts.append(Part(parameter, self.size, flat, shape, positions, chosen, source))
            self.size += len(flat)

    def parts_of(self, parameter: Tensor) -> list[Part]:
        """Return the part of a parameter, those of its slices where a state map has it as several; none where none of
        its coordinates lies on this rank."""
        return self._by_parameter.get(id(parameter), [])

    def weights(self) -> Tensor:
        """Return the weights at the coordinates, float64. Unreadable where they have been taken away.

        The views are kept, so that no storage that they belong to can be replaced by another one at the same address:
        equal addresses mean equal storages. One that was replaced is let go at the next call.
        """
        if not self.parts:
            return self.factors.new_zeros(0)
        with torch.no_grad():
            wholes = [local(whole) for whole in self._wholes] if self._special else self._wholes
            pointers = [whole.data_ptr() for whole in wholes]
            if pointers != self._pointers or 0 in pointers:
                try:
                    values = [cut(p.parameter, w.detach()) for p, w in zip(self.parts, wholes, strict=True)]
                    views = [p.of(v).to(self.device) for p, v in zip(self.parts, values, strict=True)]
                except (RuntimeError, IndexError) as error:
                    raise Unreadable(f"the weights: {error}") from error
                aliased = all(p.even and v.is_contiguous() for p, v in zip(self.parts, values, strict=True))
                aliased = aliased and all(v.device == self.device for v in values)
                self._views, self._pointers = (views, pointers) if aliased else ([], [])
            else:
                views = self._views
            return torch.cat(views).double()

    def gradients(self, parts: Sequence[Part]) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of some parts as one vector (0 where there is none), and which are there (None: all).

        Nothing of them is kept: most trainers free gradients between steps.
        """
        if not parts:
            return self.factors.new_zeros(0), None
        with torch.no_grad():
            views = None if self._special else _plain_views(parts)
            if views is not None:
                return torch.cat(views).double(), None
            return self._gradients_one_by_one(parts)

    def _gradients_one_by_one(self, parts: Sequence[Part]) -> tuple[Tensor, Tensor | None]:
        views: list[Tensor] = []
        there: list[bool] = []
        for part in parts:
            gradient = part.parameter.grad
            if gradient is not None and self._special:
                gradient = self._plain(part, gradient)
            there += [gradient is not None] * part.count
            views.append(self.factors.new_zeros(part.count) if gradient is None else part.of(gradient))
        return torch.cat(views).double(), None if all(there) else torch.tensor(there, device=self.device)

    def _plain(self, part: Part, gradient: Tensor) -> Tensor | None:
        """Return what this rank holds of a gradient; None where it is laid out otherwise than its parameter."""
        if getattr(gradient, "placements", None) != part.placements:
            self.unreadable.add("a gradient that is still to be reduced")
            return None
        return local(gradient).to(self.device)


def _plain_views(parts: Sequence[Part]) -> list[Tensor] | None:
    """Return views of all gradients; None where one is absent, sparse or not contiguous.

    This is most of what the probe costs in a step, so it looks at nothing twice.
    """
    try:
        views = [
            gradient.as_strided(size, stride, gradient.storage_offset() + offset)
            for parameter, size, stride, offset in [part.plain for part in parts]
            if (gradient := parameter.grad).is_contiguous()
        ]
    except (AttributeError, RuntimeError, TypeError):
        return None
    return views if len(views) == len(parts) else None


def spots(elements: int, source: random.Random) -> tuple[int, int, int]:
    """Return (count, offset, stride) of evenly spaced coordinates of a flat tensor, shifted at random."""
    count = min(COORDINATES, elements)
    stride = elements // count
    return count, source.randrange(elements - stride * (count - 1)), stride


def _inside(chosen: list[int], whole: list[int], shape: list[int], begins: list[int]) -> tuple[list[int], list[int]]:
    """Return (positions in `chosen`, flat index within the box) of the flat indices that lie in the box."""
    positions: list[int] = []
    flat: list[int] = []
    for position, index in enumerate(chosen):
        inner, scale = 0, 1
        for size, length, begin in zip(reversed(whole), reversed(shape), reversed(begins), strict=True):
            index, place = divmod(index, size)
            if not begin <= place < begin + length:
                break
            inner += (place - begin) * scale
            scale *= length
        else:
            positions.append(position)
            flat.append(inner)
    return positions, flat


def _is_special(parameter: Tensor, device: torch.device) -> bool:
    return local(parameter) is not parameter or parameter.device != device or parameter.is_complex()
