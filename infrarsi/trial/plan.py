"""What one trial executes: exact command, place, window and deadlines, and what the ranks are told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infrarsi.contract.statemap import Layout
from infrarsi.records import Candidate

Sandbox = Literal["auto", "off", "required"]
Mode = Literal["trial", "observe", "profile", "replay"]
Role = Literal["search", "verify", "ablation", "calibration", "observe", "confirm", "replay"]


@dataclass(frozen=True)
class Deadlines:
    """Own deadlines, because torchrun detects no hang.

    `startup_seconds`: start to the first optimizer step (imports, compilation). `progress_seconds`: the longest silence
    of any rank after it. `total_seconds`: the whole execution.
    """

    startup_seconds: float = 300.0
    progress_seconds: float = 120.0
    total_seconds: float = 1800.0


@dataclass(frozen=True)
class Section:
    """One step of a replay: whose weights (a file), whose rows (the folder of a check step), under which precision."""

    weights: Path
    rows: Path
    autocast: bool = False


@dataclass(frozen=True)
class TrialPlan:
    """One execution of one candidate. `argv[0]` is the training interpreter, or the shell of a launch script.

    `untrusted`: the worktree holds code that a model or an agent wrote; it runs in a sandbox or, where the user said
    `sandbox = "off"`, without one, and is refused otherwise. `readable`: paths outside the repository that the training
    reads; `writable`: paths outside the worktree that it may write.
    `dump`: where one secret check step of the timed window, and the weights at its end, are written; None: no check.
    `check_step`: that step where it is no secret (the baseline's).
    `sections`: what a replay (mode "replay") goes through, one optimizer step each; its gradients go to `out`.
    `state_map`: parameters that this code lays out otherwise than the contract has them.
    """

    id: str
    run: str
    number: int
    candidate: Candidate
    commit: str
    role: Role
    block: int
    worktree: Path
    original_root: Path
    entry: str
    module: bool
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    world_size: int
    mode: Mode
    warmup_steps: int
    timed_steps: int
    memory_bytes: int | None
    perturb: tuple[str, ...]
    deadlines: Deadlines
    log: Path
    cache_dir: Path
    sandbox: Sandbox
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    untrusted: bool = False
    dump: Path | None = None
    check_step: int | None = None
    sections: tuple[Section, ...] = ()
    out: Path | None = None
    state_map: tuple[Layout, ...] = ()

    @property
    def opens_after(self) -> int:
        """The step whose close opens the timed window: the last warm-up step, at least the first of all."""
        return max(1, self.warmup_steps)

    @property
    def closes_after(self) -> int:
        """The step whose close ends the timed window."""
        return self.warmup_steps + self.timed_steps


def probe_orders(plan: TrialPlan, *, token: str, socket: Path) -> dict[str, Any]:
    """Return what the probe reads from INFRARSI_PLAN: where to report, what the entry is, how long the window is."""
    return {
        "schema": 1,
        "token": token,
        "socket": str(socket),
        "root": str(plan.worktree),
        "entry": plan.entry,
        "module": plan.module,
        "mode": plan.mode,
        "warmup_steps": plan.warmup_steps,
        "timed_steps": plan.timed_steps,
        "perturb": list(plan.perturb),
        "memory_bytes": plan.memory_bytes,
        "timeout_seconds": plan.deadlines.total_seconds,
        # Compiled kernels are modules of the compile cache, which may lie below the user's own git directory.
        "scope_roots": [str(plan.worktree), str(plan.cache_dir)],
        "original_root": str(plan.original_root),
        "dump": str(plan.dump) if plan.dump else None,
        "sections": [{"weights": str(s.weights), "rows": str(s.rows), "autocast": s.autocast} for s in plan.sections],
        "out": str(plan.out) if plan.out else None,
        "state_map": [layout.order() for layout in plan.state_map],
    }


def trial_environment(plan: TrialPlan, inject: Path, scratch: Path, plan_file: Path) -> dict[str, str]:
    """Return the whole environment of a trial: an allowlist of ours, the contract's and candidate's own, the harness'.

    Nothing that looks like a key or token passes (R-A7), and no name of the harness can be set by a candidate.
    """
    from infrarsi.trial import environment as env

    result = env.base_environment(scratch)
    result.update(
        {
            # Spinning OpenMP threads under contention: steps of 1 to 9 seconds instead of one.
            "OMP_WAIT_POLICY": "passive",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHINDUCTOR_CACHE_DIR": str(plan.cache_dir / "inductor"),
            "TRITON_CACHE_DIR": str(plan.cache_dir / "triton"),
            # torchrun reads PET_<OPTION>: concurrent trials never share its default port or rendezvous id (R-D3).
            "PET_MASTER_PORT": str(env.free_port()),
        }
    )
    if plan.mode == "replay":
        # Mathematics, not machine code: one step is not worth a compilation, and compiled code is judged by its trial.
        result["TORCHDYNAMO_DISABLE"] = "1"
    own = dict(plan.environment)
    result.update({name: value for name, value in own.items() if env.is_allowed_override(name, value)})
    # torchrun's own default, said explicitly.
    if plan.world_size > 1:
        result.setdefault("OMP_NUM_THREADS", "1")
    result["PYTHONPATH"] = _python_path(plan, inject, own)
    result.update(env.harness(plan.id, plan_file))
    result["PET_RDZV_ID"] = result["INFRARSI_TRIAL"]
    return result


def _python_path(plan: TrialPlan, inject: Path, own: Mapping[str, str]) -> str:
    """The probe, the worktree (before any editable install of the user's tree), what the contract names in addition."""
    parts = [inject, plan.worktree]
    if (plan.worktree / "src").is_dir():
        parts.append(plan.worktree / "src")
    for text in filter(None, own.get("PYTHONPATH", "").split(":")):
        path = plan.worktree / text
        if path.is_relative_to(plan.original_root) and not path.is_relative_to(plan.worktree):
            path = plan.worktree / path.relative_to(plan.original_root)
        parts.append(path)
    return ":".join(dict.fromkeys(str(part) for part in parts))


def write_orders(plan: TrialPlan, path: Path, *, token: str, socket: Path) -> None:
    """Write the probe's orders for this execution."""
    path.write_text(json.dumps(probe_orders(plan, token=token, socket=socket)))
