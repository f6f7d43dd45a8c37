"""One Unix stream socket to the parent; one JSON object per line in both directions."""

from __future__ import annotations

import json
import select
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

SEND_TIMEOUT_SECONDS = 30.0
FLOAT_MAX = sys.float_info.max


class Wire:
    """The connection of one rank. A lost parent makes it silent: the training is never disturbed by it."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(SEND_TIMEOUT_SECONDS)
        self._socket.connect(path)
        self._received = b""
        self._kept: list[Mapping[str, Any]] = []
        self._waiting = b""
        self.open = True

    def send(self, kind: str, /, **fields: Any) -> None:
        """Send one message; after an error the wire is closed and later messages are dropped.

        What `later` kept goes along: after a tick, whose arrival is the time of its step, before anything else.
        """
        if not self.open:
            return
        waiting, self._waiting = self._waiting, b""
        line = _line(kind, fields)
        try:
            self._socket.sendall(line + waiting if kind == "tick" else waiting + line)
        except OSError:
            self.close()

    def flush(self) -> None:
        """Send what `later` kept, if there is anything."""
        waiting, self._waiting = self._waiting, b""
        if waiting and self.open:
            try:
                self._socket.sendall(waiting)
            except OSError:
                self.close()

    def later(self, kind: str, /, **fields: Any) -> None:
        """Send one message together with the next one: a message on its own wakes the parent."""
        if self.open:
            self._waiting += _line(kind, fields)

    def poll(self) -> list[Mapping[str, Any]]:
        """Return the messages that have arrived, without waiting."""
        kept, self._kept = self._kept, []
        if not self.open:
            return kept
        while select.select([self._socket], [], [], 0)[0]:
            if not self._read():
                break
        return kept + self._lines()

    def wait(self, kind: str, seconds: float) -> bool:
        """Wait for a message of `kind`; False after `seconds` or when the parent has gone. Others stay for `poll`."""
        deadline = self._clock() + seconds
        others: list[Mapping[str, Any]] = []
        found = False
        while not found:
            for message in self.poll():
                found = found or message.get("t") == kind
                others += [] if message.get("t") == kind else [message]
            left = deadline - self._clock()
            if found or left <= 0 or not self.open:
                break
            select.select([self._socket], [], [], min(left, 0.5))
        self._kept = others
        return found

    def close(self) -> None:
        """Close the connection; also called in forked children, where it only drops their copy."""
        self.open = False
        self._socket.close()

    def _read(self) -> bool:
        try:
            data = self._socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._received += data
        return True

    def _lines(self) -> list[Mapping[str, Any]]:
        *lines, self._received = self._received.split(b"\n")
        messages: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                messages.append(message)
        return messages


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    return (json.dumps({"t": kind, **fields}, separators=(",", ":"), allow_nan=False) + "\n").encode()


def finite(value: float) -> float:
    """Return `value`, or the largest float in place of nan and infinity: JSON has neither, and no envelope holds it."""
    return value if -FLOAT_MAX <= value <= FLOAT_MAX else FLOAT_MAX
