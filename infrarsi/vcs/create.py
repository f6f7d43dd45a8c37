"""New repositories, for the demo only: nowhere else does the tool write to a work tree or an index."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from infrarsi.errors import GitError

DEMO_MARKER = "infrarsi-demo"
WHO = ("infrarsi demo", "demo@infrarsi.invalid")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise GitError(f"git {arguments[0]} failed in {folder}", why=done.stderr.strip(), hint="git --version")
    return done.stdout.strip()


def _config(folder: Path, key: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), "config", key], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def create_repository(folder: Path) -> None:
    """Initialise `folder` on branch main, with an identity of its own where git has none."""
    _git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".git" / DEMO_MARKER).mkdir()
    for key, value in zip(("user.name", "user.email"), WHO, strict=True):
        if not _config(folder, key):
            _git(folder, "config", key, value)


def commit_all(folder: Path, message: str) -> None:
    """Add everything that git does not ignore, and commit it."""
    _git(folder, "add", "--all")
    _git(folder, "-c", "commit.gpgSign=false", "commit", "--quiet", "-m", message)


def demo_signing_key(folder: Path) -> str:
    """Give the repository an ephemeral ssh signing key where git is configured with none; return what to tell the user.

    The key lies in the git directory, outside the tracked tree, and is worth nothing outside the demo.
    """
    if _config(folder, "user.signingkey"):
        return ""
    if shutil.which("ssh-keygen") is None:
        raise GitError(
            "there is no key to sign with, and no ssh-keygen to make one",
            why="the promoted commit is signed",
            hint="install openssh-client (apt-get install openssh-client)",
        )
    home = folder.resolve() / ".git" / DEMO_MARKER
    key = home / "signing-key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "infrarsi demo", "-f", str(key)], check=True, timeout=30
    )
    principal = _config(folder, "user.email")
    public = key.with_suffix(".pub").read_text().split()
    (home / "allowed_signers").write_text(f'{principal} namespaces="git,infrarsi-audit@v1" {public[0]} {public[1]}\n')
    _git(folder, "config", "gpg.format", "ssh")
    _git(folder, "config", "user.signingkey", str(key))
    _git(folder, "config", "gpg.ssh.allowedSignersFile", str(home / "allowed_signers"))
    return "git has no signing key here, so the demo made an ephemeral ssh key for this repository only."
