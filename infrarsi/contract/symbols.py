"""Finds what a name like `get_batch` or `GPT.forward` is bound to in a source file, so that one symbol can be locked.

A lock that hashed only the `def` would miss a second binding further down (`get_batch = cached`), so every statement
that binds the name at its scope counts, functions that declare it `global` included.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Iterator
from typing import cast

from infrarsi.records import Digest

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def symbol_digest(path: str, symbol: str, source: bytes) -> Digest | None:
    """Return the digest of everything that binds `symbol`, named `path::symbol`; None where nothing does.

    Indentation, trailing blanks and line ends do not count. Raises SyntaxError for what is not Python.
    """
    text = source.decode("utf-8", "replace").replace("\r\n", "\n")
    tree = ast.parse(text)
    segments = [_segment(text, node) for node in _bindings(tree, symbol)]
    if not segments:
        return None
    data = "\0".join(segments).encode()
    return Digest(f"{path}::{symbol}", hashlib.sha256(data).hexdigest(), len(data))


def symbols_of(source: bytes) -> tuple[str, ...]:
    """Return the names of functions, classes and methods, for a hint; nothing where it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    names: list[str] = []
    for node in _statements(tree):
        if isinstance(node, _SCOPES):
            names.append(node.name)
            names += [f"{node.name}.{n.name}" for n in _statements(node) if isinstance(n, _SCOPES)]
    return tuple(names)


def _bindings(tree: ast.Module, symbol: str) -> Iterator[ast.stmt]:
    *outer, last = symbol.split(".")
    yield from _in_scope([tree], outer, last)
    for node in ast.walk(tree):
        if _assigns_attribute(node, symbol) if outer else _declares_global(node, last):
            yield cast(ast.stmt, node)


def _in_scope(scopes: list[ast.AST], outer: list[str], last: str) -> Iterator[ast.stmt]:
    for name in outer:
        scopes = [s for scope in scopes for s in _statements(scope) if isinstance(s, _SCOPES) and s.name == name]
    for scope in scopes:
        found = [(node, _bound(node)) for node in _statements(scope)]
        if any(last in names for _, names in found):
            # A star import may bind any name, so it counts as a binding of each that exists.
            yield from (node for node, names in found if last in names or "*" in names)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that run in this scope: into `if`, `for`, `try`, not into functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, _SCOPES) and not isinstance(child, ast.expr):
            yield from _statements(child)


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that this one statement binds in its own scope."""
    if isinstance(node, _SCOPES):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {a.asname or a.name.partition(".")[0] for a in node.names}
    if isinstance(node, (ast.If, ast.Try, ast.While, ast.Match)):
        return set()
    names: set[str] = set()
    body = (node.target,) if isinstance(node, (ast.For, ast.AsyncFor)) else _heads(node)
    for part in body:
        names |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del))}
    return names


def _heads(node: ast.stmt) -> tuple[ast.AST, ...]:
    return tuple(node.items) if isinstance(node, (ast.With, ast.AsyncWith)) else (node,)


def _assigns_attribute(node: ast.AST, symbol: str) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return symbol in {ast.unparse(t) for t in targets}


def _declares_global(node: ast.AST, name: str) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        isinstance(n, ast.Global) and name in n.names for n in ast.walk(node)
    )


def _segment(text: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    lines = text.split("\n")[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(line.rstrip() for line in lines))
