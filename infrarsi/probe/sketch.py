"""A small seeded projection of the parameter update, from a few sampled coordinates of each parameter.

A count sketch (Charikar, Chen, Farach-Colton 2002): each sampled coordinate is added with a random sign to one of
BUCKETS sums. Coordinates, signs and buckets follow from the parameter's canonical name and shape alone. A coordinate
whose gradient is rounding noise (key biases, idle experts) steps at random under Adam; each is therefore weighted by
g^2 / (g^2 + (FLOOR rms)^2), which is 1 for an ordinary gradient, 0 for noise, and the same for any scale of g.
"""

from __future__ import annotations

import hashlib
import random

import torch
from torch import Tensor

from .model import is_sharded, local

BUCKETS = 32
COORDINATES = 8
FLOOR = 1e-3


class UpdateSketch:
    """Follows the sampled coordinates over the steps. `total` is the sum since the last `take`."""

    def __init__(self, pairs: list[tuple[str, Tensor]]) -> None:
        self._parameters = [p for _, p in pairs if p.requires_grad and local(p).numel() > 0]
        self.sharded = any(is_sharded(p) for p in self._parameters)
        self._spots: list[tuple[int, int, int]] = []
        buckets: list[int] = []
        signs: list[float] = []
        for name, parameter in pairs:
            if not (parameter.requires_grad and local(parameter).numel() > 0):
                continue
            seed = f"{name}:{tuple(parameter.shape)}"
            source = random.Random(hashlib.blake2b(seed.encode(), digest_size=8).digest())
            spot = spots(local(parameter).numel(), source)
            self._spots.append(spot)
            buckets += [source.randrange(BUCKETS) for _ in range(spot[0])]
            signs += [source.choice((-1.0, 1.0)) for _ in range(spot[0])]
        self._device = local(self._parameters[0]).device if self._parameters else torch.device("cpu")
        self._buckets = torch.tensor(buckets, dtype=torch.int64, device=self._device)
        self._signs = torch.tensor(signs, dtype=torch.float64, device=self._device)
        self._special = any(local(p) is not p or p.device != self._device for p in self._parameters)
        self._before = self._sample(None)
        self._total: Tensor | None = None

    def update(self, *, weighted: bool = True) -> None:
        """Add the change since the last call, weighted by the gradients that are there (1 where there is none)."""
        after = self._sample(None)
        change = after - self._before
        self._before = after
        if weighted:
            gradients = self._sample("grad")
            squares = gradients * gradients
            rms = squares.nanmean()
            weights = torch.nan_to_num(squares / (squares + FLOOR * FLOOR * rms), nan=1.0)
            change = change * weights
        sums = torch.zeros(BUCKETS, dtype=torch.float64, device=self._device)
        sums.index_add_(0, self._buckets, change * self._signs)
        self._total = sums if self._total is None else self._total + sums

    def take(self) -> Tensor | None:
        """Return the sums since the last take (float64, BUCKETS of them) and start anew."""
        total, self._total = self._total, None
        return total

    def _sample(self, attribute: str | None) -> Tensor:
        """Return the sampled coordinates of all parameters (or gradients, nan where there is none) in one vector."""
        if not self._parameters:
            return torch.zeros(0, dtype=torch.float64)
        parts: list[Tensor] = []
        with torch.no_grad():
            for parameter, (count, offset, stride) in zip(self._parameters, self._spots, strict=True):
                value = parameter if attribute is None else parameter.grad
                if value is None:
                    parts.append(torch.full((count,), float("nan"), device=self._device))
                    continue
                if self._special:
                    value = local(value).detach().to(self._device)
                if value.is_contiguous():  # a view: building it costs less than an index
                    parts.append(value.as_strided((count,), (stride,), value.storage_offset() + offset))
                else:
                    parts.append(value.reshape(-1)[offset::stride][:count])
            if len({part.dtype for part in parts}) > 1:
                parts = [part.double() for part in parts]
            return torch.cat(parts).double()


def spots(elements: int, source: random.Random) -> tuple[int, int, int]:
    """Return (count, offset, stride) of evenly spaced coordinates of a flat tensor, shifted at random."""
    count = min(COORDINATES, elements)
    stride = elements // count
    return count, source.randrange(elements - stride * (count - 1)), stride
