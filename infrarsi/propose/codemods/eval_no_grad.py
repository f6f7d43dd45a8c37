"""Evaluation without a graph: functions that switch to eval mode and never call backward need no gradients."""

from __future__ import annotations

import re

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.tree import Change, Tree, code, find, method_calls

_NAME = re.compile(r"eval|valid|^val_|_val$|test|estimate_loss|perplexity", re.IGNORECASE)
_REFUSED = (
    "no_grad",
    "inference_mode",
    "backward",
    "enable_grad",
    "set_grad_enabled",
    "autograd",
    "requires_grad",
    "step(",
)


def _rewrite(tree: Tree) -> cst.Module | None:
    torch = tree.names.spelling("torch")
    changes: dict[cst.CSTNode, Change] = {}
    for function in find(tree.module, cst.FunctionDef):
        source = code(function)
        if not torch or not _NAME.search(function.name.value) or any(word in source for word in _REFUSED):
            continue
        if not method_calls(function.body, "eval") or not any(find(function.body, cst.For)):
            continue  # `def eval(self)` that only passes the mode on evaluates nothing
        if any(find(function.body, cst.Yield)) or function.asynchronous:
            continue
        decorator = cst.Decorator(cst.parse_expression(f"{torch}.no_grad()"))
        changes[function] = function.with_changes(decorators=[*function.decorators, decorator])
    return tree.replaced(changes) if changes else None


CODEMOD = Codemod(
    id="eval_no_grad",
    title="Evaluate without building a graph",
    numerics="bitwise",
    catalogue_id="eval_nograd",
    why="evaluation keeps every activation for a backward pass that never comes",
    rewrite=_rewrite,
    words=("eval()",),
)
