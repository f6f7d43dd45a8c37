"""Git LFS without git-lfs: pointers in a tree are replaced by contents this machine already has. No network.

The content comes from the LFS store of the repository or from the user's own work tree, and only if its sha256 is the
pointer's. It is copied, never linked: a trial may write to its own files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from infrarsi.vcs.door import Repository

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*oid sha256:([0-9a-f]{64})\nsize \d+\n"
)
POINTER_LIMIT_BYTES = 1024


def lfs_pointers(repo: Repository, commit: str) -> dict[str, str]:
    """Return path -> sha256 of every LFS pointer in a commit; empty, and fast, where no attributes file names lfs."""
    entries = repo.entries(commit)
    attributes = [e.oid for path, e in entries.items() if path.rpartition("/")[2] == ".gitattributes"]
    local = repo.common_dir / "info" / "attributes"
    texts = [*repo.read_blobs(attributes).values(), local.read_bytes() if local.is_file() else b""]
    if not any(b"filter=lfs" in text for text in texts):
        return {}
    blobs = {entry.oid: path for path, entry in entries.items() if entry.mode in ("100644", "100755")}
    listed = repo.git("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin="\n".join(blobs).encode()).text
    small = [oid for oid, size in map(str.split, listed.splitlines()) if int(size) <= POINTER_LIMIT_BYTES]
    found = {oid: match[1].decode() for oid, data in repo.read_blobs(small).items() if (match := _POINTER.match(data))}
    return {path: found[entry.oid] for path, entry in entries.items() if entry.oid in found}


def fill(repo: Repository, commit: str, tree: Path) -> tuple[str, ...]:
    """Put the contents in place in `tree`, a checkout of `commit`; return the paths whose content is not here."""
    missing = []
    for path, digest in lfs_pointers(repo, commit).items():
        store = repo.common_dir / "lfs" / "objects" / digest[:2] / digest[2:4] / digest
        source = next((s for s in (store, repo.root / path) if s.is_file() and _sha256(s) == digest), None)
        if source is None:
            missing.append(path)
        else:
            shutil.copyfile(source, tree / path)
    return tuple(missing)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
