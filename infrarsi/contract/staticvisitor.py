"""Walks a parsed source and reports every place that `staticrules` names. Only `static` imports it."""

from __future__ import annotations

import functools
import importlib
import posixpath
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from infrarsi.contract import staticnames
from infrarsi.contract import staticrules as rules
from infrarsi.contract.sourcewalk import Names, Report, Walk
from infrarsi.contract.textvalue import is_assembled, text_of

# Third-party modules whose names a candidate may not rebind; the standard library comes on top.
_LIBRARIES = frozenset(
    {"torch", "numpy", "torchvision", "transformers", "accelerate", "triton", "lightning", "deepspeed"}
)
_PATCH = "replaces a part of a library that other checks stand on"


def collect(module: cst.Module, qualified: Mapping[cst.CSTNode, Any], report: Report) -> Names:
    """Visit `module`; `qualified` is libcst's map of nodes to qualified names. Return what names stand for."""
    names = Names(module, qualified)
    module.visit(_Visitor(names, report))
    return names


class _Visitor(Walk):
    """One method per kind of node; a chain `a.b.c` is reported once, at its outermost attribute."""

    def __init__(self, names: Names, report: Report) -> None:
        super().__init__(report)
        self._names = names
        self._inner: set[cst.CSTNode] = set()
        self._environment: set[cst.CSTNode] = set()
        self._attributes: set[cst.CSTNode] = set()
        self._looked_at: set[cst.CSTNode] = set()
        self._compiled: set[cst.CSTNode] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            self._name(alias, get_full_name_for_node(alias.name) or "", imported=True)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = (get_full_name_for_node(node.module) if node.module else "") or ""
        if node.relative:
            for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
                self._leaked(alias, f"{module}.{get_full_name_for_node(alias.name)}".lstrip("."))
            return False
        if isinstance(node.names, cst.ImportStar):
            self._name(node, module, imported=True)
            if any(rule[0] and name.startswith(f"{module}.") for name, rule in staticnames.PREFIXES.items()):
                self.report(node, "dynamic", f"{module}.*", f"all of {module} is imported without saying what is used")
            return False
        for alias in node.names:
            self._name(alias, f"{module}.{get_full_name_for_node(alias.name)}", imported=True)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._inner.add(node.value)
        self._inner.add(node.attr)
        self._attributes.add(node.attr)
        attribute = rules.ATTRIBUTES.get(node.attr.value)
        if attribute:
            self.report(node, attribute[0], node.attr.value, f"{node.attr.value} {attribute[1]}")
        if node.attr.value == "__dict__" and self._full(node.value):
            self.report(node, "monkey-patch", f"{self._full(node)}", f"{self._full(node)} opens a library's names")
        if node not in self._inner:
            self._resolved(node)

    def visit_Name(self, node: cst.Name) -> None:
        if rules.PROBE_TEXT.search(node.value):
            self.report(node, "probe", node.value, "names the harness that measures it")
        attribute = rules.ATTRIBUTES.get(node.value) if node.value.startswith("__") else None
        if attribute and node not in self._attributes:
            self.report(node, attribute[0], node.value, f"{node.value} {attribute[1]}")
        if node not in self._inner:
            self._resolved(node)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._inner.add(node.keyword)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self._text(node)

    def visit_ConcatenatedString(self, node: cst.ConcatenatedString) -> None:
        self._text(node)

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        self._text(node)

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        self._text(node)

    def visit_FormattedStringText(self, node: cst.FormattedStringText) -> None:
        self._words(node, node.value)

    def _text(self, node: cst.BaseExpression) -> None:
        text = text_of(node)
        if text:
            self._words(node, text)

    def _words(self, node: cst.CSTNode, text: str) -> None:
        for pattern, check, reason in rules.TEXTS:
            if pattern.search(text) or ("/" in text and pattern.search(posixpath.normpath(f"/{text}"[1:]))):
                self.report(node, check, text[:60], f"the text {text[:60]!r} {reason}")

    def visit_Subscript(self, node: cst.Subscript) -> None:
        """`os.environ["NAME"]` with a plain name is what trainers do; anything else about the environment is not."""
        self._text(node)
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
            self._dynamic_attribute(node, full.rpartition(".")[2], node.args)
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in ("__setattr__", "__delattr__"):
            self._dynamic_attribute(node, "setattr", node.args if len(node.args) > 2 else ())
        if full in ("builtins.hasattr", "builtins.getattr", "inspect.signature") and node.args:
            self._looked_at.add(node.args[0].value)
        if full in ("builtins.hasattr", "builtins.getattr", "builtins.setattr", "builtins.delattr"):
            self._assembled(node)
        if full == "builtins.vars" and (not node.args or self._full(node.args[0].value)):
            self.report(node, "dynamic", "vars()", "opens a module's names, to be written where nobody sees it")
        if full == "builtins.open" and node.args and isinstance(node.args[0].value, cst.Integer):
            self.report(node, "process", "open()", "opens a descriptor that it was not given")
        if any(_is_true(node, *pair) for pair in (("allow_pickle", "True"), ("weights_only", "False"))):
            self.report(node, "dynamic", "pickle", "loads objects that can be code")
        if full == "torch.library.Library" and _plain_first(node) and text_of(node.args[0].value) == "aten":
            self.report(node, "monkey-patch", full, "torch's own operations are replaced: " + _PATCH)
        self._text(node)

    def _assembled(self, node: cst.Call) -> None:
        if len(node.args) > 1 and is_assembled(node.args[1].value):
            self.report(
                node, "dynamic", "getattr", "the name of an attribute is put together so that nobody can read it"
            )

    def visit_Assign(self, node: cst.Assign) -> None:
        value = node.value
        if isinstance(value, cst.Call) and self._full(value.func) == "torch.compile":
            self._compiled |= {target.target for target in node.targets}

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

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self._target(node.name)

    def _resolved(self, node: cst.Attribute | cst.Name) -> None:
        for full in self._names.all_of(node):
            self._name(node, full)
            if full in rules.PASSED_ON and node not in self._looked_at:
                reason = f"{full} is passed on as a value, which hides what of it is used"
                self.report(node, "dynamic", f"{full} itself", reason)

    def _name(self, node: cst.CSTNode, full: str, *, imported: bool = False) -> None:
        rule = staticnames.rule_for(full)
        if rule:
            self.report(node, rule[0], full, f"{full} {rule[1]}")
        else:
            self._leaked(node, full)
        if rules.PROBE_TEXT.search(full) and imported:
            self.report(node, "probe", full, f"{full} names the harness that measures it")
        under = any(full == name or full.startswith(f"{name}.") for name in rules.ENVIRONMENT)
        if under and not imported and node not in self._environment:
            self.report(node, "environment", full, f"{full} without a plain name reads or writes the whole environment")

    def _leaked(self, node: cst.CSTNode, full: str) -> None:
        """Report a module reached through another one that imported it: `torch.os._exit`, `from utils import time`."""
        parts = full.lstrip(".").split(".")
        for index, part in enumerate(parts[1:], start=1):
            module, rest = part.strip("_"), parts[index + 1 :]
            if module not in rules.LEAKED:
                continue
            if (rest and not _has(module, rest[0])) or (not rest and module in rules.COMMON_WORDS):
                continue  # scipy.signal is nobody's signal module
            inner = ".".join((module, *rest))
            rule = staticnames.rule_for(inner) or (("environment", "") if inner.startswith(rules.ENVIRONMENT) else None)
            if rule or not rest:
                self.report(node, (rule or ("dynamic",))[0], full, f"{full} reaches {inner} through another module")
                return

    def _full(self, node: cst.CSTNode) -> str:
        return self._names.one_of(node)

    def _target(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._target(element.value)
        elif isinstance(target, cst.Attribute) and target.attr.value == "__class__":
            self.report(target, "monkey-patch", "__class__", "an object is made one of another class")
        elif isinstance(target, cst.Attribute) and not (
            target in self._compiled and target.attr.value == "step" and not self._full(target.value)
        ):
            self._patched(target, target.value, target.attr.value)

    def _patched(self, node: cst.CSTNode, owner: cst.BaseExpression, name: str) -> None:
        """Report an attribute set on a library, on a class found from an object, or in the place of a probed method."""
        full = self._full(owner)
        key = f"{full}.{name}"
        if full and full.partition(".")[0] in _LIBRARIES | sys.stdlib_module_names | {"builtins"}:
            if not any(f"{key}.".startswith(allowed) for allowed in rules.SETTABLE):
                self.report(node, "monkey-patch", key, f"{key} is set: {_PATCH}")
        elif _is_class_of(owner, self._names):
            self.report(node, "monkey-patch", f"type().{name}", f"{name} is set on an object's class: {_PATCH}")
        elif name in rules.PROBED_METHODS and not _is_self(owner):
            self.report(node, "monkey-patch", name, f"{name} is set on an object: it takes the place of the probe's")

    def _dynamic_attribute(self, node: cst.Call, function: str, args: Sequence[cst.Arg]) -> None:
        if not args:
            return
        owner = args[0].value
        plain = text_of(args[1].value) if len(args) > 1 else None
        if function != "getattr":
            if plain is not None or self._full(owner):
                self._patched(node, owner, plain or "(computed)")
            return
        attribute = rules.ATTRIBUTES.get(plain or "")
        if attribute:
            self.report(node, attribute[0], plain or "", f"{plain} {attribute[1]}")
        full = self._full(owner)
        if full and plain is None:
            self.report(node, "dynamic", f"getattr({full})", f"a computed attribute of {full} hides what is used")
        elif full:
            self._name(node, f"{full}.{plain}")


def _plain_first(node: cst.Call) -> bool:
    return bool(node.args) and isinstance(node.args[0].value, cst.SimpleString) and not node.args[0].star


def _is_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in ("self", "cls")


def _is_class_of(node: cst.BaseExpression, names: Names) -> bool:
    if isinstance(node, cst.Call):
        return names.one_of(node.func) == "builtins.type"
    return isinstance(node, cst.Attribute) and node.attr.value == "__class__"


def _is_true(node: cst.Call, keyword: str, value: str) -> bool:
    given = (a for a in node.args if a.keyword is not None and a.keyword.value == keyword)
    return any(not isinstance(a.value, cst.Name) or a.value.value == value for a in given)


@functools.cache
def _has(module: str, name: str) -> bool:
    """Whether a module of the standard library has such a name."""
    if module not in sys.stdlib_module_names:
        return False
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False
