"""Reading and rewriting source trees: the few helpers that every codemod needs on top of libcst.

Expressions are compared and matched through `ast` (`as_ast`), because its nodes know nothing of spaces and
parentheses; edits are made on the libcst tree, which keeps every comment and blank line where it was.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider

Node = TypeVar("Node", bound=cst.CSTNode)
Change = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[Any]
_BLANK = cst.Module(body=[])


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield `node` and everything below it, in source order."""
    yield node
    for child in node.children:
        yield from walk(child)


def find(node: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
    """Yield the nodes of one class below `node`, in source order."""
    for item in walk(node):
        if isinstance(item, kind):
            yield item


def code(node: cst.CSTNode) -> str:
    """Return the source text of a node."""
    return _BLANK.code_for_node(node)


def as_ast(node: cst.CSTNode) -> ast.expr:
    """Return the `ast` expression of a libcst expression; several lines and comments are fine."""
    return ast.parse(f"({code(node)}\n)", mode="eval").body


def statement_ast(node: cst.CSTNode) -> ast.stmt | None:
    """Return the `ast` statement of one libcst statement, None when the line holds several (`a = 1; b = 2`)."""
    body = ast.parse(textwrap.dedent(code(node)).strip("\n")).body
    return body[0] if len(body) == 1 else None


def text(node: cst.CSTNode | ast.AST) -> str:
    """Return an expression in one normal spelling, for comparison."""
    return ast.unparse(as_ast(node) if isinstance(node, cst.CSTNode) else node)


def dotted(node: cst.CSTNode | ast.AST) -> str:
    """Return `a.b.c` for a chain of attributes, "" for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr.value}" if head else ""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


class Names:
    """What the imports of a file make its names mean: `DDP` is `torch.nn.parallel.DistributedDataParallel`."""

    def __init__(self, module: cst.Module) -> None:
        self.aliases: dict[str, str] = {}
        for node in find(module, cst.Import):
            for alias in node.names:
                name = dotted(alias.name)
                if alias.asname is not None:
                    self.aliases[dotted(alias.asname.name)] = name
                else:
                    self.aliases[name.split(".")[0]] = name.split(".")[0]
        for item in find(module, cst.ImportFrom):
            if isinstance(item.names, cst.ImportStar):
                continue
            source = "." * len(item.relative) + (dotted(item.module) if item.module is not None else "")
            for alias in item.names:
                shown = dotted(alias.asname.name) if alias.asname is not None else dotted(alias.name)
                self.aliases[shown] = f"{source}.{dotted(alias.name)}"

    def full(self, node: cst.CSTNode | ast.AST) -> str:
        """Return the imported, fully dotted meaning of a name, "" for one that was not imported."""
        head, _, rest = dotted(node).partition(".")
        if head not in self.aliases:
            return ""
        return f"{self.aliases[head]}.{rest}" if rest else self.aliases[head]

    def spelling(self, full: str) -> str:
        """Return how this file can spell `full` with the imports it has, "" when it cannot."""
        best = ""
        for alias, meaning in self.aliases.items():
            if full == meaning or full.startswith(meaning + "."):
                shown = alias + full[len(meaning) :]
                if not best or len(shown) < len(best):
                    best = shown
        return best


class Tree:
    """A parsed file with the way up: `parent`, `enclosing`, and one `replaced` that applies all edits at once."""

    def __init__(self, module: cst.Module) -> None:
        wrapper = MetadataWrapper(module)
        self.module = wrapper.module
        self._parents = cast(Mapping[cst.CSTNode, cst.CSTNode], wrapper.resolve(ParentNodeProvider))
        self.names = Names(self.module)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node above, None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes above, nearest first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """Return the nearest ancestor of one of the classes."""
        return next((above for above in self.ancestors(node) if isinstance(above, kinds)), None)

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function that holds `node`, or the module."""
        found = self.enclosing(node, cst.FunctionDef)
        return found if isinstance(found, cst.FunctionDef) else self.module

    def blocks(self) -> Iterator[cst.Module | cst.IndentedBlock]:
        """Yield every list of statements."""
        for node in walk(self.module):
            if isinstance(node, (cst.Module, cst.IndentedBlock)):
                yield node

    def replaced(self, changes: Mapping[cst.CSTNode, Change]) -> cst.Module:
        """Return the module with nodes (by identity) exchanged or removed."""
        return self.module.visit(_Replace(changes))


class _Replace(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, Change]) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        """Exchange the nodes asked for; everything else stays."""
        return self.changes.get(original_node, updated_node)


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument passed as `name=`, None when there is none."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def has_star(call: cst.Call) -> bool:
    """Say whether a call takes `*args` or `**kwargs`, so that its arguments cannot all be seen."""
    return any(arg.star for arg in call.args)


def add_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """Return the call with `name=value` added last, laid out like its other arguments."""
    new = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not call.args:
        return call.with_changes(args=[new])
    *before, last = call.args
    if before and isinstance(before[-1].comma, cst.Comma):
        separator = _without_comment(before[-1].comma)
    elif isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        separator = cst.Comma(whitespace_after=_bare(call.whitespace_before_args))
    else:
        separator = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(last.comma, cst.Comma):  # a trailing comma: its comment belongs to the old last argument
        closing = last.comma.whitespace_after
        after = separator.whitespace_after
        if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(after, cst.ParenthesizedWhitespace):
            after = after.with_changes(first_line=closing.first_line)
        new = new.with_changes(comma=_without_comment(last.comma))
        last = last.with_changes(comma=cst.Comma(whitespace_after=after))
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*before, last, new])


def _without_comment(comma: cst.Comma) -> cst.Comma:
    after = comma.whitespace_after
    if isinstance(after, cst.ParenthesizedWhitespace):
        return comma.with_changes(whitespace_after=_bare(after))
    return comma


def _bare(space: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    line = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
    return space.with_changes(first_line=line, empty_lines=[])


def with_import(module: cst.Module, line: str) -> cst.Module:
    """Return the module with an import line added in front of its first import (but behind `__future__`)."""
    for index, statement in enumerate(module.body):
        if (
            _is_import(statement)
            and "__future__" not in code(statement)
            and isinstance(statement, cst.SimpleStatementLine)
        ):
            blank = [item for item in statement.leading_lines if item.comment is None]
            kept = [item for item in statement.leading_lines if item.comment is not None]
            new = cst.parse_statement(line).with_changes(leading_lines=blank)
            body = [*module.body[:index], new, statement.with_changes(leading_lines=kept), *module.body[index + 1 :]]
            return module.with_changes(body=body)
    at = 1 if module.body and _is_docstring(module.body[0]) else 0
    return module.with_changes(body=[*module.body[:at], cst.parse_statement(line), *module.body[at:]])


def with_statement(module: cst.Module, line: str) -> cst.Module:
    """Return the module with a statement added behind the last import of its first block of imports."""
    at = 0
    for index, statement in enumerate(module.body):
        if _is_import(statement):
            at = index + 1
        elif at or not _is_docstring(statement):
            break
    new = cst.parse_statement(line).with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*module.body[:at], new, *module.body[at:]])


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return False
    return isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))


def assigned_names(node: cst.CSTNode) -> set[str]:
    """Return every plain name that is bound somewhere below `node` (assignments, loops, with, walrus)."""
    found: set[str] = set()
    for item in walk(node):
        targets: Sequence[cst.CSTNode] = ()
        if isinstance(item, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)):
            targets = (item.target,)
        elif isinstance(item, cst.AsName):
            targets = (item.name,)
        for target in targets:
            found |= {name.value for name in find(target, cst.Name)} if not dotted(target).count(".") else set()
    return found


def names_in(node: ast.AST) -> set[str]:
    """Return the plain names an expression reads."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def is_pure(node: ast.AST, allowed_calls: Callable[[ast.Call], bool] = lambda call: dotted(call.func) == "len") -> bool:
    """Say whether evaluating an expression twice, or later, changes nothing (no calls but the allowed ones)."""
    return all(
        allowed_calls(item)
        if isinstance(item, ast.Call)
        else not isinstance(item, (ast.NamedExpr, ast.Await, ast.Yield))
        for item in ast.walk(node)
    )


def method_calls(node: cst.CSTNode, name: str) -> list[cst.Call]:
    """Return the calls `<anything>.name(…)` below `node`."""
    return [
        call for call in find(node, cst.Call) if isinstance(call.func, cst.Attribute) and call.func.attr.value == name
    ]


def fresh_name(scope: cst.CSTNode, wish: str) -> str:
    """Return `wish`, lengthened until nothing below `scope` is called that."""
    taken = {name.value for name in find(scope, cst.Name)}
    while wish in taken:
        wish += "_"
    return wish
