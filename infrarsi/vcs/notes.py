"""Experience as git notes: one compact JSON object per line, attached to a blob that survives rebase, squash and clone.

`git notes append` loses records under concurrency (of 12 writers 4 survived), so the notes tree is written here, by
compare-and-swap on the ref. Lines are kept sorted and unique, so that merging is a union: commutative, and equal to
what `git notes merge -s cat_sort_uniq` does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping

from infrarsi.errors import GitError
from infrarsi.vcs.commits import tree_with, write_commit
from infrarsi.vcs.door import ABSENT, Repository

REF = "refs/notes/infrarsi"
ANCHORS = "refs/infrarsi/anchors/"
RETRY_SECONDS = 60.0
Lines = dict[str, tuple[bytes, ...]]


def append_line(repo: Repository, blob: str, line: str) -> None:
    """Attach one line to `blob` and keep the blob alive by an anchor ref. A line that is there already is no change."""
    append_lines(repo, {blob: [line]})


def append_lines(repo: Repository, lines: Mapping[str, Iterable[str]]) -> None:
    """Attach many lines (blob -> lines) in one step."""
    added: Lines = {}
    for blob, texts in lines.items():
        data = tuple(text.encode() for text in texts)
        if any(b"\n" in item or not item.strip() for item in data):
            raise GitError("a note is one line of JSON", why="it is empty or holds a newline", code="bad-note")
        if data:
            added[blob] = data
            repo.update_ref(ANCHORS + blob, blob)
    _swap(repo, added, None)


def read_lines(repo: Repository, ref: str = REF) -> Lines:
    """Return blob -> lines, sorted; blank lines are dropped, malformed ones kept for the reader to judge."""
    commit = repo.read_ref(ref)
    if commit is None:
        return {}
    entries = {path: entry.oid for path, entry in repo.entries(commit).items() if entry.kind == "blob"}
    blobs = repo.read_blobs(sorted(set(entries.values())))
    found: dict[str, set[bytes]] = {}
    for path, oid in entries.items():
        # git spreads large notes trees over folders: ab/cdef… is the note of abcdef…
        found.setdefault(path.replace("/", ""), set()).update(_split(blobs[oid]))
    return {blob: tuple(sorted(lines)) for blob, lines in found.items()}


def merge(repo: Repository, other: str) -> int:
    """Take in the lines of another notes ref (`refs/notes/origin/infrarsi`); return how many were new here."""
    theirs = repo.read_ref(other)
    if theirs is None:
        return 0
    return _swap(repo, read_lines(repo, other), theirs)


def _swap(repo: Repository, added: Lines, parent: str | None) -> int:
    """Write the union until no one else was faster; `parent` is recorded as merged. Returns the number of new lines."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        before = repo.read_ref(REF)
        present = read_lines(repo, before) if before else {}
        union = {b: tuple(sorted({*present.get(b, ()), *added.get(b, ())})) for b in present.keys() | added.keys()}
        new = sum(map(len, union.values())) - sum(map(len, present.values()))
        merged = parent is None or (before is not None and repo.is_ancestor(parent, before))
        if union == present and merged:
            return 0
        try:
            commit = parent if parent and before is None else _write(repo, before, present, union, parent)
            repo.update_ref(REF, commit, before or ABSENT, why="infrarsi: notes")
        except GitError as error:
            if error.code != "ref-moved" or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.005, 0.1))
        else:
            return new


def _write(repo: Repository, before: str | None, present: Lines, union: Lines, parent: str | None) -> str:
    old_paths = {path.replace("/", ""): path for path in repo.entries(before)} if before else {}
    changed = {blob: lines for blob, lines in union.items() if lines != present.get(blob)}
    edits = {old_paths.get(blob, blob): b"".join(line + b"\n" for line in lines) for blob, lines in changed.items()}
    tree = tree_with(repo, before, edits)
    parents = [commit for commit in (before, parent) if commit]
    return write_commit(repo, tree, parents, "Experience")


def _split(data: bytes) -> Iterable[bytes]:
    return (line for line in data.split(b"\n") if line.strip())
