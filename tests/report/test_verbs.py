"""Readers of the other verbs, errors and crashes. The results here have the fields of the commands' own."""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import ledgers
import pytest

import infrarsi
from infrarsi.errors import ContractError, InfrarsiError
from infrarsi.records import Assignment
from infrarsi.report import init, results, verify
from infrarsi.report.crash import crash_error
from infrarsi.report.envelope import failure, success
from infrarsi.report.errors import render_error
from infrarsi.report.readers import READERS, draw


@dataclass(frozen=True)
class InitResult:
    digest: str = "a" * 64
    created: bool = True
    committed: bool = False
    locked: tuple = ("32 rows per optimizer step",)
    may_change: tuple = ("micro_batch: 8 x 4, 16 x 2",)
    understood: tuple = ("20 GB: memory_gb = 20",)
    not_understood: tuple = ("and make coffee",)
    notes: tuple = ()
    next_command: str = "git add infrarsi.toml infrarsi.lock && git commit"


@dataclass(frozen=True)
class DoctorResult:
    calibration: object = ledgers.CALIBRATION
    calibration_digest: str = "d" * 64
    notes: tuple = ("perturbation two threads did not run",)


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    message: str


@dataclass(frozen=True)
class VerifyResult:
    commit: str = "f" * 40
    decision: str = "pass"
    signature: str = "none"
    signature_message: str = "the commit is not signed"
    checks: tuple = (Check("audit", "pass", "found in the commit's trailer"), Check("scope", "fail", "data/x \x1b[2J"))
    payload: object = None


@dataclass(frozen=True)
class StatusResult:
    contract: str = "c" * 64
    goal: str = "faster"
    calibrated: bool = False
    runs: tuple = ()
    measuring: str = ""
    next_command: str = "git infrarsi doctor"


@dataclass(frozen=True)
class GcResult:
    removed: tuple = ("worktree x",)
    kept: tuple = ()
    dry_run: bool = True


@dataclass(frozen=True)
class LaunchPlan:
    argv: tuple = ("python3", "train.py", "--name=a b")
    environment: tuple = (("OMP_NUM_THREADS", "1"),)
    folder: Path = Path("/x")


@dataclass(frozen=True)
class RunResult:
    run: str = "r"
    verdict: object = None
    evidence: str = "e" * 40
    reason: str = "nothing left that is worth a trial"
    resumed: bool = False
    warnings: tuple = ()


@dataclass(frozen=True)
class ApplyResult:
    run: str = "r"
    commit: str = "f" * 40
    branch: str = "infrarsi/promoted"
    settings: tuple = (Assignment("flag", "--batch_size", 16), Assignment("env", "X", None))
    changes: tuple = ledgers.CHANGES
    verdict: object = ledgers.verdict("accepted")
    signer: str = "ssh key k"
    notes: tuple = ("to take it: git merge --ff-only infrarsi/promoted",)
    created: bool = True


@dataclass(frozen=True)
class DemoResult:
    folder: Path = Path("/tmp/a demo")
    commit: str = "f" * 40
    branch: str = "infrarsi/promoted"
    speedup: float = 1.5
    low: float = 1.4
    high: float = 1.6


CASES = [
    (InitResult(), ["Must stay the same", "May change", "Not understood", "and make coffee", "git commit"]),
    (DoctorResult(), ["Gains under 2.0 % are invisible here", "backward", "60.0 %", "MFU", "36.4 %", "two threads"]),
    (VerifyResult(), ["ffffffffffff verifies", "signature of the commit", "not signed", "data/x \\x1b[2J"]),
    (VerifyResult(decision="fail"), ["does not verify"]),
    (VerifyResult(decision="inconclusive"), ["neither confirmed nor refuted"]),
    (StatusResult(), ["Contract cccccccccccc: faster", "not calibrated", "next: git infrarsi doctor"]),
    (GcResult(), ["Would remove 1 thing", "worktree x"]),
    (GcResult(removed=(), dry_run=False), ["Nothing to remove."]),
    (LaunchPlan(), ["OMP_NUM_THREADS=1 python3 train.py '--name=a b'"]),
    (RunResult(), ["Nothing to promote", "git infrarsi report"]),
    (RunResult(verdict=ledgers.verdict("accepted")), ["Accepted: 1.50x", "git infrarsi apply"]),
    (ApplyResult(), ["1.50x [1.46x, 1.54x] over 5 pairs", "--batch_size=16", "without X", "model.py", "ssh key k"]),
    (DemoResult(), ["1.50x [1.40x, 1.60x]", "cd '/tmp/a demo'"]),
]


@pytest.mark.parametrize(("result", "expected"), CASES)
def test_each_result_has_a_reader(result, expected):
    text = draw(result, color=False, width=140)
    for part in expected:
        assert part in text
    assert "\x1b" not in text


@pytest.mark.parametrize("result", [case[0] for case in CASES])
def test_each_result_has_json(result):
    value = json.loads(success("verb", result))
    assert value["ok"] and value["result"] is not None
    assert "\n" not in success("verb", result, one_line=True)


VIEWS = {
    "InitResult": init.InitView,
    "VerifyResult": verify.VerifyView,
    "Check": verify.CheckView,
    "RunResult": results.RunResultView,
    "ApplyResult": results.ApplyView,
    "StatusResult": results.StatusView,
    "RunLine": results.RunLineView,
    "GcResult": results.GcView,
    "LaunchPlan": results.LaunchView,
    "DemoResult": results.DemoView,
}


def fields_of_results():
    """Return class name -> field names of the commands' results, read without importing what they import."""
    found = {}
    for path in (Path(infrarsi.__file__).parent / "commands").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
    return found


@pytest.mark.parametrize("name", VIEWS)
def test_the_readers_need_only_what_the_commands_give(name):
    needed = {field for field, value in vars(VIEWS[name]).items() if isinstance(value, property)}
    assert needed and needed <= fields_of_results()[name]


def test_every_result_of_a_command_has_a_reader():
    given = {name for name in fields_of_results() if name.endswith("Result")} | {"LaunchPlan"}
    assert given <= set(READERS)


def test_colour_only_when_asked():
    assert "\x1b[" in draw(VerifyResult(decision="fail"), color=True)
    assert "\x1b" not in draw(VerifyResult(decision="fail"), color=False)


def test_an_unknown_result_is_a_bug():
    with pytest.raises(TypeError, match="no reader draws a str"):
        draw("x", color=False)
    assert "RunReport" in READERS


def test_an_error_is_three_lines():
    error = ContractError("no contract", why="it is missing\x1b[2J", hint="git infrarsi init")
    assert render_error(error, color=False) == (
        "error: no contract\n  why: it is missing\\x1b[2J\n hint: git infrarsi init\n"
    )
    assert render_error(InfrarsiError("x"), color=False) == "error: x\n"
    assert "\x1b[1;31merror: \x1b[0m" in render_error(error, color=True)


def test_a_failure_has_the_same_envelope():
    value = json.loads(failure("run", ContractError("a", why="b", hint="c", code="d")))
    assert value == {
        "schema": 1,
        "command": "run",
        "ok": False,
        "result": None,
        "error": {"code": "d", "what": "a", "why": "b", "hint": "c", "exit_code": 128},
    }


def test_a_crash_leaves_a_report_and_no_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    try:
        raise ValueError("odd")
    except ValueError as error:
        shown = crash_error("run", error, tmp_path)
    (path,) = tmp_path.iterdir()
    assert str(path) in shown.hint and shown.why == "ValueError: odd" and shown.exit_code == 128
    assert "Traceback" in path.read_text() and "hunter2" not in path.read_text()


def test_a_crash_without_a_writable_folder_is_still_told(tmp_path):
    shown = crash_error("run", ValueError("odd"), tmp_path / "missing")
    assert shown.why == "ValueError: odd" and "TMPDIR" in shown.hint
