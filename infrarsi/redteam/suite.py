"""All cases in order, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence

from infrarsi.errors import UsageError
from infrarsi.redteam import experts, honest, layouts, learning, source, tree, updates, window, work
from infrarsi.redteam.case import Case, Trainer

MODULES = (tree, source, work, updates, learning, experts, layouts, window, honest)
ALL: tuple[Case, ...] = tuple(case for module in MODULES for case in module.CASES)


def chosen(
    *, trainer: Trainer | None = None, names: Sequence[str] = (), quick: bool = False, slow: bool = False
) -> tuple[Case, ...]:
    """Return the cases to judge, the cheap ones first. UsageError for a name that no case has.

    A case that is named runs however slow it is. The quick suite holds every case of ring 1, those that
    edit the shared training script once, and a few trials on the dense trainer.
    """
    unknown = sorted(set(names) - {case.name for case in ALL})
    if unknown:
        raise UsageError(
            f"there is no case called {unknown[0]}",
            why=_near(unknown[0]),
            hint="git infrarsi selftest --list",
            code="unknown-case",
        )
    found = [c for c in ALL if trainer in (None, c.trainer) and (not names or c.name in names)]
    if not names:
        found = [c for c in found if _in_quick(c)] if quick else [c for c in found if slow or not c.slow]
    return tuple(found)


def _in_quick(case: Case) -> bool:
    """Ring 1 reads a source in a second, and both trainers share the training script: its edits are read once."""
    if case.ring == "scope":
        only_script = bool(case.edits) and all(edit.path == "train.py" for edit in case.edits)
        return case.trainer == "dense" or not only_script
    return case.quick and case.trainer == "dense"


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, sorted({case.name for case in ALL}), 3, 0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {len(ALL)} cases"
