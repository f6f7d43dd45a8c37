"""A small seeded projection of the parameter update, from a few sampled coordinates of each parameter.

A count sketch (Charikar, Chen, Farach-Colton 2002): each sampled coordinate is added with a random sign to one of
BUCKETS sums. Coordinates, signs and buckets follow from the parameter's canonical name and shape alone. A coordinate
whose gradient is rounding noise (key biases, idle experts) steps at random under Adam; each is therefore weighted by
g^2 / (g^2 + (FLOOR rms)^2), which is 1 for an ordinary gradient, 0 for noise, and the same for any scale of g.

Where parameters are sharded, each rank projects its own coordinates, times the number of shards: the sketch is linear,
so the mean over ranks is that of the whole update. The rms is over all ranks, which takes one reduction of two numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .coordinates import Coordinates

BUCKETS = 32
FLOOR = 1e-3
TINY = 1e-300


class Sketch:
    """The projection for one choice of coordinates (whose random numbers it goes on drawing)."""

    def __init__(self, coordinates: Coordinates) -> None:
        device = coordinates.device
        buckets: list[int] = []
        signs: list[float] = []
        for part in coordinates.parts:
            numbers = [part.source.randrange(BUCKETS) for _ in range(part.chosen)]
            directions = [part.source.choice((-1.0, 1.0)) for _ in range(part.chosen)]
            buckets += [numbers[k] for k in part.positions]
            signs += [directions[k] for k in part.positions]
        self._factors = coordinates.factors
        self._buckets = torch.tensor(buckets, dtype=torch.int64, device=device)
        self._signs = torch.tensor(signs, dtype=torch.float64, device=device) * coordinates.factors
        self._count = coordinates.factors.sum()
        self._nothing = torch.zeros(BUCKETS, dtype=torch.float64, device=device)

    def squares(self, gradients: Tensor, there: Tensor | None) -> Tensor:
        """Return (sum of squares, count) of the gradients, each times its factor: what `project` takes, summed over
        the ranks where parameters are sharded."""
        if there is None:
            return torch.stack((torch.dot(gradients * gradients, self._factors), self._count))
        counted = self._factors * there
        return torch.stack((torch.dot(gradients * gradients, counted), counted.sum()))

    def project(self, change: Tensor, gradients: Tensor | None, there: Tensor | None, squares: Tensor | None) -> Tensor:
        """Return the sketch of a change (BUCKETS sums, float64), weighted by its gradients.

        The weight is 1 where there is no gradient, and everywhere where `gradients` is None.
        """
        if gradients is not None and squares is not None:
            square = gradients * gradients
            weights = square / (square + FLOOR * FLOOR * (squares[0] / squares[1]) + TINY)
            change = change * (weights if there is None else torch.where(there, weights, 1.0))
        return self._nothing.index_add(0, self._buckets, change * self._signs)
