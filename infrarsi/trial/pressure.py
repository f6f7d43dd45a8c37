"""How much other processes were in the way: CPU pressure (PSI) and CPU time that was not the trial's."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """Cumulative figures at one moment; `psi_seconds` is None where the kernel has no pressure information."""

    at: float
    psi_seconds: float | None
    busy_seconds: float
    trial_seconds: float


def sample(trial_ticks: int) -> Sample:
    """Read the machine's figures now; `trial_ticks` is the trial's own CPU time so far."""
    return Sample(time.monotonic(), _psi(), _busy(), trial_ticks / TICKS_PER_SECOND)


def _psi() -> float | None:
    try:
        text = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) / 1e6
    return None


def _busy() -> float:
    """CPU seconds, all CPUs, neither idle nor waiting for a disk; includes what the hypervisor took (steal)."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields)
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def oom_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory since boot."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def between(first: Sample, last: Sample) -> float:
    """Return the share of the time, 0 to 1, in which others kept the trial from a CPU.

    PSI counts also the waiting that a trial causes itself (more threads than CPUs), and CPU time of others counts also
    where CPUs were free: what others cost the trial is at most the smaller of the two. Without PSI, the latter alone.
    """
    seconds = last.at - first.at
    if seconds <= 0:
        return 0.0
    others = (last.busy_seconds - first.busy_seconds) - (last.trial_seconds - first.trial_seconds)
    share = min(1.0, max(0.0, others / seconds))
    if first.psi_seconds is None or last.psi_seconds is None:
        return share
    return min(share, max(0.0, (last.psi_seconds - first.psi_seconds) / seconds))
