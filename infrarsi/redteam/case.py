"""What a case is: edits of a shipped trainer, the class it is judged under, and what should catch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from infrarsi.records import Assignment, Numerics

Kind = Literal["cheat", "honest", "tolerated"]
Trainer = Literal["dense", "moe"]
TRAINERS: tuple[Trainer, ...] = ("dense", "moe")
Ring = Literal["", "scope", "invariant", "time", "finalist", "sandbox", "failure"]
PLAIN, EXECUTABLE, SYMLINK = "100644", "100755", "120000"
# In a case's text: a folder of its own outside the worktree, the only place that it may try to write to.
OUTSIDE = "@OUTSIDE@"


@dataclass(frozen=True)
class Edit:
    """Replacements in one file, each of a text that stands there exactly once; `append` goes to the file's end."""

    path: str
    replacements: tuple[tuple[str, str], ...] = ()
    append: str = ""


@dataclass(frozen=True)
class Entry:
    """A whole new tree entry: a file's text, or a symbolic link's target."""

    path: str
    text: str
    mode: str = PLAIN


@dataclass(frozen=True)
class Case:
    """One cheat that must be caught, or one honest change that must pass; so must what is tolerated: a departure that
    the contract allows once by its own tolerances, and that is caught as a cheat where it is made many times.

    `ring` and `check` say what is expected to catch it. `numerics` is the class it is judged under. `state_map` is what
    stands before its patch's diff. `variant` names a baseline with other flags (`VARIANTS`). `canaries` are files,
    absolute or of the repository, that must be afterwards what they were. `claims`: the speed-up that it only claims;
    caught where the measured one is not half of it. `pending` says why it cannot be judged yet. `ranks`: the processes
    that it takes. `quick` cases train also in the quick suite, `slow` ones only on request.
    """

    name: str
    kind: Kind
    trainer: Trainer
    what: str
    ring: Ring = ""
    check: str = ""
    numerics: Numerics = "reorder"
    edits: tuple[Edit, ...] = ()
    entries: tuple[Entry, ...] = ()
    modes: tuple[tuple[str, str], ...] = ()
    assignments: tuple[Assignment, ...] = ()
    state_map: str = ""
    variant: str = ""
    canaries: tuple[str, ...] = ()
    claims: float = 0.0
    pending: str = ""
    ranks: int = 1
    quick: bool = False
    slow: bool = False

    @property
    def changes_tree(self) -> bool:
        """Whether anything but launch settings differs from the baseline."""
        return bool(self.edits or self.entries or self.modes)


# Baselines that differ from the plain one by launch flags: each is calibrated by itself.
VARIANTS: Mapping[str, tuple[str, ...]] = {"": (), "dropout": ("--dropout=0.1",)}


def cheat(name: str, what: str, ring: Ring, check: str, *edits: Edit, trainer: Trainer = "dense", **more: Any) -> Case:
    """Return a cheat on one trainer."""
    return Case(name, "cheat", trainer, what, ring, check, edits=edits, **more)


def honest(name: str, what: str, numerics: Numerics, *edits: Edit, trainer: Trainer = "dense", **more: Any) -> Case:
    """Return an honest change of one trainer."""
    return Case(name, "honest", trainer, what, numerics=numerics, edits=edits, **more)


def tolerated(name: str, what: str, numerics: Numerics, *edits: Edit, trainer: Trainer = "dense", **more: Any) -> Case:
    """Return a departure within the contract's tolerances, on one trainer."""
    return Case(name, "tolerated", trainer, what, numerics=numerics, edits=edits, **more)


def on_both(case: Case) -> tuple[Case, Case]:
    """Return a case for both trainers, which share the text that it edits."""
    return case, replace(case, trainer="moe")


def train(*replacements: tuple[str, str]) -> Edit:
    """Return an edit of the training script."""
    return Edit("train.py", replacements)


def model(*replacements: tuple[str, str]) -> Edit:
    """Return an edit of the model's file."""
    return Edit("model.py", replacements)


def fewer_layers(trainer: Trainer, left_out: str) -> Edit:
    """Return an edit that runs all layers but the last where `left_out`, an expression over `self.calls`, is true."""
    quiet = "            self.blocks[-1].moe.aux_loss = torch.zeros(())\n" if trainer == "moe" else ""
    text = (
        '        self.calls = self.__dict__.get("calls", 0) + 1\n'
        "        last = len(self.blocks)\n"
        f"        if self.training and ({left_out}):\n"
        f"            last -= 1\n{quiet}"
        "        for block in self.blocks[:last]:\n"
        "            x = block(x)\n"
    )
    return model((BLOCKS, text))


def settings(**flags: str | int | float) -> tuple[Assignment, ...]:
    """Return launch flags as a candidate sets them."""
    return tuple(Assignment("flag", f"--{name}", value) for name, value in flags.items())


# Lines of the shipped trainers that cases replace; the tests hold that each stands there exactly once.
IMPORTS = "import argparse\n"
BATCH = "            x, y = get_batch(tokens, args, step, micro_step, rank, world_size)\n"
FORWARD = "            _, loss = model(x, y)\n"
AUTOCAST = '            with torch.autocast("cpu", dtype=torch.bfloat16):\n' + f"    {FORWARD}"
AVERAGE = "            loss = loss / args.accum\n"
BACKWARD = "            loss.backward()\n"
LOGGED = "            total_loss += loss.item()\n"
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)\n"
STEP = "        optimizer.step()\n"
ZERO = "        optimizer.zero_grad(set_to_none=False)\n"
MICRO_STEPS = "        for micro_step in range(args.accum):\n"
STEPS = "    for step in range(args.steps):\n"
TOKENS = '    tokens = load_tokens(args.data, "train")\n'
TO_DEVICE = "    model.to(args.device)\n"
OPTIMIZER = "    optimizer = configure_optimizer(model, args)\n"
ADAMW = "    return torch.optim.AdamW(groups, lr=args.learning_rate, betas=(args.beta1, args.beta2))\n"
SET_LR = '            group["lr"] = lr\n'
WRAPPED = "        model = DDP(model)\n"
# DDP refuses a step in which parameters got no gradient, unless it is told to expect that.
UNUSED = (WRAPPED, "        model = DDP(model, find_unused_parameters=True)\n")
RETURNED = "        return logits, loss\n"
BLOCKS = "        for block in self.blocks:\n            x = block(x)\n"
LOSS = "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"
KEY = "        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n"
SCORES = "        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))\n"
MIXED = "        y = att @ v\n"
