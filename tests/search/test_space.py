"""Coding of candidates, constraints, and claims as numbers."""

import math

import numpy as np
import pytest
from landscape import knob, patch

from infrarsi.errors import UsageError
from infrarsi.records import Candidate, Claim, Setting
from infrarsi.search.priors import MEMORY_SHARES, memory_shares, read_claims, width
from infrarsi.search.space import Space


def space() -> Space:
    return Space(
        [knob("micro_batch", 4, ordinal=True), knob("compile", 2)],
        [
            patch("fused"),
            patch("sdpa", conflicts=("flash",)),
            patch("flash"),
            patch("bucket", needs=("fused",)),
            patch("orphan", needs=("nowhere",)),
            patch("graphs", conflicts=("compile",)),
        ],
    )


def test_round_trip_is_sorted_and_leaves_the_baseline_out() -> None:
    s = space()
    candidate = Candidate((Setting("compile", "l1"), Setting("micro_batch", "l3")), ("flash", "fused"))
    row = s.encode(candidate)
    assert list(row) == [3, 1, 1, 0, 1, 0, 0, 0]
    assert s.decode(row) == Candidate(candidate.settings, ("flash", "fused"))
    assert s.decode(np.zeros(s.width, dtype=np.int64)).is_baseline
    assert s.encode(Candidate()).sum() == 0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="nothing=l1"):
        space().encode(Candidate((Setting("nothing", "l1"),)))
    with pytest.raises(UsageError, match="micro_batch=l9"):
        space().encode(Candidate((Setting("micro_batch", "l9"),)))
    with pytest.raises(UsageError, match="patch gone"):
        space().encode(Candidate((), ("gone",)))


def test_points_and_levels_are_one_hot() -> None:
    s = space()
    rows = np.array([s.encode(Candidate((Setting("micro_batch", "l2"),), ("sdpa",)))])
    points = s.points(rows)
    assert points.shape == (1, 10)
    assert [s.effects[i] for i in np.flatnonzero(points[0])] == [(0, 2), (3, 1)]
    found = np.flatnonzero(s.levels(rows)[0])
    assert [s.level_of(int(i)) for i in found] == [(0, 2), (1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 0), (7, 0)]


def test_constraints_hold_after_repair_and_in_all_moves() -> None:
    s = space()
    rng = np.random.default_rng(0)
    rows = rng.integers(s.sizes, size=(500, s.width))
    repaired = s.repair(rows)
    assert s.valid(repaired).all()
    assert (repaired[s.valid(rows)] == rows[s.valid(rows)]).all()
    for row in repaired[:50]:
        moves = s.moves(row)
        assert s.valid(moves).all()
        assert (moves != row).any(axis=1).all()


def test_a_kept_patch_brings_its_need_and_drives_out_its_rival() -> None:
    s = space()
    row = s.encode(Candidate((), ("sdpa",)))
    row[4] = 1  # flash
    row[5] = 1  # bucket, without fused
    fixed = s.repair(row[None, :], keep=(4, 5))[0]
    assert s.decode(fixed).patches == ("bucket", "flash", "fused")
    assert "flash" not in s.decode(s.repair(row[None, :])[0]).patches


def test_a_patch_that_needs_what_is_not_there_is_never_on() -> None:
    s = space()
    assert all(m[6] == 0 for m in s.moves(np.zeros(s.width, dtype=np.int64)))


def test_numerics_filter_and_knobs_without_a_choice() -> None:
    s = Space([knob("only", 1), knob("two", 2)], [patch("p")], numerics="bitwise")
    assert s.width == 0
    assert s.combinations == 1
    assert Space([knob("only", 1), knob("two", 2)], []).width == 1


def test_claims_become_means_and_widths() -> None:
    sure, vague = Claim("catalogue", 0.8, 1.0, 0.9), Claim("bank", 0.5, 1.0, 0.1)
    s = Space([knob("k", 3, claims=((), (sure,), (sure, vague)))], [patch("p")])
    priors = read_claims(s)
    assert priors.sources == ("bank", "catalogue")
    assert priors.claimed_time[0] == pytest.approx(math.log(0.8))
    assert math.log(0.5) < priors.claimed_time[1] < math.log(0.8)
    assert priors.claimed_time[2] == 0.0
    assert width(-0.2, 0.9) < width(-0.2, 0.3) < width(-0.4, 0.3)


def test_a_claim_on_activations_is_not_a_claim_on_the_total() -> None:
    halved = Claim("catalogue", 1.2, 0.5, 0.8, "activations")
    whole = Claim("catalogue", 1.2, 0.5, 0.8)
    s = Space([], [patch("a", (halved,)), patch("b", (whole,)), patch("c", (Claim("x", 1, 0.5, 0.8, "optimizer"),))])
    memory = read_claims(s).memory_means(np.eye(3)).sum(axis=1)
    assert memory[1] == pytest.approx(math.log(0.5))
    assert memory[0] == pytest.approx(math.log(1 - 0.44 / 2))
    assert memory[1] < memory[0] < memory[2] < 0


def test_the_split_that_doctor_measured_says_what_a_claim_on_a_term_is_worth() -> None:
    doubled = Claim("catalogue", 0.9, 2.0, 0.5, "activations")
    s = Space([], [patch("a", (doubled,))])
    shares = memory_shares({"activations": 30, "workspace": 50, "parameters": 5, "gradients": 5, "optimizer": 10})
    assert shares == (0.05, 0.05, 0.1, 0.3, 0.5)
    assert read_claims(s, shares).memory_means(np.eye(1)).sum() == pytest.approx(math.log(1.3))
    assert memory_shares({}) == memory_shares({"activations": 0}) == MEMORY_SHARES
