"""Train a small mixture-of-experts GPT on byte tokens, on one process or with torchrun.

    python prepare.py
    torchrun --standalone --nproc_per_node=2 train.py

The global batch is batch_size x accum x processes rows of block_size tokens. Which rows a step sees depends on the
seed, the step and that product only: the same rows are trained on however they are split.
"""

import argparse
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import MoEGPT


def parse_args():
    parser = argparse.ArgumentParser(description="train a small mixture-of-experts GPT")
    # data
    parser.add_argument("--data", default="data", help="folder with train.bin and val.bin (uint8 tokens)")
    parser.add_argument("--batch_size", type=int, default=4, help="rows per micro-step and process")
    parser.add_argument("--accum", type=int, default=4, help="micro-steps per optimizer step (gradient accumulation)")
    parser.add_argument("--block_size", type=int, default=64, help="tokens per row")
    # model
    parser.add_argument("--vocab_size", type=int, default=256)
    parser.add_argument("--n_layer", type=int, default=3)
    parser.add_argument("--n_head", type=int, default=8)
    parser.add_argument("--n_embd", type=int, default=128)
    parser.add_argument("--n_expert", type=int, default=8)
    parser.add_argument("--top_k", type=int, default=2, help="experts per token")
    parser.add_argument("--aux_weight", type=float, default=0.01, help="weight of the load-balancing loss")
    parser.add_argument("--dropout", type=float, default=0.0)
    # optimizer
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--min_lr", type=float, default=1e-4)
    parser.add_argument("--warmup_iters", type=int, default=20)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    # run
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--log_interval", type=int, default=10)
    parser.add_argument("--eval_batches", type=int, default=8, help="validation batches after the last step")
    return parser.parse_args()


def load_tokens(folder, split):
    return np.memmap(os.path.join(folder, f"{split}.bin"), dtype=np.uint8, mode="r")


def get_batch(tokens, args, step, micro_step, rank, world_size):
    """Rows of one micro-step: the slice of the global batch that belongs to this rank and micro-step."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    rows = args.batch_size * args.accum * world_size
    starts = torch.randint(len(tokens) - args.block_size, (rows,), generator=generator)
    first = (rank * args.accum + micro_step) * args.batch_size
    mine = starts[first : first + args.batch_size].tolist()
    x = torch.stack([torch.from_numpy(tokens[i : i + args.block_size].astype(np.int64)) for i in mine])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + args.block_size].astype(np.int64)) for i in mine])
    return x.to(args.device), y.to(args.device)


def get_lr(step, args):
    """Linear warm-up, then a cosine down to min_lr at the last step."""
    if step < args.warmup_iters:
        return args.learning_rate * (step + 1) / (args.warmup_iters + 1)
    progress = (step - args.warmup_iters) / max(1, args.steps - args.warmup_iters)
    return args.min_lr + 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))) * (args.learning_rate - args.min_lr)


def configure_optimizer(model, args):
    """AdamW; matrices are decayed, biases and norms are not."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decay, "weight_decay": args.weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.learning_rate, betas=(args.beta1, args.beta2))


@torch.no_grad()
def evaluate(model, tokens, args):
    """Mean loss over evenly spaced rows of the validation split."""
    model.eval()
    span = max(1, (len(tokens) - args.block_size - 1) // args.eval_batches)
    total = 0.0
    for i in range(0, span * args.eval_batches, span):
        row = torch.from_numpy(tokens[i : i + args.block_size + 1].astype(np.int64)).to(args.device)[None]
        _, loss = model(row[:, :-1], row[:, 1:])
        total += loss.item()
    model.train()
    return total / args.eval_batches


def main():
    args = parse_args()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if args.device == "cuda":
        args.device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}"
        torch.cuda.set_device(args.device)
    if world_size > 1:
        dist.init_process_group(backend="nccl" if args.device.startswith("cuda") else "gloo")

    torch.manual_seed(args.seed)
    model = MoEGPT(
        vocab_size=args.vocab_size,
        block_size=args.block_size,
        n_layer=args.n_layer,
        n_head=args.n_head,
        n_embd=args.n_embd,
        n_expert=args.n_expert,
        top_k=args.top_k,
        aux_weight=args.aux_weight,
        dropout=args.dropout,
    )
    model.to(args.device)
    optimizer = configure_optimizer(model, args)
    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        rows = args.batch_size * args.accum * world_size
        print(f"{count:,} parameters, {rows} rows x {args.block_size} tokens per step, {world_size} processes")
    if world_size > 1:
        model = DDP(model)

    tokens = load_tokens(args.data, "train")
    started = time.perf_counter()
    for step in range(args.steps):
        lr = get_lr(step, args)
        for group in optimizer.param_groups:
            group["lr"] = lr

        optimizer.zero_grad(set_to_none=False)
        total_loss = 0.0
        for micro_step in range(args.accum):
            x, y = get_batch(tokens, args, step, micro_step, rank, world_size)
            _, loss = model(x, y)
            loss = loss / args.accum
            loss.backward()
            total_loss += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()

        if rank == 0 and step % args.log_interval == 0:
            ms = (time.perf_counter() - started) * 1000.0 / (step + 1)
            print(f"step {step}: loss {total_loss:.4f}, lr {lr:.2e}, {ms:.0f} ms/step", flush=True)

    if rank == 0 and args.eval_batches > 0:
        raw_model = model.module if world_size > 1 else model
        print(f"validation loss {evaluate(raw_model, load_tokens(args.data, 'val'), args):.4f}")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
