"""Finds what a name like `get_batch` or `GPT.forward` means in a source file, so that one symbol can be locked.

A lock that hashed only the `def` would miss a second binding further down (`get_batch = cached`), an `if False:` around
it, a decorator on its class, another value of the constant that it reads. So the digest covers every statement that
binds the name, the conditions it stands under, what sets it as an attribute, the headers of its classes, and the plain
constants that it uses.
"""

from __future__ import annotations

import ast
import hashlib
import io
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infrarsi.records import Digest

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Methods by which a class decides what one of its other methods means.
_DECIDING = ("__call__", "__getattribute__", "__getattr__", "__new__", "__init_subclass__")
# What a value may be made of to count as a constant; a call makes it something that runs.
_PLAIN = (
    *(ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.IfExp, ast.Subscript, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def decode_source(source: bytes) -> str:
    """Return a Python file's text as Python reads it, with plain newlines. SyntaxError where that is not plain text."""
    try:
        text = source.decode(encoding_of(source), "strict")
    except (LookupError, ValueError) as error:
        raise SyntaxError(str(error)) from error
    # Python ends a line at a lone carriage return too; line numbers must mean the same to all readers.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def encoding_of(source: bytes) -> str:
    """Return the encoding that a file declares (`utf-8-sig` with a byte order mark). SyntaxError for an unknown one."""
    return tokenize.detect_encoding(io.BytesIO(source).readline)[0].lower()


def parse_source(source: bytes) -> tuple[str, ast.Module]:
    """Return text and tree of a file. SyntaxError for everything that Python would not take, too deep code included."""
    try:
        text = decode_source(source)
        return text, ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is nested too deeply") from error


def symbol_digest(path: str, symbol: str, source: bytes) -> Digest | None:
    """Return the digest of everything that decides what `symbol` is, named `path::symbol`; None where nothing binds it.

    The indentation as a whole and line ends do not count. Raises SyntaxError for what is not Python.
    """
    text, tree = parse_source(source)
    lines = text.split("\n")
    bindings = list(_bindings(tree, lines, symbol))
    if not bindings:
        return None
    parts = [f"binds {_text(lines, p)}" for p in bindings]
    parts += [f"sets {_segment(lines, node)}" for node in _setters(tree, symbol)]
    parts += [f"class {part}" for part in _classes(tree, lines, symbol)]
    parts += [f"reads {part}" for part in _constants(tree, lines, symbol, bindings)]
    data = "\0".join(parts).encode()
    return Digest(f"{path}::{symbol}", hashlib.sha256(data).hexdigest(), len(data))


def setters_of(source: bytes, symbol: str) -> list[str]:
    """Return the statements of a file that set `symbol` as an attribute or key of something, whatever that is."""
    try:
        text, tree = parse_source(source)
    except SyntaxError:
        return []
    lines = text.split("\n")
    return [_segment(lines, node) for node in _setters(tree, symbol)]


def symbols_of(source: bytes) -> tuple[str, ...]:
    """Return the names of functions, classes and methods, for a hint; nothing where it is not Python."""
    try:
        text, tree = parse_source(source)
    except SyntaxError:
        return ()
    names: list[str] = []
    lines = text.split("\n")
    for place in _statements(tree, lines):
        if isinstance(place.node, _SCOPES):
            names.append(place.node.name)
            inner = (p.node for p in _statements(place.node, lines))
            names += [f"{place.node.name}.{n.name}" for n in inner if isinstance(n, _SCOPES)]
    return tuple(names)


@dataclass(frozen=True)
class _Place:
    """One statement and the compound statements that it stands in, outermost first: `body of if X:`."""

    node: ast.stmt
    guards: tuple[str, ...]


def _statements(scope: ast.AST, lines: Sequence[str], guards: tuple[str, ...] = ()) -> Iterator[_Place]:
    """Yield the statements that run in this scope: into `if`, `for`, `try`, not into functions and classes."""
    for name, value in ast.iter_fields(scope):
        branch = guards if name == "body" else (*guards, name)
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.stmt):
                yield _Place(child, branch)
                if not isinstance(child, _SCOPES) and _first_inside(child) is not None:
                    yield from _statements(child, lines, (*branch, _header(lines, child)))
            elif isinstance(child, (ast.excepthandler, ast.match_case)):
                yield from _statements(child, lines, branch)


def _bindings(tree: ast.Module, lines: Sequence[str], symbol: str) -> Iterator[_Place]:
    *outer, last = symbol.split(".")
    yield from _in_scopes(_scopes(tree, lines, outer), lines, last)
    if not outer:
        yield from (_Place(node, ()) for node in ast.walk(tree) if isinstance(node, _SCOPES) and _global(node, last))


def _scopes(tree: ast.Module, lines: Sequence[str], outer: Sequence[str]) -> list[ast.AST]:
    scopes: list[ast.AST] = [tree]
    for name in outer:
        inside = (p.node for scope in scopes for p in _statements(scope, lines))
        scopes = [node for node in inside if isinstance(node, _SCOPES) and node.name == name]
    return scopes


def _in_scopes(scopes: Sequence[ast.AST], lines: Sequence[str], name: str) -> Iterator[_Place]:
    for scope in scopes:
        found = [(place, _bound(place.node)) for place in _statements(scope, lines)]
        if any(name in names for _, names in found):
            # A star import may bind any name, so it counts as a binding of each that exists.
            yield from (place for place, names in found if name in names or "*" in names)


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that this one statement binds in its own scope (statements inside it count for themselves)."""
    if isinstance(node, _SCOPES):
        heads: list[ast.AST] = [*node.decorator_list]
        if isinstance(node, ast.ClassDef):
            heads += [*node.bases, *node.keywords]
        else:
            heads += [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        return {node.name} | _stored(heads)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {a.asname or a.name.partition(".")[0] for a in node.names}
    if isinstance(node, (ast.Try, ast.TryStar)):
        return {handler.name for handler in node.handlers if handler.name}
    return _stored(_heads(node))


def _heads(node: ast.stmt) -> Sequence[ast.AST]:
    """Return the parts of a statement that are its own, not those of the statements inside it."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.target, node.iter]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return node.items
    if isinstance(node, ast.Match):
        return [node.subject, *(part for case in node.cases for part in (case.pattern, case.guard) if part)]
    return [] if isinstance(node, (ast.Try, ast.TryStar)) else [node]


def _stored(nodes: Sequence[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in (n for top in nodes for n in ast.walk(top)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names


def _global(scope: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(scope))


def _setters(tree: ast.Module, symbol: str) -> Iterator[ast.stmt]:
    """Yield the statements that put something else in the symbol's place from outside: `GPT.forward = f`, also as
    `m.GPT.forward`, `setattr(m, "get_batch", f)`, `vars(m)["get_batch"] = f`; for a method `self.forward = f` as well.
    """
    *outer, last = symbol.split(".")
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or isinstance(node, _SCOPES):
            continue
        parts = (part for head in _heads(node) for part in ast.walk(head))
        if any(_sets(part, last, of_self=bool(outer)) for part in parts):
            yield node


def _sets(node: ast.AST, name: str, *, of_self: bool) -> bool:
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return node.attr == name and not isinstance(node.ctx, ast.Load) and (of_self or not own)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_text(node.slice, name)
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called in ("setattr", "delattr", "__setattr__", "__delattr__"):
            return any(_is_text(a, name) for a in node.args)
        return called == "update" and any(k.arg == name for k in node.keywords)
    return False


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _classes(tree: ast.Module, lines: Sequence[str], symbol: str) -> Iterator[str]:
    """Yield what the classes around a method add: rebindings of their names, decorators, bases, deciding methods."""
    *outer, _ = symbol.split(".")
    for depth, name in enumerate(outer):
        scopes = _scopes(tree, lines, outer[:depth])
        for place in _in_scopes(scopes, lines, name):
            is_class = isinstance(place.node, ast.ClassDef) and place.node.name == name
            yield "\n".join((*place.guards, _header(lines, place.node))) if is_class else _text(lines, place)
    innermost = [scope for scope in _scopes(tree, lines, outer) if isinstance(scope, ast.ClassDef)]
    for name in _DECIDING if outer else ():
        yield from (_text(lines, place) for place in _in_scopes(innermost, lines, name))


def _constants(tree: ast.Module, lines: Sequence[str], symbol: str, bindings: Sequence[_Place]) -> Iterator[str]:
    """Yield the module's plain constants that the symbol reads, those that they are made of included."""
    everywhere: dict[str, list[_Place]] = {}
    for place in _statements(tree, lines):
        for name in _bound(place.node):
            everywhere.setdefault(name, []).append(place)
    wanted = sorted({n for place in bindings for n in _read(place.node)} - {symbol.partition(".")[0]})
    seen: set[str] = set()
    while wanted:
        name = wanted.pop(0)
        places = everywhere.get(name, [])
        if name in seen or not any(_is_plain(place.node) for place in places):
            continue
        seen.add(name)
        yield from (_text(lines, place) for place in places)
        wanted += sorted({n for place in places if _is_plain(place.node) for n in _read(place.node)} - seen)


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _is_plain(node: ast.stmt) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    return all(isinstance(part, _PLAIN) for part in ast.walk(node.value))


def _text(lines: Sequence[str], place: _Place) -> str:
    return "\n".join((*place.guards, _segment(lines, place.node)))


def _segment(lines: Sequence[str], node: ast.stmt) -> str:
    return textwrap.dedent("\n".join(lines[_start(node) - 1 : node.end_lineno]))


def _header(lines: Sequence[str], node: ast.stmt) -> str:
    """Return the lines of a compound statement before what it holds."""
    first = _first_inside(node)
    end = _start(first) - 1 if first is not None else node.end_lineno
    return textwrap.dedent("\n".join(lines[_start(node) - 1 : max(end or 0, node.lineno)]))


def _first_inside(node: ast.stmt) -> ast.stmt | None:
    if isinstance(node, ast.Match):
        return node.cases[0].body[0]
    body = getattr(node, "body", None)
    return body[0] if isinstance(body, list) and body and isinstance(body[0], ast.stmt) else None


def _start(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])
