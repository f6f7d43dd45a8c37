"""Traces do not depend on the partition of a batch; envelopes follow honest changes, between floor and cap."""

import dataclasses
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract.envelopes import DEFAULT_CAPS, Deviation, beyond_cap, calibrate, default_caps, deviation, trace
from infrarsi.records import Caps, StepRecord

ROW_LOSSES = [2.0 + 0.1 * n for n in range(32)]
CAPS = {c.numerics: c for c in DEFAULT_CAPS}


def record(step=1, rank=0, loss=2.0, calls=1, rows=8, row_hash="a", norm=1.0, sketch=(1.0, 0.0), **more):
    values = {
        "arrival_seconds": 0.0,
        "rank_seconds": 0.0,
        "tokens": rows * 16,
        "token_hash": row_hash,
        "clip_calls": 1,
        "hyper_digest": "h",
        **more,
    }
    return StepRecord(
        rank=rank,
        step=step,
        loss=loss,
        backward_calls=calls,
        rows=rows,
        row_hash=row_hash,
        grad_norm=norm,
        update_sketch=sketch,
        **values,
    )


def partition(ranks, calls, *, convention="divided", scale=1.0):
    """One step over 32 rows, as `ranks` ranks with `calls` backward calls each would report it."""
    size = 32 // (ranks * calls)
    found = []
    for rank in range(ranks):
        values = []
        for call in range(calls):
            first = (rank * calls + call) * size
            mean = sum(ROW_LOSSES[first : first + size]) / size
            values.append(mean / calls if convention == "divided" else mean)
        rows = [hash(n) * 7919 for n in range(rank * calls * size, (rank + 1) * calls * size)]
        row_hash = f"{sum(rows) % 2**64:016x}"
        found.append(record(rank=rank, loss=sum(values) * scale, calls=calls, rows=calls * size, row_hash=row_hash))
    return trace(found, ranks)


@pytest.mark.parametrize("convention", ["divided", "undivided"])
@pytest.mark.parametrize(("ranks", "calls"), [(1, 1), (1, 8), (2, 2), (2, 16), (4, 1), (4, 8)])
def test_an_honest_micro_batch_or_rank_change_gives_the_same_trace(ranks, calls, convention):
    """R-A6: whether the trainer divides its loss by the accumulation, or its gradients."""
    baseline = partition(2, 4, convention=convention)
    other = partition(ranks, calls, convention=convention)
    assert deviation(baseline, other).loss < 1e-12
    assert (other[0].rows, other[0].tokens, other[0].row_hash) == (32, 512, baseline[0].row_hash)


@pytest.mark.parametrize("calls", [1, 2, 4, 8])
def test_a_scaled_loss_is_seen(calls):
    """R-A3: scaled loss, at the baseline's micro-batch and at another."""
    assert deviation(partition(2, 4), partition(2, calls, scale=1.7)).loss > 0.1


def test_a_loss_scaled_as_the_other_convention_is_seen_by_its_gradient():
    """R-A3: half the calls, the division left as it was: the loss agrees per call, the gradient does not."""
    baseline = partition(2, 4)
    halved = partition(2, 2, scale=0.5)
    found = deviation(baseline, tuple(dataclasses.replace(t, grad_norm=0.5) for t in halved))
    assert found.grad_norm == pytest.approx(0.5)
    blind = [tuple(dataclasses.replace(t, grad_norm=None) for t in side) for side in (baseline, halved)]
    assert deviation(*blind).loss == pytest.approx(0.5)


def test_a_step_that_not_all_ranks_reported_is_left_out():
    steps = [record(step=1, rank=0), record(step=1, rank=1), record(step=2, rank=0)]
    assert [t.step for t in trace(steps, 2)] == [1]


def test_norms_of_equal_ranks_stay_and_shards_combine():
    same = trace([record(rank=0, norm=0.1), record(rank=1, norm=0.1), record(rank=2, norm=0.1)], 3)
    assert same[0].grad_norm == 0.1
    shards = trace([record(rank=0, norm=3.0), record(rank=1, norm=4.0)], 2)
    assert shards[0].grad_norm == pytest.approx(5.0 / math.sqrt(2))


def test_a_pipeline_has_its_loss_on_one_rank():
    (step,) = trace([record(rank=0, loss=None, sketch=(1.0,)), record(rank=1, loss=2.5, calls=2, sketch=(2.0, 3.0))], 2)
    assert (step.loss, step.loss_per_call) == (2.5, 1.25)
    assert step.update_sketch == (1.0, 2.0, 3.0)


@given(st.permutations(range(4)))
def test_the_order_of_records_does_not_matter(order):
    records = [record(rank=r, loss=0.1 * r, row_hash=f"{r + 1:x}", sketch=(0.1 * r, 1.0)) for r in range(4)]
    assert trace([records[i] for i in order], 4) == trace(records, 4)


def run(offset=0.0, *, rows="a", steps=10, gain=0.0, sketch=0.0):
    records = [
        record(
            step=k, loss=(3.0 - 0.1 * k) * (1 + offset), norm=1.0 + gain, sketch=(1.0, sketch), row_hash=f"{rows}{k:x}"
        )
        for k in range(1, steps + 1)
    ]
    return trace(records, 1)


def test_deviations_are_relative_and_the_widest_step_counts():
    reference = run()
    other = list(reference)
    other[4] = dataclasses.replace(other[4], loss=other[4].loss * 1.01)
    assert deviation(reference, other) == pytest.approx(Deviation(0.01, 0.0, 0.0))
    assert deviation(reference, run(gain=0.1, sketch=0.2)) == pytest.approx(Deviation(0.0, 0.1, 0.2))
    assert deviation(reference, run(sketch=math.nan)).update == math.inf
    assert deviation(reference, run(math.nan)).loss == math.inf


def test_other_rows_are_compared_by_window_means():
    """Data level `sampled`: never close bit by bit."""
    reference = run()
    other = tuple(dataclasses.replace(t, loss=t.loss * (1.1 if t.step % 2 else 1 / 1.1)) for t in run(rows="b"))
    assert deviation(reference, other).loss < 0.02
    assert deviation(reference, other, by_step=True).loss == pytest.approx(0.1)


def test_an_envelope_is_four_times_the_widest_honest_change():
    envelope = calibrate("reorder", [run(), run()], {"threads": run(2e-5), "micro-batch": run(-4e-5)}, CAPS["reorder"])
    assert envelope.loss == pytest.approx(1.6e-4)
    assert envelope.perturbations == ("repeat 1", "threads", "micro-batch")


def test_an_envelope_says_what_it_comes_from_and_what_it_is():
    """R-A4: stored with the calibration."""
    envelope = calibrate("reorder", [run()], {"threads": run(2e-5), "wild": run(-4e-5, gain=0.5)}, CAPS["reorder"])
    assert [m.name for m in envelope.moved] == ["threads", "wild"]
    assert [m.loss for m in envelope.moved] == pytest.approx([2e-5, 4e-5])
    assert envelope.limits == ("measured", "cap", "floor")


def test_window_means_that_agree_by_chance_make_no_narrow_envelope():
    """R-A6: two windows over other rows may have the same mean; their steps say how far the next one lies."""
    caps = {c.numerics: c for c in default_caps("sampled")}
    lucky = tuple(
        dataclasses.replace(t, loss=t.loss + 0.05 * (-1) ** (t.step // 2)) for t in run(rows="b", steps=12)
    )  # fmt: skip
    reference = run(steps=12)
    assert deviation(reference, lucky).loss < 1e-6
    (moved,) = calibrate("reorder", [reference], {"seed": lucky}, caps["reorder"], data_level="sampled").moved
    mean = sum(t.loss for t in reference) / 12
    independent = 0.05 * math.sqrt(12 / 11) / math.sqrt(12) / mean
    assert 0.999 * independent < moved.loss < 1.5 * independent


def test_an_envelope_has_a_floor_and_a_cap():
    """R-A4: bit-exact repeats do not make a zero-width tolerance, a noisy calibration does not loosen it."""
    tight = calibrate("reorder", [run(), run()], {}, CAPS["reorder"])
    assert 0 < tight.loss < 1e-4 and 0 < tight.grad_norm < 1e-2 and 0 < tight.update < 1e-1
    noisy = calibrate("reorder", [run()], {"noise": run(0.5, gain=2.0, sketch=3.0)}, CAPS["reorder"])
    cap = CAPS["reorder"]
    assert (noisy.loss, noisy.grad_norm, noisy.update) == (cap.loss, cap.grad_norm, cap.update)


def test_bitwise_is_zero_where_the_baseline_repeats_itself_and_honest_where_not():
    perturbed = {"threads": run(1e-5)}
    exact = calibrate("bitwise", [run(), run(), run()], perturbed, CAPS["bitwise"])
    assert (exact.loss, exact.grad_norm, exact.update) == (0.0, 0.0, 0.0)
    atomics = calibrate("bitwise", [run(), run(1e-6)], perturbed, CAPS["bitwise"])
    assert atomics.loss == pytest.approx(4e-6)


def test_a_perturbation_that_gave_nonsense_says_nothing():
    envelope = calibrate("reduced", [run()], {"bf16": run(math.nan), "ok": run(1e-3)}, CAPS["reduced"])
    assert envelope.perturbations == ("ok",)


def test_at_level_exact_changes_with_other_rows_do_not_calibrate():
    seeds = {"seed 1": run(0.01, rows="b")}
    assert calibrate("reorder", [run()], seeds, CAPS["reorder"], data_level="exact").perturbations == ()


def test_a_sampled_contract_gets_wide_window_envelopes():
    caps = {c.numerics: c for c in default_caps("sampled")}
    envelope = calibrate("reorder", [run(), run()], {"seed 1": run(0.004, rows="b")}, caps["reorder"])
    assert envelope.loss == pytest.approx(0.016)
    assert all(c.loss >= 1e-2 for c in caps.values())
    assert default_caps("exact") == DEFAULT_CAPS


def test_the_caps_are_ordered_by_class():
    for field in ("loss", "grad_norm", "update"):
        values = [getattr(c, field) for c in DEFAULT_CAPS]
        assert values == sorted(values)


def test_what_exceeds_a_cap_is_named():
    assert beyond_cap(run(), run(0.1), Caps("reorder", 1e-3, 1e-2, 1e-1)) == ("loss 1.0e-01 > 1.0e-03",)


def test_numbers_that_are_not_finite_stay_the_largest_float():
    """The probe sends the largest float for nan; two of them must not overflow their mean."""
    huge = sys.float_info.max
    (step,) = trace([record(rank=r, loss=huge, norm=huge / (r + 1), sketch=(huge, r)) for r in (0, 1)], 2)
    assert step.loss == step.loss_per_call == huge and step.grad_norm == math.inf
    assert step.update_sketch == (huge, 0.5)
