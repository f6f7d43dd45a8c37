"""How numbers and untrusted text are written. Every reader uses these, so that one quantity always looks the same."""

from __future__ import annotations

import math
import unicodedata

from infrarsi.records import Assignment, Candidate

# Bidirectional overrides and isolates reorder what a person sees ("Trojan Source", CVE-2021-42574).
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str, limit: int | None = None) -> str:
    """Return untrusted text with control characters and bidirectional overrides made visible, cut to `limit`.

    A log line may carry escape sequences that move the cursor, set a title or hide text; none may reach a terminal.
    """
    shown = "".join(_visible(char) for char in text)
    return shown if limit is None or len(shown) <= limit else shown[: max(0, limit - 1)] + "…"


def _visible(char: str) -> str:
    if char in "\n\t":
        return char
    if char in _BIDI or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
        return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
    return char


def line(text: str, limit: int | None = None) -> str:
    """Return untrusted text on one line."""
    return clean(" ".join(text.split()), limit)


def first_line(text: str, limit: int = 120) -> str:
    """Return the first line that says something."""
    return line(next((part for part in text.splitlines() if part.strip()), ""), limit)


def describe(candidate: Candidate) -> str:
    """Return a candidate in one line: `micro_batch=16 x 2, +sdpa`."""
    parts = [f"{s.knob}={s.level}" for s in candidate.settings] + [f"+{p}" for p in candidate.patches]
    return line(", ".join(parts)) or "baseline"


def assignment(item: Assignment) -> str:
    """Return one assignment as a person would type it."""
    if item.value is None:
        return line(f"without {item.target}")
    if item.value is True and item.kind in ("flag", "torchrun"):
        return line(item.target)
    return line(f"{item.target}={item.value}")


def ratio(value: float) -> str:
    """Return a speed-up: `1.52x`."""
    return f"{value:.2f}x" if math.isfinite(value) else "unbounded"


def span(low: float, high: float) -> str:
    """Return an interval of speed-ups: `[1.48x, 1.57x]`."""
    return f"[{ratio(low)}, {ratio(high)}]"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as percent, `unknown` for None."""
    return "unknown" if value is None else f"{100 * value:.{digits}f} %"


def duration(value: float | None) -> str:
    """Return seconds in the unit a person would choose."""
    if value is None:
        return "unknown"
    if value < 0.0995:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:#.3g}".rstrip(".") + " s"
    if value < 7200:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{value / 3600:.1f} h"


def size(value: float | None) -> str:
    """Return bytes in GiB or MiB, `unknown` for None."""
    if value is None:
        return "unknown"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def dollars(value: float | None) -> str:
    """Return a price; an unknown one is never 0 (R-H1)."""
    return "unknown" if value is None else f"${value:.2f}"


def plural(count: int, noun: str, many: str = "") -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
