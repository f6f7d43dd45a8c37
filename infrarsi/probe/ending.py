"""What a rank reports after its window: the fields of RankEnd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import hyper, model
from .opened import modules_outside

if TYPE_CHECKING:
    from .session import Session


def end_message(session: Session, peaks: tuple[int, int], overhead_seconds: float) -> dict[str, Any]:
    """Return every field of RankEnd; reads the weights, so the peak must have been taken before.

    A collective where parameters are sharded: every rank calls it, after all were released.
    """
    described = model.describe(session.pairs)
    digest = model.parameter_hash(session.pairs)
    unobserved = session.unobserved | (set() if digest else {"parameter_hash"})
    if not session.compared:
        unobserved.add("shadow")
    sources, profile = session.sources, session.profile
    return {
        "rank": session.rank,
        "peak_allocated_bytes": peaks[0],
        "peak_reserved_bytes": peaks[1],
        "memory_terms": list(session.held.terms(session.pairs, peaks[0]).items()),
        "parameters": [
            {"name": name, "shape": shape, "dtype": dtype, "trainable": trainable}
            for name, shape, dtype, trainable in described
        ],
        "parameter_hash": digest,
        "hyper_parameters": [{"step": session.step, **group} for group in hyper.message_of(session.groups)],
        "modules_outside": modules_outside(session.plan),
        "hooks_intact": session.hook_check() and not session.broken,
        "optimizer_steps": session.optimizer_steps,
        "unobserved": sorted(unobserved),
        "opened_files": session.opened.names() if session.opened else [],
        "flops_per_step": profile.flops_per_step if profile else None,
        "data_functions": sources.data_functions() if sources else [],
        "overhead_seconds": overhead_seconds,
        "hot_lines": profile.hot_lines() if profile else [],
        "state_map_refused": session.state_map_refused,
    }
