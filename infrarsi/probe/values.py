"""What one optimizer step adds up to, kept on the device, and the queue that reads it without a host sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .model import local
from .rows import RowSums, to_hex
from .wire import Wire, finite

MAX_NORM_ELEMENTS = 4 << 20


class StepValues:
    """Accumulators of the step in progress."""

    def __init__(self) -> None:
        self.sums = RowSums()
        self.backward_calls = 0
        self.clip_calls = 0
        self.loss: Tensor | None = None
        self.norm_square: Tensor | None = None
        self.sketch: Tensor | None = None

    def add_loss(self, value: Tensor) -> None:
        """Add one unscaled scalar that backward was called on."""
        number = local(value).detach().double().reshape(())
        self.loss = number if self.loss is None else self.loss + number

    def add_norm(self, norm: Tensor | float) -> None:
        """Combine a norm before clipping with the others of this step (root of the sum of squares)."""
        number = local(norm).detach().double().reshape(()) if isinstance(norm, Tensor) else torch.tensor(float(norm))
        self.add_square(number * number)

    def add_square(self, square: Tensor) -> None:
        """Combine the square of a gradient norm with the others of this step."""
        square = square.double()
        if self.norm_square is not None and square.device != self.norm_square.device:
            square = square.to(self.norm_square.device)
        self.norm_square = square if self.norm_square is None else self.norm_square + square


def gradient_square(parameters: list[Tensor]) -> Tensor | None:
    """Return the squared norm of the gradients that are there.

    On CPU at most MAX_NORM_ELEMENTS are read, the first ones of each parameter in proportion, and scaled up.
    """
    gradients = [local(p.grad).detach() for p in parameters if p.grad is not None and not p.grad.is_sparse]
    gradients = [g for g in gradients if g.numel()]
    if not gradients:
        return None
    total = sum(g.numel() for g in gradients)
    share = MAX_NORM_ELEMENTS / total
    if gradients[0].device.type == "cpu" and share < 1.0:
        parts = [g.reshape(-1)[: max(1, int(g.numel() * share))] for g in gradients]
        scale = torch.tensor([g.numel() / p.numel() for g, p in zip(gradients, parts, strict=True)])
    else:
        parts, scale = gradients, None
    first = parts[0].device
    norms = torch.stack([norm.to(first, torch.float64) for norm in torch._foreach_norm(parts)])
    return (norms * norms * (scale if scale is not None else 1.0)).sum()


class Pending(NamedTuple):
    """A closed step whose numbers may still be on the device."""

    fields: dict[str, Any]
    floats: Any
    integers: Any
    has: tuple[bool, bool]
    event: Any


class Outbox:
    """Sends the step records in order, each once its numbers have reached the host."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._queue: deque[Pending] = deque()

    def add(self, fields: Mapping[str, Any], values: StepValues) -> None:
        """Queue one closed step; on CPU its numbers are already there."""
        totals = values.sums.totals()
        scalars = (values.loss, values.norm_square)
        has = (values.loss is not None, values.norm_square is not None)
        tensors = [t for t in (*scalars, values.sketch, *(totals or ())) if t is not None]
        device = next((t.device for t in tensors if t.device.type != "cpu"), None)
        if device is None:
            floats = [0.0 if t is None else t.item() for t in scalars]
            floats += [] if values.sketch is None else values.sketch.tolist()
            integers = [t.item() for t in totals or ()]
            self._queue.append(Pending(dict(fields), floats, integers, has, None))
            return
        zero = torch.zeros((), dtype=torch.float64, device=device)
        parts = [(zero if t is None else t.to(device)).reshape(1) for t in scalars]
        parts += [] if values.sketch is None else [values.sketch.to(device)]
        on_host = _to_host(torch.cat(parts)), _to_host(torch.stack([t.to(device) for t in totals])) if totals else None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._queue.append(Pending(dict(fields), *on_host, has, event))

    def flush(self, *, force: bool = False) -> None:
        """Send what is there; with `force` also what is not, after a wait."""
        while self._queue:
            pending = self._queue[0]
            if pending.event is not None and not force and not pending.event.query():
                return
            if pending.event is not None and force:
                pending.event.synchronize()
            self._queue.popleft()
            self._wire.send("step", **_record(pending))


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _record(pending: Pending) -> dict[str, Any]:
    floats, integers = pending.floats, pending.integers
    loss, square, *sketch = floats.tolist() if isinstance(floats, Tensor) else floats
    numbers = integers.tolist() if isinstance(integers, Tensor) else integers
    rows, tokens, unique = numbers or (0, 0, None)
    has_loss, has_norm = pending.has
    return {
        **pending.fields,
        "loss": finite(loss) if has_loss else None,
        "grad_norm": finite(square**0.5) if has_norm else None,
        "update_sketch": [finite(value) for value in sketch],
        "row_hash": to_hex(rows),
        "token_hash": to_hex(tokens),
        "unique_rows": unique,
    }
