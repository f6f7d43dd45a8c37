"""The demo's trainers run as they are, and train on the same rows however a step is split."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import infrarsi.demo

TRAINERS = Path(infrarsi.demo.__file__).parent / "trainers"
TINY = ["--steps=3", "--log_interval=1", "--n_layer=1", "--n_embd=32", "--n_head=2", "--eval_batches=2"]


def losses(folder, *flags, ranks=1):
    launcher = [sys.executable, "train.py"]
    if ranks > 1:
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={ranks}",
            "train.py",
        ]
    done = subprocess.run([*launcher, *TINY, *flags], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_trainer_prepares_trains_and_validates(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / kind
    shutil.copytree(TRAINERS / kind, folder)
    prepare = [sys.executable, "prepare.py", "--megabytes", "0.2"]
    subprocess.run(prepare, cwd=folder, check=True, capture_output=True)
    first = (folder / "data" / "train.bin").read_bytes()
    subprocess.run(prepare, cwd=folder, check=True, capture_output=True)
    assert (folder / "data" / "train.bin").read_bytes() == first

    alone = losses(folder, "--batch_size=4", "--accum=2")
    assert len(alone) == 4
    # rank 0 prints its own share, so the parameters' agreement shows in the validation loss after the last step
    spread = losses(folder, "--batch_size=4", "--accum=1", ranks=2)
    assert spread[-1] == pytest.approx(alone[-1], abs=2e-3)
    if kind == "dense":
        assert losses(folder, "--batch_size=8", "--accum=1") == pytest.approx(alone, abs=2e-4)
