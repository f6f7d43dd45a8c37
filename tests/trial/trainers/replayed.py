"""A small attention trainer whose loss lies outside the module and whose rows a global generator draws.

Flags plant the drifts that a training loss does not show, and the wrappers that a replay has to see through.
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=2)
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--wrap", default="", choices=["", "ddp", "fsdp2"])
parser.add_argument("--drift", default="", choices=["", "detached", "lowered", "fewer"])
args = parser.parse_args()
VOCABULARY, LENGTH, WIDTH = 64, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(args.dropout)

    def forward(self, x):
        h = self.norm(x)
        key = self.key(h)
        if args.drift == "detached":
            key = (key + key.detach()) / 2
        x = x + self.drop(F.scaled_dot_product_attention(self.query(h), key, self.value(h), is_causal=True))
        h = self.up(x)
        if args.drift == "lowered":
            h = h.to(torch.bfloat16).to(x.dtype)
        return x + self.drop(self.down(F.gelu(h)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def get_batch():
    start = torch.randint(VOCABULARY, (args.rows, 1))
    both = (start + torch.arange(LENGTH + 1) * (1 + start % 3)) % VOCABULARY
    return both[:, :-1], both[:, 1:]


def main():
    torch.manual_seed(7)
    model = Model()
    if args.wrap:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.manual_seed(7 + int(os.environ["RANK"]))
    if args.wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if args.wrap == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        for _ in range(args.accum):
            x, y = get_batch()
            logits = model(x)
            if args.drift == "fewer":
                kept = torch.arange(LENGTH) % 8 != 3
                logits, y = logits[:, kept], y[:, kept]
            loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1)) / args.accum
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


main()
