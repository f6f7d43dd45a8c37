"""Ring 1, the source: refuses edits that reach for the clock, the probe, process internals or the harness.

Only what an edit *adds* counts: a trainer that always logged its step time may go on. Names are resolved through the
file's own imports (`from time import perf_counter as pc` is still the clock). A static check cannot see through every
detour, and is not asked to: the parent's clock, the replay and the transplant are what is trusted. It makes a cheat
visible and a mistake cheap.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infrarsi.contract import staticrules as rules
from infrarsi.contract.symbols import parse_source
from infrarsi.records import Violation

if TYPE_CHECKING:
    import libcst as cst

# libcst's own parser ends the process where code is nested thousands deep; people stay far below this.
_MAX_DEPTH = 250


@dataclass(frozen=True)
class Finding:
    """One place where a source reaches for something: `key` is what, under its full name.

    `statement` is the text that it stands in, `shape` the function and kind of that statement (`train: t0 =`); empty
    where the use decides something and so may not change at all.
    """

    check: str
    key: str
    line: int
    reason: str
    statement: str = ""
    shape: str = ""


def check_source(path: str, before: bytes | None, after: bytes) -> tuple[Violation, ...]:
    """Return what the edit from `before` to `after` adds that a training has no honest need of, as `path:line: reason`.

    A Python file that cannot be parsed is refused; of other files only the words that they add are looked at.
    """
    if before == after:
        return ()
    if not path.endswith((".py", ".pyi")):
        return _check_text(path, before or b"", after)
    try:
        found = findings(after)
    except (SyntaxError, ValueError, RecursionError) as error:
        return (Violation("scope", "syntax", f"{path}: not readable as Python: {_first_line(error)}"),)
    try:
        known = findings(before or b"")
    except (SyntaxError, ValueError, RecursionError):
        known = ()
    fresh = dict.fromkeys((f.check, f.key, f.line, f.reason) for f in _added(known, found))
    return tuple(
        Violation("scope", check, f"{path}:{line}: {reason}", observed=key)
        for check, key, line, reason in sorted(fresh, key=lambda f: (f[2], f[1]))
    )


def _added(known: Sequence[Finding], found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the uses that were not there before.

    A use may move with its statement, and its statement may change around it (`print(loss, dt)` to `print(sum, dt)`)
    as long as it stays of one kind in one function. One that goes does not make room for another elsewhere.
    """
    statements = Counter((f.check, f.key, f.statement) for f in known)
    left: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in found:
        same = (finding.check, finding.key, finding.statement)
        if statements[same] > 0:
            statements[same] -= 1
        else:
            left[same[:2]].append(finding)
    shapes: Counter[tuple[str, str, str]] = Counter()
    for finding in known:  # what of the base found no equal statement
        same = (finding.check, finding.key, finding.statement)
        if statements[same] > 0:
            statements[same] -= 1
            shapes[(finding.check, finding.key, finding.shape)] += 1
    for group in left.values():
        for finding in group:
            shape = (finding.check, finding.key, finding.shape)
            if finding.shape and shapes[shape] > 0:
                shapes[shape] -= 1
            else:
                yield finding


def _check_text(path: str, before: bytes, after: bytes) -> tuple[Violation, ...]:
    """Look at the lines that a launch script or a configuration file gains; every word of theirs may be acted on."""
    gained = Counter(after.splitlines()) - Counter(before.splitlines())
    found = []
    for number, line in enumerate(after.splitlines(), start=1):
        if gained[line] > 0:
            gained[line] -= 1
            text = line.decode(errors="replace")
            for pattern, check, reason in rules.OTHER_TEXTS:
                if match := pattern.search(text):
                    message = f"{path}:{number}: {match[0]!r} {reason}"
                    found.append(Violation("scope", check, message, observed=match[0]))
    return tuple(found)


@functools.lru_cache(maxsize=256)  # the base's sources are read again for every candidate
def findings(source: bytes) -> tuple[Finding, ...]:
    """Return every place in `source` that the rules name. Raises SyntaxError where it does not parse."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

    from infrarsi.contract.clockflow import decisions
    from infrarsi.contract.staticvisitor import collect

    text, tree = parse_source(source)
    _require_shallow(tree)
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(f"line {error.raw_line}: {error.message}") from error
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    names = wrapper.resolve(QualifiedNameProvider)
    found: list[Finding] = []

    def report(node: cst.CSTNode, check: str, key: str, reason: str, statement: str = "", shape: str = "") -> None:
        found.append(Finding(check, key, positions[node].start.line, reason, statement, shape))

    full_names = collect(wrapper.module, names, report)
    if any(f.check == "clock" for f in found) or "elapsed_time" in text:
        decisions(wrapper.module, full_names, report)
    return tuple(found)


def _require_shallow(tree: ast.Module) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise SyntaxError("it is nested too deeply to be read")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
