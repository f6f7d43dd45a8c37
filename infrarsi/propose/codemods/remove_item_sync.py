"""Keep the running loss on the device, and fetch it when it is shown: `.item()` waits for the device at every step.

The sum is kept in float64, in which Python floats are, so that the shown value stays the same to the last digit.
"""

from __future__ import annotations

import ast

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.loops import Loop, loss_names, training_loops
from infrarsi.propose.codemods.tree import Change, Tree, as_ast, assigned_names, code, dotted, find, is_pure

_PASSED = {"detach", "mean", "float", "clone", "cpu"}
_DROPPED = {"cpu", "detach"}


def _rewrite(tree: Tree) -> cst.Module | None:
    changes: dict[cst.CSTNode, Change] = {}
    done: set[tuple[int, str]] = set()
    for loop in training_loops(tree):
        losses = loss_names(loop)
        for line in find(loop, cst.SimpleStatementLine):
            write = _write(line, losses)
            if write is None:
                continue
            name, _ = write
            scope = tree.scope(line)
            if (id(scope), name) not in done:
                done.add((id(scope), name))
                changes |= _variable(tree, scope, name, losses, loop) or {}
    return tree.replaced(changes) if changes else None


def _write(line: cst.SimpleStatementLine, losses: set[str]) -> tuple[str, dict[cst.CSTNode, Change]] | None:
    """Return the variable and the edit of `total += loss.item()` and of `shown = loss.item() * n`."""
    if len(line.body) != 1:
        return None
    statement = line.body[0]
    if isinstance(statement, cst.AugAssign) and isinstance(statement.operator, cst.AddAssign):
        target, copy = statement.target, ""
    elif isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target, copy = statement.targets[0].target, ".clone()"  # the loss may be changed in place afterwards
    else:
        return None
    fetches = [node for node in find(statement.value, cst.Call) if _fetched(node, losses) is not None]
    if not isinstance(target, cst.Name) or not fetches:
        return None
    fetch = fetches[0]  # the outermost: float(loss.item()) holds another
    if not _is_scaled(statement.value, fetch):
        return None
    return target.value, {fetch: cst.parse_expression(f"{_fetched(fetch, losses)}.detach(){copy}.double()")}


def _fetched(call: cst.Call, losses: set[str]) -> str | None:
    """Return the tensor that `.item()` or `float()` fetches, when it is one of the losses."""
    node = as_ast(call)
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[inner], keywords=[]):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "item":
                inner = inner.func.value
        case ast.Call(func=ast.Attribute(value=inner, attr="item"), args=[], keywords=[]):
            pass
        case _:
            return None
    kept: list[str] = []
    while not isinstance(inner, ast.Name):
        match inner:
            case ast.Call(func=ast.Attribute(value=below, attr=method), args=[], keywords=[]) if method in _PASSED:
                kept += [] if method in _DROPPED else [f".{method}()"]
                inner = below
            case ast.Attribute(value=below, attr="data"):
                inner = below
            case _:
                return None
    return inner.id + "".join(reversed(kept)) if inner.id in losses else None


def _is_scaled(value: cst.BaseExpression, fetch: cst.Call) -> bool:
    """Say whether a value is the fetched number times or over plain numbers (names, sizes, constants)."""
    if value is fetch:
        return True
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, (cst.Multiply, cst.Divide)):
        return False
    for side, other in ((value.left, value.right), (value.right, value.left)):
        if any(node is fetch for node in find(side, cst.Call)):
            return is_pure(as_ast(other), _is_size) and _is_scaled(side, fetch)
    return False


def _is_size(call: ast.Call) -> bool:
    name = dotted(call.func)
    return name == "len" or name.endswith((".size", ".get_world_size", ".numel"))


def _variable(
    tree: Tree, scope: cst.FunctionDef | cst.Module, name: str, losses: set[str], loop: Loop
) -> dict[cst.CSTNode, Change] | None:
    """Return all edits for one variable: its writes become tensors, its reads become numbers. None when unsure."""
    changes: dict[cst.CSTNode, Change] = {}
    writes: list[cst.CSTNode] = []
    reads: list[cst.Name] = []
    for node in _occurrences(tree, scope, name):
        line = tree.enclosing(node, cst.SimpleStatementLine)
        write = _write(line, losses) if isinstance(line, cst.SimpleStatementLine) else None
        kind = _kind(tree, node)
        if kind == "read":
            reads.append(node)
        elif write is not None and write[0] == name and any(item is loop for item in tree.ancestors(node)):
            changes |= write[1]
            writes.append(node)
        elif kind == "unclear":
            return None
    if not writes or any(_in_step_with(tree, read, write) for read in reads for write in writes):
        return None
    for read in reads:
        parent = tree.parent(read)
        call = tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if isinstance(call, cst.Call) and code(call.func) == "float":
            continue
        changes[read] = cst.parse_expression(f"float({name})")
    return changes


def _occurrences(tree: Tree, scope: cst.FunctionDef | cst.Module, name: str) -> list[cst.Name]:
    found = []
    for node in find(scope, cst.Name):
        parent = tree.parent(node)
        if node.value != name or (isinstance(parent, cst.Attribute) and parent.attr is node):
            continue
        if isinstance(parent, (cst.Arg, cst.Param)) and (getattr(parent, "keyword", None) is node):
            continue
        inner = tree.scope(node)
        if inner is not scope and isinstance(inner, cst.FunctionDef):
            own = assigned_names(inner.body) | {param.name.value for param in find(inner.params, cst.Param)}
            if name in own:
                continue  # another variable of the same name
        found.append(node)
    return found


def _kind(tree: Tree, node: cst.Name) -> str:
    """Sort one occurrence: `reset` (a plain number is assigned), `read`, or `unclear`."""
    parent = tree.parent(node)
    if isinstance(parent, cst.AssignTarget):
        assign = tree.parent(parent)
        return "reset" if isinstance(assign, cst.Assign) and _is_number(assign.value) else "unclear"
    if isinstance(parent, cst.AnnAssign):
        return "reset" if parent.target is node and parent.value is not None and _is_number(parent.value) else "unclear"
    if isinstance(parent, cst.AugAssign) and parent.target is node:
        scaled = isinstance(parent.operator, (cst.DivideAssign, cst.MultiplyAssign))
        return "reset" if scaled and is_pure(as_ast(parent.value), _is_size) else "unclear"
    if isinstance(parent, cst.Element):
        return _element_kind(tree, node, parent)
    unclear = (cst.Attribute, cst.Param, cst.NameItem, cst.Del, cst.NamedExpr, cst.AsName, cst.For, cst.CompFor)
    if isinstance(parent, unclear) and not (isinstance(parent, (cst.For, cst.CompFor)) and parent.iter is node):
        return "unclear"
    if isinstance(parent, cst.NamedExpr) or (isinstance(parent, cst.FormattedStringExpression) and parent.equal):
        return "unclear"
    return "read"


def _element_kind(tree: Tree, node: cst.Name, element: cst.Element) -> str:
    group = tree.parent(element)
    target = tree.parent(group) if group is not None else None
    if not isinstance(target, cst.AssignTarget):
        return "unclear" if isinstance(target, (cst.For, cst.CompFor, cst.AsName)) else "read"
    assign = tree.parent(target)
    if (
        not isinstance(group, cst.Tuple)
        or not isinstance(assign, cst.Assign)
        or not isinstance(assign.value, cst.Tuple)
    ):
        return "unclear"
    index = list(group.elements).index(element)
    values = assign.value.elements
    return "reset" if index < len(values) and _is_number(values[index].value) else "unclear"


def _is_number(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float))


def _in_step_with(tree: Tree, read: cst.Name, write: cst.CSTNode) -> bool:
    """Say whether a value is fetched as often as it is written, so that nothing would be won."""
    loop = tree.enclosing(write, cst.For, cst.While)
    above_write = {id(node) for node in tree.ancestors(write)}
    for node in tree.ancestors(read):
        if node is loop:
            return True
        if isinstance(node, (cst.If, cst.FunctionDef)) and id(node) not in above_write:
            return False
    return False


CODEMOD = Codemod(
    id="remove_item_sync",
    title="Fetch the running loss when it is shown",
    numerics="bitwise",
    catalogue_id="no_sync_host",
    why="fetching a number waits until the device has finished, so that it idles while the next step is prepared",
    rewrite=_rewrite,
    words=("backward",),
)
