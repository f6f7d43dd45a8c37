"""State maps on paper: how a patch says them, and whether they are exact partitions of the contract's parameters.

    State-Map: blocks.*.attn.qkv.weight = blocks.*.attn.{query,key,value}.weight; dim 0

Each `*` stands for one part of a name (no dot) and for the same text on both sides. Right of the sign stand the old
names in the order in which they lie one after another along the dimension; braces shorten names that differ in a part.
An entry is an assignment like a flag's: what was promoted with a patch stands among the launch settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infrarsi.errors import ContractError
from infrarsi.records import Assignment, Parameter

CODE = "state-map"
_HEADER = re.compile(r"^State-Map:(.*)$", re.MULTILINE | re.IGNORECASE)
_NAME = r"[\w.*-]+"
_PARTS = re.compile(r"\s*([\w.*,{}\s-]+?)\s*;\s*dim\s+(\d+)\s*")
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Layout:
    """One new parameter and the old ones, (name, shape), that it holds one after another along `dim`."""

    new: str
    dim: int
    dtype: str
    pieces: tuple[tuple[str, tuple[int, ...]], ...]

    def order(self) -> dict[str, Any]:
        """Return it as the probe reads it."""
        return {"new": self.new, "dim": self.dim, "dtype": self.dtype, "pieces": [[n, [*s]] for n, s in self.pieces]}


@dataclass(frozen=True)
class _Entry:
    """A new parameter, and the old ones that it is made of; `*` in names is one part of each."""

    new: str
    old: tuple[str, ...]
    dim: int


def parse(header: str) -> tuple[Assignment, ...]:
    """Return the state map in what stands before a diff. ContractError where a line is no entry."""
    return tuple(_assignment(match.group(1).strip()) for match in _HEADER.finditer(header))


def layouts(assignments: Sequence[Assignment], parameters: Sequence[Parameter]) -> tuple[Layout, ...]:
    """Return what the state map among some settings says of the contract's parameters.

    ContractError, in plain words, where it is no exact partition: an old name is unknown, used twice or left out by its
    siblings, or the shapes or types do not go together.
    """
    known = {p.name: p for p in parameters}
    entries = [_entry(a) for a in assignments if a.kind == "state_map" and a.value is not None]
    found = tuple(layout for entry in entries for layout in _expand(entry, known))
    old = Counter(name for layout in found for name, _ in layout.pieces)
    new = Counter(layout.new for layout in found)
    for name, count in (*old.items(), *new.items()):
        if count > 1:
            raise _refused(f"{name} is used {count} times")
    for name in new:
        if name in known:
            raise _refused(f"{name} is a parameter of the baseline; a new one must have a name of its own")
    return found


def _assignment(line: str) -> Assignment:
    new, sign, parts = line.partition("=")
    made = Assignment("state_map", new.strip(), parts.strip())
    if not sign:
        raise _refused(f"{line!r} has no = sign", "write: State-Map: new = old, old; dim 0")
    _entry(made)
    return made


def _entry(assignment: Assignment) -> _Entry:
    new, text = assignment.target, str(assignment.value)
    match = _PARTS.fullmatch(text)
    if match is None or not re.fullmatch(_NAME, new):
        raise _refused(f"{new} = {text} is not an entry", "write: State-Map: new = old, old; dim 0")
    parts, dim = match.groups()
    old = tuple(name for item in _items(parts) for name in _braced(item))
    if not all(re.fullmatch(_NAME, name) for name in old):
        raise _refused(f"{parts} holds no list of names")
    if any(name.count("*") != new.count("*") for name in old):
        raise _refused(f"{new} and its parts differ in their number of *")
    return _Entry(new, old, int(dim))


def _items(text: str) -> list[str]:
    """Split at the commas outside braces."""
    return [item.strip() for item in re.split(r",(?![^{}]*\})", text)]


def _braced(text: str) -> list[str]:
    match = _BRACES.search(text)
    if match is None:
        return [text]
    inner = [word.strip() for word in match.group(1).split(",")]
    return [name for word in inner for name in _braced(text[: match.start()] + word + text[match.end() :])]


def _expand(entry: _Entry, known: dict[str, Parameter]) -> list[Layout]:
    """Return the layout for each text that the stars stand for."""
    stars: dict[tuple[str, ...], None] = {}
    for pattern in entry.old:
        compiled = re.compile("([^.]+)".join(re.escape(part) for part in pattern.split("*")))
        stars.update({match.groups(): None for name in known if (match := compiled.fullmatch(name))})
    if not stars:
        raise _refused(f"the baseline has no parameter {entry.old[0]}")
    return [_layout(entry, texts, known) for texts in stars]


def _layout(entry: _Entry, texts: tuple[str, ...], known: dict[str, Parameter]) -> Layout:
    new, names = _filled(entry.new, texts), [_filled(pattern, texts) for pattern in entry.old]
    for name in names:
        if name not in known:
            raise _refused(f"the baseline has no parameter {name}")
    parts = [known[name] for name in names]
    first = parts[0]
    if entry.dim >= len(first.shape):
        raise _refused(f"{first.name} has no dimension {entry.dim}")
    for part in parts:
        if len(part.shape) != len(first.shape) or _others(part, entry.dim) != _others(first, entry.dim):
            shapes = f"{first.name} {first.shape} and {part.name} {part.shape}"
            raise _refused(f"{shapes} differ beside dimension {entry.dim}")
        if (part.dtype, part.trainable) != (first.dtype, first.trainable):
            raise _refused(f"{part.name} and {first.name} differ in type, or only one of them is trained")
    return Layout(new, entry.dim, first.dtype, tuple((p.name, p.shape) for p in parts))


def _filled(pattern: str, texts: tuple[str, ...]) -> str:
    head, *rest = pattern.split("*")
    return head + "".join(text + part for text, part in zip(texts, rest, strict=True))


def _others(parameter: Parameter, dim: int) -> tuple[int, ...]:
    return parameter.shape[:dim] + parameter.shape[dim + 1 :]


def _refused(why: str, hint: str = "") -> ContractError:
    return ContractError("the state map is refused", why=why, hint=hint or "see docs/replay.md", code=CODE)
