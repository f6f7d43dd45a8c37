"""Attention spelled out (scores, mask, softmax, dropout, values) becomes one scaled_dot_product_attention.

The final product `probabilities @ v` is found first; `attention.trace` then reads the chain of statements that made
the probabilities backwards, and gives up on the first step that it does not know for certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from infrarsi.propose.codemods.attention import Block, trace
from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.forms import Plan
from infrarsi.propose.codemods.tree import Change, Tree, code, find, walk

_FUNCTION = "torch.nn.functional.scaled_dot_product_attention"
_FLASH = ("scaled_dot_product_attention", "flash_attn", "memory_efficient_attention", "flex_attention")


def _rewrite(tree: Tree) -> cst.Module | None:
    function = tree.names.spelling(_FUNCTION)
    if not function:
        return None
    changes: dict[cst.CSTNode, Change] = {}
    for definition in find(tree.module, cst.FunctionDef):
        if any(name in code(definition) for name in _FLASH):
            continue
        owner = tree.enclosing(definition, cst.ClassDef)
        for block in find(definition, cst.IndentedBlock):
            changes |= _rewrite_block(tree, definition, owner, block, function)
    return tree.replaced(changes) if changes else None


def _rewrite_block(
    tree: Tree, definition: cst.FunctionDef, owner: cst.CSTNode | None, body: cst.IndentedBlock, function: str
) -> dict[cst.CSTNode, Change]:
    block = Block(tree, definition, owner if isinstance(owner, cst.ClassDef) else None, body)
    for index, statement in enumerate(body.body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for node in _products(statement):
            plan = trace(block, index, node)
            if plan is not None:
                return _edits(body.body, index, node, plan, function)
    return {}


def _products(statement: cst.SimpleStatementLine) -> Iterator[cst.BaseExpression]:
    for node in walk(statement):
        if isinstance(node, cst.Call) or (
            isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply)
        ):
            yield node


def _edits(
    statements: Sequence[cst.BaseStatement], index: int, node: cst.BaseExpression, plan: Plan, function: str
) -> dict[cst.CSTNode, Change]:
    """Exchange the product for the call and take the consumed statements out.

    The comments above the first consumed statement explain the whole computation: they move to the call.
    """
    call = cst.parse_expression(plan.call(function))
    if isinstance(node, (cst.BinaryOperation, cst.Call)):
        call = call.with_changes(lpar=node.lpar, rpar=node.rpar)
    final = statements[index]
    changes: dict[cst.CSTNode, Change] = {}
    for consumed in plan.consumed:
        changes[statements[consumed]] = cst.RemoveFromParent()
    new = final.visit(_Exchange(node, call))
    if plan.consumed and isinstance(new, cst.SimpleStatementLine):
        first = statements[min(plan.consumed)]
        leading = [*getattr(first, "leading_lines", ()), *new.leading_lines]
        new = new.with_changes(leading_lines=leading)
    if isinstance(new, cst.SimpleStatementLine):
        changes[final] = new
    return changes


class _Exchange(cst.CSTTransformer):
    def __init__(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        super().__init__()
        self.old, self.new = old, new

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """Exchange one node."""
        return self.new if original_node is self.old else updated_node


CODEMOD = Codemod(
    id="sdpa",
    title="Attention by scaled_dot_product_attention",
    numerics="reorder",
    catalogue_id="sdpa",
    why="the spelled-out form writes the (heads, T, T) scores to memory four times; the fused kernel never does. "
    "With dropout above zero the random stream differs, its distribution does not",
    rewrite=_rewrite,
    words=("oftmax",),
)
