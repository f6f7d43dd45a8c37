"""Bubblewrap: what it is asked for, when it is refused, and what a trial can reach from inside (R-A7)."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from infrarsi.errors import TrialError
from infrarsi.trial import sandbox
from infrarsi.trial.execute import run_trial

REACH = """
import os, socket
for path in {paths!r}:
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        print("refused", path)
print("home", sorted(os.listdir({home!r})) if os.path.isdir({home!r}) else [])
try:
    socket.create_connection(("192.0.2.1", 9), 2)
except OSError as error:
    print("network", error.errno)
"""


@pytest.fixture
def bwrap(tmp_path, monkeypatch):
    """A stand-in program of that name, first on PATH; yields a function that says what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(script: str) -> None:
        (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bwrap").chmod(0o755)
        sandbox.available.cache_clear()

    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    yield write
    sandbox.available.cache_clear()


def test_installed_and_not_permitted(bwrap):
    bwrap("echo 'setting up uid map: Permission denied' >&2; exit 1")
    assert not sandbox.available().works and "Permission denied" in sandbox.available().why
    assert sandbox.wanted("auto", untrusted=False) is False
    assert sandbox.wanted("off", untrusted=True) is False
    for choice, untrusted in (("required", False), ("auto", True)):
        with pytest.raises(TrialError, match="needs a sandbox") as refused:
            sandbox.wanted(choice, untrusted=untrusted)
        assert 'sandbox = "off"' in refused.value.hint


def test_untrusted_code_is_refused_before_anything_starts(bwrap, place):
    bwrap("exit 1")
    with pytest.raises(TrialError, match="written by a model"):
        place.engine().submit(replace(place.plan(), sandbox="auto", untrusted=True))
    assert not (place.root / "cache").exists()


def test_used_where_it_works(bwrap):
    bwrap("exit 0")
    assert all(sandbox.wanted(choice, untrusted=True) for choice in ("auto", "required"))


def test_the_mounts(bwrap, place):
    bwrap("exit 0")
    git = place.root / "origin/.git/worktrees/x"
    git.mkdir(parents=True)
    (place.worktree / ".git").write_text(f"gitdir: {git}\n")
    view = sandbox.View(place.worktree, place.root / "origin", (place.worktree, place.root / "cache"))
    (place.root / "cache").mkdir()
    (place.root / "origin/.git/config").write_text("[remote]\n\turl = https://me:token@host/x")
    (place.root / "origin/.env").write_text("KEY=1")
    argv = sandbox.wrap(("python3", "train.py"), view)
    text = " ".join(argv)
    for secret in ("origin/.git/config", "origin/.env"):
        assert f"--ro-bind /dev/null {place.root / secret}" in text
    assert "--cap-drop ALL" in text
    assert argv[-3:] == ("--", "python3", "train.py") and "--ro-bind / /" in text
    for word in ("--unshare-pid", "--unshare-net", "--die-with-parent", "--tmpfs /tmp", "--tmpfs /run"):
        assert word in text
    origin, tree = place.root / "origin", place.worktree
    assert f"--ro-bind {origin} {origin}" in text and f"--bind {origin}" not in text.replace("--ro-bind", "")
    assert (
        text.index(f"--ro-bind {origin}") < text.index(f"--bind {tree} {tree}") < text.index(f"--ro-bind {tree}/.git")
    )


def test_from_inside(place):
    """R-A7, R-D1: where bubblewrap works here, a real trial in it; where it does not, the refusal says why."""
    if not sandbox.available().works:
        with pytest.raises(TrialError) as refused:
            place.engine().submit(place.plan(sandbox="required"))
        assert "bwrap" in refused.value.why
        return
    execution = run_trial(place.plan("--deaf", "--spawn", ranks=2, sandbox="required"), place.engine())
    assert execution.outcome.kind == "ok" and not execution.violations
    inside, origin, system = (str(p) for p in (place.worktree / "new", place.root / "origin/new", "/etc/infrarsi-new"))
    home = str(Path.home())
    (place.worktree / "show.py").write_text(REACH.format(paths=[inside, origin, system], home=home))
    plan = replace(place.plan(sandbox="required"), argv=("python3", "show.py"))
    seen = run_trial(plan, place.engine()).log_tail.splitlines()
    assert seen[:3] == [f"wrote {inside}", f"refused {origin}", f"refused {system}"]
    assert ".ssh" not in seen[3] and seen[4].startswith("network")


BREAK_OUT = """
import ctypes, json, os, pathlib, socket, subprocess, sys
outside, origin, home = {outside!r}, {origin!r}, {home!r}
found = {{}}

def attempt(name, function):
    try:
        found[name] = repr(function())
    except BaseException as error:
        found[name] = "refused: " + type(error).__name__

def write(path):
    with open(path, "a") as file:
        return file.write("x")

def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr)
    return done.stdout

libc = ctypes.CDLL(None, use_errno=True)

def ptrace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")

attempt("git config", lambda: write(origin + "/.git/config"))
attempt("git hook", lambda: write(origin + "/.git/hooks/post-checkout"))
attempt("git objects", lambda: os.mkdir(origin + "/.git/objects/zz"))
attempt("pointer", lambda: write(".git"))
attempt("pointer removed", lambda: os.unlink(".git"))
attempt("data through its link", lambda: write("data.bin"))
attempt("system", lambda: write("/etc/infrarsi-escape"))
attempt("package", lambda: write(os.__file__))
attempt("remount", lambda: run("mount", "-o", "remount,rw,bind", "/", "/"))
inner = "mount -o remount,rw,bind / / && touch /etc/infrarsi-escape"
attempt("remount in a namespace", lambda: run("unshare", "-Urm", "sh", "-c", inner))
# Opened, not written: were it possible, a test must not do it.
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs", "/sys/power/state"):
    attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
attempt("unmount over home", lambda: run("umount", home))
attempt("home", lambda: pathlib.Path(home, "secret").read_text())
attempt("token in git config", lambda: pathlib.Path(origin, ".git/config").read_text().index("token"))
attempt("env file", lambda: pathlib.Path(origin, ".env").read_text().index("KEY"))
attempt("kill", lambda: os.kill(outside, 9))
attempt("ptrace", lambda: ptrace(outside))
attempt("environ of others", lambda: pathlib.Path("/proc", str(outside), "environ").read_bytes())
attempt("network", lambda: socket.create_connection(("192.0.2.1", 9), 1))
attempt("own interfaces", lambda: sorted(name for _, name in socket.if_nameindex()))
attempt("loopback", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("other tmp", lambda: pathlib.Path({seen!r}).read_text())
attempt("memory", lambda: open("/dev/mem", "rb").read(1))
attempt("processes", lambda: sorted(int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) == outside))
attempt("own file", lambda: write("mine.txt"))
print(json.dumps(found))
"""
OPEN = {"own interfaces": "['lo']", "loopback": "None", "own file": "1", "processes": "[]"}


@pytest.mark.skipif(not sandbox.available().works, reason=f"NO SANDBOX HERE: {sandbox.available().why}")
def test_what_a_hostile_trial_reaches(place, tmp_path_factory, monkeypatch):
    """R-A7: each known way out of the sandbox, tried from inside by the user that runs these tests (root included)."""
    origin, home = place.root / "origin", tmp_path_factory.mktemp("home")
    (home / "secret").write_text("signing key")
    monkeypatch.setenv("HOME", str(home))
    for folder in ("worktrees/x", "hooks", "objects"):
        (origin / ".git" / folder).mkdir(parents=True)
    (origin / ".git/config").write_text('[remote "origin"]\n\turl = https://me:token@host/x\n')
    (origin / ".env").write_text("API_KEY=1")
    (origin / "data.bin").write_text("data")
    (place.worktree / "data.bin").symlink_to(origin / "data.bin")
    (place.worktree / ".git").write_text(f"gitdir: {origin / '.git/worktrees/x'}\n")
    seen = tmp_path_factory.mktemp("other") / "note"
    seen.write_text("of another program")
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        (place.worktree / "show.py").write_text(
            BREAK_OUT.format(outside=sleeper.pid, origin=str(origin), home=str(home), seen=str(seen))
        )
        plan = replace(place.plan(sandbox="required"), argv=("python3", "show.py"))
        log = run_trial(plan, place.engine()).log_tail
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
    found = json.loads(log.splitlines()[-1])
    reached = {name: value for name, value in found.items() if not value.startswith("refused")}
    assert reached == OPEN
    assert not Path("/etc/infrarsi-escape").exists()
    assert (origin / "data.bin").read_text() == "data"


@pytest.mark.parametrize("choice", ["auto", "off", "required"])
def test_the_advice_says_what_holds_here(bwrap, choice):
    bwrap("exit 0")
    works = sandbox.advice(choice)
    bwrap("echo 'No permissions' >&2; exit 1")
    fails = sandbox.advice(choice)
    if choice == "off":
        assert "without a sandbox although bubblewrap works" in works and 'sandbox = "off"' in fails
    else:
        assert works.startswith("trials run in a sandbox")
        assert "No permissions" in fails and "install bubblewrap" in fails and "patches written by a model" in fails
