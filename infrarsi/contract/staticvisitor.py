"""Walks a parsed source and reports every place that `staticrules` names. Only `static` imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import QualifiedNameSource

from infrarsi.contract import staticrules as rules

Report = Callable[[cst.CSTNode, str, str, str], None]
# Third-party modules whose names a candidate may not rebind; the standard library comes on top.
_LIBRARIES = frozenset(
    {"torch", "numpy", "torchvision", "transformers", "accelerate", "triton", "lightning", "deepspeed"}
)
_PATCH = "replaces a part of a library that other checks stand on"


def collect(module: cst.Module, names: Mapping[cst.CSTNode, Any], report: Report) -> None:
    """Visit `module`; `names` is libcst's map of nodes to qualified names."""
    module.visit(_Visitor(names, report))


class _Visitor(cst.CSTVisitor):
    """One method per kind of node; a chain `a.b.c` is reported once, at its outermost attribute."""

    def __init__(self, names: Mapping[cst.CSTNode, Any], report: Report) -> None:
        super().__init__()
        self._names, self._report = names, report
        self._inner: set[cst.CSTNode] = set()
        self._environment: set[cst.CSTNode] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            self._name(alias, get_full_name_for_node(alias.name) or "", imported=True)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = get_full_name_for_node(node.module) if node.module else ""
        if node.relative or not module:
            return False
        if isinstance(node.names, cst.ImportStar):
            self._name(node, module, imported=True)
            return False
        for alias in node.names:
            self._name(alias, f"{module}.{get_full_name_for_node(alias.name)}", imported=True)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._inner.add(node.value)
        self._inner.add(node.attr)
        attribute = rules.ATTRIBUTES.get(node.attr.value)
        if attribute:
            self._report(node, attribute[0], node.attr.value, f"{node.attr.value} {attribute[1]}")
        if node.attr.value == "__dict__" and self._full(node.value):
            self._report(node, "monkey-patch", f"{self._full(node)}", f"{self._full(node)} opens a library's names")
        if node not in self._inner:
            self._resolved(node)

    def visit_Name(self, node: cst.Name) -> None:
        if rules.PROBE_TEXT.search(node.value):
            self._report(node, "probe", node.value, "names the harness that measures it")
        if node not in self._inner:
            self._resolved(node)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._inner.add(node.keyword)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.raw_value if not node.prefix else str(node.evaluated_value)
        for pattern, check, reason in rules.TEXTS:
            if pattern.search(value):
                self._report(node, check, value[:60], f"the text {value[:60]!r} {reason}")

    def visit_FormattedStringText(self, node: cst.FormattedStringText) -> None:
        for pattern, check, reason in rules.TEXTS:
            if pattern.search(node.value):
                self._report(node, check, node.value[:60], f"the text {node.value[:60]!r} {reason}")

    def visit_Subscript(self, node: cst.Subscript) -> None:
        """`os.environ["NAME"]` with a plain name is what trainers do; anything else about the environment is not."""
        if self._full(node.value) == "os.environ" and len(node.slice) == 1:
            index = node.slice[0].slice
            if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
                self._environment.add(node.value)

    def visit_Call(self, node: cst.Call) -> None:
        full = self._full(node.func)
        if full == "os.getenv" and _plain_first(node):
            self._environment.add(node.func)
        if full in ("os.environ.get", "os.environ.setdefault", "os.environ.pop") and _plain_first(node):
            self._environment.add(node.func)
        if full in ("builtins.setattr", "builtins.delattr", "builtins.getattr") and node.args:
            self._dynamic_attribute(node, full.rpartition(".")[2])

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._target(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._target(node.target)

    def visit_Del(self, node: cst.Del) -> None:
        self._target(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self._target(node.name)

    def _resolved(self, node: cst.Attribute | cst.Name) -> None:
        full = self._full(node)
        if full:
            self._name(node, full)

    def _name(self, node: cst.CSTNode, full: str, *, imported: bool = False) -> None:
        rule = rules.rule_for(full)
        if rule:
            self._report(node, rule[0], full, f"{full} {rule[1]}")
        if rules.PROBE_TEXT.search(full) and imported:
            self._report(node, "probe", full, f"{full} names the harness that measures it")
        under = any(full == name or full.startswith(f"{name}.") for name in rules.ENVIRONMENT)
        if under and not imported and node not in self._environment:
            self._report(
                node, "environment", full, f"{full} without a plain name reads or writes the whole environment"
            )

    def _full(self, node: cst.CSTNode) -> str:
        """Return the full name under which an import or a builtin is known here; nothing for the file's own names."""
        if isinstance(node, cst.Call):
            return ""  # libcst names a call by what is called; its value is something else.
        names = self._names.get(node, ())
        for found in names() if callable(names) else names:  # libcst resolves them lazily.
            if found.source in (QualifiedNameSource.IMPORT, QualifiedNameSource.BUILTIN):
                return str(found.name)
        return ""

    def _target(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._target(element.value)
        elif isinstance(target, cst.Attribute):
            self._patched(target, target.value, target.attr.value)

    def _patched(self, node: cst.CSTNode, owner: cst.BaseExpression, name: str) -> None:
        """Report an attribute set on a library, on a class found from an object, or in the place of a probed method."""
        full = self._full(owner)
        key = f"{full}.{name}"
        if full and full.partition(".")[0] in _LIBRARIES | sys.stdlib_module_names | {"builtins"}:
            if not any(f"{key}.".startswith(allowed) for allowed in rules.SETTABLE):
                self._report(node, "monkey-patch", key, f"{key} is set: {_PATCH}")
        elif _is_class_of(owner, self._full):
            self._report(node, "monkey-patch", f"type().{name}", f"{name} is set on an object's class: {_PATCH}")
        elif name in rules.PROBED_METHODS and not _is_self(owner):
            self._report(node, "monkey-patch", name, f"{name} is set on an object: it takes the place of the probe's")

    def _dynamic_attribute(self, node: cst.Call, function: str) -> None:
        owner = node.args[0].value
        name = node.args[1].value if len(node.args) > 1 else None
        plain = name.raw_value if isinstance(name, cst.SimpleString) else None
        if function != "getattr":
            if plain is not None or self._full(owner):
                self._patched(node, owner, plain or "(computed)")
            return
        full = self._full(owner)
        if not full:
            return
        if plain is None:
            self._report(node, "dynamic", f"getattr({full})", f"a computed attribute of {full} hides what is used")
        else:
            self._name(node, f"{full}.{plain}")


def _plain_first(node: cst.Call) -> bool:
    return bool(node.args) and isinstance(node.args[0].value, cst.SimpleString) and not node.args[0].star


def _is_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in ("self", "cls")


def _is_class_of(node: cst.BaseExpression, full: Callable[[cst.CSTNode], str]) -> bool:
    if isinstance(node, cst.Call):
        return full(node.func) == "builtins.type"
    return isinstance(node, cst.Attribute) and node.attr.value == "__class__"
