"""Locks what the training reads: one sha256 per file, folders file by file. Data is often not in git, so git cannot."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from infrarsi.errors import ContractError, UsageError
from infrarsi.records import Digest, Violation


def digest_data(root: Path, names: Sequence[str]) -> tuple[Digest, ...]:
    """Return the digest of every file that `names` (files or folders below `root`) stand for, sorted by name.

    Links are followed: what counts is the bytes that a rank would read. Raises ContractError for a missing name.
    """
    found: dict[str, Digest] = {}
    for name in names:
        for file in _files(root, name):
            found[file] = _digest(root / file, file)
    return tuple(found[file] for file in sorted(found))


def check_data(root: Path, digests: Sequence[Digest]) -> tuple[Violation, ...]:
    """Compare the locked data with what is there now; sizes first, which costs nothing (R-A1)."""
    violations = []
    for locked in digests:
        path = root / locked.name
        if not path.is_file():
            violations.append(_violation(f"the locked data file {locked.name} is missing", "absent", locked))
        elif path.stat().st_size != locked.bytes:
            observed = f"{path.stat().st_size} bytes"
            violations.append(_violation(f"the locked data file {locked.name} has another size", observed, locked))
        elif (now := _digest(path, locked.name)) != locked:
            violations.append(
                _violation(f"the locked data file {locked.name} has other bytes", now.sha256[:16], locked)
            )
    return tuple(violations)


Signature = dict[str, tuple[int, int, int, int] | None]


def data_signature(root: Path, names: Sequence[str]) -> Signature:
    """Return size, times and inode of each locked file: cheap enough to take around every trial.

    A program can set the modification time back, not the time of the inode's last change (ctime).
    """
    signature: Signature = {}
    for name in names:
        try:
            status = (root / name).stat()
        except OSError:
            signature[name] = None
        else:
            signature[name] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return signature


def data_touched(before: Signature, after: Signature) -> tuple[Violation, ...]:
    """Return a violation for each locked file that was written while a trial ran (R-A1)."""
    return tuple(
        Violation("scope", "data", f"the locked data file {name} was written during the trial", "changed", "as it was")
        for name in sorted(before)
        if before[name] != after.get(name)
    )


def _violation(message: str, observed: str, locked: Digest) -> Violation:
    allowed = f"{locked.bytes} bytes, sha256 {locked.sha256[:16]}"
    return Violation("scope", "data", message, observed=observed, allowed=allowed)


def _files(root: Path, name: str) -> Iterator[str]:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UsageError(
            f"workload.data: {name} is not below the repository",
            why="the contract is portable, so it names no place of this machine",
            hint="link it into the repository (ln -s) and name the link",
            code="data-outside",
        )
    path = root / name
    if path.is_file():
        yield Path(name).as_posix()
    elif path.is_dir():
        yield from _walk(root, path)
    else:
        raise ContractError(
            f"workload.data: {name} does not exist",
            why=f"looked for {path}",
            hint="prepare the data first, or correct the name in infrarsi.toml",
            code="data-missing",
        )


def _walk(root: Path, folder: Path) -> Iterator[str]:
    """Yield the files of a folder; linked folders are entered once, so that a loop of links ends."""
    seen: set[str] = set()
    for current, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(current)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(f for f in folders if f != ".git")
        for file in sorted(files):
            path = Path(current) / file
            if path.is_file():
                yield path.relative_to(root).as_posix()


def _digest(path: Path, name: str) -> Digest:
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256")
            return Digest(name, checksum.hexdigest(), file.tell())
    except OSError as error:
        raise ContractError(f"{name} cannot be read", why=str(error), hint="check its permissions") from error
