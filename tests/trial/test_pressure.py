"""How much others were in the way."""

from infrarsi.trial.pressure import Sample, between, oom_kills, sample


def test_our_own_load_is_no_pressure():
    first, last = Sample(0.0, 0.0, 100.0, 10.0), Sample(10.0, 8.0, 120.0, 30.0)
    assert between(first, last) == 0.0


def test_others_count_where_somebody_waited():
    first, last = Sample(0.0, 0.0, 100.0, 10.0), Sample(10.0, 2.0, 125.0, 30.0)
    assert between(first, last) == 0.2
    assert between(first, Sample(10.0, None, 125.0, 30.0)) == 0.5
    assert between(first, Sample(10.0, 0.0, 125.0, 30.0)) == 0.0


def test_figures_of_this_machine():
    first = sample(0)
    assert between(first, first) == 0.0
    assert 0.0 <= between(first, sample(0)) <= 1.0
    assert oom_kills() >= 0
