"""Code patches from the built-in codemods: unified diffs that git applies, one patch per codemod."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from infrarsi.propose.catalogue import claims_of, device_kind
from infrarsi.records import NUMERICS_ORDER, Hardware, Numerics, Patch, Scope

if TYPE_CHECKING:
    from infrarsi.propose.codemods.base import Codemod

SOURCE = "catalogue"
# Whose code a person has read or chosen: ours, and what the user brought as a file.
_TRUSTED = (SOURCE, "patch-file")


def is_trusted(patch: Patch) -> bool:
    """Return whether a patch may run outside a sandbox; what a model or an agent wrote may not."""
    return patch.source.partition(":")[0] in _TRUSTED


def propose_patches(
    files: Mapping[str, str],
    *,
    scope: Scope | None = None,
    allowed: Numerics = "reorder",
    hardware: Hardware | None = None,
) -> tuple[Patch, ...]:
    """Return one patch per codemod that applies somewhere in `files` (path -> text of the editable sources).

    Left out: codemods of a numerics class beyond `allowed`, those that cannot pay on `hardware`, and edits of
    locked paths and symbols. Each diff is against `files` as they are; to combine several, use `compose`.
    """
    from infrarsi.propose.codemods import CODEMODS

    kind = device_kind(hardware) if hardware is not None else None
    patches = []
    for codemod in CODEMODS:
        if NUMERICS_ORDER.index(codemod.numerics) > NUMERICS_ORDER.index(allowed):
            continue
        if (kind is not None and kind not in codemod.hardware) or not _evident(codemod, files):
            continue
        edits = _edits(codemod, files, scope)
        if edits:
            patches.append(_patch(codemod, files, edits))
    return tuple(patches)


def compose(files: Mapping[str, str], patches: Sequence[str], *, scope: Scope | None = None) -> dict[str, str]:
    """Return the changed files when several codemods (by patch id) are applied one after the other.

    Their diffs often touch neighbouring lines, which would conflict as text although the rewrites go together.
    Codemods run in the registry's order, whatever the order of `patches`; ids of other sources are ignored.
    """
    from infrarsi.propose.codemods import CODEMODS

    current = dict(files)
    for codemod in CODEMODS:
        if codemod.id in patches:
            current |= _edits(codemod, current, scope)
    return {path: text for path, text in current.items() if text != files[path]}


def unified_diff(path: str, before: str, after: str) -> str:
    """Return a diff of one file that `git apply` accepts, with three lines of context."""
    lines = [f"diff --git a/{path} b/{path}\n"]
    for line in difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}", n=3):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Split at newlines only: `str.splitlines` would also split at form feeds, which git does not."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [text.rsplit("\n", 1)[-1]] * bool(text.rsplit("\n", 1)[-1])


def _patch(codemod: Codemod, files: Mapping[str, str], edits: Mapping[str, str]) -> Patch:
    return Patch(
        id=codemod.id,
        title=codemod.title,
        diff="".join(unified_diff(path, files[path], edits[path]) for path in sorted(edits)),
        source=SOURCE,
        claims=claims_of(codemod.catalogue_id),
        numerics=codemod.numerics,
        needs=codemod.needs,
        conflicts=codemod.conflicts,
        catalogue_id=codemod.catalogue_id,
        why=codemod.why,
    )


def _evident(codemod: Codemod, files: Mapping[str, str]) -> bool:
    return not codemod.evidence or any(word in text for word in codemod.evidence for text in files.values())


def _edits(codemod: Codemod, files: Mapping[str, str], scope: Scope | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(files):
        after = codemod.transform(files[path], path)
        if after is not None and not (scope is not None and _touches_locked(scope, path, files[path], after)):
            found[path] = after
    return found


def _touches_locked(scope: Scope, path: str, before: str, after: str) -> bool:
    from infrarsi.contract.scope import is_editable
    from infrarsi.contract.symbols import symbol_digest

    if not is_editable(scope, path):
        return True
    symbols = [symbol for pattern, _, symbol in (rule.partition("::") for rule in scope.locked) if pattern == path]
    return any(
        symbol_digest(path, symbol, before.encode()) != symbol_digest(path, symbol, after.encode())
        for symbol in symbols
        if symbol
    )
