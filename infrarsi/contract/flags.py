"""The command-line flags of a training script, read from its source. The user's code is never imported.

Understood: argparse, click options, dataclasses handed to a parser (HfArgumentParser, tyro, …), and the
"configurator" style of nanoGPT, where every global of a simple type can be set as `--name=value`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infrarsi.contract import arguments
from infrarsi.contract.command import Command, module_path
from infrarsi.contract.constants import constant, decorator_name, dotted, simple_globals
from infrarsi.records import Scalar

Style = Literal["argparse", "dataclass", "configurator", "click"]
Boolean = Literal["no", "store_true", "store_false", "value", "optional_action"]
# Modules read around the entry: itself, what it imports from the repository, and what those import.
IMPORT_DEPTH = 2
_DATACLASS_PARSERS = ("HfArgumentParser", "tyro.cli", "simple_parsing.parse", "ArgumentParser.parse", "pyrallis.wrap",
                      "draccus.wrap", "draccus.parse", "pyrallis.parse", "jsonargparse.CLI", "CLI", "chz.entrypoint",
                      "parse", "add_arguments")  # fmt: skip
_BOOLEAN_TYPES = (
    "bool",
    "str2bool",
    "str_to_bool",
    "strtobool",
    "boolean",
    "parse_bool",
    "string_to_bool",
    "bool_flag",
)
_ACTIONS: dict[str, Boolean] = {
    "store_true": "store_true", "store_false": "store_false", "BooleanOptionalAction": "optional_action",
}  # fmt: skip
_TYPE_NAMES = ("int", "float", "bool", "str")


@dataclass(frozen=True)
class Flag:
    """One flag. `default` is None where the source does not tell it; `boolean` says how it is turned on."""

    name: str
    dest: str
    default: Scalar | None
    type: str
    choices: tuple[Scalar, ...]
    style: Style
    path: str
    line: int
    boolean: Boolean


@dataclass(frozen=True)
class _Module:
    """One parsed file and its module-level constants."""

    path: str
    tree: ast.Module
    names: dict[str, Scalar] = field(default_factory=dict)


def read_flags(source_root: Path, entry: str) -> tuple[Flag, ...]:
    """Return the flags of an entry (a path, or a module name), in the order of the source; () where there are none."""
    path = entry if entry.endswith(".py") else module_path(source_root, entry)
    if path is None:
        return ()
    modules = tuple(_modules(source_root, path))
    flags: dict[str, Flag] = {}
    for module in modules:
        found = [*_argparse(module), *_click(module)]
        if module.path == path:
            found += _configurator(module, source_root)
        for flag in found:
            flags.setdefault(flag.name, flag)
    for flag in _dataclasses(modules):
        flags.setdefault(flag.name, flag)
    return tuple(flags.values())


def current_value(flag: Flag, command: Command) -> Scalar | None:
    """Return the value with which `command` runs a flag: given, else from a config file, else the default.

    A configurator flag may also be set by a config file among the arguments; the later of the two wins, as in the
    script. None: not known.
    """
    words = command.seen_args
    if flag.style == "configurator":
        return _configured(flag, command, words)
    negative = f"--no-{flag.name.lstrip('-')}"
    given = arguments.find(words, flag.name)
    match flag.boolean:
        case "store_true":
            return True if given is not None else flag.default
        case "store_false":
            return False if given is not None else flag.default
        case "optional_action":
            last = [w for w in words if w in (flag.name, negative)]
            return last[-1] == flag.name if last else flag.default
        case "value" | "no":
            if given is None:
                return flag.default
            if given == "" and flag.boolean == "value":
                return True
            return _typed(given, flag)


def _configured(flag: Flag, command: Command, words: tuple[str, ...]) -> Scalar | None:
    value = flag.default
    for word in words:
        key, equals, text = word.partition("=")
        if equals and key == flag.name:
            value = _literal(text)
        elif not equals and word.endswith(".py") and command.root is not None:
            path = command.root / word
            if path.is_file():
                found = simple_globals(path.read_text(errors="replace"))
                value = found[flag.dest][0] if flag.dest in found else value
    return value


def _literal(text: str) -> Scalar:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _typed(text: str, flag: Flag) -> Scalar:
    """Return a given word as the flag's type, or as it stands where it does not fit."""
    if flag.boolean == "value":
        return text.lower() in ("true", "1", "yes", "y", "on", "t")
    try:
        if flag.type == "int":
            return int(text)
        if flag.type == "float":
            return float(text)
    except ValueError:
        return text
    return text


def _modules(root: Path, path: str) -> Iterator[_Module]:
    """Yield the entry and the repository's modules it imports, breadth first, `IMPORT_DEPTH` levels deep."""
    level, seen = [path], {path}
    for depth in range(IMPORT_DEPTH + 1):
        following: list[str] = []
        for name in level:
            try:
                tree = ast.parse((root / name).read_text(errors="replace"))
            except (OSError, SyntaxError, ValueError):
                continue
            names = {key: value for key, (value, _, _) in simple_globals(tree).items() if value is not None}
            yield _Module(name, tree, names)
            if depth < IMPORT_DEPTH:
                new = [p for p in dict.fromkeys(_imports(root, name, tree)) if p not in seen]
                seen.update(new)
                following += new
        level = following


def _imports(root: Path, path: str, tree: ast.Module) -> Iterator[str]:
    here = Path(path).parent
    for node in ast.walk(tree):
        names: list[str] = []
        base = Path()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(f"{stem}{alias.name}" for alias in node.names)]
            if node.level:
                base = here.joinpath(*[".."] * (node.level - 1))
        for name in names:
            parts = name.replace(".", "/")
            places = (base,) if base != Path() else (here, Path(), Path("src"))
            for place in places:
                for candidate in (place / f"{parts}.py", place / parts / "__init__.py"):
                    if ".." not in candidate.parts and (root / candidate).is_file():
                        yield candidate.as_posix()


def _argparse(module: _Module) -> Iterator[Flag]:
    overrides: dict[str, Scalar | None] = {}
    calls = [
        (n.func.attr, n) for n in ast.walk(module.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    ]
    for method, call in calls:
        if method == "set_defaults":
            overrides.update({k.arg: constant(k.value, module.names) for k in call.keywords if k.arg})
    for method, call in calls:
        if method != "add_argument":
            continue
        names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        names = [name for name in names if name.startswith("-")]
        if not names:
            continue
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        flag = _option(names, keywords, module, call.lineno, "argparse")
        if flag.dest in overrides:
            flag = Flag(**{**flag.__dict__, "default": overrides[flag.dest]})
        yield flag


def _option(names: list[str], keywords: dict[str, ast.expr], module: _Module, line: int, style: Style) -> Flag:
    """Build a flag from the names and keywords of an argparse or click declaration."""
    long = [name for name in names if name.startswith("--")]
    name = (long or names)[0]
    dest = constant(keywords.get("dest"), module.names)
    kind = dotted(keywords.get("type")).rpartition(".")[2]
    action = keywords.get("action")
    action_name = str(constant(action, module.names) or dotted(action).rpartition(".")[2])
    default = constant(keywords.get("default"), module.names)
    boolean = _ACTIONS.get(action_name, "no")
    if style == "click":
        kind = {"INT": "int", "FLOAT": "float", "BOOL": "bool", "STRING": "str"}.get(kind, kind)
        boolean = "store_true" if constant(keywords.get("is_flag"), module.names) is True else boolean
        positive, slash, _ = name.partition("/")
        if slash:
            name, boolean = positive, "optional_action"
    if boolean == "no" and (kind in _BOOLEAN_TYPES or isinstance(default, bool)):
        boolean = "value"
    if boolean in ("store_true", "store_false"):
        default = boolean == "store_false" if default is None else default
    if boolean != "no":
        kind = "bool"
    elif not kind and (style == "click" or action_name == "None"):
        kind = type(default).__name__ if style == "click" and default is not None else "str"
    choices = keywords.get("choices")
    if style == "click" and isinstance(keywords.get("type"), ast.Call):
        inner = keywords["type"]
        choices = inner.args[0] if isinstance(inner, ast.Call) and inner.args else None
        kind = "str"
    return Flag(
        name=name,
        dest=str(dest) if dest is not None else name.lstrip("-").replace("-", "_"),
        default=default,
        type=kind or "str",
        choices=_choices(choices, module),
        style=style,
        path=module.path,
        line=line,
        boolean=boolean,
    )


def _choices(node: ast.expr | None, module: _Module) -> tuple[Scalar, ...]:
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return ()
    values = (constant(item, module.names) for item in node.elts)
    return tuple(value for value in values if value is not None)


def _click(module: _Module) -> Iterator[Flag]:
    """Yield the `@click.option("--x", …)` of every command."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in reversed(node.decorator_list):
            name = decorator_name(decorator)
            if name.rpartition(".")[2] == "option" and isinstance(decorator, ast.Call):
                names = [str(a.value) for a in decorator.args if isinstance(a, ast.Constant)]
                options = [n for n in names if n.startswith("-")]
                if options:
                    keywords = {k.arg: k.value for k in decorator.keywords if k.arg}
                    yield _option(options, keywords, module, decorator.lineno, "click")


def _configurator(module: _Module, root: Path) -> Iterator[Flag]:
    """Yield the globals that stand before `exec(open("configurator.py").read())`."""
    end = next((i for i, node in enumerate(module.tree.body) if _executes_configurator(node, root)), None)
    if end is None:
        return
    before = ast.Module(body=module.tree.body[:end], type_ignores=[])
    for name, (value, kind, line) in simple_globals(before).items():
        if kind and not name.startswith("_"):
            boolean: Boolean = "value" if kind == "bool" else "no"
            yield Flag(f"--{name}", name, value, kind, (), "configurator", module.path, line, boolean)


def _executes_configurator(node: ast.stmt, root: Path) -> bool:
    """Whether a statement executes a file that sets globals from sys.argv."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or dotted(node.value.func) != "exec":
        return False
    for inner in ast.walk(node.value):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.endswith(".py"):
            path = root / inner.value
            text = path.read_text(errors="replace") if path.is_file() else ""
            return "argv" in text and "globals()" in text
    return False


def _dataclasses(modules: tuple[_Module, ...]) -> Iterator[Flag]:
    """Yield the fields of dataclasses that a parser is given by name."""
    wanted: set[str] = set()
    tyro = False
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and dotted(node.func).endswith(_DATACLASS_PARSERS):
                tyro |= dotted(node.func).startswith("tyro.")
                wanted |= {n.id for a in [*node.args, *(k.value for k in node.keywords)] for n in ast.walk(a)
                           if isinstance(n, ast.Name)}  # fmt: skip
            if isinstance(node, ast.FunctionDef) and any(
                decorator_name(d).endswith(_DATACLASS_PARSERS) for d in node.decorator_list
            ):
                wanted |= {dotted(a.annotation) for a in node.args.args if a.annotation is not None}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name in wanted:
                if not any(decorator_name(d).rpartition(".")[2] == "dataclass" for d in node.decorator_list):
                    continue
                yield from _fields(node, module, "optional_action" if tyro else "value")


def _fields(node: ast.ClassDef, module: _Module, switch: Boolean) -> Iterator[Flag]:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        value = item.value
        if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in ("field", "Field"):
            value = next((k.value for k in value.keywords if k.arg == "default"), None)
        default = constant(value, module.names)
        names = {n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name)}
        if isinstance(item.annotation, ast.Constant):
            names |= {n for n in _TYPE_NAMES if n in str(item.annotation.value)}
        kind = next((n for n in ("bool", "int", "float", "str") if n in names), "str")
        literal = dotted(item.annotation.value) if isinstance(item.annotation, ast.Subscript) else ""
        choices: tuple[Scalar, ...] = ()
        if literal.endswith("Literal") and isinstance(item.annotation, ast.Subscript):
            inner = item.annotation.slice
            elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            choices = tuple(v for e in elements if (v := constant(e, module.names)) is not None)
        name = item.target.id
        boolean: Boolean = switch if kind == "bool" else "no"
        yield Flag(f"--{name}", name, default, kind, choices, "dataclass", module.path, item.lineno, boolean)
