"""What one optimizer step adds up to, kept on the device, and the queue that reads it without a host sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .model import local
from .rows import RowSums, to_hex
from .sharding import Number, norm_square, number_of, scales
from .wire import Wire, finite

MAX_NORM_ELEMENTS = 4 << 20


class StepValues:
    """Accumulators of the step in progress."""

    def __init__(self) -> None:
        self.sums = RowSums()
        self.backward_calls = 0
        self.clip_calls = 0
        self.loss: Number | None = None
        self.norm_square: Number | None = None
        self.sketch: Tensor | None = None
        self.shadow_error: Tensor | None = None

    def add_loss(self, value: Tensor) -> None:
        """Add one unscaled scalar that backward was called on."""
        number = number_of(local(value))
        self.loss = number if self.loss is None else self.loss + number

    def add_norm(self, norm: Tensor | float) -> None:
        """Combine a norm before clipping with the others of this step (root of the sum of squares)."""
        self.add_square(norm_square(norm) if isinstance(norm, Tensor) else float(norm) ** 2)

    def add_square(self, square: Number) -> None:
        """Combine the square of a gradient norm with the others of this step."""
        if isinstance(square, Tensor) and isinstance(self.norm_square, Tensor):
            square = square.to(self.norm_square.device, torch.float64)
        self.norm_square = square if self.norm_square is None else self.norm_square + square


def gradient_square(parameters: list[Tensor]) -> Tensor | None:
    """Return the squared norm of the gradients that are there; of shards, times their number (see `norm_square`).

    On CPU at most MAX_NORM_ELEMENTS are read, the first ones of each parameter in proportion, and scaled up.
    """
    found = [p.grad for p in parameters if p.grad is not None]
    factors = scales(found)
    gradients = [local(g).detach() for g in found]
    gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if factors is not None or not all(g.numel() for g in gradients):
        kept = [k for k, g in enumerate(gradients) if g.numel()]
        gradients = [gradients[k] for k in kept]
        factors = None if factors is None else factors[kept]
    if not gradients:
        return None
    total = sum(g.numel() for g in gradients)
    share, parts = MAX_NORM_ELEMENTS / total, gradients
    if gradients[0].device.type == "cpu" and share < 1.0:
        parts = [g.reshape(-1)[: max(1, int(g.numel() * share))] for g in gradients]
        read = torch.tensor([g.numel() / p.numel() for g, p in zip(gradients, parts, strict=True)])
        factors = read if factors is None else read * factors
    first = parts[0].device
    norms = torch.stack([norm.to(first, torch.float64) for norm in torch._foreach_norm(parts)])
    return (norms * norms if factors is None else norms * norms * factors.to(first)).sum()


class Pending(NamedTuple):
    """A closed step whose numbers may still be on the device."""

    fields: dict[str, Any]
    floats: Any
    integers: Any
    has: tuple[bool, ...]
    event: Any


class Outbox:
    """Sends the step records in order, each with the next tick after its numbers have reached the host."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._queue: deque[Pending] = deque()

    def add(self, fields: Mapping[str, Any], values: StepValues) -> None:
        """Queue one closed step; on CPU its numbers are already there."""
        totals = values.sums.totals()
        scalars = (values.loss, values.norm_square, values.shadow_error)
        has = tuple(scalar is not None for scalar in scalars)
        tensors = [t for t in (*scalars, values.sketch, *(totals or ())) if isinstance(t, Tensor)]
        device = next((t.device for t in tensors if t.device.type != "cpu"), None)
        if device is None:
            floats = [0.0 if t is None else float(t) for t in scalars]
            floats += [] if values.sketch is None else values.sketch.tolist()
            integers = [t.item() for t in totals or ()]
            self._queue.append(Pending(dict(fields), floats, integers, has, None))
            return
        of: dict[str, Any] = {"dtype": torch.float64, "device": device}
        parts = [torch.as_tensor(0.0 if t is None else t, **of).reshape(1) for t in scalars]
        parts += [] if values.sketch is None else [values.sketch.to(device)]
        on_host = _to_host(torch.cat(parts)), _to_host(torch.stack([t.to(device) for t in totals])) if totals else None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._queue.append(Pending(dict(fields), *on_host, has, event))

    def flush(self, *, force: bool = False) -> None:
        """Hand on what is there; with `force` also what is not, after a wait."""
        while self._queue:
            pending = self._queue[0]
            if pending.event is not None and not force and not pending.event.query():
                return
            if pending.event is not None and force:
                pending.event.synchronize()
            self._queue.popleft()
            self._wire.later("step", **_record(pending))


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _record(pending: Pending) -> dict[str, Any]:
    floats, integers = pending.floats, pending.integers
    loss, square, shadow, *sketch = floats.tolist() if isinstance(floats, Tensor) else floats
    numbers = integers.tolist() if isinstance(integers, Tensor) else integers
    rows, tokens, unique = numbers or (0, 0, None)
    has_loss, has_norm, has_shadow = pending.has
    return {
        **pending.fields,
        "loss": finite(loss) if has_loss else None,
        "grad_norm": finite(square**0.5) if has_norm else None,
        "shadow_error": finite(shadow**0.5) if has_shadow else None,
        "update_sketch": [finite(value) for value in sketch],
        "row_hash": to_hex(rows),
        "token_hash": to_hex(tokens),
        "unique_rows": unique,
    }
