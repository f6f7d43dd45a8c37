"""Honest perturbations of the baseline, from which doctor calibrates the envelopes.

`autocast_bf16`   the root's forward runs under bfloat16 autocast
`float64`         the model (and its float inputs) in double precision, from its first forward or its wrapping by DDP
`seed:N`          N is added to every seed given to `torch.manual_seed`, `random.seed` and `numpy.random.seed`
`data_seed:N`     N is added to the state of the global generators at the first training forward: the same initial
                  weights, other rows from then on (where the global generators draw them)
`threads:N`       N intra-op threads; `threads:other` one less than there would be, or two where there is one
`buckets:N`       DistributedDataParallel sums gradients in buckets of N MiB: other pieces, so another order over ranks
`rounding:SEED`   each weight is moved up or down by one rounding, before the first training forward
`tf32`            float32 matrix products and convolutions in tf32 (CUDA)
`delay:SECONDS`   each training forward waits (for tests of the clock)
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

OTHER = -1


class Perturbation:
    """The perturbations of one execution; unknown ones raise ValueError."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.autocast = False
        self.float64 = False
        self.seed = 0
        self.data_seed = 0
        self.threads = 0
        self.buckets = 0.0
        self.tf32 = False
        self.rounding = 0
        self.delay_seconds = 0.0
        for item in names:
            name, _, value = item.partition(":")
            if name == "autocast_bf16":
                self.autocast = True
            elif name == "float64":
                self.float64 = True
            elif name == "seed":
                self.seed = int(value)
            elif name == "data_seed":
                self.data_seed = int(value)
            elif name == "threads":
                self.threads = OTHER if value == "other" else int(value)
            elif name == "buckets":
                self.buckets = float(value)
            elif name == "rounding":
                self.rounding = int(value)
            elif name == "tf32":
                self.tf32 = True
            elif name == "delay":
                self.delay_seconds = float(value.rpartition(":")[2])
            else:
                raise ValueError(f"unknown perturbation {item!r}")
        self._sleep = time.sleep
        self.touches_forward = self._touches_forward()

    def install(self) -> None:
        """Apply what has to be in place before the user's code runs."""
        if self.threads:
            torch.set_num_threads(other_threads() if self.threads == OTHER else self.threads)
            torch.set_num_threads = lambda *_: None
        if self.seed:
            self._shift_seeds()
        if self.tf32:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        if self.float64 or self.buckets:
            self._wrap_ddp()

    def use_autocast(self, wanted: bool) -> None:
        """Run the root's forwards under bfloat16 autocast from now on, or no longer."""
        self.autocast = wanted
        self.touches_forward = self._touches_forward()

    def _touches_forward(self) -> bool:
        return self.autocast or self.float64 or self.delay_seconds > 0 or self.data_seed != 0 or self.rounding != 0

    @contextlib.contextmanager
    def around(self, module: nn.Module, training: bool) -> Iterator[None]:
        """Hold for one forward of the root."""
        if training and self.delay_seconds:
            self._sleep(self.delay_seconds)
        if training and self.data_seed:
            self._reseed()
        if training and self.rounding:
            self._round(module)
        if self.float64:
            module.double()
        device = next((p.device.type for p in module.parameters()), "cpu")
        if self.autocast:
            with torch.autocast(device, dtype=torch.bfloat16):
                yield
        else:
            yield

    def inputs(self, value: Any) -> Any:
        """Return call arguments as the perturbed model wants them."""
        if not self.float64:
            return value
        if isinstance(value, Tensor):
            return value.double() if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: self.inputs(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.inputs(item) for item in value)
        return value

    def _reseed(self) -> None:
        shift, self.data_seed = self.data_seed, 0
        torch.manual_seed(torch.initial_seed() + shift)
        random.seed(random.getrandbits(32) + shift)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed((int(numpy.random.randint(2**31)) + shift) % 2**32)

    @torch.no_grad()
    def _round(self, module: nn.Module) -> None:
        """Move every weight to a neighbouring number; alike on all ranks, where they hold the same weights."""
        seed, self.rounding = self.rounding, 0
        for n, parameter in enumerate(module.parameters()):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            generator = torch.Generator(local.device).manual_seed(seed * 100_003 + n)
            up = torch.randint(0, 2, local.shape, generator=generator, device=local.device)
            local.mul_(1 + torch.finfo(local.dtype).eps * (2 * up - 1))

    def _shift_seeds(self) -> None:
        shift, seeded, plain = self.seed, torch.manual_seed, random.seed

        def manual_seed(seed: int) -> torch.Generator:
            return seeded(int(seed) + shift)

        def seed_random(a: Any = None, *args: Any, **kwargs: Any) -> None:
            plain(a + shift if isinstance(a, int) else a, *args, **kwargs)

        torch.manual_seed = torch.random.manual_seed = manual_seed
        random.seed = seed_random
        numpy = sys.modules.get("numpy")  # torch has imported it, where it is installed
        if numpy is not None:
            seed_numpy = numpy.random.seed
            numpy.random.seed = lambda seed=None: seed_numpy(seed + shift if isinstance(seed, int) else seed)

    def _wrap_ddp(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        plain = DistributedDataParallel.__init__

        def wrapped(wrapper: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if self.buckets:
                kwargs["bucket_cap_mb"] = self.buckets
            plain(wrapper, module.double() if self.float64 else module, *args, **kwargs)  # type: ignore[arg-type]

        DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign,assignment]


def other_threads() -> int:
    """Return another number of intra-op threads than the present one, which splits sums at other places."""
    now = torch.get_num_threads()
    return now - 1 if now > 1 else 2
