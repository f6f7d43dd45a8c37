"""Signs as the user's git signs: ssh, OpenPGP or x509, with the key and program of the user's configuration.

Verification is another matter, with pinned programs: see `trust`.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infrarsi.errors import GitError
from infrarsi.vcs.door import Repository
from infrarsi.vcs.process import run_program
from infrarsi.vcs.trust import AUDIT_NAMESPACE, Format, SignatureCheck, allowed_signers, verify_bytes, verify_commit

__all__ = ["SignatureCheck", "SigningSetup", "sign_bytes", "signing_setup", "verify_bytes", "verify_commit"]

MAKE_A_KEY = (
    "mkdir -p -m 700 ~/.ssh && ssh-keygen -t ed25519 -N '' -f ~/.ssh/git_signing && "
    'echo "$(git config user.email) $(cat ~/.ssh/git_signing.pub)" >> ~/.ssh/allowed_signers\n'
    "git config --global gpg.format ssh && git config --global user.signingkey ~/.ssh/git_signing.pub && "
    "git config --global gpg.ssh.allowedSignersFile ~/.ssh/allowed_signers"
)
_PROGRAMS: dict[Format, tuple[str, str]] = {
    "ssh": ("gpg.ssh.program", "ssh-keygen"),
    "openpgp": ("gpg.program", "gpg"),
    "x509": ("gpg.x509.program", "gpgsm"),
}


@dataclass(frozen=True)
class SigningSetup:
    """How this user signs. `warning` says why nobody could verify it here; empty when they can."""

    format: Format
    key: str
    program: str
    warning: str = ""


def signing_setup(repo: Repository) -> SigningSetup:
    """Return how the user signs; GitError with the commands that make a key where git is configured with none."""
    value = repo.config("gpg.format") or "openpgp"
    kind: Format | None = next((k for k in _PROGRAMS if k == value), None)
    if kind is None:
        raise GitError(f"gpg.format is {value!r}", why="git knows openpgp, ssh and x509", code="signing-format")
    variable, default = _PROGRAMS[kind]
    program = repo.config(variable, as_path=True) or (repo.config("gpg.openpgp.program") if kind == "openpgp" else None)
    program = program or default
    key = repo.config("user.signingkey") or ""
    if kind == "ssh":
        key = key or _default_ssh_key(repo)
        if not key:
            raise _no_key("gpg.format is ssh, and user.signingkey is not set")
        path = Path(key).expanduser()
        if not _literal(key) and not path.exists():
            raise _no_key(f"user.signingkey names {key}, which does not exist")
        why = allowed_signers(repo)[1]
        return SigningSetup(
            kind, key if _literal(key) else str(path), program, f"nobody can verify it: {why}" if why else ""
        )
    key = key or repo.git("var", "GIT_COMMITTER_IDENT").text.rpartition(">")[0] + ">"
    _require_secret_key(repo, program, key)
    return SigningSetup(kind, key, program)


def _no_key(why: str) -> GitError:
    return GitError("there is no key to sign with", why=why, hint=MAKE_A_KEY, code="no-signing-key")


def _literal(key: str) -> bool:
    """Git's rule: `key::…` or `ssh-…` is the public key itself, held by the agent; anything else is a path."""
    return key.startswith(("key::", "ssh-"))


def _default_ssh_key(repo: Repository) -> str:
    command = repo.config("gpg.ssh.defaultKeyCommand")
    if not command:
        return ""
    done = run_program(shlex.split(command), cwd=repo.root, env=_environment())
    lines = done.text.splitlines()
    return lines[0] if done.code == 0 and lines and _literal(lines[0]) else ""


def _require_secret_key(repo: Repository, program: str, key: str) -> None:
    try:
        done = run_program([program, "--batch", "--list-secret-keys", key], cwd=repo.root, env=_environment())
    except GitError as error:
        raise _no_key(f"user.signingkey is not an ssh key, and {error.what}") from error
    if done.code != 0:
        raise _no_key(f"{program} has no secret key for {key}")


def sign_bytes(repo: Repository, payload: bytes, namespace: str = AUDIT_NAMESPACE) -> str:
    """Return an armoured detached signature over `payload`. Raises GitError where the key cannot be used."""
    setup = signing_setup(repo)
    if setup.format == "ssh":
        signature = _sign_ssh(repo, setup, payload, namespace)
    else:
        args = [setup.program, "--status-fd=2", "-bsau", setup.key]
        done = run_program(args, cwd=repo.root, env=_environment(), stdin=payload)
        if done.code != 0:
            raise _refused(setup, done.complaint)
        signature = done.stdout.decode()
    if verify_bytes(repo, payload, signature, namespace=namespace).status in ("bad", "none"):
        raise _refused(setup, "what it made does not verify")
    return signature


def _sign_ssh(repo: Repository, setup: SigningSetup, payload: bytes, namespace: str) -> str:
    with tempfile.TemporaryDirectory(prefix="infrarsi-sign-") as folder:
        message = Path(folder) / "payload"
        message.write_bytes(payload)
        key, agent = setup.key, []
        if _literal(key):
            public = Path(folder) / "key.pub"
            public.write_text(key.removeprefix("key::") + "\n")
            key, agent = str(public), ["-U"]
        args = [setup.program, "-Y", "sign", "-n", namespace, "-f", key, *agent, str(message)]
        done = run_program(args, cwd=repo.root, env=_environment())
        made = message.with_name("payload.sig")
        if done.code != 0 or not made.exists():
            raise _refused(setup, done.complaint)
        return made.read_text()


def _refused(setup: SigningSetup, why: str) -> GitError:
    return GitError(
        f"signing with the {setup.format} key failed",
        why=why[-400:],
        hint="try it: git commit --allow-empty -S -m test (and unlock the key, or start the agent)",
        code="signing-failed",
    )


def _environment() -> Mapping[str, str]:
    return {**os.environ, "LC_ALL": "C"}
