"""Which file trains, and how it would be launched; tried on the demo's own two trainers too."""

from __future__ import annotations

from pathlib import Path

import pytest

import infrarsi.demo
from infrarsi.contract.command import argv_of, world_size_of
from infrarsi.contract.entry import find_entries, guess_command
from infrarsi.contract.flags import read_flags

LOOP = "import torch\nfor x in data:\n    loss(x).backward()\n    optimizer.step()\n"
DISTRIBUTED = LOOP + "import torch.distributed as dist\ndist.init_process_group(backend)\n"


def repository(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [p.relative_to(root).as_posix() for p in sorted(root.rglob("*")) if p.is_file()]


def test_the_training_script_comes_first(tmp_path):
    files = repository(
        tmp_path,
        train_dot_py=LOOP,
        bench_dot_py=LOOP,
        sample_dot_py="model.eval()\nprint(1)\n",
        model_dot_py="class Model: pass\n",
        tests__test_train_dot_py=LOOP,
        setup_dot_py=LOOP,
    )
    entries = find_entries(tmp_path, files)
    assert entries[0].path == "train.py"
    assert {"model.py", "sample.py", "tests/test_train.py", "setup.py"}.isdisjoint(e.path for e in entries)
    assert entries[0].score > entries[-1].score or len(entries) == 1
    assert "calls backward()" in entries[0].why


def test_documentation_decides_between_equals(tmp_path):
    files = repository(
        tmp_path,
        train_a_dot_py=LOOP,
        train_b_dot_py=LOOP,
        README_dot_md="Run `torchrun --nproc_per_node=2 train_b.py --x`.\n",
    )
    best = find_entries(tmp_path, files)[0]
    assert best.path == "train_b.py"
    assert "the documentation or a script runs it" in best.why


def test_a_trainer_library_counts_and_a_library_module_does_not(tmp_path):
    files = repository(
        tmp_path,
        finetune_dot_py="trainer = Trainer(model)\ntrainer.train()\nif __name__ == '__main__':\n    main()\n",
        lib__engine_dot_py="def step(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n",
    )
    assert [e.path for e in find_entries(tmp_path, files)] == ["finetune.py"]


def test_nothing_to_train(tmp_path):
    assert find_entries(tmp_path, repository(tmp_path, app_dot_py="print('hello')\n", gone_dot_md="x")) == ()
    assert find_entries(tmp_path, ["not-there.py"]) == ()


def test_a_command_for_one_or_many_ranks(tmp_path):
    repository(tmp_path, train_dot_py=LOOP)
    assert argv_of(guess_command(tmp_path, "train.py", (), 2, "cpu")) == ("python3", "train.py")
    repository(tmp_path, train_dot_py=DISTRIBUTED)
    command = guess_command(tmp_path, "train.py", (), 2, "cpu")
    assert argv_of(command) == ("torchrun", "--standalone", "--nproc_per_node=2", "train.py")
    assert world_size_of(command) == 2
    assert argv_of(guess_command(tmp_path, "train.py", (), 1, "cpu")) == ("python3", "train.py")


def test_device_and_backend_follow_the_machine(tmp_path):
    source = "device = 'cuda'\nbackend = 'nccl'\nexec(open('configurator.py').read())\n" + DISTRIBUTED
    repository(tmp_path, train_dot_py=source, configurator_dot_py="import sys\nsys.argv; globals()\n")
    flags = read_flags(tmp_path, "train.py")
    assert guess_command(tmp_path, "train.py", flags, 2, "cpu").entry_args == ("--device=cpu", "--backend=gloo")
    assert guess_command(tmp_path, "train.py", flags, 2, "cuda").entry_args == ()


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_the_demo_trainers_are_found_and_read(kind):
    root = Path(infrarsi.demo.__file__).parent / "trainers" / kind
    files = sorted(p.name for p in root.iterdir() if p.is_file())
    assert [e.path for e in find_entries(root, files)] == ["train.py"]
    flags = {f.name: f for f in read_flags(root, "train.py")}
    assert {"--batch_size", "--accum", "--learning_rate", "--seed", "--device", "--data"} <= set(flags)
    command = guess_command(root, "train.py", tuple(flags.values()), 2, "cpu")
    assert argv_of(command) == ("torchrun", "--standalone", "--nproc_per_node=2", "train.py")
    for name in files:
        text = (root / name).read_text()
        assert "infrarsi" not in text, "a trainer is a plain program that knows nothing of this tool"
        assert len(text.splitlines()) < 250
