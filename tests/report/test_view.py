"""The replay of a ledger as a report."""

import dataclasses

import ledgers
import pytest

from infrarsi.records import Change, Scope
from infrarsi.report.view import from_ledger


def test_an_accepted_run(report):
    found = report("accepted")
    assert found.accepted and found.stage == "finished"
    assert (found.speedup.ratio, found.speedup.low, found.speedup.high) == (1.5, 1.46, 1.54)
    assert found.sentence.startswith("Accepted: 1.50x as fast as the baseline, between 1.46x and 1.54x over 5 ")
    assert [(c.kind, c.name, c.value) for c in found.components] == [
        ("setting", "micro_batch", "16 x 2"),
        ("patch", "sdpa", ""),
    ]
    assert found.components[0].assignments == ("--batch_size=16", "--accum=2")
    assert [v.voided for v in found.verdicts] == [1, 0]
    assert [(a.part, a.kept) for a in found.ablations] == [("workers", False)]


def test_mfu_after_is_of_the_baselines_flops(report):
    """R-B5: never counted on the candidate, so that it scales with the speed-up and its interval."""
    found = report("accepted")
    assert found.mfu.ratio == pytest.approx(0.364 * 1.5)
    assert (found.mfu.low, found.mfu.high) == pytest.approx((0.364 * 1.46, 0.364 * 1.54))
    assert report("rejected").mfu is None


@pytest.mark.parametrize("name", ["rejected", "undecided", "interrupted"])
def test_what_is_not_accepted_is_no_win(report, name):
    """R-B6."""
    found = report(name)
    assert not found.accepted
    assert not found.sentence.startswith("Accepted")
    assert "significant" not in found.sentence


def test_undecided_names_its_interval_and_no_ratio(report):
    """R-B6: neither a win nor a loss."""
    said = report("undecided").sentence
    assert said.startswith("Undecided")
    assert "0.90x and 1.90x" in said and "neither a win nor a loss" in said
    assert "1.30x" not in said


def test_failed_trials_are_added_up(report):
    """R-C3: real seconds and devices of every failed trial."""
    cost = report("accepted").cost
    assert (cost.trials, cost.failed) == (7, 2)
    assert cost.device_seconds == 7 * 40 and cost.failed_device_seconds == 2 * 40
    assert {o.outcome: (o.trials, o.device_seconds) for o in cost.by_outcome} == {
        "ok": (5, 200.0),
        "oom": (1, 40.0),
        "rejected": (1, 40.0),
    }
    assert sum(o.device_seconds for o in cost.by_outcome) == cost.device_seconds


def test_the_root_error_is_named_with_its_rank(report):
    """R-D5."""
    messages = {t.outcome: t.message for t in report("accepted").trials}
    assert messages["oom"] == "DefaultCPUAllocator: can't allocate memory (rank 1)"
    assert messages["rejected"] == "16 rows per step instead of 32"


def test_an_interrupted_trial_is_counted_apart(report):
    """R-E2: the one in flight is marked interrupted, its unknown cost is not called 0."""
    found = report("interrupted")
    assert [i.id for i in found.interrupted] == ["t1"]
    assert found.cost.interrupted == 1 and found.cost.trials == 1
    assert found.stage == "searching" and found.resumed == 1


def test_an_empty_ledger_is_a_report_too():
    found = from_ledger([])
    assert found.stage == "empty" and found.verdict is None
    assert found.sentence == "Nothing was recorded: the run ended before it began."


def test_no_finalist_is_said_with_the_reason(tmp_path):
    book = ledgers.ledger(tmp_path)
    ledgers.searched(book)
    book.append("run-ended", {"reason": "done", "wall_seconds": 1.0, "device_seconds": 1.0})
    said = from_ledger(list(book.replay())).sentence
    assert said == "Nothing to promote: none of 4 trials was worth verifying (the budget of 4 trials is used)."


@pytest.mark.parametrize(("prices", "expected"), [([0.5, 0.25], 0.75), ([0.5, None], None), ([], 0.0)])
def test_an_unknown_price_is_never_zero(tmp_path, prices, expected):
    """R-H1."""
    book = ledgers.ledger(tmp_path)
    ledgers.started(book)
    for price in prices:
        book.append("llm-call", {"model": "m", "input_tokens": 10, "output_tokens": 5, "dollars": price})
    cost = from_ledger(list(book.replay())).cost
    assert cost.dollars == expected and cost.llm_tokens == 15 * len(prices)


def test_every_path_of_the_tree_is_audited(report):
    """The audit comes from the tree: a path that no patch admits to is there, and said to be outside."""
    sneaky = Change("data/x.bin", "000000", "120000", "0" * 40, "3" * 40, "A")
    program = Change("tool.py", "100644", "100755", "1" * 40, "2" * 40, "M")
    found = report("accepted", changes=(*ledgers.CHANGES, sneaky, program), contract=ledgers.CONTRACT)
    rows = {row.path: row for row in found.audit}
    assert rows["model.py"].allowed is True
    assert (rows["model.py"].added, rows["model.py"].removed, rows["model.py"].origin) == (1, 1, ("+sdpa",))
    assert rows["data/x.bin"].allowed is False and rows["data/x.bin"].origin == ()
    assert rows["tool.py"].allowed is False


def test_a_symlink_in_scope_is_outside_all_the_same(report):
    """R-A1."""
    contract = dataclasses.replace(ledgers.CONTRACT, scope=Scope(("**",)))
    link = Change("a.py", "000000", "120000", "0" * 40, "3" * 40, "A")
    assert report("accepted", changes=(link,), contract=contract).audit[0].allowed is False


def test_without_a_contract_the_scope_is_unknown(report):
    assert report("accepted").audit[0].allowed is None


def test_kinds_of_a_newer_version_are_left_out(tmp_path):
    book = ledgers.ledger(tmp_path)
    ledgers.started(book)
    book.append("a-new-kind", {"x": 1})
    assert from_ledger(list(book.replay())).stage == "searching"
