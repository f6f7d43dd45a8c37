"""Take out of the training loop what only makes the host wait: cache emptying, and anomaly detection."""

from __future__ import annotations

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.loops import training_loops
from infrarsi.propose.codemods.tree import Change, Tree, code, find

_WAITS = {"torch.cuda.empty_cache", "torch.cuda.ipc_collect", "torch.cuda.memory.empty_cache"}
_ANOMALY = {"torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly"}


def _rewrite(tree: Tree) -> cst.Module | None:
    changes: dict[cst.CSTNode, Change] = {}
    loops = {id(above) for loop in training_loops(tree) for above in (loop, *tree.ancestors(loop))}
    for call in find(tree.module, cst.Call):
        full = tree.names.full(call.func)
        line = tree.enclosing(call, cst.SimpleStatementLine)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            continue
        alone = isinstance(line.body[0], cst.Expr) and line.body[0].value is call
        loop = tree.enclosing(call, cst.For, cst.While, cst.FunctionDef)
        if alone and full in _WAITS and isinstance(loop, (cst.For, cst.While)) and id(loop) in loops:
            changes[line] = _without(tree, line)
        elif alone and full in _ANOMALY and call.args and code(call.args[0].value) == "True":
            changes[call.args[0].value] = cst.Name("False")
    return tree.replaced(changes) if changes else None


def _without(tree: Tree, line: cst.SimpleStatementLine) -> Change:
    """Remove a line; the only one of its block becomes `pass`."""
    block = tree.parent(line)
    if isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
        return line.with_changes(body=[cst.Pass()])
    return cst.RemoveFromParent()


CODEMOD = Codemod(
    id="host_waits",
    title="No cache emptying and no anomaly detection while training",
    numerics="bitwise",
    catalogue_id="empty_cache",
    why="emptying the cache waits for the device and makes the next step allocate everything anew; anomaly detection "
    "checks every operation of backward",
    rewrite=_rewrite,
    words=("torch.",),
)
