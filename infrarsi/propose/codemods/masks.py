"""Which attention mask is this: a causal one, one that can be handed over, or one that is not understood?"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from infrarsi.propose.codemods.scalars import Facts
from infrarsi.propose.codemods.tree import Tree, dotted, text

Triangle = Literal["lower", "upper"]  # non-zero on and below the diagonal; non-zero strictly above it
_SAME = {
    "view", "reshape", "bool", "to", "float", "byte", "type", "int", "cuda", "cpu", "detach", "unsqueeze", "contiguous",
    "type_as", "clone", "expand", "repeat", "half", "long",
}  # fmt: skip


@dataclass(frozen=True)
class Masked:
    """One masking step: the scores below it, and either `causal` or the source of an attention mask."""

    scores: ast.expr
    causal: bool
    source: str | None
    mask: ast.expr
    additive: bool
    strong: bool  # the fill is so low that a positive scale on top of it changes nothing


class MaskReader:
    """Reads one masking step; `follow` gives the definition of a local name."""

    def __init__(self, tree: Tree, facts: Facts, follow: Callable[[ast.expr], ast.expr]) -> None:
        self.tree, self.facts, self.follow = tree, facts, follow

    def read(self, value: ast.expr) -> Masked | None:
        """Return the masking that `value` applies to the scores, None when it is not one (or not understood)."""
        match value:
            case ast.Call(func=ast.Attribute(value=scores, attr="masked_fill" | "masked_fill_"), args=[blocked, fill]):
                return self._filled(scores, fill, kept=None, blocked=blocked)
            case ast.Call(func=func, args=[condition, first, second], keywords=[]):
                if self.tree.names.full(func) != "torch.where":
                    return None
                if (masked := self._filled(first, second, kept=condition, blocked=None)) is not None:
                    return masked
                return self._filled(second, first, kept=None, blocked=condition)
            case ast.Call(
                func=ast.Attribute(value=scores, attr="masked_fill" | "masked_fill_"),
                args=[blocked],
                keywords=[ast.keyword(arg="value", value=fill)],
            ):
                return self._filled(scores, fill, kept=None, blocked=blocked)
            case ast.BinOp(left=scores, op=ast.Add(), right=mask):
                return self._added(scores, mask)
        return None

    def _filled(
        self, scores: ast.expr, fill: ast.expr, *, kept: ast.expr | None, blocked: ast.expr | None
    ) -> Masked | None:
        level = self._fill(fill)
        condition = kept if kept is not None else blocked
        if level is None or level > -1e4 or condition is None:
            return None
        triangle = self.triangle(condition)
        causal = triangle == ("lower" if kept is not None else "upper")
        if causal:
            return Masked(scores, True, None, condition, False, strong=level <= -1e9)
        # A finite fill gives a fully masked row uniform weights; only -inf means what a boolean mask means.
        if triangle is not None or level != -math.inf:
            return None
        source = ast.unparse(kept) if kept is not None else _negated(condition)
        return Masked(scores, False, source, condition, False, strong=True)

    def _added(self, scores: ast.expr, mask: ast.expr) -> Masked | None:
        resolved = self.follow(mask)
        match resolved:
            case ast.Call(func=func, args=[ast.Call() as filled, *_]) if self.tree.names.full(func) == "torch.triu":
                if _diagonal(resolved, skip=1) == 1 and self._full_of_minus_infinity(filled):
                    return Masked(scores, True, None, mask, True, strong=False)
        if not dotted(mask) and not isinstance(mask, ast.Subscript):
            return None
        return Masked(scores, False, f"{ast.unparse(mask)}.to({{query}}.dtype)", mask, True, strong=False)

    def _full_of_minus_infinity(self, node: ast.Call) -> bool:
        if self.tree.names.full(node.func) != "torch.full" or len(node.args) != 2:
            return False
        shape = node.args[0]
        square = isinstance(shape, ast.Tuple) and len(shape.elts) >= 2 and text(shape.elts[-1]) == text(shape.elts[-2])
        level = self._fill(node.args[1])
        return square and level is not None and level <= -1e9

    def _fill(self, node: ast.expr) -> float | None:
        """Return the value of `float("-inf")`, `-math.inf`, `torch.finfo(x.dtype).min`, `-1e9`…"""
        node = self.follow(node)
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._fill(operand)
                return -value if value is not None else None
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(shown))]):
                return -math.inf if shown.lower() in ("-inf", "-infinity") else math.inf
            case ast.Attribute(value=ast.Call(func=func), attr="min") if self.tree.names.full(func) == "torch.finfo":
                return -3e38
            case ast.Attribute(attr="inf"):
                return math.inf
            case ast.Call(func=func, args=[inner, *_]) if self.tree.names.full(func) in ("torch.tensor", "torch.full"):
                return self._fill(
                    node.args[1] if self.tree.names.full(func) == "torch.full" and node.args[1:] else inner
                )
        return None

    def triangle(self, node: ast.expr, depth: int = 0) -> Triangle | None:
        """Return which triangle of a square matrix is non-zero, None when that is not certain."""
        if depth > 12:
            return None
        match node:
            case ast.Name():
                value = self.follow(node)
                return self.triangle(value, depth + 1) if value is not node else None
            case ast.Attribute() if dotted(node).startswith("self.") and dotted(node).count(".") == 1:
                return self._buffer(node.attr, depth)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return _flip(self.triangle(operand, depth + 1))
            case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=right):
                return _flip(self.triangle(right, depth + 1))
            case ast.Compare(left=left, ops=[operator], comparators=[ast.Constant(value=limit)]):
                return self._compared(left, operator, limit, depth)
            case ast.Subscript(value=value, slice=index):
                return self.triangle(value, depth + 1) if _keeps_square(index) else None
            case ast.Call():
                return self._call(node, depth)
        return None

    def _call(self, node: ast.Call, depth: int) -> Triangle | None:
        full = self.tree.names.full(node.func)
        if full in ("torch.tril", "torch.triu") and node.args:
            return _triangle_of(full[6:], _diagonal(node, skip=1)) if self._is_ones(node.args[0]) else None
        if full == "torch.logical_not" and node.args:
            return _flip(self.triangle(node.args[0], depth + 1))
        if not isinstance(node.func, ast.Attribute):
            return None
        if node.func.attr in ("tril", "triu") and self._is_ones(node.func.value):
            return _triangle_of(node.func.attr, _diagonal(node, skip=0))
        if node.func.attr == "logical_not":
            return _flip(self.triangle(node.func.value, depth + 1))
        if node.func.attr in ("eq", "ne") and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            operator = ast.Eq() if node.func.attr == "eq" else ast.NotEq()
            return self._compared(node.func.value, operator, node.args[0].value, depth)
        return self.triangle(node.func.value, depth + 1) if node.func.attr in _SAME else None

    def _compared(self, left: ast.expr, operator: ast.cmpop, limit: object, depth: int) -> Triangle | None:
        triangle = self.triangle(left, depth + 1)
        match (operator, limit):
            case (ast.Eq() | ast.Is(), 0 | 0.0) | (ast.NotEq(), 1 | 1.0) | (ast.Lt(), 1):
                return _flip(triangle)
            case (ast.Eq() | ast.Is(), 1 | 1.0) | (ast.NotEq(), 0 | 0.0) | (ast.Gt(), 0):
                return triangle
        return None

    def _buffer(self, name: str, depth: int) -> Triangle | None:
        found: set[Triangle | None] = set()
        for value, method in self.facts.attribute_values(name):
            if isinstance(value, ast.Constant) and value.value is None:
                continue
            local = Facts.__new__(Facts)
            local.tree, local.function, local.owner = self.tree, method, self.facts.owner
            reader = MaskReader(self.tree, local, lambda item, method=method: _only_value(method, item))  # type: ignore[misc]
            found.add(reader.triangle(value, depth + 1))
        return found.pop() if len(found) == 1 else None

    def _is_ones(self, node: ast.expr) -> bool:
        """Say whether a node is a square matrix of ones (dtype and device do not matter)."""
        node = self.follow(node)
        if not isinstance(node, ast.Call):
            return False
        full = self.tree.names.full(node.func)
        if full == "torch.ones":
            sizes = node.args[0].elts if node.args and isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args
            return len(sizes) >= 2 and text(sizes[-1]) == text(sizes[-2])
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
            return self._is_ones(node.func.value)
        return False


def _negated(condition: ast.expr) -> str:
    match condition:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | False)]):
            return f"{ast.unparse(left)} != 0"
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ast.unparse(operand)
    return (
        f"~{ast.unparse(condition)}"
        if isinstance(condition, (ast.Name, ast.Attribute))
        else f"~({ast.unparse(condition)})"
    )


def _flip(triangle: Triangle | None) -> Triangle | None:
    return None if triangle is None else ("upper" if triangle == "lower" else "lower")


def _triangle_of(kind: str, diagonal: int | None) -> Triangle | None:
    if kind == "tril" and diagonal == 0:
        return "lower"
    return "upper" if kind == "triu" and diagonal == 1 else None


def _diagonal(node: ast.Call, *, skip: int) -> int | None:
    given = [item.value for item in node.keywords if item.arg == "diagonal"] + list(node.args[skip : skip + 1])
    if not given:
        return 0
    value = given[0]
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None


def _keeps_square(index: ast.expr) -> bool:
    """Say whether a subscript keeps a square matrix square: `[:, :, :T, :T]`, `[:T, :T]`, `[None, None]`."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    if all(isinstance(item, ast.Constant) and item.value is None for item in items):
        return True
    rows_columns = items[-2:]
    if len(rows_columns) != 2 or not all(isinstance(item, ast.Slice) for item in rows_columns):
        return False
    first, second = rows_columns
    return isinstance(first, ast.Slice) and first.lower is None and first.step is None and text(first) == text(second)


def _only_value(function: ast.FunctionDef, node: ast.expr) -> ast.expr:
    """Return the single value that a function assigns to a local name, or the node itself."""
    if not isinstance(node, ast.Name):
        return node
    values = [
        item.value
        for item in ast.walk(function)
        if isinstance(item, ast.Assign)
        and len(item.targets) == 1
        and isinstance(item.targets[0], ast.Name)
        and item.targets[0].id == node.id
    ]
    return values[0] if len(values) == 1 else node
