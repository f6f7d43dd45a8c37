"""Which module is the root: the outermost ones of the first training forward, as they were before it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from . import model
from .rows import RowSums


class Candidate(NamedTuple):
    """A module that may be the root: its trainable elements, the rows it was called with, its parameters by name."""

    module: nn.Module
    elements: int
    sums: RowSums
    pairs: list[tuple[str, Tensor]]


class Candidates:
    """The modules that were called before the first backward."""

    def __init__(self) -> None:
        self._found: dict[int, Candidate] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def rows_of(self, module: nn.Module) -> RowSums:
        """Return the rows of a candidate; to be called before its forward.

        FSDP2 shows the parameters that the optimizer steps before the forward only, and may show others after it.
        """
        if id(module) not in self._found:
            elements = model.trainable_elements(module)
            self._found[id(module)] = Candidate(module, elements, RowSums(), model.named(module))
        return self._found[id(module)].sums

    def choose(self) -> Candidate:
        """Return the candidate with the most trainable elements, and forget the others."""
        chosen = max(self._found.values(), key=lambda item: item.elements)
        self._found.clear()
        return chosen
