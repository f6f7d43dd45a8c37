"""When a finalist is run again, and for how long: the runs themselves are real in test_honest_changes and selftest."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrarsi.commands import secondseed
from infrarsi.commands.bench import Window
from infrarsi.commands.secondseed import Second, _Attempt, second_seed
from infrarsi.stats.sustained import Lasting

USUAL = 10
Answer = Callable[[int], _Attempt]


def lasted(
    timed: int, *, lost: float = 0.0, needed: int = 0, made: int = 10**6, noise: float = 0.05, gain: float = 0.4
) -> _Attempt:
    """A pair of runs; `noise` is the standard error of what the last steps lack, in natural logarithms."""
    return _Attempt(Second(""), timed, made, timed, needed, Lasting(gain, lost, noise**2 / 2, noise**2))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Second, list[int]]]:
    def run(*answers: Answer, promised: float = 0.0) -> tuple[Second, list[int]]:
        lengths: list[int] = []

        def attempt(_campaign: Any, _tried: Any, _tree: Path, _folder: Path, timed: int) -> _Attempt:
            lengths.append(timed)
            return answers[len(lengths) - 1](timed)

        monkeypatch.setattr(secondseed, "_attempt", attempt)
        calibration = SimpleNamespace(step_seconds=0.5)
        campaign: Any = SimpleNamespace(window=Window(3, USUAL), calibration=calibration, say=lambda _text: None)
        finalist: Any = SimpleNamespace(number=1)
        return second_seed(campaign, finalist, Path(), Path(), promised), lengths

    return run


def test_one_pair_of_runs_is_enough_where_the_gain_lasts(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(lasted)
    assert second.figures[0].held and not second.skipped
    assert 1.5 * USUAL < lengths[0] <= 2.5 * USUAL and len(lengths) == 1


def test_a_gain_that_was_gone_once_may_have_been_the_machine(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(lambda timed: lasted(timed, lost=0.7), lasted)
    assert second.figures[0].held and len(lengths) == 2


def test_a_gain_that_is_gone_twice_is_gone(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(*[lambda timed: lasted(timed, lost=0.7)] * 2)
    assert not second.figures[0].held and len(lengths) == 2


def test_noise_that_would_hide_a_lost_gain_asks_for_more_pairs_of_runs(
    tried: Callable[..., tuple[Second, list[int]]],
) -> None:
    """Three standard errors of 0.15 exceed the gain of 0.4; of two such pairs together they do not."""
    second, lengths = tried(*[lambda timed: lasted(timed, noise=0.15)] * 6)
    assert second.figures[0].held and second.figures[0].allowed < 0.4 and len(lengths) == 2
    gone, lengths = tried(*[lambda timed: lasted(timed, lost=0.4, noise=0.15)] * 6)
    assert not gone.figures[0].held and len(lengths) == 4


def test_a_gain_that_cannot_be_seen_to_last_is_not_promoted(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(*[lambda timed: lasted(timed, noise=0.5, gain=0.2)] * 6, promised=0.3)
    assert "too busy to see whether its gain lasts: 0.3" in second.failure and len(lengths) == 6


def test_where_no_gain_is_promised_or_seen_none_can_be_lost(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    """Else a change that makes nothing faster would be run six times over, and refused."""
    second, lengths = tried(lambda timed: lasted(timed, noise=0.1, gain=0.05))
    assert not second.failure and len(lengths) == 1 and "no gain that could be lost" in second.skipped[0]


def test_a_long_start_is_looked_into_for_as_long_as_it_asks_for(
    tried: Callable[..., tuple[Second, list[int]]],
) -> None:
    second, lengths = tried(*[lambda timed: lasted(timed, needed=200)] * 2)
    assert 200 <= lengths[1] <= 300 and not second.skipped
    gone, lengths = tried(
        lambda timed: lasted(timed, needed=200), *[lambda timed: lasted(timed, lost=0.7, needed=200)] * 2
    )
    assert not gone.figures[0].held and len(lengths) == 3


def test_what_would_take_too_long_is_said(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(*[lambda timed: lasted(timed, needed=10_000)] * 2)
    assert lengths[1] == 600
    assert "10000 would be needed to see that it did not train ahead" in second.skipped[0]


def test_a_command_that_ends_early_is_compared_as_far_as_it_goes(
    tried: Callable[..., tuple[Second, list[int]]],
) -> None:
    second, lengths = tried(lambda timed: lasted(timed, made=14), lambda timed: lasted(timed))
    assert lengths[1] == USUAL and "makes 14 steps" in second.skipped[0]


def test_a_baseline_that_ends_within_the_usual_window_is_a_failure(
    tried: Callable[..., tuple[Second, list[int]]],
) -> None:
    second, lengths = tried(*[lambda timed: lasted(timed, made=7)] * 2)
    assert "the baseline makes 7 steps, and a trial 10" in second.failure and len(lengths) == 2


def test_a_failure_is_no_reason_to_try_again(tried: Callable[..., tuple[Second, list[int]]]) -> None:
    second, lengths = tried(lambda timed: _Attempt(Second("with another seed: crash"), timed, 0, timed))
    assert second.failure and len(lengths) == 1
