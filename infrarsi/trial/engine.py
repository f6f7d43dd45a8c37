"""What an engine is: submit, poll, cancel, logs, result, and a word on how far a trial is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from infrarsi.records import HyperParameters, Measurement, Outcome, Parameter, RankEnd, StepRecord, Violation
from infrarsi.trial.plan import TrialPlan

State = Literal["running", "ended", "unknown"]


@dataclass(frozen=True)
class Progress:
    """How far a trial is. `last_step`: the last optimizer step that every rank has closed (0: none yet).

    `arrivals`: the parent's clock at the close of the opening step and of each timed step so far, of the slowest rank.
    """

    last_step: int
    warmup_steps: int
    timed_steps: int
    arrivals: tuple[float, ...] = ()

    @property
    def timed_step_seconds(self) -> float | None:
        """Mean wall seconds per timed step so far; None before two of them."""
        if len(self.arrivals) < 3:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (len(self.arrivals) - 1)


@dataclass(frozen=True)
class Execution:
    """Everything one execution showed. `violations` are of ring "time" (clocks, protocol); the rest is the caller's.

    `pressure`: share of the timed window in which other processes kept this machine's CPUs from the trial, 0 to 1.
    `checked`: the secret check step that every rank has written down, where one was asked for.
    """

    outcome: Outcome
    measurement: Measurement | None
    steps: tuple[StepRecord, ...]
    ends: tuple[RankEnd, ...]
    hyper: tuple[HyperParameters, ...]
    parameters: tuple[Parameter, ...]
    violations: tuple[Violation, ...]
    wall_seconds: float
    device_seconds: float
    pressure: float
    log_tail: str
    checked: int | None = None


class Engine(Protocol):
    """Where trials run. A handle is a name that the engine gave; every call but `submit` may be repeated."""

    name: str

    def submit(self, plan: TrialPlan) -> str:
        """Start a trial. Raises TrialError where it cannot be started at all."""
        ...

    def poll(self, handle: str) -> State:
        """Say how a trial stands; "unknown" where the engine cannot tell at the moment."""
        ...

    def progress(self, handle: str) -> Progress:
        """Say how far a trial is."""
        ...

    def stop(self, handle: str) -> None:
        """Close the timed window early; what was measured so far counts."""
        ...

    def cancel(self, handle: str) -> None:
        """End a trial and everything it started, before returning."""
        ...

    def logs(self, handle: str) -> str:
        """Return the launcher's output so far."""
        ...

    def result(self, handle: str) -> Execution:
        """Return what an ended trial showed, waiting for its end for a bounded time."""
        ...
