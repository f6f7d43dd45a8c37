"""False refusals (R-A6): every edit that our own catalogue makes to real trainers passes ring 1, alone and together."""

from pathlib import Path

import pytest

import infrarsi.demo
from infrarsi.contract.scope import check_changes
from infrarsi.contract.static import check_source
from infrarsi.propose.codemods import CODEMODS
from infrarsi.records import Change, Scope

# The loop that most public trainers share: times its steps, logs them, draws its own batches, clips, scales.
LOOP = """
import math
import os
import pickle
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed import init_process_group

batch_size = 12
block_size = 1024
device = "cuda"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)


def get_batch(split):
    data = np.memmap(os.path.join("data", split + ".bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    return x.to(device)


@torch.no_grad()
def estimate_loss(model):
    losses = torch.zeros(10)
    for k in range(10):
        losses[k] = model(get_batch("val")).item()
    return losses.mean()


model = build().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])
t0 = time.time()
local_iter_num = 0
running_mfu = -1.0
for iter_num in range(600000):
    for micro_step in range(8):
        with ctx:
            logits, loss = model(get_batch("train"))
            loss = loss / 8
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=False)
    t1 = time.time()
    dt = t1 - t0
    t0 = t1
    lossf = loss.item() * 8
    if iter_num % 10 == 0:
        if local_iter_num >= 5:
            mfu = model.estimate_mfu(batch_size * 8, dt)
            running_mfu = mfu if running_mfu == -1.0 else 0.9 * running_mfu + 0.1 * mfu
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms, mfu {running_mfu*100:.2f}%")
    local_iter_num += 1
"""
TRAINERS = {
    **{str(p.relative_to(p.parents[1])): p.read_text() for p in Path(infrarsi.demo.__file__).parent.rglob("*/*/*.py")},
    "loop.py": LOOP,
}


class Tree(dict):
    def read(self, path):
        return self.get(path)

    def paths(self):
        return self.keys()


def edits(source):
    """(name, text) for each codemod alone, and for all one after the other."""
    together = source
    for codemod in CODEMODS:
        alone, more = codemod.transform(source, "file.py"), codemod.transform(together, "file.py")
        if alone is not None:
            yield codemod.id, alone
        together = together if more is None else more
    if together != source:
        yield "all", together


@pytest.mark.parametrize("path", TRAINERS)
def test_no_codemod_is_refused(path):
    """R-A6."""
    source = TRAINERS[path]
    change = Change(path, "100644", "100644", "0" * 40, "1" * 40, "M")
    for name, text in edits(source):
        before, after = Tree({path: source.encode()}), Tree({path: text.encode()})
        assert check_changes(Scope(("**",)), (), [change], before, after) == (), name
        assert check_source(path, source.encode(), text.encode()) == (), name


def test_the_loop_is_edited_at_all():
    assert len(list(edits(LOOP))) >= 3
