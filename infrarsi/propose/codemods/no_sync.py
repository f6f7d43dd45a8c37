"""Reduce gradients between ranks once per optimizer step, not once per micro-step."""

from __future__ import annotations

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.loops import Accumulation, accumulations
from infrarsi.propose.codemods.tree import Change, Tree, with_import

# Somebody already decides when to synchronise, or a framework or wrapper does that does not know `no_sync`.
# DDP's static graph fails when synchronisation is switched.
_REFUSED = (
    "no_sync",
    "require_backward_grad_sync",
    "set_requires_gradient_sync",
    "set_is_last_backward",
    "static_graph=True",
    "_set_static_graph",
    "fully_shard",
    "FullyShardedDataParallel",
    "deepspeed",
    "accelerator",
    "fabric",
)


def _rewrite(tree: Tree) -> cst.Module | None:
    if any(word in tree.module.code for word in _REFUSED):
        return None
    nullcontext = tree.names.spelling("contextlib.nullcontext")
    changes: dict[cst.CSTNode, Change] = {}
    for found in accumulations(tree):
        changes |= _wrap(found, nullcontext or "contextlib.nullcontext")
    if not changes:
        return None
    module = tree.replaced(changes)
    return module if nullcontext else with_import(module, "import contextlib")


def _wrap(found: Accumulation, nullcontext: str) -> dict[cst.CSTNode, Change]:
    """Put forward and backward of the micro-step under the context: DDP reads the switch in its forward."""
    body = list(found.loop.body.body)
    inner = body[found.first : found.last + 1]
    head = inner[0]
    leading = getattr(head, "leading_lines", ())
    inner[0] = head.with_changes(leading_lines=())
    condition = f'{found.more} and hasattr({found.model}, "no_sync")'
    context = f"({found.model}.no_sync() if {condition} else {nullcontext}())"
    block = cst.With(
        items=[cst.WithItem(cst.parse_expression(context))],
        body=cst.IndentedBlock(body=inner),  # type: ignore[arg-type]
        leading_lines=leading,
    )
    body[found.first : found.last + 1] = [block]
    loop_body = found.loop.body.with_changes(body=body)
    changes: dict[cst.CSTNode, Change] = {}
    if isinstance(found.loop, cst.For) and found.target is not None:
        changes[found.loop.target] = cst.Name(found.target)
    changes[found.loop.body] = loop_body
    return changes


CODEMOD = Codemod(
    id="no_sync",
    title="Reduce gradients once per optimizer step",
    numerics="reorder",
    catalogue_id="no_sync",
    why="every micro-step sends all gradients over the wire, although only their sum is used",
    rewrite=_rewrite,
    words=("backward", "for "),
    evidence=("DistributedDataParallel",),
)
