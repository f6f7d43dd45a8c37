"""The JSON reader: one envelope for every verb, versioned, also on failure."""

from __future__ import annotations

import json
import math
from pathlib import PurePath
from typing import Any

from infrarsi.codec import encode
from infrarsi.errors import InfrarsiError

SCHEMA = 1


def success(command: str, result: object, *, one_line: bool = False) -> str:
    """Return `{"schema":1,"command":…,"ok":true,"result":…,"error":null}`."""
    return _dump({"schema": SCHEMA, "command": command, "ok": True, "result": plain(result), "error": None}, one_line)


def failure(command: str, error: InfrarsiError, *, one_line: bool = True) -> str:
    """Return the same envelope with `ok` false and what, why, hint and code of the error."""
    said = {"code": error.code, "what": error.what, "why": error.why, "hint": error.hint}
    value = {"schema": SCHEMA, "command": command, "ok": False, "result": None}
    return _dump({**value, "error": {**said, "exit_code": int(error.exit_code)}}, one_line)


def plain(value: object) -> Any:
    """Return records as JSON values: paths as text, and null for the infinities that JSON does not have."""
    return _finite(encode(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _dump(value: object, one_line: bool) -> str:
    if one_line:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return json.dumps(value, indent=1, allow_nan=False)
