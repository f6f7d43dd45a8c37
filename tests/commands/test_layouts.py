"""State maps on their way: from a patch file to the probe's orders, from a promotion to the next run and contract."""

import json

import pytest
from training_case import patch_of

from infrarsi.commands.bench import Shot, Window
from infrarsi.commands.choices import why_not
from infrarsi.commands.doctor import make_bench
from infrarsi.commands.workspace import load
from infrarsi.contract import intent as intents
from infrarsi.errors import ContractError
from infrarsi.propose.patchfile import read_patch_files
from infrarsi.records import Assignment
from infrarsi.trial.plan import probe_orders


def patch_file(case, header):
    text = (case.root / "train.py").read_text()
    path = case.home / "layout.patch"
    path.write_text(header + patch_of("train.py", text, text.replace("SPEED = 1.0", "SPEED = 0.5")))
    return path


def names_of(workspace):
    return [p.name for p in workspace.contract.invariants.parameters]


def test_a_map_of_unknown_parameters_is_refused_before_anything_runs(calibrated):
    """R-F1: in plain words, and the patch is not tried."""
    (patch,) = read_patch_files([patch_file(calibrated, "State-Map: qkv = no.such; dim 0\n")], "bitwise")
    with calibrated.as_user():
        workspace = load(calibrated.root)
        assert why_not(workspace, patch) == "the state map is refused: the baseline has no parameter no.such"
        known = read_patch_files(
            [patch_file(calibrated, f"State-Map: qkv = {names_of(workspace)[0]}; dim 0\n")], "bitwise"
        )
        assert why_not(workspace, known[0]) == ""


def test_the_probe_is_told_and_the_command_is_not(calibrated):
    with calibrated.as_user():
        workspace = load(calibrated.root)
        bench = make_bench(workspace, None, "r", calibrated.state / "x")
        old = workspace.contract.invariants.parameters[0]
        entry = Assignment("state_map", "fused", f"{old.name}; dim 0")
        shot = Shot(calibrated.root, workspace.head, (entry,), Window(1, 2), "search")
        plan, plain = bench.plan(shot), bench.plan(Shot(calibrated.root, workspace.head, (), Window(1, 2), "search"))
        assert (plan.argv, plan.environment) == (plain.argv, plain.environment) and plain.state_map == ()
        orders = json.loads(json.dumps(probe_orders(plan, token="t", socket=calibrated.root / "s")))
        pieces = [[old.name, list(old.shape)]]
        assert orders["state_map"] == [{"new": "fused", "dim": 0, "dtype": old.dtype, "pieces": pieces}]
        with pytest.raises(ContractError):
            bench.plan(
                Shot(
                    calibrated.root,
                    workspace.head,
                    (entry, Assignment("state_map", "b", "c; dim 0")),
                    Window(1, 2),
                    "search",
                )
            )


def test_a_new_contract_takes_the_parameters_as_they_lie_now(locked):
    """What was promoted is the baseline of a new contract, whose names are the new ones."""
    text = (locked.root / "infrarsi.toml").read_text()
    mapped = intents.with_launch(text, [Assignment("state_map", "fused", "w; dim 0"), Assignment("flag", "--accum", 4)])
    locked.commit("promoted", **{"infrarsi.toml": mapped})
    assert locked.say("init", "--force").code == 0
    kept = intents.parse((locked.root / "infrarsi.toml").read_text()).launch.assignments
    assert kept == (Assignment("flag", "--accum", 4),)
