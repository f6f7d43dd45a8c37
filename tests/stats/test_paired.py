"""The paired verdict: stated error rate at the floor, symmetry, honest about what cannot be decided."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.records import Noise, Pair
from infrarsi.stats.drift import contaminated
from infrarsi.stats.paired import Design, Judgement, interval, judge

DESIGN = Design((3, 5, 8), 0.05, 3)
FLOOR = 0.03


def pairs_of(logs: np.ndarray | list[float], voided: str = "") -> list[Pair]:
    return [Pair(math.exp(float(x)), 1.0, "a", "b", voided) for x in logs]


def verdict(logs: np.ndarray, design: Design = DESIGN, floor: float = FLOOR) -> Judgement:
    for look in range(len(design.pairs_per_look)):
        judgement = judge(pairs_of(logs), floor=floor, design=design, look=look)
        if judgement.decision is not None:
            return judgement
    raise AssertionError("the last look must decide")


def upper_bound(hits: int, trials: int) -> float:
    """Return the one-sided 95 % Clopper-Pearson bound."""
    from scipy.special import betaincinv

    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 0.95))


def simulated(rng: np.random.Generator, count: int, effect: float, shape: str) -> np.ndarray:
    """Return log ratios of `count` pairs, A B B A, with the noise of a real machine."""
    if shape == "normal":
        a, b = rng.normal(0, 0.02, (2, count))
    elif shape == "heavy":
        a, b = 0.02 * rng.standard_t(4, (2, count))
    else:  # a steady drift over all executions, and blocks that share a disturbance
        times = np.arange(2 * count) * 0.002
        even = np.arange(count) % 2 == 0
        first, second = times[::2], times[1::2]
        shared = rng.normal(0, 0.02, count)
        a = np.where(even, first, second) + shared + rng.normal(0, 0.01, count)
        b = np.where(even, second, first) + shared + rng.normal(0, 0.01, count)
    return math.log1p(effect) + a - b


@pytest.mark.parametrize("shape", ["normal", "heavy", "drift"])
def test_false_accepts_stay_below_the_stated_rate(shape: str) -> None:
    """R-B2: the true effect sits at the floor, the best of k counts, every look counts, and one more is verified."""
    rng = np.random.default_rng(7)
    runs, wrong = 10_000, 0
    for _ in range(runs):
        wrong += any(verdict(simulated(rng, 8, FLOOR, shape)).decision == "accepted" for _ in range(DESIGN.finalists))
    assert upper_bound(wrong, runs) <= DESIGN.error_rate


def test_false_accepts_with_voided_pairs() -> None:
    """Voiding by the baseline's own time does not bend the error rate, also where the machine has moved."""
    rng = np.random.default_rng(8)
    noise = Noise(0.02, 0.02, 0.0, 0.0, 2, 10, FLOOR, 3)
    runs, wrong = 2000, 0
    for _ in range(runs):
        accepted = False
        for _ in range(DESIGN.finalists):
            good: list[Pair] = []
            voided = 0
            while len(good) < 8 and voided <= 4:
                a, b = np.exp(rng.normal(0.06, 0.02, 2))  # everything 6 % slower than when calibrated
                pair = Pair(float(a), float(b) / (1 + FLOOR), "a", "b", contaminated(0, 0, float(a), 1.0, noise))
                good += [] if pair.voided else [pair]
                voided += bool(pair.voided)
            if len(good) < 8:
                continue
            for look in range(3):
                decision = judge(good, floor=FLOOR, design=DESIGN, look=look).decision
                accepted |= decision == "accepted"
                if decision:
                    break
        wrong += accepted
    assert upper_bound(wrong, runs) <= DESIGN.error_rate


def test_power_on_gains_worth_having() -> None:
    rng = np.random.default_rng(9)
    decisions = [verdict(simulated(rng, 8, 0.15, "normal")).decision for _ in range(400)]
    assert decisions.count("accepted") > 360
    decisions = [verdict(simulated(rng, 8, -0.10, "normal")).decision for _ in range(400)]
    assert decisions.count("rejected") > 395
    decisions = [verdict(simulated(rng, 8, 0.0, "normal")).decision for _ in range(400)]
    assert decisions.count("accepted") == 0


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12), st.floats(0.001, 0.2))
def test_exchanging_the_arms_mirrors_the_interval(logs: list[float], alpha: float) -> None:
    ratio, low, high = interval(logs, alpha)
    mirrored = interval([-x for x in logs], alpha)
    assert mirrored == pytest.approx((1 / ratio, 1 / high, 1 / low))
    assert low <= ratio <= high


@given(st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8))
def test_at_most_one_direction_wins(logs: list[float]) -> None:
    forward = judge(pairs_of(logs), floor=0.0, design=DESIGN, look=2)
    backward = judge(pairs_of([-x for x in logs]), floor=0.0, design=DESIGN, look=2)
    assert {forward.decision, backward.decision} != {"accepted"}
    if forward.decision == "accepted":
        assert backward.decision == "rejected"


def test_undecidable_is_neither_win_nor_loss() -> None:
    """R-B6."""
    logs = [0.3, -0.2, 0.25, -0.15, 0.3, -0.2, 0.1, 0.05]
    assert judge(pairs_of(logs), floor=FLOOR, design=DESIGN, look=0).decision is None
    last = judge(pairs_of(logs), floor=FLOOR, design=DESIGN, look=2)
    assert last.decision == "inconclusive"
    assert "leave it open" in last.reason


def test_rejected_when_slower_and_when_no_gain_is_visible() -> None:
    slower = judge(pairs_of([-0.2, -0.21, -0.19]), floor=FLOOR, design=DESIGN, look=0)
    assert slower.decision == "rejected"
    level = [0.012, -0.012, 0.012, -0.01, 0.01, -0.012, 0.012, -0.012]
    assert judge(pairs_of(level), floor=0.012, design=DESIGN, look=2).decision == "rejected"


def test_only_planned_and_clean_pairs_count() -> None:
    good = [0.2, 0.21, 0.19]
    three = judge(pairs_of(good), floor=FLOOR, design=DESIGN, look=0)
    more = judge(pairs_of([*good, 5.0, -5.0]), floor=FLOOR, design=DESIGN, look=0)
    assert three == more
    mixed = [*pairs_of([9.0], voided="busy"), *pairs_of(good)]
    assert judge(mixed, floor=FLOOR, design=DESIGN, look=0) == three
    short = judge(pairs_of(good), floor=FLOOR, design=DESIGN, look=2)
    assert short.decision == "inconclusive"
    assert judge([], floor=FLOOR, design=DESIGN, look=0).decision is None


def test_a_single_ratio_bounds_nothing_and_equal_ratios_know_no_more_than_the_clock() -> None:
    assert interval([0.1], 0.01)[1:] == (0.0, math.inf)
    _, low, high = interval([0.1] * 8, 0.01)
    assert low < math.exp(0.1) < high


def test_all_looks_and_finalists_together_spend_the_error_rate() -> None:
    spent = sum(DESIGN.alpha(look) for look in range(3)) * DESIGN.finalists
    assert spent == pytest.approx(DESIGN.error_rate)


def test_contamination_is_said_in_words() -> None:
    """R-B3."""
    noise = Noise(0.02, 0.01, 0.0, 0.0, 2, 10, 0.03, 3)
    assert contaminated(0.0, 0.02, 1.01, 1.0, noise) == ""
    assert "held the machine" in contaminated(0.0, 0.4, 1.0, 1.0, noise)
    assert "one arm only" in contaminated(0.02, 0.2, 1.0, 1.0, noise)
    assert "slower than usual here" in contaminated(0.0, 0.0, 1.2, 1.0, noise)
    assert "faster" in contaminated(0.0, 0.0, 0.8, 1.0, noise)
    assert contaminated(0.0, 0.0, 0.0, 1.0, noise)
