"""Single steps of attention as people write them: products, transpositions, casts, and what a statement changes."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from infrarsi.propose.codemods.tree import Tree, dotted, text

_CASTS = {"float", "to", "type_as", "type", "half", "bfloat16"}


@dataclass
class Plan:
    """One recognised attention: operands, and the statements that the call makes superfluous."""

    query: ast.expr
    key: ast.expr
    value: ast.expr
    consumed: frozenset[int]
    scale: str | None
    mask: str | None
    causal: bool
    dropout: str | None
    swap_scores: bool = False
    swap_output: tuple[bool, bool] = (False, False)

    def call(self, function: str) -> str:
        """Return the source of the call. Heads behind the sequence (einsum layouts) are moved and moved back."""
        flip = ".transpose(1, 2)"
        swaps = (self.swap_scores, self.swap_scores, self.swap_output[0])
        operands = (self.query, self.key, self.value)
        parts = [
            f"{group(item)}{flip}" if swap else ast.unparse(item) for item, swap in zip(operands, swaps, strict=True)
        ]
        if self.mask is not None:
            parts.append(f"attn_mask={self.mask.replace('{query}', group(self.query))}")
        if self.dropout is not None:
            parts.append(f"dropout_p={self.dropout}")
        if self.causal:
            parts.append("is_causal=True")
        if self.scale is not None:
            parts.append(f"scale={self.scale}")
        end = flip if self.swap_output[1] else ""
        line = f"{function}({', '.join(parts)}){end}"
        if len(line) <= 88:
            return line
        return f"{function}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def group(node: ast.expr) -> str:
    """Return the source of an expression, in parentheses unless it is a primary."""
    simple = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
    return ast.unparse(node) if simple else f"({ast.unparse(node)})"


def product_of(tree: Tree, node: ast.expr) -> tuple[ast.expr, ast.expr, str] | None:
    """Return both operands of a matrix product, and its equation (letters in order of appearance) for einsum."""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return left, right, ""
        case ast.Call(func=func, args=[left, right], keywords=[]):
            return (left, right, "") if tree.names.full(func) in ("torch.matmul", "torch.bmm") else None
        case ast.Call(func=func, args=[ast.Constant(value=str(equation)), left, right], keywords=[]):
            return (left, right, _canonical(equation)) if tree.names.full(func) == "torch.einsum" else None
        case ast.Call(func=ast.Attribute(value=left, attr="matmul" | "bmm"), args=[right], keywords=[]):
            return (left, right, "") if not tree.names.full(node.func) else None
    return None


def _canonical(equation: str) -> str:
    letters: dict[str, str] = {}
    shown = ""
    for character in equation.replace(" ", ""):
        if character.isalpha():
            character = letters.setdefault(character, chr(ord("a") + len(letters)))
        shown += character
    return shown


def untransposed(tree: Tree, node: ast.expr) -> ast.expr | None:
    """Return k when the node is k with its last two dimensions exchanged."""
    last_two = ({"-2", "-1"}, {"2", "3"})  # (2, 3) exists only with four dimensions or more; attention has four
    match node:
        case ast.Attribute(value=key, attr="mT"):
            return key
        case ast.Call(func=ast.Attribute(value=key, attr="transpose" | "swapaxes" | "swapdims"), args=[one, two]):
            return key if {text(one), text(two)} in last_two else None
        case ast.Call(func=ast.Attribute(value=key, attr="permute"), args=axes):
            return key if [text(axis) for axis in axes] == ["0", "1", "3", "2"] else None
        case ast.Call(func=func, args=[key, one, two]) if tree.names.full(func) == "torch.transpose":
            return key if {text(one), text(two)} in last_two else None
    return None


def converted(call: ast.Call) -> ast.expr | None:
    """Return what a dtype conversion converts: the fused kernel accumulates in float32 by itself."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in _CASTS else None


def unguarded(statement: ast.stmt) -> tuple[str | None, ast.stmt]:
    """Return the mask's name and the inner statement of `if mask is not None: …`, else None and the statement."""
    match statement:
        case ast.If(
            test=ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]),
            body=[inner],
            orelse=[],
        ):
            return name, inner
    return None, statement


def changes_in_place(statement: ast.stmt, name: str) -> bool:
    """Say whether a statement calls an in-place method (`masked_fill_`) on `name`."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.endswith("_")
        and dotted(node.func.value) == name
        for node in ast.walk(statement)
    )


def new_value(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what a statement makes of `name`: assigned, augmented or changed in place."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
            return value
        case ast.AugAssign(target=ast.Name(id=target), op=operator, value=value) if target == name:
            return ast.BinOp(ast.Name(name, ast.Load()), operator, value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method)) as call):
            return call if target == name and method.endswith("_") else None
    return None
