"""`gc`: removes what runs left behind, and never evidence, a promoted candidate, or anything of a live process."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from infrarsi.commands.state import list_runs, open_run, runs_folder
from infrarsi.commands.workspace import exclusive
from infrarsi.vcs.door import Repository

DEFAULT_DAYS = 30


@dataclass(frozen=True)
class GcResult:
    """What was (or, with `dry_run`, would be) removed, and what was kept with the reason."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    dry_run: bool


def gc(start: Path, *, dry_run: bool = False, days: float = DEFAULT_DAYS) -> GcResult:
    """Remove stale worktrees, archived losers older than `days`, and the logs of runs whose evidence is sealed.

    Idempotent. Holds the run lock: a live run is never disturbed (R-E5).
    """
    repo = Repository.discover(start)
    with exclusive(repo, "gc"):
        removed = [*_worktrees(repo, dry_run), *_losers(repo, dry_run, days), *_logs(repo, dry_run, days)]
        removed += _scratch(repo, dry_run)
        kept = tuple(
            f"{name}: unfinished, git infrarsi run resumes it" for name in list_runs(repo) if _open(repo, name)
        )
    return GcResult(tuple(removed), kept, dry_run)


def _open(repo: Repository, name: str) -> bool:
    return open_run(repo, name)[2].ended is None


def _worktrees(repo: Repository, dry_run: bool) -> list[str]:
    from infrarsi.vcs.worktrees import prune_stale

    return [f"worktree {path}" for path in prune_stale(repo, dry_run=dry_run)]


def _losers(repo: Repository, dry_run: bool, days: float) -> list[str]:
    """Archived candidates by age; finalists and promoted ones are branches, not archive, and stay."""
    removed = []
    limit = time.time() - days * 86400
    for ref, commit in sorted(repo.for_each_ref("refs/infrarsi/archive").items()):
        if repo.commit_time(commit) < limit:
            removed.append(ref)
            if not dry_run:
                repo.delete_ref(ref, commit)
    return removed


def _logs(repo: Repository, dry_run: bool, days: float) -> list[str]:
    sealed = repo.for_each_ref("refs/infrarsi/runs")
    removed = []
    for name in list_runs(repo):
        logs = runs_folder(repo) / name / "logs"
        old = logs.exists() and logs.stat().st_mtime < time.time() - days * 86400
        if old and f"refs/infrarsi/runs/{name}" in sealed:
            removed.append(str(logs.relative_to(repo.state_dir)))
            if not dry_run:
                shutil.rmtree(logs)
    return removed


def _scratch(repo: Repository, dry_run: bool) -> list[str]:
    """Logs of `init` and `doctor`, which nothing reads any more, and replays, which are made again when needed."""
    removed = []
    for name in ("init", "doctor", "replay"):
        folder = repo.state_dir / name
        if folder.exists() and any(folder.iterdir()):
            removed.append(name)
            if not dry_run:
                shutil.rmtree(folder)
    return removed
