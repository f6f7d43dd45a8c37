"""The probe in real torch processes: it sees what happened, and changes nothing."""

import json
import sys
from pathlib import Path

import pytest
from probe_peer import INJECT, run

from infrarsi.codec import decode
from infrarsi.records import RankEnd

pytestmark = pytest.mark.real
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]


def modulo(steps, name):
    return [sum(int(s[name], 16) for s in steps if s["step"] == k) % 2**64 for k in sorted({s["step"] for s in steps})]


def test_values_are_those_computed_by_hand_and_the_weights_are_the_same_without_the_probe(folder: Path, tmp_path: Path):
    """R-A3: loss and gradient norm per step; the probe is invisible to the numbers."""
    probed, alone = tmp_path / "probed.json", tmp_path / "alone.json"
    result = run(folder, ["train.py", "--report", str(probed), "--steps", "9"], timed=6)
    run(folder, ["train.py", "--report", str(alone), "--steps", "7"], probed=False)
    hand = json.loads(alone.read_text())
    assert result.code == 0
    assert [s["step"] for s in result.steps] == list(range(1, 8))
    for step, (loss, norm, *_) in zip(result.steps, hand, strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-6)
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-6)
        assert (step["backward_calls"], step["clip_calls"], step["rows"], step["tokens"]) == (2, 1, 8, 64)
    # The rank ends inside its seventh step, so the report holds six.
    assert [row[2] for row in json.loads(probed.read_text())] == [row[2] for row in hand[:6]]
    ticks = result.of("tick")
    assert [t["step"] for t in ticks] == list(range(1, 8))
    assert [t["step"] for t in ticks if t.get("edge")] == [1, 7]
    assert [m["t"] for m in result.peer.messages if m["t"] in ("hello", "model", "done", "end")] == [
        "hello", "model", "done", "end",
    ]  # fmt: skip
    fields = {key: value for key, value in result.end.items() if key != "t"}
    end = decode(RankEnd, fields)
    assert end.hooks_intact and end.unobserved == () and end.optimizer_steps == 7
    assert end.parameters[0].name == "block.lin.bias" and end.peak_allocated_bytes > 50 * 2**20
    terms = dict(end.memory_terms)
    assert terms["parameters"] == terms["gradients"] > 0
    assert abs(sum(terms.values()) / end.peak_allocated_bytes - 1) < 0.05


def test_micro_batches_and_ranks_add_up_to_the_same_step(folder: Path):
    """R-A6: gradient accumulation, DDP and the torchrun agent change neither rows nor gradient norms."""
    split = run(folder, ["train.py", "--rows", "2", "--accum", "4"])
    ranks = run(folder, [*TORCHRUN, "--nproc_per_node=2", "train.py", "--rows", "8", "--accum", "1"], ranks=2)
    assert split.code == ranks.code == 0, ranks.output
    assert sorted((m["rank"], m["world"]) for m in ranks.of("hello")) == [(0, 2), (1, 2)]
    # Both ranks of this trainer draw the same rows.
    assert modulo(ranks.steps, "row_hash") == [2 * h % 2**64 for h in modulo(split.steps, "row_hash")]
    assert modulo(ranks.steps, "token_hash") == [2 * h % 2**64 for h in modulo(split.steps, "token_hash")]
    first, second = split.steps, [s for s in ranks.steps if s["rank"] == 0]
    for a, b in zip(first, second, strict=True):
        assert (a["unique_rows"], b["unique_rows"]) == (8, 8)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["update_sketch"] == pytest.approx(b["update_sketch"], abs=1e-3)
    assert len({e["parameter_hash"] for e in ranks.of("end")}) == 1


def test_learning_rate_clipping_and_closures(folder: Path):
    """R-A3: a changed learning rate shows in the digest; without clipping the norm is read at the optimizer."""
    result = run(folder, ["train.py", "--lr-change-at", "2", "--clip", "0", "--keyword", "--checkpoint"])
    digests = [s["hyper_digest"] for s in result.steps]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert [m["step"] for m in result.of("hyper")] == [1, 3]
    assert all(s["clip_calls"] == 0 and s["grad_norm"] > 0 for s in result.steps)
    assert {s["rows"] for s in result.steps} == {8}
    closure = run(folder, ["train.py", "--optimizer", "lbfgs"])
    assert closure.code == 0
    assert [(s["backward_calls"], s["rows"]) for s in closure.steps] == [(2, 16)] * 4


@pytest.mark.parametrize("options", [["--scaler"], ["--optimizer", "two"], ["--loader", "2"]])
def test_scaler_several_optimizers_and_loader_workers(folder: Path, options: list[str]):
    result = run(folder, ["train.py", *options])
    assert result.code == 0
    assert len(result.of("hello")) == 1 and not result.of("error")
    assert [(s["backward_calls"], s["rows"], s["clip_calls"]) for s in result.steps] == [(2, 8, 1)] * 4
    assert 3.0 < result.steps[0]["loss"] < 4.0
    optimizers = 2 if "two" in options else 1
    assert result.end["optimizer_steps"] == 4 * optimizers
    assert {g["optimizer"] for g in result.of("hyper")[0]["groups"]} == (
        {"AdamW", "SGD"} if optimizers == 2 else {"AdamW"}
    )


@pytest.mark.parametrize("kind", ["module", "inplace"])
def test_a_compiled_model_keeps_its_one_graph(folder: Path, tmp_path: Path, kind: str):
    """Compiled with fullgraph, so that a graph break fails; the number of graph nodes is that without the probe."""
    probed, alone = tmp_path / "probed.json", tmp_path / "alone.json"
    result = run(folder, ["train.py", "--compile", kind, "--report", str(probed)])
    assert result.code == 0, result.output
    assert [s["rows"] for s in result.steps] == [8] * 4
    assert result.of("model")[0]["parameters"][0][0] == "block.lin.bias"
    if kind == "module":
        run(folder, ["train.py", "--compile", kind, "--report", str(alone), "--steps", "3"], probed=False)
        assert json.loads(probed.read_text()) == json.loads(alone.read_text())


def test_profile_attributes_delays_to_their_phases(folder: Path):
    delays = ["--sleep-data", "0.08", "--sleep-forward", "0.05", "--steps", "8"]
    result = run(folder, ["train.py", *delays], mode="profile", warmup=3)
    phases = [dict(s["phases"]) for s in result.steps if s["in_window"]]
    clocks = [t["clock"] for t in result.of("tick")]
    for index, seconds in enumerate(phases):
        assert seconds["data"] == pytest.approx(0.08, rel=0.1)
        assert seconds["forward"] == pytest.approx(0.10, rel=0.1)
        assert sum(seconds.values()) == pytest.approx(clocks[index + 3] - clocks[index + 2], rel=0.05)
    end = result.end
    assert end["data_functions"] == ["train.py::batch"]
    assert end["flops_per_step"] == pytest.approx(3 * 2 * 64 * (16 * 16 + 16 * 32), rel=0.01)
    source = (folder / "train.py").read_text().splitlines()
    hottest = [source[int(place.rpartition(":")[2]) - 1].strip() for place, _ in end["hot_lines"][:2]]
    assert end["hot_lines"][0][1] == pytest.approx(0.1, rel=0.2)
    assert hottest == ["time.sleep(args.sleep_forward)", "time.sleep(args.sleep_data)"]


def test_profile_charges_waiting_for_the_other_rank_to_communication(folder: Path):
    command = [*TORCHRUN, "--nproc_per_node=2", "train.py", "--sleep-late-rank", "0.15", "--steps", "8"]
    result = run(folder, command, ranks=2, mode="profile", warmup=3)
    waiting = [dict(s["phases"])["communication"] for s in result.steps if s["in_window"] and s["rank"] == 0]
    assert sum(waiting) / len(waiting) == pytest.approx(0.15, rel=0.1)


def test_observe_names_files_and_functions(folder: Path):
    (folder / "rows.bin").write_bytes(bytes(64))
    source = (folder / "train.py").read_text().replace("torch.manual_seed(0)", 'open("rows.bin").close()', 1)
    (folder / "train.py").write_text(source)
    end = run(folder, ["train.py", "--loader", "0"], mode="observe", warmup=2).end
    assert end["opened_files"] == [str(folder / "rows.bin")]
    assert end["data_functions"] == ["train.py::Rows"]


def test_memory_budget_gives_a_clean_out_of_memory_error(folder: Path):
    """R-C1: the limit of a rank on CPU."""
    result = run(folder, ["train.py", "--big", "900"], memory_bytes=800 * 2**20)
    (error,) = result.of("error")
    assert result.code == 1 and "Traceback" in result.output
    assert error["oom"] is True and error["kind"] == "RuntimeError" and "allocate memory" in error["message"]
    assert not result.of("exit")
    enough = run(folder, ["train.py", "--big", "100"], memory_bytes=1500 * 2**20)
    assert enough.code == 0 and enough.of("end")


def test_short_runs_stops_and_uncaught_errors(folder: Path):
    """R-C1: a program that ends by itself, the parent's stop, and an error with its phase."""
    short = run(folder, ["train.py", "--steps", "2"])
    assert [m["steps"] for m in short.of("exit")] == [2] and len(short.steps) == 2 and not short.of("end")
    stopped = run(folder, ["train.py", "--steps", "50"], timed=40, stop_after=3)
    assert [m["step"] for m in stopped.of("done")] == [3] and stopped.code == 0
    source = (folder / "train.py").read_text()
    (folder / "train.py").write_text(
        source.replace("    total = 0.0\n", "    total = 0.0\n    assert step < 2, 'planted'\n")
    )
    failed = run(folder, ["train.py"])
    (error,) = failed.of("error")
    assert (error["kind"], error["message"], error["oom"], error["phase"]) == (
        "AssertionError",
        "planted",
        False,
        "other",
    )
    (folder / "train.py").write_text("import no_such_module\n")
    missing = run(folder, ["train.py"])
    assert [m["t"] for m in missing.peer.messages] == ["hello", "error"]
    assert missing.of("error")[0]["phase"] == "startup"


def test_perturbations_are_honest(folder: Path):
    """R-A4: what the envelopes are calibrated from."""
    plain, double, half = (
        run(folder, ["train.py", "--rows", "8"], perturb=p).steps
        for p in ([], ["float64"], ["autocast_bf16", "threads:1"])
    )
    for a, b, c in zip(plain, double, half, strict=True):
        assert 0 < abs(a["loss"] - b["loss"]) < 1e-5
        assert 1e-7 < abs(a["loss"] - c["loss"]) < 3e-2
        assert a["row_hash"] == b["row_hash"] == c["row_hash"]
    for names in (["rounding:1"], ["threads:other", "buckets:1", "tf32"]):
        steps = run(folder, ["train.py", "--rows", "8"], perturb=names).steps
        assert [s["row_hash"] for s in steps] == [s["row_hash"] for s in plain]
        off = max(abs(a["loss"] - b["loss"]) / a["loss"] for a, b in zip(plain, steps, strict=True))
        assert off < 1e-5 and (off > 0 or names != ["rounding:1"])
    seeded = run(folder, ["train.py", "--rows", "8"], perturb=["seed:7"]).steps
    assert abs(seeded[0]["loss"] - plain[0]["loss"]) > 1e-4
    assert seeded[0]["row_hash"] == plain[0]["row_hash"]  # this trainer seeds its rows by itself


def test_the_environments_own_sitecustomize_still_runs(folder: Path, tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.stderr.write('own one\\n')\n")
    (folder / "other.py").write_text("import sitecustomize\nprint(sitecustomize.__file__)\n")
    path = {"PYTHONPATH": str(tmp_path / "own")}
    result = run(folder, ["other.py"], environment=path)
    assert "own one" in result.output and str(tmp_path / "own" / "sitecustomize.py") in result.output
    assert result.peer.messages == []
    assert "own one" in run(folder, ["train.py"], environment=path).output


def test_modules_from_the_users_tree_are_reported(folder: Path, tmp_path: Path):
    """R-A10: an editable install would import the user's tree."""
    user = tmp_path / "user"
    user.mkdir()
    (user / "helpers_of_mine.py").touch()
    (folder / "train.py").write_text("import helpers_of_mine\n" + (folder / "train.py").read_text())
    result = run(folder, ["train.py"], original_root=user, environment={"PYTHONPATH": str(user)})
    assert [item.split()[0] for item in result.end["modules_outside"]] == ["helpers_of_mine"]


def test_tampering_shows(folder: Path):
    source = (folder / "train.py").read_text()
    patch = "plain = torch.Tensor.backward\ntorch.Tensor.backward = lambda self: plain(self)\ntorch.manual_seed(0)"
    (folder / "train.py").write_text(source.replace("torch.manual_seed(0)", patch, 1))
    assert run(folder, ["train.py"]).end["hooks_intact"] is False


@pytest.mark.timing
def test_own_time_is_below_one_percent_of_a_200_ms_step(folder: Path):
    result = run(folder, ["train.py", "--steps", "40"], timed=30)
    assert result.end["overhead_seconds"] / 30 < 0.002


def test_other_processes_start_as_fast_as_before():
    """The injected file imports nothing heavy where there is no plan."""
    import subprocess

    code = (
        "import sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('json', 'socket', '_infrarsi_probe')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(INJECT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
