"""Limits of replays: what rounding may do, and the drifts that must not pass under its name."""

import math

import pytest

from infrarsi.contract.replayed import gradients, mathematics, transplant, unlike
from infrarsi.records import Examination, GradientGroup, ReplayFigure

# Relative distances as measured on the shipped dense trainer: float32 3e-7, bfloat16 autocast 7e-3.
FLOAT32, AUTOCAST = 3e-7, 7e-3


def group(name, relative, norm=1.0, others=(FLOAT32, AUTOCAST)):
    """One group, its distances given relative to its norm."""
    return GradientGroup(name, 6, norm, relative * norm, tuple(v * norm for v in others))


def test_another_order_of_the_same_sums():
    """Honest: 1e-15 in float64; in the trial's own precision as far off as the baseline itself."""
    assert mathematics([group("mlp", 5e-16)], 7, "reorder").held
    assert gradients([group("mlp", 2 * FLOAT32)], 7, "reorder").held
    assert gradients([group("mlp", 2 * AUTOCAST)], 7, "reduced").held


@pytest.mark.parametrize("drift", [2.7e-2, 6.6e-4, 3e-3])
def test_silent_drifts_are_far_beyond_it(drift):
    """R-A5: a detached key, an auxiliary loss per micro-batch, bf16 inside one kernel."""
    figure = mathematics([group("mlp", 1e-15), group("attn.key", drift)], 7, "reorder")
    assert not figure.held and figure.where == "attn.key" and figure.value == pytest.approx(drift)


def test_bf16_does_not_pass_as_reorder():
    """R-A4: each class has its own limit."""
    assert not gradients([group("mlp", AUTOCAST)], 7, "reorder").held


def test_a_gradient_that_is_zero_in_exact_arithmetic():
    """The bias of a key: nothing but rounding, relative to itself beyond any limit."""
    zero = GradientGroup("key.bias", 6, 4e-20, 2e-11, (2e-11, 1e-9))
    assert gradients([zero, group("mlp", FLOAT32)], 7, "reorder").held
    assert mathematics([GradientGroup("key.bias", 6, 4e-20, 3e-20, ()), group("mlp", 1e-16)], 7, "reorder").held


def test_an_ill_conditioned_baseline_loosens_nothing():
    """R-A4: the cap holds where the baseline's own rounding is beyond it."""
    bad = group("router", 0.3, others=(0.2, 5.0))
    assert not gradients([bad], 7, "reorder").held
    assert gradients([group("router", 0.6, others=(0.2, 5.0))], 7, "reduced").allowed == 0.5


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_never_holds(value):
    """R-B6: nothing undecidable passes."""
    for judge in (mathematics, gradients):
        for numerics in ("bitwise", "reorder", "reduced", "semantic"):
            assert not judge([group("mlp", value)], 7, numerics).held
    assert not transplant(value, 3.0, 7, 0.1).held


def test_no_gradient_is_no_pass():
    """An empty comparison proves nothing."""
    assert not mathematics([], 7, "reorder").held


def test_the_reason_names_the_place():
    """Plain words for the verdict."""
    wrong = ReplayFigure("mathematics", 7, "blocks.*.attn.key.weight", 2.7e-2, 1e-5)
    examination = Examination("3", (wrong,), (), 1.0, 2.0)
    assert not examination.passed
    assert "blocks.*.attn.key.weight" in examination.reason and "2.7e-02" in examination.reason
    assert not Examination("3", (unlike(["a", "b"], "mathematics", 7),), (), 1.0, 2.0).passed
    assert Examination("3", (), ("replay: unobserved",), 0.0, 0.0).passed


@pytest.mark.parametrize("losses", [(None, 3.0), (3.0, None), (None, None)])
def test_a_loss_that_was_not_shown_is_no_equal_loss(losses):
    """R-B6: nothing against nothing is not agreement."""
    assert not transplant(*losses, 7, 0.1).held
    assert transplant(3.0001, 3.0, 7, 1e-3).held and not transplant(3.1, 3.0, 7, 1e-3).held
