"""Batches through pinned memory: the copy to the device runs beside the computation."""

from __future__ import annotations

import re

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.tree import (
    Change,
    Tree,
    add_keyword,
    code,
    dotted,
    find,
    has_star,
    keyword,
    method_calls,
)

_LOADERS = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}
_DEVICE = re.compile(r"(^|[._])(device|local_rank|gpu|gpu_id|dev)$")


def _rewrite(tree: Tree) -> cst.Module | None:
    changes: dict[cst.CSTNode, Change] = {}
    for call in find(tree.module, cst.Call):
        if tree.names.full(call.func) in _LOADERS and not has_star(call) and keyword(call, "pin_memory") is None:
            changes[call] = add_keyword(call, "pin_memory", "True")
    for loop in find(tree.module, cst.For):
        changes |= _copies(loop)
    return tree.replaced(changes) if changes else None


def _copies(loop: cst.For) -> dict[cst.CSTNode, Change]:
    """Return the edits of `x = x.to(device)` for what a loop over a loader yields (host to device only)."""
    changes: dict[cst.CSTNode, Change] = {}
    if "loader" not in code(loop.iter).lower() or not method_calls(loop.body, "backward"):
        return changes
    batch = {name.value for name in find(loop.target, cst.Name)}
    for call in [*method_calls(loop.body, "to"), *method_calls(loop.body, "cuda")]:
        if not isinstance(call.func, cst.Attribute) or keyword(call, "non_blocking") is not None or has_star(call):
            continue
        owner = call.func.value
        root = owner.value if isinstance(owner, cst.Subscript) else owner
        to_device = call.func.attr.value == "cuda" or (
            len(call.args) == 1 and call.args[0].keyword is None and bool(_DEVICE.search(dotted(call.args[0].value)))
        )
        if dotted(root) in batch and to_device:
            changes[call] = add_keyword(call, "non_blocking", "True")
    return changes


CODEMOD = Codemod(
    id="pin_memory",
    title="Copy batches from pinned memory",
    numerics="bitwise",
    catalogue_id="pin_mem",
    why="a copy from pageable memory stops the host until it has arrived",
    rewrite=_rewrite,
    words=("torch",),
    hardware=("cuda", "rocm"),
)
