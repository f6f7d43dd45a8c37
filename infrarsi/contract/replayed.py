"""How far a replay may be from the baseline's: limits per numerics class, from the baseline's own rounding.

Both codes compute in float64, where autocast does nothing: two orders of the same sums agree to 1e-15 there (measured
on the demo trainers: 4e-16), a detached key of attention is 1e-2 off, an auxiliary loss per micro-batch 6e-4. So the
mathematics are compared far below the precision that any of them trains in. What the timed run itself computed, in its
own precision, is held to a multiple of what that precision costs the baseline at the very same weights and rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from infrarsi.records import GradientGroup, Numerics, ReplayCheck, ReplayFigure

# Parts that the code itself computes in float32 (a norm, a softmax, positions) round at 1e-7 also in a replay in
# float64; a hundred times that leaves them room, and is a thousandth of what bf16 in one kernel does.
MATHEMATICS = 1e-5
# Doctor sees the rounding of one order of summation; another one's (fused, tiled, compiled) is of the same size.
SAFETY = 4.0
# Below what the baseline's rounding happens to be: sums that come out exact on this machine.
_LEAST = {"bitwise": 1e-6, "reorder": 1e-5, "reduced": 2e-3, "semantic": math.inf}
# A baseline that is itself ill-conditioned cannot loosen the check beyond these (R-A4).
_MOST = {"bitwise": 1e-3, "reorder": 1e-2, "reduced": 0.5, "semantic": math.inf}
# A group whose gradient is zero in exact arithmetic (the bias of a key) is all rounding: it is measured against this
# share of the whole gradient.
_SMALL = 1e-6
FLOAT32, AUTOCAST = 0, 1
_UNLIKE = 1e9  # JSON has no infinity


def mathematics(groups: Sequence[GradientGroup], step: int, numerics: Numerics) -> ReplayFigure:
    """Compare a candidate's replay in float64 with the baseline's; `others` are the baseline in float32 and bf16.

    A change of class `reduced` may hold casts that no replay takes back: it gets the baseline's own cost of bf16.
    """
    whole = _whole(groups)

    def allowed(group: GradientGroup) -> float:
        if numerics == "semantic":
            return math.inf
        if numerics == "reduced" and len(group.others) > AUTOCAST:
            return max(MATHEMATICS, _within(group, whole, numerics))
        return MATHEMATICS

    return _worst("mathematics", groups, step, allowed, whole)


def gradients(groups: Sequence[GradientGroup], step: int, numerics: Numerics) -> ReplayFigure:
    """Compare the gradients that a trial computed at its check step with the baseline's replay in float64."""
    whole = _whole(groups)
    return _worst("gradients", groups, step, lambda group: _within(group, whole, numerics), whole)


def transplant(candidate_loss: float | None, baseline_loss: float | None, step: int, allowed: float) -> ReplayFigure:
    """Compare the losses that the baseline's code gives on held-out rows for two runs' final weights."""
    if candidate_loss is None or baseline_loss is None:
        return ReplayFigure("transplant", step, "", _UNLIKE, allowed, "the replay showed no loss")
    value = abs(candidate_loss - baseline_loss) / max(abs(baseline_loss), 1e-30)
    return ReplayFigure("transplant", step, "", value if math.isfinite(value) else _UNLIKE, allowed)


def unlike(names: Sequence[str], check: ReplayCheck, step: int) -> ReplayFigure:
    """Return the figure of gradients that only one side has, or that differ in shape."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ReplayFigure(check, step, shown, _UNLIKE, 0.0, "only one side has these gradients, or they differ in shape")


def _within(group: GradientGroup, whole: float, numerics: Numerics) -> float:
    kinds = (FLOAT32,) if numerics in ("bitwise", "reorder") else (FLOAT32, AUTOCAST)
    noise = max((group.others[k] for k in kinds if k < len(group.others)), default=0.0)
    return min(max(SAFETY * noise / _scale(group, whole), _LEAST[numerics]), _MOST[numerics])


def _worst(
    check: ReplayCheck,
    groups: Sequence[GradientGroup],
    step: int,
    allowed: Callable[[GradientGroup], float],
    whole: float,
) -> ReplayFigure:
    figures = []
    for group in groups:
        value = group.distance / _scale(group, whole)
        value = value if math.isfinite(value) else _UNLIKE
        figures.append(ReplayFigure(check, step, group.name, value, min(allowed(group), _UNLIKE / 2)))
    if not figures:
        return ReplayFigure(check, step, "", _UNLIKE, 0.0, "there is no gradient to compare")
    return max(figures, key=lambda f: f.value / f.allowed)


def _whole(groups: Sequence[GradientGroup]) -> float:
    return math.sqrt(math.fsum(group.norm**2 for group in groups))


def _scale(group: GradientGroup, whole: float) -> float:
    return max(group.norm, _SMALL * whole, 1e-300)
