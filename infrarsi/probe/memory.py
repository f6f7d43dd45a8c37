"""Memory budget and peak of this process: the allocator's figures on CUDA, the resident set on CPU.

On CPU both figures of the peak are the high-water mark of the whole process's resident set (VmHWM); it is reset at the
start of the window by writing 5 to /proc/self/clear_refs (proc(5)).
"""

from __future__ import annotations

import resource
import weakref
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from .model import local
from .statemap import whole_of

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


def limit(memory_bytes: int) -> None:
    """Make allocation beyond the budget fail with an out-of-memory error.

    CUDA: a fraction of each visible device, set as soon as CUDA is initialised. CPU: the soft RLIMIT_DATA, at which
    torch raises "DefaultCPUAllocator: can't allocate memory" (RLIMIT_AS would count file mappings too).
    """
    if torch.cuda.is_available():
        torch.cuda._lazy_call(lambda: _limit_devices(memory_bytes))  # type: ignore[no-untyped-call]
    else:
        limit_process(memory_bytes)


def limit_process(memory_bytes: int) -> None:
    """Set the soft RLIMIT_DATA, below the hard limit that is there."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def lift_limit() -> None:
    """Take the soft limit away, so that a failure can still be reported."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit_devices(memory_bytes: int) -> None:
    for device in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / total), device)


def reset_peak() -> None:
    """Start a new high-water mark. Silently keeps the old one where the kernel does not allow it."""
    if _cuda():
        torch.cuda.reset_peak_memory_stats()
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        pass


def peak() -> tuple[int, int]:
    """Return (allocated, reserved) bytes at the high-water mark."""
    if _cuda():
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    resident = resident_peak()
    return resident, resident


def resident_peak() -> int:
    """Return VmHWM in bytes; the life-long peak from getrusage where /proc is missing."""
    return _status("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int:
    """Return a field of proc_pid_status(5) in bytes, 0 where it is missing."""
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Held:
    """What the training keeps between steps, so that the peak can be told apart by what it consists of."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def note(self, optimizer: Optimizer) -> None:
        """Remember an optimizer that made a step."""
        self._optimizers.add(optimizer)

    def terms(self, pairs: Iterable[tuple[str, Tensor]], peak_bytes: int) -> dict[str, int]:
        """Return bytes of this rank at the peak: parameters, gradients, optimizer state, workspace, activations.

        Called between two steps. Gradients count whether they are there now or not: at the peak they are. What is held
        beside these three is workspace (on CPU the interpreter and its libraries too); activations are what the peak
        has beyond all that is held.
        """
        found = [local(whole_of(parameter)) for _, parameter in pairs]
        parameters = _bytes(found)
        gradients = _bytes(p for p in found if p.requires_grad)
        present = _bytes(p.grad for p in found if p.grad is not None)
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        optimizer = _bytes(v for state in states for v in state.values() if isinstance(v, Tensor))
        workspace = max(0, _now() - parameters - present - optimizer)
        activations = max(0, peak_bytes - parameters - gradients - optimizer - workspace)
        return {
            "parameters": parameters,
            "gradients": gradients,
            "optimizer": optimizer,
            "activations": activations,
            "workspace": workspace,
        }


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of distinct local tensors; tied ones count once."""
    distinct = {id(part): part for part in map(local, tensors)}
    return sum(part.numel() * part.element_size() for part in distinct.values())


def _now() -> int:
    """Return the bytes that are allocated at this moment: the allocator's on CUDA, the resident set on CPU."""
    return torch.cuda.memory_allocated() if _cuda() else _status("VmRSS:")


def synchronise() -> None:
    """Wait for the device; nothing to wait for on CPU."""
    if _cuda():
        torch.cuda.synchronize()


def _cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
