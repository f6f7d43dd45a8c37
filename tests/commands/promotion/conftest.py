"""Repositories in which a run has ended, made once per module and copied for every test that asks for one."""

import os
import subprocess

import pytest
from promotion_case import Case, copy_of


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of our own with two keys: `user`, whom everyone trusts, and `stranger`."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("user", "stranger"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    trusted = folder / "allowed_signers"
    trusted.write_text(f"user@example.com {(folder / 'user.pub').read_text()}")
    (folder / ".gitconfig").write_text(
        "[user]\n\tname = A User\n\temail = user@example.com\n"
        f'\tsigningkey = {folder}/user.pub\n[gpg]\n\tformat = ssh\n[gpg "ssh"]\n\tallowedSignersFile = {trusted}\n'
        '[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n[protocol "file"]\n\tallow = always\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("GIT_") or n in ("SSH_AUTH_SOCK", "GNUPGHOME")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
        patch.setenv("GIT_CONFIG_GLOBAL", str(folder / ".gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        yield folder


@pytest.fixture(scope="module")
def templates(tmp_path_factory, home):
    """Repositories to copy: one with a finished run, one where it is promoted, one whose contract wants a signature."""
    folder = tmp_path_factory.mktemp("templates")
    Case(folder / "measured").create().run()
    for name, strict in (("promoted", False), ("strict", True)):
        case = Case(folder / name).create(require_signature=strict).run()
        case.apply()
    return folder


@pytest.fixture
def measured(templates, tmp_path):
    return copy_of(templates, "measured", tmp_path / "project")


@pytest.fixture
def case(templates, tmp_path):
    return copy_of(templates, "promoted", tmp_path / "project")


@pytest.fixture
def strict(templates, tmp_path):
    return copy_of(templates, "strict", tmp_path / "project")
