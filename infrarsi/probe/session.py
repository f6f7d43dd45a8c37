"""One rank's run under the probe: where it is, what the current step has seen, when a step closes, when it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import hyper, memory, model
from .ending import end_message
from .opened import OpenedFiles
from .perturb import Perturbation
from .plan import Plan
from .profiling import Profile
from .rows import RowSums, first_sample
from .sketch import UpdateSketch
from .sources import Sources
from .values import Outbox, StepValues, gradient_square
from .wire import Wire

BYE_SECONDS = 10.0
TRACED_STEPS = 2


class Session:
    """The state of the probe in one rank. The `on_…` methods are called by the hooks, through `guard`."""

    def __init__(
        self, plan: Plan, wire: Wire, clock: Callable[[], float], rank: int, opened: OpenedFiles | None = None
    ) -> None:
        self.plan = plan
        self.wire = wire
        self.clock = clock
        self.rank = rank
        self.opened = opened
        self.dead = False
        self.broken = False
        self.where = "startup"
        self.own_seconds = 0.0
        self._entered = clock()
        self.root: nn.Module | None = None
        self.in_backward = 0
        self.optimizer_steps = 0
        self.step = 0
        self.hook_check: Callable[[], bool] = lambda: True
        self.root_chosen: Callable[[nn.Module], None] = lambda _: None
        self.perturbation = Perturbation(plan.perturb)
        self.profile = Profile(plan.root, clock) if plan.mode == "profile" else None
        self.sources = Sources(plan.root) if plan.mode in ("observe", "profile") else None
        self.unobserved: set[str] = set()
        self.pairs: list[tuple[str, Tensor]] = []
        self.groups: tuple[hyper.Group, ...] = ()
        self._outbox = Outbox(wire)
        self._values = StepValues()
        self._candidates: dict[int, tuple[nn.Module, int, RowSums]] = {}
        self._sketch: UpdateSketch | None = None
        self._depth = 0
        self._calls = 0
        self._expected: int | None = None
        self._fresh = False
        self._entering: tuple[hyper.Group, ...] = ()
        self._step_groups: tuple[hyper.Group, ...] = ()
        self._hyper_digest = ""
        self._stop_at = plan.last_step

    # -- safety -------------------------------------------------------------------------------------------------

    def guard(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call `work`, count its time as the probe's own, and never let an error of ours reach the user's code."""
        if self.dead:
            return None
        self._entered = self.clock()
        try:
            return work(*args)
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.own_seconds += self.clock() - self._entered

    def fail(self, error: BaseException) -> None:
        """Report the first internal failure; the rank's hooks then count as not intact."""
        if not self.broken:
            self.broken = True
            text = f"{type(error).__name__}: {error}"
            self.wire.send("error", rank=self.rank, kind="probe", message=text[:2000], oom=False, phase=self.where)

    def leave_process(self) -> None:
        """Forget everything in a forked child: data-loader workers are not ranks."""
        self.dead = True
        self.wire.close()

    # -- forward ------------------------------------------------------------------------------------------------

    def on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Count the rows of a training forward of the root (or of a candidate for it); say whether it is one."""
        if self.in_backward or not module.training or not torch.is_grad_enabled():
            if self.profile and not self.in_backward:
                self.profile.enter("other")
            return False
        if self._calls:  # also inside an optimizer's closure: it belongs to the next step
            self.close()
        self._fresh = True
        self.where = "forward"
        if self.plan.warmup_steps == 0 and self.step == 0 and not self._values.sums.rows:
            self._open_window()
        sums = self._values.sums
        if self.root is None:
            if id(module) not in self._candidates:
                self._candidates[id(module)] = (module, model.trainable_elements(module), RowSums())
            sums = self._candidates[id(module)][2]
        sample = first_sample(args, kwargs)
        if sample is None:
            self.unobserved.add("rows")
        else:
            sums.add(sample)
            if self.sources:
                self.sources.on_sample(sample)
        if self.profile:
            self.profile.start_forward(self.step)
        return True

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
            value = getattr(loss, "_infrarsi_unscaled", loss)
            if isinstance(gradient, Tensor) and gradient.numel() == 1:
                value = value.detach() * gradient.detach()
            self._values.add_loss(value)
        if self.profile:
            self.profile.start_backward(self.root)

    def after_backward(self) -> None:
        """Leave the backward phase."""
        if self.profile:
            self.profile.end_backward()

    def _choose_root(self) -> None:
        """Take the candidate with the most parameters as the root, and the rows that were counted for it."""
        if not self._candidates:
            self.unobserved.update(("rows", "parameters"))
            return
        module, _, sums = max(self._candidates.values(), key=lambda item: item[1])
        self._candidates.clear()
        self.root = module
        self.root_chosen(module)
        self._values.sums.merge(sums)
        self.pairs = model.named(module)
        self.wire.send("model", rank=self.rank, parameters=model.describe(self.pairs))
        self._begin_sketch()
        if self.plan.memory_bytes is not None and self.pairs and model.local(self.pairs[0][1]).device.type == "cpu":
            memory.limit_process(self.plan.memory_bytes)

    def _begin_sketch(self) -> None:
        self._sketch = UpdateSketch(self.pairs)
        if self._sketch.sharded:
            self.unobserved.update(("update_sketch", "parameter_hash", "grad_norm"))

    # -- optimizer ----------------------------------------------------------------------------------------------

    def on_clip(self, norm: Tensor | float | None) -> None:
        """Count a clip; `norm` is the norm before clipping (None where values are clipped)."""
        self._values.clip_calls += 1
        if norm is not None:
            self._values.add_norm(norm)

    def before_step(self, optimizer: Optimizer) -> None:
        """Note the hyper-parameters of an outermost optimizer step."""
        self._depth += 1
        if self._depth > 1:
            return
        self.where = "optimizer"
        self._entering = hyper.groups_of(optimizer)
        if self.profile:
            self.profile.enter("optimizer")

    def after_step(self, optimizer: Optimizer) -> None:
        """Read what an outermost optimizer step left, and close the boundary if it was its last."""
        self._depth -= 1
        if self._depth > 0:
            return
        self._depth = 0
        self.optimizer_steps += 1
        if self.root is None and not self.pairs:
            self._without_root(optimizer)
        if self._values.clip_calls == 0:
            square = gradient_square([p for group in optimizer.param_groups for p in group["params"]])
            if square is not None:
                self._values.add_square(square)
        if self._sketch is not None and not self.in_backward:
            self._sketch.update()
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
        self._begin_sketch()

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
        now = self._tick(edge=first or last)
        self._send_values(now, phases)
        if self.sources and self.step == TRACED_STEPS:
            self.sources.stop_tracing()
            if self.profile:
                self.profile.time_sources(self.sources.wrappable())
        for message in self.wire.poll():
            if message.get("t") == "stop":
                self._stop_at = min(self._stop_at, int(message.get("after", 0)))
        if self.step >= self._stop_at:
            self.finish()

    def _open_window(self) -> None:
        memory.reset_peak()
        self.own_seconds, self._entered = 0.0, self.clock()
        if self.profile:
            self.profile.open_window()

    def _tick(self, *, edge: bool) -> float:
        now = self.clock()
        self.wire.send("tick", rank=self.rank, step=self.step, clock=now, **({"edge": True} if edge else {}))
        return now

    def _send_values(self, now: float, phases: dict[str, float]) -> None:
        values, self._values = self._values, StepValues()
        if self._sketch is not None:
            values.sketch = self._sketch.take()
            if values.sketch is None:
                self._sketch.update(weighted=False)
                values.sketch = self._sketch.take()
        groups, self._step_groups = self._step_groups or self.groups, ()
        if groups != self.groups:
            self.groups, self._hyper_digest = groups, hyper.digest_of(groups)
            self.wire.send("hyper", rank=self.rank, step=self.step, groups=hyper.message_of(groups))
        fields = {
            "rank": self.rank,
            "step": self.step,
            "rank_seconds": now,
            "backward_calls": values.backward_calls,
            "rows": values.sums.rows,
            "tokens": values.sums.tokens,
            "clip_calls": values.clip_calls,
            "hyper_digest": self._hyper_digest,
            "in_window": self.plan.warmup_steps < self.step <= self.plan.last_step,
            "check": False,
            "phases": [[name, seconds] for name, seconds in phases.items()],
        }
        if values.norm_square is None:
            self.unobserved.add("grad_norm")
        self._outbox.add(fields, values)
        self._outbox.flush()

    def finish(self) -> None:
        """End the rank: report, wait for the other ranks through the parent, report the end, leave the process."""
        peaks = memory.peak()
        self._outbox.flush(force=True)
        overhead = self.own_seconds + self.clock() - self._entered
        if self.profile:
            self.profile.close()
        self.wire.send("done", rank=self.rank, step=self.step)
        self.wire.wait("release", self.plan.timeout_seconds)
        self.wire.send("end", **end_message(self, peaks, overhead))
        self.wire.wait("bye", BYE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        os._exit(0)

    def on_exit(self) -> None:
        """The program ends by itself, before the window was full."""
        if self._calls:
            self.close()
        self._outbox.flush(force=True)
        self.wire.send("exit", rank=self.rank, steps=self.step)
