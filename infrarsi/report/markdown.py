"""The markdown reader, for a pull request or a file. Untrusted text makes no markup, no link and no mention."""

from __future__ import annotations

import re

from infrarsi.report.model import RunReport
from infrarsi.report.page import Page, Section, Table
from infrarsi.report.run_page import run_page
from infrarsi.report.text import clean

# GitHub refuses comments over 65,536 characters.
MAX_CODE = 40_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]|~$])")
_LEADING = re.compile(r"^([#+=>-]|\d+(?=[.)](?:\s|$)))")
# GitHub links bare addresses, @names and #numbers after rendering; a word joiner inside stops all three.
_AUTOLINK = re.compile(r"@(?=\w)|#(?=\d)|(?i:(?<=http)|(?<=https)|(?<=ftp)|(?<=www))(?=[:.])")
_MARKS = {"good": "✅ ", "bad": "❌ ", "unsure": "❔ ", "faint": "", "": ""}


def render_markdown(report: RunReport) -> str:
    """Return a run's report as GitHub-flavoured markdown."""
    return render_page(run_page(report), title=f"git infrarsi report {report.run}".rstrip())


def render_page(page: Page, *, title: str) -> str:
    """Return any page as markdown that ends in a newline."""
    parts = [f"## {escape(title)}", f"{_MARKS[page.tone]}**{escape(page.headline)}**"]
    for section in page.drawn:
        parts += _section(section)
    if page.next_command:
        parts.append(f"Next: {code(page.next_command)}")
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text in which nothing is markup, HTML, an autolink or a mention."""
    safe = _SPECIAL.sub(r"\\\1", clean(" ".join(text.split())))
    safe = safe.replace("&", "&amp;").replace("<", "&lt;")
    safe = _LEADING.sub(lambda m: m.group(0) + "\\" if m.group(0).isdigit() else "\\" + m.group(0), safe)
    return _AUTOLINK.sub(lambda m: f"{m.group(0)}\u2060", safe)


def code(text: str) -> str:
    """Return text as an inline code span, whatever backticks it holds."""
    safe = clean(" ".join(text.split())).replace("|", "\\|")
    runs = [len(run) for run in re.findall(r"`+", safe)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if safe.startswith("`") or safe.endswith("`") else ""
    return f"{fence}{pad}{safe}{pad}{fence}" if safe else ""


def block(text: str, language: str = "") -> str:
    """Return text as a fenced block whose fence the text cannot close."""
    safe = clean(text).rstrip("\n")
    if len(safe) > MAX_CODE:
        safe = safe[:MAX_CODE].rsplit("\n", 1)[0] + "\n[cut here]"
    longest = max((len(run) for run in re.findall(r"`{3,}", safe)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{safe}\n{fence}"


def _section(section: Section) -> list[str]:
    parts = [f"### {escape(section.title)}", *(escape(s) for s in section.sentences)]
    if section.table and section.table.rows:
        parts.append(_table(section.table))
    if section.code:
        summary = f"{len(section.code.splitlines())} lines"
        parts.append(f"<details><summary>{summary}</summary>\n\n{block(section.code, 'diff')}\n\n</details>")
    return parts


def _table(table: Table) -> str:
    rule = ["---:" if index in table.numeric else "---" for index in range(len(table.header))]
    rows = [[escape(cell) for cell in row] for row in table.rows]
    lines = [[escape(name) for name in table.header], rule, *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
