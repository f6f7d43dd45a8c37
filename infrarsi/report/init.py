"""Init's reader: what is locked, what may change, and what of the sentence was not understood."""

from __future__ import annotations

from typing import Protocol

from infrarsi.report.page import Page, Section


class InitView(Protocol):
    """What is drawn of init's result."""

    @property
    def digest(self) -> str: ...
    @property
    def created(self) -> bool: ...
    @property
    def committed(self) -> bool: ...
    @property
    def locked(self) -> tuple[str, ...]: ...
    @property
    def may_change(self) -> tuple[str, ...]: ...
    @property
    def understood(self) -> tuple[str, ...]: ...
    @property
    def not_understood(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def next_command(self) -> str: ...


def init_page(result: InitView) -> Page:
    """Return the page of a contract that was made, or found standing."""
    if result.created:
        headline = (
            f"Contract {result.digest[:12]}: infrarsi.toml (yours to edit) and infrarsi.lock (generated) are written."
        )
    else:
        where = "" if result.committed else ", not committed yet"
        headline = f"Contract {result.digest[:12]} stands here already and is intact{where}."
    sections = (
        Section("Must stay the same", _items(result.locked), key="locked"),
        Section("May change", _items(result.may_change), key="may-change"),
        Section("Understood", _items(result.understood), key="understood"),
        Section("Not understood, and so without effect", _items(result.not_understood), key="not-understood"),
        Section("Notes", _items(result.notes), key="notes"),
    )
    return Page(headline, "unsure" if result.not_understood else "", sections, result.next_command)


def _items(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"* {text}" for text in texts)
