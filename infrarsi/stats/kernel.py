"""The covariance of an additive model with pairwise interactions over on/off effects.

An effect is one level of one knob other than the baseline's. A point is a row of zeros and ones over the effects, at
most one per knob; the baseline is the row of zeros. Between points x and x'

    k(x, x') = offset^2 + sum_a R_a s_a s'_a + lam^2 sum_{a<b} u_a u_b,      u_a = R_a sqrt(s_a s'_a)

where a runs over knobs, R_a is the correlation of the two levels (identity for nominal knobs, exp(-distance / 2) for
ordinal ones) and s the prior standard deviations. The interaction of two effects then has the standard deviation
lam sqrt(s_a s_b): of their own size, where a product of variances would be either nothing or everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OFFSET_SD = 0.03  # the whole session may sit a few percent beside the calibrated baseline (3 to 5 % were measured)
ORDINAL_RANGE = 2.0


@dataclass(frozen=True)
class Layout:
    """Which effects exist: `knob[e]` and `position[e]` (rank of its level), `ordinal[e]`; arrays of length E."""

    knob: NDArray[np.int64]
    position: Array
    ordinal: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Number of effects E."""
        return int(self.knob.size)

    def correlation(self) -> Array:
        """Return R, E by E: zero between knobs, one on the diagonal, decaying between levels of an ordinal knob."""
        same = self.knob[:, None] == self.knob[None, :]
        distance = np.abs(self.position[:, None] - self.position[None, :])
        decay = np.where(self.ordinal[:, None], np.exp(-distance / ORDINAL_RANGE), 0.0)
        result: Array = np.where(same, decay, 0.0)
        np.fill_diagonal(result, 1.0)
        return result


def covariance(left: Array, right: Array, correlation: Array, sd: Array, interaction: float) -> Array:
    """Return k between the rows of `left` (n by E) and `right` (m by E); `sd` of length E."""
    main, pairs = components(left, right, correlation, sd)
    result: Array = OFFSET_SD**2 + main + interaction**2 * pairs
    return result


def components(left: Array, right: Array, correlation: Array, sd: Array) -> tuple[Array, Array]:
    """Return the main and the pairwise part of k (n by m). Both scale with c^2 when `sd` is multiplied by c."""
    main = correlation * np.outer(sd, sd)
    root = np.sqrt(sd)
    shared = correlation * np.outer(root, root)
    total = left @ shared @ right.T
    squares = left @ (shared**2) @ right.T
    return left @ main @ right.T, 0.5 * (total**2 - squares)


def variance(points: Array, sd: Array, interaction: float) -> Array:
    """Return k(x, x) for each row; active effects belong to different knobs, so their correlation is one."""
    squares = points @ (sd**2)
    total = points @ sd
    result: Array = OFFSET_SD**2 + squares + 0.5 * interaction**2 * (total**2 - squares)
    return result


def effect_covariance(points: Array, correlation: Array, sd: Array) -> Array:
    """Return cov(beta_e, f(x)), E by n: the main effects alone, without offset and interactions."""
    result: Array = (correlation * np.outer(sd, sd)) @ points.T
    return result
