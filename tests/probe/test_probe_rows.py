"""Hashes of rows: whatever the order, the micro-batch or the rank, the same rows give the same sums."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi.probe.rows import RowSums, first_sample, to_hex

MODULUS = 2**64


def sums(*batches):
    total = RowSums()
    for batch in batches:
        total.add(batch)
    found = total.totals()
    assert found is not None
    rows, tokens, unique = (int(t) for t in found)
    return rows % MODULUS, tokens % MODULUS, unique, total.rows, total.tokens


def tokens(rows=16, columns=12, seed=0):
    return torch.randint(0, 1000, (rows, columns), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(8)), st.integers(1, 8))
def test_order_and_split_do_not_matter(order, size):
    """R-A3: sums per step are the same for any order of the rows and any micro-batch."""
    x = tokens(8)
    whole = sums(x)
    assert sums(*x[list(order)].split(size)) == whole


def test_ranks_add_up_modulo_2_64():
    x = tokens()
    whole, first, second = sums(x), sums(x[:9]), sums(x[9:])
    assert [(a + b) % MODULUS for a, b in zip(first[:2], second[:2], strict=True)] == list(whole[:2])


def test_merge_is_addition():
    x = tokens()
    left, right = RowSums(), RowSums()
    left.add(x[:4])
    right.add(x[4:])
    left.merge(right)
    found = left.totals()
    assert found is not None
    assert (int(found[0]) % MODULUS, left.rows, left.tokens) == (sums(x)[0], 16, x.numel())


def test_row_hash_sees_places_and_token_hash_only_tokens():
    x = tokens(4)
    y = x.clone()
    y[0, [0, 1]] = x[0, [1, 0]]
    assert sums(y)[0] != sums(x)[0]
    assert sums(y)[1] == sums(x)[1]
    y[0, 0] += 1
    assert sums(y)[1] != sums(x)[1]


def test_swapping_tokens_between_rows_is_seen():
    x = tokens(2, 4)
    y = x.clone()
    y[0, 0], y[1, 0] = x[1, 0], x[0, 0]
    assert sums(y)[0] != sums(x)[0]


@pytest.mark.parametrize("kind", [torch.int32, torch.int16])
def test_width_of_the_integers_does_not_matter(kind):
    x = tokens()
    assert sums(x.to(kind)) == sums(x)


def test_repeated_rows_are_counted():
    x = tokens(4)
    assert sums(x)[2] == 4
    assert sums(x, x[:2])[2] == 4
    assert sums(x[:1].expand(8, -1))[2] == 1


def test_a_batch_that_is_overwritten_later_keeps_its_hash():
    """Static input buffers are reused between micro-steps."""
    x = tokens()
    total, buffer = RowSums(), x.clone()
    total.add(buffer)
    buffer.zero_()
    found = total.totals()
    assert found is not None
    assert int(found[0]) % MODULUS == sums(x)[0]


def test_large_batches_are_hashed_at_once_and_float_rows_too():
    x = torch.randn(3, 3, 200, 300, generator=torch.Generator().manual_seed(0))
    assert sums(x, x)[0] == 2 * sums(x)[0] % MODULUS
    assert sums(x)[2:] == (3, 3, x.numel())
    assert sums(x)[0] != sums(x + 1e-3)[0]


def test_no_rows_at_all():
    assert RowSums().totals() is None


def test_the_sample_is_the_first_integer_tensor_else_the_first_float_one():
    ids, mask, floats = tokens(2), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    attention = torch.ones(2, 3, dtype=torch.int64)
    assert first_sample((floats, ids), {}) is ids
    assert first_sample((mask, floats), {}) is floats
    assert first_sample((), {"attention_mask": attention, "input_ids": ids}) is ids
    assert first_sample(({"a": {"x": ids}},), {}) is ids
    assert first_sample((torch.tensor(3),), {"n": 3}) is None


def test_hex_is_sixteen_digits_modulo_2_64():
    assert to_hex(-1) == "f" * 16
    assert to_hex(10) == "000000000000000a"
