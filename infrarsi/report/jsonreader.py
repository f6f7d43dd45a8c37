"""A run's report as JSON: the same envelope that `git infrarsi report --json` writes, as it is sealed with the run."""

from __future__ import annotations

from infrarsi.report.envelope import success
from infrarsi.report.model import RunReport


def render_json(report: RunReport) -> str:
    """Return the report's envelope with a newline at the end."""
    return success("report", report) + "\n"
