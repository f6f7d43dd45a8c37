"""The codemods: one file each, listed here in the order in which their patches are proposed and composed."""

from __future__ import annotations

from infrarsi.propose.codemods import (
    autocast,
    checkpointing,
    ddp_bucket_view,
    eval_no_grad,
    fused_adamw,
    host_waits,
    moe_dispatch,
    moe_index,
    no_sync,
    pin_memory,
    remove_item_sync,
    sdpa,
    set_to_none,
    tf32,
)
from infrarsi.propose.codemods.base import Codemod

CODEMODS: tuple[Codemod, ...] = (
    sdpa.CODEMOD,
    moe_dispatch.CODEMOD,
    moe_index.CODEMOD,
    fused_adamw.CODEMOD,
    autocast.CODEMOD,
    ddp_bucket_view.CODEMOD,
    remove_item_sync.CODEMOD,
    no_sync.CODEMOD,
    set_to_none.CODEMOD,
    host_waits.CODEMOD,
    pin_memory.CODEMOD,
    eval_no_grad.CODEMOD,
    tf32.CODEMOD,
    checkpointing.CODEMOD,
)

__all__ = ["CODEMODS", "Codemod"]
