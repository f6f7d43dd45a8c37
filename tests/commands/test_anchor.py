"""R-A9: many small promotions cannot drift: every check is anchored at the original baseline, not at the last one."""

import pytest
from training_case import TRAINER, patch_of

pytestmark = pytest.mark.real
PLACE = '"--loss-scale", type=float, default='
SHARE = 0.099  # of the tolerance, in each of the promotions


def drifted(times: int, tolerance: float) -> str:
    """The trainer after `times` promotions, each of which scaled the loss by a tenth of what is allowed."""
    source = TRAINER.read_text()
    assert source.count(f"{PLACE}1.0") == 1
    return source.replace(f"{PLACE}1.0", f"{PLACE}{1.0 + times * SHARE * tolerance!r}")


def test_ten_promotions_of_a_tenth_of_the_tolerance_each_and_then_no_more(calibrated, tmp_path):
    """R-A9: the sum counts. Ten pass; the eleventh is refused as a candidate, and as a baseline by doctor."""
    case = calibrated
    case.write("infrarsi.toml", case.toml(knobs=""))
    case.git("commit", "-q", "-m", "patches only", "infrarsi.toml")
    original = case.ok("doctor", "--repeats", "2")["calibration"]
    (tolerance,) = [e["loss"] for e in original["envelopes"] if e["numerics"] == "reorder"]
    for number in range(1, 11):  # as fast-forward merges of promoted commits leave it
        case.write("train.py", drifted(number, tolerance))
        case.git("commit", "-q", "-m", f"promotion {number}", "train.py")
    last = case.ok("doctor", "--repeats", "2")["calibration"]
    assert last["trace"] == original["trace"], "the reference is what the contract was made from"
    assert last["commit"] == case.git("rev-parse", "HEAD") != original["commit"]

    patch = tmp_path / "eleventh.patch"
    patch.write_text(patch_of("train.py", drifted(10, tolerance), drifted(11, tolerance)))
    result = case.ok("run", "--trials", "2", "--patch", str(patch))
    assert result["verdict"] is None
    trials = {bool(t.candidate.patches): t for t in case.trials() if t.role == "search"}
    assert trials[False].outcome.kind == "ok", "ten tenths are within the tolerance"
    assert trials[True].outcome.kind == "rejected"
    assert "the loss is 5.4e-06 off the baseline's" in trials[True].outcome.message

    case.write("train.py", drifted(11, tolerance))
    case.git("commit", "-q", "-m", "promotion 11, by hand", "train.py")
    with case.untouched():
        said = case.say("doctor", "--repeats", "2", "--json")
    assert said.code == 128
    assert said.result["error"]["code"] == "drifted"
    assert "the loss is 5.4e-06 off the baseline's" in said.result["error"]["why"]
