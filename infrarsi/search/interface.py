"""What a run needs of a search: ask for a candidate, tell what happened, name the finalists. No heavy imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from infrarsi.records import Candidate, Effect, OutcomeKind, Price, Trust


@dataclass(frozen=True)
class Proposal:
    """One candidate worth a trial. Predictions at chosen points are optimistic: never report them as results."""

    candidate: Candidate
    why: str
    predicted_step_seconds: float | None
    predicted_peak_bytes: float | None
    p_feasible: float


@dataclass(frozen=True)
class Observation:
    """What a trial taught. `standard_error` is relative; `peak_bytes` of an out-of-memory trial, where known, tells
    fragmentation (allocated far below the budget) from being full."""

    candidate: Candidate
    outcome: OutcomeKind
    step_seconds: float | None
    peak_bytes: int | None
    standard_error: float


@dataclass(frozen=True)
class Parts:
    """The parts of the method, each of which can be left out: for measuring what it contributes, not for users.

    `censored`: out-of-memory trials in the memory model; `blame`: failures shared over pairs of levels; `trust`: claims
    weighed by the evidence; `pairing`: fast candidates made to fit; `interactions`: between effects.
    """

    censored: bool = True
    blame: bool = True
    trust: bool = True
    pairing: bool = True
    interactions: bool = True


WHOLE = Parts()


class Search(Protocol):
    """A search over one space. State is what it was told, so that a replay of the ledger rebuilds it."""

    reason: str

    def ask(self) -> Proposal | None:
        """Return the next candidate, or None with `reason` set: nothing is worth another trial."""
        ...

    def tell(self, observation: Observation) -> None:
        """Learn from one finished trial, asked for or replayed."""
        ...

    def effects(self) -> tuple[Effect, ...]:
        """Return what is believed of every option, most helpful first."""
        ...

    def finalists(self, k: int) -> tuple[Candidate, ...]:
        """Return at most k tried candidates that ran, by posterior mean minus one standard deviation."""
        ...

    def should_stop_early(self, step_seconds: float) -> bool:
        """Return whether the trial in flight, at this mean so far, is hardly the best any more."""
        ...

    def prices(self) -> tuple[Price, ...]:
        """Return the price list at the current best, cheapest memory first."""
        ...

    def trust(self) -> tuple[Trust, ...]:
        """Return how far each source of claims is believed."""
        ...
