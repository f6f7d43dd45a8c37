"""Values that Python source states outright: literals, and sums of literals. Nothing is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from infrarsi.records import Scalar

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
# Calls whose result has a known type even where its value is not known.
_CALL_TYPES = {"str": "str", "int": "int", "float": "float", "bool": "bool", "getenv": "str", "strftime": "str",
               "join": "str", "get": "str", "is_available": "bool"}  # fmt: skip


def constant(node: ast.expr | None, names: Mapping[str, Scalar] | None = None) -> Scalar | None:
    """Return the value of an expression of literals, arithmetic and known names; None where it has another form."""
    known = names or {}
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = constant(operand, known)
            return -inner if isinstance(inner, int | float) else None
        case ast.BinOp(left=left, op=op, right=right):
            first, second = constant(left, known), constant(right, known)
            if first is None or second is None:
                return None
            return _arithmetic(op, first, second)
    return None


def _arithmetic(op: ast.operator, first: Scalar, second: Scalar) -> Scalar | None:
    if isinstance(op, ast.Pow):
        # 2**20 is common; 10**10**10 must not hang
        if isinstance(first, str) or not isinstance(second, int | float) or abs(second) > 64:
            return None
        result = first**second
        return result if isinstance(result, int | float) else None
    if type(op) not in _OPERATIONS or isinstance(first, str) != isinstance(second, str):
        return None
    try:
        result = _OPERATIONS[type(op)](first, second)
    except (TypeError, ZeroDivisionError, ValueError):
        return None
    return result if isinstance(result, bool | int | float | str) else None


def kind_of(node: ast.expr, names: Mapping[str, Scalar]) -> str:
    """Return "int", "float", "bool" or "str" where the expression's type can be told, else ""."""
    value = constant(node, names)
    if value is not None:
        return type(value).__name__
    match node:
        case ast.JoinedStr():
            return "str"
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return "bool"
        case ast.IfExp(body=body, orelse=orelse):
            return kind_of(body, names) or kind_of(orelse, names)
        case ast.BinOp(left=left, right=right):
            return kind_of(left, names) or kind_of(right, names)
        case ast.Call(func=func):
            return _CALL_TYPES.get(dotted(func).rpartition(".")[2], "")
    return ""


def simple_globals(source: str | ast.Module) -> dict[str, tuple[Scalar | None, str, int]]:
    """Return the module-level names: name -> (value or None where not known, type or "", line).

    A later assignment of the same name wins, as it does when the module runs.
    """
    try:
        tree = ast.parse(source) if isinstance(source, str) else source
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, tuple[Scalar | None, str, int]] = {}
    for node in tree.body:
        targets: list[ast.expr]
        names = {key: value for key, (value, _, _) in found.items() if value is not None}
        match node:
            case ast.Assign(targets=assigned, value=value):
                targets = assigned
            case ast.AnnAssign(target=annotated, value=ast.expr() as value):
                targets = [annotated]
            case _:
                continue
        kind = kind_of(value, names)
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            first_line = found[target.id][2] if target.id in found else node.lineno
            found[target.id] = (constant(value, names), kind, first_line)
    return found


def dotted(node: ast.expr | None) -> str:
    """Return `a.b.c` of a name or attribute, the callee's of a call, "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value)
            return f"{base}.{attr}" if base else attr
        case ast.Call(func=func):
            return dotted(func)
    return ""


def decorator_name(node: ast.expr) -> str:
    """Return the dotted name of a decorator, called or not."""
    return dotted(node)
