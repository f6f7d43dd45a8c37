"""`verify`: signature and audit of a promoted commit, offline, each check with its own message.

The two are separate on purpose: amending only the message loses the commit's signature, not what the audit says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    message = signature.message
    checks: list[Check] = []
    payload = None
    try:
        found = locate(repo, commit)
        checks.append(Check("audit", "pass", found.how))
        if signature.status == "none" and found.promoted != commit:  # A merge is rarely signed, what it merges is.
            signature = trust.verify_commit(repo, found.promoted)
            message = f"the promoted commit {found.promoted[:12]}: {signature.message}"
        elif signature.status == "none":
            message = "the commit is not signed: amending, rebasing or squashing lost its signature"
        payload = _signed_payload(repo, found.audit, checks)
        contract = _contract(repo, payload, checks)
        _result(repo, found, payload, contract, checks)
        _scope(repo, found, payload, contract, checks)
        checks += [Check(*c) for c in recompute(repo, payload, _measured_tree(repo, found, payload))]
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
    return VerifyResult(commit, decision, signature.status, message, tuple(checks), payload)


class _Failed(Exception):
    """A check without which the later ones mean nothing."""

    def __init__(self, name: str, status: Status, message: str) -> None:
        super().__init__(message)
        self.check = Check(name, status, message)


@dataclass(frozen=True)
class Found:
    """An audit and the change that it must be about: `parent` to `commit`. `promoted` is the commit that carries it."""

    commit: str
    parent: str
    promoted: str
    audit: Audit
    how: str


def locate(repo: Repository, commit: str) -> Found:
    """Find the audit of a commit: in its trailer, in that of the commit it merges, or among those kept here."""
    from infrarsi.vcs.evidence import find_audit_by_patch_id

    values = repo.trailers(commit, TRAILER)
    parents = repo.parents(commit)
    if len(values) > 1:
        raise _Failed("audit", "fail", "the commit carries two audit trailers; one was added")
    if not parents:
        raise _Failed("audit", "fail", "a commit without a parent changes nothing that an audit could be about")
    if values:
        return Found(commit, parents[0], commit, decode_trailer(values[0]), "found in the commit's trailer")
    # The side that was merged in comes first: the other one may end in an earlier promotion.
    for parent in (*parents[1:], parents[0]) if len(parents) > 1 else ():
        if len(merged := repo.trailers(parent, TRAILER)) == 1:
            other = next((p for p in parents if p != parent), parent)
            how = f"a merge of the promoted commit {parent[:12]}"
            return Found(commit, other, parent, decode_trailer(merged[0]), how)
    found = find_audit_by_patch_id(repo, repo.patch_id(parents[0], commit))
    if found is None:
        raise _Failed(
            "audit", "fail", f"no audit trailer, and no audit of this change{_extra(repo, parents[0], commit)}"
        )
    how = "the trailer is lost; the audit was found by patch-id"
    return Found(commit, parents[0], commit, Audit(*found), how)


def _extra(repo: Repository, parent: str, commit: str) -> str:
    """Say what a commit changes beside a promoted change that it holds as well (a squash with something else)."""
    from infrarsi.vcs.evidence import stored_audits

    changed = {c.path for c in repo.changes(parent, commit)}
    for data, _ in stored_audits(repo):
        try:
            payload = parse_payload(data)
            promoted = {c.path for c in repo.changes(payload.base_tree, payload.result_tree)}
        except InfrarsiError:  # Another version's audit, or one whose trees are not here: it cannot be compared.
            continue
        if promoted and promoted <= changed:
            paths = _differing(repo, parent, commit, payload)
            return f"; beside what run {payload.run} promoted it changes {_names(paths)}"
    return ""


def _differing(repo: Repository, parent: str, commit: str, payload: Payload) -> list[str]:
    """Return the paths at which a commit's change is another than the promoted one."""
    here = {c.path: (c.new_mode, c.new_oid) for c in repo.changes(parent, commit)}
    try:
        changes = repo.changes(payload.base_tree, payload.result_tree)
    except InfrarsiError:  # A clone that never had the promoted branch.
        return sorted(here)
    promoted = {c.path: (c.new_mode, c.new_oid) for c in changes}
    return sorted(p for p in here.keys() | promoted.keys() if here.get(p) != promoted.get(p))


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
    return ", ".join(paths[:8]) + more


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
    _require_intent(repo, base, contract)
    allowed = contract.budget.error_rate
    if payload.error_rate > allowed:
        raise _Failed("contract", "fail", f"judged at an error rate of {payload.error_rate:g}, {allowed:g} is allowed")
    checks.append(Check("contract", "pass", f"digest {payload.contract[:12]}"))
    return contract


def _require_intent(repo: Repository, commit: str, contract: Contract) -> None:
    text = repo.read_blob(commit, intents.FILE)
    if text is None or intents.digest_of(intents.parse(text.decode())) != contract.intent_digest:
        raise _Failed("contract", "fail", f"{intents.FILE} at {commit[:12]} is not what the contract was made from")


def _result(repo: Repository, found: Found, payload: Payload, contract: Contract, checks: list[Check]) -> None:
    """The change must be the promoted one, on the base that it was measured on or one that differs out of scope."""
    parent, commit = found.parent, found.commit
    same_tree = repo.tree_of(commit) == payload.result_tree
    if repo.patch_id(parent, commit) != payload.patch_id:
        paths = _differing(repo, parent, commit, payload)
        why = f"it differs in {_names(paths)}"
        if same_tree:
            why = "the tree is the verified one, but another commit brought it there"
        raise _Failed("result", "fail", f"the change is not the one that was verified: {why}")
    if same_tree:
        checks.append(Check("result", "pass", "the tree is the one that was verified"))
        return
    moved = {c.path for c in repo.changes(payload.base_commit, parent)}
    if locks.FILE in moved:
        raise _Failed("contract", "fail", f"the new base holds another {locks.FILE}: it was not measured under that")
    if intents.FILE in moved:
        _require_intent(repo, parent, contract)
    held = {d.name.partition("::")[0] for d in (*contract.locked, *contract.workload.data)}
    touched = sorted(p for p in moved if is_editable(contract.scope, p) or p in held)
    if touched:
        raise _Failed(
            "result", "inconclusive", f"the new base changed {_names(touched)} as well: git infrarsi run measures again"
        )
    count = len(repo.commits(f"{payload.base_commit}..{parent}"))
    how = f"same patch; the base moved by {count} commits that change {len(moved)} paths, all outside the scope"
    checks.append(Check("result", "pass", how))


def _scope(repo: Repository, found: Found, payload: Payload, contract: Contract, checks: list[Check]) -> None:
    """Ring 1 again, on the commit itself; `infrarsi.toml` may differ by the promoted launch table only."""
    before, after = CommitReader(repo, found.parent), CommitReader(repo, found.commit)
    code: list[Change] = []
    for change in repo.changes(found.parent, found.commit):
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


def _measured_tree(repo: Repository, found: Found, payload: Payload) -> str:
    """Return the tree that the trials must have run: the measured base with this change, without the launch table."""
    from infrarsi.vcs.commits import tree_with

    changed = [c.path for c in repo.changes(found.parent, found.commit) if c.path != intents.FILE]
    return tree_with(repo, payload.base_commit, {path: repo.read_blob(found.commit, path) for path in changed})
