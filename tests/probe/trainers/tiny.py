"""A tiny trainer with the variations that the probe has to cope with."""

import argparse
import hashlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--rows", type=int, default=4)
parser.add_argument("--accum", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--optimizer", default="adamw", choices=["adamw", "lbfgs", "two"])
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", default="", choices=["", "module", "inplace", "step"])
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--keyword", action="store_true")
parser.add_argument("--loader", type=int, default=-1)
parser.add_argument("--sleep-data", type=float, default=0.0)
parser.add_argument("--sleep-forward", type=float, default=0.0)
parser.add_argument("--sleep-late-rank", type=float, default=0.0)
parser.add_argument("--big", type=int, default=0)
parser.add_argument("--report", default="")
parser.add_argument("--lr-change-at", type=int, default=-1)
args = parser.parse_args()

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.lin(x))


class Model(nn.Module):
    def __init__(self, vocab=32, width=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.block = Block(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, idx, targets=None):
        if args.sleep_forward and self.training:
            time.sleep(args.sleep_forward)
        x = self.emb(idx)
        if args.checkpoint:
            from torch.utils.checkpoint import checkpoint

            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def batch(step):
    if args.sleep_data:
        time.sleep(args.sleep_data)
    g = torch.Generator().manual_seed(step)
    return torch.randint(0, 32, (args.rows * args.accum, 8), generator=g)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(0, 32, (8,), generator=g)


model = Model()
distributed = "RANK" in __import__("os").environ
if distributed:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
raw = model
graphs = []


def count_graphs(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward


if args.compile == "module":
    model = torch.compile(model, backend=count_graphs, fullgraph=True)
elif args.compile == "inplace":
    model.compile(backend=count_graphs, fullgraph=True)
params = list(raw.parameters())
if args.optimizer == "lbfgs":
    opts = [torch.optim.LBFGS(params, lr=0.1, max_iter=2)]
elif args.optimizer == "two":
    opts = [torch.optim.AdamW(params[:1], lr=args.lr), torch.optim.SGD(params[1:], lr=args.lr)]
else:
    opts = [torch.optim.AdamW(params, lr=args.lr)]
scaler = torch.amp.GradScaler("cpu", enabled=args.scaler, init_scale=128.0)
loader = (
    iter(torch.utils.data.DataLoader(Rows(), batch_size=args.rows * args.accum, num_workers=args.loader))
    if args.loader >= 0
    else None
)
if args.big:
    torch.zeros(args.big * 2**20, dtype=torch.uint8) + 1

model.eval()
with torch.no_grad():
    x = batch(999)
    model(x, x)
model.train()
report = []
stepper = torch.compile(opts[0].step, backend="eager") if args.compile == "step" else None


def loss_of(x):
    y = (x + 1) % 32
    return (model(idx=x, targets=y) if args.keyword else model(x, y)) / args.accum


for step in range(args.steps):
    if step == args.lr_change_at:
        opts[0].param_groups[0]["lr"] *= 0.5
    whole = next(loader) if loader else batch(step)
    if args.optimizer == "lbfgs":

        def closure(rows=whole):
            opts[0].zero_grad()
            loss = loss_of(rows)
            loss.backward()
            return loss

        opts[0].step(closure)
        continue
    total = 0.0
    for x in whole.chunk(args.accum):
        loss = loss_of(x)
        total += loss.item()
        scaler.scale(loss).backward()
    for opt in opts:
        scaler.unscale_(opt)
    by_hand = sum(float((p.grad.double() ** 2).sum()) for p in params) ** 0.5
    if args.clip:
        nn.utils.clip_grad_norm_(params, args.clip)
    if distributed and args.sleep_late_rank:
        if dist.get_rank() == 1:
            time.sleep(args.sleep_late_rank)
        dist.all_reduce(torch.zeros(1))
    for opt in opts:
        stepper() if stepper else scaler.step(opt)
    scaler.update()
    for opt in opts:
        opt.zero_grad(set_to_none=True)
    digest = hashlib.sha256(b"".join(bytes(p.detach().numpy().tobytes()) for p in params)).hexdigest()
    report.append([total, by_hand, digest, sum(graphs)])
    if args.report:
        with open(args.report, "w") as file:
            json.dump(report, file)
if args.compile == "step":
    sys.exit(0)
