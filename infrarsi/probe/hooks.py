"""The places in torch where the probe listens. Each wrapper calls torch's own function with its own arguments.

No global module hook is ever set (Dynamo would trace it): until the root module is known `Module.__call__` is wrapped,
and put back for the time of every outermost call, so that nothing inside a model sees it; then the root instance alone
is watched, through its `_compiled_call_impl`, which is called eagerly, gets keyword arguments, and is not copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .imports import AfterImport
from .session import Session


def install(session: Session, after_import: AfterImport) -> None:
    """Put every hook in place, and give the session the check that they still are."""
    backward, autograd = _wrap_backward(session)
    clip = _wrap_clipping(session)
    _wrap_scaler(session)
    _hook_optimizers(session)
    discovery = Discovery(session)
    discovery.start()
    after_import.register("torch._dynamo.trace_rules", _hide_from_dynamo)
    if session.profile or session.sources:
        after_import.register("torch.utils.data.dataloader", functools.partial(_wrap_loader, session))
    if session.profile:
        after_import.register("torch.distributed.distributed_c10d", functools.partial(_wrap_collectives, session))

    def intact() -> bool:
        from torch.nn.utils import clip_grad
        from torch.optim import optimizer

        here = (Tensor.backward, torch.autograd.backward, clip_grad.clip_grad_norm_)
        hooked = pre.id in optimizer._global_optimizer_pre_hooks and post.id in optimizer._global_optimizer_post_hooks
        return here == (backward, autograd, clip) and hooked and discovery.intact()

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        session.guard(session.before_step, optimizer, _closure(args, kwargs))

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        session.guard(session.after_step, optimizer, _closure(args, kwargs))

    pre, post = register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)
    session.hook_check = intact


def _closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `step(closure)` was called: the first argument is the optimizer itself."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def _hide_from_dynamo(trace_rules: ModuleType) -> None:
    """Make Dynamo run the probe's frames as they are, like torch's own: neither compile them nor inline them."""
    trace_rules.add(__name__.split(".")[0])


def _wrap_backward(session: Session) -> tuple[Callable[..., Any], Callable[..., Any]]:
    plain: Any = Tensor.backward
    plain_autograd: Any = torch.autograd.backward

    def counted(losses: list[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        if session.in_backward or session.dead:
            return call()
        session.guard(session.on_backward, losses)
        session.in_backward += 1
        try:
            return call()
        finally:
            session.in_backward -= 1
            if session.heeds_backward_end:
                session.guard(session.after_backward)

    @functools.wraps(plain)
    def backward(self: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
        return counted([(self, gradient)], lambda: plain(self, gradient, *args, **kwargs))

    @functools.wraps(plain_autograd)
    def autograd_backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        tensors = tensors if isinstance(tensors, Tensor) else losses
        if grad_tensors is None or isinstance(grad_tensors, Tensor):
            gradients = [grad_tensors] * len(losses)
        else:
            grad_tensors = gradients = list(grad_tensors)
        pairs = list(zip(losses, gradients, strict=False))
        return counted(pairs, lambda: plain_autograd(tensors, grad_tensors, *args, **kwargs))

    Tensor.backward = backward  # type: ignore[method-assign]
    torch.autograd.backward = autograd_backward
    return backward, autograd_backward


def _wrap_clipping(session: Session) -> Callable[..., Any]:
    """Gradient norms are read where they are clipped: at the optimizer they are the clip value already."""
    from torch.nn.utils import clip_grad

    plain_norm, plain_value = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_

    @functools.wraps(plain_norm)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        if session.profile:
            session.guard(session.profile.enter, "optimizer")
        session.guard(session.on_gradients)
        norm = plain_norm(*args, **kwargs)
        session.guard(session.on_clip, norm)
        if session.profile:
            session.guard(session.profile.leave)
        return norm

    @functools.wraps(plain_value)
    def clip_grad_value_(*args: Any, **kwargs: Any) -> Any:
        session.guard(session.on_gradients)
        result = plain_value(*args, **kwargs)
        session.guard(session.on_clip, None)
        return result

    with_norm = getattr(nn.utils, "clip_grads_with_norm_", None)
    if with_norm is not None:

        @functools.wraps(with_norm)
        def clip_grads_with_norm_(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            session.guard(session.on_gradients)
            result = with_norm(parameters, max_norm, total_norm, *args, **kwargs)
            session.guard(session.on_clip, total_norm)
            return result

        nn.utils.clip_grads_with_norm_ = clip_grads_with_norm_
    for module in (clip_grad, nn.utils):
        module.clip_grad_norm_ = clip_grad_norm_  # type: ignore[attr-defined]
        module.clip_grad_value_ = clip_grad_value_  # type: ignore[attr-defined]
    return clip_grad_norm_


def _wrap_scaler(session: Session) -> None:
    """Losses are recorded without the gradient scaler's factor; a step that it leaves out still closes its rows."""
    from torch.amp import grad_scaler

    kind: Any = grad_scaler.GradScaler
    plain_scale, plain_step = kind.scale, kind.step

    @functools.wraps(plain_scale)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = plain_scale(self, outputs)
        if isinstance(outputs, Tensor) and isinstance(scaled, Tensor) and scaled is not outputs:
            scaled._infrarsi_unscaled = outputs.detach()  # type: ignore[attr-defined]
        return scaled

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = session.optimizer_steps
        result = plain_step(self, optimizer, *args, **kwargs)
        if session.optimizer_steps == before:
            session.guard(session.on_skipped_step)
        return result

    kind.scale, kind.step = scale, step


def _hook_optimizers(session: Session) -> None:
    """Make every optimizer class call the global hooks, also if Dynamo marks it as not to be hooked before its use."""
    kinds: list[Any] = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, Optimizer)]
    for kind in kinds:
        if kind is not Optimizer and "step" in vars(kind) and not hasattr(kind.step, "hooked"):
            kind.step = Optimizer.profile_hook_step(kind.step)
            kind.step.hooked = True
    if session.profile:
        base: Any = Optimizer
        base.zero_grad = session.profile.timed("optimizer", base.zero_grad)


def _wrap_loader(session: Session, module: ModuleType) -> None:
    iterator: Any = module._BaseDataLoaderIter
    plain = iterator.__next__

    def following(self: Any) -> Any:
        if session.sources:
            session.guard(session.sources.on_loader, self)
        return plain(self)

    iterator.__next__ = session.profile.time_loader(following) if session.profile else following


def _wrap_collectives(session: Session, module: ModuleType) -> None:
    import sys

    if session.profile:
        package = sys.modules.get("torch.distributed")
        session.profile.time_collectives(*[m for m in (module, package) if m is not None])


class Discovery:
    """Finds the root module: the outermost modules of the first training forward are candidates, the first backward
    chooses among them (`Session.on_backward`), and from the next call on only that instance is watched."""

    def __init__(self, session: Session) -> None:
        self.inside = False
        self._session = session
        self._plain: Any = nn.Module.__call__
        self._watched: tuple[nn.Module, Any] | None = None

    def start(self) -> None:
        """Wrap `Module.__call__`."""
        discovery, plain = self, self._plain

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # `torch.compile(model)` keeps the method that it found: it may be called inside a model, or later on.
            if discovery.inside or discovery.settled() or torch.compiler.is_compiling():
                return plain(self, *args, **kwargs)
            nn.Module.__call__ = plain  # type: ignore[method-assign]
            discovery.inside = True
            try:
                return discovery.call(self, plain.__get__(self), args, kwargs)
            finally:
                discovery.inside = False
                if not discovery.settled():
                    nn.Module.__call__ = wrapper  # type: ignore[method-assign]

        wrapper: Any = functools.wraps(plain)(__call__)
        nn.Module.__call__ = wrapper  # type: ignore[method-assign]
        self._session.root_chosen = self.watch

    def settled(self) -> bool:
        """Whether the search is over."""
        return self._watched is not None or self._session.dead or self._session.pairs != []

    def watch(self, module: nn.Module) -> None:
        """Watch this instance, and stop wrapping the class."""
        nn.Module.__call__ = self._plain  # type: ignore[method-assign]
        inner = module.__dict__.get("_compiled_call_impl") or module._call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(module, inner, args, kwargs)

        # Through __dict__: a compiled wrapper would hand the attribute on to the module that it compiles.
        module.__dict__["_compiled_call_impl"] = call
        self._watched = (module, call)

    def call(self, module: nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module; count the rows of training forwards; apply the plan's perturbations."""
        session = self._session
        if session.replay is not None:
            args, kwargs = session.guard(session.replay.enter, session, module, args, kwargs) or (args, kwargs)
        training = session.guard(session.on_forward, module, args, kwargs)
        try:
            perturbation = session.perturbation
            if not perturbation.touches_forward or session.in_backward:
                return inner(*args, **kwargs)
            with perturbation.around(module, bool(training)):
                return inner(*perturbation.inputs(args), **perturbation.inputs(kwargs))
        finally:
            if session.profile:
                session.guard(session.after_forward, training)

    def intact(self) -> bool:
        """Whether the watched instance still is watched."""
        return self._watched is None or self._watched[0].__dict__.get("_compiled_call_impl") is self._watched[1]
