"""Just enough of a shell script: its launch lines, with plain variables filled in. Nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

ALL_ARGUMENTS = ("$@", "${@}", "$*", "${*}", "${@:1}")

_LAUNCH = re.compile(r"(^|[\s/])(torchrun|python[\d.]*|accelerate|deepspeed|srun|mpirun)\s")
_SET = re.compile(r"(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(\S*|\"[^\"]*\"|'[^']*')\s*$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)")


def launch_lines(text: str, arguments: Sequence[str] = ()) -> list[list[str]]:
    """Return the words of each line that starts torchrun, python or another launcher, in order.

    Continued lines are joined, comments dropped, `$NAME` and `${NAME:-default}` replaced where the script itself sets
    them, `$1`… by `arguments`, redirections cut off. `"$@"` stays as the word `$@`.
    """
    variables = {str(index): word for index, word in enumerate(arguments, start=1)}
    found: list[list[str]] = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        assignment = _SET.fullmatch(line)
        if assignment:
            variables[assignment[1]] = _fill(assignment[2].strip("\"'"), variables)
            continue
        if not _LAUNCH.search(f" {line} "):
            continue
        for part in re.split(r"&&|\|\||[|;]", line):
            words = _words(_fill(part, variables))
            if words and _LAUNCH.search(f" {' '.join(words)} "):
                found.append(words)
    return found


def _fill(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            return variables[name]
        return match[2] if match[2] is not None else match[0]

    return _VARIABLE.sub(value, text)


def _words(text: str) -> list[str]:
    """Split one simple command, up to its redirections or its trailing `&`."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return []
    for index, word in enumerate(words):
        if word == "&" or re.match(r"\d?>|<|&>", word):
            return words[:index]
    return words
