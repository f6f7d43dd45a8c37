"""Expected improvement on a log scale, in the form that stays finite: Ament et al., NeurIPS 2023 (LogEI)."""

from __future__ import annotations

import math

import numpy as np

from infrarsi.stats.kernel import Array

MILLS_BELOW = -1.0
ASYMPTOTE_BELOW = -30.0
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def log_expected_improvement(mean: Array, sd: Array, best: float) -> Array:
    """Return log E[max(best - f, 0)] for f ~ N(mean, sd^2): smaller values of f are better."""
    z = (best - mean) / sd
    return np.log(sd) + _log_h(z)


def _log_h(z: Array) -> Array:
    """Return log(phi(z) + z Phi(z)): directly, by the Mills ratio below -1, by its asymptote below -30."""
    from scipy.special import log_ndtr, ndtr

    density = -0.5 * z**2 - HALF_LOG_TAU
    result = np.empty_like(z)
    direct = z > MILLS_BELOW
    far = z < ASYMPTOTE_BELOW
    middle = ~direct & ~far
    result[direct] = np.log(np.exp(density[direct]) + z[direct] * ndtr(z[direct]))
    mills = np.exp(log_ndtr(z[middle]) - density[middle])
    result[middle] = density[middle] + np.log1p(z[middle] * mills)
    result[far] = density[far] - 2 * np.log(-z[far])
    return result


def probability_below(mean: Array, sd: Array, threshold: float) -> Array:
    """Return P(f < threshold)."""
    from scipy.special import ndtr

    result: Array = ndtr((threshold - mean) / sd)
    return result
