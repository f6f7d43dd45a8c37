"""Verify's reader: signature and audit are two results, each with its own message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from infrarsi.report.page import Page, Section, Table, Tone
from infrarsi.report.text import line, percent, ratio, span

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "unsure", "good": "good", "bad": "bad"}
_HEADLINES = {
    "pass": "verifies: it is what was measured, under the contract it names.",
    "fail": "does not verify.",
    "inconclusive": "can be neither confirmed nor refuted with what is here.",
}


class CheckView(Protocol):
    """One check of verify."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str: ...


class VerifyView(Protocol):
    """What is drawn of verify's result. `payload` is the signed audit, None where it could not be read."""

    @property
    def commit(self) -> str: ...
    @property
    def decision(self) -> str: ...
    @property
    def signature(self) -> str: ...
    @property
    def signature_message(self) -> str: ...
    @property
    def checks(self) -> Sequence[CheckView]: ...
    @property
    def payload(self) -> Any: ...


def verify_page(result: VerifyView) -> Page:
    """Return the page of a verification."""
    signature = Table(
        ("signature of the commit", "message"),
        ((result.signature, line(result.signature_message)),),
        tones=(_TONES.get(result.signature, "unsure"),),
    )
    checks = Table(
        ("check", "result", "message"),
        tuple((c.name, c.status, line(c.message)) for c in result.checks),
        tones=tuple(_TONES.get(c.status, "unsure") for c in result.checks),
    )
    sections = (
        Section("Signature", table=signature, key="signature"),
        Section("Audit", table=checks, key="audit"),
        Section("What the audit says", table=_payload(result.payload), key="payload"),
    )
    headline = f"{result.commit[:12]} {_HEADLINES.get(result.decision, result.decision)}"
    return Page(headline, _TONES.get(result.decision, "unsure"), sections)


def _payload(payload: Any) -> Table | None:
    if payload is None:
        return None
    rows = (
        ("speed-up", f"{ratio(payload.speedup)} {span(payload.low, payload.high)} over {payload.pairs} pairs"),
        ("error rate", percent(payload.error_rate, 0)),
        ("contract", str(payload.contract)[:12]),
        ("run", line(str(payload.run))),
        ("base commit", str(payload.base_commit)[:12]),
        ("evidence", str(payload.evidence)[:12]),
    )
    return Table(("", ""), rows)
