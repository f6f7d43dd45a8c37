"""Activation checkpointing of the repeated blocks: keep each block's input only, and run it again in backward."""

from __future__ import annotations

import ast
import re

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.tree import Change, Tree, dotted, find, statement_ast, with_import

# What a block does besides returning a value happens twice: collected losses, running statistics, caches.
_REFUSED = re.compile(
    r"utils\.checkpoint|checkpoint\(|checkpoint_wrapper|\w+_checkpointing|recompute|aux|z_loss|BatchNorm"
    r"|\.append\(|\bcache|kv_cache|past_key|\bglobal ",
    re.IGNORECASE,
)


def _rewrite(tree: Tree) -> cst.Module | None:
    if _REFUSED.search(tree.module.code) or tree.names.spelling("torch") != "torch":
        return None
    changes: dict[cst.CSTNode, Change] = {}
    for loop in find(tree.module, cst.For):
        function = tree.enclosing(loop, cst.FunctionDef)
        if not isinstance(function, cst.FunctionDef) or function.name.value != "forward":
            continue
        line = loop.body.body[0] if len(loop.body.body) == 1 else None
        call = _block_call(loop, line) if isinstance(line, cst.SimpleStatementLine) else None
        if call is not None and isinstance(line, cst.SimpleStatementLine):
            changes[line] = _checkpointed(tree, line, call)
    return with_import(tree.replaced(changes), "import torch.utils.checkpoint") if changes else None


def _block_call(loop: cst.For, line: cst.SimpleStatementLine) -> ast.Call | None:
    """Return the call of `for block in self.blocks: x = block(x, …)`."""
    if not isinstance(loop.target, cst.Name) or not dotted(loop.iter).startswith("self.") or loop.orelse is not None:
        return None
    match statement_ast(line):
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Call(func=ast.Name(id=block), args=[ast.Name(id=first), *rest], keywords=keywords) as call,
        ) if target == first and block == loop.target.value:
            starred = any(isinstance(item, ast.Starred) for item in rest) or any(item.arg is None for item in keywords)
            return None if starred else call
    return None


def _checkpointed(tree: Tree, line: cst.SimpleStatementLine, call: ast.Call) -> cst.BaseStatement:
    assert isinstance(call.args[0], ast.Name)
    target, block = call.args[0].id, ast.unparse(call.func)
    given = [ast.unparse(item) for item in (*call.args, *call.keywords)]
    again = f"torch.utils.checkpoint.checkpoint({', '.join([block, *given])}, use_reentrant=False)"
    source = f"if torch.is_grad_enabled():\n    {target} = {again}\nelse:\n    pass\n"
    parsed = cst.parse_statement(source, tree.module.config_for_parsing)
    assert isinstance(parsed, cst.If) and isinstance(parsed.orelse, cst.Else)
    plain = line.with_changes(leading_lines=())
    other = parsed.orelse.with_changes(body=cst.IndentedBlock(body=[plain]))
    return parsed.with_changes(leading_lines=line.leading_lines, orelse=other)


CODEMOD = Codemod(
    id="checkpointing",
    title="Keep only the blocks' inputs, and compute them again in backward",
    numerics="bitwise",
    catalogue_id="ac_full",
    why="activations grow with the micro-batch and the number of layers; this buys memory with time",
    rewrite=_rewrite,
    words=("forward", "for "),
)
