"""The parts around torch: imports, the wire, modules from elsewhere, perturbations, the machine's description."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probe_peer import PROBE

from infrarsi.codec import decode
from infrarsi.probe import opened
from infrarsi.probe.imports import AfterImport
from infrarsi.probe.perturb import Perturbation
from infrarsi.probe.plan import Plan
from infrarsi.probe.wire import Wire
from infrarsi.records import Hardware


def plan_for(root: Path, original: Path) -> Plan:
    known = {"socket": "/s", "root": str(root), "scope_roots": (str(root),), "original_root": str(original)}
    return Plan(**{name: known.get(name, "") for name in Plan._fields})


def test_callback_runs_once_after_the_import(tmp_path, monkeypatch):
    (tmp_path / "later_module.py").write_text("value = __loader__.__class__.__name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []
    finder = AfterImport()
    finder.register("later_module", lambda module: seen.append(module.value))
    assert finder in sys.meta_path and not seen
    import later_module  # type: ignore[import-not-found]

    assert len(seen) == 1 and finder not in sys.meta_path
    assert type(later_module.__loader__).__name__ == "SourceFileLoader"
    finder.register("later_module", lambda module: seen.append("again"))
    assert seen[1:] == ["again"]


@pytest.fixture
def pair(tmp_path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    wire = Wire(str(tmp_path / "s"), time.monotonic)
    other, _ = server.accept()
    yield wire, other
    for item in (server, other):
        item.close()
    wire.close()


def test_wire_sends_lines_and_reads_partial_ones(pair):
    wire, other = pair
    wire.send("error", kind="probe")
    assert json.loads(other.recv(1000)) == {"t": "error", "kind": "probe"}
    other.sendall(b'{"t":"stop","after":3}\n{"t":"rel')
    assert wire.wait("stop", 1.0)
    assert not wire.wait("release", 0.05)
    other.sendall(b'ease"}\nnot json\n')
    assert wire.wait("release", 1.0)


def test_what_can_wait_goes_along_with_the_next_message(pair):
    """After a tick, whose arrival is the time of its step; before anything else."""
    wire, other = pair
    wire.later("step", step=1)
    wire.send("tick", step=2)
    wire.later("step", step=2)
    wire.send("done")
    wire.later("step", step=3)
    wire.flush()
    wire.flush()
    lines = [json.loads(line) for line in other.recv(4000).splitlines()]
    assert [(m["t"], m.get("step")) for m in lines] == [
        ("tick", 2), ("step", 1), ("step", 2), ("done", None), ("step", 3)
    ]  # fmt: skip


def test_a_lost_parent_makes_the_wire_silent(pair):
    """R-D4: waiting for a parent that has gone ends at once."""
    wire, other = pair
    other.close()
    begin = time.monotonic()
    assert not wire.wait("release", 30.0)
    assert time.monotonic() - begin < 5.0
    wire.send("tick")
    assert not wire.open


def test_modules_of_the_users_tree_and_shadowed_ones_are_named(tmp_path, monkeypatch):
    """R-A10: an installed copy, or the user's own tree, must not be what is trained."""
    root, user, site = tmp_path / "tree", tmp_path / "user", tmp_path / "site-packages"
    for folder in (root, user, site):
        folder.mkdir()
    for path in (root / "inside_mod.py", user / "users_mod.py", site / "shadow_mod.py", root / "shadow_mod.py"):
        path.touch()
    (site / "library_mod.py").touch()
    monkeypatch.setattr(sys, "path", [str(p) for p in (user, site, root)] + sys.path)
    names = ("inside_mod", "users_mod", "shadow_mod", "library_mod")
    try:
        for name in names:
            __import__(name)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setattr(opened, "BEGAN", opened.time.time() + 60)
        found = opened.modules_outside(plan_for(root, user))
    finally:
        for name in names:
            sys.modules.pop(name, None)
    assert [item.split()[0] for item in found] == ["shadow_mod", "users_mod"]


def test_code_that_the_run_wrote_for_itself_is_named(tmp_path, monkeypatch):
    """R-A1: written and imported, then put back or removed; also from HOME, and under another __file__."""
    root, home = tmp_path / "tree", tmp_path / "home"
    for folder in (root, home):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (root / "old_mod.py").touch()
    later = (root / "old_mod.py").stat().st_ctime
    monkeypatch.setattr(opened, "BEGAN", later)
    opened.time.sleep(0.05)
    for path in (root / "new_mod.py", root / "gone_mod.py", home / "home_mod.py", root / "posing_mod.py"):
        path.touch()
    monkeypatch.setattr(sys, "path", [str(root), str(home), *sys.path])
    modules = {name: __import__(name) for name in ("old_mod", "new_mod", "gone_mod", "home_mod", "posing_mod")}
    try:
        (root / "gone_mod.py").unlink()
        modules["posing_mod"].__file__ = str(root / "old_mod.py")
        found = opened.modules_outside(plan_for(root, tmp_path / "user"))
    finally:
        for name in modules:
            sys.modules.pop(name, None)
    assert [item.split()[0] for item in found] == ["gone_mod", "home_mod", "new_mod", "posing_mod"]


def test_opened_files_are_data_only(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    root.mkdir()
    for name in ("train.bin", "code.py", "written.txt"):
        (root / name).touch()
    (tmp_path / "outside.bin").write_bytes(b"x")
    files = opened.OpenedFiles(plan_for(root, root))
    monkeypatch.chdir(root)
    for name in ("train.bin", "code.py", "../outside.bin", "/proc/self/status"):
        open(name, "rb").close()
    os.close(os.open("train.bin", os.O_RDONLY))
    open("written.txt", "w").close()
    names = [name for name in files.names() if name.startswith(str(tmp_path))]
    assert names == [str(tmp_path / "outside.bin"), str(root / "train.bin")]


def test_unknown_perturbations_are_refused():
    with pytest.raises(ValueError, match="sharpen"):
        Perturbation(("sharpen",))
    perturbation = Perturbation(("seed:7", "threads:2", "autocast_bf16", "delay:0.5"))
    assert (perturbation.seed, perturbation.threads, perturbation.delay_seconds) == (7, 2, 0.5)


def test_data_seed_moves_the_global_generators_once_at_the_first_training_forward():
    import torch

    net, perturbation = torch.nn.Linear(2, 2), Perturbation(("data_seed:3",))
    drawn = []
    for training in (False, True, True):
        torch.manual_seed(5)
        with perturbation.around(net, training):
            drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[2] != drawn[1]


def test_machine_prints_a_hardware_record():
    done = subprocess.run(
        [sys.executable, str(PROBE / "machine.py"), "--no-peaks"], capture_output=True, text=True, check=True
    )
    value = json.loads(done.stdout)
    assert value.pop("peaks") == {}
    hardware = decode(Hardware, value)
    assert hardware.cores >= 1 and hardware.memory_bytes > 2**28 and hardware.torch
