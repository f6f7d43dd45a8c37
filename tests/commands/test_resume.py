"""A run that is stopped, by ^C, by SIGKILL or at any event, and goes on where its ledger ends (R-E2, R-E3, R-D1)."""

import signal

import pytest
from fake_tool import make_engine
from training_case import patch_of, set_machine, until

from infrarsi.commands.run import RunOptions, run
from infrarsi.errors import Interrupted

pytestmark = pytest.mark.real
CONCLUDED = ("accepted", "inconclusive")  # how the finals end is not what is tested here, only that they do


def started(case, kind, number):
    """Start a run in a process of its own, and return it once its ledger holds so many lines of this kind."""
    tool = case.start("run", "--trials", "3")
    mark = f'"kind":"{kind}"'
    until(lambda: sum(p.read_text().count(mark) for p in case.ledgers()) >= number or tool.poll() is not None)
    assert tool.poll() is None, tool.communicate()
    return tool


def require_whole(case, *, trials):
    """One run, no finished trial lost or repeated, the budget as if it had never been stopped."""
    lines = case.lines()
    kinds = [line.kind for line in lines]
    for kind in ("run-started", "search-ended", "finalists", "run-ended"):
        assert kinds.count(kind) == 1, kind
    done = case.trials()
    assert len({t.id for t in done}) == len(done)
    search = [t for t in done if t.role == "search"]
    assert len(search) == trials
    assert len({t.candidate for t in search}) == trials, "no candidate was tried twice"
    finished = {t.id: t for t in done if t.outcome.kind == "ok"}
    pairs = [line.body["pair"] for line in lines if line.kind == "pair"]
    used = [p[arm] for p in pairs for arm in ("baseline_trial", "candidate_trial")]
    assert len(set(used)) == len(used)
    assert set(used) <= finished.keys()
    verdicts = [line.body for line in lines if line.kind == "verdict"]
    assert len({(v["stage"], v["number"]) for v in verdicts}) == len(verdicts)
    return lines


def test_sigkill_in_the_search_and_in_the_finals(calibrated):
    """R-E2, R-D1: what was finished remains, nothing survives, a torn line is cut."""
    case = calibrated
    kept = []
    with case.untouched():
        for kind, number in (("trial-started", 2), ("pair", 2)):
            tool = started(case, kind, number)
            tool.kill()
            tool.communicate()
            until(lambda: case.processes() == [], 10)
            (path,) = case.ledgers()
            data = path.read_bytes()
            covered = data[: data.rfind(b"\n") + 1]
            kept.append(covered)
            path.write_bytes(covered + b'{"at":"2026-01-01T00:00:00.000Z","body":{"id":"se')
        result = case.ok("run", "--trials", "3")
    assert result["resumed"]
    assert result["verdict"]["decision"] in CONCLUDED
    whole = case.ledgers()[0].read_bytes()
    assert whole.startswith(kept[1]), "not one acknowledged line was changed"
    assert kept[1].startswith(kept[0])
    lines = require_whole(case, trials=3)
    resumed = [line.body for line in lines if line.kind == "run-resumed"]
    assert len(resumed) == 2
    assert resumed[0]["interrupted"], "the trial in flight is named"
    assert case.git("worktree", "list").count("\n") == 0, "what the killed run checked out is gone"
    assert not any((case.state / "worktrees").iterdir())


def test_stopped_at_every_kind_of_event(calibrated):
    """R-E2: one run in as many sittings as it has kinds of events, each stopped right after the next one."""
    case = calibrated
    kinds = ["run-started", "candidate", "trial-started", "trial", "search-ended", "finalists", "pair", "verdict"]
    kinds.append("run-ended")

    def stop_at(kind):
        def notify(event):
            if event.kind == kind:
                raise KeyboardInterrupt

        return notify

    with case.untouched(), case.as_user():
        for number, kind in enumerate(kinds):
            with pytest.raises(Interrupted) as caught:
                run(case.root, RunOptions(trials=3), make_engine(), stop_at(kind))
            assert "git infrarsi run resumes it" in caught.value.hint
            assert case.processes() == []
            assert len(case.ledgers()) == 1, f"sitting {number} began another run"
        done = run(case.root, RunOptions(trials=3), make_engine(), lambda event: None)
    assert done.resumed
    assert done.verdict.decision in CONCLUDED
    assert case.git("rev-parse", f"refs/infrarsi/runs/{done.run}") == done.evidence
    require_whole(case, trials=3)
    assert case.say("apply").code == (0 if done.verdict.decision == "accepted" else 1)


def test_ctrl_c(calibrated):
    """^C and SIGTERM end the trial with all its processes, exit with 130 and say how to go on."""
    case = calibrated
    with case.untouched():
        for signal_, sitting in ((signal.SIGINT, 1), (signal.SIGTERM, 2)):
            tool = started(case, "trial-started", sitting)
            tool.send_signal(signal_)
            _, err = tool.communicate(timeout=20)
            assert tool.returncode == 130, err
            assert "error: run " in err
            assert " stopped" in err
            assert "hint: git infrarsi run resumes it" in err
            assert "Traceback" not in err
            assert case.processes() == []
            assert not any((case.state / "worktrees").iterdir())
    assert len(case.ledgers()) == 1


def test_ctrl_c_in_the_calibration(locked):
    """Before the run's first line there is nothing to resume, and nothing is left behind."""
    case = locked
    with case.untouched():
        tool = case.start("run")
        until(lambda: case.processes() != [])
        tool.send_signal(signal.SIGINT)
        _, err = tool.communicate(timeout=20)
    assert tool.returncode == 130, err
    assert "error: stopped" in err
    assert "hint: git infrarsi run" in err
    assert (case.processes(), case.ledgers()) == ([], [])
    assert not any((case.state / "worktrees").iterdir())


def test_the_beginning_was_torn(calibrated):
    """R-E2: SIGKILL within the very first write leaves a run that never began; it is in nobody's way."""
    case = calibrated
    torn = case.state / "runs" / "20260101-000000-dead" / "ledger.jsonl"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b'{"at":"2026-01-01T00:0')
    case.ok("status")
    said = case.say("report", "--json")
    assert said.code in (0, 2)
    assert said.result["error"] is None or "crash" not in said.result["error"]["code"].lower()
    with case.as_user():
        done = run(case.root, RunOptions(trials=1), make_engine(), lambda event: None)
    assert not done.resumed
    assert case.ok("report")["run"] == done.run


@pytest.fixture
def unfinished(calibrated):
    """A run that was stopped after its first trial."""

    def stop(event):
        if event.kind == "trial":
            raise KeyboardInterrupt

    with calibrated.as_user(), pytest.raises(Interrupted):
        run(calibrated.root, RunOptions(trials=2), make_engine(), stop)
    return calibrated


def test_a_resumed_run_keeps_its_budget_and_its_patches(unfinished, tmp_path):
    """R-E2: the first sitting's --trials holds, and a patch that comes too late is said to be one."""
    (tmp_path / "late.patch").write_text(patch_of("train.py", "a\n", "b\n"))
    said = unfinished.say("run", "--patch", str(tmp_path / "late.patch"))
    assert said.code == 0, said.err
    assert "a resumed run keeps its own patches" in said.err
    assert len([t for t in unfinished.trials() if t.role == "search"]) == 2
    ended = next(line.body for line in unfinished.lines() if line.kind == "run-ended")
    assert ended["wall_seconds"] >= sum(t.wall_seconds for t in unfinished.trials()) - 0.1


def test_resume_under_another_contract_is_refused(unfinished):
    """R-E3: with the way out, and the unfinished run kept."""
    case = unfinished
    ledger = case.ledgers()[0].read_bytes()
    case.write("infrarsi.toml", case.toml(budget="trials = 2"))
    assert case.say("init", "--force").code == 0
    case.git("commit", "-q", "-m", "fewer trials", "infrarsi.toml", "infrarsi.lock")
    with case.untouched():
        said = case.say("run", "--json")
    assert said.code == 128
    error = said.result["error"]
    assert error["code"] == "resume-mismatch"
    assert "the contract and the baseline commit" in error["why"]
    assert "--fresh" in error["hint"]
    assert [p.read_bytes() for p in case.ledgers()] == [ledger]


def test_resume_on_another_commit_or_machine_is_refused(unfinished):
    """R-E3."""
    case = unfinished
    set_machine(case.home, cpu="Another CPU")
    with case.untouched():
        said = case.say("run", "--json")
    assert "the hardware changed" in said.result["error"]["why"]
    set_machine(case.home)
    case.git("commit", "-q", "-m", "words", "README.md")
    said = case.say("run", "--json")
    assert (said.code, said.result["error"]["code"]) == (128, "resume-mismatch")
    assert "the baseline commit changed" in said.result["error"]["why"]
    assert len(case.ledgers()) == 1
