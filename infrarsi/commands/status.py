"""`status`: where this repository stands, and the next command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infrarsi.commands.campaign import describe
from infrarsi.commands.state import latest_calibration, list_runs, open_run
from infrarsi.commands.workspace import load
from infrarsi.errors import ContractError
from infrarsi.vcs.door import Repository


@dataclass(frozen=True)
class RunLine:
    """One run in a line."""

    run: str
    state: str
    trials: int
    best: str
    verdict: str


@dataclass(frozen=True)
class StatusResult:
    """Contract, calibration, runs (oldest first), who is measuring now, and what to do next."""

    contract: str
    goal: str
    calibrated: bool
    runs: tuple[RunLine, ...]
    measuring: str
    next_command: str


def status(start: Path) -> StatusResult:
    """Return where this repository stands. A missing or broken contract is part of the answer, not an error."""
    repo = Repository.discover(start)
    owner = repo.state_dir / "run.owner"
    measuring = owner.read_text() if owner.exists() and _locked(repo) else ""
    runs = tuple(_line(repo, name) for name in list_runs(repo))
    try:
        workspace = load(start)
    except ContractError as error:
        return StatusResult("", f"{error.what}: {error.why}", False, runs, measuring, error.hint)
    calibrated = latest_calibration(repo, workspace.digest, None) is not None
    return StatusResult(
        workspace.digest, workspace.contract.goal, calibrated, runs, measuring, _next(calibrated, runs, measuring)
    )


def _locked(repo: Repository) -> bool:
    from filelock import FileLock, Timeout

    try:
        with FileLock(repo.state_dir / "run.lock", timeout=0):
            return False
    except Timeout:
        return True


def _line(repo: Repository, name: str) -> RunLine:
    _, _, state = open_run(repo, name)
    verdict = state.final
    where = "finished" if state.ended else "verifying" if state.search_ended else "searching"
    said = f"{verdict.decision} {verdict.speedup:.2f}x [{verdict.low:.2f}, {verdict.high:.2f}]" if verdict else ""
    best = describe(verdict.candidate) if verdict else ""
    return RunLine(name, where, len(state.trials), best, said)


def _next(calibrated: bool, runs: tuple[RunLine, ...], measuring: str) -> str:
    if measuring:
        return "wait"
    if not runs:
        return "git infrarsi run" if calibrated else "git infrarsi doctor"
    if runs[-1].state != "finished":
        return "git infrarsi run"
    return "git infrarsi apply" if runs[-1].verdict.startswith("accepted") else "git infrarsi report"
