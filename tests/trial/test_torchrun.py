"""The same with the real torchrun (and, once, with real training under the real probe)."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_processes import living, until

from infrarsi.trial import guard
from infrarsi.trial.execute import run_trial
from infrarsi.trial.local import LocalEngine
from infrarsi.trial.plan import Deadlines

pytestmark = pytest.mark.real
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py")
DENSE = Path(__file__).parents[2] / "infrarsi/demo/trainers/dense"


def plan_of(place, *flags, **changes):
    deadlines = Deadlines(60.0, 30.0, 120.0)
    return replace(place.plan(ranks=2, deadlines=deadlines, **changes), argv=(*TORCHRUN, "--step-ms=20", *flags))


def test_a_window_under_torchrun(place):
    execution = run_trial(plan_of(place), place.engine())
    assert execution.outcome.kind == "ok", execution.log_tail
    assert execution.measurement is not None and execution.measurement.steps == 6 and not execution.violations


def test_the_signal_that_torchrun_hides(place):
    """R-C1, R-D5: exit code 1, and the SIGSEGV of rank 1 only in the log."""
    outcome = run_trial(plan_of(place, "--segv=1:3"), place.engine()).outcome
    assert (outcome.kind, outcome.rank, outcome.signal, outcome.exit_code) == ("crash", 1, "SIGSEGV", 1)


def test_sigkill_of_torchrun_leaves_no_rank(place):
    """R-D1: torchrun's ranks have sessions of their own."""
    engine, plan = place.engine(), plan_of(place, "--deaf", "--spawn", "--scrub", timed_steps=5000)
    handle = engine.submit(plan)
    until(lambda: engine.progress(handle).last_step > 3, 60)
    guarding = engine._handles[handle].session.guarded.process.pid
    (launcher,) = [p.pid for p in guard.descendants(guarding) if guard.read_stat(p.pid).parent == guarding]
    os.kill(launcher, signal.SIGKILL)
    assert engine.result(handle).outcome.signal == "SIGKILL"
    assert not living(place.worktree)


def test_real_training_under_the_real_probe(place):
    """The thread from launcher to measurement with the packaged probe."""
    for source in DENSE.glob("*.py"):
        (place.worktree / source.name).write_bytes(source.read_bytes())
    subprocess.run([sys.executable, "prepare.py"], cwd=place.worktree, check=True, capture_output=True, timeout=120)
    flags = ("--n_layer=2", "--n_embd=32", "--eval_batches=0")
    plan = replace(place.plan(ranks=2, deadlines=Deadlines(120.0, 60.0, 240.0)), argv=(*TORCHRUN, *flags))
    execution = run_trial(plan, LocalEngine())
    assert execution.outcome.kind == "ok", (execution.outcome, execution.log_tail)
    measured = execution.measurement
    assert measured is not None and measured.steps == 6 and measured.tokens == 6 * 2 * 8 * 2 * 64
    assert not execution.violations and all(end.hooks_intact for end in execution.ends)
    assert [end.modules_outside for end in execution.ends if end.modules_outside] == []
