"""Follows the parameters of one rank: what each optimizer step changed, and whether it is what the optimizer does.

Only what will be gone is read at once: weights at the close of a step, gradients where an optimizer is given them. What
follows from it is worked out for several steps together (`settle`): a few dozen small operations cost several times
less in a row than strewn among those of the training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from .coordinates import Coordinates, Unreadable
from .shadow import Shadow, Step
from .sharding import Ranks
from .sketch import Sketch


class Closed(NamedTuple):
    """One closed step as it was read: weights before and after, the optimizers' steps, gradients read without one.

    `comparable`: everything that the optimizers did was seen by the shadow.
    """

    before: Tensor
    after: Tensor
    steps: tuple[Step, ...]
    gradients: Tensor | None
    there: Tensor | None
    comparable: bool


class Update(NamedTuple):
    """What one closed step did: its sketch, and the square of its distance from the shadow's (None: not observed)."""

    sketch: Tensor | None
    shadow_error: Tensor | None


class Following:
    """Made at the first backward call, before the first step. `unobserved` names what cannot be followed: a
    FlatParameter, gradients still to be reduced, an optimizer with a rule of its own."""

    def __init__(self, pairs: list[tuple[str, Tensor]]) -> None:
        self.unobserved: set[str] = set()
        self._at = Coordinates(pairs)
        self._sketch = Sketch(self._at)
        self._shadow = Shadow(self._at)
        self._ranks: Ranks | None = None
        if self._at.unreadable:
            self.unobserved.update(("update_sketch", "grad_norm", "shadow"))
        elif self._at.sharded:
            try:
                self._ranks = Ranks([p for _, p in pairs])
            except (ValueError, RuntimeError):
                self.unobserved.add("update_sketch")
        self._before = self._weights()
        self._after: Tensor | None = None
        self._steps: list[Step] = []
        self._gradients: Tensor | None = None
        self._there: Tensor | None = None
        self._unseen = False

    def _weights(self) -> Tensor | None:
        try:
            return self._at.weights()
        except Unreadable:
            self.unobserved.update(("update_sketch", "shadow"))
            return None

    # -- gradients ----------------------------------------------------------------------------------------------

    def read_gradients(self) -> None:
        """Note all gradients as they are: for trainers that update their parameters themselves."""
        self._gradients, self._there = self._at.gradients(self._at.parts)

    def adopt(self, optimizer: Optimizer) -> None:
        """Take over an optimizer's state, before a step whose gradients are read after it."""
        if self._shadow.adopt(optimizer) is None:
            self.unobserved.add("shadow")

    def on_step(self, optimizer: Optimizer, *, late: bool = False) -> None:
        """Read the gradients and hyper-parameters of one optimizer step.

        `late`: its closure computed the gradients, so they are read after the step; where its state was not seen
        before, it is taken over as it is then, and this step is not compared.
        """
        unseen = late and not self._shadow.knows(optimizer)
        member = self._shadow.adopt(optimizer)
        if member is None:
            self.unobserved.add("shadow")
        if member is None or unseen:
            self._unseen = True
            self.read_gradients()
            return
        values, there = self._at.gradients(member.parts)
        scale = getattr(optimizer, "grad_scale", None)  # a fused step divides by the scaler's factor itself
        if isinstance(scale, Tensor) and not late:
            values = values / scale.to(values.device, torch.float64)
        self._steps.append(member.step_of(optimizer, values, there))

    # -- the step -----------------------------------------------------------------------------------------------

    def moved(self) -> bool:
        """Whether a parameter has changed since the last closed step; waits for the device."""
        if self._before is None:
            return False
        after = self._weights()
        if after is None or torch.equal(after, self._before):
            return False
        self._after = after
        return True

    def close(self) -> Closed | None:
        """Read what the step that closes now did, for `settle`; None where the weights cannot be read."""
        before, after = self._before, self._after if self._after is not None else self._weights()
        steps, gradients, there = tuple(self._steps), self._gradients, self._there
        comparable = bool(steps) and not self._unseen
        self._before, self._after, self._gradients, self._there, self._unseen = after, None, None, None, False
        self._steps.clear()
        if self._at.unreadable:
            self.unobserved.add("shadow")
        if before is None or after is None:
            return None
        return Closed(before, after, steps, gradients, there, comparable)

    def settle(self, closed: Closed, *, alone: bool = False) -> Update:
        """Return what a closed step did; to be called in the order of the steps.

        A collective where parameters are sharded, unless `alone`, when there is no sketch then.
        """
        for step in closed.steps:
            self._shadow.apply(step, closed.before)
        change = closed.after - closed.before
        error = self._shadow.take(change, closed.before) if closed.steps else None
        sketch = None
        if "update_sketch" not in self.unobserved:
            sketch = self._project(closed, change, alone)
        return Update(sketch, error if closed.comparable and "shadow" not in self.unobserved else None)

    def _project(self, closed: Closed, change: Tensor, alone: bool) -> Tensor | None:
        gradients, there = self._gradients_of(closed)
        squares = None if gradients is None else self._sketch.squares(gradients, there)
        if self._ranks is not None:
            if alone:
                return None
            none = torch.zeros(2, dtype=torch.float64, device=self._at.device)
            squares = self._ranks.sum(none if squares is None else squares)
        return self._sketch.project(change, gradients, there, squares)

    def _gradients_of(self, closed: Closed) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients at all coordinates, and which are there; several optimizers bring a part each."""
        gradients, there = closed.gradients, closed.there
        for step in closed.steps:
            index = step.member.index
            if index is None:
                gradients, there = step.gradients, step.there
                continue
            if gradients is None:
                gradients = torch.zeros_like(closed.before)
                there = torch.zeros_like(gradients, dtype=torch.bool)
            elif there is None:
                there = torch.ones_like(gradients, dtype=torch.bool)
            own = torch.ones_like(step.gradients, dtype=torch.bool) if step.there is None else step.there
            assert there is not None
            gradients, there = gradients.index_copy(0, index, step.gradients), there.index_copy(0, index, own)
        return gradients, there

    @property
    def compared(self) -> bool:
        """Whether any step was made in the shadow."""
        return self._shadow.steps > 0
