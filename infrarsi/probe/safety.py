"""Keeps the probe's errors from the user's code, and counts the probe's own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .wire import Wire


class Guard:
    """One rank's guard. `where` is the phase the training is in; `own_seconds` is counted from the window's opening."""

    def __init__(self, wire: Wire, clock: Callable[[], float], rank: int) -> None:
        self.wire = wire
        self.clock = clock
        self.rank = rank
        self.dead = False
        self.broken = False
        self.where = "startup"
        self.own_seconds = 0.0
        self._entered = clock()

    def guard(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call `work`, count its time as the probe's own, and never let an error of ours reach the user's code."""
        if self.dead:
            return None
        self._entered = self.clock()
        try:
            return work(*args)
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.own_seconds += self.clock() - self._entered

    def fail(self, error: BaseException) -> None:
        """Report the first internal failure; the rank's hooks then count as not intact."""
        if not self.broken:
            self.broken = True
            text = f"{type(error).__name__}: {error}"
            self.wire.send("error", rank=self.rank, kind="probe", message=text[:2000], oom=False, phase=self.where)

    def leave_process(self) -> None:
        """Forget everything in a forked child: data-loader workers are not ranks."""
        self.dead = True
        self.wire.close()
