"""Optimizer steps that no optimizer of torch makes: hand-written updates, classes that do not derive from Optimizer.

They are found through what they do. As long as no optimizer of torch has been seen, each training forward after a
backward call looks whether the sampled weights have changed; if so, a step lies between them. What such an update is
meant to do is not known, so neither hyper-parameters nor a shadow can be given. Gradients are usually gone by then:
they are read after each backward call that may be a step's last.
"""

from __future__ import annotations

from torch import Tensor

from .following import Following
from .values import StepValues, gradient_square

UNOBSERVED = ("hyper_parameters", "shadow")


class ByHand:
    """Whether this trainer updates its parameters itself. `usual_calls`: the backward calls of its last step, 0 before
    one was seen."""

    def __init__(self) -> None:
        self.ruled_out = False
        self.usual_calls = 0
        self._square: Tensor | None = None

    def rule_out(self) -> None:
        """An optimizer of torch has been called."""
        self.ruled_out = True
        self._square = None

    def may_follow(self, calls: int) -> bool:
        """Whether an update may follow after so many backward calls."""
        return not self.ruled_out and calls >= max(1, self.usual_calls)

    def after_backward(self, following: Following, parameters: list[Tensor], calls: int) -> bool:
        """Read the gradients if an update may follow; return whether this usually is a step's last backward call."""
        if not self.may_follow(calls):
            return False
        following.read_gradients()
        self._square = gradient_square(parameters)
        return calls == self.usual_calls

    def made_step(self, following: Following, values: StepValues) -> bool:
        """Whether the parameters were updated since the last closed step; completes the values of that step."""
        if not self.may_follow(values.backward_calls) or not following.moved():
            return False
        self.usual_calls = values.backward_calls
        if values.clip_calls == 0 and self._square is not None:
            values.add_square(self._square)
        return True
