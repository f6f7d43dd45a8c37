"""What git prints, as records. Pure functions: no process, no file."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Literal, cast

from infrarsi.errors import GitError
from infrarsi.records import Change

_TRAILER = re.compile(r"(?P<key>[A-Za-z0-9][A-Za-z0-9-]*): *(?P<value>.*)")
_CHERRY = re.compile(r"\(cherry picked from commit [0-9a-f]{40,64}\)")


@dataclass(frozen=True)
class DirtyPath:
    """One path that differs from HEAD. `status` is git's two letters, `??` for untracked."""

    path: str
    status: str


@dataclass(frozen=True)
class TreeEntry:
    """One entry of a tree: octal mode, kind (blob or commit, for a submodule) and object id."""

    mode: str
    kind: str
    oid: str


def tree_entries(data: bytes) -> dict[str, TreeEntry]:
    """Read `ls-tree -r -z`."""
    entries = {}
    for record in data.split(b"\0"):
        if record:
            meta, path = record.split(b"\t", 1)
            mode, kind, oid = meta.decode().split()
            entries[os.fsdecode(path)] = TreeEntry(mode, kind, oid)
    return entries


def raw_changes(data: bytes) -> tuple[Change, ...]:
    """Read `diff-tree -r --raw -z --no-renames --no-abbrev`. A status other than A, M, D or T is refused."""
    fields = data.split(b"\0")
    changes = []
    for meta, path in zip(fields[0::2], fields[1::2], strict=False):
        if not meta:
            break
        old_mode, new_mode, old_oid, new_oid, status = meta.decode().lstrip(":").split()
        if status not in ("A", "M", "D", "T"):
            raise GitError(f"git reports an unknown change {status}", why=os.fsdecode(path), code="git-failed")
        kind = cast(Literal["A", "M", "D", "T"], status)
        changes.append(Change(os.fsdecode(path), old_mode, new_mode, old_oid, new_oid, kind))
    return tuple(changes)


def status_paths(data: bytes) -> tuple[DirtyPath, ...]:
    """Read `status --porcelain=v1 -z --no-renames`."""
    return tuple(DirtyPath(os.fsdecode(item[3:]), item[:2].decode()) for item in data.split(b"\0") if item)


def trailers(message: str) -> tuple[tuple[str, str], ...]:
    """Return the trailers of the last paragraph, in order; none unless every line of it is one.

    Stricter than `git interpret-trailers`: a `---` line does not end the message, so it hides nothing, and a
    paragraph that mixes prose and trailers (quoted text) holds no trailers. The first paragraph is the subject.
    """
    paragraphs = re.split(r"\n(?:[ \t]*\n)+", message.strip("\n"))
    if len(paragraphs) < 2:
        return ()
    found: list[tuple[str, str]] = []
    for line in paragraphs[-1].splitlines():
        if match := _TRAILER.fullmatch(line.rstrip()):
            found.append((match["key"], match["value"]))
        elif found and line[:1] in " \t":
            key, value = found[-1]
            found[-1] = (key, f"{value} {line.strip()}")
        elif not _CHERRY.fullmatch(line.rstrip()):
            return ()
    return tuple(found)


def patch_id(diff: bytes) -> str:
    """Return a stable id of a change, whatever its line numbers and base: sha256 in hex.

    Like `git patch-id --stable`, with two differences. Whitespace counts: git's own id ignores it, and in Python an
    indentation can move a statement out of a loop. A binary file counts by the ids of its blobs.
    """
    digest = hashlib.sha256()
    for section in re.split(rb"(?m)^(?=diff --git )", diff):
        binary = re.search(rb"(?m)^(GIT binary patch|Binary files )", section)
        in_hunk = False
        for line in section[: binary.start() if binary else None].splitlines(keepends=True):
            in_hunk = in_hunk or line.startswith(b"@@ ")
            if line.startswith(b"@@ "):
                digest.update(b"@@\n")
            elif in_hunk or binary or not line.startswith(b"index "):
                digest.update(line)
            elif mode := re.search(rb" ([0-7]{6})\s*$", line):
                digest.update(b"mode " + mode[1] + b"\n")
    return digest.hexdigest()
