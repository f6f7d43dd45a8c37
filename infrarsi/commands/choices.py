"""What a run has to try: the knobs of infrarsi.toml and the patches that hold, before any trial second is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.workspace import CommitReader, Workspace, editable_sources
from infrarsi.contract.flags import Flag, read_flags
from infrarsi.errors import UsageError
from infrarsi.records import NUMERICS_ORDER, Assignment, Hardware, Knob, Patch


@dataclass(frozen=True)
class Choices:
    """The knobs of infrarsi.toml, the patches that apply, and the patches that were refused, each with the reason."""

    knobs: tuple[Knob, ...]
    patches: tuple[Patch, ...]
    refused: tuple[tuple[Patch, str], ...]


def choices(workspace: Workspace, hardware: Hardware, files: Sequence[Path]) -> Choices:
    """Return what a run has to try. UsageError where that is nothing, or a knob sets a flag that does not exist."""
    from infrarsi.propose.patches import propose_patches
    from infrarsi.propose.patchfile import read_patch_files

    repo, scope = workspace.repo, workspace.contract.scope
    numerics = workspace.contract.invariants.numerics
    limit = NUMERICS_ORDER.index(numerics)
    knobs = tuple(k for k in workspace.intent.knobs if NUMERICS_ORDER.index(k.numerics) <= limit)
    require_allowed_variables((*workspace.intent.launch.assignments, *assignments_of(knobs)))
    require_known_flags(knobs, read_flags(repo.root, workspace.intent.entry), workspace.intent.entry)
    sources = editable_sources(repo, workspace.head, scope)
    proposed = list(propose_patches(sources, scope=scope, allowed=numerics, hardware=hardware))
    proposed += [replace(p, numerics=numerics) for p in read_patch_files(files)]
    good, refused = [], []
    for patch in proposed:
        reason = why_not(workspace, patch)
        if reason:
            refused.append((patch, reason))
        else:
            good.append(patch)
    if not knobs and not good:
        raise UsageError(
            "there is nothing to try",
            why="no knob is in infrarsi.toml, and no codemod of the catalogue applies to the editable files",
            hint="add [[knobs]] to infrarsi.toml, or give a patch: git infrarsi run --patch FILE",
        )
    return Choices(knobs, tuple(good), tuple(refused))


def require_known_flags(knobs: Sequence[Knob], flags: Sequence[Flag], entry: str) -> None:
    """Refuse a knob whose flag the script does not have: argparse would only say so after start-up, trial by trial."""
    import difflib

    known = {f.name for f in flags}
    if not known:
        return
    for knob in knobs:
        for target in {a.target for level in knob.levels for a in level.assignments if a.kind == "flag"}:
            if target not in known:
                near = difflib.get_close_matches(target, known, 1)
                raise UsageError(
                    f"knob {knob.name}: {entry} has no flag {target}",
                    why=f"its flags are {', '.join(sorted(known)[:12])}…",
                    hint=f"did you mean {near[0]}? edit [[knobs]] in infrarsi.toml" if near else "edit infrarsi.toml",
                    code="unknown-flag",
                )


def why_not(workspace: Workspace, patch: Patch) -> str:
    """Return why a patch cannot be tried, before any trial second is spent on it (R-F1); empty when it can."""
    from infrarsi.contract.ring import check_tree
    from infrarsi.contract.statemap import layouts
    from infrarsi.errors import InfrarsiError
    from infrarsi.propose.patches import is_trusted
    from infrarsi.trial.environment import installed_names, locate
    from infrarsi.vcs.commits import build_candidate

    repo, contract = workspace.repo, workspace.contract
    python = locate(workspace.intent.launch.python, repo.root)
    if not is_trusted(patch) and (reason := _no_sandbox(workspace)):
        return reason
    limit = NUMERICS_ORDER.index(contract.invariants.numerics)
    if NUMERICS_ORDER.index(patch.numerics) > limit:
        return f"it is {patch.numerics}; the contract allows {contract.invariants.numerics}"
    try:
        layouts(patch.state_map, contract.invariants.parameters)
        commit = build_candidate(repo, workspace.head, [patch.diff], {}, f"check {patch.id}")
    except InfrarsiError as error:
        return f"{error.what}: {error.why}"
    changes = repo.changes(workspace.head, commit)
    before, after = CommitReader(repo, workspace.head), CommitReader(repo, commit)
    found = check_tree(contract, changes, before, after, installed=installed_names(python))
    return found[0].message if found else ("" if changes else "it changes nothing")


def assignments_of(knobs: Sequence[Knob]) -> tuple[Assignment, ...]:
    """Return everything that the levels of these knobs set."""
    return tuple(a for knob in knobs for level in knob.levels for a in level.assignments)


def require_allowed_variables(assignments: Sequence[Assignment]) -> None:
    """Refuse a variable that decides what Python or the loader runs: left out in silence it would look tried (R-A1)."""
    from infrarsi.trial.environment import is_allowed_override

    for assignment in assignments:
        value = "" if assignment.value is None else str(assignment.value)
        if assignment.kind == "env" and not is_allowed_override(assignment.target, value):
            raise UsageError(
                f"infrarsi.toml sets {assignment.target}={value}, which no candidate may",
                why="it holds a secret, belongs to the harness, or decides which code is loaded",
                hint="take it out of infrarsi.toml, or put it into [workload] environment if the baseline needs it",
                code="environment",
            )


def _no_sandbox(workspace: Workspace) -> str:
    from infrarsi.errors import TrialError
    from infrarsi.trial import sandbox as sandboxes

    try:
        sandboxes.wanted(workspace.intent.launch.sandbox, untrusted=True)
    except TrialError as error:
        return f"{error.what}: {error.why}; {error.hint}"
    return ""
