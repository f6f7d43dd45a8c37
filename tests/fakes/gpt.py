"""A real training that takes seconds: a GPT of 60,000 parameters, and flags that change how it is computed, honestly.

    python train.py --seed 1 --attention sdpa
    torchrun --nproc_per_node=2 train.py

Rows depend on the seed and the step only; each flag below "honest" leaves the mathematics as it is.
"""

import argparse
import contextlib
import functools
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=1)
p.add_argument("--steps", type=int, default=400)
p.add_argument("--rows", type=int, default=16, help="per step, over all ranks and micro-steps")
p.add_argument("--lr", type=float, default=1e-3)
# honest
p.add_argument("--batch_size", type=int, default=4)
p.add_argument("--accum", type=int, default=4)
p.add_argument("--attention", default="naive", choices=["naive", "sdpa"])
p.add_argument("--projection", default="three", choices=["three", "one"], help="query, key, value: matmuls")
p.add_argument("--loss", default="whole", choices=["whole", "chunks"])
p.add_argument("--adamw", default="default", choices=["default", "fused", "foreach", "loop"])
p.add_argument("--checkpoint", default="off", choices=["off", "on"])
p.add_argument("--autocast", default="off", choices=["off", "bf16"])
p.add_argument("--buckets", type=float, default=25.0, help="MiB")
p.add_argument("--sync", default="last", choices=["last", "every"], help="micro-steps after which ranks agree")
p.add_argument("--clip", default="foreach", choices=["foreach", "loop"])
p.add_argument("--compile", default="off", choices=["off", "on"])
args = p.parse_args()
VOCAB, BLOCK, WIDTH, HEADS, LAYERS = 64, 32, 48, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        if args.projection == "one":
            parts = (self.query, self.key, self.value)
            weight, bias = (torch.cat([getattr(m, n) for m in parts]) for n in ("weight", "bias"))
            q, k, v = F.linear(x, weight, bias).chunk(3, dim=-1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (y.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2) for y in (q, k, v))
        if args.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint == "on" else block(x)
        x = self.ln(x).flatten(0, 1)
        targets = targets.flatten()
        if args.loss == "whole":
            return F.cross_entropy(self.head(x), targets)
        pieces = zip(x.chunk(4), targets.chunk(4), strict=True)
        return sum(F.cross_entropy(self.head(a), b, reduction="sum") for a, b in pieces) / targets.numel()


@functools.lru_cache(maxsize=1)
def rows_of(step):
    """A Markov chain over the vocabulary, so that there is something to learn."""
    generator = torch.Generator().manual_seed(args.seed * 100_003 + step)
    rows = torch.randint(VOCAB, (args.rows, BLOCK + 1), generator=generator)
    for t in range(1, BLOCK + 1):
        rows[:, t] = torch.where(rows[:, t] < 16, rows[:, t], (3 * rows[:, t - 1] + 1) % VOCAB)
    return rows


def batch(step, rank, micro, world):
    """The rows of one micro-step: whatever the split, the step has the same."""
    first = (rank * args.accum + micro) * args.batch_size
    mine = rows_of(step)[first : first + args.batch_size]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    assert args.batch_size * args.accum * world == args.rows
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = plain = GPT()
    if world > 1:
        model = DistributedDataParallel(plain, bucket_cap_mb=args.buckets)
    if args.compile == "on":
        model = torch.compile(model)
    options = {"default": {}, "fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    optimizer = torch.optim.AdamW(plain.parameters(), lr=args.lr, weight_decay=0.1, **options[args.adamw])
    half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast == "bf16")
    for step in range(args.steps):
        total = 0.0
        for micro in range(args.accum):
            x, y = batch(step, rank, micro, world)
            wait = world > 1 and args.sync == "last" and micro < args.accum - 1
            with model.no_sync() if wait else contextlib.nullcontext():
                with half:
                    loss = model(x, y) / args.accum
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0, foreach=args.clip == "foreach")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {total:.4f}", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
