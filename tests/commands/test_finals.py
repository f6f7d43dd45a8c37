"""The pure parts of the removal step."""

import math

from infrarsi.commands.ablation import Worth, believed, parts, update, weak_parts, without
from infrarsi.records import Candidate, Effect, Pair, Setting

CANDIDATE = Candidate((Setting("micro_batch", "16 x 1"),), ("fused_adamw", "sdpa"))


def pair(without_it: float, with_it: float) -> Pair:
    return Pair(without_it, with_it, "a", "b")


def effect(knob: str, level: str, posterior: float, sd: float = 0.03) -> Effect:
    return Effect(knob, level, posterior, sd, posterior, sd, "catalogue", 0.0)


EFFECTS = (
    effect("micro_batch", "16 x 1", -0.3),
    effect("micro_batch", "8 x 2", -0.2),
    effect("fused_adamw", "", 0.0),
    effect("sdpa", "", -0.1),
)


def test_parts_and_without_are_inverse() -> None:
    assert parts(CANDIDATE) == ("micro_batch", "fused_adamw", "sdpa")
    for part in parts(CANDIDATE):
        assert set(parts(without(CANDIDATE, part))) == set(parts(CANDIDATE)) - {part}
    assert parts(without(CANDIDATE, "sdpa", "fused_adamw")) == ("micro_batch",)


def test_belief_reads_the_winners_own_level() -> None:
    assert math.isclose(believed(CANDIDATE, ("micro_batch",), EFFECTS).mean, 0.3)
    assert math.isclose(believed(CANDIDATE, ("micro_batch", "sdpa"), EFFECTS).mean, 0.4)
    assert believed(CANDIDATE, ("unknown",), EFFECTS).sd > 0.25
    assert weak_parts(CANDIDATE, EFFECTS) == ("fused_adamw",)


def test_a_part_that_is_nothing_among_the_others_goes_whatever_it_is_worth_elsewhere() -> None:
    """no_sync was believed to gain 15 %, and beside one micro-step per step it is no code at all: two equal pairs."""
    belief = believed(CANDIDATE, ("no_sync",), (effect("no_sync", "", math.log(0.85), 0.06),))
    worth = update(belief, [pair(0.1230, 0.1235), pair(0.1190, 0.1188)], 0.02)
    assert worth.mean < worth.least


def test_pairs_overrule_a_wrong_belief() -> None:
    """R-F3: a part that was claimed to gain 20 % and gains nothing is dropped after a few pairs, and the reverse."""
    claimed = Worth(0.2, 0.06)
    assert update(claimed, [pair(1.0, 1.0)] * 4, 0.02).sure < 0.5
    doubted = Worth(-0.05, 0.06)
    assert update(doubted, [pair(1.2, 1.0)] * 3, 0.02).sure > 0.95


def test_one_noisy_pair_does_not_overrule_a_belief() -> None:
    """One pair of 13 % the wrong way, at a between-run noise of 5 %, leaves a well-believed part undecided."""
    worth = update(Worth(0.083, 0.06), [pair(0.87, 1.0)], 0.054)
    assert 0.05 < worth.sure < 0.95


def test_a_group_must_be_worth_more_than_one_part() -> None:
    group = believed(CANDIDATE, ("fused_adamw", "sdpa"), EFFECTS)
    assert (group.parts, group.least) == (2, 0.02)
    assert update(group, [pair(1.0, 1.0)], 0.02).parts == 2


def test_the_band_narrows_with_pairs() -> None:
    vague = Worth(0.0, 1.0)
    assert update(vague, [pair(1.1, 1.0)] * 4, 0.02).sd < update(vague, [pair(1.1, 1.0)], 0.02).sd
    assert update(vague, [], 0.02) == vague
    gain, low, high = update(vague, [pair(1.1, 1.0)] * 3, 0.02).ratios
    assert low < gain < high
