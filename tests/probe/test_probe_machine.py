"""The measured peak of the machine costs little time, also where a product is slow."""

import time
from types import SimpleNamespace

import pytest
import torch

from infrarsi.probe import machine


class Slow:
    """A torch whose products of a size take that many thousandths of a second to the third power of its doubling."""

    def __init__(self, seconds_at_1024: float) -> None:
        self.seconds, self.sizes = seconds_at_1024, []
        self.cuda = SimpleNamespace(synchronize=lambda: None)
        self.randn, self.empty = torch.randn, torch.empty

    def mm(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> None:
        if out is not None:
            self.sizes.append(len(left))
            time.sleep(self.seconds * (len(left) / 1024) ** 3)


def test_larger_products_are_left_out_where_one_takes_long() -> None:
    slow = Slow(0.4)
    rate = machine._peak(slow, "cpu", (1024, 1536, 2048), torch.float32)
    assert slow.sizes == [1024]
    assert rate == pytest.approx(2 * 1024**3 / 0.4, rel=0.1)


def test_the_best_of_several_products_counts() -> None:
    fast = Slow(0.01)
    rate = machine._peak(fast, "cpu", (1024, 1536), torch.float32)
    assert set(fast.sizes) == {1024, 1536} and fast.sizes.count(1024) > 5
    assert rate == pytest.approx(2 * 1024**3 / 0.01, rel=0.2)


def test_a_dtype_that_is_not_supported_has_no_peak() -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("not implemented for this dtype")

    no = Slow(0.0)
    no.mm = refuse  # type: ignore[method-assign]
    assert machine._peak(no, "cpu", (1024,), torch.float32) == 0.0
