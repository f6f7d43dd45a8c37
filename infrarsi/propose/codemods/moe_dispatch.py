"""Experts that run over all tokens and are then masked: run each over its own tokens only.

With E experts and k chosen per token the masked loop computes E / k times too much. The rewrite needs three proofs,
and refuses without any of them: the weight is zero where the mask is, the expert treats every row by itself, and
the loop adds `weight * expert(x)` to an accumulator and does nothing else with the expert's output.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.scalars import Facts
from infrarsi.propose.codemods.tree import (
    Change,
    Tree,
    as_ast,
    assigned_names,
    code,
    dotted,
    find,
    fresh_name,
    names_in,
    statement_ast,
)

_LAYERS = {
    *("Linear", "Dropout", "GELU", "ReLU", "SiLU", "Sigmoid", "Tanh", "LeakyReLU", "ELU", "Identity", "LayerNorm"),
    *("RMSNorm", "Mish", "Softplus", "Hardswish", "ReLU6"),
}
_FUNCTIONS = {"gelu", "relu", "silu", "sigmoid", "tanh", "dropout", "linear", "leaky_relu", "softplus", "mish"}
_KEEP_ZERO = {"float", "to", "type_as", "type", "half", "bfloat16", "bool", "int", "long", "double", "contiguous"}


@dataclass(frozen=True)
class _Sum:
    """One statement `total += weight * expert(tokens)`."""

    total: str
    weight: ast.expr
    call: ast.Call
    tokens: str
    in_place: bool


def _rewrite(tree: Tree) -> cst.Module | None:
    changes: dict[cst.CSTNode, Change] = {}
    for loop, function, index, expert in expert_loops(tree):
        changes |= _rewrite_loop(tree, loop, function, index, expert)
    return tree.replaced(changes) if changes else None


def expert_loops(tree: Tree) -> Iterator[tuple[cst.For, cst.FunctionDef, str, str]]:
    """Yield (loop, function, index, expert as spelled) of every loop over row-wise experts in a module's method."""
    if not tree.names.spelling("torch"):
        return
    for loop in find(tree.module, cst.For):
        owner = tree.enclosing(loop, cst.ClassDef)
        function = tree.enclosing(loop, cst.FunctionDef)
        if not isinstance(owner, cst.ClassDef) or not isinstance(function, cst.FunctionDef):
            continue
        facts = Facts(tree, function, owner)
        found = expert_of(loop, facts)
        if found is not None and is_rowwise(tree, facts, found[1]):
            yield loop, function, found[0], found[2]


def expert_of(loop: cst.For, facts: Facts) -> tuple[str, str, str] | None:
    """Return index, list and expert as spelled by `for i, expert in enumerate(self.experts)` or `range(…)`."""
    match as_ast(loop.target), as_ast(loop.iter):
        case (
            ast.Tuple(elts=[ast.Name(id=index), ast.Name(id=expert)]),
            ast.Call(func=ast.Name(id="enumerate"), args=[experts], keywords=[]),
        ) if dotted(experts).startswith("self."):
            return index, dotted(experts), expert
        case ast.Name(id=index), ast.Call(func=ast.Name(id="range"), args=[_]):
            for call in find(loop.body, cst.Call):
                if isinstance(call.func, cst.Subscript) and code(call.func.slice[0]).strip() == index:
                    name = dotted(call.func.value)
                    if name.startswith("self.") and facts.module(ast.parse(name, mode="eval").body) is not None:
                        return index, name, f"{name}[{index}]"
    return None


def _rewrite_loop(
    tree: Tree, loop: cst.For, function: cst.FunctionDef, index: str, expert: str
) -> dict[cst.CSTNode, Change]:
    calls = [call for call in find(loop.body, cst.Call) if code(call.func) == expert]
    line = tree.enclosing(calls[0], cst.SimpleStatementLine) if len(calls) == 1 else None
    found = _sum(line, expert) if isinstance(line, cst.SimpleStatementLine) else None
    if found is None or found.tokens in assigned_names(loop.body) or not isinstance(line, cst.SimpleStatementLine):
        return {}
    if code(function).count(f"{expert}(") > 1 and "[" in expert:
        return {}
    values = _values(loop)
    weight = _expanded(found.weight, values)
    selection = _selection(tree, function, weight, index)
    if selection is None:
        return {}
    names = (fresh_name(function, "rows"), fresh_name(function, "share"))
    new = _statements(found, selection, tree.names.spelling("torch"), *names)
    parsed = [cst.parse_statement(text, tree.module.config_for_parsing) for text in new]
    first = parsed[0].with_changes(leading_lines=line.leading_lines)
    return {line: cst.FlattenSentinel([first, *parsed[1:]])}


def _sum(line: cst.SimpleStatementLine, expert: str) -> _Sum | None:
    match statement_ast(line):
        case ast.AugAssign(target=ast.Name(id=total), op=ast.Add(), value=product):
            in_place = True
        case ast.Assign(
            targets=[ast.Name(id=total)], value=ast.BinOp(left=ast.Name(id=same), op=ast.Add(), right=product)
        ) if same == total:
            in_place = False
        case _:
            return None
    match product:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for weight, call in ((left, right), (right, left)):
                if not isinstance(call, ast.Call) or ast.unparse(call.func) != expert or call.keywords:
                    continue
                if len(call.args) == 1 and isinstance(call.args[0], ast.Name) and expert not in ast.unparse(weight):
                    return _Sum(total, weight, call, call.args[0].id, in_place)
    return None


def _statements(found: _Sum, selection: str, torch: str, rows: str, share: str) -> list[str]:
    """Return the statements that compute one expert's share from its own rows.

    An expert without tokens still runs, on no rows, so that all ranks have gradients for all parameters.
    """
    total, tokens, expert = found.total, found.tokens, ast.unparse(found.call.func)
    weight = ast.unparse(found.weight)
    if not isinstance(found.weight, ast.Name):
        weight = f"({weight})"
    pick = f"{rows} = {torch}.nonzero(({selection}).reshape(-1)).squeeze(-1)"
    compute = (
        f"{share} = {expert}({tokens}.reshape(-1, {tokens}.size(-1)).index_select(0, {rows}))"
        f" * {weight}.reshape(-1, 1).index_select(0, {rows})"
    )
    if found.in_place:
        add = f"{total}.view(-1, {total}.size(-1)).index_add_(0, {rows}, {share}.to({total}.dtype))"
    else:
        flat = f"{total}.reshape(-1, {total}.size(-1))"
        add = f"{total} = {flat}.index_add(0, {rows}, {share}.to({total}.dtype)).view_as({total})"
    return [pick, compute, add]


def _values(loop: cst.For) -> dict[str, ast.expr]:
    """Return the names that the loop's own body assigns exactly once, with their values."""
    found: dict[str, list[ast.expr]] = {}
    for item in loop.body.body:
        statement = statement_ast(item) if isinstance(item, cst.SimpleStatementLine) else None
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            found.setdefault(statement.targets[0].id, []).append(statement.value)
    changed = [name.value for node in find(loop.body, cst.AugAssign) for name in find(node.target, cst.Name)]
    return {name: values[0] for name, values in found.items() if len(values) == 1 and name not in changed}


def _expanded(node: ast.expr, values: dict[str, ast.expr], depth: int = 0) -> ast.expr:
    class Expand(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return _expanded(values[name.id], values, depth + 1) if name.id in values and depth < 6 else name

    expanded: ast.expr = Expand().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return expanded


def _selection(tree: Tree, function: cst.FunctionDef, weight: ast.expr, index: str) -> str | None:
    """Return a mask over the tokens outside of which `weight` (one number per token) is zero."""
    inner = _column(weight)
    if inner is None:
        return None
    node, summed = inner
    for factor in _factors(node):
        factor, reduced = _without_casts(factor)
        match factor:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                if index not in {ast.unparse(left), ast.unparse(right)}:
                    continue
                return f"({ast.unparse(factor)}).any(-1)" if summed or reduced else ast.unparse(factor)
            case ast.Subscript(value=ast.Name(id=gates), slice=ast.Tuple(elts=[*_, last])):
                if not summed and ast.unparse(last) == index and _is_sparse(tree, function, gates):
                    return f"{ast.unparse(factor)} != 0"
    return None


def _column(node: ast.expr) -> tuple[ast.expr, bool] | None:
    """Take the trailing dimension of size one off; says whether it came from a sum over the chosen experts."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for side, other in ((left, right), (right, left)):
                if (inner := _column(side)) is not None and _column(other) is not None:
                    return inner
            return None
        case ast.Call(func=ast.Attribute(value=value, attr="unsqueeze"), args=[axis]) if ast.unparse(axis) == "-1":
            return _summed(value)
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[*before, ast.Constant(value=None)])):
            plain = all(ast.unparse(item) in (":", "...", "Ellipsis") for item in before)
            if plain:
                return _summed(value)
            rest = ast.Subscript(value, ast.Tuple(list(before), ast.Load()), ast.Load())
            return rest, False
        case ast.Subscript(
            value=value, slice=ast.Tuple(elts=[*before, ast.Slice(lower=ast.expr() as low, upper=high)])
        ):
            if high is not None and ast.unparse(high) == f"{ast.unparse(low)} + 1":
                return ast.Subscript(value, ast.Tuple([*before, low], ast.Load()), ast.Load()), False
        case ast.Call(func=ast.Attribute(value=value, attr="sum"), keywords=keywords) if _over_last(node):
            if any(item.arg == "keepdim" and ast.unparse(item.value) == "True" for item in keywords):
                return value, True
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _KEEP_ZERO:
            return _column(value)
    return None


def _summed(node: ast.expr) -> tuple[ast.expr, bool]:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="sum")) if _over_last(node):
            return value, True
    return node, False


def _over_last(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    axis = [item.value for item in call.keywords if item.arg == "dim"] + call.args[:1]
    return bool(axis) and ast.unparse(axis[0]) == "-1"


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield node


def _without_casts(node: ast.expr) -> tuple[ast.expr, bool]:
    """Take casts and `.any(-1)` off; says whether there was an `.any(-1)`."""
    reduced = False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("any", "sum") and _over_last(node):
            reduced = True
        elif node.func.attr not in _KEEP_ZERO:
            break
        node = node.func.value
    return node, reduced


def _is_sparse(tree: Tree, function: cst.FunctionDef, name: str) -> bool:
    """Say whether the gates are zeros into which the chosen weights were scattered."""
    made = []
    for line in find(function, cst.SimpleStatementLine):
        match statement_ast(line):
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                made.append(value)
            case ast.AugAssign(target=target) if name in names_in(target):
                return False
    if len(made) != 1:
        return False
    value = made[0]
    scattered = (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("scatter", "scatter_")
    )
    zeros = (
        value.func.value
        if scattered and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        else value
    )
    if not isinstance(zeros, ast.Call) or tree.names.full(zeros.func) not in ("torch.zeros", "torch.zeros_like"):
        return False
    return scattered or f"{name}.scatter_(" in code(function)


def is_rowwise(tree: Tree, facts: Facts, experts: str) -> bool:
    """Say whether the experts are built of layers that treat each row by itself."""
    built = facts.module(ast.parse(experts, mode="eval").body)
    if built is None or tree.names.full(built.func) != "torch.nn.ModuleList" or len(built.args) != 1:
        return False
    item = built.args[0]
    made = item.elt if isinstance(item, (ast.ListComp, ast.GeneratorExp)) else None
    if not isinstance(made, ast.Call):
        return False
    return _is_rowwise_layer(tree, made) or (isinstance(made.func, ast.Name) and _is_rowwise_class(tree, made.func.id))


def _is_rowwise_layer(tree: Tree, made: ast.Call) -> bool:
    full = tree.names.full(made.func)
    if full == "torch.nn.Sequential":
        return all(isinstance(item, ast.Call) and _is_rowwise_layer(tree, item) for item in made.args)
    return full.startswith("torch.nn.") and full.rpartition(".")[2] in _LAYERS


def _is_rowwise_class(tree: Tree, name: str) -> bool:
    owner = next((item for item in find(tree.module, cst.ClassDef) if item.name.value == name), None)
    if owner is None:
        return False
    forward = next((item for item in find(owner, cst.FunctionDef) if item.name.value == "forward"), None)
    if forward is None:
        return False
    facts = Facts(tree, forward, owner)
    parsed = ast.parse(textwrap.dedent(code(forward)).strip("\n")).body[0]
    known = (ast.Assign, ast.Return, ast.Expr, ast.FunctionDef)
    for node in ast.walk(parsed):
        if isinstance(node, ast.stmt) and not isinstance(node, known):
            return False
        if isinstance(node, (ast.Subscript, ast.MatMult, ast.Compare, ast.Lambda)):
            return False
        if isinstance(node, ast.Call):
            built = facts.module(node.func)
            full = tree.names.full(node.func)
            layer = built is not None and _is_rowwise_layer(tree, built)
            if not layer and not (full.startswith("torch.") and full.rpartition(".")[2] in _FUNCTIONS):
                return False
    return True


CODEMOD = Codemod(
    id="moe_dispatch",
    title="Run each expert over its own tokens",
    numerics="reorder",
    catalogue_id="moe_dispatch",
    why="the masked loop runs every expert over every token and multiplies most of the results by zero",
    rewrite=_rewrite,
    words=("ModuleList", "for "),
)
