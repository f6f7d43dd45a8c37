"""Steps the sampled coordinates in float64 by torch's documented rules of Adam, AdamW and SGD.

The gradients are those that the optimizer is given (after clipping, unscaled), the hyper-parameters those of each
parameter group at that step, the weights the real ones before it: rounding does not add up from step to step, only the
optimizer's state is followed. It starts from zeros, or from the optimizer's own state where a run resumed with one.

Rules: torch.optim.Adam, AdamW and SGD as their documentation's algorithms have them (Kingma and Ba 2015; Loshchilov and
Hutter 2019; Sutskever et al. 2013), amsgrad, nesterov, dampening, maximize and decoupled weight decay included. A class
is known by its descent, or by its name and its groups' keys: what a subclass does otherwise is what is looked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from .coordinates import Coordinates, Part
from .model import local
from .statemap import Slice, cut, whole_of

KEYS = {
    "adam": frozenset(("lr", "betas", "eps", "weight_decay")),
    "sgd": frozenset(("lr", "momentum", "weight_decay")),
}
# A step rounds each weight twice (decay, then the step itself), each time by at most half a unit in the last place.
# What differs by less than twice their sum is equal.
ROUNDING = 2.0
TINY = 1e-300
Column = float | Tensor


class Rule(NamedTuple):
    """Which rule a class follows; `decoupled`: weight decay beside the gradient (AdamW)."""

    kind: str
    decoupled: bool


def rule_of(optimizer: Optimizer) -> Rule | None:
    """Return the rule of an optimizer, or None where it is none of these. ZeRO's wrapper follows the one inside."""
    inner = getattr(optimizer, "optim", None)
    stepping = inner if isinstance(inner, Optimizer) else optimizer
    name, groups = type(stepping).__name__, optimizer.param_groups
    decoupled = isinstance(stepping, AdamW) or name == "AdamW"
    if decoupled or isinstance(stepping, Adam) or name == "Adam":
        flags = {bool(group.get("decoupled_weight_decay", decoupled)) for group in groups}
        rule = Rule("adam", flags.pop()) if len(flags) == 1 else None
    else:
        rule = Rule("sgd", False) if isinstance(stepping, SGD) or name == "SGD" else None
    return None if rule is None or any(KEYS[rule.kind] - group.keys() for group in groups) else rule


def why_not(optimizer: Optimizer, pairs: Sequence[tuple[str, Tensor]]) -> str:
    """Return why an optimizer may not step parameters that a state map cuts; empty where it may.

    Rules that look at a whole matrix (Muon, Adafactor) do another thing to a fused one than to its parts.
    """
    if rule_of(optimizer) is not None:
        return ""
    wholes = {id(p.whole) for _, p in pairs if isinstance(p, Slice)}
    if not any(id(p) in wholes for group in optimizer.param_groups for p in group["params"]):
        return ""
    return f"{type(optimizer).__name__} may look at whole matrices: a state map goes with Adam, AdamW, SGD"


class Member:
    """What of the vector of coordinates an optimizer steps: `index` None means all of it. `groups` has the parameter
    group of each coordinate."""

    def __init__(self, rule: Rule, signature: tuple[int, ...], parts: tuple[Part, ...], groups: Tensor) -> None:
        self.rule = rule
        self.signature = signature
        self.parts = parts
        self.index: Tensor | None = None
        self._groups = groups
        self._hyper: list[tuple[float, ...]] = []
        self._columns: list[Column] = []

    def read(self, optimizer: Optimizer) -> list[Column]:
        """Return lr, weight decay, maximize, and four values of the rule: numbers where all groups have the same."""
        values = _adam_values if self.rule.kind == "adam" else _sgd_values
        rows = list(zip(*(values(group) for group in optimizer.param_groups), strict=True))
        if rows != self._hyper:
            known = dict(zip(self._hyper, self._columns, strict=True))
            self._columns = [known[row] if row in known else self._column(row) for row in rows]
            self._hyper = rows
        return self._columns

    def step_of(self, optimizer: Optimizer, gradients: Tensor, there: Tensor | None) -> Step:
        """Return the step that an optimizer is about to make with these gradients."""
        skipped = getattr(optimizer, "found_inf", None)  # a fused step looks for infinite gradients by itself
        if isinstance(skipped, Tensor):
            fine = (skipped == 0).to(gradients.device).expand(len(gradients))
            there = fine if there is None else there & fine
        return Step(self, self.read(optimizer), gradients, there)

    def _column(self, values: tuple[float, ...]) -> Column:
        if len(set(values)) == 1:
            return values[0]
        return torch.tensor(values, dtype=torch.float64, device=self._groups.device)[self._groups]


class Step(NamedTuple):
    """One step of one optimizer as it was about to be made: its gradients, unscaled, and its hyper-parameters.

    `there` says which gradients exist (None: all): torch leaves parameters without one as they are.
    """

    member: Member
    columns: list[Column]
    gradients: Tensor
    there: Tensor | None


class Shadow:
    """The state of all optimizers at the coordinates, and what they should have changed since the last `take`."""

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self._members: weakref.WeakKeyDictionary[Optimizer, Member | None] = weakref.WeakKeyDictionary()
        self._known: set[int] = set()
        self._first, self._second, self._largest, self._times, self._expected = (
            torch.zeros(coordinates.size, dtype=torch.float64, device=coordinates.device) for _ in range(5)
        )
        self._nothing = self._expected
        self._covered = torch.zeros(coordinates.size, dtype=torch.bool, device=coordinates.device)
        self._all_covered = False
        self._rounding = ROUNDING * coordinates.epsilons
        self.steps = 0

    # -- whose step it is ---------------------------------------------------------------------------------------

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has been adopted."""
        return optimizer in self._members

    def adopt(self, optimizer: Optimizer) -> Member | None:
        """Return what an optimizer steps, having taken over its state for parameters that are new here; None where its
        rule is not known. To be called before the step."""
        signature = tuple([len(group["params"]) for group in optimizer.param_groups])
        known = self._members.get(optimizer)
        if (known is not None and known.signature == signature) or (known is None and optimizer in self._members):
            return known
        rule = rule_of(optimizer)
        member = None if rule is None else self._member(optimizer, rule, signature)
        self._members[optimizer] = member
        return member

    def _member(self, optimizer: Optimizer, rule: Rule, signature: tuple[int, ...]) -> Member:
        found: list[tuple[Part, int]] = []
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                found += [(part, number) for part in self._coordinates.parts_of(parameter)]
        found.sort(key=lambda item: item[0].begin)
        for part, _ in found:
            self._covered[part.begin : part.end] = True
            if part.begin not in self._known:
                self._known.add(part.begin)
                self._take_over(part, optimizer.state.get(whole_of(part.parameter)) or {})
        self._all_covered = bool(self._covered.all())
        of: dict[str, Any] = {"dtype": torch.int64, "device": self._coordinates.device}
        groups = torch.tensor([number for part, number in found for _ in part.flat], **of)
        member = Member(rule, signature, tuple(part for part, _ in found), groups)
        places = [place for part, _ in found for place in range(part.begin, part.end)]
        if len(places) < self._coordinates.size:
            member.index = torch.tensor(places, **of)
        return member

    def _take_over(self, part: Part, state: dict[str, Any]) -> None:
        """Copy the state that an optimizer brought along from an earlier run."""
        for name, vector in (
            ("exp_avg", self._first),
            ("momentum_buffer", self._first),
            ("exp_avg_sq", self._second),
            ("max_exp_avg_sq", self._largest),
        ):
            if isinstance(state.get(name), Tensor):
                vector[part.begin : part.end] = part.of(cut(part.parameter, local(state[name]).detach())).double()
        steps = state.get("step", 1 if isinstance(state.get("momentum_buffer"), Tensor) else 0)
        self._times[part.begin : part.end] = float(steps)

    # -- the step -----------------------------------------------------------------------------------------------

    def apply(self, step: Step, before: Tensor) -> None:
        """Make one step; `before` are the weights at all coordinates when the first step since `take` began."""
        member, columns, given, there = step
        lr, decay, maximize, *values = columns
        weights = before if self._expected is self._nothing else before + self._expected
        if member.index is not None:
            weights = weights[member.index]
        gradient = given if _is(maximize, 0.0) else torch.where(_vector(maximize, given) > 0, -given, given)
        if not member.rule.decoupled and not _is(decay, 0.0):
            gradient = gradient + decay * weights
        times = self._of(member, self._times) + 1.0
        rule = self._adam if member.rule.kind == "adam" else self._sgd
        change = rule(member, gradient, times, there, values).mul_(-lr)
        if member.rule.decoupled and not _is(decay, 0.0):
            change = change.sub_(lr * decay * weights)
        if there is not None:
            change = torch.where(there, change, 0.0)
        self._times = self._put(member, self._times, times, there)
        self.steps += 1
        if member.index is None:
            self._expected = change if self._expected is self._nothing else self._expected + change
        else:
            self._expected = self._expected.index_add(0, member.index, change)

    def _adam(
        self, member: Member, gradient: Tensor, times: Tensor, there: Tensor | None, values: list[Column]
    ) -> Tensor:
        beta1, beta2, eps, amsgrad = values
        first = torch.lerp(self._of(member, self._first), gradient, 1.0 - beta1)
        second = torch.lerp(self._of(member, self._second), gradient * gradient, 1.0 - beta2)
        self._first = self._put(member, self._first, first, there)
        self._second = self._put(member, self._second, second, there)
        if not _is(amsgrad, 0.0):
            largest = torch.maximum(second, self._of(member, self._largest))
            self._largest = self._put(member, self._largest, largest, there)
            second = torch.where(_vector(amsgrad, second) > 0, largest, second)
        root = (second / (1.0 - beta2**times)).sqrt_().add_(eps)
        return first / (1.0 - beta1**times) / root

    def _sgd(
        self, member: Member, gradient: Tensor, times: Tensor, there: Tensor | None, values: list[Column]
    ) -> Tensor:
        momentum, dampening, nesterov, _ = values
        if _is(momentum, 0.0):
            return gradient.clone()
        buffer = momentum * self._of(member, self._first) + (1.0 - dampening) * gradient
        buffer = torch.where(times == 1.0, gradient, buffer)
        self._first = self._put(member, self._first, buffer, there)
        moved = torch.where(_vector(nesterov, buffer) > 0, gradient + momentum * buffer, buffer)
        return torch.where(_vector(momentum, moved) == 0, gradient, moved)

    def _of(self, member: Member, vector: Tensor) -> Tensor:
        return vector if member.index is None else vector[member.index]

    def _put(self, member: Member, vector: Tensor, values: Tensor, there: Tensor | None) -> Tensor:
        """Return the vector with a member's new values where there was a gradient."""
        if there is not None:
            values = torch.where(there, values, self._of(member, vector))
        return values if member.index is None else vector.index_copy(0, member.index, values)

    def take(self, change: Tensor, before: Tensor) -> Tensor:
        """Return (|change - expected| / |expected|)^2 over what known optimizers step, and start anew.

        `change` is what the weights really did since the last call, from `before`: what the rounding of a weight
        explains is no difference. 0 where nothing should have changed and nothing did, very large where something did.
        """
        expected, self._expected = self._expected, self._nothing
        off = (change - expected).abs_().sub_(self._rounding * before.abs()).clamp_(min=0.0)
        if not self._all_covered:
            off = off * self._covered
        return torch.dot(off, off) / (torch.dot(expected, expected) + TINY)


def _is(column: Column, value: float) -> bool:
    return not isinstance(column, Tensor) and column == value


def _vector(column: Column, like: Tensor) -> Tensor:
    return column if isinstance(column, Tensor) else torch.full_like(like, column)


def _adam_values(group: dict[str, Any]) -> tuple[float, ...]:
    beta1, beta2 = group["betas"]
    maximize, amsgrad = float(bool(group.get("maximize"))), float(bool(group.get("amsgrad")))
    decay = float(group["weight_decay"])
    return float(group["lr"]), decay, maximize, float(beta1), float(beta2), float(group["eps"]), amsgrad


def _sgd_values(group: dict[str, Any]) -> tuple[float, ...]:
    maximize, nesterov = float(bool(group.get("maximize"))), float(bool(group.get("nesterov")))
    dampening, decay = float(group.get("dampening", 0.0)), float(group["weight_decay"])
    return float(group["lr"]), decay, maximize, float(group["momentum"]), dampening, nesterov, 0.0
