"""Launch knobs from a script's own flags: the baseline first, the same global batch, honest classes."""

from pathlib import Path

import pytest

from infrarsi.contract.command import overlay, parse_command
from infrarsi.contract.flags import read_flags
from infrarsi.propose.allocators import find_allocators
from infrarsi.propose.knobs import propose_knobs
from infrarsi.records import Assignment, Hardware, Knob

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--accum", type=int, default=8)
parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
parser.add_argument("--compile", action="store_true")
parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=False)
parser.add_argument("--num-workers", type=int, default=0)
parser.add_argument("--pin_memory", action="store_true")
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--nproc_per_node", type=int, default=2)
args = parser.parse_args()
"""
CPU = Hardware("cpu", (), 8, 2**34, (), 0, "", "2.8", "", "3.11")
CUDA = Hardware("cpu", (), 8, 2**34, ("NVIDIA A100",), 2**36, "", "2.8", "", "3.11")


def knobs(tmp_path: Path, script: str = SCRIPT, line: str = "", hardware: Hardware = CPU, **options) -> dict[str, Knob]:
    (tmp_path / "train.py").write_text(script)
    command = parse_command(line or "torchrun --standalone --nproc_per_node=2 train.py", tmp_path)
    found = propose_knobs(
        read_flags(tmp_path, "train.py"), command, hardware, 2, libraries=options.pop("libraries", ()), **options
    )
    assert len({knob.name for knob in found}) == len(found)
    for knob in found:
        assert knob.levels[0].assignments == () and len(knob.levels) == len(knob.claims) > 1
        assert len({level.label for level in knob.levels}) == len(knob.levels)
    return {knob.name: knob for knob in found}


def values(knob: Knob) -> list[tuple[object, ...]]:
    return [tuple(item.value for item in level.assignments) for level in knob.levels[1:]]


def test_micro_batch_and_accumulation_move_together(tmp_path: Path) -> None:
    knob = knobs(tmp_path)["micro_batch"]
    assert knob.levels[0].label == "2 x 8" and values(knob) == [(4, 4), (8, 2), (16, 1)]
    assert knob.ordinal and knob.numerics == "reorder"
    assert [claims[0].memory_factor for claims in knob.claims[1:]] == [2.0, 4.0, 8.0]
    given = knobs(tmp_path, line="torchrun --nproc_per_node=2 train.py --batch_size=4 --accum 6")["micro_batch"]
    assert (given.levels[0].label == "4 x 6" and values(given) == [(8, 3), (24, 1)]) or values(given) == [(8, 3)]
    assert all(a * b == 24 for a, b in values(given))


def test_a_tight_memory_adds_smaller_micro_batches(tmp_path: Path) -> None:
    knob = knobs(tmp_path, memory_tight=True)["micro_batch"]
    assert (1, 16) in values(knob) and not knob.ordinal


@pytest.mark.parametrize("text", ["loss = ce + 0.01 * self.aux_loss", "nn.BatchNorm1d(8)", "capacity_factor = 1.25"])
def test_a_loss_over_the_micro_batch_makes_it_semantic(tmp_path: Path, text: str) -> None:
    knob = knobs(tmp_path, sources={"model.py": text})["micro_batch"]
    assert knob.numerics == "semantic" and "model.py" in knob.why


def test_an_accumulation_that_is_divided_by_the_ranks_stays_divisible(tmp_path: Path) -> None:
    sources = {"train.py": "gradient_accumulation_steps //= ddp_world_size"}
    knob = knobs(tmp_path, sources=sources)["micro_batch"]
    assert values(knob) == [(4, 4), (8, 2)]
    assert "micro_batch" not in knobs(tmp_path, SCRIPT.replace("default=8", "default=7"), sources=sources)


def test_accumulation_that_follows_from_a_global_batch(tmp_path: Path) -> None:
    script = SCRIPT.replace('"--accum"', '"--total_batch_size"')
    assert values(knobs(tmp_path, script)["micro_batch"]) == [(4,), (8,), (16,)]
    assert "micro_batch" not in knobs(tmp_path, SCRIPT.replace('"--accum"', '"--other"'))


def test_flags_that_the_script_has(tmp_path: Path) -> None:
    found = knobs(tmp_path)
    assert found["precision"].numerics == "reduced" and values(found["precision"]) == [("bfloat16",)]
    assert found["compile"].levels[1].assignments == (Assignment("flag", "--compile", True),)
    assert found["fused_optimizer"].levels[1].assignments[-1] == Assignment("flag", "--fused", True)
    assert values(found["workers"]) == [(2,), (4,), (8,)]
    assert "pin_memory" not in found and "pin_memory" in knobs(tmp_path, hardware=CUDA)
    names = {item.target for knob in found.values() for level in knob.levels for item in level.assignments}
    assert "--learning_rate" not in names and "--nproc_per_node" not in names
    on = knobs(tmp_path, line="torchrun --nproc_per_node=2 train.py --compile --fused --dtype bfloat16")
    assert on["compile"].levels[0].label == "on" and "fused_optimizer" not in on and "precision" not in on


def test_every_level_can_be_laid_over_the_command(tmp_path: Path) -> None:
    found = knobs(tmp_path)
    command = ("torchrun", "--standalone", "--nproc_per_node=2", "train.py", "--batch_size=2")
    for knob in found.values():
        for level in knob.levels:
            argv, environment = overlay(command, "train.py", "python3", level.assignments)
            assert argv and all(value != "None" for _, value in environment)


def test_threads_per_rank_from_the_cores(tmp_path: Path) -> None:
    knob = knobs(tmp_path)["omp_threads"]
    assert knob.levels[0].label == "1" and values(knob) == [("2",), ("4",)] and knob.ordinal and knob.kind == "env"
    given = knobs(tmp_path, line="OMP_NUM_THREADS=4 torchrun --nproc_per_node=2 train.py")["omp_threads"]
    assert given.levels[0].label == "4" and values(given) == [("1",), ("2",)] and not any(given.claims)


def test_allocators_only_where_installed_and_not_already_chosen(tmp_path: Path) -> None:
    assert find_allocators([tmp_path]) == {}
    assert len(knobs(tmp_path)["allocator"].levels) == 2
    (tmp_path / "libtcmalloc_minimal.so.4").touch()
    knob = knobs(tmp_path, libraries=[tmp_path])["allocator"]
    assert knob.levels[2].assignments == (Assignment("env", "LD_PRELOAD", str(tmp_path / "libtcmalloc_minimal.so.4")),)
    assert knob.numerics == "bitwise"
    assert "allocator" not in knobs(tmp_path, line="LD_PRELOAD=/x.so torchrun --nproc_per_node=2 train.py")
    cuda = knobs(tmp_path, hardware=CUDA)
    assert (
        "allocator" not in cuda and cuda["cuda_allocator"].levels[1].assignments[0].target == "PYTORCH_CUDA_ALLOC_CONF"
    )


def test_nanogpt_style_configurator_flags(tmp_path: Path) -> None:
    (tmp_path / "configurator.py").write_text(
        "import sys\nfrom ast import literal_eval\nfor arg in sys.argv[1:]:\n    globals()\n"
    )
    script = """\
gradient_accumulation_steps = 8
batch_size = 4
dtype = 'float32'
compile = False
exec(open('configurator.py').read())
"""
    found = knobs(tmp_path, script)
    assert values(found["micro_batch"])[0] == (8, 4) and values(found["precision"]) == [("bfloat16",)]
    assert values(found["compile"]) == [(True,)]
