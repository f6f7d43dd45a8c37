"""The models of time, memory and crashes recover what was planted."""

import math

import numpy as np
import pytest

from infrarsi.stats.acquisition import log_expected_improvement
from infrarsi.stats.blame import CLEARED, assign, priors
from infrarsi.stats.gaussian import Data, fit
from infrarsi.stats.kernel import Layout, covariance, variance
from infrarsi.stats.memory import Censored, fit_memory, probability_of_fitting, propagate


def layout_of(sizes: list[int], ordinal: bool = False) -> Layout:
    """Return the layout of knobs with this many effects each."""
    knob = np.repeat(np.arange(len(sizes)), sizes)
    position = np.concatenate([np.arange(1, s + 1) for s in sizes]).astype(float)
    return Layout(knob, position, np.full(knob.size, ordinal))


def random_points(rng: np.random.Generator, layout: Layout, count: int) -> np.ndarray:
    points = np.zeros((count, layout.size))
    for row in points:
        for knob in np.unique(layout.knob):
            own = np.flatnonzero(layout.knob == knob)
            choice = rng.integers(-1, own.size)
            if choice >= 0:
                row[own[choice]] = 1
    return points


def test_kernel_is_positive_and_its_diagonal_is_the_variance() -> None:
    rng = np.random.default_rng(0)
    layout = layout_of([3, 2, 1, 1], ordinal=True)
    points = random_points(rng, layout, 30)
    sd = rng.uniform(0.02, 0.3, layout.size)
    kernel = covariance(points, points, layout.correlation(), sd, 0.9)
    assert np.linalg.eigvalsh(kernel).min() > -1e-10
    assert np.diag(kernel) == pytest.approx(variance(points, sd, 0.9))
    neighbours = layout.correlation()
    assert neighbours[0, 1] == pytest.approx(math.exp(-0.5))
    assert neighbours[0, 3] == 0.0


def test_time_model_recovers_planted_effects_and_an_interaction() -> None:
    rng = np.random.default_rng(1)
    layout = layout_of([1] * 8)
    truth = np.array([-0.3, -0.15, -0.05, 0.0, 0.0, 0.1, 0.2, -0.1])
    points = random_points(rng, layout, 40)
    y = points @ truth - 0.12 * points[:, 0] * points[:, 1] + rng.normal(0, 0.01, 40)
    y[3] += 0.5  # a straggler
    data = Data(points, y, np.full(40, 0.01), np.zeros((40, 0)))
    model = fit(layout, np.full(8, 0.06), data)
    assert model.noise_variance[3] > 20 * np.median(model.noise_variance)
    check = np.zeros((3, 8))
    check[1, 5] = 1
    check[2, [0, 1]] = 1
    mean, spread = model.predict(check, np.zeros((3, 0)))
    assert mean[1] - mean[0] == pytest.approx(0.1, abs=0.04)
    assert mean[2] - mean[0] == pytest.approx(-0.57, abs=0.06)
    assert (spread > 0).all()
    beta, _ = model.effects()
    assert np.corrcoef(beta, truth)[0, 1] > 0.95


def test_nothing_seen_means_the_claims_as_they_are() -> None:
    layout = layout_of([1, 1])
    model = fit(layout, np.full(2, 0.1), Data(np.zeros((0, 2)), np.zeros(0), np.zeros(0), np.zeros((0, 1))))
    mean, spread = model.predict(np.eye(2), np.array([[-0.2], [0.1]]))
    assert mean == pytest.approx([-0.2, 0.1])
    assert (spread > 0.01).all()


def test_a_source_whose_claims_miss_is_trusted_less() -> None:
    rng = np.random.default_rng(2)
    layout = layout_of([1] * 10)
    truth = rng.normal(0, 0.15, 10)
    points = random_points(rng, layout, 14)
    y = points @ truth + rng.normal(0, 0.01, 14)
    honest, liar = points @ truth, points @ -truth
    data = Data(points, y, np.full(14, 0.01), np.column_stack([honest * 0.9, liar]))
    model = fit(layout, np.full(10, 0.06), data)
    assert model.hyper.trust == (1.0, 0.0)


def test_a_claim_that_was_grossly_wrong_is_overruled() -> None:
    layout = layout_of([1, 1])
    points = np.array([[0.0, 0], [1, 0], [1, 0], [0, 1]])
    claimed = points @ np.array([[-0.05], [-0.05]])
    y = np.array([0.0, 0.4, 0.41, -0.05])
    model = fit(layout, np.full(2, 0.05), Data(points, y, np.full(4, 0.01), claimed))
    mean, _ = model.predict(np.eye(2), np.full((2, 1), -0.05))
    assert mean[0] == pytest.approx(0.4, abs=0.06)
    assert mean[1] < 0.0


def no_censoring(width: int, sources: int = 0) -> Censored:
    return Censored(np.zeros((0, width)), np.zeros((0, sources)), np.zeros(0))


def test_out_of_memory_raises_the_predicted_memory() -> None:
    """An out-of-memory trial is evidence of more than the budget, for itself and for all that shares its effects."""
    layout = layout_of([1, 1, 1])
    points = np.array([[0.0, 0, 0], [0, 1, 0]])
    seen = Data(points, np.array([0.0, 0.05]), np.ones(2), np.zeros((2, 0)))
    sd = np.full(3, 0.1)
    ask = np.array([[1.0, 0, 0], [1, 0, 1], [0, 0, 1]])
    none = np.zeros((3, 0))
    before, _ = fit_memory(layout, sd, seen, no_censoring(3)).predict(ask, none)
    limit = math.log(1.3)
    full = Censored(np.array([[1.0, 1, 0]]), np.zeros((1, 0)), np.array([limit]))
    model = fit_memory(layout, sd, seen, full)
    after, spread = model.predict(ask, none)
    assert after[0] > before[0] + 0.1
    assert after[1] > before[1] + 0.1
    assert after[2] == pytest.approx(before[2], abs=0.02)
    fits = probability_of_fitting(after, spread, limit)
    assert fits[0] < 0.75
    again, _ = model.predict(full.points, np.zeros((1, 0)))
    assert again[0] > limit - 0.02
    assert (probability_of_fitting(after, spread, math.inf) == 1).all()


def test_censoring_agrees_with_sampling() -> None:
    """EP's posterior mean against importance sampling of the same two correlated sites."""
    from scipy.special import ndtr

    mean, cov = np.array([0.0, 0.1]), np.array([[0.04, 0.02], [0.02, 0.05]])
    limit = np.array([0.25, 0.3])
    value, noise = propagate(mean, cov, limit, 0.02)
    gain = cov @ np.linalg.inv(cov + np.diag(noise))
    posterior = mean + gain @ (value - mean)
    draws = np.random.default_rng(3).multivariate_normal(mean, cov, 400_000)
    weights = ndtr((draws - limit) / 0.02).prod(axis=1)
    assert posterior == pytest.approx((draws * weights[:, None]).sum(axis=0) / weights.sum(), abs=0.01)


@pytest.mark.parametrize("limit", [-3.0, 0.0, 3.0, 20.0])
def test_censoring_stays_finite(limit: float) -> None:
    value, noise = propagate(np.zeros(5), 0.04 * np.ones((5, 5)) + 1e-6 * np.eye(5), np.full(5, limit))
    assert np.isfinite(value).all()
    assert np.isfinite(noise).all()
    assert (noise > 0).all()


def test_memory_model_recovers_multiplicative_effects() -> None:
    rng = np.random.default_rng(4)
    layout = layout_of([2, 1, 1, 1])
    truth = np.array([0.3, 0.6, -0.2, 0.1, 0.0])
    points = random_points(rng, layout, 25)
    y = points @ truth
    limit = math.log(1.5)
    ok = y < limit
    seen = Data(points[ok], y[ok], np.ones(int(ok.sum())), np.zeros((int(ok.sum()), 0)))
    out = int((~ok).sum())
    model = fit_memory(layout, np.full(5, 0.1), seen, Censored(points[~ok], np.zeros((out, 0)), np.full(out, limit)))
    fresh = random_points(rng, layout, 60)
    mean, _ = model.predict(fresh, np.zeros((60, 0)))
    assert np.corrcoef(mean, fresh @ truth)[0, 1] > 0.95


def test_log_expected_improvement_is_exact_and_stays_finite() -> None:
    draws = np.random.default_rng(5).normal(0.1, 0.5, 2_000_000)
    exact = math.log(np.maximum(0.0 - draws, 0).mean())
    assert log_expected_improvement(np.array([0.1]), np.array([0.5]), 0.0)[0] == pytest.approx(exact, abs=0.01)
    z = np.linspace(-2, 200, 2000)
    values = log_expected_improvement(z, np.ones_like(z), 0.0)
    assert np.isfinite(values).all()
    assert (np.diff(values) < 0).all()  # also across the switches of formula


LEVELS = np.array([0, 0, 1, 1, 2, 2])
BASELINE = np.array([True, False] * 3)


def levels(*on: int) -> np.ndarray:
    """Return a row of levels of three two-level knobs, with the knobs in `on` switched."""
    row = np.zeros(6)
    for k in range(3):
        row[2 * k + (k in on)] = 1
    return row


def test_a_crash_is_blamed_on_what_is_not_cleared() -> None:
    prior = priors(LEVELS, BASELINE, np.zeros((6, 6)))
    good = np.array([levels(), levels(0), levels(1)])
    blame = assign(prior, good, np.zeros((0, 6)), np.array([levels(0, 1)]))
    chances = np.exp(blame.log_ok(np.array([levels(0, 1), levels(0), levels(1), levels(2)])))
    assert chances[0] < 0.2  # only the pair is left to blame
    assert chances[1:3].min() > 0.99
    assert chances[3] > 0.9
    assert blame.probability[1, 3] == blame.probability[np.ix_([1, 3], [1, 3])].max()


def test_baseline_levels_can_be_part_of_a_failing_pair() -> None:
    """ "This patch with that setting left as it is": switching the setting too is not condemned."""
    prior = priors(LEVELS, BASELINE, np.zeros((6, 6)))
    blame = assign(prior, np.array([levels(), levels(0, 1)]), np.zeros((0, 6)), np.array([levels(0)] * 2))
    chances = np.exp(blame.log_ok(np.array([levels(0), levels(0, 1)])))
    assert chances[0] < 0.2 < chances[1]
    assert chances[1] > 0.99


def test_declared_conflicts_and_runs_that_were_full() -> None:
    declared = np.zeros((6, 6))
    declared[1, 3] = declared[3, 1] = 1
    prior = priors(LEVELS, BASELINE, declared)
    none = np.zeros((0, 6))
    before = assign(prior, none, none, none)
    assert math.exp(before.log_ok(levels(0, 1)[None])[0]) < 0.55
    after = assign(prior, none, levels(0, 1)[None], none)
    assert math.exp(after.log_ok(levels(0, 1)[None])[0]) > 0.9
    assert prior[0, 2] == CLEARED
