"""A training that takes milliseconds: speaks the probe's protocol by itself, without torch.

    python train.py --step-ms 5 --ranks 2

Reads INFRARSI_PLAN as the probe does; without it, it "trains" and prints. Ranks come from RANK and WORLD_SIZE, or are
forked by itself (--ranks). Loss, rows and hashes depend on the step and the global batch only, so that honest settings
(micro-batch, accumulation) change the time and nothing else. Flags plant failures and cheats.
"""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import socket
import sys
import time

SPEED = 1.0  # a patch may edit this: seconds per step are multiplied by it
MEMORY = 1.0  # and this: peak memory is multiplied by it
GLOBAL_ROWS = 32


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--step-ms", type=float, default=5.0, help="milliseconds per optimizer step at the baseline")
    p.add_argument("--jitter", type=float, default=0.0, help="relative deterministic jitter of a step")
    p.add_argument("--first-ms", type=float, default=0.0, help="added to the first step (compilation)")
    p.add_argument("--steps", type=int, default=10_000, help="optimizer steps before it ends by itself")
    p.add_argument("--ranks", type=int, default=1, help="fork this many ranks when RANK is not set")
    p.add_argument("--batch_size", type=int, default=8, help="micro-batch: larger is faster and needs more memory")
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--block_size", type=int, default=16)
    p.add_argument("--fused", action="store_true", help="5 %% faster")
    p.add_argument("--memory-mb", type=float, default=100.0, help="peak memory at the baseline")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--data", default="", help="a file that is opened and read")
    # failures: RANK or RANK:STEP
    for name in ("oom", "hang", "crash", "segv", "kill", "exit", "import-error", "comm"):
        p.add_argument(f"--{name}", default="", metavar="RANK:STEP")
    p.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    p.add_argument("--spawn", action="store_true", help="start a grandchild in a session of its own that sleeps")
    p.add_argument("--scrub", action="store_true", help="the grandchild has an empty environment")
    # cheats
    p.add_argument("--loss-scale", type=float, default=1.0)
    p.add_argument("--skip-rows", type=int, default=0, help="rows left out of each step")
    p.add_argument("--same-rows", action="store_true", help="the same rows at each step")
    p.add_argument("--clock-scale", type=float, default=1.0, help="the rank's clock runs at this speed")
    p.add_argument("--drop-parameter", action="store_true")
    p.add_argument("--nan", action="store_true")
    p.add_argument("--garbage", action="store_true", help="send lines that are no messages")
    p.add_argument("--bad-token", action="store_true")
    return p.parse_args()


def planned(text, rank, step):
    """Whether a failure written as RANK or RANK:STEP is due."""
    if not text:
        return False
    who, _, when = text.partition(":")
    return int(who) == rank and step == int(when or 3)


def hashed(*parts):
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


class Channel:
    """The probe's side of the socket; does nothing where no plan was given."""

    def __init__(self, args, rank, world):
        self.plan, self.socket, self.buffer = None, None, b""
        self.stop_after = None
        self.released = self.goodbye = False
        if "INFRARSI_PLAN" not in os.environ:
            return
        with open(os.environ["INFRARSI_PLAN"]) as file:
            self.plan = json.load(file)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.plan["socket"])
        token = "wrong" if args.bad_token else self.plan["token"]
        self.send(
            t="hello", token=token, rank=rank, local_rank=rank, world=world, pid=os.getpid(), device="cpu", torch="none"
        )

    def send(self, **message):
        if self.socket is not None:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def send_raw(self, data):
        if self.socket is not None:
            self.socket.sendall(data)

    def read(self, timeout):
        """Take in what the parent says, waiting at most `timeout` seconds; False at its end."""
        if self.socket is None:
            return False
        self.socket.settimeout(timeout or 1e-6)
        try:
            data = self.socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return True
        finally:
            self.socket.settimeout(None)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in filter(None, lines):
            message = json.loads(line)
            if message["t"] == "stop":
                self.stop_after = message["after"]
            self.released |= message["t"] == "release"
            self.goodbye |= message["t"] == "bye"
        return bool(data)


def fail(args, channel, rank, step):
    """Carry out the failure that is due at this step."""

    def report(kind, message, oom=False):
        channel.send(t="error", rank=rank, kind=kind, message=message, oom=oom, phase="training")
        print(f"Traceback (most recent call last):\n{kind}: {message}", file=sys.stderr, flush=True)
        os._exit(1)

    if planned(args.hang, rank, step):
        while True:
            time.sleep(3600)
    if planned(args.oom, rank, step):
        time.sleep(0.1)
        report("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory", True)
    if planned(args.comm, rank, step):
        report("torch.distributed.DistBackendError", "gloo: Connection closed by peer [127.0.0.1]:4242")
    if planned(args.crash, rank, step):
        report("ValueError", "a planned crash")
    if planned(args.import_error, rank, step):
        report("ModuleNotFoundError", "No module named 'flash_attn'")
    if planned(args.segv, rank, step):
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    if planned(args.kill, rank, step):
        os.kill(os.getpid(), signal.SIGKILL)
    if planned(args.exit, rank, step):
        os._exit(0)


def spawn(args):
    """A DataLoader worker of the worst kind: its own session, deaf, perhaps without an environment."""
    import subprocess

    code = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    env = {} if args.scrub else None
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env=env)


def step_values(args, rank, world, step):
    """What the probe would say of one step of this rank."""
    rows_of_step = args.batch_size * args.accum * world
    mine = range(rank * args.batch_size * args.accum, (rank + 1) * args.batch_size * args.accum - args.skip_rows)
    data_step = 0 if args.same_rows else step
    row_hash = sum(hashed(args.seed, data_step, i) for i in mine) % 2**64
    token_hash = sum(hashed("t", args.seed, data_step, i) for i in mine) % 2**64
    loss = (4.0 / (1 + 0.01 * step) + (hashed(args.seed, step) % 1000) / 1e5) * args.loss_scale
    norm = 1.0 / (1 + 0.02 * step) * args.loss_scale
    return {
        "loss": float("nan") if args.nan else loss,
        "backward_calls": args.accum,
        "rows": len(mine),
        "unique_rows": len(mine),
        "tokens": len(mine) * args.block_size,
        "row_hash": f"{row_hash:016x}",
        "token_hash": f"{token_hash:016x}",
        "grad_norm": norm,
        "clip_calls": 1,
        "update_sketch": [norm * args.lr * k * (rows_of_step > 0) for k in (1.0, -0.5, 0.25)],
        "hyper_digest": f"lr={args.lr}",
        "check": False,
        "phases": [],
    }


def parameters(args):
    found = [["wte.weight", [256, 32], "torch.float32", True], ["head.weight", [256, 32], "torch.float32", True]]
    return found[: 1 if args.drop_parameter else 2]


def seconds_of(args, step):
    """The time of one step: a fixed part per micro-step, so that larger micro-batches are faster."""
    base = args.step_ms / 1000.0
    seconds = base * (0.6 + 0.4 * args.accum / 4) * SPEED * (0.95 if args.fused else 1.0)
    seconds *= 1 + args.jitter * ((hashed("j", os.getpid(), step) % 2001) / 1000 - 1)
    return seconds + (args.first_ms / 1000.0 if step == 1 else 0.0)


def peak_bytes(args):
    return int(args.memory_mb * 2**20 * (0.5 + 0.5 * args.batch_size / 8) * MEMORY)


def train(args, rank, world):
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.spawn:
        spawn(args)
    if args.data:
        with open(args.data, "rb") as file:
            file.read(16)
    if planned(args.import_error, rank, 0):
        fail(args, Channel(args, rank, world), rank, 0)
    channel = Channel(args, rank, world)
    if channel.plan and channel.plan["memory_bytes"] and peak_bytes(args) > channel.plan["memory_bytes"]:
        args.oom = args.oom or f"{rank}:2"
    channel.send(t="model", rank=rank, parameters=parameters(args))
    groups = [{"optimizer": "AdamW", "group": 0, "values": [["lr", args.lr], ["weight_decay", 0.1]]}]
    warmup, full = (channel.plan["warmup_steps"], channel.plan["timed_steps"]) if channel.plan else (0, args.steps)
    started = time.monotonic()
    for step in range(1, args.steps + 1):
        time.sleep(max(0.0, started + seconds_of(args, step) - time.monotonic()))
        fail(args, channel, rank, step)
        started = time.monotonic()
        if step == 1:
            channel.send(t="hyper", rank=rank, step=1, groups=groups)
        clock = time.monotonic() * args.clock_scale
        channel.send(t="tick", rank=rank, step=step, clock=clock, edge=step in (warmup, warmup + full))
        channel.send(t="step", rank=rank, step=step, **step_values(args, rank, world, step))
        if args.garbage and step == 2:
            channel.send_raw(b'step 2: loss nan\n[1,2]\n{"t":"tick"}\n\xff\xfe\n')
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {step_values(args, rank, world, step)['loss']:.4f}", flush=True)
        if channel.plan is None:
            continue
        channel.read(0)
        last = min(warmup + full, channel.stop_after or warmup + full)
        if step >= last:
            finish(args, channel, rank, step, groups)
    channel.send(t="exit", rank=rank, steps=args.steps)


def finish(args, channel, rank, step, groups):
    """The two-phase stop: done, wait for the release, report the end, wait for the farewell."""
    channel.send(t="done", rank=rank, step=step)
    deadline = time.monotonic() + 30
    while not channel.released and time.monotonic() < deadline and channel.read(1.0):
        pass
    opened = [str(pathlib.Path(args.data).absolute())] if args.data else []
    channel.send(
        t="end",
        rank=rank,
        peak_allocated_bytes=peak_bytes(args),
        peak_reserved_bytes=int(peak_bytes(args) * 1.1),
        parameters=parameters(args),
        parameter_hash=f"{hashed(args.seed, step):016x}",
        hyper_parameters=[{"step": 1, **group} for group in groups],
        modules_outside=[],
        hooks_intact=True,
        optimizer_steps=step,
        unobserved=[],
        opened_files=opened,
        flops_per_step=1e9,
        data_functions=["train.py::get_batch"],
        overhead_seconds=0.0,
    )
    deadline = time.monotonic() + 10
    while not channel.goodbye and time.monotonic() < deadline and channel.read(1.0):
        pass
    sys.stdout.flush()
    os._exit(0)


def main():
    args = parse_args()
    if "RANK" in os.environ:
        train(args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return 0
    if args.ranks == 1:
        train(args, 0, 1)
        return 0
    children = []
    for rank in range(args.ranks):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            train(args, rank, args.ranks)
            os._exit(0)
        children.append(pid)
    return launch(children)


def launch(children):
    """What torchrun does: wait for all, end the others a moment after the first failure, name its rank."""
    left, first = dict(enumerate(children)), None
    while left:
        pid, status = os.waitpid(-1, 0)
        rank = children.index(pid)
        left.pop(rank)
        code = os.waitstatus_to_exitcode(status)
        if code and first is None:
            first = (rank, code)
            time.sleep(0.3)
            for other in left.values():
                os.kill(other, signal.SIGTERM)
    if first is None:
        return 0
    print("Root Cause (first observed failure):", file=sys.stderr)
    print(f"  rank      : {first[0]} (local_rank: {first[0]})\n  exitcode  : {first[1]}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
