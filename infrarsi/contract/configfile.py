"""One key of a configuration file, read or set in place: all the rest of the file keeps its bytes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import PurePosixPath
from typing import Any

from infrarsi.errors import UsageError
from infrarsi.records import Scalar

_YAML_LINE = re.compile(r"(?P<indent> *)(?P<dash>- +)?(?P<key>[^\s:#\"'][^:#]*?|\"[^\"]*\"|'[^']*') *:(?P<value>.*)$")
_YAML_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*$")
_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "none", "~")


def get_key(text: str, path: str, key: str) -> Scalar | None:
    """Return the value of `a.b` in a .json, .toml, .yaml or .py file; None where it is absent or not a scalar."""
    suffix = PurePosixPath(path).suffix
    if suffix == ".json":
        value: Any = _load_json(text, path)
    elif suffix == ".toml":
        value = _toml(text, path).unwrap()
    elif suffix in (".yaml", ".yml"):
        span = _yaml_span(text, key)
        return None if span is None else _yaml_value(text[span[0] : span[1]])
    elif suffix == ".py":
        node = _python_node(text, path, key)
        try:
            value = None if node is None else ast.literal_eval(node)
        except ValueError:
            value = None
        return value if isinstance(value, bool | int | float | str) else None
    else:
        raise _unknown(path)
    for part in key.split("."):
        value = _step(value, part)
    return value if isinstance(value, bool | int | float | str) else None


def set_key(text: str, path: str, key: str, value: Scalar) -> str:
    """Return the file's text with one existing key set. Raises UsageError where it does not exist or is no scalar."""
    suffix = PurePosixPath(path).suffix
    if suffix == ".json":
        _load_json(text, path)
        span = _json_span(text, key)
        new = json.dumps(value)
    elif suffix == ".toml":
        return _set_toml(text, path, key, value)
    elif suffix in (".yaml", ".yml"):
        span = _yaml_span(text, key)
        new = _yaml_text(value)
    elif suffix == ".py":
        node = _python_node(text, path, key)
        span = None if node is None else _source_span(text, node)
        new = repr(value)
    else:
        raise _unknown(path)
    if span is None:
        raise _missing(path, key)
    return text[: span[0]] + new + text[span[1] :]


def _unknown(path: str) -> UsageError:
    return UsageError(f"{path} is not a configuration file that is known here", why=".json, .toml, .yaml and .py are")


def _missing(path: str, key: str) -> UsageError:
    return UsageError(
        f"{path} has no plain value {key} to set",
        why="only a key that exists and holds a number, a string or a truth value is set",
        hint=f"write {key} with its present value in {path}, and commit",
        code="config-key",
    )


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return None


def _load_json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def _json_span(text: str, key: str) -> tuple[int, int] | None:
    """Return where the value of a key path stands in (valid) JSON text, if it is a scalar."""
    decoder = json.JSONDecoder()
    position = _skip(text, 0)
    for part in key.split("."):
        opening = text[position]
        if opening not in "{[":
            return None
        position = _skip(text, position + 1)
        index = 0
        while text[position] not in "}]":
            name: str = str(index)
            if opening == "{":
                name, position = decoder.raw_decode(text, position)
                position = _skip(text, _skip(text, position) + 1)  # past the colon
            if name == part:
                break
            _, position = decoder.raw_decode(text, position)
            position = _skip(text, position)
            if text[position] == ",":
                position = _skip(text, position + 1)
            index += 1
        else:
            return None
    if text[position] in "{[":
        return None
    return position, decoder.raw_decode(text, position)[1]


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _toml(text: str, path: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _set_toml(text: str, path: str, key: str, value: Scalar) -> str:
    document = _toml(text, path)
    parent: Any = document
    *parents, last = key.split(".")
    for part in parents:
        parent = _step(parent, part)
    present = _step(parent, last)
    if present is None or isinstance(present, dict | list):
        raise _missing(path, key)
    if isinstance(parent, list):
        parent[int(last)] = value
    else:
        parent[last] = value
    import tomlkit

    return tomlkit.dumps(document)


def _yaml_span(text: str, key: str) -> tuple[int, int] | None:
    """Return where the scalar of a key path stands in YAML of plain nested mappings, comment excluded."""
    wanted = key.split(".")
    above: list[tuple[int, str]] = []
    offset = 0
    block_indent: int | None = None
    for line in text.splitlines(keepends=True):
        start, offset = offset, offset + len(line)
        bare = line.rstrip("\r\n")
        indent = len(bare) - len(bare.lstrip(" "))
        if not bare.strip() or bare.lstrip().startswith("#"):
            continue
        if block_indent is not None and indent > block_indent:
            continue  # the text of a | or > block
        block_indent = None
        match = _YAML_LINE.match(bare)
        if match is None or match["dash"]:
            continue
        while above and above[-1][0] >= indent:
            above.pop()
        above.append((indent, match["key"].strip().strip("\"'")))
        body, begin = match["value"], start + match.start("value")
        if body.strip()[:1] in ("|", ">"):
            block_indent = indent
        if [name for _, name in above] != wanted:
            continue
        return _yaml_scalar_span(body, begin)
    return None


def _yaml_scalar_span(body: str, begin: int) -> tuple[int, int] | None:
    lead = len(body) - len(body.lstrip(" "))
    scalar = body[lead:]
    if scalar[:1] in ("", "#", "|", ">", "[", "{", "&", "*", "!"):
        return None
    if scalar[0] in "\"'":
        end = scalar.find(scalar[0], 1)
        length = end + 1 if end > 0 else 0
    else:
        comment = re.search(r"\s+#", scalar)
        length = len(scalar[: comment.start()] if comment else scalar.rstrip())
    return (begin + lead, begin + lead + length) if length else None


def _yaml_value(text: str) -> Scalar | None:
    if text[:1] in ("'", '"'):
        return text[1:-1]
    lowered = text.lower()
    if lowered in ("true", "yes", "on"):
        return True
    if lowered in ("false", "no", "off"):
        return False
    if lowered in ("null", "~", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _yaml_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (not _YAML_PLAIN.match(value) or value.lower() in _YAML_WORDS):
        return json.dumps(value)
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 readers take 1e-05 for a string: a number has a dot
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return str(value)


def _python_node(text: str, path: str, key: str) -> ast.expr | None:
    """Return the value node of a top-level name, a class attribute (`Config.lr`) or a key of a dict (`config.lr`)."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{path} is not Python: {error}") from error
    first, *rest = key.split(".")
    body: list[ast.stmt] = tree.body
    classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == first]
    while classes and rest:
        body, (first, *rest) = classes[-1].body, rest
        classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == first]
    node = _assigned(body, first)
    for part in rest:
        node = _entry_of(node, part)
    if isinstance(node, ast.Constant | ast.UnaryOp | ast.BinOp):
        return node
    return None


def _assigned(body: list[ast.stmt], name: str) -> ast.expr | None:
    found: ast.expr | None = None
    for node in body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            found = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            found = node.value or found
    return found


def _entry_of(node: ast.expr | None, part: str) -> ast.expr | None:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == part:
                return value
    if isinstance(node, ast.Call):
        return next((k.value for k in node.keywords if k.arg == part), None)
    return None


def _source_span(text: str, node: ast.expr) -> tuple[int, int]:
    """Turn a node's lines and UTF-8 columns into character offsets."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = text.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        before = sum(len(item) for item in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
