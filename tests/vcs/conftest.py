"""Real repositories that see nothing of the user's own git configuration."""

import os
import subprocess
from pathlib import Path

import pytest

from infrarsi.vcs.door import Repository

TRAIN = "".join(f"line {number}\n" for number in range(1, 31))


class Sandbox:
    """One repository and a plain git in it, as a user would type it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *args: str, stdin: str | None = None, check: bool = True, **env: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.root, input=stdin, capture_output=True, text=True, env={**os.environ, **env}
        )
        if check and done.returncode:
            raise AssertionError(f"git {args}: {done.stderr}")
        return done.stdout.strip()

    def write(self, path: str, content: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, message: str = "change", **files: str) -> str:
        for path, content in files.items():
            self.write(path, content)
        self.git("add", "-A")
        self.git("commit", "--no-gpg-sign", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    @property
    def repo(self) -> Repository:
        return Repository.discover(self.root)

    def everything(self) -> dict[str, object]:
        """HEAD, index and every byte outside the tool's own folder and git's objects and refs of ours (R-E1)."""
        files = {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".git" not in path.relative_to(self.root).parts
        }
        git_dir = self.root / ".git"
        return {"files": files, "index": (git_dir / "index").read_bytes(), "head": (git_dir / "HEAD").read_text()}


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """A home of our own: no user configuration, no agent, no inherited GIT_ variables."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [n for n in os.environ if n.startswith("GIT_") or n in ("SSH_AUTH_SOCK", "GNUPGHOME")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    config = "[user]\n\tname = A User\n\temail = user@example.com\n[init]\n\tdefaultBranch = main\n"
    config += '[protocol "file"]\n\tallow = always\n'
    (home / ".gitconfig").write_text(config)
    return home


@pytest.fixture
def sandbox(tmp_path):
    """A repository with one commit: train.py, config.json, a package, an ignored data folder."""
    box = Sandbox(tmp_path / "project")
    box.root.mkdir()
    box.git("init", "-q")
    box.write(".gitignore", "data/\n*.pyc\n")
    box.write("data/train.bin", b"\0\1\2")
    box.write("config/base.json", '{"lr": 1}\n')
    box.write("train.py", TRAIN)
    box.commit("start")
    return box


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Two ephemeral ssh keys: `user`, whom everyone trusts, and `stranger`."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("user", "stranger"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    return folder


@pytest.fixture
def signer(sandbox, keys, isolated):
    """Configure the user's git to sign with ssh, and to trust that key only."""
    public = (keys / "user.pub").read_text()
    trusted = isolated / "allowed_signers"
    trusted.write_text(f'user@example.com namespaces="git,infrarsi-audit@v1" {public}')
    for key, value in (
        ("gpg.format", "ssh"),
        ("user.signingkey", str(keys / "user.pub")),
        ("gpg.ssh.allowedSignersFile", str(trusted)),
    ):
        sandbox.git("config", "--global", key, value)
    return sandbox
