"""infrarsi.lock: its bytes, its identity, and what it says when it is not what it was."""

import dataclasses
import json

import pytest

from infrarsi.contract import intent as intents
from infrarsi.contract import lock
from infrarsi.contract.envelopes import DEFAULT_CAPS
from infrarsi.errors import ContractError
from infrarsi.records import Budget, Contract, Digest, HyperParameters, Invariants, Parameter, Scope, Workload

TOML = (
    '[contract]\ngoal = "x"\n[workload]\nentry = "a.py"\ncommand = ["python", "a.py"]\ndata = ["data"]\n'
    '[scope]\neditable = ["*.py"]\n[budget]\nhours = 2.5\nmemory_gb = 1\n'
)


def contract():
    intent = intents.parse(TOML)
    return Contract(
        goal="x",
        base_commit="a" * 40,
        workload=Workload("a.py", ("python", "a.py"), (), 1, 8, 512, "exact", (Digest("data/t.bin", "0" * 64, 3),)),
        scope=Scope(("*.py",)),
        locked=(),
        invariants=Invariants(
            parameters=(Parameter("w", (2, 3), "float32"),),
            hyper_parameters=(
                HyperParameters(1, "AdamW", 0, (("betas", "(0.9, 0.95)"), ("fused", False), ("lr", 1.0))),
            ),
            optimizer_steps=1,
            clips_per_step=1,
            numerics="reorder",
            caps=DEFAULT_CAPS,
        ),
        budget=Budget(seconds=9000.0, memory_bytes=2**30),
        intent_digest=intents.digest_of(intent),
    )


def test_a_lock_reads_back_with_the_same_digest():
    text = lock.render(contract())
    assert lock.parse(text) == contract()
    assert lock.contract_digest(lock.parse(text)) == lock.contract_digest(contract())
    assert text == lock.render(lock.parse(text))
    assert text.endswith("}\n")


def test_any_change_is_another_contract():
    """R-A8."""
    loosened = dataclasses.replace(contract(), budget=Budget(error_rate=0.2))
    assert lock.contract_digest(loosened) != lock.contract_digest(contract())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: "<<<<<<< HEAD\n" + t, "merge conflict"),
        (lambda t: t[:-20], "not readable"),
        (lambda t: t.replace('"schema": 1', '"schema": 9'), "newer infrarsi"),
        (lambda t: t.replace('"goal"', '"gaol"'), "not a contract"),
        (lambda t: t.replace('"world_size": 1', '"world_size": "many"'), "not a contract"),
        (lambda t: "[]", "not a contract"),
    ],
)
def test_what_is_not_a_lock_is_refused_with_the_way_out(change, what):
    with pytest.raises(ContractError, match=what) as caught:
        lock.parse(change(lock.render(contract())))
    assert caught.value.hint


def test_the_intent_of_the_lock_is_accepted():
    lock.check_intent(contract(), intents.parse(TOML))
    lock.check_intent(contract(), intents.parse(TOML + '[launch]\nsandbox = "off"\n'))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('goal = "x"', 'goal = "y"', "contract.goal"),
        ('goal = "x"', 'goal = "x"\nnumerics = "reduced"', "contract.numerics"),
        ('"a.py"]', '"a.py", "--fast"]', "workload.command"),
        ('["data"]', '["data/t.bin", "more"]', "workload.data"),
        ('["data"]', "[]", "workload.data"),
        ("hours = 2.5", "hours = 9", "budget.hours"),
        ('["*.py"]', '["**"]', "scope.editable"),
    ],
)
def test_a_changed_intent_is_refused_by_its_key(old, new, key):
    """R-A8."""
    with pytest.raises(ContractError) as caught:
        lock.check_intent(contract(), intents.parse(TOML.replace(old, new)))
    assert caught.value.why == f"changed: {key}"
    assert "git infrarsi init --force" in caught.value.hint


def test_a_changed_setup_is_refused_without_a_name():
    with pytest.raises(ContractError, match="was changed"):
        lock.check_intent(
            contract(), intents.parse(TOML.replace('data = ["data"]', 'data = ["data"]\nsetup = ["make"]'))
        )


def test_the_lock_holds_no_place_of_this_machine():
    values = json.dumps(json.loads(lock.render(contract())))
    assert "/home" not in values and "/tmp" not in values


def fields(value, path=()):
    """Every leaf of the lock's JSON, by its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from fields(child, (*path, key))
    if not isinstance(value, (dict, list)):
        yield path


def test_every_value_of_the_lock_is_part_of_its_identity():
    """R-A8: whichever value is changed, the digest is another one, or the lock is refused."""
    text = lock.render(contract())
    same = lock.contract_digest(contract())
    for path in fields(json.loads(text)):
        document = json.loads(text)
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        numbers = {bool: not old, int: 7_654_321, float: 0.123} if not isinstance(old, str) and old is not None else {}
        inner[path[-1]] = numbers.get(type(old), "another" if isinstance(old, str) else 5)
        try:
            now = lock.contract_digest(lock.parse(json.dumps(document)))
        except ContractError:
            continue
        assert now != same, path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"goal": "x"', '"goal": "x",\n "goal": "y"'),
        ('"max_lines": 800', '"max_lines": 800,\n  "max_lines": 80000'),
        ('"error_rate": 0.05', '"error_rate": NaN'),
        ('"error_rate": 0.05', '"error_rate": Infinity'),
        ('"seconds": 9000.0', '"seconds": -Infinity'),
    ],
)
def test_a_lock_says_one_thing(old, new):
    """R-A8: a key that stands twice, a limit that limits nothing."""
    text = lock.render(contract())
    assert old in text
    with pytest.raises(ContractError, match="not readable"):
        lock.parse(text.replace(old, new))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"scope": Scope(("**",))}, "scope.editable"),
        ({"goal": "y"}, "contract.goal"),
        ({"budget": Budget(seconds=9000.0, memory_bytes=2**30, error_rate=0.4)}, "budget.error_rate"),
        ({"require_signature": True}, "contract.require_signature"),
    ],
)
def test_a_lock_that_was_loosened_by_hand_is_refused(changes, key):
    """R-A8: the lock's copy of the intent must say what infrarsi.toml says, whatever digest it names."""
    loosened = dataclasses.replace(contract(), **changes)
    with pytest.raises(ContractError) as caught:
        lock.check_intent(loosened, intents.parse(TOML))
    assert key in caught.value.why and caught.value.code == "contract-changed"
