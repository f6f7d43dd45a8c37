"""The local engine with the fake trainer: window, early stop, deadlines, failures of one rank, cheats with time."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infrarsi import codec
from infrarsi.errors import TrialError
from infrarsi.records import Candidate, Trial
from infrarsi.trial.execute import run_trial, to_trial
from infrarsi.trial.plan import Deadlines

QUICK = Deadlines(startup_seconds=10.0, progress_seconds=2.0, total_seconds=20.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_window_is_measured_by_our_clock(place, ranks):
    """R-A2, R-A3: tokens of all ranks over the parent's wall time of the slowest."""
    execution = run_trial(place.plan(ranks=ranks), place.engine())
    assert execution.outcome.kind == "ok" and not execution.violations
    measured = execution.measurement
    assert measured is not None and measured.steps == 6 and not measured.stopped_early
    assert measured.tokens == 6 * 32 * 16 * ranks
    assert (
        measured.mean_step_seconds > 0.007
    )  # 10 ms; a parent that wakes late on a busy machine stamps the opening late
    assert sum(measured.step_seconds) == pytest.approx(measured.window_seconds)
    assert measured.peak_allocated_bytes == 100 * 2**20
    assert len(execution.steps) == 8 * ranks and len(execution.ends) == ranks
    assert execution.parameters[0].name == "wte.weight" and dict(execution.hyper[0].values)["lr"] == 1e-3
    assert 0 <= execution.pressure <= 1 and execution.wall_seconds > measured.window_seconds
    assert execution.device_seconds == pytest.approx(ranks * execution.wall_seconds)


def test_the_trial_record_survives_the_ledger(place):
    plan = place.plan(ranks=2)
    trial = to_trial(plan, run_trial(plan, place.engine()), why="a test")
    assert codec.decode(Trial, json.loads(codec.canonical(trial))) == trial


def test_a_violation_rejects_a_run_that_ended_well(place):
    plan = place.plan("--nan")
    trial = to_trial(plan, run_trial(plan, place.engine()))
    assert trial.outcome.kind == "rejected" and trial.violations[0].check == "finite"
    assert codec.canonical(trial)


def test_early_stop_keeps_what_was_measured(place):
    seen = []

    def watch(progress):
        seen.append(progress)
        return "stop" if progress.timed_step_seconds is not None else "continue"

    plan = place.plan("--step-ms=60", ranks=2, timed_steps=200)
    execution = run_trial(plan, place.engine(), on_progress=watch, poll_seconds=0.01)
    measured = execution.measurement
    assert execution.outcome.kind == "ok" and measured is not None
    assert measured.stopped_early and 2 <= measured.steps < 60
    assert measured.mean_step_seconds >= 0.06
    assert [p.last_step for p in seen] == sorted({p.last_step for p in seen})


def test_a_stop_close_to_the_end_changes_nothing(place):
    execution = run_trial(place.plan(), place.engine(), on_progress=lambda _: "stop")
    assert execution.measurement is not None and execution.measurement.steps == 6
    assert not execution.measurement.stopped_early


@pytest.mark.parametrize("when", ["0:1", "0:4"])
def test_a_rank_that_sleeps_is_a_hang(place, when):
    """R-D2: within the no-progress limit, at world size 1, before the first step and after it."""
    deadlines = Deadlines(startup_seconds=15.0, progress_seconds=1.0, total_seconds=20.0)
    started = time.monotonic()
    execution = run_trial(place.plan(f"--hang={when}", deadlines=deadlines), place.engine())
    assert execution.outcome.kind == "hang", execution.outcome
    assert time.monotonic() - started < 6
    assert execution.measurement is None


def test_the_rank_that_hangs_is_named(place):
    """R-D5: rank 1 of 2 sleeps while rank 0 goes on."""
    execution = run_trial(place.plan("--hang=1:4", ranks=2, timed_steps=400, deadlines=QUICK), place.engine())
    assert (execution.outcome.kind, execution.outcome.rank) == ("hang", 1)


def test_own_deadlines(place):
    """R-D4: start-up and total."""
    slow = place.plan("--first-ms=5000", deadlines=Deadlines(0.5, 60.0, 60.0))
    assert run_trial(slow, place.engine()).outcome.phase == "startup"
    long = place.plan(timed_steps=9_000, deadlines=Deadlines(30.0, 60.0, 1.0))
    outcome = run_trial(long, place.engine()).outcome
    assert (outcome.kind, outcome.phase) == ("timeout", "total")


@pytest.mark.parametrize(
    ("flags", "kind", "rank", "part"),
    [
        (("--oom=1:3",), "oom", 1, "DefaultCPUAllocator"),
        (("--comm=0:3", "--oom=1:3"), "oom", 1, "DefaultCPUAllocator"),
        (("--crash=1:3",), "crash", 1, "a planned crash"),
        (("--segv=1:3",), "crash", 1, "SIGSEGV"),
        (("--kill=0:3",), "crash", 0, "SIGKILL"),
        (("--import-error=0:0",), "conflict", 0, "flash_attn"),
        (("--no-such-flag",), "conflict", None, "unrecognized"),
        (("--steps=4",), "rejected", None, "after step 4"),
    ],
)
def test_failures_of_one_of_two_ranks(place, flags, kind, rank, part):
    """R-C1, R-C3, R-D5: the first root error, its rank, and the seconds it cost."""
    plan = place.plan(*flags, ranks=2, deadlines=QUICK)
    trial = to_trial(plan, run_trial(plan, place.engine()))
    assert (trial.outcome.kind, trial.outcome.rank) == (kind, rank), trial.outcome
    assert part in f"{trial.outcome.message} {trial.outcome.signal}"
    assert trial.measurement is None
    assert trial.wall_seconds > 0 and trial.device_seconds == pytest.approx(2 * trial.wall_seconds)


def test_a_program_that_never_trains_is_refused(place):
    execution = run_trial(replace(place.plan(), argv=("python3", "-c", "pass")), place.engine())
    assert execution.outcome.kind == "rejected" and "no optimizer step" in execution.outcome.message


def test_memory_budget_reaches_the_rank(place):
    execution = run_trial(place.plan(memory_bytes=50 * 2**20), place.engine())
    assert execution.outcome.kind == "oom"


@pytest.mark.parametrize(("flag", "check"), [("--garbage", "protocol"), ("--clock-scale=0.1", "clock")])
def test_lies_about_time_are_violations(place, flag, check):
    """R-A2: the rank's clock ran at a tenth; the metric did not notice, and the trial is void."""
    plan = place.plan(flag, "--step-ms=60")
    trial = to_trial(plan, run_trial(plan, place.engine()))
    assert trial.outcome.kind == "rejected" and check in {v.check for v in trial.violations}
    assert trial.measurement is not None and trial.measurement.mean_step_seconds >= 0.06


def test_a_wrong_token_is_no_rank(place):
    execution = run_trial(place.plan("--bad-token", "--steps=3"), place.engine())
    assert execution.outcome.kind == "rejected" and not execution.steps


def test_concurrent_trials_share_nothing(place):
    """R-D3: port, rendezvous id, cache and scratch are each trial's own; one after another the cache is warm."""
    (place.worktree / "show.py").write_text(
        "import json,os,time\n"
        "names='PET_MASTER_PORT PET_RDZV_ID TORCHINDUCTOR_CACHE_DIR HOME TMPDIR INFRARSI_TRIAL INFRARSI_PLAN'.split()\n"
        "print(json.dumps([os.environ[n] for n in names])); time.sleep(0.5)\n"
    )
    engine, tails = place.engine(), []
    plans = [replace(place.plan(), argv=("python3", "show.py")) for _ in range(3)]
    threads = [threading.Thread(target=lambda p=p: tails.append(run_trial(p, engine).log_tail)) for p in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    columns = list(zip(*(json.loads(t) for t in tails), strict=True))
    assert len(tails) == 3 and all(len(set(column)) == 3 for column in columns)
    after = json.loads(run_trial(replace(place.plan(), argv=("python3", "show.py")), engine).log_tail)
    assert after[2] in columns[2], "the next trial finds a warm cache"
    assert not any(Path(path).exists() for path in columns[3])


def test_code_under_trial_writes_no_cache_that_the_baseline_loads(place):
    def cache_of(candidate):
        (place.worktree / "show.py").write_text("import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])")
        plan = replace(place.plan(), argv=("python3", "show.py"), candidate=candidate)
        return run_trial(plan, place.engine()).log_tail

    assert cache_of(Candidate()) != cache_of(Candidate(patches=("sdpa",)))


def test_what_cannot_start_is_said(place):
    with pytest.raises(TrialError, match="no interpreter"):
        place.engine().submit(replace(place.plan(), argv=("python9.9", "train.py")))
    with pytest.raises(TrialError, match="timed step"):
        place.engine().submit(place.plan(timed_steps=0))
    execution = run_trial(replace(place.plan(), argv=("/no/such/launcher",)), place.engine())
    assert execution.outcome.kind == "crash" and "no/such/launcher" in execution.outcome.message


def test_nothing_is_left_in_the_temporary_folder(place, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    run_trial(place.plan(), place.engine())
    assert not list((tmp_path / "tmp").iterdir())
