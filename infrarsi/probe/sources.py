"""Which functions of the worktree make the batches."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import Tensor

REMEMBERED = 64


class Sources:
    """Observes what the functions of the worktree return while it traces, and which loader is used."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._functions: dict[str, CodeType | None] = {}
        self._returned: deque[tuple[CodeType, Tensor]] = deque(maxlen=REMEMBERED)
        self._in_scope: dict[CodeType, bool] = {}
        self._tracing = False
        self._previous: Any = None

    def start_tracing(self) -> None:
        """Look at what the worktree's functions return, until `stop_tracing` (sys.setprofile, a few steps only)."""
        if not self._tracing:
            self._tracing, self._previous = True, sys.getprofile()
            sys.setprofile(self._on_event)

    def stop_tracing(self) -> None:
        """Give the profile function back."""
        if self._tracing:
            self._tracing = False
            sys.setprofile(self._previous)
            self._returned.clear()

    def on_sample(self, sample: Tensor) -> None:
        """A training batch reaches the model: which functions have just returned it (or its copy on the host)?"""
        if not self._tracing:
            self.start_tracing()
            return
        for code, tensor in self._returned:
            if tensor is sample or _same(tensor, sample):
                self._functions[self._name_of(code)] = code

    def on_loader(self, loader: Any) -> None:
        """A data loader is used: its dataset and collate function are data functions if they are of the worktree."""
        dataset, collate = getattr(loader, "_dataset", None), getattr(loader, "_collate_fn", None)
        for item in (type(dataset), collate):
            file = getattr(sys.modules.get(getattr(item, "__module__", "")), "__file__", None)
            name = getattr(item, "__qualname__", "")
            if file and name and os.path.realpath(file).startswith(self._root + os.sep):
                self._functions.setdefault(f"{os.path.relpath(os.path.realpath(file), self._root)}::{_outer(name)}")

    def data_functions(self) -> list[str]:
        """Return the functions and classes that make the batches, as `train.py::get_batch`."""
        return sorted(self._functions)

    def wrappable(self) -> Iterator[tuple[Any, str, FunctionType]]:
        """Yield (owner, name, function) of the data functions that can be replaced in place."""
        for name, code in self._functions.items():
            path, _, qualname = name.partition("::")
            if code is None or code.co_flags & 0x20:  # a generator's time is spent in its consumer's `next`
                continue
            for module in list(sys.modules.values()):
                file = getattr(module, "__file__", None)
                if not isinstance(file, str) or os.path.realpath(file) != os.path.join(self._root, path):
                    continue
                owner: Any = module
                *outer, last = qualname.split(".")
                for part in outer:
                    owner = getattr(owner, part, None)
                function = getattr(owner, "__dict__", {}).get(last)
                if isinstance(function, FunctionType) and function.__code__ is code:
                    yield owner, last, function

    def _on_event(self, frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or value is None:
            return
        code = frame.f_code
        known = self._in_scope.get(code)
        if known is None:
            path = os.path.realpath(code.co_filename)
            known = path.startswith(self._root + os.sep) and not code.co_name.startswith("<")
            self._in_scope[code] = known
        if known:
            items = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else (value,)
            )
            for item in items:
                if isinstance(item, Tensor) and not item.requires_grad:
                    self._returned.append((code, item))

    def _name_of(self, code: CodeType) -> str:
        path = os.path.relpath(os.path.realpath(code.co_filename), self._root)
        return f"{path}::{_outer(getattr(code, 'co_qualname', code.co_name))}"


def _outer(qualname: str) -> str:
    return qualname.split(".<locals>")[0]


def _same(tensor: Tensor, sample: Tensor) -> bool:
    """Whether `sample` is (a part of) `tensor`, or a copy of some of its rows on another device."""
    if tensor.device == sample.device and tensor.untyped_storage().data_ptr() == sample.untyped_storage().data_ptr():
        return True
    if tensor.dtype != sample.dtype or tensor.ndim != sample.ndim or tensor.shape[1:] != sample.shape[1:]:
        return False
    if not 0 < tensor.numel() <= 1 << 22 or not sample.shape[0]:
        return False
    equal = tensor.detach().cpu() == sample[0].detach().cpu()
    return bool(equal.reshape(tensor.shape[0], -1).all(dim=1).any())
