"""Every way to make an optimizer step, in real processes: what is observed, and that nothing passes unobserved."""

import shutil
from pathlib import Path

import pytest
from probe_contract import contract_of, ends_of, held_to, steps_of
from probe_peer import Run, run

from infrarsi.contract.invariants import SHADOW_LIMIT, check

pytestmark = pytest.mark.real
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TRAINER = Path(__file__).resolve().parent / "trainers" / "steps.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the trainer of many steps."""
    path = tmp_path / "w"
    path.mkdir()
    shutil.copy(TRAINER, path / "train.py")
    return path


def train(folder: Path, options: str = "", *, ranks: int = 1, timed: int = 5) -> Run:
    command = ["train.py", "--steps", str(timed + 3), *options.split()]
    done = run(folder, [*TORCHRUN, *command] if ranks > 1 else command, ranks=ranks, timed=timed)
    assert done.code == 0 and not done.of("error"), (done.of("error"), done.output)
    return done


def shadows(done: Run) -> list[float]:
    return [s["shadow_error"] for s in done.steps]


def test_ddp_and_fsdp2_keep_each_others_contract(folder: Path):
    """R-A6: sharding changes where the parameters lie; counts, loss, gradient norm, update and shadow are the same."""
    ddp, fsdp = (train(folder, f"--parallel {kind}", ranks=2) for kind in ("ddp", "fsdp2"))
    for done in (ddp, fsdp):
        assert all(end["unobserved"] == [] for end in done.of("end"))
        assert max(shadows(done)) < 1e-5
        assert len({end["parameter_hash"] for end in done.of("end")}) == 1 and len(done.end["parameter_hash"]) == 32
    assert ends_of(ddp)[0].parameters == ends_of(fsdp)[0].parameters
    assert held_to(ddp, fsdp) == () and held_to(fsdp, ddp) == ()
    # Each rank holds a part of the sketch; the whole one is their mean.
    first, second = ([s["update_sketch"] for s in fsdp.of("step", rank)] for rank in (0, 1))
    assert first != second and all(len(sketch) == 32 for sketch in first + second)


@pytest.mark.parametrize("options", ["--clip 0 --optimizer sgd --options momentum=0.9", "--no-sync --tied --accum 4"])
def test_ddp_and_fsdp2_agree_without_clipping_and_without_synchronised_micro_steps(folder: Path, options: str):
    """R-A6."""
    ddp, fsdp = (train(folder, f"--parallel {kind} {options}", ranks=2) for kind in ("ddp", "fsdp2"))
    assert held_to(ddp, fsdp) == () and held_to(fsdp, ddp) == ()


def test_a_sharded_run_that_freezes_a_block_is_refused(folder: Path):
    """R-A3, R-A5: what a rank does not hold, the other rank shows."""
    ddp = train(folder, "--parallel ddp", ranks=2)
    cheat = train(folder, "--parallel fsdp2 --optimizer cheat --cheat freeze", ranks=2)
    assert {"update", "shadow"} <= {v.check for v in held_to(ddp, cheat)}


# The rules themselves are tested without processes, in test_probe_shadow.py.
HONEST = (
    "--options foreach=True --lr 1e-5",
    "--optimizer groups --options fused=True",
    "--optimizer adam --options lr=torch.tensor(0.01)",
    "--optimizer sgd --options momentum=0.9,nesterov=True,weight_decay=0.1",
    "--optimizer sgd --sparse --clip 0",
    "--scaler --tied --idle --frozen",
    "--scaler --clip 0 --options fused=True",
    "--resume",
)


@pytest.mark.parametrize("options", HONEST)
def test_honest_steps_are_the_shadows(folder: Path, options: str):
    """R-A6: torch's own optimizers, however they are computed, are far below the limit."""
    done = train(folder, options, timed=4)
    assert len(shadows(done)) == 5 and max(shadows(done)) < SHADOW_LIMIT / 100
    assert done.end["unobserved"] == [] and all(s["grad_norm"] > 0 and s["update_sketch"] for s in done.steps)
    assert check(contract_of(done), None, steps_of(done), ends_of(done), numerics="reorder") == ()


CHEATS = {"bf16": 0.05, "lr": 0.9, "skip": 0.9, "freeze": 0.3}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_a_subclass_hides_is_found(folder: Path, cheat: str):
    """R-A3: bfloat16 weights under a float32 name, another learning rate, skipped steps, frozen parameters."""
    done = train(folder, f"--optimizer cheat --cheat {cheat}")
    assert max(shadows(done)) > CHEATS[cheat]
    assert done.of("hyper")[0]["groups"][0]["optimizer"] == "AdamW"
    found = check(contract_of(done), None, steps_of(done), ends_of(done), numerics="reorder")
    assert [v.check for v in found] == ["shadow"] and "did not move as AdamW" in found[0].message
    excused = contract_of(done, unobserved=("shadow",))
    assert check(excused, None, steps_of(done), ends_of(done), numerics="reorder") == ()


def test_a_rule_of_its_own_is_unobserved(folder: Path):
    """What the shadow cannot follow is said, and refused where the baseline showed it."""
    baseline, done = train(folder), train(folder, "--optimizer lion")
    assert done.end["unobserved"] == ["shadow"] and shadows(done) == [None] * 6
    assert all(s["update_sketch"] and s["grad_norm"] for s in done.steps)
    assert "unobserved" in {v.check for v in held_to(baseline, done)}


@pytest.mark.parametrize(("options", "ranks"), [("hand", 1), ("foreign --clip 0 --accum 3 --rows 12", 1), ("hand", 2)])
def test_updates_by_hand_close_steps(folder: Path, options: str, ranks: int):
    """Loops without an optimizer of torch: found through the parameters that change."""
    parallel = "--parallel fsdp2" if ranks > 1 else ""
    done = train(folder, f"--optimizer {options} {parallel}", ranks=ranks)
    accum, rows = (3, 12) if "foreign" in options else (2, 8 // ranks)
    assert [s["step"] for s in done.of("step", 0)] == list(range(1, 7))
    assert {(s["rows"], s["backward_calls"], s["clip_calls"]) for s in done.steps} == {(rows, accum, accum == 2)}
    assert all(s["grad_norm"] > 0 and len(s["update_sketch"]) == 32 for s in done.steps)
    assert done.end["unobserved"] == ["hyper_parameters", "shadow"] and done.end["optimizer_steps"] == 6
    # The same rule by torch's own class moves the same parameters in the same way.
    own = train(folder, f"--optimizer sgd {options.partition(' ')[2]} {parallel}", ranks=ranks)
    for a, b in zip(done.of("step", 0), own.of("step", 0), strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
        assert a["update_sketch"] == pytest.approx(b["update_sketch"], abs=1e-6)
    assert {v.check for v in held_to(own, done)} >= {"unobserved"}


def test_updates_by_hand_are_seen_when_the_program_ends(folder: Path):
    short = run(folder, ["train.py", "--steps", "3", "--optimizer", "hand"], timed=9)
    assert [m["steps"] for m in short.of("exit")] == [3] and len(short.steps) == 3


@pytest.mark.parametrize(
    ("options", "calls", "backward"),
    [
        ("alternating", 1, 2),
        ("together", 2, 2),
        ("adamw --twice", 1, 4),
        ("in-backward --accum 1", 11, 1),
        ("zero --parallel ddp", 1, 2),
    ],
)
def test_several_optimizers_and_several_backward_calls(folder: Path, options: str, calls: int, backward: int):
    ranks = 2 if "zero" in options else 1
    done = train(folder, f"--optimizer {options}", ranks=ranks)
    assert [s["step"] for s in done.of("step", 0)] == list(range(1, 7))
    assert {(s["rows"], s["backward_calls"]) for s in done.steps} == {(8 // ranks, backward)}
    assert done.end["optimizer_steps"] == 6 * calls and max(shadows(done)) < 1e-5
    assert done.end["unobserved"] == []


def test_a_norm_that_is_computed_apart_from_the_clipping_is_that_before_it(folder: Path):
    assert held_to(train(folder), train(folder, "--clip-in-two")) == ()


def test_closures_are_compared_from_their_second_step_on(folder: Path):
    """Before the first one no weights were seen: gradients and state come into being within it."""
    done = train(folder, "--closure --clip 0")
    first, *others = shadows(done)
    assert first is None and max(others) < 1e-5 and done.end["unobserved"] == []
    assert {(s["rows"], s["backward_calls"]) for s in done.steps} == {(8, 1)}
    assert held_to(train(folder, "--clip 0 --accum 1"), done) == ()


def test_tied_weights_are_one_parameter(folder: Path):
    tied = train(folder, "--tied")
    names = [name for name, *_ in tied.of("model")[0]["parameters"]]
    assert "emb.weight" in names and "head.weight" not in names and len(names) == len(set(names))
    assert held_to(tied, train(folder, "--tied --accum 1")) == ()


def test_compiled_blocks_show_the_same(folder: Path):
    """R-A6: torch.compile of the parts, in place."""
    plain, compiled = train(folder), train(folder, "--compile blocks")
    assert held_to(plain, compiled) == () and compiled.end["hooks_intact"]


def test_values_of_closed_steps_survive_an_error(folder: Path):
    """They are worked out some steps later: an error must not lose them."""
    source, line = (folder / "train.py").read_text(), "    parts = batch(step)\n"
    (folder / "train.py").write_text(source.replace(line, "    assert step < 3\n" + line))
    failed = run(folder, ["train.py"], timed=9)
    assert failed.code == 1 and [s["step"] for s in failed.steps] == [1, 2, 3]
    assert [m["t"] for m in failed.peer.messages if m["t"] in ("tick", "error")] == ["tick"] * 3 + ["error"]
