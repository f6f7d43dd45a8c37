"""Seals a run: ledger, contract, calibration, reports and logs as one commit at `refs/infrarsi/runs/<run>`."""

from __future__ import annotations

from pathlib import Path

from infrarsi.codec import canonical
from infrarsi.commands.workspace import Workspace
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.ledger import Ledger
from infrarsi.records import Calibration

LOG_LIMIT_BYTES = 64 * 2**10


def seal_run(workspace: Workspace, run: str, ledger: Ledger, calibration: Calibration) -> str:
    """Return the commit that holds the run's evidence; losers move out of the branch namespace."""
    from infrarsi.commands.report import build_report
    from infrarsi.report.html import render_html
    from infrarsi.report.jsonreader import render_json
    from infrarsi.report.markdown import render_markdown
    from infrarsi.vcs.evidence import archive_candidates, seal

    repo = workspace.repo
    report = build_report(repo, run)
    files: dict[str, bytes] = {
        "ledger.jsonl": ledger.path.read_bytes(),
        "calibration.json": canonical(calibration) + b"\n",
        "report.md": render_markdown(report).encode(),
        "report.html": render_html(report).encode(),
        "report.json": render_json(report).encode(),
    }
    for name in (intents.FILE, locks.FILE):
        files[name] = repo.read_blob(workspace.head, name) or b""
    for log in sorted((ledger.path.parent / "logs").glob("*.log")):
        files[f"logs/{log.name}"] = tail(log)
    evidence = seal(repo, run, files)
    archive_candidates(repo, run, keep_numbers(run, ledger))
    return evidence


def keep_numbers(run: str, ledger: Ledger) -> tuple[int, ...]:
    """Return the candidates that stay branches: the finalists and the one with the final verdict."""
    from infrarsi.commands.state import replay

    state = replay(run, list(ledger.replay()))
    final = [number for stage, number in state.verdicts if stage == "final"]
    return tuple(sorted({*state.finalists, *final}))


def tail(path: Path) -> bytes:
    """Return the end of a log: where the first error of a failed trial stands."""
    data = path.read_bytes()
    return data if len(data) <= LOG_LIMIT_BYTES else data[:8192] + b"\n[...]\n" + data[-LOG_LIMIT_BYTES:]
