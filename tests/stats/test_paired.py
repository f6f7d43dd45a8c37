"""The paired verdict: symmetric, honest about what cannot be decided; its error rates: test_verdict_statistics."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.records import Noise, Pair
from infrarsi.stats.drift import calm, contaminated
from infrarsi.stats.paired import Design, interval, judge

DESIGN = Design((3, 5, 8), 0.05, 3)
FLOOR = 0.03


def pairs_of(logs: np.ndarray | list[float], voided: str = "") -> list[Pair]:
    return [Pair(math.exp(float(x)), 1.0, "a", "b", voided) for x in logs]


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12), st.floats(0.001, 0.2))
def test_exchanging_the_arms_mirrors_the_interval(logs: list[float], alpha: float) -> None:
    ratio, low, high = interval(logs, alpha)
    mirrored = interval([-x for x in logs], alpha)
    assert mirrored == pytest.approx((1 / ratio, 1 / high, 1 / low))
    assert low <= ratio <= high


LOGS = st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8)
SMALL = st.lists(st.floats(-0.03, 0.03), min_size=8, max_size=8)


@given(LOGS | SMALL, st.integers(0, 2), st.floats(0.0, 0.1))
def test_a_decision_follows_from_an_interval_that_leaves_no_doubt(logs: list[float], look: int, floor: float) -> None:
    """R-B6: where the interval at the stated error rate holds the floor, nothing is won and nothing is lost."""
    found = judge(pairs_of(logs), floor=floor, design=DESIGN, look=look)
    counted = logs[: DESIGN.pairs_per_look[look]]
    _, low, high = interval(counted, DESIGN.error_rate)
    if low <= 1 + floor <= high:
        assert found.decision in (None, "inconclusive")
    if found.decision == "accepted":
        assert interval(counted, DESIGN.alpha(look))[1] > 1 + floor
    if look < 2:
        assert found.decision != "inconclusive"


@given(LOGS | SMALL, st.integers(0, 2))
def test_exchanging_the_arms_turns_a_win_into_a_loss(logs: list[float], look: int) -> None:
    """A symmetric verdict: at no floor a win one way is a loss the other way, and what is open may not be a win."""
    forward = judge(pairs_of(logs), floor=0.0, design=DESIGN, look=look)
    backward = judge(pairs_of([-x for x in logs]), floor=0.0, design=DESIGN, look=look)
    assert backward.speedup == pytest.approx(1 / forward.speedup)
    assert (backward.low, backward.high) == pytest.approx((1 / forward.high, 1 / forward.low))
    for one, other in ((forward, backward), (backward, forward)):
        if one.decision == "accepted":
            assert other.decision == "rejected"
        if one.decision in (None, "inconclusive"):
            assert other.decision != "accepted"


@given(LOGS, st.permutations(range(8)))
def test_the_order_of_pairs_does_not_matter_to_the_last_look(logs: list[float], order: list[int]) -> None:
    found, again = (judge(pairs_of(x), floor=FLOOR, design=DESIGN, look=2) for x in (logs, [logs[i] for i in order]))
    assert (found.low, found.high) == pytest.approx((again.low, again.high))


@given(LOGS)
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


def test_all_rejections_of_one_candidate_together_spend_the_error_rate() -> None:
    assert sum(DESIGN.rejection_alpha(look) for look in range(3)) == pytest.approx(DESIGN.error_rate)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 2))
def test_what_voids_a_pair_does_not_depend_on_what_the_candidate_showed(a: float, b: float, moved: float) -> None:
    """R-B3: the candidate's time is no argument; contention is the same whichever arm had it."""
    noise = Noise(0.02, 0.01, 0.0, 0.0, 2, 10, 0.03, 3)
    assert bool(contaminated(a, b, moved, 1.0, noise)) == bool(contaminated(b, a, moved, 1.0, noise))


def test_repeats_that_were_disturbed_do_not_count() -> None:
    """R-B3: by the limits that void a pair; where the machine is always busy, all count."""
    assert calm([0.01, 0.3, 0.02, 0.05]) == (0, 2, 3)
    assert calm([0.01, 0.15, 0.02]) == (0, 2)
    assert calm([0.2, 0.24]) == (0, 1)
    assert calm([0.6, 0.7, 0.1]) == (0, 1, 2)
    assert calm([]) == ()


def test_contamination_is_said_in_words() -> None:
    """R-B3."""
    noise = Noise(0.02, 0.01, 0.0, 0.0, 2, 10, 0.03, 3)
    assert contaminated(0.0, 0.02, 1.01, 1.0, noise) == ""
    assert "held the machine" in contaminated(0.0, 0.4, 1.0, 1.0, noise)
    assert "one arm only" in contaminated(0.02, 0.2, 1.0, 1.0, noise)
    assert "slower than usual here" in contaminated(0.0, 0.0, 1.2, 1.0, noise)
    assert "faster" in contaminated(0.0, 0.0, 0.8, 1.0, noise)
    assert contaminated(0.0, 0.0, 0.0, 1.0, noise)
