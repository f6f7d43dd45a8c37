"""Signatures: made as the user's git signs, judged by programs and files that the repository cannot choose."""

import os
import shutil
import subprocess
import sys

import pytest

from infrarsi.errors import GitError
from infrarsi.vcs.signing import sign_bytes, signing_setup, verify_bytes, verify_commit
from infrarsi.vcs.trust import COMMIT_NAMESPACE, split_signature

PAYLOAD = b'{"patch_id":"x"}'


def signed_commit(sandbox, *config):
    words = [word for item in config for word in ("-c", item)]
    sandbox.git(*words, "commit", "-q", "-S", "--allow-empty", "-m", "signed")
    return sandbox.git("rev-parse", "HEAD")


def test_without_a_key_the_error_makes_one(sandbox):
    """The hint's two commands are what a person pastes; afterwards signing and verifying work."""
    with pytest.raises(GitError) as caught:
        signing_setup(sandbox.repo)
    error = caught.value
    assert error.code == "no-signing-key"
    first, second = error.hint.splitlines()
    assert "ssh-keygen -t ed25519" in first and "git config --global user.signingkey" in second
    for command in (first, second):
        subprocess.run(["bash", "-c", command], cwd=sandbox.root, check=True, capture_output=True)
    setup = signing_setup(sandbox.repo)
    assert (setup.format, setup.warning) == ("ssh", "")
    check = verify_bytes(sandbox.repo, PAYLOAD, sign_bytes(sandbox.repo, PAYLOAD))
    assert (check.status, check.principal) == ("good", "user@example.com")


def test_ssh_without_or_with_a_wrong_key_path(sandbox, tmp_path):
    sandbox.git("config", "gpg.format", "ssh")
    for value in (None, str(tmp_path / "nope")):
        if value:
            sandbox.git("config", "user.signingkey", value)
        with pytest.raises(GitError) as caught:
            signing_setup(sandbox.repo)
        assert caught.value.code == "no-signing-key"


def test_audit_round_trip(signer):
    signature = sign_bytes(signer.repo, PAYLOAD)
    check = verify_bytes(signer.repo, PAYLOAD, signature)
    assert (check.status, check.principal) == ("good", "user@example.com") and "SHA256:" in check.key
    assert verify_bytes(signer.repo, PAYLOAD + b" ", signature).status == "bad"
    assert verify_bytes(signer.repo, PAYLOAD, "").status == "none"
    assert verify_bytes(signer.repo, PAYLOAD, "hello").status == "bad"
    assert verify_bytes(signer.repo, PAYLOAD, signature.replace("U1NI", "AAAA")).status == "bad"
    assert verify_bytes(signer.repo, PAYLOAD, signature, expected="boss@example.com").status == "unknown"


def test_a_commit_signature_is_no_audit_signature(signer):
    """The namespace keeps one kind of signature from being passed off as the other."""
    signature = sign_bytes(signer.repo, PAYLOAD, namespace=COMMIT_NAMESPACE)
    assert verify_bytes(signer.repo, PAYLOAD, signature).status == "bad"


def test_commit_signatures(signer, keys):
    """R-I2: tampered, unsigned, by a stranger."""
    repo = signer.repo
    commit = signed_commit(signer)
    check = verify_commit(repo, commit)
    assert (check.status, check.principal) == ("good", "user@example.com")
    assert verify_commit(repo, signer.commit("unsigned")).status == "none"
    raw = signer.git("cat-file", "commit", commit) + "\n"
    forged = signer.git("hash-object", "-w", "-t", "commit", "--stdin", stdin=raw.replace("\nsigned", "\nforged"))
    assert verify_commit(repo, forged).status == "bad"
    stranger = signed_commit(signer, f"user.signingkey={keys / 'stranger.pub'}")
    assert verify_commit(repo, stranger).status == "unknown"
    double = raw.replace("gpgsig ", "gpgsig -----BEGIN SSH SIGNATURE-----\n x\ngpgsig ", 1)
    twice = signer.git("hash-object", "-w", "-t", "commit", "--stdin", "--literally", stdin=double)
    assert verify_commit(repo, twice).status == "bad"


def test_a_program_of_the_repository_is_never_asked(signer, tmp_path):
    """R-I2: a repository-configured signing program that says yes to everything."""
    commit = signed_commit(signer)
    raw = signer.git("cat-file", "commit", commit) + "\n"
    forged = signer.git("hash-object", "-w", "-t", "commit", "--stdin", stdin=raw.replace("\nsigned", "\nforged"))
    yes = tmp_path / "yes"
    good = 'Good "git" signature for user@example.com with ED25519 key SHA256:AAAA'
    yes.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho '{good}'\nexit 0\n")
    yes.chmod(0o755)
    for key in ("gpg.ssh.program", "gpg.program", "gpg.openpgp.program"):
        signer.git("config", key, str(yes))
    signer.git("verify-commit", forged)  # git itself is fooled
    (tmp_path / "asked").unlink()
    assert verify_commit(signer.repo, forged).status == "bad"
    assert verify_commit(signer.repo, commit).status == "good"
    assert not (tmp_path / "asked").exists()


def test_allowed_signers_in_the_work_tree_are_not_believed(signer, keys, isolated):
    """R-I2: the change would vouch for itself; the user's own file still counts."""
    stranger = signed_commit(signer, f"user.signingkey={keys / 'stranger.pub'}")
    signer.write("allowed_signers", f"user@example.com {(keys / 'stranger.pub').read_text()}")
    (isolated / "sneaky").symlink_to(signer.root / "allowed_signers")
    for value in ("allowed_signers", str(signer.root / "allowed_signers"), str(isolated / "sneaky")):
        signer.git("config", "gpg.ssh.allowedSignersFile", value)
        assert verify_commit(signer.repo, stranger).status == "unknown"
        assert verify_commit(signer.repo, signed_commit(signer)).status == "good"
    signer.git("config", "--global", "--unset", "gpg.ssh.allowedSignersFile")
    check = verify_commit(signer.repo, signed_commit(signer))
    assert check.status == "unknown" and "work tree" in check.message
    inside = signer.root / ".git" / "allowed_signers"
    inside.write_text((isolated / "allowed_signers").read_text())
    signer.git("config", "gpg.ssh.allowedSignersFile", str(inside))
    assert verify_commit(signer.repo, signed_commit(signer)).status == "good"


def test_nobody_to_vouch_is_unknown_and_said_at_signing(signer):
    signer.git("config", "--global", "--unset", "gpg.ssh.allowedSignersFile")
    assert "allowedSignersFile is not set" in signing_setup(signer.repo).warning
    assert verify_bytes(signer.repo, PAYLOAD, sign_bytes(signer.repo, PAYLOAD)).status == "unknown"


def test_expired_keys_and_other_namespaces(signer, keys, isolated):
    """R-I2."""
    repo, commit = signer.repo, signed_commit(signer)
    signature = sign_bytes(repo, PAYLOAD)
    file, public = isolated / "allowed_signers", (keys / "user.pub").read_text()
    file.write_text(f'user@example.com valid-before="20200101" {public}')
    assert verify_commit(repo, commit).status == "unknown"
    assert verify_bytes(repo, PAYLOAD, signature).status == "unknown"
    assert verify_bytes(repo, PAYLOAD, signature, at=1_500_000_000).status == "good"
    file.write_text(f'user@example.com namespaces="git" {public}')
    assert verify_commit(repo, commit).status == "good"
    assert verify_bytes(repo, PAYLOAD, signature).status == "unknown"
    file.write_text(f"*@example.com,boss@corp.com {public}")
    assert verify_commit(repo, commit).status == "good"


def test_a_literal_key_is_signed_by_the_agent(signer, keys, monkeypatch):
    if shutil.which("ssh-agent") is None:
        return
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    values = dict(part.split("=", 1) for line in agent.splitlines() for part in line.split(";")[:1] if "=" in part)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", values["SSH_AUTH_SOCK"])
        subprocess.run(["ssh-add", "-q", str(keys / "user")], check=True)
        signer.git("config", "user.signingkey", "key::" + (keys / "user.pub").read_text().strip())
        assert verify_bytes(signer.repo, PAYLOAD, sign_bytes(signer.repo, PAYLOAD)).status == "good"
        signer.git("config", "--unset", "user.signingkey")
        signer.git("config", "--global", "--unset", "user.signingkey")
        signer.git("config", "gpg.ssh.defaultKeyCommand", "ssh-add -L")
        assert signing_setup(signer.repo).key.startswith("ssh-ed25519 ")
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), 15)


def test_a_sha256_commit_signature(signer, tmp_path):
    """R-E6."""
    signer.git("init", "-q", "--object-format=sha256", str(tmp_path / "long"))
    signer.root = tmp_path / "long"
    assert verify_commit(signer.repo, signed_commit(signer)).status == "good"


def test_a_pre_receive_hook_sees_the_pushed_commit(signer, tmp_path):
    """R-I4: in a bare repository, the pushed objects are in quarantine."""
    server = tmp_path / "server.git"
    signer.git("init", "-q", "--bare", str(server))
    script = tmp_path / "hook.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        "from infrarsi.vcs.door import Repository; from infrarsi.vcs.signing import verify_commit\n"
        "repo = Repository.discover(Path.cwd(), bare=True, quarantine=True)\n"
        "new = sys.stdin.read().split()[1]\n"
        "sys.exit(verify_commit(repo, new).status != 'good')\n"
    )
    hook = server / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    hook.chmod(0o755)
    unsigned = signer.git("push", str(server), "HEAD:refs/heads/main", check=False)
    assert "main" not in signer.git("ls-remote", str(server)), unsigned
    commit = signed_commit(signer)
    signer.git("push", "-q", str(server), "HEAD:refs/heads/main")
    assert commit in signer.git("ls-remote", str(server))


def test_the_signature_is_cut_out_of_the_commit():
    raw = b"tree t\nauthor a\ngpgsig A\n B\n \n C\nencoding x\n\nmsg\n\ngpgsig not a header\n"
    assert split_signature(raw) == (b"tree t\nauthor a\nencoding x\n\nmsg\n\ngpgsig not a header\n", ["A\nB\n\nC\n"])
    assert split_signature(b"tree t\n\nm\n") == (b"tree t\n\nm\n", [])


@pytest.fixture
def gpg(sandbox, isolated, monkeypatch):
    """A gpg key of our own, in a short-named home (the agent's socket path is limited)."""
    import tempfile

    home = tempfile.mkdtemp(prefix="g", dir="/tmp")
    monkeypatch.setenv("GNUPGHOME", home)
    argv = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "A User <user@example.com>", "ed25519"]
    subprocess.run([*argv, "sign", "0"], check=True, capture_output=True)
    yield sandbox
    subprocess.run(["gpgconf", "--kill", "all"], check=False, capture_output=True)
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not on this platform")
def test_openpgp(gpg):
    """A user who signs with gpg, found by her identity alone."""
    repo = gpg.repo
    assert signing_setup(repo).format == "openpgp"
    signature = sign_bytes(repo, PAYLOAD)
    check = verify_bytes(repo, PAYLOAD, signature)
    assert check.status == "good" and "user@example.com" in check.principal
    assert verify_bytes(repo, PAYLOAD + b"x", signature).status == "bad"
    commit = signed_commit(gpg)
    assert verify_commit(repo, commit).status == "good"
    raw = gpg.git("cat-file", "commit", commit) + "\n"
    forged = gpg.git("hash-object", "-w", "-t", "commit", "--stdin", stdin=raw.replace("\nsigned", "\nforged"))
    assert verify_commit(repo, forged).status == "bad"
    key = subprocess.run(["gpg", "--list-keys", "--with-colons"], capture_output=True, text=True).stdout
    fingerprint = next(line.split(":")[9] for line in key.splitlines() if line.startswith("fpr"))
    subprocess.run(["gpg", "--import-ownertrust"], input=f"{fingerprint}:3:\n", text=True, capture_output=True)
    subprocess.run(["gpg", "--batch", "--yes", "--delete-secret-and-public-key", fingerprint], capture_output=True)
    assert verify_commit(repo, commit).status == "unknown"
