"""What a verb tells while it works: one small record per event, drawn by a reader or written as NDJSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened. `kind` is a ledger kind, or `stage` (a sentence) or `progress` (a trial's steps)."""

    kind: str
    text: str = ""
    body: dict[str, Any] = field(default_factory=dict)


Notify = Callable[[Event], None]


def silent(_event: Event) -> None:
    """Draw nothing."""
