"""Counts lines per file in git's unified diffs. Hunk lengths are followed, so that content cannot pass for a header."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_OCTAL = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True)
class FileDiff:
    """One file's part of a diff: path after the change (before it, where the file was removed), and line counts."""

    path: str
    added: int
    removed: int


def files_of(diff: str) -> tuple[FileDiff, ...]:
    """Return the files of a unified diff in order."""
    found: list[FileDiff] = []
    old, new, added, removed = "", "", 0, 0
    left_old = left_new = 0

    def close() -> None:
        path = new or old
        if path:
            found.append(FileDiff(path, added, removed))

    for text in diff.split("\n"):
        if left_old > 0 or left_new > 0:
            kind = text[:1]
            left_old -= kind in (" ", "-", "")
            left_new -= kind in (" ", "+", "")
            added += kind == "+"
            removed += kind == "-"
        elif hunk := _HUNK.match(text):
            left_old, left_new = (int(n) if n is not None else 1 for n in hunk.groups())
        elif text.startswith("--- "):
            close()
            old, new, added, removed = _path(text[4:], "a/"), "", 0, 0
        elif text.startswith("+++ "):
            new = _path(text[4:], "b/")
    close()
    return tuple(found)


def _path(header: str, prefix: str) -> str:
    """Return the path of a `---` or `+++` header, "" for /dev/null; undoes git's quoting."""
    header = header.split("\t")[0].rstrip("\r")
    if header.startswith('"') and header.endswith('"') and len(header) > 1:
        header = _OCTAL.sub(_unescape, header[1:-1].encode()).decode(errors="replace")
    return "" if header == "/dev/null" else header.removeprefix(prefix)


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPES.get(code, code)
