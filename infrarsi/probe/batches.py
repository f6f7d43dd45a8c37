"""A micro-batch under its names: the arguments of the root's call, and what its callers hold beside them (targets).

A loss may be computed outside the module, from targets that the probe is never given. They lie in the local variables
of the functions that called the model; there they are read at a check step, and bound anew in a replay.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

FRAMES = 4
DEPTH = 2
OPTIMISED = 0x1  # inspect.CO_OPTIMIZED: a function's frame, whose f_locals is a copy
MAX_ELEMENTS = 1 << 28
Replace = Callable[[str, Tensor], Tensor]


class Callers:
    """The frames of the worktree that called the probe, innermost first."""

    def __init__(self, root: str) -> None:
        self._root = root + os.sep
        self._inside: dict[CodeType, bool] = {}

    def frames(self) -> Iterator[FrameType]:
        """Yield at most FRAMES frames."""
        frame: FrameType | None = sys._getframe(1)
        found = 0
        while frame is not None and found < FRAMES:
            code = frame.f_code
            inside = self._inside.get(code)
            if inside is None:
                path = os.path.realpath(os.path.join(os.getcwd(), code.co_filename))
                inside = self._inside[code] = path.startswith(self._root)
            if inside:
                found += 1
                yield frame
            frame = frame.f_back


def collect(args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int, callers: Callers) -> dict[str, Tensor]:
    """Return copies of every tensor of `rows` rows: `arg.0`, `arg.idx`, `local.y`, `local.batch.labels`."""
    found: dict[str, Tensor] = {}

    def keep(key: str, tensor: Tensor) -> Tensor:
        if _is_batch(tensor, rows) and key not in found:
            found[key] = tensor.detach().clone()
        return tensor

    _arguments(args, kwargs, keep)
    for frame in callers.frames():
        values = frame.f_locals
        for name, value in list(values.items()):
            _rebuilt(value, f"local.{name}", keep, DEPTH)
        _forget(frame, values)
    return found


def replaced(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int, callers: Callers, replace: Replace
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with every tensor of `rows` rows replaced, and bind the callers' variables likewise."""

    def change(key: str, tensor: Tensor) -> Tensor:
        return replace(key, tensor) if _is_batch(tensor, rows) else tensor

    changed = _arguments(args, kwargs, change)
    for frame in callers.frames():
        values = frame.f_locals
        for name, value in list(values.items()):
            after = _rebuilt(value, f"local.{name}", change, DEPTH)
            if after is not value:
                values[name] = after
        if sys.version_info < (3, 13) and frame.f_code.co_flags & OPTIMISED:
            # The copy goes back into the function's variables, as a debugger does it; 3.13 writes through (PEP 667).
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        _forget(frame, values)
    return changed


def _arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], replace: Replace
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional = tuple(_rebuilt(value, f"arg.{index}", replace, DEPTH) for index, value in enumerate(args))
    return positional, {name: _rebuilt(value, f"arg.{name}", replace, DEPTH) for name, value in kwargs.items()}


def _rebuilt(value: Any, key: str, replace: Replace, depth: int) -> Any:
    """Return the value with its tensors replaced; the very same object where none was."""
    if isinstance(value, Tensor):
        return replace(key, value)
    if not depth:
        return value
    if type(value) in (list, tuple):
        items = [_rebuilt(item, f"{key}.{index}", replace, depth - 1) for index, item in enumerate(value)]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(items)
    if isinstance(value, dict) and len(value) <= 64:
        changed = {name: _rebuilt(item, f"{key}.{name}", replace, depth - 1) for name, item in list(value.items())}
        for name, item in changed.items():
            if item is not value[name]:
                value[name] = item  # in place: others may hold the same batch
    return value


def _is_batch(tensor: Tensor, rows: int) -> bool:
    return (
        tensor.ndim >= 1
        and tensor.shape[0] == rows
        and not tensor.requires_grad
        and 0 < tensor.numel() <= MAX_ELEMENTS
        and not hasattr(tensor, "placements")
    )


def _forget(frame: FrameType, values: Any) -> None:
    """Empty the copy that `f_locals` made and keeps: it would hold activations alive that their function dropped."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & OPTIMISED:
        values.clear()
