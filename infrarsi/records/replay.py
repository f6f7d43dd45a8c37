"""What a replay showed: how far two codes are from each other at the same weights and rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ReplayCheck = Literal["mathematics", "gradients", "transplant", "sustained"]


@dataclass(frozen=True)
class GradientGroup:
    """The gradients of parameters whose names differ in numbers only, against a reference.

    `norm`: Euclidean norm of the reference. `distance`: of the candidate from it. `others`: of the reference's own
    variants (its replays in float32 and under bfloat16 autocast), in the order of the comparison.
    """

    name: str
    tensors: int
    norm: float
    distance: float
    others: tuple[float, ...] = ()


@dataclass(frozen=True)
class ReplayFigure:
    """The figure of one check that came closest to its limit, or went beyond it.

    `value` and `allowed` are relative; `where` is a group of parameters, or empty for a loss. `step` is the optimizer
    step whose weights and rows were replayed. For "sustained", a gain that must last: natural logarithms of the ratio
    of two speed-ups, and the last step that was timed.
    """

    check: ReplayCheck
    step: int
    where: str
    value: float
    allowed: float
    note: str = ""

    @property
    def held(self) -> bool:
        """Whether the figure is within its limit (what is no number is not)."""
        return self.value <= self.allowed


@dataclass(frozen=True)
class Examination:
    """The checks of one patch alone, or of one finalist: `subject` is the patch's id or the candidate's number."""

    subject: str
    figures: tuple[ReplayFigure, ...]
    skipped: tuple[str, ...]
    wall_seconds: float
    device_seconds: float
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether every check that could be made held."""
        return not self.failure and all(f.held for f in self.figures)

    @property
    def reason(self) -> str:
        """Return in plain words what did not hold; empty where everything did."""
        wrong = [f for f in self.figures if not f.held]
        return self.failure if self.failure or not wrong else figure_reason(wrong[0])


def figure_reason(figure: ReplayFigure) -> str:
    """Return in plain words what a figure beyond its limit says."""
    place = f" in {figure.where}" if figure.where else ""
    if figure.note:
        return f"{_WORDS[figure.check]}{place}: {figure.note}"
    if figure.check == "sustained":
        gone, allowed = (-math.expm1(-x) for x in (figure.value, figure.allowed))
        return f"{_WORDS[figure.check]}: {gone:.0%} of its speed is gone by step {figure.step}, {allowed:.0%} allowed"
    return f"{_WORDS[figure.check]}{place}: {figure.value:.1e} off, {figure.allowed:.1e} allowed"


_WORDS: dict[ReplayCheck, str] = {
    "mathematics": "its gradients differ from the baseline's at the same weights and rows",
    "gradients": "the gradients of its timed run are not those of the baseline's code",
    "sustained": "its gain does not last beyond the timed window",
    "transplant": "its final weights give another loss in the baseline's code",
}
