"""Files that the training reads, and modules that came from elsewhere than the worktree. Needs no torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from .plan import Plan

NOT_DATA = (".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link")
SYSTEM = ("/proc", "/dev", "/sys", "/etc", "/usr", "/lib", "/lib64", "/run")
INSTALLED = ("site-packages", "dist-packages")
# Modules that libraries copy out of a data folder by themselves (transformers' trust_remote_code).
COPIED = ("transformers_modules", "datasets_modules")
BEGAN = time.time()
PROBE = os.path.dirname(os.path.abspath(__file__))


class OpenedFiles:
    """Notes every file opened for reading from Python, from its creation on (an audit hook cannot be removed)."""

    def __init__(self, plan: Plan) -> None:
        self._root = plan.root
        self._names: set[str] = set()
        self._open = True
        self._ignored = (plan.socket, os.environ.get("INFRARSI_PLAN") or plan.socket, PROBE)
        sys.addaudithook(self._on_audit)

    def _on_audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not self._open:
            return
        path, _, flags = args
        if not isinstance(path, (str, bytes)) or (isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY):
            return
        name = os.fsdecode(path)
        if not name.endswith(NOT_DATA):
            self._names.add(os.path.join(os.getcwd(), name))

    def names(self) -> list[str]:
        """Return the regular files read so far (opened from Python, or mapped), without code and system files."""
        self._open = False
        names = self._names | set(_mapped_files())
        return sorted({path for path in map(os.path.normpath, names) if self._is_data(path)})

    def _is_data(self, path: str) -> bool:
        if path.endswith(NOT_DATA) or ".so." in path or path.startswith(self._ignored) or not os.path.isfile(path):
            return False
        parts = Path(path).parts
        if path.startswith(self._root + os.sep):
            return "__pycache__" not in parts
        if any(part in INSTALLED for part in parts) or path.startswith(os.path.dirname(os.__file__) + os.sep):
            return False
        inside = (sys.prefix + os.sep, sys.base_prefix + os.sep) if sys.base_prefix != "/" else ()
        return not path.startswith(tuple(top + os.sep for top in SYSTEM) + inside)


def _mapped_files() -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(None, 5) for line in file]
    except OSError:
        return []
    return [fields[5] for fields in lines if len(fields) == 6 and fields[5].startswith("/")]


def modules_outside(plan: Plan) -> list[str]:
    """Return `name (file)` of modules that should have come from the worktree as it was checked out.

    Files of the user's own tree, top-level modules that the worktree has too (an installed copy would make its changes
    ineffective), and code that the run wrote for itself, into the worktree or into its HOME and TMPDIR.
    """
    inside = tuple(root + os.sep for root in (plan.root, *plan.scope_roots, os.path.dirname(PROBE)))
    tree, user = plan.root + os.sep, plan.original_root + os.sep
    scratch = tuple(os.path.realpath(os.environ[n]) + os.sep for n in ("HOME", "TMPDIR") if os.environ.get(n))
    interpreter = (sys.prefix + os.sep, sys.base_prefix + os.sep)  # it may lie in a HOME that is not the trial's own
    out: list[str] = []
    for name, module in list(sys.modules.items()):
        # The loader's word beside the module's own, which its code can rewrite; "frozen" is no path.
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        places = (getattr(module, "__file__", None), origin)
        for file in {place for place in places if isinstance(place, str) and os.path.isabs(place)}:
            path = os.path.realpath(file)
            if path.startswith(tree) and _is_new(path):
                out.append(f"{name} ({file}, written during the run)")
            if path.startswith(inside) or name in ("sitecustomize", "usercustomize"):
                continue
            installed = any(part in INSTALLED for part in path.split(os.sep))
            written = path.startswith(scratch) and path.endswith(".py") and not name.startswith(COPIED)
            written = written and not path.startswith(interpreter)
            if ((path.startswith(user) or written) and not installed) or _shadows(plan.root, name):
                out.append(f"{name} ({file})")
    return sorted(set(out))


def _is_new(path: str) -> bool:
    """Whether a file was made or changed after this process began; one that is gone cannot say that it was not."""
    try:
        return os.stat(path).st_ctime > BEGAN
    except OSError:
        return True


def _shadows(root: str, name: str) -> bool:
    if "." in name or name in sys.stdlib_module_names or name == "__main__":
        return False
    places = [os.path.join(root, *middle, name) for middle in ((), ("src",))]
    return any(os.path.isfile(p + ".py") or os.path.isfile(os.path.join(p, "__init__.py")) for p in places)
