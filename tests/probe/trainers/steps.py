"""A small trainer with every way to make an optimizer step that the probe has to cope with, and some ways to cheat."""

import argparse
import contextlib
import os

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--rows", type=int, default=8, help="rows of the global batch")
parser.add_argument("--accum", type=int, default=2)
parser.add_argument("--parallel", default="none", choices=["none", "ddp", "fsdp2"])
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--options", default="", help="keyword arguments of the optimizer")
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--clip-in-two", action="store_true", help="the norm first, clipping by it then")
parser.add_argument("--closure", action="store_true", help="forward and backward inside of the optimizer's step")
parser.add_argument("--no-sync", action="store_true")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", default="", choices=["", "blocks"])
parser.add_argument("--tied", action="store_true")
parser.add_argument("--sparse", action="store_true")
parser.add_argument("--frozen", action="store_true")
parser.add_argument("--idle", action="store_true", help="a parameter that gets no gradient")
parser.add_argument("--twice", action="store_true", help="two losses, two backward calls")
parser.add_argument("--resume", action="store_true", help="train, save, and go on with a new optimizer's loaded state")
parser.add_argument("--cheat", default="")
args = parser.parse_args()

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
WIDTH, VOCAB = 15, 33  # odd: shards are uneven


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.relu(self.lin(self.norm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH, sparse=args.sparse)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.scale = nn.Parameter(torch.ones(() if args.parallel == "none" else 1))
        if args.tied:
            self.head.weight = self.emb.weight
        if args.idle:
            self.idle = nn.Parameter(torch.ones(5))
        if args.frozen:
            self.blocks[0].lin.weight.requires_grad_(False)

    def forward(self, idx):
        x = self.emb(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def batch(step):
    g = torch.Generator().manual_seed(step)
    whole = torch.randint(0, VOCAB, (args.rows, 8), generator=g)
    return whole.chunk(world)[rank].chunk(args.accum)


class AdamW(torch.optim.AdamW):
    """The cheats that an optimizer can hide."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if args.cheat == "skip" and self.calls % 2 == 0:
            return
        if args.cheat == "lr":
            for group in self.param_groups:
                group["lr"] *= 2
        if args.cheat == "freeze":
            params = [p for group in self.param_groups for p in group["params"]]
            for p in params[: len(params) // 2]:
                p.grad = None
        super().step(closure)
        if args.cheat == "lr":
            for group in self.param_groups:
                group["lr"] /= 2
        if args.cheat == "bf16":
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.copy_(p.bfloat16())


class Lion(torch.optim.Optimizer):
    """An optimizer with a rule of its own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])


class Foreign:
    """Not derived from torch's Optimizer."""

    def __init__(self, params, lr):
        self.params, self.lr = params, lr

    @torch.no_grad()
    def step(self):
        for p in self.params:
            if p.grad is not None:
                p -= self.lr * p.grad

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def make(params, lr=args.lr):
    options = eval(f"dict({args.options})")
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "cheat": AdamW}
    if args.optimizer == "groups":
        decay, rest = [p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0, "lr": lr / 3}]
        return torch.optim.AdamW(groups, lr=lr, **options)
    if args.optimizer in ("lion", "foreign", "hand"):
        return (Lion if args.optimizer == "lion" else Foreign)(params, lr)
    return kinds.get(args.optimizer, torch.optim.AdamW)(params, **{"lr": lr, **options})


model = Model()
if world > 1:
    import torch.distributed as dist

    dist.init_process_group("gloo")
if args.parallel == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
if args.parallel == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    for part in model.blocks:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
if args.compile == "blocks":
    for part in model.blocks:
        part.compile(backend="aot_eager")

params = [p for p in model.parameters() if p.requires_grad]
if args.optimizer in ("together", "alternating"):
    opts = [torch.optim.AdamW(params[:3], lr=args.lr), torch.optim.SGD(params[3:], lr=args.lr, momentum=0.9)]
elif args.optimizer == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    opts = [ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=args.lr)]
elif args.optimizer == "in-backward":
    opts, own = [], {p: torch.optim.AdamW([p], lr=args.lr) for p in params}

    def update(p):
        own[p].step()
        own[p].zero_grad()

    for one in params:
        one.register_post_accumulate_grad_hook(update)
else:
    opts = [make(params)]
scaler = torch.amp.GradScaler("cpu", enabled=args.scaler, init_scale=128.0)


def loss_of(x):
    return F.cross_entropy(model(x).flatten(0, 1), ((x + 1) % VOCAB).flatten())


model.train()
if args.resume:  # the state of an earlier run, as a checkpoint would bring it
    for p in params:
        p.grad = torch.full_like(p, 0.1)
    moments = [{"exp_avg": p.grad * 2, "exp_avg_sq": p.grad**2} for p in params]
    state = {k: {"step": torch.tensor(7.0), **values} for k, values in enumerate(moments)}
    groups = opts[0].state_dict()["param_groups"]
    opts[0].load_state_dict({"state": state, "param_groups": groups})
    opts[0].zero_grad()
for step in range(args.steps):
    parts = batch(step)
    if args.closure:

        def closure(parts=parts):
            opts[0].zero_grad()
            loss = loss_of(torch.cat(parts))
            loss.backward()
            return loss

        opts[0].step(closure)
        continue
    for number, x in enumerate(parts):
        last = number == len(parts) - 1
        if args.parallel == "fsdp2" and args.no_sync:
            model.set_requires_gradient_sync(last)
        with model.no_sync() if args.parallel == "ddp" and args.no_sync and not last else contextlib.nullcontext():
            loss = loss_of(x) / args.accum
            if args.twice:
                (0.25 * loss).backward(retain_graph=True)
                loss = 0.75 * loss
            scaler.scale(loss).backward()
    if args.clip and opts:
        for opt in opts:
            if args.scaler:
                scaler.unscale_(opt)
        if args.clip_in_two:
            norm = nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
            nn.utils.clip_grads_with_norm_(params, args.clip, norm)
        else:
            nn.utils.clip_grad_norm_(params, args.clip)
    if args.optimizer == "hand":
        with torch.no_grad():
            for p in params:
                p -= args.lr * p.grad
                p.grad = None
        continue
    for opt in opts if args.optimizer != "alternating" else opts[step % 2 :][:1]:
        if isinstance(opt, torch.optim.Optimizer):
            scaler.step(opt)
        else:
            opt.step()
    if args.scaler:
        scaler.update()
    for opt in opts:
        opt.zero_grad()
