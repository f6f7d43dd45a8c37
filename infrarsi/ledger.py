"""Append-only, hash-chained JSONL. Every state of a run is a replay of its ledger; there is no second truth.

One event per line, written with one `write` and an fsync. Each line's hash covers the hash of the line before, so a
changed, removed or reordered line breaks the chain at its place. A torn last line (power loss, SIGKILL within the
write) is cut off before the next append: it was never acknowledged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infrarsi.codec import canonical, encode
from infrarsi.errors import InfrarsiError
from infrarsi.records import LedgerLine

GENESIS = "0" * 64


class LedgerError(InfrarsiError):
    """The chain is broken: a line was changed, removed or reordered."""


def now() -> str:
    """Return the time in UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seal(seq: int, kind: str, at: str, body: dict[str, Any], prev: str) -> LedgerLine:
    """Return the line with its hash; `body` must be plain JSON values."""
    content = canonical({"seq": seq, "kind": kind, "at": at, "body": body, "prev": prev})
    return LedgerLine(seq, kind, at, body, prev, hashlib.sha256(content).hexdigest())


def parse(data: bytes, name: str = "ledger") -> tuple[list[LedgerLine], int]:
    """Return the verified lines of `data` and how many of its bytes they cover.

    Bytes after the last newline are a torn write and not covered. Raises LedgerError where the chain breaks.
    """
    lines: list[LedgerLine] = []
    covered = data.rfind(b"\n") + 1
    prev = GENESIS
    for number, raw in enumerate(data[:covered].splitlines(), start=1):
        try:
            value = json.loads(raw)
            line = LedgerLine(**value)
            good = line == seal(len(lines), line.kind, line.at, line.body, prev)
        except (ValueError, TypeError) as error:
            raise _broken(name, number, "it is not a ledger line") from error
        if not good:
            raise _broken(name, number, "its hash does not follow from the lines before it")
        prev = line.hash
        lines.append(line)
    return lines, covered


def _broken(name: str, number: int, why: str) -> LedgerError:
    return LedgerError(
        f"{name} is not intact at line {number}",
        why=why,
        hint="compare with the sealed copy: git show refs/infrarsi/runs/<run>:ledger.jsonl",
        code="ledger-broken",
    )


class Ledger:
    """One run's ledger file. Single writer: the caller holds the run lock."""

    def __init__(self, path: Path, clock: Callable[[], str] = now) -> None:
        self.path = path
        self._clock = clock
        self._tail: tuple[int, str] | None = None

    def append(self, kind: str, body: object) -> LedgerLine:
        """Write one event and return it once it is on disk. `body` is a record or a dict of JSON values."""
        value = encode(body)
        if not isinstance(value, dict):
            raise TypeError("a ledger body is a record or a dict")
        # The JSON round trip makes tuples lists, so that what was hashed is what a reader will hash.
        value = json.loads(canonical(value))
        seq, prev = self._open_tail()
        line = seal(seq, kind, self._clock(), value, prev)
        data = canonical(line) + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            self._tail = None
            raise
        finally:
            os.close(descriptor)
        self._tail = (seq + 1, line.hash)
        return line

    def replay(self) -> Iterator[LedgerLine]:
        """Yield every line in order; verifies the chain first."""
        data = self.path.read_bytes() if self.path.exists() else b""
        yield from parse(data, self.path.name)[0]

    def of_kind(self, *kinds: str) -> list[LedgerLine]:
        """Return the lines of these kinds, in order."""
        return [line for line in self.replay() if line.kind in kinds]

    def _open_tail(self) -> tuple[int, str]:
        """Return the next sequence number and the hash to chain to; cut a torn last line on first use."""
        if self._tail is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = self.path.read_bytes() if self.path.exists() else b""
            lines, covered = parse(data, self.path.name)
            if covered < len(data):
                os.truncate(self.path, covered)
            self._tail = (len(lines), lines[-1].hash if lines else GENESIS)
        return self._tail


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a full disk raises OSError and leaves a torn line, which the next append cuts."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
