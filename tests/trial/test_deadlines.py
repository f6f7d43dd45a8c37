"""Every wait has a deadline (R-D4), and a hang names the rank that is behind (R-D2)."""

import pytest

from infrarsi.trial.collect import Rank
from infrarsi.trial.deadlines import Clocks, Expired, expired, rank_behind
from infrarsi.trial.plan import Deadlines

LIMITS = Deadlines(startup_seconds=10.0, progress_seconds=5.0, total_seconds=100.0)


def ranks(*seen: tuple[float, int], done: int | None = None) -> dict[int, Rank]:
    return {n: Rank(n, last, last_step=step, done=done) for n, (last, step) in enumerate(seen)}


@pytest.mark.parametrize(
    ("now", "clocks", "state", "expected"),
    [
        (4.0, Clocks(0.0, 0.0, None, None), {}, None),
        (6.0, Clocks(0.0, 0.0, None, None), {}, Expired("progress", 6.0)),  # nothing is said and nothing computed
        (6.0, Clocks(0.0, 5.0, None, None), {}, None),  # silent, but compiling
        (11.0, Clocks(0.0, 10.5, None, None), {}, Expired("startup", 11.0)),
        (20.0, Clocks(0.0, 0.0, 12.0, None), ranks((19.0, 4), (18.0, 4)), None),
        (20.0, Clocks(0.0, 0.0, 12.0, None), ranks((19.0, 4), (14.0, 3)), Expired("progress", 6.0, 1)),
        (20.0, Clocks(0.0, 0.0, 12.0, None), ranks((14.0, 3)), Expired("progress", 6.0, 0)),  # world size 1
        (20.0, Clocks(0.0, 0.0, 12.0, None), ranks((14.0, 3), (14.0, 3), done=3), None),
        (90.0, Clocks(0.0, 0.0, 12.0, 20.0), ranks((20.0, 9), done=9), Expired("end", 70.0)),
        (101.0, Clocks(0.0, 100.0, 12.0, None), ranks((101.0, 9)), Expired("total", 101.0)),
    ],
)
def test_each_wait_ends(now, clocks, state, expected):
    assert expired(now, LIMITS, clocks, state, max(1, len(state))) == expected


def test_ranks_at_the_same_step_blame_nobody():
    assert rank_behind(ranks((1.0, 3), (1.0, 3)), 2) is None
    assert rank_behind(ranks((1.0, 3)), 2) == 1  # the other never said hello
