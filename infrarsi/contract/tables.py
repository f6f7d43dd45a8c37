"""Reads a TOML document strictly: every unknown key and every wrong type is named, with its line and the way out."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from infrarsi.errors import UsageError
from infrarsi.records import Scalar

T = TypeVar("T")
_KIND_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


class Table:
    """One table of a document. `take` reads a key once; `finish` refuses what nobody took."""

    def __init__(self, values: Mapping[str, Any], path: str, text: str, name: str) -> None:
        self._values = dict(values)
        self._known: list[str] = []
        self.path, self.text, self.name = path, text, name

    @classmethod
    def of(cls, text: str, name: str) -> Table:
        """Parse a whole document. Raises UsageError with the parser's line and column."""
        try:
            return cls(tomllib.loads(text), "", text, name)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(
                f"{name} is not valid TOML",
                why=str(error),
                hint=f"correct that line of {name}; strings need quotes, lists need brackets",
                code="toml-syntax",
            ) from error

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of `key` as `kind`; without a default the key is required."""
        self._known.append(key)
        if key not in self._values:
            if default is None:
                raise self.error(key, f"{self._full(key)} is missing", f"add {key} = … under [{self.path}]")
            return default
        return cast(T, self._typed(key, self._values.pop(key), kind))

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return the value of `key` as `kind`, or None where it is absent."""
        self._known.append(key)
        return cast(T, self._typed(key, self._values.pop(key), kind)) if key in self._values else None

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of `choices`."""
        value = self.take(key, str, default)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(choices)}"
            raise self.error(key, f"{self._full(key)} cannot be {value!r}", hint, f"it is one of {', '.join(choices)}")
        return value

    def strings(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.take(key, list, None if default is None else list(default))
        if not all(isinstance(v, str) for v in values):
            raise self.error(key, f"{self._full(key)} must be a list of strings", f'write {key} = ["…", "…"]')
        return tuple(values)

    def scalars(self, key: str) -> tuple[tuple[str, Scalar], ...]:
        """Return a table of single values in the order of the file; nothing where it is absent."""
        values: dict[str, Any] = self.take(key, dict, {})
        for name, value in values.items():
            if not isinstance(value, (str, int, float, bool)):
                raise self.error(
                    name, f"{self._full(key)}: {name} must be one value", "a string, a number, true or false"
                )
        return tuple(values.items())

    def table(self, key: str, required: bool = False) -> Table:
        """Return a table below this one; an absent one is empty."""
        if required and key not in self._values:
            raise self.error(key, f"{self.name} has no [{self._full(key)}]", "git infrarsi init writes a complete file")
        return Table(self.take(key, dict, {}), self._full(key), self.text, self.name)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return an array of tables (`[[key]]`)."""
        values = self.take(key, list, [])
        if not all(isinstance(v, dict) for v in values):
            raise self.error(key, f"{self._full(key)} must be tables", f"write [[{self._full(key)}]]")
        return tuple(Table(v, self._full(key), self.text, self.name) for v in values)

    def finish(self) -> None:
        """Refuse the first key that nothing reads: a typing error must not become a silent default."""
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(self._known))}"
            raise self.error(key, f"unknown key {self._full(key)}", hint)

    def error(self, key: str, what: str, hint: str, why: str = "") -> UsageError:
        """Return the error about `key`, with the line it stands on where that can be found."""
        line = self._line(key)
        where = f"{self.name}, line {line}" if line else self.name
        return UsageError(what, why=f"{where}: {why}" if why else where, hint=hint, code="toml-key")

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _typed(self, key: str, value: Any, kind: type[Any]) -> Any:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        # bool is an int to Python and never to a person.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = _KIND_NAMES.get(kind, "a list" if kind is list else "a table")
            raise self.error(key, f"{self._full(key)} must be {wanted}", f"it is {value!r} now")
        return value

    def _line(self, key: str) -> int | None:
        """Find the line of `key` in its table. tomllib keeps no positions, so this reads the headers itself."""
        header = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
        wanted = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*=""")
        current, section = "", 0
        for number, line in enumerate(self.text.splitlines(), start=1):
            found = header.match(line)
            if found:
                current = found.group(1)
                if current in (self.path, self._full(key)):
                    section = section or number
            elif current == self.path and wanted.match(line):
                return number
        return section or None
