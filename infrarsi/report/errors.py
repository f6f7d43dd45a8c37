"""An error as three lines: what happened, why, and the next command."""

from __future__ import annotations

from infrarsi.errors import InfrarsiError
from infrarsi.report.text import clean


def render_error(error: InfrarsiError, *, color: bool) -> str:
    """Return the lines that the error has, each once, with a newline at the end."""
    lines = [_paint("error: ", "1;31", color) + clean(error.what)]
    if error.why:
        lines.append(_paint("  why: ", "2", color) + clean(error.why))
    if error.hint:
        lines.append(_paint(" hint: ", "1", color) + clean(error.hint))
    return "\n".join(lines) + "\n"


def _paint(label: str, style: str, color: bool) -> str:
    return f"\x1b[{style}m{label}\x1b[0m" if color else label
