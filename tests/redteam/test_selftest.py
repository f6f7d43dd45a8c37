"""What the suite makes of what the checks say, and the suite as a user types it."""

import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from infrarsi.cli import cli
from infrarsi.commands import selftest
from infrarsi.commands.selftest import SelfTestOptions, SelfTestResult
from infrarsi.commands.state import Tried
from infrarsi.errors import UsageError
from infrarsi.records import Candidate, Measurement, Outcome, Trial, Violation
from infrarsi.redteam.case import cheat, honest
from infrarsi.report.envelope import success
from infrarsi.report.readers import draw

OK = Trial(
    id="ver0-x",
    run="r",
    number=0,
    candidate=Candidate(),
    commit="c",
    role="verify",
    argv=(),
    environment=(),
    engine="local",
    block=0,
    outcome=Outcome("ok"),
    measurement=Measurement(1.0, 2, (0.5, 0.5), 8, 8.0, 1, 1, 0.0),
    violations=(),
    wall_seconds=1.0,
    device_seconds=1.0,
    pressure=0.0,
)
LOSS = Violation("invariant", "loss", "the loss is off")
RANKS = Violation("invariant", "rows", "fewer rows")
CHEAT, HONEST = cheat("c", "cheats", "invariant", "loss"), honest("h", "is honest", "reorder")


@pytest.fixture
def judged(beds):
    def judge(case, trial=OK, touched=(), finalist=()):
        tried = Tried(0, Candidate(), "c")
        began = time.monotonic()
        return selftest._after_trial(beds["dense"], case, began, tried, trial, touched, lambda *_: finalist)

    return judge


def ended(kind, message="it fell over"):
    return replace(OK, outcome=Outcome(kind, message), measurement=None)


def test_what_nothing_objects_to_passes_or_is_missed(judged):
    assert judged(HONEST).status == "passed"
    assert judged(CHEAT).status == "missed" and not judged(CHEAT).as_expected


def test_an_objection_catches_a_cheat_and_refuses_an_honest_change(judged):
    trial = replace(OK, outcome=Outcome("rejected"), violations=(RANKS, LOSS))
    caught = judged(CHEAT, trial)
    assert (caught.status, caught.check, caught.others) == ("caught", "loss", ("invariant/rows",))
    assert caught.as_expected
    assert judged(HONEST, trial).status == "refused"


def test_the_finalists_checks_have_the_last_word(judged):
    gradients = Violation("finalist", "gradients", "they differ")
    case = replace(CHEAT, ring="finalist", check="")
    assert judged(case, finalist=(gradients,)).as_expected
    assert judged(HONEST, finalist=(gradients,)).status == "refused"


def test_a_cheat_caught_by_another_check_is_caught_and_shown_as_such(judged):
    found = judged(CHEAT, replace(OK, outcome=Outcome("rejected"), violations=(RANKS,)))
    assert found.status == "caught" and not found.as_expected


def test_an_error_of_its_own_proves_nothing_unless_it_is_expected(judged):
    assert judged(CHEAT, ended("crash")).status == "broken"
    assert judged(HONEST, ended("oom")).status == "broken"
    assert judged(replace(CHEAT, ring="failure", check=""), ended("crash")).status == "caught"
    assert judged(CHEAT, ended("rejected", "it ended too early")).status == "caught"


def test_a_written_canary_is_missed_and_an_untouched_one_caught(judged):
    case = replace(CHEAT, ring="sandbox", check="write", canaries=("data/train.bin",))
    assert judged(case).status == "caught"
    missed = judged(case, touched=["data/train.bin"])
    assert missed.status == "missed" and "data/train.bin" in missed.message


def test_a_claimed_speed_is_caught_by_the_parents_clock(judged):
    """R-A2: the calibration of this bed says one second a step, the trial half a second."""
    assert judged(replace(CHEAT, ring="time", check="clock", claims=1000.0)).as_expected
    assert judged(replace(CHEAT, claims=2.5)).status == "missed"


def test_what_cannot_be_judged_yet_is_skipped_aloud(beds):
    case = replace(HONEST, pending="maps do not exist yet")
    skipped = selftest.judge(beds["dense"], case, selftest.no_checks)
    assert skipped.status == "skipped" and "maps do not exist yet" in skipped.message
    assert "maps do not exist yet" in draw(SelfTestResult((skipped,), (), 1, "", 1.0), color=False)


def test_the_page_names_what_went_wrong_first_with_its_numbers(judged):
    cases = (judged(CHEAT), judged(HONEST, replace(OK, violations=(LOSS,))), judged(HONEST))
    page = draw(SelfTestResult(cases, ("dense/c", "dense/h"), 1, "no bwrap", 3.0), color=False, width=140)
    assert page.startswith("0 of 1 cheat caught, 1 of 2 honest changes passed.")
    assert page.index("MISSED: dense/c, cheats") < page.index("Honest changes")
    assert "WRONGLY REFUSED by invariant (loss): dense/h" in page and "without a sandbox: no bwrap" in page
    assert json.loads(success("selftest", cases[0]))["result"]["status"] == "missed"


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError):
        selftest.selftest(SelfTestOptions(names=("symlink",), folder=tmp_path), None, lambda _: None)


def test_the_command_judges_named_cases_without_training():
    done = CliRunner().invoke(cli, ["selftest", "--case", "symlink", "--case", "mode-change", "--json"])
    result = json.loads(done.stdout)["result"]
    assert done.exit_code == 0 and result["wrong"] == []
    assert {(c["trainer"], c["status"], c["check"]) for c in result["cases"]} == {
        ("dense", "caught", "mode"),
        ("moe", "caught", "mode"),
    }


def test_the_command_lists_cases():
    done = CliRunner().invoke(cli, ["selftest", "--list", "--trainer", "moe", "--json"])
    cases = json.loads(done.stdout)["result"]["cases"]
    assert {c["trainer"] for c in cases} == {"moe"} and len(cases) > 100


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_quick_suite_finds_nothing_wrong():
    done = CliRunner().invoke(cli, ["selftest", "--quick", "--json"])
    result = json.loads(done.stdout)["result"]
    wrong = [(c["name"], c["status"], c["message"]) for c in result["cases"] if c["status"] in selftest.WRONG]
    assert wrong == [] and done.exit_code == 0
