"""A check step: what one optimizer step consumed and produced, written down for a replay by other processes.

The parent names the step only shortly before it comes. Rows are copied as they reach the model; whether anything is
written is decided where the gradients are complete (at the clipping or the optimizer), when the step's work is done: a
candidate cannot do that work otherwise because it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import memory, weights
from .batches import Callers, collect

if TYPE_CHECKING:
    from .session import Session

DROPOUTS = nn.modules.dropout._DropoutNd


class CheckStep:
    """The next check step of one rank, and the batches that it has seen so far."""

    def __init__(self, folder: str | None, root: str, rank: int) -> None:
        self.at: int | None = None
        self.peak = (0, 0)
        self._folder = Path(folder) if folder else None
        self._rank = rank
        self._callers = Callers(root)
        self._batches: list[dict[str, Tensor]] = []

    def order(self, step: int, now: int) -> None:
        """Make `step` the next check step, if it has not begun."""
        if self._folder is not None and step > now:
            self.at = step
            self._batches.clear()

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int) -> None:
        """Copy one micro-batch of the check step."""
        self._batches.append(collect(args, kwargs, rows, self._callers))

    def write(self, session: Session) -> float:
        """Write weights, gradients and rows, wait for the other ranks; return the seconds that it took.

        Peak memory is read before, and starts anew afterwards: what the writing needs is not the candidate's.
        """
        began = session.clock()
        assert self._folder is not None and session.root is not None and self.at is not None
        step, self.at = self.at, None
        self.peak = highest(self.peak, memory.peak())
        folder, writes = self._folder / str(step), session.rank == 0
        about = {"step": step, "dropout": has_dropout(session.root)}
        weights.save(folder / "weights.pt", weights.weights_of(session.root, session.pairs), write=writes)
        weights.save(folder / "gradients.pt", weights.gradients_of(session.pairs), write=writes, about=about)
        batches = {f"{n}/{key}": value for n, batch in enumerate(self._batches) for key, value in batch.items()}
        counts = {"micro_steps": len(self._batches)}
        weights.save(folder / f"rows.{session.rank}.pt", batches, write=True, about=counts)
        self._batches.clear()
        session.wire.send("checked", rank=session.rank, step=step)
        session.wire.wait("resume", session.plan.timeout_seconds)
        memory.reset_peak()
        return session.clock() - began

    def write_final(self, session: Session) -> None:
        """Write the weights after the window."""
        if self._folder is not None and session.root is not None:
            final = weights.weights_of(session.root, session.pairs)
            weights.save(self._folder / "final.pt", final, write=session.rank == 0)


def highest(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the higher of each figure."""
    return max(a[0], b[0]), max(a[1], b[1])


def has_dropout(module: nn.Module) -> bool:
    """Say whether a module drops out at random while it trains, as far as its parts say so."""
    for part in module.modules():
        rate = getattr(part, "p" if isinstance(part, DROPOUTS) else "dropout", None)
        if isinstance(rate, float) and rate > 0 and part.training:
            return True
    return False


def without_dropout(module: nn.Module) -> None:
    """Set every rate of dropout of a module's parts to zero, and make torch's functions take it as zero."""
    for part in module.modules():
        name = "p" if isinstance(part, DROPOUTS) else "dropout"
        if isinstance(getattr(part, name, None), float):
            setattr(part, name, 0.0)  # `dropout`: MultiheadAttention, and the usual name of a rate kept for attention


def neutralise_dropout() -> None:
    """Make the functional forms of dropout the identity; called before the user's code can take hold of them."""
    functional: Any = torch.nn.functional
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        setattr(functional, name, lambda input, *args, **kwargs: input)
    attention = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **more: Any
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *rest, **more)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
