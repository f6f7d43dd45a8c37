"""What a class and a function say about their names: is this a number, which module is `self.dropout`?"""

from __future__ import annotations

import ast
import textwrap
from functools import cached_property

import libcst as cst

from infrarsi.propose.codemods.tree import Tree, code, dotted

_NUMBER_CALLS = {"math.sqrt", "math.pow", "math.rsqrt", "numpy.sqrt", "math.exp", "math.log"}
_NUMBER_BUILTINS = {"int", "float", "len", "min", "max", "round", "abs"}


class Facts:
    """Facts about the names of one function: parameters, locals, its class's attributes, the file's constants."""

    def __init__(self, tree: Tree, definition: cst.FunctionDef, owner: cst.ClassDef | None) -> None:
        self.tree = tree
        self.function = _parse_function(definition)
        self.owner = owner

    @cached_property
    def class_methods(self) -> list[ast.FunctionDef]:
        """The methods of the class that owns the function."""
        if self.owner is None:
            return []
        parsed = ast.parse(textwrap.dedent(code(self.owner)).strip("\n")).body[0]
        return [item for item in ast.walk(parsed) if isinstance(item, ast.FunctionDef)]

    @cached_property
    def constants(self) -> dict[str, list[ast.expr]]:
        """Plain assignments at the top level of the file."""
        found: dict[str, list[ast.expr]] = {}
        for statement in ast.parse(self.tree.module.code).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found.setdefault(statement.targets[0].id, []).append(statement.value)
        return found

    def attribute_values(self, name: str) -> list[tuple[ast.expr, ast.FunctionDef]]:
        """Return every value that the class gives to `self.<name>`, as attribute or as buffer, with its method."""
        found: list[tuple[ast.expr, ast.FunctionDef]] = []
        for method in self.class_methods:
            for node in ast.walk(method):
                match node:
                    case ast.Assign(targets=targets, value=value):
                        found += [(value, method) for target in targets if dotted(target) == f"self.{name}"]
                    case ast.AnnAssign(target=target, value=ast.expr() as value) if dotted(target) == f"self.{name}":
                        found.append((value, method))
                    case ast.AugAssign(target=target) if dotted(target) == f"self.{name}":
                        found.append((ast.Call(node.target, [], []), method))
                    case ast.Call(func=func, args=[ast.Constant(value=str(buffer)), value, *_]):
                        if dotted(func) == "self.register_buffer" and buffer == name:
                            found.append((value, method))
                    case ast.Call(func=func, args=[ast.Constant(value=str(buffer))], keywords=keywords):
                        if dotted(func) == "self.register_buffer" and buffer == name:
                            found += [(item.value, method) for item in keywords if item.arg == "tensor"]
        return found

    def module(self, node: ast.expr) -> ast.Call | None:
        """Return the call that built the submodule `self.x`, None when there is not exactly one."""
        name = dotted(node)
        if not name.startswith("self.") or name.count(".") != 1:
            return None
        values = self.attribute_values(name[5:])
        value = values[0][0] if len(values) == 1 else None
        return value if isinstance(value, ast.Call) else None

    def is_number(self, node: ast.expr) -> bool:
        """Say whether an expression of the function is certainly a Python number, never a tensor."""
        return self._number(node, self.function, depth=0)

    def _number(self, node: ast.expr, function: ast.FunctionDef | None, depth: int) -> bool:
        if depth > 6:
            return False
        match node:
            case ast.Constant(value=value):
                return isinstance(value, (int, float)) and not isinstance(value, bool)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._number(operand, function, depth + 1)
            case ast.BinOp(left=left, right=right):
                return self._number(left, function, depth + 1) and self._number(right, function, depth + 1)
            case ast.Call(func=func):
                return self._number_call(node, dotted(func), self.tree.names.full(func))
            case ast.Subscript(value=value, slice=ast.Constant() | ast.UnaryOp()):
                return _is_shape(value)
            case ast.Name(id=name):
                return self._number_name(name, function, depth)
            case ast.Attribute():
                return self._number_attribute(dotted(node), function, depth)
        return False

    def _number_call(self, node: ast.Call, shown: str, full: str) -> bool:
        if full in _NUMBER_CALLS or shown in _NUMBER_BUILTINS:
            return True
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "size"
            and len(node.args) + len(node.keywords) == 1
        )

    def _number_name(self, name: str, function: ast.FunctionDef | None, depth: int) -> bool:
        if function is not None:
            values = _local_values(function, name)
            if values:
                return all(item is not None and self._number(item, function, depth + 1) for item in values)
            parameter = _parameter(function, name)
            if parameter is not None:
                return function.name == "__init__" or parameter
        values = list(self.constants.get(name, []))
        return bool(values) and all(self._number(item, None, depth + 1) for item in values if item is not None)

    def _number_attribute(self, name: str, function: ast.FunctionDef | None, depth: int) -> bool:
        head, _, rest = name.partition(".")
        if not rest:
            return False
        if head == "self" and "." not in rest:
            values = self.attribute_values(rest)
            return bool(values) and all(self._number(value, method, depth + 1) for value, method in values)
        # a field of a configuration object: `config.n_head`, `self.config.n_head`, `args.dim`
        owner = rest.partition(".")[0] if head == "self" else head
        return any(word in owner.lower() for word in ("config", "cfg", "args", "hparams", "params", "opt"))


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "shape"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size"


def _local_values(function: ast.FunctionDef, name: str) -> list[ast.expr | None]:
    """Return what a function assigns to `name`; an unpacked shape counts as a number, anything unclear as None."""
    found: list[ast.expr | None] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    found.append(node.value)
                elif isinstance(target, (ast.Tuple, ast.List)):
                    found += _unpacked(target, node.value, name)
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AnnAssign)) and dotted(node.target) == name:
            found.append(node.value if isinstance(node, ast.AnnAssign) else None)
    return found


def _unpacked(target: ast.Tuple | ast.List, value: ast.expr, name: str) -> list[ast.expr | None]:
    for index, item in enumerate(target.elts):
        if isinstance(item, ast.Name) and item.id == name:
            if _is_shape(value) or (isinstance(value, ast.Subscript) and _is_shape(value.value)):
                return [ast.Constant(1)]
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                return [value.elts[index]]
            return [None]
    return []


def _parameter(function: ast.FunctionDef, name: str) -> bool | None:
    """Return whether the parameter `name` is declared a number, None when there is no such parameter."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults: list[ast.expr | None] = [None] * (len(arguments) - len(function.args.defaults))
    pairs = list(zip(arguments, [*defaults, *function.args.defaults], strict=True))
    pairs += list(zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True))
    for argument, default in pairs:
        if argument.arg == name:
            declared = argument.annotation is not None and ast.unparse(argument.annotation) in ("int", "float")
            return declared or (isinstance(default, ast.Constant) and type(default.value) in (int, float))
    return None


def _parse_function(definition: cst.FunctionDef) -> ast.FunctionDef | None:
    parsed = ast.parse(textwrap.dedent(code(definition)).strip("\n")).body[0]
    return parsed if isinstance(parsed, ast.FunctionDef) else None
