"""Ring 1 against its cases, on trees that are built as a run builds them; nothing is trained (R-A1, R-A2)."""

import pytest

from infrarsi.commands.selftest import judge, no_checks
from infrarsi.redteam.suite import ALL, chosen


def ids(case) -> str:
    return f"{case.trainer}-{case.name}"


@pytest.mark.parametrize("case", [c for c in chosen(quick=True) if c.ring == "scope"], ids=ids)
def test_ring_one_catches_it(beds, case):
    judged = judge(beds[case.trainer], case, no_checks)
    assert judged.status == "caught", judged.message
    assert judged.ring == "scope"


# A state map is held against parameters, which a contract without any observed fact does not have.
@pytest.mark.parametrize("case", [c for c in ALL if c.kind == "honest" and not c.state_map], ids=ids)
def test_ring_one_lets_honest_changes_pass(beds, case):
    judged = judge(beds[case.trainer], case, no_checks)
    assert judged.status in ("passed", "skipped"), judged.message


def test_a_cheat_that_ring_one_cannot_see_is_not_called_caught(beds):
    """Without a calibration nothing else can catch it."""
    judged = judge(beds["dense"], next(c for c in ALL if c.name == "loss-halved" and c.trainer == "dense"), no_checks)
    assert judged.status == "missed" and not judged.as_expected
