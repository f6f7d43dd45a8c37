"""A run whose patches reach for what is not theirs: named, void, and the baseline unharmed (R-A1, R-A7, R-A8)."""

import json

import pytest
from training_case import patch_of

from infrarsi.commands import choices as choosing
from infrarsi.commands.choices import require_allowed_variables, why_not
from infrarsi.commands.state import latest_calibration
from infrarsi.commands.workspace import load
from infrarsi.errors import ContractError, UsageError
from infrarsi.propose.patches import SOURCE, is_trusted
from infrarsi.records import Assignment, Patch
from infrarsi.trial import sandbox

ATTACKS = {
    "its own source": (
        "pathlib.Path(__file__).write_text(pathlib.Path(__file__).read_text())",
        "train.py was written during the trial",
    ),
    "a module for itself": ("pathlib.Path('random.py').write_text('')", "random.py is code that the trial wrote"),
    "the user's data": (
        "pathlib.Path('data/train.bin').write_bytes(pathlib.Path('data/train.bin').read_bytes())",
        "data/train.bin",
    ),
    "its link to the data": (
        "pathlib.Path('data/train.bin').unlink(); pathlib.Path('data/train.bin').write_bytes(b'0123456789' * 10)",
        "data/train.bin was removed or replaced",
    ),
}


def patch_file(case, line):
    text = (case.root / "train.py").read_text()
    path = case.home / "attack.patch"
    path.write_text(patch_of("train.py", text, text.replace("SPEED = 1.0", f"{line}\nSPEED = 0.5")))
    return path


@pytest.mark.real
@pytest.mark.parametrize("name", ATTACKS)
def test_a_patch_that_writes_what_it_may_not(calibrated, name):
    """R-A1: twice as fast, and rejected with the file's name."""
    line, words = ATTACKS[name]
    said = calibrated.say("run", "--trials", "3", "--patch", str(patch_file(calibrated, line)), "--json")
    assert said.code in (0, 1), said.out + said.err
    patched = [t for t in calibrated.trials() if t.candidate.patches]
    assert patched
    assert all(t.outcome.kind == "rejected" for t in patched), [t.outcome for t in patched]
    assert any(words in v.message for t in patched for v in t.violations), patched[0].violations
    clean = [t for t in calibrated.trials() if not t.candidate.patches]
    assert all(t.outcome.kind == "ok" for t in clean)


def test_a_patch_that_ring_one_refuses_costs_nothing(calibrated):
    """R-A1, R-A2, R-F1: named before anything runs."""
    with calibrated.as_user():
        workspace = load(calibrated.root)
        for line, words in (
            ("t = time.perf_counter", "reads a clock"),
            ("q = os; q._exit(0)", "os is passed on as a value"),
            ("getattr(sys, '_get' + 'frame')(1)", "reads the frames"),
            ("os.rename('a', 'b')", "moves or relabels files"),
        ):
            text = patch_file(calibrated, line).read_text()
            assert words in why_not(workspace, Patch("p", "p", text, "patch-file:p", numerics="bitwise"))
        new = patch_of("numpy.py", "", "x = 1\n").replace("--- a/numpy.py", "--- /dev/null")
        assert "instead of the module numpy" in why_not(
            workspace, Patch("p", "p", new, "patch-file:p", numerics="bitwise")
        )


def test_code_of_a_model_needs_a_sandbox(calibrated, monkeypatch):
    """R-A7: refused where there is none, unless infrarsi.toml says that the user takes it upon them."""
    text = patch_file(calibrated, "x = 1").read_text()
    sources = {SOURCE: True, "patch-file:a.patch": True, "claude:some-model": False, "agent:mine": False, "": False}
    assert {s: is_trusted(Patch("p", "p", text, s)) for s in sources} == sources
    monkeypatch.setattr(sandbox, "available", lambda: sandbox.Availability(False, "not permitted here"))
    with calibrated.as_user():
        off = load(calibrated.root)
        toml = (calibrated.root / "infrarsi.toml").read_text()
        calibrated.write("infrarsi.toml", toml.replace('sandbox = "off"', 'sandbox = "auto"'))
        calibrated.git("add", "infrarsi.toml")
        calibrated.git("commit", "-q", "--no-gpg-sign", "-m", "sandbox")
        auto = load(calibrated.root)
        model, person = (Patch("p", "p", text, s, numerics="bitwise") for s in ("claude:some-model", "patch-file:a"))
        assert why_not(off, model) == "" and why_not(auto, person) == ""
        reason = why_not(auto, model)
        assert "needs a sandbox" in reason and "not permitted here" in reason and 'sandbox = "off"' in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "./fast.so"),
        ("PYTHONPATH", "/evil"),
        ("HF_TOKEN", "x"),
        ("INFRARSI_PLAN", "x"),
        ("BASH_ENV", "x"),
    ],
)
def test_a_knob_that_chooses_code_is_refused_by_name(name, value):
    """R-A1: left out in silence it would look as if it had been tried."""
    with pytest.raises(UsageError, match=name):
        require_allowed_variables([Assignment("env", name, value)])
    require_allowed_variables([Assignment("env", "OMP_NUM_THREADS", "2"), Assignment("flag", name, value)])
    require_allowed_variables([Assignment("env", "LD_PRELOAD", "/usr/lib/libjemalloc.so.2")])
    assert choosing.assignments_of(()) == ()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda d: d["scope"].update(editable=["**"]), "scope.editable"),
        (lambda d: d["budget"].update(error_rate=0.4), "budget.error_rate"),
    ],
)
def test_a_lock_loosened_by_hand_is_refused_by_every_verb(calibrated, edit, why):
    """R-A8."""
    document = json.loads((calibrated.root / "infrarsi.lock").read_text())
    edit(document)
    calibrated.write("infrarsi.lock", json.dumps(document, indent=1, sort_keys=True) + "\n")
    calibrated.git("add", "infrarsi.lock")
    calibrated.git("commit", "-q", "--no-gpg-sign", "-m", "loosened")
    with calibrated.as_user(), pytest.raises(ContractError, match=r"does not say what infrarsi\.toml says") as caught:
        load(calibrated.root)
    assert why in caught.value.why
    for verb in ("run", "doctor", "apply"):
        said = calibrated.say(verb, "--json")
        assert said.code != 0 and said.result["error"]["code"] == "contract-changed", verb


def test_a_lock_whose_caps_were_raised_is_another_contract(calibrated):
    """R-A8: nothing in infrarsi.toml names the caps; what was calibrated under the old contract does not count."""
    with calibrated.as_user():
        before = load(calibrated.root)
        path = calibrated.root / "infrarsi.lock"
        document = json.loads(path.read_text())
        for cap in document["invariants"]["caps"]:
            cap["loss"] = 1.0
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        calibrated.git("add", "infrarsi.lock")
        calibrated.git("commit", "-q", "--no-gpg-sign", "-m", "caps")
        after = load(calibrated.root)
        assert after.digest != before.digest
        assert latest_calibration(after.repo, before.digest, None) is not None
        assert latest_calibration(after.repo, after.digest, None) is None
