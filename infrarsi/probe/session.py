"""One rank's run under the probe: where it is, what the current step has seen, when a step closes, when it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import byhand, hyper, memory, model
from .byhand import ByHand
from .candidates import Candidates
from .checkstep import CheckStep, highest
from .ending import end_message
from .following import Following
from .opened import OpenedFiles
from .perturb import Perturbation
from .plan import Plan
from .profiling import Profile
from .replay import Replay
from .reporting import Reporter
from .rows import first_sample
from .safety import Guard
from .shadow import why_not
from .sources import Sources
from .statemap import StateMap, StateMapError
from .values import StepValues, gradient_square
from .wire import Wire

BYE_SECONDS = 10.0
TRACED_STEPS = 2


class Session(Guard):
    """The state of the probe in one rank. The `on_…` methods are called by the hooks, through `guard`."""

    def __init__(
        self, plan: Plan, wire: Wire, clock: Callable[[], float], rank: int, opened: OpenedFiles | None = None
    ) -> None:
        super().__init__(wire, clock, rank)
        self.plan = plan
        self.opened = opened
        self.root: nn.Module | None = None
        self.in_backward = 0
        self.optimizer_steps = 0
        self.held = memory.Held()
        self.step = 0
        self.hook_check: Callable[[], bool] = lambda: True
        self.root_chosen: Callable[[nn.Module], None] = lambda _: None
        self.perturbation = Perturbation(plan.perturb)
        self.profile = Profile(plan.root, clock) if plan.mode == "profile" else None
        self.sources = Sources(plan.root) if plan.mode in ("observe", "profile") else None
        self.check = CheckStep(plan.dump, plan.root, rank)
        self.replay = Replay(plan.sections, plan.out, plan.root, rank) if plan.mode == "replay" else None
        self.state_map = StateMap(plan.state_map)
        self.state_map_refused = ""
        self.unobserved: set[str] = set()
        self.pairs: list[tuple[str, Tensor]] = []
        self._reporter = Reporter(wire, rank)
        self._values = StepValues()
        self._candidates = Candidates()
        self._following: Following | None = None
        self._by_hand = ByHand()
        self._depth = 0
        self._calls = 0
        self._expected: int | None = None
        self._fresh = False
        self._entering: tuple[hyper.Group, ...] = ()
        self._step_groups: tuple[hyper.Group, ...] = ()
        self._stop_at = plan.last_step

    # -- forward ------------------------------------------------------------------------------------------------

    def on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Count the rows of a training forward of the root (or of a candidate for it); say whether it is one."""
        if self.in_backward or not module.training or not torch.is_grad_enabled():
            if self.profile and not self.in_backward:
                self.profile.enter("other")
            return False
        self.settle()
        self._fresh = True
        self.where = "forward"
        if self.plan.warmup_steps == 0 and self.step == 0 and not self._values.sums.rows:
            self._open_window()
        sums = self._values.sums
        if self.root is None:
            sums = self._candidates.rows_of(module)
        sample = first_sample(args, kwargs)
        if sample is None:
            self.unobserved.add("rows")
        else:
            sums.add(sample)
            if self.check.at == self.step + 1:
                self.check.add(args, kwargs, int(sample.shape[0]))
            if self.sources:
                self.sources.on_sample(sample)
        if self.profile:
            self.profile.start_forward(self.step)
        return True

    def settle(self) -> None:
        """Close the step whose optimizers have all been called, or that was made by hand; the next one's first forward
        is there."""
        if self._calls:  # also inside an optimizer's closure: it belongs to the next step
            self.close()
        elif self._following is not None and self._by_hand.made_step(self._following, self._values):
            self.unobserved.update(byhand.UNOBSERVED)
            if self.state_map:
                self.state_map_refused = "no optimizer of torch steps it: a state map goes with Adam, AdamW, SGD"
            self.optimizer_steps += 1
            self._calls += 1
            self.close()

    def after_forward(self, training: bool | None) -> None:
        """Leave the forward phase; until backward starts the time still counts as forward (losses, reductions)."""
        if self.profile and not self.in_backward and training is not None:
            self.profile.leave(base="forward" if training else None)

    # -- backward -----------------------------------------------------------------------------------------------

    def on_backward(self, losses: list[tuple[Any, Any]]) -> None:
        """Count one outermost backward call on (tensor, gradient) pairs."""
        if self._calls and self.root is None:
            self.close()
        if self.root is None:
            self._choose_root()
        self._fresh = True
        self.where = "backward"
        self._values.backward_calls += 1
        for loss, gradient in losses:
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                self.unobserved.add("loss")
                continue
            value = loss.__dict__.get("_infrarsi_unscaled", loss)
            if isinstance(gradient, Tensor) and gradient.numel() == 1:
                value = value.detach() * gradient.detach()
            self._values.add_loss(value)
        if self.profile:
            self.profile.start_backward(self.root)

    @property
    def heeds_backward_end(self) -> bool:
        """Whether `after_backward` has anything to do."""
        return self.profile is not None or not self._by_hand.ruled_out

    def after_backward(self) -> None:
        """Leave the backward phase; an update by hand may follow, as long as no optimizer has been seen."""
        if self.profile:
            self.profile.end_backward()
        if self._following is None or self._by_hand.ruled_out:
            return
        if self._by_hand.after_backward(self._following, [p for _, p in self.pairs], self._values.backward_calls):
            self.on_gradients()

    def _choose_root(self) -> None:
        """Take the candidate with the most parameters as the root, and the rows that were counted for it."""
        if not self._candidates:
            self.unobserved.update(("rows", "parameters"))
            return
        self.root, _, sums, self.pairs = self._candidates.choose()
        self.root_chosen(self.root)
        try:
            self.pairs = self.state_map.present(self.pairs)
        except StateMapError as error:
            self.state_map_refused = str(error)
        self._values.sums.merge(sums)
        self.wire.send("model", rank=self.rank, parameters=model.describe(self.pairs))
        self._follow()
        if self.plan.memory_bytes is not None and self.pairs and model.local(self.pairs[0][1]).device.type == "cpu":
            memory.limit_process(self.plan.memory_bytes)

    def _follow(self) -> None:
        self._following = self._reporter.following = Following(self.pairs)
        self.unobserved |= self._following.unobserved

    # -- optimizer ----------------------------------------------------------------------------------------------

    def on_gradients(self) -> None:
        """The gradients of this step are complete, and as backward left them (or unscaled): write down a check step."""
        if self.replay is not None:
            self.replay.write(self)
        elif self.check.at == self.step + 1 and self.root is not None:
            self._entered += self.check.write(self)  # not the probe's own time: the step is left out of the window's

    def on_clip(self, norm: Tensor | float | None) -> None:
        """Count a clip; `norm` is the norm before clipping (None where values are clipped)."""
        self._values.clip_calls += 1
        if norm is not None:
            self._values.add_norm(norm)

    def before_step(self, optimizer: Optimizer, closure: bool = False) -> None:
        """Note hyper-parameters and gradients of an outermost optimizer step; a closure computes these within it."""
        self._depth += 1
        if self._depth > 1:
            return
        self.where = "optimizer"
        self.on_gradients()
        if self.state_map and not self.state_map_refused:
            self.state_map_refused = why_not(optimizer, self.pairs)
        self._entering = hyper.groups_of(optimizer)
        self.held.note(optimizer)
        self._by_hand.rule_out()
        if not closure:
            self._take_gradients(optimizer, late=False)
        elif self._following is not None:
            self._following.adopt(optimizer)
        if self.profile:
            self.profile.enter("optimizer")

    def _take_gradients(self, optimizer: Optimizer, *, late: bool) -> None:
        if self.root is None and not self.pairs:
            self._without_root(optimizer)
        if self._values.clip_calls == 0:
            square = gradient_square([p for group in optimizer.param_groups for p in group["params"]])
            scale = getattr(optimizer, "grad_scale", None)  # a fused step divides by the scaler's factor itself
            if square is not None and isinstance(scale, Tensor) and not late:
                square = square / scale.double().to(square.device).square()
            if square is not None:
                self._values.add_square(square)
        if self._following is not None:
            self._following.on_step(optimizer, late=late)

    def after_step(self, optimizer: Optimizer, closure: bool = False) -> None:
        """Count an outermost optimizer step, and close the boundary if it was its last."""
        self._depth -= 1
        if self._depth > 0:
            return
        self._depth = 0
        self.optimizer_steps += 1
        if closure:
            self._take_gradients(optimizer, late=True)
        if self.profile:
            self.profile.leave(base="gap")
        self._count_call()

    def on_skipped_step(self) -> None:
        """Count a step that the gradient scaler left out (infinite gradients): its rows are consumed all the same."""
        self._count_call()

    def _count_call(self) -> None:
        if not self._fresh and not self._calls and self.step:
            # A further optimizer of the boundary that has just been closed: close later from now on.
            self._expected = (self._expected or 0) + 1
            return
        self._calls += 1
        self._step_groups += self._entering
        self._entering = ()
        if self._expected is not None and self._calls >= self._expected:
            self.close()

    def _without_root(self, optimizer: Optimizer) -> None:
        """No backward call, or no module before it: take a candidate, else follow the optimizer's own parameters."""
        if self._candidates:
            self._choose_root()
            return
        self.unobserved.update(("rows", "parameters"))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.pairs = [(f"optimizer.{index}", p) for index, p in enumerate(parameters)]
        self._follow()

    # -- closing ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the current optimizer step: tick at once, values when they are on the host, then the window's edges."""
        self.step += 1
        self._expected, self._calls, self._fresh = self._calls, 0, False
        self.where = "other"
        first, last = self.step == self.plan.warmup_steps, self.step == self.plan.last_step
        if first or last:
            waiting = self.clock()
            memory.synchronise()
            self._entered += self.clock() - waiting  # the device's time, not ours
        phases = self.profile.take(self.step) if self.profile else {}
        if first:
            self._open_window()
        now = self.clock()
        self._reporter.tick(self.step, now, edge=first or last)
        self._send_values(now, phases)
        if self.sources and self.step == TRACED_STEPS:
            self.sources.stop_tracing()
            if self.profile:
                self.profile.time_sources(self.sources.wrappable())
        for message in self.wire.poll():
            if message.get("t") == "stop":
                self._stop_at = min(self._stop_at, int(message.get("after", 0)))
            elif message.get("t") == "check":
                self.check.order(int(message.get("step", 0)), self.step)
        if self.step >= self._stop_at:
            self.finish()

    def _open_window(self) -> None:
        memory.reset_peak()
        self.own_seconds, self._entered = 0.0, self.clock()
        if self.profile:
            self.profile.open_window()

    def _send_values(self, now: float, phases: dict[str, float]) -> None:
        values, self._values = self._values, StepValues()
        closed = None
        if self._following is not None:
            closed = self._following.close()
            self.unobserved |= self._following.unobserved
        groups, self._step_groups = self._step_groups, ()
        fields = {
            "rank": self.rank,
            "step": self.step,
            "rank_seconds": now,
            "backward_calls": values.backward_calls,
            "rows": values.sums.rows,
            "tokens": values.sums.tokens,
            "clip_calls": values.clip_calls,
            "hyper_digest": self._reporter.hyper(self.step, groups),
            "in_window": self.plan.warmup_steps < self.step <= self.plan.last_step,
            "check": False,
            "phases": [[name, seconds] for name, seconds in phases.items()],
        }
        if values.norm_square is None:
            self.unobserved.add("grad_norm")
        self._reporter.add(fields, values, closed)

    @property
    def groups(self) -> tuple[hyper.Group, ...]:
        """The hyper-parameters of the last step."""
        return self._reporter.groups

    @property
    def compared(self) -> bool:
        """Whether any step of an optimizer was compared with its shadow."""
        return self._following is not None and self._following.compared

    def salvage(self) -> None:
        """Send what is known of the steps before an error; without waiting for anything."""
        self._reporter.salvage()

    def finish(self) -> None:
        """End the rank: report, wait for the other ranks through the parent, report the end, leave the process."""
        peaks = highest(self.check.peak, memory.peak())
        self._reporter.finish(alone=False)
        overhead = self.own_seconds + self.clock() - self._entered
        if self.profile:
            self.profile.close()
        self.wire.send("done", rank=self.rank, step=self.step)
        self.wire.wait("release", self.plan.timeout_seconds)
        self.guard(self.check.write_final, self)
        self.wire.send("end", **end_message(self, peaks, overhead))
        self.wire.wait("bye", BYE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        os._exit(0)

    def on_exit(self) -> None:
        """The program ends by itself, before the window was full. The other ranks may have gone: no collectives."""
        self.settle()
        self._reporter.finish(alone=True)
        self.wire.send("exit", rank=self.rank, steps=self.step)
