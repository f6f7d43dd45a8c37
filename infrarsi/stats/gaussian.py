"""The additive model of a log ratio to the baseline, fitted to few and noisy trials.

    y = tau . means + f(x) + noise,      f ~ GP(0, k) of kernel.py

`means` holds what each source claims (catalogue, bank, model), one column per source, and tau how far each source is
trusted: 0, a half or 1, chosen by the evidence. A grid over scale, interaction, trust and noise gives the maximum a
posteriori fit. EM then makes the effects Student-t (a claim may be grossly wrong) and the noise Student-t (stragglers),
both as scale mixtures of Gaussians: Lange, Little, Taylor, JASA 84 (1989). One degree of freedom for the effects says
that most do next to nothing and a few do much: what did nothing when tried then has no interactions worth a trial.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from infrarsi.stats.kernel import OFFSET_SD, Array, Layout, components, covariance, effect_covariance, variance

EFFECT_DOF = 1.0  # on development jobs .84 of the best known speed-up in the mean, and .79 with 3 and two rounds
NOISE_DOF = 4.0
NOISE_CLIP = (0.3, 400.0)
EM_ROUNDS = 10
JITTER = 1e-8
STRAGGLER_WIDENING = 4.0


@dataclass(frozen=True)
class Grid:
    """What the fit chooses from, each value with its log prior: departing from the default costs evidence."""

    scale: tuple[tuple[float, float], ...] = ((0.5, -0.7), (1.0, 0.0), (2.0, -0.7))
    interaction: tuple[tuple[float, float], ...] = ((0.15, -0.3), (0.4, 0.0), (0.9, -0.7))
    trust: tuple[tuple[float, float], ...] = ((0.0, -1.0), (0.5, -0.3), (1.0, 0.0))
    noise: tuple[tuple[float, float], ...] = ((1.0, 0.0), (2.0, -0.7))


@dataclass(frozen=True)
class Data:
    """Trials as arrays: `points` n by E, `y` n log ratios, `noise_sd` n, `means` n by S claimed log ratios."""

    points: Array
    y: Array
    noise_sd: Array
    means: Array


@dataclass(frozen=True)
class Hyper:
    """One point of the grid: factor on effect scales, interaction strength, factor on the noise, trust per source."""

    scale: float = 1.0
    interaction: float = 0.4
    noise: float = 1.0
    trust: tuple[float, ...] = ()
    evidence: float = 0.0


@dataclass(frozen=True)
class Posterior:
    """A fitted model. `sd` are the effect scales after EM, `noise_variance` per trial, stragglers widened."""

    layout: Layout
    correlation: Array
    sd: Array
    hyper: Hyper
    data: Data
    noise_variance: Array = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def _solved(self) -> tuple[Array, Array]:
        """Return (inverse of the lower Cholesky factor of K + noise, (K + noise)^-1 residual).

        The inverse is worth its cost: every prediction is then a product, several times faster than a solve.
        """
        from scipy.linalg import solve_triangular

        factor = self.factor(self.noise_variance)
        inverse = solve_triangular(factor, np.eye(factor.shape[0]), lower=True, check_finite=False)
        residual = self.data.y - self.data.means @ np.asarray(self.hyper.trust)
        return inverse, inverse.T @ (inverse @ residual)

    def factor(self, noise_variance: Array) -> Array:
        """Return the lower Cholesky factor of the trials' covariance plus a diagonal."""
        points = self.data.points
        kernel = covariance(points, points, self.correlation, self.sd, self.hyper.interaction)
        return np.asarray(np.linalg.cholesky(kernel + np.diag(noise_variance + JITTER)), dtype=np.float64)

    def predict(self, points: Array, means: Array) -> tuple[Array, Array]:
        """Return mean and variance of the noiseless log ratio at `points` (m by E) with claims `means` (m by S)."""
        prior_mean = means @ np.asarray(self.hyper.trust)
        prior_variance = variance(points, self.sd, self.hyper.interaction)
        if not self.data.y.size:
            return prior_mean, prior_variance
        inverse, weights = self._solved
        cross = covariance(points, self.data.points, self.correlation, self.sd, self.hyper.interaction)
        half = inverse @ cross.T
        reduced = np.maximum(prior_variance - (half**2).sum(axis=0), 1e-10)
        return prior_mean + cross @ weights, reduced

    def joint(self, points: Array, means: Array) -> tuple[Array, Array]:
        """Return the mean (m) and the full covariance (m by m) of the log ratio at `points`."""
        prior_mean = means @ np.asarray(self.hyper.trust)
        prior = covariance(points, points, self.correlation, self.sd, self.hyper.interaction)
        if not self.data.y.size:
            return prior_mean, prior
        inverse, weights = self._solved
        cross = covariance(points, self.data.points, self.correlation, self.sd, self.hyper.interaction)
        half = inverse @ cross.T
        return prior_mean + cross @ weights, prior - half.T @ half + JITTER * np.eye(points.shape[0])

    def effects(self) -> tuple[Array, Array]:
        """Return mean and variance of each beta_e, the departure of a main effect from its trusted claim."""
        if not self.data.y.size:
            return np.zeros(self.layout.size), self.sd**2
        inverse, weights = self._solved
        cross = effect_covariance(self.data.points, self.correlation, self.sd)
        half = inverse @ cross.T
        return cross @ weights, np.maximum(self.sd**2 - (half**2).sum(axis=0), 1e-12)


def fit(layout: Layout, sd: Array, data: Data, grid: Grid = Grid()) -> Posterior:
    """Fit scale, interaction, trust and noise by maximum a posteriori, then the two scale mixtures by EM."""
    posterior = _fit_once(layout, sd, data, grid, data)
    widened = posterior.noise_variance / np.maximum((data.noise_sd * posterior.hyper.noise) ** 2, 1e-12)
    if not data.y.size or widened.max() < STRAGGLER_WIDENING:
        return posterior
    # The grid took the straggler for an interaction: choose again, now that it weighs less.
    return _fit_once(layout, sd, replace(data, noise_sd=data.noise_sd * np.sqrt(np.maximum(widened, 1.0))), grid, data)


def _fit_once(layout: Layout, sd: Array, weighted: Data, grid: Grid, data: Data) -> Posterior:
    hyper = search_grid(layout, sd, weighted, grid)
    start = (weighted.noise_sd * hyper.noise) ** 2
    posterior = Posterior(layout, layout.correlation(), sd * hyper.scale, hyper, data, start)
    return refine(posterior, (data.noise_sd * hyper.noise) ** 2) if data.y.size else posterior


def search_grid(layout: Layout, sd: Array, data: Data, grid: Grid, parts: tuple[Array, Array] | None = None) -> Hyper:
    """Return the best grid point. Trust costs no factorisation: the evidence is a quadratic form in it.

    `parts`: `components` of the data's points, for who searches several grids.
    """
    sources = data.means.shape[1]
    trusts = list(itertools.product(grid.trust, repeat=sources))
    vectors = np.array([[1.0, *(-value for value, _ in choice)] for choice in trusts])
    trust_prior = np.array([sum(prior for _, prior in choice) for choice in trusts])
    if parts is None:
        parts = components(data.points, data.points, layout.correlation(), sd)
    best: Hyper | None = None
    for (scale, p), (lam, q), (noise, r) in itertools.product(grid.scale, grid.interaction, grid.noise):
        if data.y.size:
            kernel = OFFSET_SD**2 + scale**2 * (parts[0] + lam**2 * parts[1])
            evidence = _evidence(kernel, data, (data.noise_sd * noise) ** 2, vectors)
        else:
            evidence = np.zeros(len(trusts))
        total = evidence + trust_prior + p + q + r
        at = int(np.argmax(total))
        if best is None or total[at] > best.evidence:
            trust = tuple(value for value, _ in trusts[at])
            best = Hyper(scale, lam, noise, trust, float(total[at]))
    assert best is not None
    return best


def _evidence(kernel: Array, data: Data, noise: Array, vectors: Array) -> Array:
    """Return the log marginal likelihood for each trust vector (1, -tau_1, -tau_2, …)."""
    from scipy.linalg import solve_triangular

    factor = np.linalg.cholesky(kernel + np.diag(noise + JITTER))
    half = solve_triangular(factor, np.column_stack([data.y, data.means]), lower=True, check_finite=False)
    gram = half.T @ half
    quadratic = np.einsum("ti,ij,tj->t", vectors, gram, vectors)
    constant = -float(np.log(np.diag(factor)).sum()) - 0.5 * data.y.size * math.log(2 * math.pi)
    result: Array = -0.5 * quadratic + constant
    return result


def refine(posterior: Posterior, base: Array, *, robust_noise: bool = True) -> Posterior:
    """Run EM on effect scales (Student-t, 1 degree) and on the noise (Student-t, 4): outliers of both kinds widen.

    `base` is the nominal noise variance per trial.
    """
    data = posterior.data
    noise = posterior.noise_variance
    for _ in range(EM_ROUNDS):
        current = replace(posterior, noise_variance=noise)
        mean, spread = current.effects()
        prior = posterior.sd
        sd = prior * np.sqrt((EFFECT_DOF + (mean**2 + spread) / prior**2) / (EFFECT_DOF + 1))
        if robust_noise:
            fitted, uncertainty = current.predict(data.points, data.means)
            squares = ((data.y - fitted) ** 2 + uncertainty) / base
            noise = base * np.clip((NOISE_DOF + squares) / (NOISE_DOF + 1), *NOISE_CLIP)
        posterior = replace(current, sd=sd, noise_variance=noise)
    return posterior
