"""One call per expert by row numbers, where the loop goes over experts and slots with boolean masks.

Each boolean index counts and copies its mask anew, and a loop over the top-k slots calls every expert k times on
small pieces. With row numbers every expert runs once, and its rows are added with one `index_add_`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.moe_dispatch import expert_loops
from infrarsi.propose.codemods.tree import Change, Tree, find, fresh_name, names_in, statement_ast


@dataclass(frozen=True)
class _Masked:
    """`mask = chosen[:, slot] == index` and `total[mask] += weight * expert(tokens[mask])`."""

    mask: str
    chosen: ast.expr
    slot: ast.expr
    total: str
    value: ast.expr


def _rewrite(tree: Tree) -> cst.Module | None:
    torch = tree.names.spelling("torch")
    changes: dict[cst.CSTNode, Change] = {}
    for loop, function, index, expert in expert_loops(tree):
        inner = loop.body.body[0] if len(loop.body.body) == 1 else None
        masked = _masked(inner, index=index, expert=expert) if isinstance(inner, cst.For) else None
        if not isinstance(inner, cst.For) or masked is None or not _covers_all_slots(tree, function, inner, masked):
            continue
        rows, slots = fresh_name(function, "rows"), fresh_name(function, "slots")
        share = _Renamed({masked.mask: rows, ast.unparse(masked.slot): slots}).visit(masked.value)
        lines = (
            f"{rows}, {slots} = {torch}.where({ast.unparse(masked.chosen)} == {index})",
            f"{masked.total}.index_add_(0, {rows}, ({ast.unparse(share)}).to({masked.total}.dtype))",
        )
        parsed = [cst.parse_statement(line, tree.module.config_for_parsing) for line in lines]
        first = parsed[0].with_changes(leading_lines=inner.leading_lines)
        changes[loop.body] = loop.body.with_changes(body=[first, *parsed[1:]])
    return tree.replaced(changes) if changes else None


def _masked(loop: cst.For, *, index: str, expert: str) -> _Masked | None:
    """Read the body of the loop over slots: exactly the mask and the masked addition."""
    if len(loop.body.body) != 2 or not isinstance(loop.target, cst.Name):
        return None
    first, second = (statement_ast(item) for item in loop.body.body)
    slot = loop.target.value
    match first:
        case ast.Assign(
            targets=[ast.Name(id=mask)],
            value=ast.Compare(
                left=ast.Subscript(
                    value=chosen,
                    slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), ast.Name(id=used)]),
                ),
                ops=[ast.Eq()],
                comparators=[ast.Name(id=compared)],
            ),
        ) if used == slot and compared == index:
            pass
        case _:
            return None
    match second:
        case ast.AugAssign(
            target=ast.Subscript(value=ast.Name(id=total), slice=ast.Name(id=where)), op=ast.Add(), value=value
        ) if where == mask:
            if total in names_in(value) or not _is_weighted_call(value, mask, expert):
                return None
            return _Masked(mask, chosen, ast.Name(slot, ast.Load()), total, value)
    return None


def _is_weighted_call(value: ast.expr, mask: str, expert: str) -> bool:
    """Say whether a value is `weight[mask, slot].unsqueeze(-1) * expert(tokens[mask])`, in either order.

    The mask may stand only as the first index, where row numbers mean the same.
    """
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and ast.unparse(node.func) == expert]
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult) or len(calls) != 1:
        return False
    if not any(side is calls[0] for side in (value.left, value.right)) or len(calls[0].args) != 1:
        return False
    indexed = 0
    for node in ast.walk(value):
        if isinstance(node, ast.Subscript):
            head = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            indexed += isinstance(head, ast.Name) and head.id == mask
    return indexed == sum(isinstance(node, ast.Name) and node.id == mask for node in ast.walk(value)) and indexed >= 1


def _covers_all_slots(tree: Tree, function: cst.FunctionDef, loop: cst.For, masked: _Masked) -> bool:
    """Say whether `range(k)` of the loop is all of `chosen`: made by topk with the same k, or its own size."""
    match ast.parse(tree.module.code_for_node(loop.iter), mode="eval").body:
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            wanted = ast.unparse(count)
        case _:
            return False
    chosen = ast.unparse(masked.chosen)
    if wanted in (f"{chosen}.size(-1)", f"{chosen}.shape[-1]", f"{chosen}.size(1)", f"{chosen}.shape[1]"):
        return True
    for line in find(function, cst.SimpleStatementLine):
        match statement_ast(line):
            case ast.Assign(
                targets=[ast.Tuple(elts=[_, ast.Name(id=name)])],
                value=ast.Call(func=func, args=args, keywords=keywords),
            ) if name == chosen and (tree.names.full(func) == "torch.topk" or ast.unparse(func).endswith(".topk")):
                given = [ast.unparse(item) for item in args] + [
                    ast.unparse(item.value) for item in keywords if item.arg == "k"
                ]
                return wanted in given
    return False


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Exchange one name."""
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


CODEMOD = Codemod(
    id="moe_index",
    title="One call per expert by row numbers",
    numerics="reorder",
    catalogue_id="moe_dispatch",
    why="boolean masks are counted and copied at every use, and the loop over slots calls each expert on small pieces",
    rewrite=_rewrite,
    words=("ModuleList", "for "),
)
