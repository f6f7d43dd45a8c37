"""A stop is a stop, whatever a library makes of it."""

import os
import signal

import pytest

from infrarsi.commands.interrupts import interrupts


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_error_that_a_library_made_of_the_interrupt_is_an_interrupt(which: signal.Signals) -> None:
    """pydantic-core raised a SchemaError for ^C, and a clean stop ended as a crash with exit 128."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt) as caught, interrupts():
        try:
            os.kill(os.getpid(), which)
            signal.pause()
        except KeyboardInterrupt:
            raise ValueError("SchemaError: KeyboardInterrupt") from None
    assert isinstance(caught.value.__cause__, ValueError)
    assert {s: signal.getsignal(s) for s in before} == before


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ValueError, match="mine"), interrupts():
        raise ValueError("mine")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A job in the background of a script is started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
