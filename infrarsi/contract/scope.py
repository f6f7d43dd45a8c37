"""Ring 1: is the candidate's tree within what the contract lets change? Compares trees, never the text of a patch.

Parsers of patches disagree about names, modes and links; two trees do not. Pure functions on `Change` records and a
reader of blobs: what git says is asked elsewhere.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Protocol

import pathspec

from infrarsi.contract.symbols import symbol_digest, symbols_of
from infrarsi.errors import ContractError
from infrarsi.records import Change, Digest, Scope, Violation

FILE_MODES = ("100644", "100755")
ABSENT = "000000"
_MODE_NAMES = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a folder"}
# What git, Python or pytest read by name, wherever it stands: a change there changes more than the file.
_SPECIAL_NAMES = {
    ".gitattributes": "git applies it to other files",
    ".gitmodules": "git fetches what it names",
    ".gitignore": "it decides what git sees",
    ".lfsconfig": "git-lfs takes its server from it",
    "conftest.py": "pytest imports it by itself",
    "pyvenv.cfg": "Python takes its paths from it",
    "infrarsi.toml": "it is the contract",
    "infrarsi.lock": "it is the contract",
}
_SPECIAL_STEMS = {"sitecustomize": "Python imports it at start", "usercustomize": "Python imports it at start"}
_SPECIAL_SUFFIXES = {
    ".pth": "Python executes it at start",
    ".pyc": "it is compiled code that nobody can read",
    ".so": "it is compiled code that nobody can read",
    ".pyd": "it is compiled code that nobody can read",
    ".egg-link": "it changes where modules come from",
}
# A file of such a name on the import path would be imported instead of the library.
_LIBRARIES = frozenset(
    {"torch", "numpy", "torchvision", "torchaudio", "transformers", "datasets", "accelerate", "triton"}
)
_DIFF_LIMIT = 4000


class TreeReader(Protocol):
    """Reads blobs of one tree."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes at `path`, or None where the tree has no such file."""


def is_editable(scope: Scope, path: str) -> bool:
    """Whether a candidate may change `path`: matched by `editable`, not by a locked glob, not a name with powers."""
    return not _special(path) and _matches(scope.editable, path) and not _locked_glob(scope, path)


def check_changes(
    scope: Scope, locked: Sequence[Digest], changes: Sequence[Change], before: TreeReader, after: TreeReader
) -> tuple[Violation, ...]:
    """Return everything about the changed paths that the contract does not allow; empty when all is in scope (R-A1)."""
    violations: list[Violation] = []
    for change in changes:
        found = list(_check_path(scope, change)) or list(_check_mode(change)) or list(_check_content(change, after))
        violations += found
        if not found:
            violations += _check_symbols(locked, change, after)
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
    names: list[str] = []
    matched = [p for p in paths if _matches((glob,), p)]
    for path in matched:
        source = reader.read(path) or b""
        names += symbols_of(source)
        digest = _try_symbol(path, symbol, source)
        if digest is not None:
            found.append(digest)
    if not found:
        near = difflib.get_close_matches(symbol, names, 1, cutoff=0.4)
        raise ContractError(
            f"the locked symbol {pattern} does not exist",
            why=f"{glob} defines no {symbol}" if matched else f"no tracked file matches {glob}",
            hint=f"did you mean {glob}::{near[0]}?" if near else "correct [scope] locked in infrarsi.toml",
            code="locked-symbol",
        )
    return found


def _check_path(scope: Scope, change: Change) -> Iterator[Violation]:
    path = change.path
    special = _special(path)
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


def _check_content(change: Change, after: TreeReader) -> Iterator[Violation]:
    if change.new_mode == ABSENT:
        return
    data = after.read(change.path)
    if data is not None and b"\0" in data:
        yield _violation("binary", f"{change.path} is binary; a change must be readable", f"{len(data)} bytes")
    if change.old_mode == ABSENT and change.path.endswith(".py"):
        name = _import_name(change.path, after)
        if name in _LIBRARIES or name in sys.stdlib_module_names:
            yield _violation("shadow", f"{change.path} would be imported instead of the module {name}", name)


def _import_name(path: str, after: TreeReader) -> str:
    """Return the top-level name that `path` is imported under: up through all folders that are packages."""
    item = PurePosixPath(path)
    name = item.stem if item.name != "__init__.py" else item.parent.name
    folder = item.parent if item.name != "__init__.py" else item.parent.parent
    while folder.name and after.read(f"{folder}/__init__.py") is not None:
        name, folder = folder.name, folder.parent
    return name


def _check_symbols(locked: Sequence[Digest], change: Change, after: TreeReader) -> Iterator[Violation]:
    symbols = [d for d in locked if d.name.partition("::")[0] == change.path and "::" in d.name]
    source = (after.read(change.path) or b"") if symbols else b""
    for digest in symbols:
        now = _try_symbol(change.path, digest.name.partition("::")[2], source)
        if now is None:
            yield _violation("locked-symbol", f"{digest.name} is locked, and is gone", "absent", digest.sha256[:16])
        elif now.sha256 != digest.sha256:
            message = f"{digest.name} is locked, and changed or is bound a second time"
            yield _violation("locked-symbol", message, now.sha256[:16], digest.sha256[:16])
    for digest in locked:
        if digest.name == change.path:
            yield _violation("locked", f"{change.path} is locked by the contract", change.new_oid, digest.sha256[:16])


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
    except (SyntaxError, ValueError):
        return None


def _special(path: str) -> str:
    """Return why a name has powers beyond its file, or nothing. Case does not count: some file systems ignore it."""
    parts = [part.lower() for part in PurePosixPath(path).parts]
    if ".git" in parts or ".." in parts or path.startswith("/"):
        return "it is not a path of the work tree"
    reason = _SPECIAL_NAMES.get(parts[-1], "") if parts else "it has no name"
    for part in parts:
        reason = reason or _SPECIAL_STEMS.get(part.partition(".")[0], "")
    return reason or _SPECIAL_SUFFIXES.get(PurePosixPath(path.lower()).suffix, "")


def _locked_glob(scope: Scope, path: str) -> bool:
    return _matches(tuple(p for p in scope.locked if "::" not in p), path)


def _matches(patterns: Sequence[str], path: str) -> bool:
    return bool(patterns) and _spec(tuple(patterns)).match_file(path)


@functools.lru_cache(maxsize=64)
def _spec(patterns: tuple[str, ...]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(patterns)


def _violation(check: str, message: str, observed: str = "", allowed: str = "") -> Violation:
    return Violation("scope", check, message, observed=observed, allowed=allowed)
