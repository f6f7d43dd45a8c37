"""`apply`: an accepted verdict becomes one minimal, signed commit with an audit trailer; nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infrarsi.codec import canonical
from infrarsi.commands.campaign import describe
from infrarsi.commands.payload import NAMESPACE, Audit, Payload, message, trailers
from infrarsi.commands.recompute import settings_of
from infrarsi.commands.state import RunState, open_run
from infrarsi.commands.workspace import Workspace, load
from infrarsi.contract import intent as intents
from infrarsi.errors import ContractError, GitError, NegativeVerdict
from infrarsi.records import Assignment, Change, Verdict

if TYPE_CHECKING:
    from infrarsi.vcs.signing import SigningSetup

DEFAULT_BRANCH = "infrarsi/promoted"


@dataclass(frozen=True)
class ApplyResult:
    """The signed commit and what it changes. `created` is False when it stood there already."""

    run: str
    commit: str
    branch: str
    settings: tuple[Assignment, ...]
    changes: tuple[Change, ...]
    verdict: Verdict
    signer: str
    notes: tuple[str, ...]
    created: bool = True


def apply(start: Path, run: str | None = None, branch: str = DEFAULT_BRANCH) -> ApplyResult:
    """Promote a run's accepted candidate onto `branch`.

    Raises NegativeVerdict without an accepted verdict, ContractError where the contract changed since, GitError where
    signing or the branch does not allow it.
    """
    workspace = load(start)
    name, _, state = open_run(workspace.repo, run)
    verdict = require_accepted(name, state)
    _require_same_contract(workspace, state)
    repo, base = workspace.repo, state.started["base_commit"]
    settings = settings_of(state, verdict.candidate)
    result = result_commit(workspace, base, verdict, settings)
    existing = _promoted_already(workspace, name, branch, repo.tree_of(result))
    changes = repo.changes(base, result)
    if existing:
        return ApplyResult(name, existing, branch, settings, changes, verdict, "", ("it was promoted before",), False)
    commit, setup = _sign_and_commit(workspace, name, state, verdict, settings, base, result, branch)
    notes = (*_notes(workspace, base, branch), *([setup.warning] if setup.warning else []))
    signer = f"{setup.format} key {setup.key}"
    return ApplyResult(name, commit, branch, settings, changes, verdict, signer, notes)


def require_accepted(name: str, state: RunState) -> Verdict:
    """Return the run's accepted verdict."""
    verdict = state.final
    if state.ended is None:
        raise NegativeVerdict(f"run {name} is not finished", why="no final verdict yet", hint="git infrarsi run")
    if verdict is None or verdict.decision != "accepted":
        why = verdict.reason if verdict else "nothing was found that beats the baseline"
        raise NegativeVerdict(
            f"run {name} has no accepted verdict",
            why=why,
            hint="git infrarsi report shows what was tried",
            code="no-verdict",
        )
    return verdict


def _require_same_contract(workspace: Workspace, state: RunState) -> None:
    if state.started["contract_digest"] != workspace.digest:
        raise ContractError(
            "the contract changed since this run",
            why=f"the run measured under {state.started['contract_digest'][:12]}, HEAD has {workspace.digest[:12]}",
            hint="git infrarsi run measures under the new contract",
            code="contract-changed",
        )


def result_commit(workspace: Workspace, base: str, verdict: Verdict, settings: Sequence[Assignment]) -> str:
    """Return an unsigned commit whose tree is the verified candidate's plus the promoted launch table."""
    from infrarsi.vcs.commits import build_candidate

    repo = workspace.repo
    toml = repo.read_blob(base, intents.FILE)
    if toml is None:
        raise ContractError("the run's baseline holds no infrarsi.toml", hint="git infrarsi run")
    edited = intents.with_launch(toml.decode(), settings).encode()
    edits: dict[str, bytes | None] = {intents.FILE: edited} if edited != toml else {}
    return build_candidate(repo, verdict.commit, (), edits, "promoted") if edits else verdict.commit


def _promoted_already(workspace: Workspace, run: str, branch: str, tree: str) -> str:
    """Return the promotion that stands on `branch`, nothing where it may be made. Asked before anything is signed."""
    repo, ref = workspace.repo, f"refs/heads/{branch}"
    tip = repo.read_ref(ref)
    if tip is None:
        return ""
    if run in repo.trailers(tip, "Infrarsi-Run") and repo.tree_of(tip) == tree:
        return tip
    repo.require_free(ref)
    if not repo.is_ancestor(tip, workspace.head):
        raise GitError(
            f"branch {branch} holds another promotion that is not merged",
            why=f"it is at {tip[:12]}",
            hint=f"merge it, delete it (git branch -D {branch}), or: git infrarsi apply --branch NAME",
            code="branch-taken",
        )
    return ""


def _notes(workspace: Workspace, base: str, branch: str) -> tuple[str, ...]:
    notes = [f"to take it: git merge --ff-only {branch}"]
    if base != workspace.head:
        notes = [f"HEAD moved since the run; to take it: git merge {branch}, then git infrarsi verify HEAD"]
    return tuple(notes)


def _sign_and_commit(
    workspace: Workspace,
    name: str,
    state: RunState,
    verdict: Verdict,
    settings: tuple[Assignment, ...],
    base: str,
    result: str,
    branch: str,
) -> tuple[str, SigningSetup]:
    from infrarsi.vcs.evidence import store_audit
    from infrarsi.vcs.promote import promote
    from infrarsi.vcs.signing import sign_bytes, signing_setup

    repo = workspace.repo
    setup = signing_setup(repo)
    payload = Payload(
        contract=workspace.digest,
        run=name,
        evidence=_evidence(workspace, name),
        calibration=state.started["calibration_digest"],
        base_commit=base,
        base_tree=repo.tree_of(base),
        result_tree=repo.tree_of(result),
        patch_id=repo.patch_id(base, result),
        settings=settings,
        speedup=verdict.speedup,
        low=verdict.low,
        high=verdict.high,
        pairs=len(verdict.pairs),
        error_rate=verdict.error_rate,
        records=tuple(t for p in verdict.pairs for t in (p.baseline_trial, p.candidate_trial)),
    )
    data = canonical(payload)
    audit = Audit(data, sign_bytes(repo, data, namespace=NAMESPACE))
    store_audit(repo, name, data, audit.signature)
    subject = f"Speed up training {verdict.speedup:.2f}x: {describe(verdict.candidate)}"
    if len(subject) > 100:
        subject = f"Speed up training {verdict.speedup:.2f}x"
    text = message(subject, _body(state, verdict), trailers(payload, verdict, audit))
    commit = promote(repo, base=base, tree=payload.result_tree, message=text, branch=branch)
    return commit, setup


def _evidence(workspace: Workspace, run: str) -> str:
    ref = f"refs/infrarsi/runs/{run}"
    commit = workspace.repo.for_each_ref(ref).get(ref)
    if commit is None:
        raise GitError(f"the evidence of run {run} is not here", hint=f"git fetch <remote> {ref}:{ref}")
    return commit


def _body(state: RunState, verdict: Verdict) -> str:
    """Return the report in short."""
    parts = [f"* {s.knob}: {s.level}" for s in verdict.candidate.settings]
    titles = {p.id: p.title for p in state.patches}
    parts += [f"* {titles.get(p, p)}" for p in verdict.candidate.patches]
    return "\n".join(
        [
            f"Measured {verdict.speedup:.2f}x against the baseline, {verdict.low:.2f}x to {verdict.high:.2f}x over "
            f"{len(verdict.pairs)}\ninterleaved pairs; what the training consumes and learns is held by the contract.",
            "",
            *parts,
        ]
    )
