"""What every reader draws: a page of sections, as plain data. Cells are raw text; each reader escapes for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad", "unsure", "faint"]


@dataclass(frozen=True)
class Table:
    """Rows of text. Columns named in `numeric` are right-aligned; `tones[i]` colours row i."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()
    tones: tuple[Tone, ...] = ()

    def tone(self, row: int) -> Tone:
        """Return the tone of a row, plain where none was given."""
        return self.tones[row] if row < len(self.tones) else ""


@dataclass(frozen=True)
class Section:
    """A titled part of a page: sentences, then a table, then literal text (a diff). `key` names it for figures."""

    title: str
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    code: str = ""
    key: str = ""

    @property
    def empty(self) -> bool:
        """There is nothing in it to draw."""
        return not (self.sentences or self.code or (self.table and self.table.rows))


@dataclass(frozen=True)
class Page:
    """One result: a headline a person reads first, sections, and the next command."""

    headline: str
    tone: Tone
    sections: tuple[Section, ...]
    next_command: str = ""

    @property
    def drawn(self) -> tuple[Section, ...]:
        """The sections that hold something."""
        return tuple(section for section in self.sections if not section.empty)
