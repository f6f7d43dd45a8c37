"""Forward pass in bfloat16 by autocast; weights, gradients and optimizer stay in float32."""

from __future__ import annotations

import ast

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.loops import Loop, backward_calls, called_model, loss_names, training_loops
from infrarsi.propose.codemods.tree import Change, Tree, as_ast, assigned_names, find, text

_AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.cuda.amp.autocast")
_REFUSED = ("autocast", "GradScaler", "bfloat16", "float16", ".half(", "accelerator", "fabric", "deepspeed", "amp.")


def _rewrite(tree: Tree) -> cst.Module | None:
    torch = tree.names.spelling("torch")
    if not torch or not training_loops(tree):
        return None
    changes = _cpu_gates(tree, torch)
    if not changes and not any(word in tree.module.code for word in _REFUSED):
        for loop in training_loops(tree):
            changes |= _wrap(tree, loop, torch)
    return tree.replaced(changes) if changes else None


def _cpu_gates(tree: Tree, torch: str) -> dict[cst.CSTNode, Change]:
    """Return the edits of `nullcontext() if device == "cpu" else autocast(…)`: CPUs have bfloat16 too."""
    changes: dict[cst.CSTNode, Change] = {}
    new = cst.parse_expression(f'{torch}.autocast(device_type="cpu", dtype={torch}.bfloat16)')
    for choice in find(tree.module, cst.IfExp):
        test = as_ast(choice.test)
        match test:
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value="cpu")]):
                plain, cast = choice.body, choice.orelse
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value="cuda")]):
                plain, cast = choice.orelse, choice.body
            case _:
                continue
        if not isinstance(plain, cst.Call) or not isinstance(cast, cst.Call):
            continue
        if tree.names.full(cast.func) in _AUTOCAST and tree.names.full(plain.func) == "contextlib.nullcontext":
            changes[plain] = new
    return changes


def _wrap(tree: Tree, loop: Loop, torch: str) -> dict[cst.CSTNode, Change]:
    """Put the statements from the model's call to the loss under autocast; backward stays outside."""
    body = list(loop.body.body)
    backs = [index for index, statement in enumerate(body) if backward_calls(statement)]
    if len(backs) != 1:
        return {}
    model, first = called_model(tree, body[: backs[0]])
    call = next((item for item in find(body[first], cst.Call) if model and text(item.func) == model), None)
    if call is None or not call.args or call.args[0].star or call.args[0].keyword is not None:
        return {}
    rows = call.args[0].value
    losses = loss_names(loop)
    ends = [index for index in range(first, backs[0]) if assigned_names(body[index]) & losses]
    if not isinstance(rows, cst.Name) or not ends or not isinstance(body[first], cst.SimpleStatementLine):
        return {}
    inner = body[first : ends[-1] + 1]
    leading = getattr(inner[0], "leading_lines", ())
    inner[0] = inner[0].with_changes(leading_lines=())
    context = cst.parse_expression(f"{torch}.autocast(device_type={rows.value}.device.type, dtype={torch}.bfloat16)")
    body[first : ends[-1] + 1] = [
        cst.With(items=[cst.WithItem(context)], body=cst.IndentedBlock(body=inner), leading_lines=leading)  # type: ignore[arg-type]
    ]
    return {loop.body: loop.body.with_changes(body=body)}


CODEMOD = Codemod(
    id="autocast",
    title="Forward pass in bfloat16",
    numerics="reduced",
    catalogue_id="bf16_amp",
    why="matrix units compute bfloat16 several times faster than float32; weights and optimizer state stay float32",
    rewrite=_rewrite,
    words=("backward",),
)
