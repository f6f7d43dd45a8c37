"""R-A6: of 1,000 honest repeats at most 5 are refused, by the real calibration and the real checks.

Twelve repeats are real processes of the fake trainer under the real engine. The other ones take the records of the
first and move its loss, gradient norm and update as rounding moves them, or (at level `sampled`) as other rows do.

Rounding, as seen on real trainings (tests/commands/honest_case.py): one computation is off the exact one (float64) by
an error of its own, which grows over the steps and differs from step to step. Another honest computation shares part
of that error, up to nearly all of it (another number of threads), and it may be half as large again (seen: a tenth).
"""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from infrarsi.contract.envelopes import calibrate, default_caps, trace
from infrarsi.contract.invariants import check
from infrarsi.records import Budget, Calibration, Contract, Hardware, Invariants, Noise, Scope, Workload
from infrarsi.trial.execute import run_trial

RANKS, STEPS = 2, 14
# A GPT of 60,000 parameters over 20 steps: loss, gradient norm, update (relative), baseline against float64.
MEASURED = np.array([1.5e-7, 4.5e-7, 4.6e-5])
SCATTER = np.array([0.02, 0.15, 0.05])  # of one step over other rows


@pytest.fixture
def template(place):
    return executed(place)


def executed(place):
    """One real process: two ranks, started and judged as a trial is."""
    plan = place.plan("--step-ms=2", "--accum=2", ranks=RANKS, warmup_steps=2, timed_steps=STEPS - 2)
    run = run_trial(plan, place.engine())
    assert run.outcome.kind == "ok"
    return run


def contract_of(run, level):
    merged, end = trace(run.steps, RANKS), run.ends[0]
    invariants = Invariants(
        parameters=end.parameters, hyper_parameters=end.hyper_parameters, optimizer_steps=1, clips_per_step=1,
        numerics="reorder", caps=default_caps(level), unobserved=end.unobserved,
    )  # fmt: skip
    return Contract(
        goal="x", base_commit="a" * 40, scope=Scope(("*.py",)), locked=(), invariants=invariants, budget=Budget(),
        workload=Workload("train.py", ("python3", "train.py"), (), RANKS, merged[0].rows, merged[0].tokens, level, ()),
        intent_digest="",
    )  # fmt: skip


def calibration_of(contract, repeats, changes):
    """Calibrate as doctor does."""
    level = contract.workload.data_level
    traces = [trace(steps, RANKS) for steps in repeats]
    others = {name: trace(steps, RANKS) for name, steps in changes.items()}
    found = tuple(calibrate(c.numerics, traces, others, c, data_level=level) for c in contract.invariants.caps[:2])
    hardware, noise = Hardware("cpu", (), 2, 1, (), 0, "", "2", "", "3"), Noise(0, 0, 0, 0, 2, STEPS - 2, 0.01, 2)
    return Calibration("", "", hardware, noise, found, traces[0], 1.0, 1.0, 1, 1, (), (), None, (), None)


def moved(run, factors, sketch, rows=None):
    """The run's records with loss and norm times `factors` (steps, 2), and a sketch moved by `sketch` (steps, 3)."""
    result = []
    for record in run.steps:
        k = record.step - 1
        length = float(np.linalg.norm(record.update_sketch))
        update = tuple(float(v) for v in np.array(record.update_sketch) + length * sketch[k])
        new = replace(
            record, loss=record.loss * factors[k, 0], grad_norm=record.grad_norm * factors[k, 1], update_sketch=update
        )
        if rows is not None:
            new = replace(new, row_hash=f"{rows.getrandbits(64):016x}", token_hash=f"{rows.getrandbits(64):016x}")
        result.append(new)
    return result


class Rounding:
    """The baseline's own error, and those of other honest computations."""

    def __init__(self, run, rng, scale):
        self.run, self.rng, self.scale = run, rng, scale
        self.own = self.error()

    def error(self):
        growth = np.exp(np.linspace(-1, 0, STEPS))[:, None]
        scalars = self.rng.normal(size=(STEPS, 2)) * MEASURED[:2]
        sketch = self.rng.normal(size=(STEPS, 3)) / np.sqrt(3) * MEASURED[2]
        return np.hstack([scalars, sketch]) * growth * self.scale

    def change(self, shared, size=1.0):
        """Another computation, whose error shares `shared` of the baseline's variance; 0.0 and size 0: float64."""
        return shared * self.own + np.sqrt(1 - shared**2) * size * self.error()

    def records(self, error):
        return moved(self.run, 1 + error[:, :2], error[:, 2:])


@pytest.mark.parametrize("scale", [1.0, 10.0, 60.0], ids=["as measured", "tenfold", "beyond the floors"])
def test_1000_honest_computations_of_the_same_rows(template, scale):
    """R-A6: at most 5 of 1,000, also where nothing but the calibration allows what rounding moves."""
    rng = np.random.default_rng(int(scale))
    contract = contract_of(template, "exact")
    refused = 0
    for _ in range(20):
        world = Rounding(template, rng, scale)
        baseline = world.records(world.own)
        changes = {
            "another number of threads": world.records(world.change(rng.uniform(0.9, 0.999))),
            "micro-batch": world.records(world.change(rng.uniform(0.5, 0.99))),
            "float64": world.records(world.change(0.0, 0.0)),
        }
        calibration = calibration_of(contract, [baseline, baseline], changes)
        for _ in range(50):
            steps = world.records(world.change(rng.uniform(0, 1), rng.uniform(0.5, 1.5)))
            refused += bool(check(contract, calibration, steps, template.ends, numerics="reorder"))
    assert refused <= 5


def test_1000_honest_repeats_over_other_rows(template):
    """R-A4, R-A6: a random sampler; the window means of two more seeds say how far the next one lies."""
    rng, rows = np.random.default_rng(1), random.Random(1)
    contract = contract_of(template, "sampled")

    def sample():
        scalars = 1 + rng.normal(size=(STEPS, 2)) * SCATTER[:2]
        length = 1 + rng.normal(size=(STEPS, 1)) * SCATTER[2]
        sketch = np.array([r.update_sketch for r in template.steps[::RANKS]])
        sketch = sketch / np.linalg.norm(sketch, axis=1, keepdims=True) * (length - 1)
        return moved(template, scalars, sketch, rows)

    refused = 0
    for _ in range(40):
        baseline = sample()
        changes = {f"data seed {n}": sample() for n in (1, 2)}
        calibration = calibration_of(contract, [baseline, baseline], changes)
        for _ in range(25):
            refused += bool(check(contract, calibration, sample(), template.ends, numerics="reorder"))
    assert refused <= 5


def test_honest_repeats_in_processes_of_their_own(place, template):
    """R-A6: nothing but a repeat is allowed no deviation at all, and shows none."""
    contract = contract_of(template, "exact")
    calibration = calibration_of(contract, [template.steps, executed(place).steps], {})
    for numerics in itertools.islice(itertools.cycle(("bitwise", "reorder")), 10):
        run = executed(place)
        assert not run.violations
        assert check(contract, calibration, run.steps, run.ends, numerics=numerics) == ()
