"""Bring the probe up in a rank: connect, wait for torch, report how the program ends."""

from __future__ import annotations

import atexit
import glob
import os
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from .imports import AfterImport
from .opened import OpenedFiles
from .plan import Plan
from .wire import Wire

if TYPE_CHECKING:
    from .session import Session

OOM_TEXTS = ("can't allocate memory", "out of memory", "cannot allocate memory")
MESSAGE_LENGTH = 2000


def activate(plan: Plan, clock: Callable[[], float]) -> bool:
    """Connect to the parent and arrange for everything else; False where the parent cannot be reached."""
    try:
        wire = Wire(plan.socket, clock)
    except OSError as error:
        sys.stderr.write(f"infrarsi: no connection to {plan.socket}: {error}\n")
        return False
    Rank(plan, wire, clock).arrange()
    return True


class Rank:
    """This process as one rank: its hello, its uncaught error, its exit; the session begins with torch."""

    def __init__(self, plan: Plan, wire: Wire, clock: Callable[[], float]) -> None:
        self.plan = plan
        self.wire = wire
        self.clock = clock
        self.rank = _number("RANK", "SLURM_PROCID", default=0)
        self.session: Session | None = None
        self._greeted = False
        self._failed: BaseException | None = None
        self._after_import = AfterImport()
        self._opened = OpenedFiles(plan) if plan.mode == "observe" else None

    def arrange(self) -> None:
        """Set the hooks of the interpreter: after torch's import, on an uncaught error, at exit, in forked children."""
        self._after_import.register("torch", self._on_torch)
        plain = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            try:
                self._report(error)
            except Exception as own:  # the user's traceback comes first, whatever happens to ours
                sys.stderr.write(f"infrarsi: the error could not be reported: {own}\n")
            return plain(kind, error, trace)

        sys.excepthook = excepthook
        atexit.register(self._on_exit)
        os.register_at_fork(after_in_child=self._on_fork)

    def _on_torch(self, torch: ModuleType) -> None:
        self._greet(torch)
        try:
            from . import memory
            from .hooks import install
            from .session import Session

            session = Session(self.plan, self.wire, self.clock, self.rank, self._opened)
            session.perturbation.install()
            install(session, self._after_import)
            if self.plan.memory_bytes is not None:
                memory.limit(self.plan.memory_bytes)
            self.session = session
        except Exception as error:
            text = f"the probe could not start: {type(error).__name__}: {error}"[:MESSAGE_LENGTH]
            self.wire.send("error", rank=self.rank, kind="probe", message=text, oom=False, phase="startup")

    def _greet(self, torch: ModuleType | None) -> None:
        if self._greeted:
            return
        self._greeted = True
        self.wire.send(
            "hello",
            token=self.plan.token,
            rank=self.rank,
            local_rank=_number("LOCAL_RANK", "SLURM_LOCALID", default=0),
            world=_number("WORLD_SIZE", "SLURM_NTASKS", default=1),
            pid=os.getpid(),
            device=_device(torch),
            torch=str(getattr(torch, "__version__", "")),
        )

    def _report(self, error: BaseException) -> None:
        """Send an uncaught error, once. A limit of memory is lifted first: reporting needs some."""
        if error is self._failed or isinstance(error, (SystemExit, GeneratorExit)):
            return
        self._failed = error
        oom = _is_oom(error)
        if oom and self.plan.memory_bytes is not None and "torch" in sys.modules:
            from .memory import lift_limit

            lift_limit()
        self._greet(sys.modules.get("torch"))
        kind = type(error).__name__ if type(error).__module__ == "builtins" else _qualified(error)
        phase = self.session.where if self.session else "startup"
        text = str(error)[:MESSAGE_LENGTH]
        self.wire.send("error", rank=self.rank, kind=kind, message=text, oom=oom, phase=phase)
        if self.session is not None:
            self.session.salvage()

    def _on_exit(self) -> None:
        """Report the exit; an error whose report was prevented by another excepthook is caught up here."""
        if self.session is not None and self.session.dead:
            return
        self._greet(sys.modules.get("torch"))
        last = getattr(sys, "last_value", None)
        if isinstance(last, BaseException):
            self._report(last)
        if self._failed is not None:
            return
        if self.session is not None:
            self.session.guard(self.session.on_exit)
        else:
            self.wire.send("exit", rank=self.rank, steps=0)

    def _on_fork(self) -> None:
        if self.session is not None:
            self.session.leave_process()
        else:
            self.wire.close()
        atexit.unregister(self._on_exit)


def _number(*names: str, default: int) -> int:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return default


def _device(torch: ModuleType | None) -> str:
    """Return the kind of device this machine offers torch, without initialising it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch is None or visible in ("", "-1") or getattr(torch.version, "cuda", None) is None:
        return "cpu"
    return "cuda" if glob.glob("/dev/nvidia[0-9]*") else "cpu"


def _is_oom(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return any(part in text for part in OOM_TEXTS)


def _qualified(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
