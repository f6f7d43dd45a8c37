"""How a git process is started: the environment it sees, the configuration forced on it, the errors it turns into."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi.errors import GitError

MINIMUM_VERSION = (2, 34)  # ssh signatures, GIT_CONFIG_COUNT, rev-parse --path-format
TIMEOUT_SECONDS = 300.0

# Every GIT_* variable is dropped but these. What `git rev-parse --local-env-vars` lists (GIT_DIR, GIT_INDEX_FILE,
# GIT_CONFIG_PARAMETERS, …) is set inside hooks and would send our calls to another index or repository.
_KEPT = re.compile(
    r"GIT_(AUTHOR_|COMMITTER_|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)$|EXEC_PATH$|SSH|SSL_|PROXY|ASKPASS$|ALLOW_PROTOCOL$"
    r"|CEILING_DIRECTORIES$|DISCOVERY_ACROSS_FILESYSTEM$)"
)
# A pre-receive hook sees the pushed objects only through these.
QUARANTINE = ("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH")

# Forced on every call: nothing of the repository's own choosing runs beside us (hooks, fsmonitor, automatic gc), and
# nothing of the user's taste changes what we parse.
_CONFIG: tuple[tuple[str, str], ...] = (
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.sparseCheckout", "false"),
    ("core.quotePath", "false"),
    ("submodule.recurse", "false"),
    ("apply.whitespace", "nowarn"),
    ("apply.ignoreWhitespace", "no"),
    ("i18n.commitEncoding", "utf-8"),
    ("advice.detachedHead", "false"),
)


@dataclass(frozen=True)
class Completed:
    """One finished process."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the last newline."""
        return self.stdout.decode(errors="surrogateescape").removesuffix("\n")

    @property
    def complaint(self) -> str:
        """Standard error as one readable block."""
        return self.stderr.decode(errors="replace").strip()


def environment(
    inherited: Mapping[str, str],
    *,
    config: Iterable[tuple[str, str]] = (),
    extra: Mapping[str, str] | None = None,
    quarantine: bool = False,
) -> dict[str, str]:
    """Return the environment of a git process: no inherited repository state, forced configuration, no prompts."""
    clean = {
        key: value
        for key, value in inherited.items()
        if not key.startswith("GIT_") or _KEPT.match(key) or (quarantine and key in QUARANTINE)
    }
    forced = [*_CONFIG, *config]
    clean["GIT_CONFIG_COUNT"] = str(len(forced))
    for number, (key, value) in enumerate(forced):
        clean[f"GIT_CONFIG_KEY_{number}"] = key
        clean[f"GIT_CONFIG_VALUE_{number}"] = value
    clean |= {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        # refs/replace and grafts would show us another commit than the one that was signed.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
    }
    return clean | dict(extra or {})


def run_program(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Completed:
    """Run one program to its end. Raises GitError where it is missing or exceeds its deadline."""
    words = [os.fspath(word) for word in argv]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=dict(env), input=stdin or b"", capture_output=True, timeout=timeout, check=False
        )
    except FileNotFoundError as error:
        raise GitError(
            f"{words[0]} is not installed" if cwd.is_dir() else f"{cwd} is not a folder",
            why=str(error),
            hint=f"install {words[0]}, or put it on PATH" if cwd.is_dir() else "",
            code="program-missing",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise GitError(
            f"{' '.join(words[:3])} did not end within {timeout:.0f} s",
            why="it may wait for a passphrase, a network or a lock",
            code="git-timeout",
        ) from error
    return Completed(done.returncode, done.stdout, done.stderr)


def failure(args: Sequence[str], done: Completed) -> GitError:
    """Return the error that says what went wrong in words a person can act on."""
    complaint = done.complaint
    why = complaint.splitlines()[0] if complaint else f"exit code {done.code}"
    for pattern, what, hint, code in _KNOWN:
        if re.search(pattern, complaint, re.IGNORECASE):
            return GitError(what, why=why, hint=hint, code=code)
    return GitError(f"git {' '.join(args[:2])} failed", why=complaint[-600:] or why, code="git-failed")


_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (r"no space left on device", "the disk is full", "free some space; nothing was lost", "disk-full"),
    (
        r"read-only file system|insufficient permission|permission denied",
        "the repository cannot be written",
        "check the owner and mode of its .git folder",
        "read-only",
    ),
    (
        r"dubious ownership",
        "this repository belongs to another user",
        "if you trust it: git config --global --add safe.directory <path>",
        "foreign-owner",
    ),
    (
        r"not a git repository",
        "this is not a git repository",
        "run inside one, or: git init && git add -A && git commit",
        "not-a-repository",
    ),
    (
        r"empty ident name|please tell me who you are|unable to auto-detect email",
        "git does not know who you are",
        'git config --global user.name "…" && git config --global user.email "…"',
        "no-identity",
    ),
    (
        r"unable to read tree|bad object|missing (blob|tree|commit)",
        "an object is missing in this clone",
        "git fetch --unshallow, or git fsck",
        "missing-object",
    ),
)
