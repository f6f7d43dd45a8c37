"""Bubblewrap: what it is asked for, when it is refused, and what a trial can reach from inside (R-A7)."""

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
    argv = sandbox.wrap(("python3", "train.py"), view)
    text = " ".join(argv)
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
