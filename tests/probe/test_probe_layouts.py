"""Patches that fuse matrices, in real torch processes: held to the baseline's names by a map, or refused."""

import functools
import shutil
from pathlib import Path

import pytest
from probe_contract import contract_of, held_to
from probe_peer import run

from infrarsi.contract.statemap import layouts, parse

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def map_of(parts):
    return "".join(f"State-Map: attn.qkv.{k} = attn.{{{parts}}}.{k}; dim 0\n" for k in ("weight", "bias"))


TRUE = map_of("query,key,value")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("w")
    shutil.copy(HERE / "trainers" / "attention.py", folder / "train.py")

    @functools.cache
    def one(*flags, ranks=1, contract=None, text=""):
        found = layouts(parse(text), contract.invariants.parameters) if contract else ()
        launcher = TWO if ranks == 2 else []
        orders = [layout.order() for layout in found]
        done = run(folder, [*launcher, "train.py", *flags], ranks=ranks, timed=4, state_map=orders)
        assert done.code == 0, done.output
        return done

    return one


def checks(found):
    return {v.check for v in found}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fused_matrix_with_a_true_map_is_the_baseline(train, ranks):
    """R-A6: same names, shapes, weights, gradient norms, updates and shadow."""
    baseline = train(ranks=ranks)
    fused = train("--layout=fused", ranks=ranks, contract=contract_of(baseline), text=TRUE)
    assert held_to(baseline, fused) == ()
    assert fused.end["parameters"] == baseline.end["parameters"]
    assert max(s["shadow_error"] for s in fused.steps) < 1e-4


def test_maps_that_lie_and_no_map_at_all(train):
    """R-A3: keys called queries, a part left out, a part without a gradient, new names."""
    baseline = train()
    contract = contract_of(baseline)
    permuted = train("--layout=fused", contract=contract, text=map_of("key,query,value"))
    found = held_to(baseline, permuted)
    assert "update" in checks(found) and "parameters" not in checks(found)
    partial = held_to(baseline, train("--layout=fused", contract=contract, text=map_of("query,value")))
    (refusal,) = [v for v in partial if v.check == "state-map"]
    assert "attn.qkv.bias has shape (48,); the parts that the state map names make (32,)" in refusal.message
    assert "parameters" in checks(partial)
    frozen = held_to(baseline, train("--layout=fused", "--freeze=values", contract=contract, text=TRUE))
    assert "update" in checks(frozen)
    unmapped = held_to(baseline, train("--layout=fused"))
    assert checks(unmapped) >= {"parameters"} and "attn.qkv.weight" in str(unmapped)
    unfused = held_to(baseline, train(contract=contract, text=TRUE))
    assert "attn.qkv.bias, which the model does not have" in str(unfused)


def test_parts_of_different_weight_decay_cannot_be_one_matrix(train):
    """R-A3: a fused matrix lies in one parameter group."""
    baseline = train("--decay=no-keys")
    fused = train("--decay=no-keys", "--layout=fused", contract=contract_of(baseline), text=TRUE)
    assert "hyper-parameters" in checks(held_to(baseline, fused))


@pytest.mark.parametrize(("optimizer", "why"), [("whole-matrix", "WholeMatrix may look"), ("by-hand", "no optimizer")])
def test_a_rule_that_may_look_at_whole_matrices_is_refused(train, optimizer, why):
    baseline = train(f"--optimizer={optimizer}")
    fused = train(f"--optimizer={optimizer}", "--layout=fused", contract=contract_of(baseline), text=TRUE)
    (refusal,) = [v for v in held_to(baseline, fused) if v.check == "state-map"]
    assert why in refusal.message


def test_sharded_parameters_are_refused(train):
    baseline = train(ranks=2)
    fused = train("--layout=fused", "--shard=fsdp2", ranks=2, contract=contract_of(baseline), text=TRUE)
    (refusal,) = [v for v in held_to(baseline, fused) if v.check == "state-map"]
    assert "is sharded" in refusal.message
