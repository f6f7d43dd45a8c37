"""An unknown exception becomes a report that can be pasted, and an error that says where it is."""

from __future__ import annotations

import platform
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from infrarsi import __version__
from infrarsi.errors import InfrarsiError
from infrarsi.report.text import first_line


def crash_error(verb: str, error: BaseException, folder: Path | None = None) -> InfrarsiError:
    """Write the report into `folder` (default: the temporary folder) and return the error to show; exit code 128."""
    said = first_line(f"{type(error).__name__}: {error}", 200)
    try:
        path = _write(verb, error, folder)
    except OSError as problem:
        hint = f"the report could not be written ({problem.strerror}); run again with a writable TMPDIR"
    else:
        hint = f"nothing that was measured is lost; the whole report: {path}"
    return InfrarsiError(f"git infrarsi {verb} met an error it does not know", why=said, hint=hint, code="crash")


def _write(verb: str, error: BaseException, folder: Path | None) -> Path:
    """Write versions and traceback; no environment variables, which may hold keys."""
    parts = [
        f"git infrarsi {verb}: unexpected error",
        f"infrarsi {__version__}, python {platform.python_version()}, {platform.platform()}",
        datetime.now(UTC).isoformat(timespec="seconds"),
        "",
        "".join(traceback.format_exception(error)),
    ]
    with tempfile.NamedTemporaryFile(
        "w", prefix="infrarsi-crash-", suffix=".txt", dir=folder, delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write("\n".join(parts))
    return Path(file.name)
