"""Training loops: which loop holds backward, whether it accumulates, and what is true at its last micro-step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from infrarsi.propose.codemods.ddp_bucket_view import is_ddp
from infrarsi.propose.codemods.tree import (
    Tree,
    as_ast,
    assigned_names,
    code,
    dotted,
    find,
    is_pure,
    method_calls,
    names_in,
)

Loop = cst.For | cst.While
_GRADIENT = re.compile(r"\.grad\b|clip_grad|zero_grad")
_MODEL_NAME = re.compile(r"(^|[._])(ddp_?)?(model|net|network)(_?ddp)?$")


def backward_calls(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls `loss.backward()`; `engine.backward(loss)` of a framework is not one of them."""
    return [call for call in method_calls(node, "backward") if all(arg.keyword is not None for arg in call.args)]


def training_loops(tree: Tree) -> list[Loop]:
    """Return the innermost loops that call backward, in source order."""
    found: list[Loop] = []
    for call in backward_calls(tree.module):
        loop = tree.enclosing(call, cst.For, cst.While, cst.FunctionDef)
        if isinstance(loop, (cst.For, cst.While)) and loop not in found:
            found.append(loop)
    return found


def loss_names(loop: Loop) -> set[str]:
    """Return the names that backward is called on, scaled or not, and what `loss = raw_loss / n` was made from."""
    found: set[str] = set()
    for call in backward_calls(loop):
        if isinstance(call.func, cst.Attribute):
            match as_ast(call.func.value):
                case ast.Name(id=name) | ast.BinOp(left=ast.Name(id=name)):
                    found.add(name)
                case ast.Call(
                    func=ast.Attribute(attr="scale"), args=[ast.Name(id=name) | ast.BinOp(left=ast.Name(id=name))]
                ):
                    found.add(name)
    for assign in find(loop, cst.Assign):
        if dotted(assign.targets[0].target) in found:
            match as_ast(assign.value):
                case ast.BinOp(left=ast.Name(id=name), op=ast.Div() | ast.Mult()):
                    found.add(name)
    return found


def steps_optimizer(node: cst.CSTNode) -> bool:
    """Say whether an optimizer steps below `node`: `optimizer.step()`, `scaler.step(optimizer)`, `opt.step()`."""
    for call in method_calls(node, "step"):
        receiver = code(call.func.value).lower() if isinstance(call.func, cst.Attribute) else ""
        if "opt" in receiver or "scaler" in receiver or receiver in ("adam", "adamw", "sgd"):
            return True
    return False


@dataclass(frozen=True)
class Accumulation:
    """A micro-step loop: statements `first` to `last` run forward and backward; `more` is true before the last one."""

    loop: Loop
    first: int
    last: int
    model: str
    more: str
    target: str | None = None  # the new name of an unused loop variable


def accumulations(tree: Tree) -> Iterator[Accumulation]:
    """Yield the loops that accumulate gradients over micro-steps and whose last micro-step can be told beforehand."""
    for loop in training_loops(tree):
        body = loop.body.body
        backs = [index for index, statement in enumerate(body) if backward_calls(statement)]
        if len(backs) != 1 or any(find(loop.body, cst.Try)) or not isinstance(loop.body, cst.IndentedBlock):
            continue
        last = backs[0]
        model, first = called_model(tree, body[: last + 1])
        if not model:
            continue
        told = _counted(loop, body) if not steps_optimizer(loop.body) else _modulo(body, first, last)
        if told is not None:
            yield Accumulation(loop, first, last, model, *told)


def _wrapped_models(tree: Tree) -> set[str]:
    found: set[str] = set()
    for assign in find(tree.module, cst.Assign):
        if any(is_ddp(tree, call) for call in find(assign.value, cst.Call)):
            found |= {dotted(target.target) for target in assign.targets}
    return found - {""}


def called_model(tree: Tree, statements: Sequence[cst.CSTNode]) -> tuple[str, int]:
    """Return the one model that the statements call or hand to a function, and in which statement; "" when unclear."""
    wrapped = _wrapped_models(tree)
    seen: dict[str, int] = {}
    for index, statement in enumerate(statements):
        for call in find(statement, cst.Call):
            for node in (call.func, *(arg.value for arg in call.args)):
                name = dotted(node)
                if name and (name in wrapped or (not wrapped and _MODEL_NAME.search(name))):
                    seen.setdefault(name, index)
    return next(iter(seen.items())) if len(seen) == 1 else ("", 0)


def _counted(loop: Loop, body: Sequence[cst.CSTNode]) -> tuple[str, str | None] | None:
    """Read `for micro in range(n)` whose optimizer steps after the loop."""
    source = code(loop.body)
    jumps = (cst.Break, cst.Continue, cst.Return)
    if not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Name) or _GRADIENT.search(source):
        return None
    if any(any(find(loop.body, kind)) for kind in jumps):
        return None
    match as_ast(loop.iter):
        case (
            ast.Call(func=ast.Name(id="range"), args=[count])
            | ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=0), count])
        ):
            pass
        case _:
            return None
    changed = assigned_names(loop.body)
    variable = loop.target.value
    if not is_pure(count) or changed & (names_in(count) | {variable}) or _is_one(count):
        return None
    shown = (
        ast.unparse(count) if isinstance(count, (ast.Name, ast.Attribute, ast.Constant)) else f"({ast.unparse(count)})"
    )
    renamed = None
    if variable == "_":
        if any(name.value == "micro_step" for name in find(loop.body, cst.Name)):
            return None
        variable = renamed = "micro_step"
    return f"{variable} < {shown} - 1", renamed


def _modulo(body: Sequence[cst.CSTNode], first: int, last: int) -> tuple[str, str | None] | None:
    """Read `if (step + 1) % n == 0: optimizer.step()` behind the backward of the same loop body."""
    stepping = [index for index, statement in enumerate(body) if steps_optimizer(statement)]
    if len(stepping) != 1 or stepping[0] <= last:
        return None
    statement = body[stepping[0]]
    between = body[first : stepping[0]]
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return None
    for item in between:
        if _GRADIENT.search(code(item)) or any(find(item, cst.Continue)) or any(find(item, cst.Break)):
            return None
    condition = as_ast(statement.test)
    names = names_in(condition)
    if not is_pure(condition) or names & {name for item in between for name in assigned_names(item)}:
        return None
    counted = any(isinstance(node, ast.Mod) for node in ast.walk(condition)) or any(
        "%" in code(item) and assigned_names(item) & names for item in body[:first]
    )
    return (f"not ({ast.unparse(condition)})", None) if counted else None


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
