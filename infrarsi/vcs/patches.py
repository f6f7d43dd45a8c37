"""Patches that people, models and agents wrote by hand: repaired by a recorded ladder of rules, or refused whole.

Measured on what language models write: wrong hunk counts, wrong or missing line numbers, no trailing context, a missing
final newline, LF where the file has CRLF, no `a/` and `b/` prefixes. `git apply` runs from the top level (elsewhere it
silently skips paths), on a private index, and never with `--unsafe-paths`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infrarsi.errors import GitError
from infrarsi.vcs.door import Repository

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Rung:
    """One rule of the ladder: its name, the patch as it rewrites it, and extra arguments of `git apply`."""

    rule: str
    diff: bytes
    args: tuple[str, ...] = ()


def encode_diff(diff: str) -> bytes:
    """Return the bytes of a patch; refuses an empty one and what is no patch at all."""
    data = diff.encode(errors="surrogateescape")
    if not re.search(rb"(?m)^(--- |diff --git |GIT binary patch)", data):
        raise GitError(
            "this is not a patch" if data.strip() else "the patch is empty",
            why="it has no `--- a/path` line",
            hint="write it with: git diff",
            code="patch-empty",
        )
    return data


def ladder(diff: bytes, read: Read) -> Iterator[Rung]:
    """Yield the rules to try, mildest first. `read` gives the present bytes of a path, None where there is none."""
    # Without a/ and b/, the default -p1 would take pkg/train.py for the top-level train.py.
    prefix = () if re.search(rb"(?m)^(---|\+\+\+) [ab]/", diff) or b"diff --git a/" in diff else ("-p0",)
    yield Rung("no prefix" if prefix else "plain", diff, prefix)
    if not diff.endswith(b"\n"):
        diff += b"\n"
        yield Rung("final newline", diff, prefix)
    yield Rung("recount", diff, ("--recount", *prefix))
    strip = 0 if prefix else 1
    ended = match_line_ends(diff, read, strip)
    if ended != diff:
        diff = ended
        yield Rung("line ends", diff, ("--recount", *prefix))
    located = locate(diff, read, strip)
    if located is not None:
        yield Rung("located", located, ("--unidiff-zero", *prefix))
    yield Rung("less context", diff, ("--recount", "-C1", *prefix))
    yield Rung("whitespace", diff, ("--recount", "--ignore-whitespace", "--inaccurate-eof", *prefix))


def apply_to_index(repo: Repository, index: dict[str, str], diff: bytes, read: Read) -> str:
    """Apply `diff` to the private index and return the rule that worked; GitError `patch-unappliable` else."""
    complaint = ""
    for rung in ladder(diff, read):
        done = repo.git("apply", "--cached", *rung.args, stdin=rung.diff, env=index, ok=(0, 1, 128))
        if done.code == 0:
            return rung.rule
        complaint = complaint or done.complaint
    raise GitError(
        "the patch does not apply",
        why=complaint.splitlines()[0] if complaint else "",
        hint="it was written against other code; git apply --check -v shows where",
        code="patch-unappliable",
    )


def match_line_ends(diff: bytes, read: Read, strip: int = 1) -> bytes:
    """Give each file's hunks the line ends that the file has (CRLF or LF), where the whole file agrees."""
    sections = []
    for section in _sections(diff):
        before = read(path) if (path := _old_path(section, strip)) else None
        if before:
            lines = before.count(b"\n")
            crlf = before.count(b"\r\n")
            if lines and crlf == lines:
                section = re.sub(rb"(?m)^([ +-](?!-- |\+\+ ).*?)\r?$", rb"\1\r", section)
            elif crlf == 0:
                section = section.replace(b"\r\n", b"\n")
        sections.append(section)
    return b"".join(sections)


def locate(diff: bytes, read: Read, strip: int = 1) -> bytes | None:
    """Return the patch with every hunk's line numbers found by its old lines; None unless each stands there once.

    Repairs `@@` without numbers, wrong numbers and hunks without context; an ambiguous place is not guessed.
    """
    sections = []
    for section in _sections(diff):
        path = _old_path(section, strip)
        before = read(path) if path else None
        if before is None:
            sections.append(section)
            continue
        head, *hunks = re.split(rb"(?m)^(?=@@)", section)
        placed = [_place(hunk, before.splitlines(keepends=True)) for hunk in hunks]
        if not placed or None in placed:
            return None
        shift, out = 0, head
        for start, old, new, body in sorted(p for p in placed if p is not None):
            out += b"@@ -%d,%d +%d,%d @@\n" % (start + 1, old, start + 1 + shift, new) + body
            shift += new - old
        sections.append(out)
    return b"".join(sections)


def _place(hunk: bytes, lines: list[bytes]) -> tuple[int, int, int, bytes] | None:
    """Return (line index, old length, new length, body) of a hunk; None where its old lines are absent or twice."""
    body = [line if line.strip(b"\r\n") else b" " + line for line in hunk.splitlines(keepends=True)[1:]]
    while body and body[-1].strip() == b"":
        body.pop()
    if any(line[:1] not in (b" ", b"+", b"-", b"\\") for line in body):
        return None
    old = [line[1:] for line in body if line[:1] in (b" ", b"-")]
    new = [line for line in body if line[:1] in (b" ", b"+")]
    if not old or len(old) > len(lines):
        return None
    bare = [line.rstrip(b"\n") for line in lines]
    wanted = [line.rstrip(b"\n") for line in old]
    places = [at for at in range(len(bare) - len(wanted) + 1) if bare[at : at + len(wanted)] == wanted]
    if len(places) != 1:
        return None
    return places[0], len(old), len(new), b"".join(body)


def _sections(diff: bytes) -> list[bytes]:
    """Split a patch into files, whichever header style it uses."""
    mark = rb"(?m)^(?=diff --git )" if b"diff --git " in diff else rb"(?m)^(?=--- [^\n]*\n\+\+\+ )"
    return [part for part in re.split(mark, diff) if part]


def _old_path(section: bytes, strip: int) -> str | None:
    match = re.search(rb"(?m)^--- ([^\t\r\n]+)", section)
    if match is None or match[1] == b"/dev/null":
        return None
    return match[1].decode(errors="surrogateescape").split("/", strip)[-1]
