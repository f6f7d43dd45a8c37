"""A case as a patch: its edits carried out on the sources, and the unified diff that git applies."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from infrarsi.redteam.case import OUTSIDE, PLAIN, SYMLINK, Case, Edit, Entry


@dataclass(frozen=True)
class Changed:
    """One path as the case leaves it. `before` None: it is new."""

    path: str
    before: str | None
    after: str
    old_mode: str
    new_mode: str


def changed(case: Case, sources: Mapping[str, str], outside: str = OUTSIDE) -> tuple[Changed, ...]:
    """Return every path that the case changes. ValueError where a replaced text does not stand there exactly once."""
    modes = dict(case.modes)
    found: dict[str, Changed] = {}
    for edit in case.edits:
        before = _source(sources, edit.path, case)
        mode = modes.get(edit.path, PLAIN)
        so_far = found[edit.path].after if edit.path in found else before
        after = _edited(case, edit, so_far, outside)
        found[edit.path] = Changed(edit.path, before, after, PLAIN, mode)
    for path, mode in case.modes:
        if path not in found:
            before = _source(sources, path, case)
            found[path] = Changed(path, before, before, PLAIN, mode)
    for entry in case.entries:
        found[entry.path] = _entry(entry, outside)
    return tuple(found[path] for path in sorted(found))


def diff_of(case: Case, sources: Mapping[str, str], outside: str = OUTSIDE) -> str:
    """Return the case as one diff, as git writes it, modes and links included."""
    return "".join(_diff(change) for change in changed(case, sources, outside))


def _source(sources: Mapping[str, str], path: str, case: Case) -> str:
    if path not in sources:
        raise ValueError(f"{case.trainer}/{case.name}: there is no {path}")
    return sources[path]


def _edited(case: Case, edit: Edit, text: str, outside: str) -> str:
    for old, new in edit.replacements:
        count = text.count(old)
        if count != 1:
            raise ValueError(f"{case.trainer}/{case.name}: {old.strip()!r} stands {count} times in {edit.path}")
        text = text.replace(old, new.replace(OUTSIDE, outside))
    return text + edit.append.replace(OUTSIDE, outside)


def _entry(entry: Entry, outside: str) -> Changed:
    return Changed(entry.path, None, entry.text.replace(OUTSIDE, outside), "", entry.mode)


def _diff(change: Changed) -> str:
    head = f"diff --git a/{change.path} b/{change.path}\n"
    if change.before is None:
        head += f"new file mode {change.new_mode}\n"
    elif change.old_mode != change.new_mode:
        head += f"old mode {change.old_mode}\nnew mode {change.new_mode}\n"
    if change.before == change.after:
        return head
    old = (change.before or "").splitlines(keepends=True)
    new = change.after.splitlines(keepends=True)
    from_name = "/dev/null" if change.before is None else f"a/{change.path}"
    lines = list(difflib.unified_diff(old, new, from_name, f"b/{change.path}"))
    if change.new_mode == SYMLINK or not change.after.endswith("\n"):
        lines = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return head + "".join(lines)
