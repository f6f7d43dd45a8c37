"""The pure parts of the finals."""

import math

from infrarsi.commands.finals import gain_of, parts, without
from infrarsi.records import Candidate, Pair, Setting

CANDIDATE = Candidate((Setting("micro_batch", "16 x 1"),), ("fused_adamw", "sdpa"))


def pair(baseline: float, candidate: float) -> Pair:
    return Pair(baseline, candidate, "a", "b")


def test_parts_and_without_are_inverse() -> None:
    assert parts(CANDIDATE) == ("micro_batch", "fused_adamw", "sdpa")
    for part in parts(CANDIDATE):
        assert set(parts(without(CANDIDATE, part))) == set(parts(CANDIDATE)) - {part}


def test_a_clear_gain_needs_one_pair_and_noise_never_suffices() -> None:
    gain, low, _ = gain_of([pair(1.2, 1.0)], between_cv=0.02)
    assert math.isclose(gain, 1.2)
    assert low > 1.0
    _, low, high = gain_of([pair(1.01, 1.0), pair(1.0, 1.0)], between_cv=0.02)
    assert low < 1.0 < high


def test_the_band_narrows_with_pairs_and_is_symmetric() -> None:
    one = gain_of([pair(1.1, 1.0)], 0.02)
    four = gain_of([pair(1.1, 1.0)] * 4, 0.02)
    assert four[1] > one[1]
    swapped = gain_of([pair(1.0, 1.1)], 0.02)
    assert math.isclose(one[1] * swapped[2], 1.0)
    assert gain_of([], 0.02)[1] == 0.0
