"""The HTML reader: one self-contained page without scripts and without any request to another place."""

from __future__ import annotations

from infrarsi import __version__
from infrarsi.report.figures import figures
from infrarsi.report.model import RunReport
from infrarsi.report.run_page import run_page
from infrarsi.report.text import clean

MAX_DIFF_LINES = 2000


def render_html(report: RunReport) -> str:
    """Return a run's report as one HTML page. Everything is escaped by the template; figures by construction."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("infrarsi.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    page = run_page(report)
    template = environment.get_template("report.html.j2")
    return template.render(
        page=page, figures=_safe_figures(report), run=report.run, version=__version__, diff_lines=diff_lines
    )


def _safe_figures(report: RunReport) -> dict[str, object]:
    """Mark the figures as markup: `svg.Canvas` escaped every text in them."""
    from markupsafe import Markup

    return {key: Markup(markup) for key, markup in figures(report).items()}


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """Return (class, text) per line of a diff, cut where it would make the page unreadable."""
    lines = diff.splitlines()
    shown = [(_kind(text), text) for text in lines[:MAX_DIFF_LINES]]
    if len(lines) > MAX_DIFF_LINES:
        shown.append(("hunk", f"… {len(lines) - MAX_DIFF_LINES} more lines"))
    return shown


def _kind(text: str) -> str:
    if text.startswith(("+++", "---", "diff ", "index ")):
        return "head"
    return {"+": "plus", "-": "minus", "@": "hunk"}.get(text[:1], "same")
