"""Ring 1 as a whole: everything that is wrong with a candidate's tree before anything of it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from infrarsi.contract.scope import TreeReader, check_changes
from infrarsi.contract.static import check_source
from infrarsi.records import Change, Contract, Violation


def check_tree(
    contract: Contract,
    changes: Sequence[Change],
    before: TreeReader,
    after: TreeReader,
    *,
    installed: Collection[str] = (),
) -> tuple[Violation, ...]:
    """Return what the scope check refuses; where it refuses nothing, what the static check refuses."""
    entry = contract.workload.entry
    found = check_changes(contract.scope, contract.locked, changes, before, after, entry=entry, installed=installed)
    if found:  # also because sources that it refuses (binary, huge) are none to be read
        return found
    edited = (c.path for c in changes if c.status in ("A", "M"))
    return tuple(v for path in edited for v in check_source(path, before.read(path), after.read(path) or b""))
