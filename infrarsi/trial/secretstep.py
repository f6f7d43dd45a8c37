"""The secret check step of one execution: chosen at random, told shortly before, ended for all ranks at once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection

NOTICE_SECONDS = 0.25


class SecretStep:
    """Chooses one step inside the timed window. The ranks hear of it about `NOTICE_SECONDS` before it begins.

    No rank may be past it when it hears of it, or the ranks would wait for each other; so it lies a few steps ahead.
    `fixed` names the step instead, for the baseline, from which nothing is kept secret.
    """

    def __init__(
        self,
        opens_after: int,
        closes_after: int,
        *,
        fixed: int | None = None,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.step: int | None = None
        self.written = False
        self._missed = False
        self._opens_after, self._closes_after, self._below = opens_after, closes_after, below
        self._plan: tuple[int, int] | None = None  # after which step to announce it, how many steps ahead
        self._fixed = fixed

    def order(self, last_step: int, furthest: int, step_seconds: float | None) -> int | None:
        """Return the step to announce now, once; None while it is too early, and where the window has no room for one.

        `last_step` is what every rank has closed, `furthest` what the first of them has.
        """
        if self.step is None and self._fixed is not None and last_step > 0 and furthest < self._fixed:
            self.step = self._fixed
            return self.step
        if self.step is not None or self._fixed is not None or step_seconds is None:
            return None
        if self._plan is None:
            room = self._closes_after - 1 - last_step  # the window's last step stays a timed one
            # Where steps are so fast that the notice is most of the window, half of it must do.
            notice = max(2, min(math.ceil(NOTICE_SECONDS / max(step_seconds, 1e-6)), room // 2))
            self._plan = last_step + self._below(max(1, room - notice + 1)), notice
        tell_after, notice = self._plan
        if last_step < tell_after or furthest + notice > self._closes_after - 1:
            return None
        self.step = furthest + notice
        return self.step

    def resume(self, checked: Collection[int | None], closed: Collection[int]) -> bool:
        """Return, once, that the ranks may go on: all have written the step, or one has passed it unseen."""
        if self.step is None or self.written or self._missed:
            return False
        if all(step == self.step for step in checked):
            self.written = True
        elif any(done >= self.step and step != self.step for done, step in zip(closed, checked, strict=True)):
            self._missed = True
        return self.written or self._missed

    @property
    def checked(self) -> int | None:
        """The step that every rank has written, None where there is none."""
        return self.step if self.written else None
