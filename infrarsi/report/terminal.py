"""The terminal reader: any page, on a rich console that is passed in."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

from infrarsi.report.page import Page, Section, Table, Tone
from infrarsi.report.text import clean

if TYPE_CHECKING:
    from rich.console import Console

STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "unsure": "yellow", "faint": "dim"}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
MAX_DIFF_LINES = 200
MAX_WIDTH = 140


def render(page: Page, *, color: bool, width: int | None = None) -> str:
    """Return a page as text that ends in a newline; escape sequences only with `color`."""
    buffer = io.StringIO()
    show(page, make_console(buffer, color=color, width=width))
    return buffer.getvalue()


def make_console(file: io.TextIOBase | io.StringIO, *, color: bool, width: int | None = None) -> Console:
    """Return a console that writes to `file`. Markup, emoji codes and highlighting are off: text is data here."""
    from rich.console import Console

    return Console(
        file=file,  # type: ignore[arg-type]
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        width=width or min(MAX_WIDTH, shutil.get_terminal_size((100, 24)).columns),
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def show(page: Page, console: Console) -> None:
    """Draw a page."""
    from rich.text import Text

    console.print(Text(clean(page.headline), style=f"bold {STYLES[page.tone]}".strip()))
    for section in page.drawn:
        _show_section(section, console)
    if page.next_command:
        console.print()
        console.print(Text.assemble(("next: ", "dim"), (clean(page.next_command), "bold")), soft_wrap=True)


def _show_section(section: Section, console: Console) -> None:
    from rich.text import Text

    console.print()
    console.print(Text(section.title, style="bold"))
    for sentence in section.sentences:
        console.print(Text(clean(sentence)))
    if section.table and section.table.rows:
        console.print(_table(section.table))
    if section.code:
        _show_diff(section.code, console)


def _table(table: Table) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    titled = any(table.header)
    drawn = RichTable(box=box.SIMPLE_HEAD if titled else None, show_header=titled, pad_edge=False, padding=(0, 1))
    for index, name in enumerate(table.header):
        style = "" if titled or index else "dim"
        drawn.add_column(name, justify="right" if index in table.numeric else "left", overflow="fold", style=style)
    for number, row in enumerate(table.rows):
        style = STYLES[table.tone(number)]
        drawn.add_row(*(Text(clean(cell), style=style) for cell in row))
    return drawn


def _show_diff(diff: str, console: Console) -> None:
    from rich.text import Text

    lines = diff.splitlines()
    for text in lines[:MAX_DIFF_LINES]:
        header = text.startswith(("+++", "---", "diff "))
        style = "bold" if header else DIFF_STYLES.get(text[:1], "")
        console.print(Text(clean(text), style=style), soft_wrap=True)  # a patch with broken lines is no patch
    if len(lines) > MAX_DIFF_LINES:
        console.print(Text(f"… {len(lines) - MAX_DIFF_LINES} more lines: git diff shows them", style="dim"))
