"""`verify`: signature and audit of a promoted commit, offline, each check with its own message.

The two are separate on purpose: amending only the message loses the commit's signature, not what the audit says.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infrarsi.commands.payload import NAMESPACE, TRAILER, Audit, Payload, decode_trailer, parse_payload
from infrarsi.commands.recompute import recompute
from infrarsi.commands.workspace import CommitReader
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.scope import check_changes, is_editable
from infrarsi.errors import InfrarsiError
from infrarsi.records import Change, Contract
from infrarsi.vcs.door import Repository

Status = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    message: str


@dataclass(frozen=True)
class VerifyResult:
    """Decision over all checks: any failure fails; any check that could not be made is inconclusive."""

    commit: str
    decision: Status
    signature: str
    signature_message: str
    checks: tuple[Check, ...]
    payload: Payload | None = None


def verify(start: Path, revision: str) -> VerifyResult:
    """Verify one commit; GitError where it does not exist."""
    # A pre-receive hook runs in a bare repository, where the pushed objects are still in quarantine.
    repo = Repository.discover(start, bare=True, quarantine="GIT_QUARANTINE_PATH" in os.environ)
    commit = repo.resolve(revision)
    return verify_commit(repo, commit)


def verify_commit(repo: Repository, commit: str) -> VerifyResult:
    """Return signature and audit results for a commit."""
    from infrarsi.vcs import trust

    signature = trust.verify_commit(repo, commit)
    checks: list[Check] = []
    payload = None
    try:
        subject, audit, how = locate(repo, commit)
        checks.append(Check("audit", "pass", how))
        payload = _signed_payload(repo, audit, checks)
        contract = _contract(repo, payload, checks)
        _result(repo, subject, payload, contract, checks)
        _scope(repo, subject, payload, contract, checks)
        checks += [Check(*c) for c in recompute(repo, payload)]
        if contract.require_signature and signature.status != "good":
            checks.append(Check("signature", "fail", "the contract requires a good signature on the commit"))
    except _Failed as failed:
        checks.append(failed.check)
    except InfrarsiError as error:
        checks.append(Check("audit", "fail", f"{error.what}{': ' + error.why if error.why else ''}"))
    statuses = {c.status for c in checks}
    decision: Status = "fail" if "fail" in statuses else "inconclusive" if "inconclusive" in statuses else "pass"
    if signature.status == "bad":
        decision = "fail"
    return VerifyResult(commit, decision, signature.status, signature.message, tuple(checks), payload)


class _Failed(Exception):
    """A check without which the later ones mean nothing."""

    def __init__(self, name: str, status: Status, message: str) -> None:
        super().__init__(message)
        self.check = Check(name, status, message)


def locate(repo: Repository, commit: str) -> tuple[str, Audit, str]:
    """Return (the commit the audit is about, the audit, how it was found)."""
    from infrarsi.vcs.evidence import find_audit_by_patch_id

    values = repo.trailers(commit, TRAILER)
    if len(values) > 1:
        raise _Failed("audit", "fail", "the commit carries two audit trailers; one was added")
    if values:
        return commit, decode_trailer(values[0]), "found in the commit's trailer"
    parents = repo.parents(commit)
    for parent in parents if len(parents) > 1 else ():
        if len(merged := repo.trailers(parent, TRAILER)) == 1:
            return (
                parent,
                decode_trailer(merged[0]),
                f"a merge of the promoted commit {parent[:12]}, which is verified here",
            )
    if not parents:
        raise _Failed("audit", "fail", "the commit carries no audit trailer")
    found = find_audit_by_patch_id(repo, repo.patch_id(parents[0], commit))
    if found is None:
        raise _Failed(
            "audit", "fail", "no audit trailer, and no audit with an equal patch-id: this was not promoted as it stands"
        )
    return commit, Audit(*found), "the trailer is lost; the audit was found by patch-id"


def _signed_payload(repo: Repository, audit: Audit, checks: list[Check]) -> Payload:
    from infrarsi.vcs.trust import verify_bytes

    check = verify_bytes(repo, audit.payload, audit.signature, namespace=NAMESPACE)
    if check.status != "good":
        raise _Failed("audit signature", "fail", f"{check.status}: {check.message}")
    checks.append(Check("audit signature", "pass", f"good, by {check.principal}"))
    return parse_payload(audit.payload)


def _contract(repo: Repository, payload: Payload, checks: list[Check]) -> Contract:
    """The contract digest must be that of the lock in the base commit, and the locked part of the toml its intent."""
    try:
        base = repo.resolve(payload.base_commit)
    except InfrarsiError:
        raise _Failed(
            "contract", "inconclusive", f"the base commit {payload.base_commit[:12]} is not here: git fetch it"
        ) from None
    if repo.tree_of(base) != payload.base_tree:
        raise _Failed("contract", "fail", "the base commit has another tree than the audit says")
    blob = repo.read_blob(base, locks.FILE)
    if blob is None:
        raise _Failed("contract", "fail", f"the base commit holds no {locks.FILE}")
    contract = locks.parse(blob.decode())
    if locks.contract_digest(contract) != payload.contract:
        raise _Failed("contract", "fail", "the contract in the base commit has another digest than the audit")
    checks.append(Check("contract", "pass", f"digest {payload.contract[:12]}"))
    return contract


def _result(repo: Repository, commit: str, payload: Payload, contract: Contract, checks: list[Check]) -> None:
    """Tree equal: what was promoted. Else the same patch on a moved base. Else something was edited."""
    if repo.tree_of(commit) == payload.result_tree:
        checks.append(Check("result", "pass", "the tree is the one that was verified"))
        return
    parents = repo.parents(commit)
    if parents and repo.patch_id(parents[0], commit) == payload.patch_id:
        moved = repo.changes(payload.base_commit, parents[0])
        touched = [c.path for c in moved if is_editable(contract.scope, c.path) or c.path in _locked(contract)]
        if touched:
            paths = ", ".join(touched[:5])
            raise _Failed(
                "result", "inconclusive", f"the new base changed {paths} as well: git infrarsi run measures again"
            )
        checks.append(Check("result", "pass", f"same patch, the base moved by {len(moved)} paths outside the scope"))
        return
    try:
        edited = [c.path for c in repo.changes(payload.result_tree, repo.tree_of(commit))]
    except InfrarsiError:  # The verified tree is gone (a clone that never had the branch): compare with the base.
        edited = [c.path for c in repo.changes(payload.base_tree, repo.tree_of(commit))]
    raise _Failed("result", "fail", f"edited after it was verified: {', '.join(edited[:8]) or 'nothing in the tree'}")


def _locked(contract: Contract) -> set[str]:
    return {d.name.partition("::")[0] for d in contract.locked}


def _scope(repo: Repository, commit: str, payload: Payload, contract: Contract, checks: list[Check]) -> None:
    """Ring 1 again, on the commit itself; `infrarsi.toml` may differ by the promoted launch table only."""
    parent = payload.base_commit if repo.tree_of(commit) == payload.result_tree else repo.parents(commit)[0]
    changes = repo.changes(parent, commit)
    before, after = CommitReader(repo, parent), CommitReader(repo, commit)
    code: list[Change] = []
    for change in changes:
        if change.path != intents.FILE:
            code.append(change)
            continue
        expected = intents.with_launch((before.read(intents.FILE) or b"").decode(), payload.settings)
        if (after.read(intents.FILE) or b"").decode() != expected:
            raise _Failed("scope", "fail", f"{intents.FILE} differs by more than the promoted launch settings")
    violations = check_changes(contract.scope, contract.locked, code, before, after)
    if violations:
        raise _Failed("scope", "fail", "; ".join(v.message for v in violations[:3]))
    checks.append(Check("scope", "pass", f"{len(code)} files changed, all in scope"))
