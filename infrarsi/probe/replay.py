"""Replay mode: the code of this worktree computes loss and gradients for weights and rows that another run wrote down.

Each optimizer step of the process is one section of the plan: at its first forward the weights are loaded and the rows
of the check step take the place of the trainer's own; where the gradients are complete they are written. Dropout is
off, and the global generators start each section at one seed, so that two codes draw the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from . import model, weights
from .batches import Callers, replaced
from .checkstep import neutralise_dropout, without_dropout
from .rows import first_sample

if TYPE_CHECKING:
    from .session import Session

SEED = 20_011


class Section(NamedTuple):
    """One step of a replay: whose weights, whose rows, under bfloat16 autocast or not."""

    weights: Path
    rows: Path
    autocast: bool


class Replay:
    """The sections of one rank's replay, and where in them it is."""

    def __init__(self, sections: Sequence[Mapping[str, Any]], out: str, root: str, rank: int) -> None:
        self._sections = [Section(Path(s["weights"]), Path(s["rows"]), bool(s.get("autocast"))) for s in sections]
        self._out = Path(out)
        self._rank = rank
        self._callers = Callers(root)
        self._begun = -1
        self._written = -1
        self._cursor = 0
        self._micro_step = 0
        self._batches: list[dict[str, Tensor]] = []
        self._columns: dict[str, Tensor] = {}
        self._names: frozenset[str] | None = None
        neutralise_dropout()

    def enter(
        self, session: Session, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a training forward with the recorded rows in them. ValueError where they do not fit.

        Other forwards (evaluation, parts of the model, more steps than sections) get what they were called with.
        """
        sample = first_sample(args, kwargs)
        if session.in_backward or sample is None or not (module.training and torch.is_grad_enabled()):
            return args, kwargs
        session.settle()
        section = session.step
        if section >= len(self._sections) or not self._is_root(session, module, section):
            return args, kwargs
        if self._begun != section:
            self._begin(session, module, section)
        rows = int(sample.shape[0])
        changed = replaced(args, kwargs, rows, self._callers, self._replacement(rows))
        self._cursor += rows
        self._micro_step += 1
        return changed

    def write(self, session: Session) -> None:
        """Write the gradients of the section in progress, once."""
        if self._begun <= self._written or session.root is None:
            return
        self._written = self._begun
        path = self._out / f"gradients.{self._begun}.pt"
        weights.save(path, weights.gradients_of(session.pairs), write=self._rank == 0)

    def _is_root(self, session: Session, module: nn.Module, section: int) -> bool:
        if session.root is not None:
            return module is session.root
        if self._names is None:
            _, saved = weights.read(self._sections[section].weights)
            self._names = frozenset(name for name in saved if not name.startswith(weights.BUFFER))
        return session.state_map.names(name for name, _ in model.named(module)) == self._names

    def _begin(self, session: Session, module: nn.Module, section: int) -> None:
        self._begun, self._cursor, self._micro_step = section, 0, 0
        wanted = self._sections[section]
        session.perturbation.use_autocast(wanted.autocast)
        without_dropout(module)
        pairs = session.state_map.present(model.named(module))
        weights.load(module, pairs, weights.read(wanted.weights)[1])
        with torch.no_grad():
            for _, parameter in pairs:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        about, saved = weights.read(wanted.rows / f"rows.{self._rank}.pt")
        self._batches = [{} for _ in range(int(about["micro_steps"]))]
        for name, value in saved.items():
            number, _, key = name.partition("/")
            self._batches[int(number)][key] = value
        self._columns = _columns(self._batches)
        torch.manual_seed(SEED)
        random.seed(SEED)

    def _replacement(self, rows: int) -> Any:
        """Return the function that gives the recorded rows in place of a tensor of the present micro-batch."""
        used: set[str] = set()
        begin, number = self._cursor, self._micro_step

        def replace(key: str, tensor: Tensor) -> Tensor:
            name = key if key in self._columns else self._like(tensor, key, used)
            if name is None:
                return tensor
            used.add(name)
            whole = self._columns[name]
            value = whole[begin : begin + rows]
            if value.shape[1:] != tensor.shape[1:]:
                value = self._batches[number][name]  # rows of several lengths: micro-batch by micro-batch
            if value.shape != tensor.shape:
                raise ValueError(
                    f"{key} has shape {tuple(tensor.shape)}; "
                    f"the recorded micro-batch {number + 1} has {tuple(value.shape)}"
                )
            return value.to(tensor.device, tensor.dtype if tensor.is_floating_point() else value.dtype)

        return replace

    def _like(self, tensor: Tensor, key: str, used: set[str]) -> str | None:
        """Return the first recorded tensor of the same kind (argument or variable), shape and type not yet used."""
        kind = key.partition(".")[0]
        for name, value in self._columns.items():
            same = value.shape[1:] == tensor.shape[1:] and value.dtype == tensor.dtype
            if name not in used and name.partition(".")[0] == kind and same:
                return name
        return None


def _columns(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return each tensor of the micro-batches as one, in order; the last one's where their rows differ in shape."""
    columns: dict[str, Tensor] = {}
    for key in dict.fromkeys(k for batch in batches for k in batch):
        parts = [batch[key] for batch in batches if key in batch]
        if len(parts) == len(batches) and len({part.shape[1:] for part in parts}) == 1:
            columns[key] = torch.cat(parts)
        else:
            columns[key] = parts[-1]
    return columns
