"""Numbers, durations, amounts and file names as people write them."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_WORDS = {
    "a": 1.0, "an": 1.0, "one": 1.0, "two": 2.0, "three": 3.0, "four": 4.0, "five": 5.0, "six": 6.0, "seven": 7.0,
    "eight": 8.0, "nine": 9.0, "ten": 10.0, "eleven": 11.0, "twelve": 12.0, "fifteen": 15.0, "sixteen": 16.0,
    "twenty": 20.0, "thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "ninety": 90.0, "hundred": 100.0,
    "half a": 0.5, "half an": 0.5, "a quarter of an": 0.25, "quarter of an": 0.25, "a couple of": 2.0, "a dozen": 12.0,
    "one and-a-half": 1.5, "two and-a-half": 2.5, "three and-a-half": 3.5, "a hundred": 100.0,
}  # fmt: skip
# A number in digits or words. Longer words first, so that "half an" is not read as "an".
# A word is followed by a space, so that "as" is not read as one second.
NUMBER = r"(?:\d[\d_]*(?:\.\d+)?|(?:" + "|".join(sorted(_WORDS, key=len, reverse=True)) + r")(?=[ -]))"
UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = r"(?:hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s|days?|d)"
# "two hours", "1h30", "1 h 30 min", "an hour and-a-half" (joined by the reader of sentences)
DURATION = (
    rf"(?P<number>{NUMBER}) ?-?(?P<unit>{_UNIT})"
    r"(?: ?(?P<more>\d+) ?(?:minutes?|mins?|m)?| (?P<half>and-a-half))?(?![\w.])"
)
FILE = r"[\w./*?\[\]-]+(?:::[\w.]+)?"


def number(text: str) -> float:
    """Return the value of what NUMBER matched."""
    lowered = text.lower()
    return _WORDS[lowered] if lowered in _WORDS else float(lowered.replace("_", ""))


def seconds(match: re.Match[str]) -> float:
    """Return the length of what DURATION matched."""
    unit = UNIT_SECONDS[match["unit"][0].lower()]
    more = float(match["more"]) * 60.0 if match["more"] else 0.0
    half = unit / 2.0 if match["half"] else 0.0
    return number(match["number"]) * unit + more + half


def resolve(word: str, files: Sequence[str]) -> tuple[str | None, str]:
    """Return the scope pattern that a name in a sentence means among the tracked `files`, or None and why not."""
    name, separator, symbol = word.partition("::")
    name = name.removeprefix("./")
    suffix = separator + symbol
    if name in files:
        return name + suffix, ""
    if any(c in name for c in "*?["):
        if any(fnmatch.fnmatch(f, name) or fnmatch.fnmatch(PurePosixPath(f).name, name) for f in files):
            return name + suffix, ""
        return None, f"no file matches {name}"
    folder = name.rstrip("/")
    if folder and any(f.startswith(f"{folder}/") for f in files):
        return (f"{folder}/**", "") if not separator else (None, f"{folder} is a folder")
    same_name = [f for f in files if f.endswith(f"/{name}")]
    if len(same_name) == 1:
        return same_name[0] + suffix, ""
    if same_name:
        return None, f"{name} is ambiguous: {', '.join(same_name[:3])}"
    names = {n: n for f in files for n in (f, PurePosixPath(f).name)}
    near = difflib.get_close_matches(name, names, 1)
    return None, f"there is no {name} here" + (f"; did you mean {near[0]}?" if near else "")
