"""Ring 1, the source: refuses edits that reach for the clock, the probe, process internals or the harness.

Only what an edit *adds* counts: a trainer that always logged its step time may go on. Names are resolved through the
file's own imports (`from time import perf_counter as pc` is still the clock). A static check cannot see through every
detour, and is not asked to: the parent's clock, the replay and the transplant are what is trusted. It makes a cheat
visible and a mistake cheap.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infrarsi.records import Violation

if TYPE_CHECKING:
    import libcst as cst


@dataclass(frozen=True)
class Finding:
    """One place where a source reaches for something: `key` is what, under its full name."""

    check: str
    key: str
    line: int
    reason: str


def check_source(path: str, before: bytes | None, after: bytes) -> tuple[Violation, ...]:
    """Return what the edit from `before` to `after` adds that a training has no honest need of, as `path:line: reason`.

    Files other than Python source yield nothing here; a Python file that cannot be parsed is refused.
    """
    if before == after or not path.endswith((".py", ".pyi")):
        return ()
    try:
        found = findings(after)
    except (SyntaxError, ValueError, RecursionError) as error:
        return (Violation("scope", "syntax", f"{path}: not readable as Python: {str(error).splitlines()[0]}"),)
    try:
        known = findings(before or b"")
    except (SyntaxError, ValueError, RecursionError):
        known = ()
    old_lines = set((before or b"").splitlines())
    lines = after.splitlines()
    fresh = {f for f in found if f.line > len(lines) or lines[f.line - 1] not in old_lines}
    return tuple(
        Violation("scope", f.check, f"{path}:{f.line}: {f.reason}", observed=f.key)
        for f in sorted(_added(known, found, fresh), key=lambda f: (f.line, f.key))
    )


def _added(known: Sequence[Finding], found: Sequence[Finding], fresh: set[Finding]) -> Iterator[Finding]:
    """Yield what occurs more often than before: the occurrences on lines that are new first, once per key and line."""
    had = Counter((f.check, f.key) for f in known)
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in found:
        groups[(finding.check, finding.key)].append(finding)
    for key, group in groups.items():
        extra = len(group) - had[key]
        if extra > 0:
            yield from dict.fromkeys(sorted(group, key=lambda f: f not in fresh)[:extra])


@functools.lru_cache(maxsize=256)  # the base's sources are read again for every candidate
def findings(source: bytes) -> tuple[Finding, ...]:
    """Return every place in `source` that the rules name. Raises SyntaxError where it does not parse."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

    from infrarsi.contract.staticvisitor import collect

    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(f"line {error.raw_line}: {error.message}") from error
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    names = wrapper.resolve(QualifiedNameProvider)
    found: list[Finding] = []

    def report(node: cst.CSTNode, check: str, key: str, reason: str) -> None:
        found.append(Finding(check, key, positions[node].start.line, reason))

    collect(wrapper.module, names, report)
    return tuple(found)
