"""Noise of A/A processes, on synthetic AR(1) series whose truth is known."""

import math

import numpy as np
import pytest

from infrarsi.stats.noise import FLOOR_MINIMUM, estimate_noise, floor_of, repeats_for, warmup_length


def ar1(rng: np.random.Generator, n: int, rho: float, cv: float, mean: float = 0.1) -> np.ndarray:
    values = np.empty(n)
    state = rng.normal()
    for i in range(n):
        state = rho * state + math.sqrt(1 - rho**2) * rng.normal()
        values[i] = mean * (1 + cv * state)
    return values


def test_recovers_cv_autocorrelation_and_between_run_spread() -> None:
    rng = np.random.default_rng(0)
    within, between, rho = [], [], []
    for _ in range(60):
        offsets = np.exp(rng.normal(0, 0.02, 4))
        noise = estimate_noise([ar1(rng, 60, 0.3, 0.03) * f for f in offsets])
        within.append(noise.within_cv)
        between.append(noise.between_cv**2)
        rho.append(noise.autocorrelation)
    assert np.mean(within) == pytest.approx(0.03, rel=0.1)
    assert np.mean(rho) == pytest.approx(0.3, abs=0.06)
    expected = 0.02**2 + 0.03**2 * (1.3 / 0.7) / 60
    assert expected * 0.9 < np.mean(between) < expected * 1.8  # wide rather than narrow, never below


def test_between_is_never_below_what_the_steps_alone_give() -> None:
    rng = np.random.default_rng(1)
    run = ar1(rng, 50, 0.0, 0.04)
    noise = estimate_noise([run, run.copy(), run.copy()])  # identical processes: no spread to be seen
    assert noise.between_cv >= 0.04 / math.sqrt(50) * 0.8


def test_warmup_is_found_and_a_straggler_is_not_warmup() -> None:
    rng = np.random.default_rng(2)
    steps = ar1(rng, 30, 0.0, 0.01)
    steps[:3] *= [4.0, 2.0, 1.3]
    steps[20] *= 3
    assert warmup_length(steps) == 3
    assert estimate_noise([steps, ar1(rng, 30, 0.0, 0.01)]).warmup_steps == 3
    steady = ar1(rng, 30, 0.0, 0.01)
    steady[25] *= 3
    assert warmup_length(steady) == 0


def test_drift_is_the_change_from_first_to_last_process() -> None:
    rng = np.random.default_rng(3)
    runs = [ar1(rng, 40, 0.0, 0.005) * f for f in (1.0, 1.02, 1.04, 1.06)]
    assert estimate_noise(runs).drift == pytest.approx(0.06, abs=0.01)


def test_floor_falls_with_repeats_and_has_a_minimum() -> None:
    assert floor_of(0.02, 2) > floor_of(0.02, 3) > floor_of(0.02, 10) > 0.015
    assert floor_of(0.0, 10) == FLOOR_MINIMUM
    quiet = estimate_noise([[0.1] * 10, [0.1] * 10])
    assert quiet.floor == FLOOR_MINIMUM
    assert quiet.autocorrelation == 0.0


def test_a_small_wish_needs_more_pairs_or_is_out_of_reach() -> None:
    """R-B1."""
    few, many = repeats_for(0.10, 0.02), repeats_for(0.02, 0.02)
    assert few is not None
    assert many is not None
    assert few < many
    assert repeats_for(0.001, 0.03) is None


def test_refuses_too_little() -> None:
    with pytest.raises(ValueError, match="three steps"):
        estimate_noise([[0.1, 0.2]])
    one = estimate_noise([[0.1, 0.11, 0.1, 0.09, 0.1]])
    assert one.between_cv >= one.within_cv  # a single process says nothing about the next
