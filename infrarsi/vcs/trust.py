"""Who signed, checked by programs that the repository cannot choose.

A repository's own `gpg.ssh.program` can make a tampered commit verify as good, and an allowed-signers file that lies in
the work tree can be edited by the very change it should judge. So `ssh-keygen`, `gpg` and `gpgsm` are taken from PATH,
and the file from git's configuration only where it lies outside every work tree of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from infrarsi.errors import GitError
from infrarsi.vcs.door import Repository
from infrarsi.vcs.process import Completed, run_program

AUDIT_NAMESPACE = "infrarsi-audit@v1"
COMMIT_NAMESPACE = "git"
Format = Literal["ssh", "openpgp", "x509"]
_ARMOUR: tuple[tuple[str, Format], ...] = (
    ("-----BEGIN SSH SIGNATURE-----", "ssh"),
    ("-----BEGIN PGP SIGNATURE-----", "openpgp"),
    ("-----BEGIN PGP MESSAGE-----", "openpgp"),
    ("-----BEGIN SIGNED MESSAGE-----", "x509"),
)


@dataclass(frozen=True)
class SignatureCheck:
    """`good`: by a key the user trusts. `bad`: does not fit the content. `unknown`: fits, by a key nobody vouches for
    (or one that was expired or revoked). `none`: there is no signature."""

    status: Literal["good", "bad", "unknown", "none"]
    principal: str
    message: str
    key: str = ""


def allowed_signers(repo: Repository) -> tuple[Path | None, str]:
    """Return the file to trust and, where there is none, why not."""
    args = ("config", "-z", "--show-scope", "--type=path", "--get-all", "gpg.ssh.allowedSignersFile")
    fields = repo.git(*args, ok=(0, 1)).text.split("\0")
    why = "gpg.ssh.allowedSignersFile is not set"
    for value in reversed(fields[1::2]):
        path = Path(value) if Path(value).is_absolute() else repo.root / value
        if not path.is_file():
            why = f"{value} (gpg.ssh.allowedSignersFile) does not exist"
        elif _in_work_tree(repo, path.resolve()):
            why = f"{value} (gpg.ssh.allowedSignersFile) lies in the work tree, where the change itself could edit it"
        else:
            return path.resolve(), ""
    return None, why


def _in_work_tree(repo: Repository, path: Path) -> bool:
    if path.is_relative_to(repo.common_dir.resolve()):
        ours = repo.common_dir.resolve() / "infrarsi" / "worktrees"
        return path.is_relative_to(ours)
    lines = repo.git("worktree", "list", "--porcelain").text.splitlines()
    trees = [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")]
    return any(path.is_relative_to(tree.resolve()) for tree in (repo.root, *trees))


def verify_bytes(
    repo: Repository,
    payload: bytes,
    signature: str,
    *,
    namespace: str = AUDIT_NAMESPACE,
    at: int | None = None,
    signers: Path | None = None,
    expected: str | None = None,
) -> SignatureCheck:
    """Check a detached signature over `payload`.

    `at` (seconds since 1970, default now) is the time at which the key must have been valid; `signers` overrides the
    user's allowed-signers file; `expected` demands one principal.
    """
    kind = next((kind for armour, kind in _ARMOUR if signature.lstrip().startswith(armour)), None)
    if kind is None:
        status: Literal["none", "bad"] = "bad" if signature.strip() else "none"
        return SignatureCheck(status, "", "there is no signature" if status == "none" else "this is not a signature")
    if kind == "ssh":
        check = _verify_ssh(repo, payload, signature, namespace, at, signers)
    else:
        check = _verify_gpg(repo, payload, signature, kind)
    if check.status == "good" and expected is not None and check.principal != expected:
        return SignatureCheck("unknown", check.principal, f"signed by {check.principal}, not by {expected}", check.key)
    return check


def verify_commit(
    repo: Repository, commit: str, *, signers: Path | None = None, expected: str | None = None
) -> SignatureCheck:
    """Check a commit's own signature; the key must have been valid at the committer's time."""
    payload, signatures = split_signature(repo.raw_commit(commit), repo.object_format)
    if not signatures:
        return SignatureCheck("none", "", "the commit is not signed")
    if len(signatures) > 1:
        return SignatureCheck("bad", "", "the commit carries more than one signature")
    at = repo.commit_time(commit)
    return verify_bytes(
        repo, payload, signatures[0], namespace=COMMIT_NAMESPACE, at=at, signers=signers, expected=expected
    )


def split_signature(raw: bytes, object_format: str = "sha1") -> tuple[bytes, list[str]]:
    """Return the bytes a commit's signature covers, and the signatures of the repository's own hash."""
    wanted = b"gpgsig" if object_format == "sha1" else b"gpgsig-sha256"
    head, gap, body = raw.partition(b"\n\n")
    kept: list[bytes] = []
    signatures: list[list[bytes]] = []
    inside = skipping = False
    for line in head.split(b"\n"):
        if line.startswith(b" ") and (inside or skipping):
            if inside:
                signatures[-1].append(line[1:])
            continue
        name, _, value = line.partition(b" ")
        inside, skipping = name == wanted, name in (b"gpgsig", b"gpgsig-sha256")
        if inside:
            signatures.append([value])
        elif not skipping:
            kept.append(line)
    return b"\n".join(kept) + gap + body, [b"\n".join(s).decode(errors="replace") + "\n" for s in signatures]


# --- ssh


def _verify_ssh(
    repo: Repository, payload: bytes, signature: str, namespace: str, at: int | None, signers: Path | None
) -> SignatureCheck:
    """Ask ssh-keygen: does the signature fit, and does the allowed-signers file vouch for its key and namespace?"""
    with _signature_file(signature) as path:
        fits = ssh_keygen(repo, ["-Y", "check-novalidate", "-n", namespace, "-s", path], stdin=payload)
        if fits.code != 0:
            return SignatureCheck("bad", "", f"the signature does not fit: {_first(fits)}")
        key = _fingerprint(fits)
        file, why = (signers, "") if signers is not None else allowed_signers(repo)
        if file is None:
            return SignatureCheck("unknown", "", f"signed by {key}, but {why}", key)
        moment = datetime.fromtimestamp(at, UTC) if at is not None else datetime.now(UTC)
        when = f"-Overify-time={moment:%Y%m%d%H%M%S}"
        found = ssh_keygen(repo, ["-Y", "find-principals", "-f", str(file), "-s", path, when])
        for principal in _principals(found):
            args = ["-Y", "verify", "-f", str(file), "-I", principal, "-n", namespace, "-s", path, when]
            if ssh_keygen(repo, args, stdin=payload).code == 0:
                return SignatureCheck("good", principal, f"good signature by {principal} with {key}", key)
    return SignatureCheck(
        "unknown", "", f"{key} is not a valid key of anyone in {file} (unknown, expired or revoked)", key
    )


def ssh_keygen(repo: Repository, args: Sequence[str], *, stdin: bytes | None = None) -> Completed:
    """Run the ssh-keygen of PATH, outside the repository. Times are UTC."""
    program = _pinned("ssh-keygen", "install openssh-client")
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    return run_program([program, *args], cwd=repo.common_dir, env=env, stdin=stdin)


def _principals(found: Completed) -> Iterator[str]:
    if found.code == 0:
        for line in found.text.splitlines():
            yield from (name.strip() for name in line.split(",") if name.strip() and not name.startswith("!"))


def _fingerprint(done: Completed) -> str:
    match = re.search(rb"with (\S+) key (SHA256:\S+)", done.stdout + done.stderr)
    return f"{match[1].decode()} {match[2].decode()}" if match else "an ssh key"


# --- gpg and x509


def _verify_gpg(repo: Repository, payload: bytes, signature: str, kind: Format) -> SignatureCheck:
    """Ask gpg or gpgsm and read its status lines; a key without trust is unknown, as in git's own `U`."""
    program = _pinned("gpg" if kind == "openpgp" else "gpgsm", "install gnupg")
    with _signature_file(signature) as path:
        args = [program, "--batch", "--no-tty", "--status-fd=1", "--verify", path, "-"]
        done = run_program(args, cwd=repo.common_dir, env={**os.environ, "LC_ALL": "C"}, stdin=payload)
    status = [line.removeprefix("[GNUPG:] ") for line in done.text.splitlines() if line.startswith("[GNUPG:] ")]
    words = {line.split(" ", 1)[0]: line for line in status}
    signed_by = [line for line in status if re.match(r"(GOOD|BAD|ERR|EXP|EXPKEY|REVKEY)SIG ", line)]
    name = " ".join(signed_by[0].split()[2:]) if signed_by else ""
    key = words["VALIDSIG"].split()[1] if "VALIDSIG" in words else (signed_by[0].split()[1] if signed_by else "")
    if len(signed_by) != 1 or "BADSIG" in words:
        return SignatureCheck("bad", "", f"the signature does not fit: {_first(done)}", key)
    trusted = words.keys() & {"TRUST_MARGINAL", "TRUST_FULLY", "TRUST_ULTIMATE"}
    if "GOODSIG" in words and "VALIDSIG" in words and trusted and done.code == 0:
        return SignatureCheck("good", name, f"good signature by {name} with {key}", key)
    return SignatureCheck("unknown", name, f"the key {key} is absent, expired, revoked or not trusted", key)


def _pinned(name: str, hint: str) -> str:
    """Return the absolute path of a program on PATH; entries of PATH that are not absolute are not looked at."""
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(folder).is_absolute()]
    program = shutil.which(name, path=os.pathsep.join(folders))
    if program is None:
        raise GitError(f"{name} is not installed", why="it checks signatures", hint=hint, code="program-missing")
    return program


def _first(done: Completed) -> str:
    lines = done.complaint.splitlines() or done.text.splitlines()
    return lines[0] if lines else f"exit code {done.code}"


@contextmanager
def _signature_file(signature: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="infrarsi-sig-") as folder:
        path = Path(folder) / "sig"
        path.write_text(signature if signature.endswith("\n") else signature + "\n")
        yield str(path)
