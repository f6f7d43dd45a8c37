"""What a baseline that cannot be a baseline is refused with."""

import pytest

from infrarsi.commands.observe import require_training
from infrarsi.errors import TrialError
from infrarsi.records import Outcome, StepRecord
from infrarsi.trial.engine import Execution
from infrarsi.trial.outcome import TOO_SHORT

HUGE = 1.7976931348623157e308  # what the probe sends for nan and infinity


def execution(outcome: Outcome, *losses: float | None) -> Execution:
    steps = tuple(
        StepRecord(0, at, float(at), 0.1, loss, 1, 4, 64, "a", "a", 1.0, 0, (), "")
        for at, loss in enumerate(losses, start=1)
    )
    return Execution(outcome, None, steps, (), (), (), (), 1.0, 1.0, 0.0, "")


def test_a_baseline_that_trains_passes_also_where_its_loss_is_not_observed() -> None:
    require_training(execution(Outcome("ok", ""), 2.0, 1.9), "it does not train")
    require_training(execution(Outcome("ok", ""), None, None), "it does not train")


def test_a_loss_that_is_not_a_number_makes_no_contract() -> None:
    with pytest.raises(TrialError) as error:
        require_training(execution(Outcome("ok", ""), 2.0, HUGE, HUGE), "it does not train")
    assert error.value.code == "not-finite" and "from step 2 on" in error.value.why


def test_a_training_that_is_too_short_is_told_to_go_on_for_longer() -> None:
    ended = Outcome("rejected", "the program ended by itself after step 10; the window needs 14", phase=TOO_SHORT)
    with pytest.raises(TrialError) as error:
        require_training(execution(ended, 2.0), "it does not train")
    assert error.value.code == "too-short" and "give it more steps" in error.value.hint


def test_a_program_that_never_trains_is_not_called_too_short() -> None:
    with pytest.raises(TrialError) as error:
        require_training(execution(Outcome("rejected", "ended by itself", phase=TOO_SHORT)), "it does not train")
    assert error.value.code == "no-steps"
