"""What a verdict rests on, as commits of their own: sealed runs, audits, archived candidates."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping

from infrarsi.errors import GitError
from infrarsi.vcs.commits import tree_with, write_commit
from infrarsi.vcs.door import ABSENT, Repository

RUNS = "refs/infrarsi/runs/"
AUDITS = "refs/infrarsi/audits/"
ARCHIVE = "refs/infrarsi/archive/"
BRANCHES = "refs/heads/infrarsi/"
PAYLOAD, SIGNATURE = "audit.json", "audit.sig"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def seal(repo: Repository, run: str, files: Mapping[str, bytes]) -> str:
    """Store `files` as the run's evidence and return the commit; sealing the same again returns the same commit."""
    return _store(repo, RUNS + _checked(run), files, f"Evidence of run {run}")


def read(repo: Repository, where: str, path: str) -> bytes | None:
    """Return a file of the evidence; `where` is a run or a commit. None where it has no such file.

    GitError `evidence-missing` where the evidence itself is not in this clone.
    """
    commit = repo.read_ref(RUNS + where) if _RUN.fullmatch(where) else None
    try:
        return repo.read_blob(commit or repo.resolve(where), path)
    except GitError as error:
        raise GitError(
            f"the evidence {where} is not in this clone",
            why=error.what,
            hint=f"git fetch origin '{RUNS}*:{RUNS}*'",
            code="evidence-missing",
        ) from error


def store_audit(repo: Repository, run: str, payload: bytes, signature: str) -> str:
    """Keep a signed audit with its run, where it is found by patch-id when a squash has lost the trailer."""
    files = {PAYLOAD: payload, SIGNATURE: signature.encode()}
    return _store(repo, AUDITS + _checked(run), files, f"Audit of run {run}")


def stored_audits(repo: Repository) -> Iterator[tuple[bytes, str]]:
    """Yield (payload, signature) of every audit kept here, newest first within a run. Unverified."""
    refs = repo.for_each_ref(AUDITS)
    for commit in repo.commits(*refs.values()) if refs else ():
        payload = repo.read_blob(commit, PAYLOAD)
        signature = repo.read_blob(commit, SIGNATURE)
        if payload is not None and signature is not None:
            yield payload, signature.decode(errors="replace")


def find_audits(repo: Repository, patch_id: str) -> tuple[tuple[bytes, str], ...]:
    """Return (payload, signature) of every stored audit with this patch-id, newest first within a run. Unverified."""
    return tuple(a for a in stored_audits(repo) if _patch_id(a[0]) == patch_id) if patch_id else ()


def find_audit_by_patch_id(repo: Repository, patch_id: str) -> tuple[bytes, str] | None:
    """Return the stored audit with this patch-id: one whose signature is good where there is one, else the newest.

    A forged audit beside the real one must not hide it; the caller still verifies what it gets.
    """
    from infrarsi.vcs.trust import verify_bytes

    found = find_audits(repo, patch_id)
    good = (a for a in found if verify_bytes(repo, a[0], a[1]).status == "good")
    return next(good, found[0]) if found else None


def archive_candidates(repo: Repository, run: str, keep: Collection[int]) -> tuple[int, ...]:
    """Move the run's branches, but those in `keep` and those checked out, to the archive; return the numbers moved."""
    prefix = f"{BRANCHES}{_checked(run)}/"
    busy = repo.checked_out_branches()
    moves = []
    for ref, oid in repo.for_each_ref(prefix).items():
        number = ref.removeprefix(prefix)
        if number.isdigit() and int(number) not in keep and ref not in busy:
            moves.append((ref, f"{ARCHIVE}{run}/{number}", oid))
    if moves:
        repo.rename_refs(moves)
    return tuple(sorted(int(old.removeprefix(prefix)) for old, _, _ in moves))


def _store(repo: Repository, ref: str, files: Mapping[str, bytes], message: str) -> str:
    """Commit `files` on top of what `ref` holds; nothing happens where it holds the same."""
    tree = tree_with(repo, None, files)
    before = repo.read_ref(ref)
    if before is not None and repo.tree_of(before) == tree:
        return before
    commit = write_commit(repo, tree, [before] if before else [], message)
    repo.update_ref(ref, commit, before or ABSENT)
    return commit


def _patch_id(payload: bytes) -> str:
    try:
        value = json.loads(payload)
    except ValueError:
        return ""
    return str(value.get("patch_id", "")) if isinstance(value, dict) else ""


def _checked(run: str) -> str:
    if not _RUN.fullmatch(run):
        raise GitError(f"{run!r} is not a run", hint="git infrarsi status lists the runs", code="bad-name")
    return run
