"""Readers of the small results: run's last word, apply, status, gc, launch, demo."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from infrarsi.records import Assignment, Change, Verdict
from infrarsi.report import sentence
from infrarsi.report.page import Page, Section, Table, Tone
from infrarsi.report.text import assignment, describe, line, ratio, span

_TONES: dict[str, Tone] = {"accepted": "good", "rejected": "bad", "inconclusive": "unsure"}


class RunResultView(Protocol):
    """What is drawn when a run ends; `report` has the rest."""

    @property
    def run(self) -> str: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def evidence(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


def run_result_page(result: RunResultView) -> Page:
    """Return the last word of a run."""
    verdict = result.verdict
    if verdict is None:
        headline = f"Nothing to promote: no candidate was worth verifying ({line(result.reason)})."
    else:
        headline = sentence.say(verdict, "finished", trials=0)
    rows = [("run", result.run), ("search ended", line(result.reason)), ("evidence", result.evidence[:12])]
    if verdict is not None:
        rows.insert(1, ("candidate", describe(verdict.candidate)))
    accepted = verdict is not None and verdict.decision == "accepted"
    sections = (Section("Run", table=Table(("", ""), tuple(rows))), _lines("Warnings", result.warnings))
    tone: Tone = _TONES[verdict.decision] if verdict else "faint"
    return Page(headline, tone, sections, "git infrarsi apply" if accepted else "git infrarsi report")


class ApplyView(Protocol):
    """What is drawn of a promotion."""

    @property
    def commit(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def settings(self) -> tuple[Assignment, ...]: ...
    @property
    def changes(self) -> tuple[Change, ...]: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def signer(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def created(self) -> bool: ...


def apply_page(result: ApplyView) -> Page:
    """Return the page of a promotion: the commit, its settings, every path it changes."""
    verdict, done = result.verdict, "Committed" if result.created else "Already committed"
    headline = (
        f"{done} {result.commit[:12]} on {result.branch}: {ratio(verdict.speedup)} {span(verdict.low, verdict.high)} "
        f"over {len(verdict.pairs)} pairs."
    )
    signed = (f"Signed with {line(result.signer)}.",) if result.signer else ()
    paths = Table(("path", "status", "mode"), tuple((line(c.path), c.status, c.new_mode) for c in result.changes))
    sections = (
        Section("Launch settings", tuple(f"* {assignment(a)}" for a in result.settings)),
        Section("Source paths", table=paths),
        Section("Signature", signed),
        _lines("To take it", result.notes),
    )
    return Page(headline, "good", sections, f"git infrarsi verify {result.branch}")


class RunLineView(Protocol):
    """One run in status."""

    @property
    def run(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def trials(self) -> int: ...
    @property
    def best(self) -> str: ...
    @property
    def verdict(self) -> str: ...


class StatusView(Protocol):
    """What is drawn of status."""

    @property
    def contract(self) -> str: ...
    @property
    def goal(self) -> str: ...
    @property
    def calibrated(self) -> bool: ...
    @property
    def runs(self) -> Sequence[RunLineView]: ...
    @property
    def measuring(self) -> str: ...
    @property
    def next_command(self) -> str: ...


def status_page(result: StatusView) -> Page:
    """Return where the repository stands."""
    headline = f"Contract {result.contract[:12]}: {line(result.goal)}" if result.contract else line(result.goal)
    said = ["This machine is calibrated." if result.calibrated else "This machine is not calibrated for this contract."]
    if result.measuring:
        said.append(f"Measuring now: {line(result.measuring)}")
    rows = tuple((r.run, r.state, str(r.trials), line(r.verdict), line(r.best, 60)) for r in result.runs)
    table = Table(("run", "state", "trials", "verdict", "candidate"), rows, numeric=(2,))
    sections = (Section("Machine", tuple(said) if result.contract else ()), Section("Runs", table=table))
    return Page(headline, "", sections, result.next_command)


class GcView(Protocol):
    """What is drawn of gc."""

    @property
    def removed(self) -> tuple[str, ...]: ...
    @property
    def kept(self) -> tuple[str, ...]: ...
    @property
    def dry_run(self) -> bool: ...


def gc_page(result: GcView) -> Page:
    """Return what was, or would be, removed."""
    count = len(result.removed)
    if not count:
        headline = "Nothing to remove."
    else:
        headline = f"{'Would remove' if result.dry_run else 'Removed'} {count} {'thing' if count == 1 else 'things'}."
    title = "Would be removed" if result.dry_run else "Removed"
    sections = (_lines(title, result.removed), _lines("Kept", result.kept))
    return Page(headline, "", sections)


class LaunchView(Protocol):
    """What is drawn of a launch."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def environment(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def folder(self) -> Path: ...


def launch_page(result: LaunchView) -> Page:
    """Return the command that `launch` executes, ready to paste."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in result.environment)
    command = f"{variables} {shlex.join(result.argv)}".strip()
    return Page(line(command), "", (Section("Folder", (str(result.folder),)),))


class DemoView(Protocol):
    """What is drawn when the demo is over."""

    @property
    def folder(self) -> Path: ...
    @property
    def commit(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def speedup(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def demo_page(result: DemoView) -> Page:
    """Return the demo's last word."""
    headline = (
        f"The demo's training is verified {ratio(result.speedup)} {span(result.low, result.high)} as fast: "
        f"commit {result.commit[:12]} on {result.branch}."
    )
    return Page(headline, "good", (Section("Where", (str(result.folder),)),), f"cd {shlex.quote(str(result.folder))}")


def _lines(title: str, texts: Sequence[str]) -> Section:
    return Section(title, tuple(f"* {line(text)}" for text in texts))
