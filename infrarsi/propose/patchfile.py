"""Patches that a person brings along as files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from infrarsi.contract.statemap import parse
from infrarsi.errors import UsageError
from infrarsi.records import Numerics, Patch

_SUBJECT = re.compile(r"^Subject:\s*(?:\[[^\]]*\]\s*)?(.+)$", re.MULTILINE)
_START = re.compile(r"^(diff --git |--- )", re.MULTILINE)


def read_patch_files(paths: Sequence[Path], numerics: Numerics = "reorder") -> tuple[Patch, ...]:
    """Read unified diffs (plain, `git diff` or `git format-patch`) as patches.

    `numerics` is the contract's class: a free patch is taken to be of that class until it was measured.
    Unreadable, empty or binary files raise UsageError. `State-Map:` lines before the diff are its state map;
    ContractError where one cannot be read.
    """
    return tuple(_read(path, numerics) for path in paths)


def _read(path: Path, numerics: Numerics) -> Patch:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"the patch {path} cannot be read", why=str(error), hint="check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the patch {path} is not text", why=str(error), hint="write it with: git diff") from error
    start = _START.search(text)
    try:
        parsed = PatchSet(text[start.start() :] if start else "")
    except UnidiffParseError as error:
        raise UsageError(f"the patch {path} is broken", why=str(error), hint="write it again with: git diff") from error
    if start is None or not any(file.added or file.removed for file in parsed):
        raise UsageError(f"the patch {path} changes no line", why="no hunk was found", hint="write it with: git diff")
    subject = _SUBJECT.search(text[: start.start()])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    names = ", ".join(file.path for file in parsed)
    return Patch(
        id=f"{re.sub(r'[^a-z0-9]+', '_', path.stem.lower()).strip('_') or 'patch'}_{digest}",
        title=subject.group(1).strip() if subject else path.stem,
        diff=_diff(text[start.start() :]),
        source=f"patch-file:{path.name}",
        numerics=numerics,
        why=f"brought by the user; changes {names}",
        state_map=parse(text[: start.start()]),
    )


def _diff(text: str) -> str:
    """Cut the signature that `git format-patch` writes behind the diff."""
    body = re.split(r"^-- \n[0-9][^\n]*\n*\Z", text, maxsplit=1, flags=re.MULTILINE)[0]
    return body if body.endswith("\n") else body + "\n"
