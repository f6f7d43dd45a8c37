"""The simulated jobs are what they are said to be, and the search does better on them than chance."""

import math

import numpy as np
import pytest

from .calibrate import Held, after, covered, reliability
from .compare import Result, compare, summary
from .landscapes import KINDS, Landscape


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_is_the_same_each_time_and_has_a_cliff_and_pairs_that_fail(kind: str) -> None:
    job, again, other = Landscape(kind, 3), Landscape(kind, 3), Landscape(kind, 3, split="test")
    rng = np.random.default_rng(0)
    rows = job.space.repair(rng.integers(job.space.sizes, size=(200, job.space.width)))
    assert [job.log_ratio(r) for r in rows] == [again.log_ratio(r) for r in rows]
    assert job.base != other.base
    fitting = [job.fits(r) for r in rows]
    failing = [bool(job.fails(r)) for r in rows]
    assert 0 < sum(failing) < 200 and 0 < sum(fitting) < 200
    value, best = job.best
    assert value < -0.05 and job.fits(best) and not job.fails(best)
    assert value <= min([job.log_ratio(r) for r, f, x in zip(rows, fitting, failing, strict=True) if f and not x])


def test_time_is_not_the_sum_of_the_effects() -> None:
    """The search's own model is additive in log time; the jobs must not be, or they would flatter it."""
    job = Landscape("dense-cluster", 0)
    rng = np.random.default_rng(1)
    gaps = []
    for _ in range(50):
        row = job.space.repair(rng.integers(job.space.sizes, size=(1, job.space.width)))[0]
        alone = [job.log_ratio(np.where(np.arange(row.size) == d, row, 0)) for d in np.flatnonzero(row)]
        gaps.append(abs(job.log_ratio(row) - math.fsum(alone)))
    assert np.median(gaps) > 0.05


def test_the_search_beats_chance() -> None:
    mine, chance = [], []
    for kind in ("small-device", "expert-device"):
        for seed in range(2):
            job = Landscape(kind, seed)
            mine.append(compare(job, "ours", 15).share)
            chance.append(compare(job, "random", 15).share)
    assert np.mean(mine) > np.mean(chance) + 0.1


def test_a_summary_pairs_methods_on_the_same_jobs() -> None:
    made = [
        Result("k", s, m, "honest", "none", 2, (0.0, v), 1, 0.0)
        for s in range(3)
        for m, v in (("ours", 0.9), ("random", 0.4))
    ]
    assert "+0.50 [+0.50, +0.50]" in summary(made)


def test_coverage_and_reliability_are_counted_as_they_say() -> None:
    assert covered(np.array([0.0, 1.6, -1.6, 1.7])) == 0.75
    held = Held(np.zeros(0), np.zeros(0), np.array([1.0, 0.99, 0.4, 0.4]), np.array([True, True, False, True]))
    assert math.isnan(covered(held.time))
    assert reliability([held, held]) == [
        (0.0, 0.05, pytest.approx(0.005), 0.0, 4),
        (0.5, 0.8, pytest.approx(0.6), 0.5, 4),
    ]


def test_the_chance_to_run_out_of_memory_is_known_around_the_best() -> None:
    found = after(Landscape("small-device", 1), 12)["around the best"]
    sure = found.fits > 0.95
    assert sure.sum() > 50 and found.fitted[sure].mean() > 0.9
