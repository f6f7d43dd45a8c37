"""Run something right after a module has been imported, without importing it early."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and calls back once the module has run."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}

    def register(self, name: str, callback: Callback) -> None:
        """Call `callback(module)` once, after `name` has been imported (at once if it already is)."""
        if name in sys.modules:
            callback(sys.modules[name])
            return
        self._callbacks[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find `fullname` through the other finders and wrap its loader."""
        callback = self._callbacks.pop(fullname, None)
        if callback is None:
            return None
        if not self._callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None and spec.loader is not None:
                spec.loader = _CallingLoader(spec.loader, callback)
                return spec
        return None


class _CallingLoader(importlib.abc.Loader):
    """Runs the module with its own loader, gives the loader back, then calls the callback."""

    def __init__(self, loader: Any, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._callback(module)
