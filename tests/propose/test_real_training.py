"""All patches of class `reorder` together on two real ranks: the printed losses stay the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi.propose.patches import compose, propose_patches

MODEL = """\
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Linear(dim, dim)

    def forward(self, x):
        return F.gelu(self.net(x))


class Net(nn.Module):
    def __init__(self, dim=16, size=8):
        super().__init__()
        self.emb = nn.Embedding(32, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.router = nn.Linear(dim, 4)
        self.experts = nn.ModuleList([Expert(dim) for _ in range(4)])
        self.head = nn.Linear(dim, 32)
        self.register_buffer("mask", torch.tril(torch.ones(size, size)))

    def forward(self, idx, targets):
        B, T = idx.shape
        x = self.emb(idx)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        x = x + att @ v
        weights, chosen = torch.topk(F.softmax(self.router(x), dim=-1), 2, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            weight = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + weight * expert(x)
        logits = self.head(x + out)
        return F.cross_entropy(logits.view(-1, 32), targets.reshape(-1))
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Net


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randint(32, (64, 9), generator=torch.Generator().manual_seed(dist.get_rank()))
    accum = 4
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for micro in range(accum):
            rows = data[(step * accum + micro) * 2 :][:2]
            loss = model(rows[:, :-1], rows[:, 1:])
            loss = loss / accum
            loss.backward()
            total += loss.item()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"loss {total:.6f}")
    dist.barrier()  # a rank that leaves first aborts the other in gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def losses(folder: Path, files: dict[str, str]) -> list[float]:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [float(value) for value in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.mark.real
def test_patched_training_shows_the_same_losses(tmp_path: Path) -> None:
    files = {"model.py": MODEL, "train.py": TRAIN}
    ids = [patch.id for patch in propose_patches(files)]
    assert set(ids) == {
        "sdpa", "moe_dispatch", "fused_adamw", "ddp_bucket_view", "remove_item_sync", "no_sync", "set_to_none"
    }  # fmt: skip
    before = losses(tmp_path / "before", files)
    after = losses(tmp_path / "after", {**files, **compose(files, ids)})
    assert len(before) == 6 and before == pytest.approx(after, rel=1e-4)
