"""A gain that ends where the window ends is seen; an honest one, through noise and stragglers, is not refused."""

import math
import random
from dataclasses import replace

import pytest

from infrarsi.records import Noise
from infrarsi.stats.sustained import enough_steps, lasting, pooled

NOISE = Noise(0.04, 0.03, 0.3, 0.0, 3, 14, 0.05, 4)
WINDOW = range(4, 18)


def times(
    rng: random.Random, steps: int, seconds: float, *, after: tuple[int, float] = (10**6, 1.0)
) -> dict[int, float]:
    """AR(1) step times of a machine like `NOISE`, with 6 % stragglers; from step `after[0]` on slower by a factor."""
    found, level = {}, 0.0
    for step in range(WINDOW.start, WINDOW.start + steps):
        level = 0.3 * level + rng.gauss(0.0, 0.04 * math.sqrt(1 - 0.09))
        slow = 1.5 if rng.random() < 0.06 else 1.0
        found[step] = seconds * math.exp(level) * slow * (after[1] if step >= after[0] else 1.0)
    return found


@pytest.mark.parametrize("gain", [1.0, 1.05, 1.3, 2.0])
def test_an_honest_gain_lasts(gain: float) -> None:
    """At most 1 % of 2,000 honest candidates seem to lose it, before they are run once more."""
    rng = random.Random(7)
    refused = 0
    for _ in range(2_000):
        steps = rng.randint(22, 35)
        found = lasting(times(rng, steps, 0.2), times(rng, steps, 0.2 / gain), WINDOW, NOISE)
        refused += found.lost > found.allowed
    assert refused <= 20


@pytest.mark.parametrize(("gain", "least"), [(1.3, 0.95), (1.5, 0.99), (2.0, 1.0)])
def test_a_gain_that_was_prepared_for_the_window_is_seen(gain: float, least: float) -> None:
    rng = random.Random(11)
    seen = 0
    for _ in range(500):
        steps = rng.randint(22, 35)
        prepared = times(rng, steps, 0.2 / gain, after=(WINDOW.stop, gain))
        found = lasting(times(rng, steps, 0.2), prepared, WINDOW, NOISE)
        seen += found.lost > found.allowed
    assert seen / 500 >= least


def test_the_limit_does_not_come_from_the_candidates_own_spread() -> None:
    steady = dict.fromkeys(range(4, 30), 0.2)
    wild = {step: 0.1 * (3.0 if step % 2 else 1.0) for step in steady}
    assert lasting(steady, wild, WINDOW, NOISE).allowed == lasting(steady, wild | {5: 9.0}, WINDOW, NOISE).allowed


def test_a_calibration_that_saw_no_noise_gives_no_limit_of_zero() -> None:
    steady = dict.fromkeys(range(4, 30), 0.2)
    assert lasting(steady, steady, WINDOW, replace(NOISE, within_cv=0.0)).allowed > 0.03


def test_too_few_steps_are_no_figure() -> None:
    steady = dict.fromkeys(range(4, 18), 0.2)
    with pytest.raises(ValueError, match="0 timed steps from step 18"):
        lasting(steady, steady, WINDOW, NOISE)


def test_a_long_start_asks_for_a_longer_run() -> None:
    """A start that is as long as 60 steps at twice the baseline's speed is looked into for more than those 60."""
    assert enough_steps(4.0, 4.9, 0.2) == 0
    assert enough_steps(60.0, 65.0, 0.2) == 0
    assert enough_steps(4.0, 4.0 + 1.0 + 60 * 0.1, 0.2) == 150


def test_several_pairs_of_runs_resolve_what_one_does_not() -> None:
    """A third of the gain on a machine that is four times as noisy: hidden from one pair, not from five."""
    rng, noisy = random.Random(3), replace(NOISE, within_cv=0.16)
    found = [lasting(times(rng, 25, 0.2), times(rng, 25, 0.2 / 1.3), WINDOW, noisy) for _ in range(5)]
    assert not found[0].resolves(0.0) and pooled(found).resolves(0.0)
    assert pooled(found).variance == pytest.approx(1 / sum(1 / each.variance for each in found))
    assert pooled(found[:1]) == pytest.approx(found[0])
