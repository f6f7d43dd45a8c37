"""The audit payload (what is signed), and the commit message and trailers that carry it. Pure functions."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from infrarsi.codec import canonical
from infrarsi.errors import InfrarsiError
from infrarsi.records import Assignment, Verdict

NAMESPACE = "infrarsi-audit@v1"
TRAILER = "Infrarsi-Audit"


@dataclass(frozen=True)
class Payload:
    """Section by section what an accepted verdict rests on; canonical JSON of this is what the signature covers."""

    contract: str
    run: str
    evidence: str
    calibration: str
    base_commit: str
    base_tree: str
    result_tree: str
    patch_id: str
    settings: tuple[Assignment, ...]
    speedup: float
    low: float
    high: float
    pairs: int
    error_rate: float
    records: tuple[str, ...]
    schema: int = 1


@dataclass(frozen=True)
class Audit:
    """The signed payload: its exact bytes and the detached signature over them."""

    payload: bytes
    signature: str


def encode_trailer(audit: Audit) -> str:
    """Return the audit as one line (a newline in a trailer's value would make a second trailer)."""
    return base64.b64encode(canonical({"p": audit.payload.decode(), "s": audit.signature})).decode()


def decode_trailer(value: str) -> Audit:
    """Read a trailer's value. InfrarsiError where it is not one."""
    try:
        inner = json.loads(base64.b64decode(value, validate=True))
        return Audit(inner["p"].encode(), str(inner["s"]))
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InfrarsiError("the audit trailer cannot be read", why=str(error), code="audit-malformed") from error


def parse_payload(data: bytes) -> Payload:
    """Read a payload strictly: canonical bytes, known keys only."""
    from infrarsi.codec import decode

    try:
        value: Any = json.loads(data)
        payload = decode(Payload, value)
        same = canonical(payload) == data
    except ValueError as error:  # NaN is read by json, and refused by the canonical form
        raise InfrarsiError("the audit payload is not JSON", why=str(error), code="audit-malformed") from error
    if not same:
        raise InfrarsiError("the audit payload is not canonical", code="audit-malformed")
    return payload


def trailers(payload: Payload, verdict: Verdict, audit: Audit) -> list[tuple[str, str]]:
    """Return the promoted commit's trailers, in order."""
    memory = f"{verdict.memory_ratio:.3f}" if verdict.memory_ratio is not None else "unknown"
    return [
        ("Infrarsi-Contract", payload.contract),
        ("Infrarsi-Run", payload.run),
        ("Infrarsi-Base", payload.base_commit),
        (
            "Infrarsi-Speedup",
            f"{verdict.speedup:.3f} [{verdict.low:.3f}, {verdict.high:.3f}] pairs={len(verdict.pairs)}",
        ),
        ("Infrarsi-Memory", memory),
        ("Infrarsi-Evidence", payload.evidence),
        (TRAILER, encode_trailer(audit)),
    ]


def message(subject: str, body: str, lines: list[tuple[str, str]]) -> str:
    """Return a commit message whose last paragraph is the trailers and nothing else."""
    block = "\n".join(f"{key}: {value}" for key, value in lines)
    return f"{subject}\n\n{body.strip()}\n\n{block}\n"
