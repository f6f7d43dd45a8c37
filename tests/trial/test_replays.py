"""Replays of real training: another process computes the same gradients from what a check step wrote down."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infrarsi.contract.replayed import gradients, mathematics
from infrarsi.contract.statemap import Layout
from infrarsi.trial.comparing import Comparison, compare_files
from infrarsi.trial.execute import run_trial
from infrarsi.trial.local import LocalEngine
from infrarsi.trial.plan import Deadlines, Section

pytestmark = pytest.mark.real
TRAINER = Path(__file__).parent / "trainers" / "replayed.py"
ATTENTION = Path(__file__).parents[1] / "probe" / "trainers" / "attention.py"
FLOAT64 = ("float64",)


class Bench:
    """Runs the trainer, records a check step, replays it."""

    def __init__(self, place, ranks=1, trainer=TRAINER):
        self.place, self.ranks = place, ranks
        shutil.copy(trainer, place.worktree / "train.py")

    def run(self, *flags, **changes):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.ranks}"]
        argv = (sys.executable, *(launcher if self.ranks > 1 else []), "train.py", *flags)
        plan = self.place.plan(ranks=self.ranks, deadlines=Deadlines(120.0, 60.0, 240.0), timed_steps=40)
        execution = run_trial(replace(plan, argv=argv, **changes), LocalEngine())
        assert execution.outcome.kind == "ok" and not execution.violations, (execution.violations, execution.log_tail)
        return execution

    def record(self, *flags, **changes):
        dump = self.place.worktree.parent / "dump"
        shutil.rmtree(dump, ignore_errors=True)
        execution = self.run(*flags, dump=dump, **changes)
        assert execution.checked is not None
        folder = dump / str(execution.checked)
        return execution, Section(folder / "weights.pt", folder)

    def replay(self, name, section, *flags, perturb=FLOAT64, autocast=False, **changes):
        out = self.place.worktree.parent / name
        sections = (replace(section, autocast=autocast),)
        execution = self.run(
            *flags,
            mode="replay",
            warmup_steps=0,
            timed_steps=1,
            sections=sections,
            out=out,
            perturb=perturb,
            **changes,
        )
        return execution, out / "gradients.0.pt"

    def compare(self, candidate, reference, *others):
        scratch = self.place.worktree.parent
        (compared,) = compare_files(sys.executable, [Comparison(candidate, reference, others)], scratch)
        assert not compared.unlike
        return compared


def test_loss_outside_the_module_and_rows_of_a_random_sampler(place):
    """The candidate's rows, which the baseline would never draw, and targets that no hook is given."""
    bench = Bench(place)
    trial, section = bench.record("--rows=8", "--accum=1")  # another micro-batch: other rows
    exact, wanted = bench.replay("b64", section)
    plain, noisy = bench.replay("b32", section, perturb=())
    _, mine = bench.replay("c64", section, "--rows=8", "--accum=1")
    step = next(s for s in trial.steps if s.check)
    assert [s.row_hash for s in exact.steps] == [s.row_hash for s in plain.steps] == [step.row_hash]
    assert exact.steps[0].loss == pytest.approx(step.loss, rel=1e-6)
    same = mathematics(bench.compare(mine, wanted).groups, step.step, "reorder")
    assert same.held and same.value < 1e-9
    compared = bench.compare(section.rows / "gradients.pt", wanted, noisy)
    assert gradients(compared.groups, step.step, "reorder").held
    (head,) = [g for g in compared.groups if g.name == "head.weight"]
    assert 1e-9 < head.distance / head.norm < 1e-5, "float32 differs from float64, and not by more than it must"


def test_the_check_step_is_left_out_of_the_time_and_hidden_in_the_window(place):
    """R-A9: no flag of the rank says which step it is; the parent ordered it, and nobody else."""
    trial, _ = Bench(place).record()
    checked = [s for s in trial.steps if s.check]
    assert [s.step for s in checked] == [trial.checked] and checked[0].in_window
    assert trial.measurement is not None and trial.measurement.steps == len([s for s in trial.steps if s.in_window]) - 1


def test_dropout_is_off_in_both(place):
    """Random masks would make every gradient another one; the record says that there were some."""
    bench = Bench(place)
    _, section = bench.record("--dropout=0.2")
    _, wanted = bench.replay("b64", section, "--dropout=0.2")
    _, mine = bench.replay("c64", section, "--dropout=0.2", "--rows=8", "--accum=1")
    assert mathematics(bench.compare(mine, wanted).groups, 1, "reorder").value < 1e-9
    assert bench.compare(section.rows / "gradients.pt", wanted).dropout


def fused_as(*parts):
    """The state map of a matrix and a bias that hold these parts in this order."""
    shapes = {"weight": (16, 16), "bias": (16,)}
    return tuple(
        Layout(f"attn.qkv.{kind}", 0, "float32", tuple((f"attn.{part}.{kind}", shape) for part in parts))
        for kind, shape in shapes.items()
    )


def test_a_fused_matrix_is_replayed_under_the_old_names(place):
    """R-A5, R-A6: weights go from the fused code to the baseline's and back; a map that lies gives itself away."""
    bench, true = Bench(place, trainer=ATTENTION), fused_as("query", "key", "value")
    trial, section = bench.record("--layout=fused", state_map=true)
    exact, wanted = bench.replay("b64", section)
    _, noisy = bench.replay("b32", section, perturb=())
    step = next(s for s in trial.steps if s.check)
    assert exact.steps[0].loss == pytest.approx(step.loss, rel=1e-6), "the baseline takes the fused code's weights"
    _, mine = bench.replay("c64", section, "--layout=fused", state_map=true)
    assert mathematics(bench.compare(mine, wanted).groups, 1, "reorder").value < 1e-9
    compared = bench.compare(section.rows / "gradients.pt", wanted, noisy)
    assert gradients(compared.groups, 1, "reorder").held
    _, swapped = bench.replay("s64", section, "--layout=fused", state_map=fused_as("key", "query", "value"))
    assert mathematics(bench.compare(swapped, wanted).groups, 1, "reorder").value > 0.01


@pytest.mark.parametrize(("drift", "least"), [("detached", 1e-3), ("lowered", 1e-4), ("fewer", 1e-2)])
def test_silent_drifts(place, drift, least):
    """R-A5: the loss of a short training moves by less than the usual 1 %; the gradients give them away."""
    bench = Bench(place)
    honest, section = bench.record("--rows=8", "--accum=1")
    drifted = bench.run("--rows=8", "--accum=1", f"--drift={drift}")
    _, wanted = bench.replay("b64", section)
    _, mine = bench.replay("c64", section, f"--drift={drift}")
    losses = [[s.loss for s in e.steps] for e in (honest, drifted)]
    apart = abs(sum(losses[1]) / sum(losses[0]) - 1)
    figure = mathematics(bench.compare(mine, wanted).groups, 1, "reorder")
    print(f"\n{drift}: mean loss {apart:.1e} off, gradients {figure.value:.1e} off in {figure.where}")
    assert not figure.held and figure.value > least
    assert apart < 0.01


def test_ddp_against_fsdp2(place):
    """What one wraps and the other shards has the same names and the same gradients."""
    bench = Bench(place, ranks=2)
    _, section = bench.record("--wrap=ddp")
    _, wanted = bench.replay("b64", section, "--wrap=ddp")
    _, mine = bench.replay("c64", section, "--wrap=fsdp2")
    assert mathematics(bench.compare(mine, wanted).groups, 1, "reorder").value < 1e-9
