"""What an execution may not write: its own sources, the locked data, the packages that it imports (R-A1).

Files are compared by what the kernel keeps of them, not by content: the time of the last change of an inode (ctime)
cannot be set by a program, so a file that was rewritten for the import and put back afterwards is noticed too.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.records import Violation

# What Python would load, wherever it lies; other new files (checkpoints, logs) are a training's own business.
_CODE = (".py", ".pyc", ".pth", ".so", ".pyd", ".egg-link")
_MOST_NAMED = 5
Mark = tuple[int, int, int, int, str]


@dataclass(frozen=True)
class Watch:
    """The state before an execution. `packages` are folders that are compared by the time at which it began."""

    worktree: Path
    tracked: frozenset[str]
    packages: tuple[Path, ...]
    began_ns: int
    marks: dict[str, Mark]

    @classmethod
    def begin(cls, worktree: Path, tracked: Collection[str], packages: Sequence[Path] = ()) -> Watch:
        """Remember how the tracked files, the links and the code of a worktree are now."""
        kept = frozenset(tracked)
        worktree = worktree.absolute()
        return cls(worktree, kept, tuple(packages), time.time_ns(), _marks(worktree, kept))

    def violations(self) -> tuple[Violation, ...]:
        """Return a violation for each thing that was written, replaced or removed since; many are summed up."""
        now = _marks(self.worktree, self.tracked)
        changed = sorted(name for name in self.marks if now.get(name) != self.marks[name])
        homes = {Path(), *(Path(name).parent for name in self.tracked if name.endswith(_CODE))}
        # Beside tracked code it can be imported; in a folder of its own it is a log (many keep a copy of their code).
        added = sorted(n for n in now.keys() - self.marks.keys() if n.endswith(_CODE) and Path(n).parent in homes)
        found = [_violation("source", f"{name} was {self._how(name, now)} during the trial") for name in changed]
        found += [_violation("source", f"{name} is code that the trial wrote into its own worktree") for name in added]
        packages = [str(path) for folder in self.packages for path in _changed_since(folder, self.began_ns)]
        found += [
            _violation("packages", f"{path}, an installed file, was written during the trial") for path in packages
        ]
        if len(found) > _MOST_NAMED:
            more = f"{found[_MOST_NAMED - 1].message}, and {len(found) - _MOST_NAMED} more files"
            return (*found[: _MOST_NAMED - 1], _violation(found[_MOST_NAMED - 1].check, more))
        return tuple(found)

    def _how(self, name: str, now: dict[str, Mark]) -> str:
        if name not in now:
            return "removed or replaced"
        link = stat.S_ISLNK(self.marks[name][0]) or stat.S_ISLNK(now[name][0])
        return "replaced (a link)" if link else "written"


def _marks(worktree: Path, tracked: frozenset[str]) -> dict[str, Mark]:
    """Return mode, size, ctime, inode and link target of what counts in a worktree, by path. Links are not followed."""
    marks: dict[str, Mark] = {}
    root, real = str(worktree), worktree.resolve()
    for path, entry in _files(root):
        name = path[len(root) + 1 :]
        link = entry.is_symlink()
        # A link inside the worktree (`latest` to a checkpoint) is an output; one that leads out of it is ours, to data.
        leads_out = link and not Path(path).resolve().is_relative_to(real)
        if name in tracked or leads_out or name.endswith(_CODE):
            try:
                status = entry.stat(follow_symlinks=False)
                target = f"{Path(path).readlink()} {_behind(Path(path))}" if link else ""
            except OSError:
                continue
            marks[name] = (status.st_mode, status.st_size, status.st_ctime_ns, status.st_ino, target)
    return marks


def _behind(path: Path) -> str:
    """Return what tells whether the file behind a link was written; folders behind links are the data check's."""
    try:
        status = path.stat()
    except OSError:
        return "nothing"
    return f"{status.st_ino} {status.st_size} {status.st_ctime_ns}" if stat.S_ISREG(status.st_mode) else ""


def _files(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield files and links below a folder, without the pointer to git; a folder that cannot be read has none."""
    stack = [folder]
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.name != ".git":
                        yield entry.path, entry
        except OSError:
            continue


def _changed_since(folder: Path, when_ns: int) -> Iterator[str]:
    """Yield the code below a folder of installed packages whose inode was changed after `when_ns`."""
    for path, entry in _files(str(folder)):
        if path.endswith(_CODE) and entry.stat(follow_symlinks=False).st_ctime_ns > when_ns:
            yield path


def _violation(check: str, message: str) -> Violation:
    return Violation("scope", check, message, observed="changed", allowed="as it was")
