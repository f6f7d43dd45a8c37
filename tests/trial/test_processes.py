"""R-D1: whatever ends, and however, no process of a trial outlives it. Nothing is found by name."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from infrarsi.trial import guard, supervise
from infrarsi.trial.execute import run_trial
from infrarsi.trial.plan import Deadlines

WORST = ("--deaf", "--spawn", "--step-ms=30")


def living(worktree: Path) -> set[int]:
    """Processes whose working directory is this test's worktree: launchers, ranks, grandchildren of any kind."""
    found = set()
    for pid in guard.all_pids():
        try:
            if Path(f"/proc/{pid}/cwd").resolve() == worktree.resolve() and guard.read_stat(pid).state not in "ZX":
                found.add(pid)
        except (OSError, AttributeError):
            continue
    return found


def variables(pid):
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return [entry.split("=", 1) for entry in entries if "=" in entry]


def ranks_of(tool):
    return [p for p in guard.descendants(tool) if "HOME" in dict(variables(p.pid))]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def start_tool(place, *flags, ranks=2):
    """Run a trial in a process of its own, as the command line does."""
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from conftest import Place
        from infrarsi.trial.execute import run_trial
        place = Place(Path({str(place.root)!r}))
        plan = place.plan(*{flags!r}, ranks={ranks}, timed_steps=5000)
        run_trial(plan, place.engine())
    """
    tool = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE)
    until(lambda: len(living(place.worktree)) >= 1 + 2 * ranks)
    return tool


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("flags", [WORST, (*WORST, "--scrub")])
def test_the_end_of_the_tool_is_the_end_of_the_trial(place, number, flags):
    """R-D1: ranks and grandchildren have their own sessions, are deaf to SIGTERM, one kind has no environment."""
    tool = start_tool(place, *flags)
    (scratch,) = {Path(dict(variables(p.pid))["HOME"]).parent for p in ranks_of(tool.pid)}
    assert scratch.is_dir()
    tool.send_signal(number)
    tool.wait(15)
    until(lambda: not living(place.worktree))
    until(lambda: not scratch.exists())


def test_cancel_returns_when_nothing_is_left(place):
    engine = place.engine()
    plan = place.plan(*WORST, "--scrub", ranks=2, timed_steps=5000)
    handle = engine.submit(plan)
    until(lambda: engine.progress(handle).last_step > 2)
    assert living(place.worktree)
    engine.cancel(handle)
    assert not living(place.worktree)
    outcome = engine.result(handle).outcome
    assert outcome.kind == "cancelled"
    assert engine.poll(handle) == "ended"


def test_an_interrupt_in_the_wait_ends_the_trial_first(place):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(place.plan(*WORST, ranks=2, timed_steps=5000), place.engine(), on_progress=interrupt)
    assert not living(place.worktree)


def _end_one(place, choose, flags=(*WORST, "--scrub")):
    """Run a trial and SIGKILL one of its processes in the middle; return the execution."""
    engine, plan = place.engine(), place.plan(*flags, ranks=2, timed_steps=5000, deadlines=Deadlines(20, 20, 30))
    handle = engine.submit(plan)
    session = engine._handles[handle].session
    until(lambda: engine.progress(handle).last_step > 2 and len(session.guarded.known) >= 5)
    os.kill(choose(session.guarded.process.pid), signal.SIGKILL)
    execution = engine.result(handle)
    assert not living(place.worktree)
    return execution


def test_sigkill_of_the_launcher(place):
    """R-D1: torchrun ended by SIGKILL leaves its ranks; the guard does not."""

    def launcher(guard_pid):
        return next(p.pid for p in guard.descendants(guard_pid) if guard.read_stat(p.pid).parent == guard_pid)

    outcome = _end_one(place, launcher).outcome
    assert (outcome.kind, outcome.signal) == ("crash", "SIGKILL")


def test_sigkill_of_the_guard(place):
    """R-D1: the supervising side cleans up by marker, and by the processes it has seen."""
    assert _end_one(place, lambda guard_pid: guard_pid).outcome.kind == "lost"


def test_sigkill_of_tool_and_guard_at_once_is_swept_up_later(place):
    tool = start_tool(place, *WORST)
    (guarding,) = [p for p in guard.descendants(tool.pid) if guard.read_stat(p.pid).parent == tool.pid]
    for pid in (tool.pid, guarding.pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (tool.pid, guarding.pid):
        os.kill(pid, signal.SIGKILL)
    tool.wait(10)
    assert until(lambda: living(place.worktree))
    assert len(supervise.sweep()) == 1
    until(lambda: not living(place.worktree))


def test_sweep_spares_living_owners(place):
    engine = place.engine()
    handle = engine.submit(place.plan(timed_steps=5000))
    until(lambda: engine.progress(handle).last_step > 2)
    assert supervise.sweep() == ()
    assert living(place.worktree)
    engine.cancel(handle)


def test_leftovers_of_a_finished_trial_are_ended(place):
    execution = run_trial(place.plan("--spawn"), place.engine())
    assert execution.outcome.kind == "ok" and not living(place.worktree)


def test_the_guard_has_a_deadline_of_its_own(place, tmp_path):
    """R-D4: a tool that is stopped for ever does not keep a trial alive for ever."""
    environment = {guard.MARKER_VARIABLE: f"deadline-{os.getpid()}", "PATH": os.environ["PATH"]}
    guarded = supervise.Guarded.start(
        ["sleep", "600"], environment=environment, cwd=place.worktree, log=tmp_path / "log", deadline_seconds=0.5
    )
    assert guarded.finish(10).reason == "deadline" and not living(place.worktree)


def test_a_reused_pid_is_never_taken_for_the_process(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    try:
        wrong = guard.Process(child.pid, guard.read_stat(child.pid).started + 1)
        assert not guard.is_alive(wrong)
        guard.send([wrong], signal.SIGKILL)
        time.sleep(0.1)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_trials_of_other_threads_are_left_alone(place):
    engine = place.engine()
    first, second = (place.plan(timed_steps=5000) for _ in range(2))
    handles = [engine.submit(plan) for plan in (first, second)]
    until(lambda: all(engine.progress(h).last_step > 1 for h in handles))
    thread = threading.Thread(target=engine.cancel, args=(handles[0],))
    thread.start()
    thread.join(20)
    assert engine.poll(handles[0]) == "ended" and engine.poll(handles[1]) == "running"
    engine.cancel(handles[1])
    assert not living(place.worktree)
