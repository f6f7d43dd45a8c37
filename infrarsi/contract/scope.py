"""Ring 1: is the candidate's tree within what the contract lets change? Compares trees, never the text of a patch.

Parsers of patches disagree about names, modes and links; two trees do not. Pure functions on `Change` records and a
reader of blobs: what git says is asked elsewhere.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import pathspec

from infrarsi.contract import names
from infrarsi.contract.symbols import encoding_of, setters_of, symbol_digest, symbols_of
from infrarsi.errors import ContractError
from infrarsi.records import Change, Digest, Scope, Violation

FILE_MODES = ("100644", "100755")
ABSENT = "000000"
_MODE_NAMES = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a folder"}
_DIFF_LIMIT = 4000
# A line can hold a megabyte: what nobody can read is not a change that anybody can allow.
_MAX_GROWTH_BYTES = 2**18


class TreeReader(Protocol):
    """Reads one tree."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes at `path`, or None where the tree has no such file."""

    def paths(self) -> Collection[str]:
        """Return every path of the tree."""


def is_editable(scope: Scope, path: str) -> bool:
    """Whether a candidate may change `path`: matched by `editable`, not by a locked glob, not a name with powers."""
    return not names.special(path) and _matches(scope.editable, path) and not _locked_glob(scope, path)


def check_changes(
    scope: Scope,
    locked: Sequence[Digest],
    changes: Sequence[Change],
    before: TreeReader,
    after: TreeReader,
    *,
    entry: str = "",
    installed: Collection[str] = (),
) -> tuple[Violation, ...]:
    """Return everything about the changed paths that the contract does not allow; empty when all is in scope (R-A1).

    `entry` says which folders are on the import path, `installed` what can be imported from outside the tree.
    """
    violations: list[Violation] = []
    for change in changes:
        found = list(_check_path(scope, change)) or list(_check_mode(change))
        found = found or list(_check_new(change, before, after, entry, installed))
        found = found or list(_check_content(change, before, after))
        violations += found
        if not found:
            violations += _check_symbols(scope, locked, change, after)
            violations += _check_setters(locked, change, before, after)
    violations += _check_caps(scope, changes, before, after)
    return tuple(violations)


def lock_digests(scope: Scope, paths: Sequence[str], reader: TreeReader) -> tuple[Digest, ...]:
    """Return the digests of all locked paths among `paths`, and of every locked symbol, sorted by name.

    Raises ContractError where a symbol lock names nothing: a lock that holds nothing would look like one that does.
    """
    found: dict[str, Digest] = {}
    for path in paths:
        if _locked_glob(scope, path):
            data = reader.read(path)
            if data is not None:
                found[path] = Digest(path, hashlib.sha256(data).hexdigest(), len(data))
    for pattern in scope.locked:
        if "::" in pattern:
            found.update((d.name, d) for d in _lock_symbol(pattern, paths, reader))
    return tuple(found[name] for name in sorted(found))


def _lock_symbol(pattern: str, paths: Sequence[str], reader: TreeReader) -> list[Digest]:
    glob, _, symbol = pattern.partition("::")
    found: list[Digest] = []
    defined: list[str] = []
    matched = [p for p in paths if _matches((glob,), p)]
    for path in matched:
        source = reader.read(path) or b""
        defined += symbols_of(source)
        digest = _try_symbol(path, symbol, source)
        if digest is not None:
            found.append(digest)
    if not found:
        near = difflib.get_close_matches(symbol, defined, 1, cutoff=0.4)
        raise ContractError(
            f"the locked symbol {pattern} does not exist",
            why=f"{glob} defines no {symbol}" if matched else f"no tracked file matches {glob}",
            hint=f"did you mean {glob}::{near[0]}?" if near else "correct [scope] locked in infrarsi.toml",
            code="locked-symbol",
        )
    return found


def _check_path(scope: Scope, change: Change) -> Iterator[Violation]:
    path = change.path
    special = names.special(path)
    if special:
        yield _violation("special-file", f"{path} may not change: {special}", path)
    elif _locked_glob(scope, path):
        yield _violation("locked", f"{path} is locked by the contract", path, f"locked: {', '.join(scope.locked)}")
    elif not _matches(scope.editable, path):
        allowed = f"editable: {', '.join(scope.editable)}"
        yield _violation("out-of-scope", f"{path} is outside what the contract lets change", path, allowed)


def _check_mode(change: Change) -> Iterator[Violation]:
    old, new = change.old_mode, change.new_mode
    if new == ABSENT:
        return
    if new not in FILE_MODES:
        kind = _MODE_NAMES.get(new, f"of mode {new}")
        yield _violation("mode", f"{change.path} becomes {kind}; only plain files may be added or changed", new)
    elif old not in (ABSENT, new):
        kind = _MODE_NAMES.get(old, f"mode {old}")
        yield _violation("mode", f"the mode of {change.path} changes from {kind} to {new}", new, old)
    elif old == ABSENT and new != FILE_MODES[0]:
        yield _violation("mode", f"{change.path} is added as an executable", new, FILE_MODES[0])


def _check_new(
    change: Change, before: TreeReader, after: TreeReader, entry: str, installed: Collection[str]
) -> Iterator[Violation]:
    """A new path must not look like another, nor be imported in the place of one that lies elsewhere."""
    path = change.path
    if change.old_mode != ABSENT:
        return
    odd, twin = names.odd(path), names.twin(path, before.paths())
    if odd:
        yield _violation("odd-name", f"{path!r} may not be added: {odd}", path)
    elif twin:
        yield _violation("odd-name", f"{path!r} may not be added: it differs from {twin!r} in case or form only", path)
    elif path.endswith(".py"):
        roots = names.import_roots(entry)
        hidden = names.hides(path, before.paths(), after.paths(), roots, installed)
        if hidden:
            yield _violation("shadow", f"{path} would be imported instead of the module {hidden}", hidden)


def _check_content(change: Change, before: TreeReader, after: TreeReader) -> Iterator[Violation]:
    if change.new_mode == ABSENT:
        return
    old, new = before.read(change.path) or b"", after.read(change.path) or b""
    grown = len(new) - len(old)
    if b"\0" in new:
        yield _violation("binary", f"{change.path} is binary; a change must be readable", f"{len(new)} bytes")
    elif grown > _MAX_GROWTH_BYTES:
        message = f"{change.path} grows by {grown} bytes; a change must be readable"
        yield _violation("size", message, str(grown), str(_MAX_GROWTH_BYTES))
    elif change.path.endswith(".py"):
        encodings = _encoding(old), _encoding(new)
        if encodings[0] != encodings[1]:
            message = (
                f"{change.path} changes its encoding from {encodings[0]} to {encodings[1]}: it would read as other code"
            )
            yield _violation("encoding", message, encodings[1], encodings[0])


def _encoding(source: bytes) -> str:
    try:
        return encoding_of(source)
    except SyntaxError as error:
        return f"none ({error.msg})"


def _check_symbols(scope: Scope, locked: Sequence[Digest], change: Change, after: TreeReader) -> Iterator[Violation]:
    path = change.path
    symbols = [d for d in locked if d.name.partition("::")[0] == path and "::" in d.name]
    source = after.read(path) or b""
    for digest in symbols:
        now = _try_symbol(path, digest.name.partition("::")[2], source)
        if now is None:
            yield _violation("locked-symbol", f"{digest.name} is locked, and is gone", "absent", digest.sha256[:16])
        elif now.sha256 != digest.sha256:
            message = (
                f"{digest.name} is locked, and changed: its code, what surrounds it, or what it reads or is bound to"
            )
            yield _violation("locked-symbol", message, now.sha256[:16], digest.sha256[:16])
    known = {d.name for d in symbols}
    for pattern in scope.locked:
        glob, _, symbol = pattern.partition("::")
        if (
            symbol
            and f"{path}::{symbol}" not in known
            and _matches((glob,), path)
            and _try_symbol(path, symbol, source)
        ):
            yield _violation("locked-symbol", f"{path} defines {symbol} anew, which {pattern} locks", path, pattern)
    for digest in locked:
        if digest.name == path:
            yield _violation("locked", f"{path} is locked by the contract", change.new_oid, digest.sha256[:16])


def _check_setters(
    locked: Sequence[Digest], change: Change, before: TreeReader, after: TreeReader
) -> Iterator[Violation]:
    """No other file may put something in a locked symbol's place either: `import train; train.get_batch = mine`."""
    if not change.path.endswith(".py") or change.new_mode == ABSENT:
        return
    for digest in locked:
        path, _, symbol = digest.name.partition("::")
        if symbol and path != change.path:
            old, new = (setters_of(t.read(change.path) or b"", symbol) for t in (before, after))
            added = Counter(new) - Counter(old)
            if added:
                shown = next(iter(added)).strip().splitlines()[0][:80]
                yield _violation("locked-symbol", f"{digest.name} is locked, and {change.path} sets it: {shown}", shown)


def _check_caps(scope: Scope, changes: Sequence[Change], before: TreeReader, after: TreeReader) -> Iterator[Violation]:
    if len(changes) > scope.max_files:
        message = f"{len(changes)} files change; the contract allows {scope.max_files}"
        yield _violation("max-files", message, str(len(changes)), str(scope.max_files))
    plain = [c for c in changes if {c.old_mode, c.new_mode} <= {*FILE_MODES, ABSENT}]
    lines = sum(_changed_lines(before.read(c.path) or b"", after.read(c.path) or b"") for c in plain)
    if lines > scope.max_lines:
        message = f"{lines} lines change; the contract allows {scope.max_lines}"
        yield _violation("max-lines", message, str(lines), str(scope.max_lines))


def _changed_lines(old: bytes, new: bytes) -> int:
    """Return lines removed plus lines added. Very long files are counted without order: difflib is quadratic."""
    a, b = old.splitlines(), new.splitlines()
    if max(len(a), len(b)) > _DIFF_LIMIT:
        left, right = Counter(a), Counter(b)
        return (left - right).total() + (right - left).total()
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return len(a) + len(b) - 2 * same


def _try_symbol(path: str, symbol: str, source: bytes) -> Digest | None:
    try:
        return symbol_digest(path, symbol, source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _locked_glob(scope: Scope, path: str) -> bool:
    return _matches(tuple(p for p in scope.locked if "::" not in p), path)


def _matches(patterns: Sequence[str], path: str) -> bool:
    return bool(patterns) and _spec(tuple(patterns)).match_file(path)


@functools.lru_cache(maxsize=64)
def _spec(patterns: tuple[str, ...]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(patterns)


def _violation(check: str, message: str, observed: str = "", allowed: str = "") -> Violation:
    return Violation("scope", check, message, observed=observed, allowed=allowed)
