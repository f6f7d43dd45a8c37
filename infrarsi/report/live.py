"""What a person sees while a verb works: a table on a terminal, one plain line per trial otherwise, or NDJSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from infrarsi.report.envelope import plain
from infrarsi.report.live_state import LiveState
from infrarsi.report.text import clean


class EventView(Protocol):
    """One event of a verb: `kind` is a ledger kind, or `stage`, `warning` or `progress`."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def body(self) -> dict[str, Any]: ...


Sink = Callable[[EventView], None]


def event_sink(
    *,
    json_lines: bool = False,
    quiet: bool = False,
    color: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Sink:
    """Return where a verb's events go.

    `json_lines` writes each event to stdout; `quiet` draws nothing; else stderr gets a table where it is a terminal,
    and plain lines where it is not. Streams default to the process's own.
    """
    if json_lines:
        return _Lines(stdout or sys.stdout)
    if quiet:
        return _nothing
    stream = stderr or sys.stderr
    return _Screen(stream, color, clock) if stream.isatty() else _Plain(stream, clock)


def _nothing(_event: EventView) -> None:
    """Draw nothing."""


class _Lines:
    """NDJSON: one object per event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: EventView) -> None:
        value = {"schema": 1, "event": event.kind, "text": event.text, "body": plain(event.body)}
        self._stream.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
        self._stream.flush()


class _Plain:
    """One line per event worth telling."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._state = stream, LiveState(clock)

    def __call__(self, event: EventView) -> None:
        self._state.take(event.kind, event.text, event.body)
        said = self._state.plain_line(event.kind, event.text, event.body)
        if said:
            self._stream.write(clean(said) + "\n")
            self._stream.flush()


class _Screen:
    """A table that is drawn over itself after each event of a run.

    It hides no cursor and starts no thread, so that ^C, an error or SIGKILL leave the terminal as it was.
    """

    def __init__(self, stream: TextIO, color: bool, clock: Callable[[], float]) -> None:
        self._stream, self._color = stream, color
        self._plain, self._state = _Plain(stream, clock), LiveState(clock)
        self._height = 0

    def __call__(self, event: EventView) -> None:
        self._state.take(event.kind, event.text, event.body)
        if not self._state.running and event.kind != "run-ended":
            self._plain(event)
            return
        if event.kind == "warning":
            self._erase()
            self._plain(event)
        self._draw()
        if event.kind == "run-ended":
            self._height = 0

    def _draw(self) -> None:
        from infrarsi.report.live_table import live_table
        from infrarsi.report.terminal import make_console

        console = make_console(self._stream, color=self._color)  # type: ignore[arg-type]
        with console.capture() as capture:
            console.print(live_table(self._state, console.height))
        text = capture.get()
        self._erase()
        self._stream.write(text)
        self._stream.flush()
        self._height = text.count("\n")

    def _erase(self) -> None:
        if self._height:
            # Up, then clear to the end of the screen: cursor movement, not colour, so NO_COLOR does not concern it.
            self._stream.write(f"\x1b[{self._height}F\x1b[J")
            self._height = 0
