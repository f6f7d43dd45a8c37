"""Peak memory with out-of-memory trials as what they are: "at least the budget", not a number and not nothing.

The model is that of gaussian.py on log peak bytes. An out-of-memory trial adds the factor Phi((f - log budget) / sigma)
to the likelihood; expectation propagation (Minka 2001; Rasmussen and Williams, Gaussian Processes, section 3.6) turns
it into a Gaussian pseudo-observation, after which the fit is an ordinary one with a noise variance per trial.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from infrarsi.stats.gaussian import Data, Grid, Hyper, Posterior, refine, search_grid
from infrarsi.stats.kernel import Array, Layout, components

DAMPING = 0.6
SWEEPS = 12
SMALLEST_PRECISION = 1e-9
SITE_SD = 0.02
CONVERGED = 1e-5
MEMORY_GRID = Grid(noise=((0.006, -0.2), (0.012, 0.0), (0.03, -0.2)))


@dataclass(frozen=True)
class Censored:
    """Out-of-memory trials: `points` k by E, `means` k by S, `limit` k log ratios of budget to baseline peak."""

    points: Array
    means: Array
    limit: Array


def fit_memory(layout: Layout, sd: Array, seen: Data, censored: Censored, grid: Grid = MEMORY_GRID) -> Posterior:
    """Fit log peak memory to measured peaks and to out-of-memory trials.

    `seen.noise_sd` are factors on the grid's noise (ones, usually). The grid is searched on what was measured; what is
    censored then enters by EP, so that one failure shifts the prediction of everything that shares its effects.
    """
    hyper = _grid_with_censoring(layout, sd, seen, censored, grid)
    base = (seen.noise_sd * hyper.noise) ** 2
    posterior = Posterior(layout, layout.correlation(), sd * hyper.scale, hyper, seen, base)
    if not censored.limit.size:
        # Allocator figures are nearly deterministic: no stragglers to be robust against.
        return refine(posterior, base, robust_noise=False) if seen.y.size else posterior
    joined = _with_sites(posterior, censored)
    refined = refine(joined, joined.noise_variance, robust_noise=False)
    # The sites were found under the scales before EM; once more under the ones after it.
    again = replace(refined, data=seen, noise_variance=base)
    return _with_sites(again, censored)


def _grid_with_censoring(layout: Layout, sd: Array, seen: Data, censored: Censored, grid: Grid) -> Hyper:
    """Choose hyper-parameters by the evidence of the peaks plus log Phi of every out-of-memory trial."""
    parts = components(seen.points, seen.points, layout.correlation(), sd)
    hyper = search_grid(layout, sd, seen, grid, parts)
    if not censored.limit.size:
        return hyper
    from scipy.special import log_ndtr

    def total(option: Hyper) -> float:
        mean, spread = _model(layout, sd, seen, option).predict(censored.points, censored.means)
        z = (mean - censored.limit) / np.sqrt(spread + SITE_SD**2)
        return option.evidence + float(log_ndtr(z).sum())

    noise = tuple(choice for choice in grid.noise if choice[0] == hyper.noise)
    narrowed = (Grid((s,), (i,), grid.trust, noise) for s, i in itertools.product(grid.scale, grid.interaction))
    best = max((search_grid(layout, sd, seen, narrow, parts) for narrow in narrowed), key=total)
    scale = tuple(choice for choice in grid.scale if choice[0] == best.scale)
    lam = tuple(choice for choice in grid.interaction if choice[0] == best.interaction)
    # Then one trust for all sources: few failures cannot tell sources apart, but can say that none deserves it.
    tied = [search_grid(layout, sd, seen, Grid(scale, lam, (trust,), noise), parts) for trust in grid.trust]
    return max([best, *tied], key=total)


def _model(layout: Layout, sd: Array, seen: Data, hyper: Hyper) -> Posterior:
    noise = (seen.noise_sd * hyper.noise) ** 2
    return Posterior(layout, layout.correlation(), sd * hyper.scale, hyper, seen, noise)


def _with_sites(posterior: Posterior, censored: Censored) -> Posterior:
    """Return the posterior with every out-of-memory trial as a pseudo-observation."""
    mean, spread = posterior.joint(censored.points, censored.means)
    value, site_variance = propagate(mean, spread, censored.limit)
    seen = posterior.data
    data = Data(
        np.vstack([seen.points, censored.points]),
        np.concatenate([seen.y, value]),
        np.concatenate([seen.noise_sd, np.ones_like(value)]),
        np.vstack([seen.means, censored.means]),
    )
    return replace(posterior, data=data, noise_variance=np.concatenate([posterior.noise_variance, site_variance]))


def propagate(mean: Array, covariance: Array, limit: Array, sd: float = SITE_SD) -> tuple[Array, Array]:
    """Return (value, variance) of the Gaussian sites that stand for Phi((f_i - limit_i) / sd), by parallel EP.

    `mean` (k) and `covariance` (k by k) are of f before censoring. Damped, at most twelve sweeps, cavities clipped: a
    handful of sites on a well-conditioned prior converges in a few, and a bad one must not take the search down.
    """
    from scipy.special import log_ndtr

    count = mean.size
    precision = np.full(count, SMALLEST_PRECISION)
    shift = precision * mean
    identity = np.eye(count)
    for _ in range(SWEEPS):
        root = np.sqrt(precision)
        inner = identity + root[:, None] * covariance * root[None, :]
        spread = covariance - (covariance * root[None, :]) @ np.linalg.solve(inner, root[:, None] * covariance)
        centre = mean + spread @ (shift - precision * mean)
        marginal = np.maximum(np.diag(spread), 1e-12)
        cavity_precision = np.maximum(1 / marginal - precision, SMALLEST_PRECISION)
        cavity_variance = 1 / cavity_precision
        cavity_mean = cavity_variance * (centre / marginal - shift)
        width = np.sqrt(sd**2 + cavity_variance)
        z = (cavity_mean - limit) / width
        mills = np.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(z))
        tilted_mean = cavity_mean + cavity_variance * mills / width
        tilted_variance = np.maximum(cavity_variance * (1 - cavity_variance * mills * (z + mills) / width**2), 1e-12)
        new_precision = np.maximum(1 / tilted_variance - cavity_precision, SMALLEST_PRECISION)
        # Where nothing was learnt the site stays flat, whatever its shift: (f is far above the limit already).
        new_shift = tilted_mean / tilted_variance - cavity_mean * cavity_precision
        new_shift = np.where(new_precision <= SMALLEST_PRECISION, SMALLEST_PRECISION * centre, new_shift)
        change = float(np.max(np.abs(new_precision - precision) / (1 + precision)))
        precision = DAMPING * new_precision + (1 - DAMPING) * precision
        shift = DAMPING * new_shift + (1 - DAMPING) * shift
        if change < CONVERGED:
            break
    return shift / precision, 1 / precision


def probability_of_fitting(mean: Array, variance: Array, limit: float) -> Array:
    """Return P(peak < budget) for predicted log ratios; `limit` is log(budget / baseline peak), infinity for none."""
    from scipy.special import ndtr

    if math.isinf(limit):
        return np.ones_like(mean)
    result: Array = ndtr((limit - mean) / np.sqrt(variance + SITE_SD**2))
    return result
