"""FLOPs of one step, counted from the operators that are dispatched (torch.utils.flop_counter's formulas)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up FLOPs while it is entered. Unlike FlopCounterMode it sets no module hooks, and knows SDPA on CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._formulas = formulas()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and add its FLOPs, if it has a formula."""
        out = func(*args, **(kwargs or {}))
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas, with those of the CPU's flash attention added (its registry lacks them)."""
    from torch.utils import flop_counter

    known: dict[Any, Callable[..., int]] = dict(flop_counter.flop_registry)
    aten = torch.ops.aten
    pairs = (
        ("_scaled_dot_product_flash_attention_for_cpu", aten._scaled_dot_product_flash_attention),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            aten._scaled_dot_product_flash_attention_backward,
        ),
    )
    for name, like in pairs:
        packet = getattr(aten, name, None)
        if packet is not None and packet not in known and like in known:
            known[packet] = known[like]
    return known
