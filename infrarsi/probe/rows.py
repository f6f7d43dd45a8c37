"""Order-independent hashes of the sample rows: sums modulo 2**64, so that micro-batches and ranks just add up."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# splitmix64 (Steele, Lea, Flood 2014), constants as signed 64-bit integers; torch wraps around on overflow.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
MAX_ELEMENTS = 1 << 20
MAX_WAITING = 1 << 18
MAX_HELD = 1 << 14
LIKELY_NAMES = ("input_ids", "tokens", "inputs", "input", "idx", "x")


class RowSums:
    """Rows, tokens and their two hash sums. Small batches are copied and hashed together when the step closes."""

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0
        self._waiting: list[Tensor] = []
        self._waiting_elements = 0
        self._row_hashes: list[Tensor] = []
        self._token_hashes: list[Tensor] = []

    def add(self, sample: Tensor) -> None:
        """Add the rows (dim 0) of one micro-batch, without waiting for the device."""
        self.rows += int(sample.shape[0])
        self.tokens += sample.numel()
        self._waiting.append((sample.detach() if sample.requires_grad else sample).clone())
        self._waiting_elements += sample.numel()
        if self._waiting_elements > MAX_WAITING:
            self._hash()

    def merge(self, other: RowSums) -> None:
        """Add what `other` holds."""
        self.rows += other.rows
        self.tokens += other.tokens
        self._waiting += other._waiting
        self._row_hashes += other._row_hashes
        self._token_hashes += other._token_hashes

    def settle(self) -> None:
        """The step has closed: hash what is too large to be kept until its totals are asked for."""
        if self._waiting_elements > MAX_HELD:
            self._hash()

    def totals(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return (row hash sum, token hash sum, number of different rows), int64 scalars on the device."""
        self._hash()
        if not self._row_hashes:
            return None
        each, tokens = self._row_hashes[0], self._token_hashes[0]
        if len(self._row_hashes) > 1:
            each = torch.cat([part.to(each.device) for part in self._row_hashes])
            tokens = torch.stack([part.to(each.device) for part in self._token_hashes]).sum()
        ordered = each.sort().values
        return each.sum(), tokens, (ordered[1:] != ordered[:-1]).sum() + min(1, self.rows)

    def _hash(self) -> None:
        waiting, self._waiting, self._waiting_elements = self._waiting, [], 0
        groups: dict[tuple[object, ...], list[Tensor]] = {}
        for sample in waiting:
            groups.setdefault((sample.shape[1:], sample.dtype, sample.device), []).append(sample)
        for group in groups.values():
            rows, tokens = hashes(group[0] if len(group) == 1 else torch.cat(group))
            self._row_hashes.append(rows)
            self._token_hashes.append(tokens)


def first_sample(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the tensor that holds the sample rows: the first integer tensor of a call, else the first float one.

    Keyword arguments with a usual name come first; masks (bool) never count; containers are searched one level deep.
    """
    ordered = [kwargs[name] for name in LIKELY_NAMES if name in kwargs]
    found: Tensor | None = None
    for tensor in _tensors([*ordered, *args, *kwargs.values()], depth=2):
        if tensor.ndim == 0 or tensor.dtype == torch.bool or tensor.is_complex():
            continue
        if not tensor.is_floating_point():
            return tensor
        found = tensor if found is None else found
    return found


def _tensors(values: Sequence[Any], depth: int) -> list[Tensor]:
    out: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            out.append(value)
        elif depth and isinstance(value, Mapping):
            out += _tensors(list(value.values()), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            out += _tensors(value, depth - 1)
    return out


def hashes(sample: Tensor) -> tuple[Tensor, Tensor]:
    """Return (hash of each row, sum over tokens of the token's hash), int64 on the sample's device.

    Beyond MAX_ELEMENTS each row is hashed over evenly spaced columns only, to stay cheap on images.
    """
    with torch.no_grad():
        flat = _integers(sample.detach()).reshape(sample.shape[0], -1)
        columns = flat.shape[1]
        stride = max(1, -(-flat.numel() // MAX_ELEMENTS))
        if stride > 1 and columns > 1:
            flat = flat[:, ::stride]
        mixed = _mix(flat)
        rows = (mixed * _weights(flat.shape[1], str(flat.device))).sum(dim=1).add_(columns)
        return _mix(rows), mixed.sum()


def to_hex(value: int) -> str:
    """Return a signed 64-bit integer as 16 hex digits modulo 2**64."""
    return format(value & (2**64 - 1), "016x")


@functools.lru_cache(maxsize=64)
def _weights(columns: int, device: str) -> Tensor:
    return _mix(torch.arange(1, columns + 1, dtype=torch.int64, device=device)).bitwise_or_(1)


def _integers(sample: Tensor) -> Tensor:
    if sample.is_floating_point():
        return sample.float().contiguous().view(torch.int32).to(torch.int64)
    return sample.to(torch.int64)


def _mix(x: Tensor) -> Tensor:
    """A finaliser with splitmix64's constants and fewer steps; `>>` is arithmetic on int64, hence the masks."""
    x = (x + GOLDEN) * MIX_1
    x.bitwise_xor_((x >> 32).bitwise_and_(2**32 - 1)).mul_(MIX_2)
    return x.bitwise_xor_((x >> 29).bitwise_and_(2**35 - 1))
