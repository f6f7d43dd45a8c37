"""Fused Adam, AdamW and SGD: one kernel for all parameters instead of one per operation and parameter."""

from __future__ import annotations

import ast

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.tree import Change, Tree, add_keyword, as_ast, find, has_star, keyword

# Fused CPU kernels exist for these since torch 2.4, CUDA ones since 2.0.
_OPTIMIZERS = {"Adam", "AdamW", "SGD"}
_EXCLUDED = ("foreach", "differentiable", "capturable")


def _rewrite(tree: Tree) -> cst.Module | None:
    calls = [call for call in find(tree.module, cst.Call) if _is_optimizer(tree, call)]
    if not calls:
        return None
    changes: dict[cst.CSTNode, Change] = {}
    for call in calls:
        if any(keyword(call, name) for name in _EXCLUDED):
            continue
        fused = keyword(call, "fused")
        if fused is None and not has_star(call):
            changes[call] = add_keyword(call, "fused", "True")
        elif fused is not None and _is_cuda_test(as_ast(fused.value)):
            changes[fused.value] = cst.Name("True")
    changes |= _gates(tree)
    return tree.replaced(changes) if changes else None


def _is_optimizer(tree: Tree, call: cst.Call) -> bool:
    full = tree.names.full(call.func)
    return full.startswith("torch.optim.") and full.rpartition(".")[2] in _OPTIMIZERS


def _gates(tree: Tree) -> dict[cst.CSTNode, Change]:
    """Return the edits of `use_fused = available and device == "cuda"`: the CPU kernels are wanted as well.

    Only where the same file passes `fused` on (`fused=use_fused`, `dict(fused=True) if use_fused else …`).
    """
    source = tree.module.code
    if not any(spelling in source for spelling in ("fused=", "'fused':", '"fused":')):
        return {}
    changes: dict[cst.CSTNode, Change] = {}
    for assign in find(tree.module, cst.Assign):
        target = assign.targets[0].target
        if len(assign.targets) != 1 or not isinstance(target, cst.Name) or "fused" not in target.value.lower():
            continue
        if isinstance(as_ast(assign.value), (ast.BoolOp, ast.Compare, ast.Call)):
            kept = _without_cuda_tests(assign.value)
            if kept is not assign.value:
                changes[assign.value] = kept if kept is not None else cst.Name("True")
    return changes


def _without_cuda_tests(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        left, right = _without_cuda_tests(node.left), _without_cuda_tests(node.right)
        if left is node.left and right is node.right:
            return node
        if left is None or right is None:
            return left or right
        return node.with_changes(left=left, right=right)
    return None if _is_cuda_test(as_ast(node)) else node


def _is_cuda_test(node: ast.expr) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return any(isinstance(side, ast.Constant) and side.value == "cuda" for side in (left, right))
        case ast.Compare(left=ast.Constant(value="cuda"), ops=[ast.In()]):
            return True
        case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value="cuda")]):
            return True
        case ast.Call(func=ast.Attribute(attr="is_available", value=ast.Attribute(attr="cuda")), args=[]):
            return True
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return _is_cuda_test(inner)
    return False


CODEMOD = Codemod(
    id="fused_adamw",
    title="Fused optimizer step",
    numerics="reorder",
    catalogue_id="fused_adam",
    why="the optimizer launches one kernel per operation and parameter group; the fused step reads each value once",
    rewrite=_rewrite,
    words=("optim",),
)
