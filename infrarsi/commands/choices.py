"""What a run has to try: the knobs of infrarsi.toml and the patches that hold, before any trial second is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.workspace import CommitReader, Workspace, editable_sources
from infrarsi.contract.flags import Flag, read_flags
from infrarsi.errors import UsageError
from infrarsi.records import NUMERICS_ORDER, Hardware, Knob, Patch


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
    from infrarsi.contract.scope import check_changes
    from infrarsi.contract.static import check_source
    from infrarsi.errors import InfrarsiError
    from infrarsi.vcs.commits import build_candidate

    repo, contract = workspace.repo, workspace.contract
    limit = NUMERICS_ORDER.index(contract.invariants.numerics)
    if NUMERICS_ORDER.index(patch.numerics) > limit:
        return f"it is {patch.numerics}; the contract allows {contract.invariants.numerics}"
    try:
        commit = build_candidate(repo, workspace.head, [patch.diff], {}, f"check {patch.id}")
    except InfrarsiError as error:
        return f"{error.what}: {error.why}"
    changes = repo.changes(workspace.head, commit)
    before, after = CommitReader(repo, workspace.head), CommitReader(repo, commit)
    found = list(check_changes(contract.scope, contract.locked, changes, before, after))
    for change in changes:
        if change.path.endswith(".py") and change.status != "D":
            found += check_source(change.path, before.read(change.path), after.read(change.path) or b"")
    return found[0].message if found else ("" if changes else "it changes nothing")
