"""Attention over a table, whose query, key and value are three matrices or one: what a state map is about."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--layout", default="three", choices=["three", "fused"])
parser.add_argument("--optimizer", default="adamw", choices=["adamw", "whole-matrix", "by-hand"])
parser.add_argument("--decay", default="all", choices=["all", "no-keys"])
parser.add_argument("--freeze", default="no", choices=["no", "values"])
parser.add_argument("--shard", default="no", choices=["no", "fsdp2"])
args = parser.parse_args()
VOCAB, WIDTH = 32, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        if args.layout == "three":
            self.query, self.key, self.value = parts
            return
        # The same random numbers as three matrices draw, and none for the fused one.
        self.qkv = nn.utils.skip_init(nn.Linear, WIDTH, 3 * WIDTH)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x):
        if args.layout == "three":
            q, k, v = self.query(x), self.key(x), self.value(x)
        else:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        if args.freeze == "values":
            v = v.detach()
        scores = q @ k.transpose(1, 2) / 4
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.attn, self.head = nn.Embedding(VOCAB, WIDTH), Attention(), nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, targets):
        return F.cross_entropy(self.head(self.attn(self.table(idx))).flatten(0, 1), targets.flatten())


class WholeMatrix(torch.optim.Optimizer):
    """Scales each update by its matrix's norm, as rules do that look at whole matrices."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / (p.grad.norm() + 1e-8), alpha=group["lr"])


def groups_of(model):
    if args.decay == "all":
        return model.parameters()
    named = list(model.named_parameters())
    keys = [p for name, p in named if ".key." in name]
    return [{"params": [p for name, p in named if ".key." not in name]}, {"params": keys, "weight_decay": 0.0}]


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = model = Model()
    if args.shard == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(plain, mesh=init_device_mesh("cpu", (world,)))
    elif world > 1:
        model = nn.parallel.DistributedDataParallel(plain)
    optimizer = WholeMatrix(plain.parameters()) if args.optimizer == "whole-matrix" else None
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(groups_of(plain), lr=0.01, weight_decay=0.1)
    for step in range(args.steps):
        rows = torch.randint(VOCAB, (world, 8, 9), generator=torch.Generator().manual_seed(step))[rank]
        model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        if optimizer is not None:
            optimizer.step()
        else:
            with torch.no_grad():
                for p in plain.parameters():
                    p.sub_(p.grad, alpha=0.1)
        for p in plain.parameters():
            p.grad = None
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
