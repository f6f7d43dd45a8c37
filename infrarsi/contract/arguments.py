"""Words of a command line: find, set and remove options in the style in which they stand."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from infrarsi.records import Assignment, Scalar

_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?$|-\.\d+([eE][-+]?\d+)?$")
_BOOLEANS = ("true", "false", "yes", "no", "0", "1", "on", "off")


def as_text(value: Scalar) -> str:
    """Return a value as a command line has it: numbers in short form, booleans as Python's names."""
    return repr(value) if isinstance(value, float) else str(value)


def is_option(word: str) -> bool:
    """Whether a word starts an option; a negative number does not."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def find(words: Sequence[str], name: str, *, dashes: bool = False) -> str | None:
    """Return the value of the last `--name value` or `--name=value`, "" for a bare flag, None where it is not given.

    With `dashes`, `--a_b` and `--a-b` are the same option (torchrun, not argparse).
    """
    found: str | None = None
    for index, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not _same(key, name, dashes):
            continue
        if equals:
            found = value
        else:
            following = words[index + 1] if index + 1 < len(words) else None
            found = following if following is not None and not is_option(following) else ""
    return found


def assign(
    words: Sequence[str],
    name: str,
    value: Scalar | None,
    *,
    bare: Collection[str] = (),
    valued: Collection[str] = (),
    dashes: bool = False,
) -> tuple[str, ...]:
    """Return `words` with one option set to `value`, or removed (None).

    The last place where it stands keeps its style, further ones go; a new one is appended as `--name=value`, since
    both argparse and `key=value` readers take that. `bare` names options that never take a value, `valued` those
    that always do.
    """
    without, place, joined = _without(words, name, value, bare, dashes)
    if value is None or (value is False and place is not None and not joined and name not in valued):
        return tuple(without)
    if value is True and not joined and name not in valued:
        new = [name]
    elif joined or place is None:
        new = [f"{name}={as_text(value)}"]
    else:
        new = [name, as_text(value)]
    if place is None:
        return (*without, *new)
    return (*without[:place], *new, *without[place:])


def _without(
    words: Sequence[str], name: str, value: Scalar | None, bare: Collection[str], dashes: bool
) -> tuple[list[str], int | None, bool]:
    """Return the words without the option, where its last occurrence stood, and whether that was `--name=…`."""
    kept: list[str] = []
    place: int | None = None
    joined = False
    index = 0
    while index < len(words):
        key, equals, _ = words[index].partition("=")
        index += 1
        if not _same(key, name, dashes):
            kept.append(words[index - 1])
            continue
        place, joined = len(kept), bool(equals)
        if not equals and index < len(words) and _is_value(words[index], name, value, bare):
            index += 1
    return kept, place, joined


def _is_value(word: str, name: str, value: Scalar | None, bare: Collection[str]) -> bool:
    """Whether the word after an option is its value and not the next argument."""
    if name in bare or is_option(word):
        return False
    if isinstance(value, bool):
        return word.lower() in _BOOLEANS
    return True


def _same(key: str, name: str, dashes: bool) -> bool:
    if key == name:
        return True
    return dashes and key.startswith("--") and key.replace("_", "-") == name.replace("_", "-")


def flag_kinds(root: Path, entry: str, assignments: Sequence[Assignment]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the entry's flags that never take a value, and the boolean ones that always do.

    The source is read only where an assignment could be either: a boolean, or a removal.
    """
    if all(a.value is not None and not isinstance(a.value, bool) for a in assignments):
        return frozenset(), frozenset()
    from infrarsi.contract.flags import read_flags

    flags = read_flags(root, entry)
    return (
        frozenset(f.name for f in flags if f.boolean in ("store_true", "store_false", "optional_action")),
        frozenset(f.name for f in flags if f.boolean == "value" and f.style != "dataclass"),
    )
