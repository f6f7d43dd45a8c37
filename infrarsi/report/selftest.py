"""Selftest's reader: what caught each cheat, which honest changes pass, and above all what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from infrarsi.report.page import Page, Section, Table, Tone
from infrarsi.report.text import duration, line, plural

_TONES: dict[str, Tone] = {
    "caught": "good", "passed": "good", "missed": "bad", "refused": "bad", "broken": "bad", "skipped": "unsure",
}  # fmt: skip
WRONG = ("missed", "refused", "broken")


class MovedView(Protocol):
    """How far a case moved the numbers, relative to the baseline."""

    @property
    def loss(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def update(self) -> float: ...


class CaseView(Protocol):
    """What is listed of a case."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def trainer(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def numerics(self) -> str: ...
    @property
    def ring(self) -> str: ...
    @property
    def check(self) -> str: ...


class JudgedView(CaseView, Protocol):
    """What is drawn of a case that was judged; `ring` and `check` are then what caught or refused it."""

    @property
    def seed(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def expected(self) -> str: ...
    @property
    def as_expected(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def moved(self) -> MovedView | None: ...


class SelfTestView(Protocol):
    """What is drawn of the whole suite."""

    @property
    def cases(self) -> Sequence[JudgedView]: ...
    @property
    def ranks(self) -> int: ...
    @property
    def sandbox(self) -> str: ...
    @property
    def wall_seconds(self) -> float: ...
    @property
    def examined(self) -> bool: ...


class CaseListView(Protocol):
    """What `--list` draws."""

    @property
    def cases(self) -> Sequence[CaseView]: ...


def selftest_page(result: SelfTestView) -> Page:
    """Return the page of the suite: what went wrong first, with the numbers, then every case."""
    wrong = [case for case in result.cases if case.status in WRONG]
    many = len({case.seed for case in result.cases}) > 1
    sections = (
        Section("Wrong", tuple(text for case in wrong for text in _wrong(case, many)), key="wrong"),
        _table("Cheats", "cheat", result.cases, many),
        _table("Honest changes", "honest", result.cases, many),
        _table("Within the contract's tolerances", "tolerated", result.cases, many),
        Section("Not judged", tuple(f"* {_name(c, many)}: {line(c.message)}" for c in result.cases if _skipped(c))),
        Section("How it was judged", _how(result)),
    )
    return Page(_headline(result.cases), "bad" if wrong else "good", sections)


def list_page(result: CaseListView) -> Page:
    """Return the cases by name, with what they do and what is expected to catch them."""
    rows = tuple(
        (c.trainer, c.name, c.kind, "/".join(filter(None, (c.ring, c.check))) or c.numerics, line(c.what))
        for c in result.cases
    )
    header = ("trainer", "case", "kind", "expected", "what it does")
    return Page(f"{plural(len(rows), 'case')}.", "", (Section("Cases", table=Table(header, rows)),))


def _headline(cases: Sequence[JudgedView]) -> str:
    count = Counter((case.kind, case.status) for case in cases)
    cheats = count["cheat", "caught"] + count["cheat", "missed"]
    honest = count["honest", "passed"] + count["honest", "refused"]
    parts = [f"{count['cheat', 'caught']} of {plural(cheats, 'cheat')} caught"] if cheats else []
    if honest:
        parts.append(f"{count['honest', 'passed']} of {plural(honest, 'honest change')} passed")
    within = count["tolerated", "passed"] + count["tolerated", "refused"]
    if within:
        parts.append(f"{count['tolerated', 'passed']} of {within} within the contract's tolerances passed")
    broken, skipped = (sum(case.status == status for case in cases) for status in ("broken", "skipped"))
    parts += [f"{broken} could not be judged"] if broken else []
    parts += [f"{skipped} not judged yet"] if skipped else []
    return ", ".join(parts) + "."


def _skipped(case: JudgedView) -> bool:
    return case.status == "skipped"


def _name(case: JudgedView, many: bool) -> str:
    return f"{case.trainer}/{case.name}" + (f" (seed {case.seed})" if many else "")


def _wrong(case: JudgedView, many: bool) -> tuple[str, ...]:
    """Say what went wrong with one case: which, what it does, why, and how far it moved the numbers."""
    word = {"missed": "MISSED", "refused": "WRONGLY REFUSED", "broken": "BROKEN"}[case.status]
    by = f" by {case.ring} ({case.check})" if case.status == "refused" else ""
    first = f"* {word}{by}: {_name(case, many)}, {line(case.what)}, judged as {case.numerics}"
    why = f"  {line(case.message)}"
    if case.moved is None:
        return first, why
    moved = case.moved
    numbers = f"  loss {moved.loss:.1e}, gradient norm {moved.grad_norm:.1e}, update {moved.update:.1e} off"
    return first, why, numbers


def _table(title: str, kind: str, cases: Sequence[JudgedView], many: bool) -> Section:
    drawn = [case for case in cases if case.kind == kind and not _skipped(case)]
    rows = tuple((_name(c, many), _status(c), _by(c), duration(c.seconds), line(c.message, 110)) for c in drawn)
    tones = tuple(_TONES.get(c.status, "unsure") if c.as_expected or c.status in WRONG else "unsure" for c in drawn)
    header = ("case", "result", "by", "time", "message")
    return Section(title, table=Table(header, rows, numeric=(3,), tones=tones), key=kind)


def _status(case: JudgedView) -> str:
    return case.status.upper() if case.status in WRONG else case.status


def _by(case: JudgedView) -> str:
    """Say what objected; where it is not what the suite expected, that too."""
    by = f"{case.ring}/{case.check}" if case.ring else ""
    return by if case.as_expected or case.status != "caught" else f"{by}, expected {case.expected}"


def _how(result: SelfTestView) -> tuple[str, ...]:
    said = [f"{plural(result.ranks, 'process', 'processes')} per trial, {duration(result.wall_seconds)} in all."]
    elsewhere = sum(case.status == "caught" and not case.as_expected for case in result.cases)
    if elsewhere:
        said.append(f"{plural(elsewhere, 'cheat')} caught by another check than the suite expected.")
    if not result.examined:
        said.append("The finalist's checks (replay, second seed, transplant) were left out; the full suite has them.")
    if result.sandbox:
        said.append(f"Trials ran without a sandbox: {line(result.sandbox)}.")
    return tuple(said)
