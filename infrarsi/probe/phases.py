"""Exclusive seconds of each phase of a step, by a stack of phases and one clock."""

from __future__ import annotations

from collections.abc import Callable

NAMES = ("data", "forward", "backward", "optimizer", "communication", "other")
GAP = "gap"


class Phases:
    """Charges elapsed time to the innermost phase; outside of all to the base.

    The base is `forward` between a forward and its backward (the loss), else the gap between backward, optimizer and
    the next forward. The gap counts as `other` where the sources of the data are timed by themselves, else as `data`.
    """

    def __init__(self, clock: Callable[[], float], synchronise: Callable[[], None]) -> None:
        self._clock = clock
        self._synchronise = synchronise
        self._stack: list[str] = []
        self._base = GAP
        self._seconds: dict[str, float] = {}
        self._last = clock()

    def enter(self, name: str) -> None:
        """Begin a phase inside the current one."""
        self.charge()
        self._stack.append(name)

    def leave(self, base: str | None = None) -> None:
        """End the innermost phase; `base` is what follows outside of all phases (None: as before)."""
        self.charge()
        if self._stack:
            self._stack.pop()
        if base is not None:
            self._base = base

    def charge(self) -> float:
        """Charge the time since the last call to the current phase; return the time."""
        self._synchronise()
        now = self._clock()
        name = self._stack[-1] if self._stack else self._base
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now
        return now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Charge some seconds of `source` to `target` instead."""
        seconds = min(seconds, self._seconds.get(source, 0.0))
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def take(self, *, gap_is_data: bool) -> dict[str, float]:
        """Return the seconds of the step by phase (all of NAMES; their sum is the step) and start the next one."""
        self.charge()
        seconds, self._seconds = self._seconds, {}
        gap = seconds.pop(GAP, 0.0)
        name = "data" if gap_is_data else "other"
        seconds[name] = seconds.get(name, 0.0) + gap
        self._base = GAP
        return {name: seconds.get(name, 0.0) for name in NAMES}
