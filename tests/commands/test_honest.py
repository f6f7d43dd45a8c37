"""Doctor's honest changes: which ones are made, what is said of those that do not run, what the envelopes keep."""

from dataclasses import replace

from infrarsi.codec import decode, digest, encode
from infrarsi.commands.honest import ROUNDING, Patience, changes, envelopes
from infrarsi.commands.state import calibration_by_digest, keep_calibration, latest_calibration
from infrarsi.contract.envelopes import SAFETY, default_caps
from infrarsi.records import (
    Assignment,
    Budget,
    Calibration,
    Contract,
    Hardware,
    Invariants,
    Knob,
    Level,
    Noise,
    Outcome,
    Scope,
    StepRecord,
    Workload,
)
from infrarsi.report.doctor import doctor_page
from infrarsi.trial.engine import Execution, Progress

CPU = Hardware("cpu", (), 2, 1, (), 0, "", "2", "", "3")
GPU = replace(CPU, accelerators=("NVIDIA H200",))
KNOB = Knob("micro_batch", "flag", (Level("8"), Level("16", (Assignment("flag", "--batch", 16),)), Level("32")))


def contract(numerics="reorder", level="exact", world=1):
    return Contract(
        goal="x", base_commit="a" * 40, scope=Scope(()), locked=(), budget=Budget(), intent_digest="",
        workload=Workload("train.py", ("python3", "train.py"), (), world, 8, 64, level, ()),
        invariants=Invariants((), (), 1, 0, numerics, default_caps(level)),
    )  # fmt: skip


def execution(loss=1.0, rows="a", kind="ok", message="", steps=6, wall=1.0):
    records = [
        StepRecord(0, k, k, k, loss / k, 1, 8, 64, f"{rows}{k:x}", "b", 1.0, 0, (1.0, 0.0), "h")
        for k in range(1, steps + 1)
    ]
    found = tuple(records if kind == "ok" else ())
    return Execution(Outcome(kind, message), None, found, (), (), (), (), wall, wall, 0.0, "")


def names(*args):
    return [c.name for c in changes(*args)]


def test_each_class_has_its_honest_changes():
    """R-A4: micro-batch split, rank and thread permutation, float64, autocast, tf32, other seeds."""
    reorder = names(contract(), (KNOB,), CPU, "reorder")
    assert reorder == ["another number of threads", "micro-batch 16", "float64"]
    assert names(contract(), (), CPU, "bitwise") == []
    assert names(contract(), (), CPU, "reduced") == ["bf16 autocast"]
    assert names(contract(), (), GPU, "reduced") == ["bf16 autocast", "tf32"]
    assert names(contract(level="sampled"), (), CPU, "reorder")[-2:] == ["data seed 1", "data seed 2"]
    assert names(contract(level="same-set"), (), CPU, "reorder")[-2:] == ["data seed 1", "data seed 2"]


def test_a_larger_micro_batch_that_changes_the_mathematics_is_no_honest_change():
    assert "micro-batch 16" not in names(contract(), (replace(KNOB, numerics="semantic"),), CPU, "reorder")


def test_the_order_over_ranks_is_changed_where_there_is_one():
    """A sum of two numbers is the same both ways; no execution is spent on it."""
    two, four = (changes(contract(world=w), (), CPU, "reorder")[0].perturb for w in (2, 4))
    assert two == ("threads:other",)
    assert four == ("threads:other", "buckets:1.0")


def made(answers, numerics="reorder", level="exact"):
    """Calibrate with prepared answers by name."""
    asked = []

    def shoot(change, on_progress):
        asked.append(change.name)
        return answers.get(change.name, execution())

    found = envelopes(contract(numerics, level), (), CPU, [execution(), execution()], shoot, lambda event: None)
    return *found, asked


def test_an_envelope_keeps_what_it_was_derived_from_and_what_cut_it():
    """R-A4: printed and stored with the calibration."""
    answers = {"float64": execution(1 + 1e-5), "bf16 autocast": execution(1.02)}
    (bitwise, reorder, reduced), notes, _ = made(answers, "reduced")
    assert bitwise.perturbations == ("repeat 1",)
    assert [(m.name, round(m.loss, 7)) for m in reorder.moved] == [
        ("repeat 1", 0.0), ("another number of threads", 0.0), ("float64", 1e-5),
    ]  # fmt: skip
    assert (round(reorder.loss, 9), reorder.limits) == (SAFETY * 1e-5, ("measured", "floor", "floor"))
    assert (reduced.loss, reduced.limits[0]) == (1e-2, "cap")
    assert "bf16 autocast goes beyond the contract's cap for reduced (loss 2.0e-02 > 1.0e-02)" in notes[0]
    calibration = Calibration(
        "", "", CPU, Noise(0, 0, 0, 0, 2, 4, 0.01, 2), (bitwise, reorder, reduced), (), 1.0, 1.0, 0, 0, (), (), None,
        (), None,
    )  # fmt: skip
    assert decode(Calibration, encode(calibration)) == calibration
    (page,) = [s for s in doctor_page(calibration).sections if s.key == "envelopes"]
    rows = [" | ".join(row) for row in page.table.rows]
    assert rows[1] == " | 0.0e+00 | 0.0e+00 | 0.0e+00 | repeat 1"
    assert "reorder | 4.0e-05 | 2.0e-04 + | 1.0e-03 + | allowed" in rows
    assert " | 1.0e-05 | 0.0e+00 | 0.0e+00 | float64" in rows
    assert any(row.startswith("reduced | 1.0e-02 ^ |") for row in rows)


def test_where_float64_does_not_run_weights_are_moved_by_one_rounding():
    failed = execution(kind="crash", message="expected Float but found Double")
    envelope, notes, asked = made({"float64": failed, ROUNDING.name: execution(1 + 1e-5)})
    assert asked == ["another number of threads", "float64", ROUNDING.name]
    assert envelope[1].moved[-1].name == ROUNDING.name
    assert notes == (
        f"perturbation float64 did not run (crash: expected Float but found Double): {ROUNDING.name} instead",
    )
    _, notes, _ = made({"float64": failed, ROUNDING.name: failed})
    assert "did not run" in notes[1]


def test_a_data_seed_that_changes_no_rows_says_nothing():
    answers = {"data seed 1": execution(1.01, rows="c")}
    (_, reorder), notes, _ = made(answers, level="sampled")
    assert "data seed 1" in reorder.perturbations
    assert "data seed 2" not in reorder.perturbations
    assert notes == ("perturbation data seed 2 read the baseline's rows: its data has a seed of its own",)


def test_a_perturbation_that_takes_for_ever_is_closed_early():
    """float64 takes 32 times as long on many GPUs; doctor's time stays in bounds."""
    seconds = [0.0]
    patience = Patience(execution(wall=10.0), clock=lambda: seconds[0])
    said = []
    for seconds[0] in (1.0, 39.0, 41.0):
        said.append(patience(Progress(3, 2, 4, (0.0, 1.0, 2.0))))
    assert said == ["continue", "continue", "stop"]


def test_a_calibration_is_named_by_its_content(tmp_path):
    """R-I1: what the ledger, a run and the sealed evidence call it is the digest that anyone can compute."""

    class Place:
        state_dir = tmp_path

    calibration = Calibration(
        "c", "", CPU, Noise(0, 0, 0, 0, 2, 4, 0.01, 2), (), (), 1, 1, 0, 0, (), (), None, (), None
    )
    named = keep_calibration(Place, calibration)
    kept = calibration_by_digest(Place, named)
    assert kept == calibration
    assert digest(kept) == named == latest_calibration(Place, "c", CPU)[0]
    assert calibration_by_digest(Place, "0" * 64) is None
