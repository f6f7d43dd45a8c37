"""What goes wrong before anything can be measured: each in three lines, with the right exit code, and nothing lost."""

import signal
from dataclasses import dataclass

import pytest
from training_case import KNOB, TRAINER, Case, until

COMMAND = ("--command", "python3 train.py --step-ms=2")


@dataclass(frozen=True)
class Bad:
    """A command that must fail: exit code, the error's code, and words of what, why and hint."""

    args: tuple[str, ...]
    exit_code: int
    code: str
    what: str
    why: str
    hint: str


def refused(case, bad):
    """Ask for text and for JSON; both say the same, and neither touches anything."""
    before = case.everything() if (case.root / ".git").exists() else None
    plain, json_ = case.say(*bad.args), case.say(*bad.args, "--json")
    error = json_.result["error"]
    assert (json_.result["ok"], json_.result["result"]) == (False, None)
    assert (plain.code, json_.code, error["exit_code"]) == (bad.exit_code,) * 3, error
    assert error["code"] == bad.code, error
    for key in ("what", "why", "hint"):
        assert getattr(bad, key) in error[key], error
        assert error[key].strip(), key
    assert plain.out == ""
    for label, key in (("error: ", "what"), ("why: ", "why"), ("hint: ", "hint")):
        assert f"{label}{error[key].splitlines()[0][:40]}" in plain.err
    assert "Traceback (most" not in plain.err or "Traceback (most" in error["why"]
    if before is not None:
        assert case.everything() == before
        assert not list((case.state / "worktrees").glob("*"))
    assert case.processes() == []


@pytest.mark.parametrize("verb", ["init", "doctor", "run", "report", "apply", "status"])
def test_not_a_repository(user, tmp_path, verb):
    case = Case(user, tmp_path)
    said = case.say(verb, "--json")
    assert said.code == 128
    error = said.result["error"]
    assert "not" in error["what"]
    assert "git" in error["hint"]


@pytest.mark.parametrize("verb", ["init", "doctor", "run"])
def test_an_empty_repository(user, tmp_path, verb):
    case = Case(user, tmp_path)
    case.git("init", "-q")
    case.write("train.py", "print(1)\n")
    said = case.say(verb, "--json")
    assert said.code == 128
    assert said.result["error"]["what"]
    assert "commit" in said.result["error"]["hint"]


def test_no_training_entry(fresh):
    fresh.commit("no training", **{"train.py": "print('no training here')\n"})
    args = ("init", "make it faster", "--python", fresh.python)
    refused(fresh, Bad(args, 2, "no-entry", "no training entry was found", "backward()", "--command"))


def test_an_entry_that_does_not_exist(fresh):
    args = ("init", "--command", "python3 missing.py", "--python", fresh.python)
    said = fresh.say(*args, "--json")
    assert said.code in (2, 128)
    assert "missing.py" in said.result["error"]["what"] + said.result["error"]["why"]


def test_an_entry_that_crashes_at_import(fresh):
    fresh.commit("broken", **{"train.py": "import no_such_module\n" + TRAINER.read_text()})
    args = ("init", *COMMAND, "--python", fresh.python)
    bad = Bad(args, 128, "baseline-conflict", "does not train", "import: ", "by hand")
    refused(fresh, bad)


def test_a_command_without_an_optimizer_step(fresh):
    args = ("init", "--command", "python3 train.py --steps=0", "--python", fresh.python)
    refused(fresh, Bad(args, 128, "no-steps", "never reached an optimizer step", "", "--command"))


def test_a_memory_budget_below_the_baseline(fresh):
    fresh.write("infrarsi.toml", fresh.toml(budget="memory_gb = 0.05"))
    refused(fresh, Bad(("init",), 128, "baseline-oom", "does not train", "memory", "memory_gb"))


def test_an_unknown_key(fresh):
    fresh.write("infrarsi.toml", fresh.toml(budget="trails = 3"))
    said = fresh.say("init", "--json")
    assert said.code == 2
    error = said.result["error"]
    assert "trails" in error["what"] + error["why"]
    assert "trials" in error["hint"] + error["why"]


def test_a_knob_whose_flag_the_script_does_not_have(calibrated):
    """Found before any second is spent, also before this commit is calibrated."""
    toml = calibrated.toml(knobs=KNOB.replace("--batch_size", "--batch-sizes"))
    calibrated.write("infrarsi.toml", toml)
    calibrated.git("commit", "-q", "-m", "a knob", "infrarsi.toml")
    refused(calibrated, Bad(("run",), 2, "unknown-flag", "no flag --batch-sizes", "its flags are", "--batch_size"))
    assert calibrated.ledgers() == []


def test_nothing_to_try(calibrated):
    calibrated.write("infrarsi.toml", calibrated.toml(knobs=""))
    calibrated.git("commit", "-q", "-m", "no knobs", "infrarsi.toml")
    refused(calibrated, Bad(("run",), 2, "UsageError", "nothing to try", "no knob", "--patch"))


@pytest.mark.parametrize("verb", ["init --force", "doctor", "run"])
def test_uncommitted_changes_in_scope(locked, verb):
    """R-E4: refused, with the paths, and the change is still there."""
    locked.write("train.py", TRAINER.read_text() + "# mine\n")
    args = tuple(verb.split())
    refused(locked, Bad(args, 128, "dirty-scope", "train.py", "commit", "git stash"))


def test_data_that_changed(locked):
    """R-A1."""
    locked.write("data/train.bin", "other")
    refused(locked, Bad(("run",), 128, "data-changed", "data/train.bin", "observed", "restore"))


@pytest.mark.parametrize("verb", ["doctor", "run", "apply", "launch"])
def test_no_contract(fresh, verb):
    said = fresh.say(verb)
    assert said.code == 128
    assert "error: there is no contract here" in said.err
    assert "hint: git infrarsi init" in said.err


@pytest.mark.parametrize("verb", ["report", "apply"])
def test_no_run(locked, verb):
    refused(locked, Bad((verb,), 2, "UsageError", "no run", "nothing was measured", "git infrarsi run"))


def test_a_patch_file_that_does_not_exist(locked):
    with locked.untouched():
        said = locked.say("run", "--patch", "missing.patch")
    assert said.code == 2
    assert "missing.patch" in said.err


@pytest.mark.real
def test_two_at_once(calibrated):
    """The second one is refused at once, and the first one does not notice."""
    case = calibrated
    with case.untouched():
        first = case.start("run", "--trials", "2")
        until(lambda: (case.state / "run.owner").exists())
        try:
            for verb in ("run", "doctor"):
                said = case.say(verb, "--json")
                assert said.code == 2
                error = said.result["error"]
                assert error["code"] == "busy"
                assert f"git infrarsi run, process {first.pid}" in error["why"]
                assert "git infrarsi status" in error["hint"]
            assert str(first.pid) in case.ok("status")["measuring"]
            until(lambda: case.ledgers() != [])
        finally:
            first.send_signal(signal.SIGINT)
            _, err = first.communicate(timeout=20)
    assert first.returncode == 130, err


def test_a_verb_or_option_that_does_not_exist(locked):
    with locked.untouched():
        for args in (("optimise",), ("run", "--nope"), ("run", "--trials", "0"), ("init", "--numerics", "wild")):
            said = locked.say(*args)
            assert said.code == 2
            assert said.out == ""
            assert "Usage:" in said.err
