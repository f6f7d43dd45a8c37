"""Which process is the plan's entry: ranks are, launchers and workers are not."""

import json
from pathlib import Path

import pytest

from infrarsi.probe.plan import is_entry, main_of, read_plan


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["python", "train.py", "--x"], ("script", "train.py")),
        (["python", "-u", "train.py"], ("script", "train.py")),
        (["python", "-X", "dev", "-W", "ignore", "-O", "train.py"], ("script", "train.py")),
        (["python", "-Xdev", "-Wignore", "train.py"], ("script", "train.py")),
        (["python", "--check-hash-based-pycs", "never", "train.py"], ("script", "train.py")),
        (["python", "-um", "pkg.train", "-c"], ("module", "pkg.train")),
        (["python", "-m", "torch.distributed.run", "train.py"], ("module", "torch.distributed.run")),
        (["python", "-c", "import train", "train.py"], None),
        (["python", "-uc", "spawn_main()", "--multiprocessing-fork"], None),
        (["python", "-", "train.py"], None),
        (["python"], None),
        (["python", "-m"], None),
    ],
)
def test_main_of_a_command_line(argv, expected):
    assert main_of(argv) == expected


def test_script_is_matched_by_its_real_path(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "link.py").symlink_to("train.py")
    root, sub = str(tmp_path), str(tmp_path / "sub")
    assert is_entry(["python", "train.py"], "train.py", root, root)
    assert is_entry(["python", "../train.py"], "train.py", root, sub)
    assert is_entry(["python", str(tmp_path / "link.py")], "train.py", root, "/")
    assert not is_entry(["python", "train.py"], "train.py", root, sub)
    assert not is_entry(["/venv/bin/python", "/venv/bin/torchrun", "train.py"], "train.py", root, root)
    assert not is_entry(["python", "-m", "torch.distributed.run", "train.py"], "train.py", root, root)


@pytest.mark.parametrize("entry", ["pkg/train.py", "pkg.train", "src/pkg/train.py"])
def test_module_is_matched_by_its_name(entry):
    assert is_entry(["python", "-u", "-m", "pkg.train"], entry, "/r", "/r")
    assert not is_entry(["python", "-m", "other.train"], entry, "/r", "/r")
    assert not is_entry(["python", "-m", "kg.train"], entry, "/r", "/r")


def test_package_with_a_main():
    assert is_entry(["python", "-m", "pkg"], "pkg/__main__.py", "/r", "/r")


def test_a_plan_of_another_schema_is_refused(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema": 2}))
    with pytest.raises(ValueError, match="schema"):
        read_plan(str(path))
