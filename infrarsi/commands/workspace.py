"""What every verb after `init` starts from: the repository, the intent and the contract, all agreeing with HEAD."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.intent import Intent
from infrarsi.contract.scope import is_editable, lock_digests
from infrarsi.errors import ContractError, GitError, UsageError
from infrarsi.records import Contract, Scope
from infrarsi.vcs.door import Repository

COMMIT_HINT = f'git add {intents.FILE} {locks.FILE} && git commit -m "Lock the training contract"'


@dataclass(frozen=True)
class CommitReader:
    """Reads paths as one commit holds them (the scope check's TreeReader)."""

    repo: Repository
    commit: str

    def read(self, path: str) -> bytes | None:
        """Return the blob's bytes, or None where the commit has no such path."""
        return self.repo.read_blob(self.commit, path)

    def paths(self) -> Collection[str]:
        """Return every path of the commit."""
        return self.repo.entries(self.commit).keys()


@dataclass(frozen=True)
class Workspace:
    """A repository whose contract is committed and whole. `head` is the commit that a run takes as its baseline."""

    repo: Repository
    head: str
    intent: Intent
    contract: Contract
    digest: str
    warnings: tuple[str, ...] = ()

    @functools.cached_property
    def promoted(self) -> bool:
        """The baseline is no longer the original one: something was promoted since `init`."""
        return bool(self.intent.launch.assignments) or self.repo.tree_of(self.head) != self._original_tree()

    def _original_tree(self) -> str:
        """The original tree plus today's two contract files: the tree that a fresh contract is committed as."""
        from infrarsi.vcs.commits import build_candidate

        files = {
            name: self.repo.read_blob(self.head, name)
            for name in (intents.FILE, locks.FILE)
            if self.repo.read_blob(self.head, name) is not None
        }
        return self.repo.tree_of(build_candidate(self.repo, self.contract.base_commit, (), files, "original"))


def editable_sources(repo: Repository, commit: str, scope: Scope) -> dict[str, str]:
    """Return the editable Python sources of a commit by path."""
    paths = [p for p in repo.tracked_files(commit) if p.endswith(".py") and is_editable(scope, p)]
    blobs = {path: repo.read_blob(commit, path) for path in paths}
    return {path: blob.decode(errors="surrogateescape") for path, blob in blobs.items() if blob is not None}


def load(start: Path) -> Workspace:
    """Open the contract at HEAD. Raises ContractError with the next command where it is missing, edited or broken."""
    repo = Repository.discover(start)
    head = repo.head()
    text = _committed(repo, head, intents.FILE)
    lock_text = _committed(repo, head, locks.FILE)
    intent, contract = intents.parse(text), locks.parse(lock_text)
    locks.check_intent(contract, intent)
    _require_base(repo, contract)
    _require_locked(repo, head, contract)
    warnings = _dirty(repo, contract)
    return Workspace(repo, head, intent, contract, locks.contract_digest(contract), warnings)


def _committed(repo: Repository, head: str, name: str) -> str:
    """Return the text of `name` at HEAD; the work tree's copy must be the same, so that what runs is what is signed."""
    blob = repo.read_blob(head, name)
    path = repo.root / name
    if blob is None and not path.exists():
        raise ContractError("there is no contract here", why=f"{name} is missing", hint='git infrarsi init "…"')
    if blob is None:
        raise ContractError("the contract is not committed", why=f"{name} is not in HEAD", hint=COMMIT_HINT)
    if not path.exists() or path.read_bytes() != blob:
        raise ContractError(
            f"{name} differs from the committed one",
            why="a run is anchored at a commit, so the contract must be committed as it stands",
            hint=f"git add {name} && git commit, or: git checkout -- {name}",
        )
    return blob.decode()


def _require_base(repo: Repository, contract: Contract) -> None:
    try:
        repo.resolve(contract.base_commit)
    except GitError as error:
        raise ContractError(
            "the commit that the contract was made at is not in this clone",
            why=f"{contract.base_commit[:12]} is missing (a shallow clone?)",
            hint="git fetch --unshallow",
        ) from error


def _require_locked(repo: Repository, head: str, contract: Contract) -> None:
    """Every locked path and symbol must stand at HEAD as it stood at `init` (R-A1, R-A8)."""
    now = lock_digests(contract.scope, repo.tracked_files(head), CommitReader(repo, head))
    before = {d.name: d.sha256 for d in contract.locked}
    after = {d.name: d.sha256 for d in now if d.name not in (intents.FILE, locks.FILE)}
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise ContractError(
            f"locked: {', '.join(changed[:5])} changed since the contract was made",
            why="the contract says that these stay as they were",
            hint="git infrarsi init --force makes a new contract for the new code",
        )


def require_data(workspace: Workspace) -> None:
    """Compare the locked data with the disk, byte by byte (R-A1). ContractError names the first file that differs."""
    from infrarsi.contract.data import check_data

    wrong = check_data(workspace.repo.root, workspace.contract.workload.data)
    if wrong:
        raise ContractError(
            wrong[0].message,
            why=f"observed {wrong[0].observed}, locked {wrong[0].allowed}",
            hint="restore the file, or git infrarsi init --force for a contract over the new data",
            code="data-changed",
        )


def _dirty(repo: Repository, contract: Contract) -> tuple[str, ...]:
    """Refuse uncommitted changes in scope (the baseline is a commit), warn about the others (R-E4)."""
    dirty = [d for d in repo.dirty_paths() if d.path not in (intents.FILE, locks.FILE)]
    inside = [d.path for d in dirty if is_editable(contract.scope, d.path) and d.status != "??"]
    if inside:
        raise GitError(
            f"uncommitted changes in scope: {', '.join(inside[:5])}",
            why="the baseline is a commit; these changes would not be in it",
            hint="git commit, or git stash",
            code="dirty-scope",
        )
    return tuple(f"{d.path} is not committed; trials run without it" for d in dirty)


@contextlib.contextmanager
def exclusive(repo: Repository, verb: str) -> Iterator[None]:
    """Hold the repository's run lock: two runs on one machine would disturb each other's time."""
    from filelock import FileLock, Timeout

    from infrarsi.vcs.worktrees import prune_stale

    repo.state_dir.mkdir(parents=True, exist_ok=True)
    path = repo.state_dir / "run.lock"
    owner = repo.state_dir / "run.owner"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        who = owner.read_text() if owner.exists() else "another process"
        raise UsageError(
            "another infrarsi is measuring in this repository",
            why=f"{who}; two at once would disturb each other's time",
            hint="wait for it (git infrarsi status), or stop it with ^C",
            code="busy",
        ) from None
    try:
        owner.write_text(f"git infrarsi {verb}, process {os.getpid()}")
        prune_stale(repo)  # what a killed run had checked out
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
