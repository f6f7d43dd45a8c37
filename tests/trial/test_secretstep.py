"""The secret check step: where it may lie, when it is announced, when the ranks may go on."""

import pytest

from infrarsi.trial.secretstep import SecretStep


def announced(secret, seconds, *, opens=3, closes=33):
    """Close step after step, as a trial does, until a step is announced."""
    for last in range(closes + 1):
        step = secret.order(last, last, seconds if last >= opens + 2 else None)
        if step is not None:
            return last, step
    return None


@pytest.mark.parametrize("seconds", [0.02, 0.3, 5.0])
def test_it_lies_inside_the_window_and_ahead_of_every_rank(seconds):
    """R-A9: announced only shortly before, anywhere in the window, never its last step (an edge of the time)."""
    seen = set()
    for _ in range(300):
        told, step = announced(SecretStep(3, 33), seconds)
        margin = step - told
        assert 5 < step <= 32 and margin >= 2
        assert margin * seconds >= 0.25 or margin == 2
        seen.add(step)
    assert len(seen) > 5


def test_a_window_too_short_has_none():
    """The ranks would be past it before they hear of it."""
    assert announced(SecretStep(3, 7), 0.01, closes=7) is None


def test_fast_steps_get_half_of_the_window_as_notice():
    """5 ms a step: a quarter of a second is the whole window."""
    told, step = announced(SecretStep(3, 63), 0.005, closes=63)
    assert told >= 5 and step - told == 28 and step <= 62


def test_the_baselines_step_is_named():
    """Nothing is kept secret from the baseline: the step after the window holds rows that no trial trains on."""
    secret = SecretStep(3, 33, fixed=32)
    assert secret.order(0, 0, None) is None  # the ranks have not said hello
    assert secret.order(1, 1, None) == 32
    assert secret.order(2, 2, 0.3) is None


def test_the_ranks_go_on_together():
    """Nobody waits in the timed steps for a rank that still writes."""
    secret = SecretStep(3, 33, fixed=10)
    secret.order(1, 1, None)
    assert not secret.resume([10, None], [9, 9]) and secret.checked is None
    assert secret.resume([10, 10], [9, 9]) and secret.checked == 10
    assert not secret.resume([10, 10], [9, 9])  # once


def test_a_rank_that_passed_it_does_not_hold_the_others():
    """R-D4: the others must not wait for ever; the step then does not count."""
    secret = SecretStep(3, 33, fixed=10)
    secret.order(1, 1, None)
    assert secret.resume([10, None], [9, 10]) and secret.checked is None
