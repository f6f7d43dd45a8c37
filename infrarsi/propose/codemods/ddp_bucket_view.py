"""Gradients as views of DDP's communication buckets: one copy of every gradient less, in time and in memory."""

from __future__ import annotations

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.tree import Change, Tree, add_keyword, find, has_star, keyword, method_calls, text

DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")


def is_ddp(tree: Tree, call: cst.Call) -> bool:
    """Say whether a call builds torch's DistributedDataParallel, however the file imports it."""
    return tree.names.full(call.func) in DDP


def _rewrite(tree: Tree) -> cst.Module | None:
    if _detaches_gradients(tree):
        return None
    changes: dict[cst.CSTNode, Change] = {}
    for call in find(tree.module, cst.Call):
        if is_ddp(tree, call) and not has_star(call) and keyword(call, "gradient_as_bucket_view") is None:
            changes[call] = add_keyword(call, "gradient_as_bucket_view", "True")
    return tree.replaced(changes) if changes else None


def _detaches_gradients(tree: Tree) -> bool:
    """A gradient that is a view cannot be detached in place."""
    return any("grad" in text(call.func) for call in method_calls(tree.module, "detach_"))


CODEMOD = Codemod(
    id="ddp_bucket_view",
    title="DDP gradients as views of the communication buckets",
    numerics="bitwise",
    catalogue_id="ddp_bucket_view",
    why="DDP keeps a second copy of every gradient in its buckets and copies between the two at each step",
    rewrite=_rewrite,
    words=("DistributedDataParallel",),
)
