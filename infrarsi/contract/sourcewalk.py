"""Walks a parsed source: what each name stands for, and which statement of which function a node is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import libcst as cst
from libcst.metadata import QualifiedNameSource

from infrarsi.contract.textvalue import text_of

Report = Callable[..., None]
_OURS = (QualifiedNameSource.IMPORT, QualifiedNameSource.BUILTIN)


class Names:
    """Full names of imports and builtins, also behind names that the file gives them (`t = time`, `def f(m=os)`).

    Such a name is followed wherever it stands in the file: one name for two things counts as both.
    """

    def __init__(self, module: cst.Module, qualified: Mapping[cst.CSTNode, Any]) -> None:
        self._qualified = qualified
        self._aliases: dict[str, set[str]] = {}
        pairs = _Bindings()
        module.visit(pairs)
        for _ in range(3):  # an alias of an alias of an alias
            for name, value in pairs.found:
                self._aliases.setdefault(name, set()).update(self.all_of(value))

    def all_of(self, node: cst.CSTNode) -> tuple[str, ...]:
        """Return every full name that a node may stand for; nothing for the file's own names and for values."""
        if isinstance(node, cst.Call) and len(node.args) > 1 and self.one_of(node.func) == "builtins.getattr":
            name = text_of(node.args[1].value)
            return tuple(f"{owner}.{name}" for owner in self.all_of(node.args[0].value)) if name else ()
        if isinstance(node, cst.NamedExpr):
            return self.all_of(node.value)
        if isinstance(node, cst.IfExp):
            return (*self.all_of(node.body), *self.all_of(node.orelse))
        if isinstance(node, cst.BooleanOperation):
            return (*self.all_of(node.left), *self.all_of(node.right))
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return ()
        fulls: set[str] = set()
        if isinstance(_leftmost(node), cst.Name):  # libcst names `f().x` by what is called
            names = self._qualified.get(node, ())
            found = names() if callable(names) else names  # libcst resolves them lazily.
            fulls = {str(f.name) for f in found if f.source in _OURS}
        if isinstance(node, cst.Attribute):
            fulls |= {f"{owner}.{node.attr.value}" for owner in self.all_of(node.value)}
        elif not fulls:
            fulls |= self._aliases.get(node.value, set())
        return tuple(sorted(fulls))

    def one_of(self, node: cst.CSTNode) -> str:
        """Return one full name, where only one is asked for."""
        return next(iter(self.all_of(node)), "")


def _leftmost(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


class _Bindings(cst.CSTVisitor):
    """Collects (name, value) wherever a plain name is given to a value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, cst.BaseExpression]] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._pair(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._pair(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._pair(node.target, node.value)

    def visit_Param(self, node: cst.Param) -> None:
        if node.default is not None:
            self._pair(node.name, node.default)

    def visit_For(self, node: cst.For) -> None:
        self._each(node.target, node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._each(node.target, node.iter)

    def _each(self, target: cst.BaseExpression, values: cst.BaseExpression) -> None:
        if isinstance(values, (cst.Tuple, cst.List, cst.Set)):
            for element in values.elements:
                self._pair(target, element.value)

    def _pair(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            self.found.append((target.value, value))
        elif isinstance(target, (cst.Tuple, cst.List)) and isinstance(value, (cst.Tuple, cst.List)):
            for left, right in zip(target.elements, value.elements, strict=False):
                self._pair(left.value, right.value)


class Walk(cst.CSTVisitor):
    """A visitor that knows the statement and the function around each node, and reports with both."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._told = report
        self._statements: list[cst.CSTNode] = []
        self._functions: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            self._statements.append(node)
        result = super().on_visit(node)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._functions.append(node.name.value)
        return result

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        if isinstance(original_node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            self._statements.pop()
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
            self._functions.pop()

    @property
    def function(self) -> str:
        """The dotted name of the function or class that is being walked."""
        return ".".join(self._functions)

    def report(self, node: cst.CSTNode, check: str, key: str, reason: str, *, exact: bool = False) -> None:
        """Report a node; `exact`: its statement may not change at all without being a new use."""
        statement = self._statements[-1] if self._statements else node
        text = " ".join(code_of(part) for part in _head(statement))
        kind = "" if exact or isinstance(statement, (cst.If, cst.While, cst.For, cst.Assert)) else _kind(statement)
        self._told(node, check, key, reason, text, f"{self.function}: {kind}" if kind else "")


def code_of(node: cst.CSTNode) -> str:
    """Return a node as text, its white space evened out."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def _head(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the parts of a statement that are its own; those of the statements inside it are theirs."""
    if isinstance(node, (cst.If, cst.While)):
        yield node.test
    elif isinstance(node, cst.For):
        yield from (node.target, node.iter)
    elif isinstance(node, cst.With):
        yield from node.items
    elif isinstance(node, cst.FunctionDef):
        yield from (*node.decorators, node.name, node.params)
    elif isinstance(node, cst.ClassDef):
        yield from (*node.decorators, node.name, *node.bases, *node.keywords)
    elif isinstance(node, cst.Match):
        yield node.subject
    elif isinstance(node, (cst.Try, cst.TryStar)):
        yield from (handler.type for handler in node.handlers if handler.type is not None)
    else:
        yield node


def _kind(node: cst.CSTNode) -> str:
    """Return what a statement does with a value, coarsely: gives it to these names, passes it to this function."""
    if isinstance(node, cst.Assign):
        return "= " + ", ".join(code_of(t.target) for t in node.targets)
    if isinstance(node, (cst.AnnAssign, cst.AugAssign)):
        return "= " + code_of(node.target)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        return "call " + code_of(node.value.func)
    return type(node).__name__
