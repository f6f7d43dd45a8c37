"""Profile mode: phases per step, hot lines over the window, FLOPs of the first step. Never used for a verdict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from torch import nn

from . import memory
from .flops import FlopCounter
from .hot import HotLines
from .phases import Phases

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_gather_object reduce_scatter reduce_scatter_tensor broadcast "
    "broadcast_object_list barrier monitored_barrier all_to_all all_to_all_single reduce gather scatter send recv"
)


class Profile:
    """Everything that is measured in profile mode only."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self.phases = Phases(clock, memory.synchronise)
        self.flops_per_step: float | None = None
        self._clock = clock
        self._hot = HotLines(root, clock)
        self._flops: FlopCounter | None = None
        self._timed_sources = 0
        self._window_open = False
        self._window_steps = 0
        self._hooked: nn.Module | None = None
        self._last_gradient = 0.0
        self.enter, self.leave = self.phases.enter, self.phases.leave

    def start_forward(self, step: int) -> None:
        """Enter the forward phase; the first step's operators are counted (before anything is compiled)."""
        if step == 0 and self._flops is None:
            self._flops = FlopCounter()
            self._flops.__enter__()  # type: ignore[no-untyped-call]
        self.phases.enter("forward")

    def start_backward(self, root: nn.Module | None) -> None:
        """Enter the backward phase; under DDP note when the last gradient is there."""
        if root is not None and self._hooked is not root and type(root).__name__ == "DistributedDataParallel":
            self._hooked = root
            for parameter in root.parameters():
                if parameter.requires_grad and parameter.device.type == "cpu":
                    register: Any = parameter.register_post_accumulate_grad_hook
                    register(self._on_gradient)
        self._last_gradient = 0.0
        self.phases.enter("backward")

    def end_backward(self) -> None:
        """Leave the backward phase. What DDP waits for after the last gradient is communication that is not hidden."""
        now = self.phases.charge()
        if self._last_gradient and getattr(self._hooked, "require_backward_grad_sync", False):
            self.phases.move(now - self._last_gradient, "backward", "communication")
        self.phases.leave(base="gap")

    def take(self, step: int) -> dict[str, float]:
        """Return the seconds by phase of the step that closes."""
        if self._flops is not None and step == 1:
            self._flops.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.flops_per_step = float(self._flops.total) or None
        self._window_steps += self._window_open
        return self.phases.take(gap_is_data=not self._timed_sources)

    def open_window(self) -> None:
        """Start sampling lines."""
        self._window_open = True
        self._hot.start()

    def close(self) -> None:
        """Stop sampling lines."""
        self._hot.stop()

    def hot_lines(self) -> list[list[object]]:
        """Return [["train.py:12", seconds per step], …] over the window."""
        return [[line, seconds / max(1, self._window_steps)] for line, seconds in self._hot.seconds()]

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped so that its time is charged to `phase`."""
        phases = self.phases

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            phases.enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                phases.leave()

        return wrapper

    def time_sources(self, found: Iterable[tuple[Any, str, FunctionType]]) -> None:
        """Time the functions that make the batches, in place: (owner, name, function)."""
        for owner, name, function in found:
            setattr(owner, name, self.timed("data", function))
            self._timed_sources += 1

    def time_loader(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the data loader's `__next__`, timed as data."""
        timed = self.timed("data", function)

        @functools.wraps(function)
        def wrapper(loader: Any) -> Any:
            self._timed_sources += 1
            return timed(loader)

        return wrapper

    def time_collectives(self, *modules: Any) -> None:
        """Time the collectives of torch.distributed where the training calls them itself."""
        for module in modules:
            for name in COLLECTIVES.split():
                function = getattr(module, name, None)
                if isinstance(function, FunctionType) and not hasattr(function, "_infrarsi_timed"):
                    wrapper = self.timed("communication", function)
                    wrapper._infrarsi_timed = True  # type: ignore[attr-defined]
                    for other in modules:
                        if getattr(other, name, None) is function:
                            setattr(other, name, wrapper)

    def _on_gradient(self, _: Any) -> None:
        self._last_gradient = self._clock()
