"""The launch command: reading, writing, overlay (sections 5 and 7 of the design)."""

from __future__ import annotations

import shlex

import pytest

from infrarsi.contract.command import argv_of, overlay, parse_command, world_size_of
from infrarsi.errors import UsageError
from infrarsi.records import Assignment

PY = "/venv/bin/python"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "train.py").write_text("import argparse\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text("")
    (tmp_path / "config").mkdir()
    return tmp_path


def flag(target, value):
    return Assignment("flag", target, value)


def laid(command, *assignments, root=None):
    return overlay(tuple(shlex.split(command)), "train.py", PY, assignments, root=root)


@pytest.mark.parametrize(
    ("text", "launcher", "entry", "args", "module", "size"),
    [
        ("torchrun --standalone --nproc_per_node=2 train.py --x=1", "torchrun", "train.py", ("--x=1",), False, 2),
        ("torchrun --standalone --nproc-per-node 4 train.py", "torchrun", "train.py", (), False, 4),
        ("torchrun --nnodes=2 --nproc_per_node=2 -m pkg.train a", "torchrun", "pkg.train", ("a",), True, 4),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py", "torchrun", "train.py", (), False, 2),
        ("python3.11 -u -X faulthandler train.py --lr 1e-3", "python", "train.py", ("--lr", "1e-3"), False, 1),
        ("python -m pkg.train --x", "python", "pkg.train", ("--x",), True, 1),
        ("python -m pkg", "python", "pkg", (), True, 1),
        ("./train.py --x", "python", "train.py", ("--x",), False, 1),
        ("/opt/x/bin/torchrun --nproc_per_node=1 ./train.py", "torchrun", "train.py", (), False, 1),
        ("env A=1 exec python train.py", "python", "train.py", (), False, 1),
    ],
)
def test_commands_are_read(root, text, launcher, entry, args, module, size):
    command = parse_command(text, root)
    assert (command.launcher, command.entry, command.entry_args, command.module) == (launcher, entry, args, module)
    assert world_size_of(command) == size
    again = parse_command(argv_of(command), root)
    assert argv_of(again) == argv_of(command)
    assert (again.launcher, again.entry, again.launcher_args) == (launcher, entry, command.launcher_args)


def test_environment_in_front_is_taken_apart(root):
    command = parse_command("OMP_NUM_THREADS=1 B='a b' torchrun train.py", root)
    assert command.environment == (("B", "a b"), ("OMP_NUM_THREADS", "1"))
    assert argv_of(command) == ("torchrun", "train.py")


def test_an_absolute_entry_becomes_relative(root):
    assert parse_command(["python", str(root / "train.py")], root).entry == "train.py"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("accelerate launch train.py", "accelerate"),
        ("deepspeed train.py", "deepspeed"),
        ("srun torchrun train.py", "srun"),
        ("uv run train.py", "uv"),
        ("torchrun train.py > log.txt", "shell syntax"),
        ("cd x && python train.py", "shell syntax"),
        ("python train.py --out=$HOME/x", "shell syntax"),
        ("python -c pass", "python -c"),
        ("python", "no training script"),
        ("torchrun --standalone", "no training script"),
        ("torchrun --no-python ./a", "--no-python"),
        ("python -m torch.distributed.launch train.py", "deprecated"),
        ("python missing.py", "no file missing.py"),
        ("python -m pkg.missing", "module pkg.missing"),
        ("bash missing.sh", "no script missing.sh"),
        ("make train", "not a launcher"),
        ("python 'train.py", "cannot be read"),
        ("", "empty"),
    ],
)
def test_what_cannot_be_launched_is_said(root, text, part):
    with pytest.raises(UsageError) as caught:
        parse_command(text, root)
    assert part in caught.value.what


def test_the_number_of_ranks_is_never_guessed(root):
    for value in ("gpu", "auto", "cpu"):
        command = parse_command(f"torchrun --nproc_per_node={value} train.py", root)
        with pytest.raises(UsageError, match="leaves the number of ranks open"):
            world_size_of(command)
    with pytest.raises(UsageError):
        world_size_of(parse_command("torchrun --nnodes=1:4 train.py", root))


SCRIPT = """#!/bin/bash
# torchrun --nproc_per_node=8 old.py
export NPROC=2
BATCH=${BATCH:-4}
python prepare.py
torchrun --standalone \\
    --nproc_per_node=$NPROC \\
    train.py --batch_size=$BATCH %s 2>&1 | tee log.txt
"""


def test_a_script_is_read_and_passes_arguments_on(root):
    (root / "run.sh").write_text(SCRIPT % '"$@"')
    command = parse_command("bash run.sh --lr=1", root)
    assert (command.launcher, command.entry, world_size_of(command)) == ("script", "train.py", 2)
    assert command.seen_args == ("--batch_size=4", "--lr=1")
    assert argv_of(command) == ("bash", "run.sh", "--lr=1")
    argv, extra = laid("bash run.sh --lr=1", flag("--lr", 2.0), flag("--batch_size", 8), root=root)
    assert argv == ("bash", "run.sh", "--lr=2.0", "--batch_size=8")
    assert extra == ()


def test_a_script_without_arguments_refuses_flags(root):
    (root / "run.sh").write_text(SCRIPT % "")
    with pytest.raises(UsageError) as caught:
        laid("bash run.sh", flag("--batch_size", 8), root=root)
    assert '"$@"' in caught.value.hint
    assert laid("bash run.sh", Assignment("env", "A", 1), root=root) == (("bash", "run.sh"), (("A", "1"),))
    with pytest.raises(UsageError, match=r"inside run\.sh"):
        laid("bash run.sh", Assignment("torchrun", "--nproc_per_node", 4), root=root)


def test_a_script_that_trains_nothing_or_by_another_launcher(root):
    (root / "run.sh").write_text("echo hello\n")
    with pytest.raises(UsageError, match="starts no training"):
        parse_command("bash run.sh", root)
    (root / "run.sh").write_text("accelerate launch train.py\n")
    with pytest.raises(UsageError, match="accelerate"):
        parse_command("./run.sh", root)


START = (PY, "-m", "torch.distributed.run", "--standalone", "train.py")


@pytest.mark.parametrize(
    ("command", "assignment", "expected"),
    [
        ("", flag("--b", 16), ("--b=16",)),
        ("--b 8", flag("--b", 16), ("--b", "16")),
        ("--b=8 --c=1", flag("--b", 16), ("--b=16", "--c=1")),
        ("--b=8 config/x.py", flag("--b", 16), ("--b=16", "config/x.py")),
        ("config/x.py", flag("--b", 16), ("config/x.py", "--b=16")),
        ("--b 8 --c --b=4", flag("--b", 16), ("--c", "--b=16")),
        ("--b -1 --c", flag("--b", -2), ("--b", "-2", "--c")),
        ("--b 8 --c", flag("--b", None), ("--c",)),
        ("--b=8 --c", flag("--b", None), ("--c",)),
        ("--bb=8", flag("--b", 1), ("--bb=8", "--b=1")),
        ("--lr=1", flag("--lr", 3e-4), ("--lr=0.0003",)),
        ("", flag("--compile", True), ("--compile",)),
        ("--compile", flag("--compile", True), ("--compile",)),
        ("--compile=False", flag("--compile", True), ("--compile=True",)),
        ("--compile=True", flag("--compile", False), ("--compile=False",)),
        ("--compile x.py", flag("--compile", False), ("x.py",)),
        ("--compile True x.py", flag("--compile", True), ("--compile", "x.py")),
        ("", flag("--compile", False), ("--compile=False",)),
        ("trainer.batch=8", flag("trainer.batch", 16), ("trainer.batch=16",)),
    ],
)
def test_overlay_of_flags(command, assignment, expected):
    argv, extra = laid(f"torchrun --standalone train.py {command}", assignment)
    assert argv == (*START, *expected)
    assert extra == ()


def test_overlay_without_assignments_only_names_the_interpreter():
    assert laid("torchrun --standalone train.py -- x") == ((*START, "--", "x"), ())
    assert laid("python3 -u train.py a") == ((PY, "-u", "train.py", "a"), ())
    assert laid("python3 -m pkg.train a")[0] == (PY, "-m", "pkg.train", "a")
    assert laid("torchrun -m pkg.train a")[0] == (PY, "-m", "torch.distributed.run", "-m", "pkg.train", "a")


def test_overlay_of_torchrun_flags_and_variables():
    argv, extra = laid(
        "torchrun --standalone --nproc-per-node 2 train.py",
        Assignment("torchrun", "--nproc_per_node", 4),
        Assignment("env", "OMP_NUM_THREADS", 2),
        Assignment("env", "GONE", None),
    )
    assert argv == (PY, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "4", "train.py")
    assert extra == (("GONE", ""), ("OMP_NUM_THREADS", "2"))
    argv, _ = laid("python train.py", Assignment("torchrun", "--nproc_per_node", 2))
    assert argv == (PY, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py")


def test_a_configuration_key_is_no_overlay():
    with pytest.raises(UsageError, match="key of a file"):
        laid("python train.py", Assignment("config", "a.json:b", 2))


def test_the_source_decides_how_a_boolean_is_written(root):
    """`configurator` readers take `--compile=True` only; a store_true flag takes no value."""
    (root / "configurator.py").write_text("import sys\nfor a in sys.argv: globals()[a] = 1\n")
    (root / "train.py").write_text("compile = False\nexec(open('configurator.py').read())\n")
    assert laid("python train.py", flag("--compile", True), root=root)[0][-1] == "--compile=True"
    (root / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--compile', action='store_true')\n"
    )
    assert laid("python train.py", flag("--compile", True), root=root)[0][-1] == "--compile"
    assert laid("python train.py --compile x.py", flag("--compile", None), root=root)[0][-2:] == ("train.py", "x.py")
