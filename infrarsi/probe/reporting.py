"""From closed steps to messages: ticks at once, values some steps later, when they have been worked out."""

from __future__ import annotations

import sys
from typing import Any

from . import hyper
from .following import Closed, Following
from .values import Outbox, StepValues
from .wire import Wire

# Working several steps out together costs a third of what each costs alone; eight are a few kilobytes.
HELD_STEPS = 8


class Reporter:
    """The step records of one rank that have not been sent yet."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.following: Following | None = None
        self.groups: tuple[hyper.Group, ...] = ()
        self._digest = ""
        self._wire = wire
        self._rank = rank
        self._outbox = Outbox(wire)
        self._held: list[tuple[dict[str, Any], StepValues, Closed | None]] = []

    def tick(self, step: int, now: float, *, edge: bool) -> None:
        """Say that a step has closed; the parent stamps it on arrival."""
        self._wire.send("tick", rank=self._rank, step=step, clock=now, **({"edge": True} if edge else {}))

    def hyper(self, step: int, groups: tuple[hyper.Group, ...]) -> str:
        """Report hyper-parameters that are not those of the step before; return their digest."""
        if groups and groups != self.groups:
            self.groups, self._digest = groups, hyper.digest_of(groups)
            self._wire.later("hyper", rank=self._rank, step=step, groups=hyper.message_of(groups))
        return self._digest

    def add(self, fields: dict[str, Any], values: StepValues, closed: Closed | None) -> None:
        """Keep one closed step, and hand on those that are due. All ranks do so at the same steps."""
        values.sums.settle()
        self._held.append((fields, values, closed))
        if len(self._held) >= HELD_STEPS:
            self._work_out(alone=False)
        self._outbox.flush()

    def finish(self, *, alone: bool) -> None:
        """Hand on everything, after a wait for the device. `alone`: other ranks may have gone, so without them."""
        self._work_out(alone=alone)
        self._outbox.flush(force=True)

    def salvage(self) -> None:
        """Send what is known of the steps before an error, without waiting for anything."""
        try:
            self._work_out(alone=True)
            self._outbox.flush()
            self._wire.flush()
        except Exception as error:
            sys.stderr.write(f"infrarsi: the last steps could not be reported: {error}\n")

    def _work_out(self, *, alone: bool) -> None:
        """Fill in what the held steps changed: a collective where parameters are sharded, unless `alone`."""
        held, self._held = self._held, []
        for fields, values, closed in held:
            if closed is not None and self.following is not None:
                values.sketch, values.shadow_error = self.following.settle(closed, alone=alone)
            self._outbox.add(fields, values)
