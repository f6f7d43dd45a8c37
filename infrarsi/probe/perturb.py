"""Honest perturbations of the baseline, from which doctor calibrates the envelopes.

`autocast_bf16`   the root's forward runs under bfloat16 autocast
`float64`         the model (and its float inputs) in double precision, from its first forward or its wrapping by DDP
`seed:N`          N is added to every seed given to `torch.manual_seed`, `random.seed` and `numpy.random.seed`
`data_seed:N`     N is added to the state of the global generators at the first training forward: the same initial
                  weights, other rows from then on (where the global generators draw them)
`threads:N`       N intra-op threads
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


class Perturbation:
    """The perturbations of one execution; unknown ones raise ValueError."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.autocast = False
        self.float64 = False
        self.seed = 0
        self.data_seed = 0
        self.threads = 0
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
                self.threads = int(value)
            elif name == "delay":
                self.delay_seconds = float(value.rpartition(":")[2])
            else:
                raise ValueError(f"unknown perturbation {item!r}")
        self._sleep = time.sleep
        self.touches_forward = self.autocast or self.float64 or self.delay_seconds > 0 or self.data_seed != 0

    def install(self) -> None:
        """Apply what has to be in place before the user's code runs."""
        if self.threads:
            torch.set_num_threads(self.threads)
            torch.set_num_threads = lambda *_: None
        if self.seed:
            self._shift_seeds()
        if self.float64:
            self._double_before_ddp()

    @contextlib.contextmanager
    def around(self, module: nn.Module, training: bool) -> Iterator[None]:
        """Hold for one forward of the root."""
        if training and self.delay_seconds:
            self._sleep(self.delay_seconds)
        if training and self.data_seed:
            self._reseed()
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

    def _double_before_ddp(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        plain = DistributedDataParallel.__init__

        def wrapped(wrapper: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            plain(wrapper, module.double(), *args, **kwargs)  # type: ignore[arg-type]

        DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign,assignment]
