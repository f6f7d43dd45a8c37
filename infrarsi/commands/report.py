"""`report`: the replay of a run as one result; the readers in `infrarsi.report` draw it."""

from __future__ import annotations

from pathlib import Path

from infrarsi.commands.state import calibration_by_digest, open_run
from infrarsi.contract import lock as locks
from infrarsi.errors import InfrarsiError
from infrarsi.records import Change, Contract
from infrarsi.report.view import RunReport, from_ledger
from infrarsi.vcs.door import Repository


def report(start: Path, run: str | None = None) -> RunReport:
    """Return the report of a run (the newest by default)."""
    return build_report(Repository.discover(start), run)


def build_report(repo: Repository, run: str | None) -> RunReport:
    """Replay a run and add what only git knows: the winner's diff and every source path it touches."""
    _, ledger, state = open_run(repo, run)
    base = state.started.get("base_commit", "")
    winner = state.final
    changes: tuple[Change, ...] = ()
    diff = ""
    if winner is not None and winner.commit and winner.commit != base:
        changes, diff = repo.changes(base, winner.commit), repo.diff(base, winner.commit)
    contract = contract_at(repo, base)
    calibration = calibration_by_digest(repo, state.started.get("calibration_digest", ""))
    return from_ledger(list(ledger.replay()), changes=changes, diff=diff, contract=contract, calibration=calibration)


def contract_at(repo: Repository, commit: str) -> Contract | None:
    """Return the contract as a commit holds it, None where it has none that can be read."""
    blob = repo.read_blob(commit, locks.FILE) if commit else None
    if blob is None:
        return None
    try:
        return locks.parse(blob.decode())
    except InfrarsiError:
        return None
