"""Commits built without touching the user's work tree or index: a private index, `git apply`, `commit-tree`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from infrarsi.errors import GitError
from infrarsi.records import Change
from infrarsi.vcs import patches
from infrarsi.vcs.door import Repository

TOOL_NAME, TOOL_EMAIL = "infrarsi", "infrarsi@localhost"
SYMLINK, SUBMODULE, PLAIN = "120000", "160000", "100644"
Edits = Mapping[str, bytes | None]


@dataclass(frozen=True)
class ApplyResult:
    """What became of a patch: the resulting tree, the rule of the ladder that worked, the paths it changed."""

    tree: str
    rule: str
    files: tuple[str, ...]


@contextlib.contextmanager
def private_index(repo: Repository, tree: str | None = None) -> Iterator[dict[str, str]]:
    """Yield the environment of a throw-away index that holds `tree` (or nothing)."""
    with tempfile.TemporaryDirectory(prefix="infrarsi-index-") as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        if tree is not None:
            repo.git("read-tree", tree, env=env)
        yield env


def hash_blobs(repo: Repository, contents: Sequence[bytes]) -> list[str]:
    """Store many blobs by one process, filters off; return their ids in order."""
    with tempfile.TemporaryDirectory(prefix="infrarsi-blobs-") as folder:
        names = []
        for number, content in enumerate(contents):
            path = Path(folder) / str(number)
            path.write_bytes(content)
            names.append(f"{path}\n")
        args = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        return repo.git(*args, stdin="".join(names).encode()).text.split()


def tree_with(repo: Repository, base: str | None, edits: Edits) -> str:
    """Return the tree `base` (None: empty) with `edits`: path -> new content, None deletes. Modes are kept."""
    tree = repo.tree_of(base) if base is not None else None
    present = repo.entries(tree) if tree is not None else {}
    written = {path: content for path, content in edits.items() if content is not None}
    oids = dict(zip(written, hash_blobs(repo, list(written.values())), strict=True))
    lines = []
    for path in edits:
        _require_plain(path, {p: e.mode for p, e in present.items()})
        entry = present.get(path)
        if path in oids:
            lines.append(f"{entry.mode if entry else PLAIN} {oids[path]}\t{path}")
        elif entry is None:
            raise GitError(f"{path} cannot be deleted", why="the base commit does not have it", code="bad-edit")
        else:
            lines.append(f"0 {'0' * len(entry.oid)}\t{path}")
    return _index_tree(repo, tree, lines)


def _index_tree(repo: Repository, tree: str | None, lines: Sequence[str]) -> str:
    """Return `tree` with `update-index --index-info` lines carried out."""
    with private_index(repo, tree) as env:
        if lines:
            data = "".join(f"{line}\0" for line in lines).encode(errors="surrogateescape")
            repo.git("update-index", "-z", "--index-info", stdin=data, env=env)
        return repo.git("write-tree", env=env).text


def _require_plain(path: str, modes: Mapping[str, str]) -> None:
    """Refuse a path that leaves the tree, goes through a symlink, or is itself a symlink or submodule."""
    pure = PurePosixPath(path)
    odd = not path or pure.is_absolute() or str(pure) != path or "\0" in path
    if odd or any(part in (".", "..") or part.lower() == ".git" for part in pure.parts):
        raise GitError(f"{path!r} is not a path inside the repository", code="bad-edit")
    for part in (pure, *pure.parents):
        mode = modes.get(str(part))
        if mode in (SYMLINK, SUBMODULE) or (mode is not None and part != pure):
            raise GitError(f"{path} cannot be edited", why=f"{part} is a link, a submodule or a file", code="bad-edit")


def write_commit(
    repo: Repository,
    tree: str,
    parents: Sequence[str],
    message: str,
    *,
    sign: bool = False,
    date: int | None = None,
    as_tool: bool = True,
    config: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a new commit object. `as_tool` names the tool as author; else git's own identity rules hold.

    A fixed `date` (seconds since 1970) makes the commit a function of its arguments.
    """
    env: dict[str, str] = {}
    if as_tool:
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_NAME": TOOL_NAME, f"GIT_{role}_EMAIL": TOOL_EMAIL}
    if date is not None:
        env |= {"GIT_AUTHOR_DATE": f"@{date} +0000", "GIT_COMMITTER_DATE": f"@{date} +0000"}
    args = ["commit-tree", "-S" if sign else "--no-gpg-sign", *(word for p in parents for word in ("-p", p))]
    done = repo.git(*args, "-F", "-", tree, stdin=message.encode(), env=env, config=config)
    return done.text


def apply_patch(repo: Repository, base: str, diff: str) -> ApplyResult:
    """Apply one patch to a commit or tree by the ladder of `patches`; nothing is half applied.

    Raises GitError `patch-empty` (no patch, or one that changes nothing) or `patch-unappliable`.
    """
    tree = repo.tree_of(base)
    data = patches.encode_diff(diff)
    with private_index(repo, tree) as env:
        rule = patches.apply_to_index(repo, env, data, lambda path: repo.read_blob(tree, path))
        result = repo.git("write-tree", env=env).text
    files = tuple(change.path for change in repo.changes(tree, result))
    if not files:
        why = "the code already reads like that"
        raise GitError("the patch changes nothing", why=why, hint="leave it out", code="patch-empty")
    return ApplyResult(result, rule, files)


def build_candidate(repo: Repository, base: str, diffs: Sequence[str], edits: Edits, message: str) -> str:
    """Return a commit of `base` with every diff (each written against `base`), then the edits.

    Diffs are merged three-way, so their order does not matter; one that only applies on top of those before it is
    applied there. GitError `patch-conflict` where two do not go together. Equal arguments give the same commit.
    """
    origin = repo.tree_of(base)
    tree = origin
    for diff in diffs:
        try:
            theirs = apply_patch(repo, origin, diff).tree
        except GitError as error:
            if tree == origin or error.code == "patch-empty":
                raise
            tree = apply_patch(repo, tree, diff).tree
        else:
            tree = theirs if tree == origin else merge_trees(repo, origin, tree, theirs)
    if edits:
        tree = tree_with(repo, tree, edits)
    return write_commit(repo, tree, [base], message, date=repo.commit_time(base))


def merge_trees(repo: Repository, origin: str, ours: str, theirs: str) -> str:
    """Return the tree with both changes; GitError `patch-conflict` where they touch the same lines."""
    mine = {change.path: change for change in repo.changes(origin, ours)}
    lines = []
    for change in repo.changes(origin, theirs):
        other = mine.get(change.path)
        if other is None or (other.new_oid, other.new_mode) == (change.new_oid, change.new_mode):
            mode = "0" if change.status == "D" else change.new_mode
            lines.append(f"{mode} {change.new_oid}\t{change.path}")
        else:
            lines.append(f"{change.new_mode} {_merge_file(repo, other, change)}\t{change.path}")
    return _index_tree(repo, ours, lines)


def _merge_file(repo: Repository, ours: Change, theirs: Change) -> str:
    """Merge one file that both sides changed, as text; return the new blob."""
    conflict = GitError(
        "two patches do not go together",
        why=f"both change the same lines of {ours.path}",
        hint="try them apart",
        code="patch-conflict",
    )
    if ours.status != "M" or theirs.status != "M" or ours.new_mode != theirs.new_mode or ours.new_mode == SYMLINK:
        raise conflict
    blobs = repo.read_blobs([ours.new_oid, ours.old_oid, theirs.new_oid])
    with tempfile.TemporaryDirectory(prefix="infrarsi-merge-") as folder:
        names = []
        for name, oid in (("ours", ours.new_oid), ("base", ours.old_oid), ("theirs", theirs.new_oid)):
            path = Path(folder) / name
            path.write_bytes(blobs[oid])
            names.append(os.fspath(path))
        done = repo.git("merge-file", "-p", "-q", *names, ok=range(256))
    if done.code:
        raise conflict
    return hash_blobs(repo, [done.stdout])[0]
