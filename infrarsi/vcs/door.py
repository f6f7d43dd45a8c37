"""One repository, asked through the git program. Nothing here touches the user's HEAD, index or files."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from infrarsi.errors import GitError
from infrarsi.records import Change
from infrarsi.vcs import parse
from infrarsi.vcs.parse import DirtyPath, TreeEntry
from infrarsi.vcs.process import MINIMUM_VERSION, TIMEOUT_SECONDS, Completed, environment, failure, run_program

# Fixed, so that one change has one text and one patch-id whatever the user's diff settings are.
_DIFF = (
    *("diff-tree", "-r", "-p", "--no-renames", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--unified=3", "--inter-hunk-context=0", "--diff-algorithm=myers", "--indent-heuristic"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none"),
)
ABSENT = ""
CACHED_TREES = 8
_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOVED = re.compile(r"but expected|already exists|is at|unable to resolve|Unable to create .*\.lock")


class Repository:
    """A repository with a work tree (or a bare one, where `discover` was told so)."""

    def __init__(self, root: Path, git_dir: Path, common_dir: Path, object_format: str, *, quarantine: bool) -> None:
        self.root = root
        self.git_dir = git_dir
        self.common_dir = common_dir
        self.object_format = object_format
        self._quarantine = quarantine
        self._trees: dict[str, dict[str, TreeEntry]] = {}
        self._tree_of: dict[str, str] = {}
        self._lock = threading.Lock()

    @classmethod
    def discover(cls, start: Path, *, bare: bool = False, quarantine: bool = False) -> Repository:
        """Open the repository around `start`. Raises GitError with the way out where we cannot work in it.

        `bare` allows one without a work tree and `quarantine` reads objects that are being pushed: both only for the
        server-side hook.
        """
        probe = cls(start, start, start, "sha1", quarantine=quarantine)
        _require_version(probe.git("--version").text)
        is_bare, in_tree, object_format = probe.git(
            "rev-parse", "--is-bare-repository", "--is-inside-work-tree", "--show-object-format"
        ).text.split("\n")
        git_dir = Path(probe.git("rev-parse", "--path-format=absolute", "--git-dir").text)
        common = Path(probe.git("rev-parse", "--path-format=absolute", "--git-common-dir").text)
        if is_bare == "true":
            if not bare:
                raise GitError(
                    "this repository is bare",
                    why="there is no work tree to read a contract from",
                    hint="git worktree add ../work <branch>, and run there",
                    code="bare",
                )
            return cls(git_dir, git_dir, common, object_format, quarantine=quarantine)
        if in_tree != "true":
            raise GitError("this is the inside of a .git folder", hint="run in the work tree", code="inside-git")
        root = Path(probe.git("rev-parse", "--path-format=absolute", "--show-toplevel").text)
        return cls(root, git_dir, common, object_format, quarantine=quarantine)

    def __repr__(self) -> str:
        return f"Repository({str(self.root)!r})"

    @property
    def state_dir(self) -> Path:
        """Where the tool keeps its own files; inside the common git folder, made on first use."""
        path = self.common_dir / "infrarsi"
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise GitError("the repository cannot be written", why=str(error), code="read-only") from error
        return path

    # --- running git

    def git(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        config: Iterable[tuple[str, str]] = (),
        ok: Sequence[int] = (0,),
        cwd: Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Completed:
        """Run git from the top level with the clean environment; an exit code outside `ok` raises GitError."""
        surroundings = environment(os.environ, config=config, extra=env, quarantine=self._quarantine)
        done = run_program(["git", *args], cwd=cwd or self.root, env=surroundings, stdin=stdin, timeout=timeout)
        if done.code not in ok:
            raise failure(args, done)
        return done

    def config(self, key: str, *, as_path: bool = False) -> str | None:
        """Return the user's effective value of `key`."""
        args = ["config", *(["--type=path"] if as_path else []), "--get", key]
        done = self.git(*args, ok=(0, 1))
        return done.text if done.code == 0 else None

    # --- commits

    def head(self) -> str:
        """Return the commit at HEAD."""
        done = self.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1, 128))
        if done.code:
            raise GitError("there is no commit yet", why="HEAD is unborn", hint="git commit", code="unborn")
        return done.text

    def resolve(self, revision: str) -> str:
        """Return the full id of the commit that `revision` names."""
        if not revision or revision.startswith("-") or "\0" in revision:
            raise GitError(f"{revision!r} is not a revision", code="unknown-revision")
        done = self.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", ok=(0, 1, 128))
        if done.code:
            raise GitError(
                f"{revision} is not a commit of this repository",
                why=done.complaint,
                hint="git fetch, if it was made elsewhere",
                code="unknown-revision",
            )
        return done.text

    def tree_of(self, commit: str) -> str:
        """Return the id of the commit's tree."""
        known = self._tree_of.get(commit)
        if known is None:
            known = self.git("rev-parse", "--verify", f"{commit}^{{tree}}").text
            if _FULL_ID.fullmatch(commit):  # An id never changes what it means, a name does.
                self._tree_of[commit] = known
        return known

    def parents(self, commit: str) -> tuple[str, ...]:
        """Return the commit's parents."""
        return tuple(self.git("rev-list", "--parents", "-n1", commit).text.split()[1:])

    def branch(self) -> str | None:
        """Return the branch at HEAD, None when detached."""
        return self.git("symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text or None

    def is_ancestor(self, ancestor: str, commit: str) -> bool:
        """Whether `commit` is `ancestor` or descends from it."""
        return self.git("merge-base", "--is-ancestor", ancestor, commit, ok=(0, 1)).code == 0

    def commit_time(self, commit: str) -> int:
        """Return the committer's time in seconds since 1970."""
        return int(self.git("show", "--no-patch", "--no-show-signature", "--format=%ct", commit).text)

    def commits(self, *revisions: str) -> tuple[str, ...]:
        """Return what `rev-list` lists (`("base..tip",)`), newest first."""
        return tuple(self.git("rev-list", *revisions, "--").text.split())

    def commit_message(self, commit: str) -> str:
        """Return the whole message."""
        raw = self.raw_commit(commit)
        return raw.partition(b"\n\n")[2].decode(errors="replace")

    def raw_commit(self, commit: str) -> bytes:
        """Return the bytes of the commit object, headers and message."""
        return self.git("cat-file", "commit", commit).stdout

    def trailers(self, commit: str, key: str) -> tuple[str, ...]:
        """Return every value of the trailer `key` in the message's last paragraph."""
        return tuple(v for k, v in parse.trailers(self.commit_message(commit)) if k.lower() == key.lower())

    # --- trees and files

    def entries(self, commit: str) -> dict[str, TreeEntry]:
        """Return path -> entry of a commit or tree, folders flattened."""
        tree = self.tree_of(commit)
        with self._lock:
            known = self._trees.get(tree)
        if known is None:
            known = parse.tree_entries(self.git("ls-tree", "-r", "-z", tree).stdout)
            with self._lock:
                while len(self._trees) >= CACHED_TREES:
                    self._trees.pop(next(iter(self._trees)))
                self._trees[tree] = known
        return known

    def tracked_files(self, commit: str = "HEAD") -> tuple[str, ...]:
        """Return every file (symlinks included, submodules not) of a commit."""
        return tuple(path for path, entry in self.entries(commit).items() if entry.kind == "blob")

    def read_blob(self, commit: str, path: str) -> bytes | None:
        """Return the bytes of a file in a commit or tree; None where there is no such file."""
        entry = self.entries(commit).get(path)
        return self.git("cat-file", "blob", entry.oid).stdout if entry and entry.kind == "blob" else None

    def read_blobs(self, oids: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of many blobs by one process; missing ones are left out."""
        data = self.git("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in oids).encode()).stdout
        found, at = {}, 0
        while at < len(data):
            end = data.index(b"\n", at)
            words = data[at:end].decode().split()
            at = end + 1
            if len(words) == 3:
                size = int(words[2])
                found[words[0]] = data[at : at + size]
                at += size + 1
        return found

    def dirty_paths(self) -> tuple[DirtyPath, ...]:
        """Return every path that differs from HEAD, untracked files included. The index is not refreshed."""
        done = self.git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        return parse.status_paths(done.stdout)

    def ignored_files(self) -> tuple[str, ...]:
        """Return the files in the work tree that git ignores."""
        args = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        return tuple(os.fsdecode(item) for item in self.git(*args).stdout.split(b"\0") if item)

    # --- differences

    def changes(self, base: str, commit: str) -> tuple[Change, ...]:
        """Return every path that differs between two commits or trees, as raw modes and ids (for the scope check)."""
        args = ("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", "--ignore-submodules=none")
        return parse.raw_changes(self.git(*args, self.tree_of(base), self.tree_of(commit)).stdout)

    def diff_bytes(self, base: str, commit: str, *, binary: bool = True) -> bytes:
        """Return the change as a patch that `git apply` takes."""
        extra = ("--binary",) if binary else ()
        return self.git(*_DIFF, *extra, self.tree_of(base), self.tree_of(commit)).stdout

    def diff(self, base: str, commit: str) -> str:
        """Return the change as text for people and ledgers; bytes that are not UTF-8 are replaced."""
        return self.diff_bytes(base, commit).decode(errors="replace")

    def patch_id(self, base: str, commit: str) -> str:
        """Return the stable id of the change from `base` to `commit` (see `parse.patch_id`); empty for no change."""
        diff = self.diff_bytes(base, commit, binary=False)
        return parse.patch_id(diff) if diff else ""

    # --- refs

    def for_each_ref(self, prefix: str) -> dict[str, str]:
        """Return ref -> object id for every ref under `prefix`."""
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix).text.splitlines()
        return dict(line.rsplit(" ", 1) for line in lines)

    def read_ref(self, ref: str) -> str | None:
        """Return what the full ref name points to."""
        done = self.git("rev-parse", "--verify", "--quiet", ref, ok=(0, 1, 128))
        return done.text if done.code == 0 else None

    def update_ref(self, ref: str, new: str, old: str | None = None, *, why: str = "infrarsi") -> None:
        """Move `ref` if it still is at `old` (ABSENT: must not exist; None: anywhere).

        Raises GitError `checked-out` for a branch that a work tree has checked out (its files would silently be out
        of date) and `ref-moved` where someone else was first.
        """
        self.require_free(ref)
        zero = "0" * len(new)
        expected = () if old is None else (old or zero,)
        done = self.git("update-ref", "--no-deref", "-m", why, ref, new, *expected, ok=(0, 1, 128))
        self._check_ref_update(ref, done)

    def delete_ref(self, ref: str, old: str) -> None:
        """Delete `ref` if it still is at `old`; a checked-out branch is refused."""
        self.require_free(ref)
        self._check_ref_update(ref, self.git("update-ref", "--no-deref", "-d", ref, old, ok=(0, 1, 128)))

    def rename_refs(self, moves: Sequence[tuple[str, str, str]]) -> None:
        """Move (old ref, new ref, object id) triples in one transaction: all or none."""
        lines = ["start"]
        for old, new, oid in moves:
            self.require_free(old)
            lines += [f"update {new} {oid}", f"delete {old} {oid}"]
        script = "\n".join([*lines, "prepare", "commit", ""])
        done = self.git("update-ref", "--no-deref", "--stdin", stdin=script.encode(), ok=(0, 1, 128))
        self._check_ref_update(f"{len(moves)} refs", done)

    def checked_out_branches(self) -> dict[str, Path]:
        """Return full branch ref -> work tree that has it checked out."""
        found: dict[str, Path] = {}
        path = self.root
        for line in self.git("worktree", "list", "--porcelain").text.splitlines():
            if line.startswith("worktree "):
                path = Path(line.removeprefix("worktree "))
            elif line.startswith("branch "):
                found[line.removeprefix("branch ")] = path
        return found

    def require_free(self, ref: str) -> None:
        """Raise GitError `checked-out` for a branch that a work tree has checked out."""
        where = self.checked_out_branches().get(ref) if ref.startswith("refs/heads/") else None
        if where is not None:
            name = ref.removeprefix("refs/heads/")
            raise GitError(
                f"branch {name} is checked out",
                why=f"in {where}; moving it would leave those files behind",
                hint=f"git -C {where} switch <another branch>",
                code="checked-out",
            )

    def _check_ref_update(self, ref: str, done: Completed) -> None:
        if done.code == 0:
            return
        if _MOVED.search(done.complaint):
            raise GitError(f"{ref} was moved meanwhile", why=done.complaint, hint="try again", code="ref-moved")
        raise failure(("update-ref", ref), done)


def colorbool(key: str, is_terminal: bool) -> bool:
    """Whether to colour, as `git config --get-colorbool` decides it for `key` here (inside a repository or not)."""
    flag = "true" if is_terminal else "false"
    here = Path.cwd()
    try:
        done = run_program(["git", "config", "--get-colorbool", key, flag], cwd=here, env=environment(os.environ))
    except GitError:
        return is_terminal
    return done.text.strip() == "true"


def _require_version(text: str) -> None:
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise GitError(f"{text} is too old", why=f"git {needed} or newer is needed", hint="upgrade git", code="old-git")
