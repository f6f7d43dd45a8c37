"""What the winner is made of, and every source path it touches: by its tree, not by what its patches say."""

from __future__ import annotations

from collections.abc import Sequence

from infrarsi.records import Assignment, Candidate, Change, Contract, Knob, Patch
from infrarsi.report.difftext import files_of
from infrarsi.report.model import Component, PathAudit
from infrarsi.report.text import assignment

LAUNCH_FILE = "infrarsi.toml"


def components_of(candidate: Candidate, knobs: Sequence[Knob], patches: Sequence[Patch]) -> tuple[Component, ...]:
    """Return the parts of a candidate, settings first."""
    by_name, by_id = {k.name: k for k in knobs}, {p.id: p for p in patches}
    found: list[Component] = []
    for setting in candidate.settings:
        knob = by_name.get(setting.knob)
        parts = tuple(assignment(a) for a in _assignments(knob, setting.level))
        source = knob.catalogue_id if knob else ""
        numerics, why = (knob.numerics, knob.why) if knob else ("", "")
        found.append(Component("setting", setting.knob, setting.level, setting.knob, source, numerics, why, parts))
    for name in candidate.patches:
        patch = by_id.get(name)
        if patch is None:
            found.append(Component("patch", name, "", name, "", "", ""))
        else:
            found.append(Component("patch", name, "", patch.title, patch.source, patch.numerics, patch.why))
    return tuple(found)


def _assignments(knob: Knob | None, label: str) -> tuple[Assignment, ...]:
    return next((level.assignments for level in knob.levels if level.label == label), ()) if knob else ()


def audit_paths(
    changes: Sequence[Change],
    diff: str,
    contract: Contract | None,
    candidate: Candidate,
    knobs: Sequence[Knob],
    patches: Sequence[Patch],
) -> tuple[PathAudit, ...]:
    """Return every path that differs, from the trees and not from what the patches say about themselves."""
    counts = {item.path: item for item in files_of(diff)}
    origins: dict[str, list[str]] = {}
    for patch in patches:
        if patch.id in candidate.patches:
            for part in files_of(patch.diff):
                origins.setdefault(part.path, []).append(f"+{patch.id}")
            if patch.state_map:
                origins.setdefault(LAUNCH_FILE, []).append(f"+{patch.id}")
    by_name = {k.name: k for k in knobs}
    for setting in candidate.settings:
        for item in _assignments(by_name.get(setting.knob), setting.level):
            path = item.target.partition(":")[0] if item.kind == "config" else LAUNCH_FILE
            origins.setdefault(path, []).append(f"{setting.knob}={setting.level}")
    return tuple(
        PathAudit(
            path=change.path,
            status=change.status,
            added=counts[change.path].added if change.path in counts else None,
            removed=counts[change.path].removed if change.path in counts else None,
            old_mode=change.old_mode,
            new_mode=change.new_mode,
            old_oid=change.old_oid,
            new_oid=change.new_oid,
            origin=tuple(dict.fromkeys(origins.get(change.path, ()))),
            allowed=_allowed(contract, change),
        )
        for change in changes
    )


def _allowed(contract: Contract | None, change: Change) -> bool | None:
    """Return whether the contract lets a candidate touch this path; None without a contract."""
    if contract is None:
        return None
    from infrarsi.contract.scope import is_editable

    same_kind = change.new_mode in ("000000", "100644", change.old_mode) or change.old_mode == "000000"
    plain = change.new_mode not in ("120000", "160000")
    return plain and same_kind and is_editable(contract.scope, change.path)
