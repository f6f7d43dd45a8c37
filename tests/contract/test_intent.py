"""infrarsi.toml: read strictly, written for people, changed without losing a comment."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract import intent as intents
from infrarsi.contract.intent import Intent, Launch, SearchOptions
from infrarsi.errors import UsageError
from infrarsi.records import Assignment, Budget, Claim, Knob, Level, Scope

KNOB = Knob(
    "micro_batch",
    "flag",
    (
        Level("8 x 4"),
        Level("16 x 2", (Assignment("flag", "--batch_size", 16), Assignment("flag", "--accum", 2))),
        Level("32 x 1", (Assignment("flag", "--batch_size", 32), Assignment("flag", "--accum", None))),
    ),
    ordinal=True,
    claims=((), (Claim("catalogue", 0.8, 1.2, 0.5, "activations"),), ()),
    catalogue_id="micro-batch",
    why="fewer kernel launches",
)
INTENT = Intent(
    goal='make this "fast",\nchange nothing',
    numerics="reorder",
    data_level="exact",
    require_signature=False,
    entry="train.py",
    command=("torchrun", "--standalone", "--nproc_per_node=2", "train.py", "--device=cpu"),
    environment=(("OMP_NUM_THREADS", "1"),),
    world_size=2,
    data=("data/train.bin",),
    setup=(),
    held_out="",
    scope=Scope(("*.py",), ("data/**", "train.py::get_batch")),
    budget=Budget(30, 7200.0, 5.0, 20 * 2**30, 0.05),
    launch=Launch("python3", "auto", (Assignment("flag", "--compile", True), Assignment("flag", "--slow", None))),
    search=SearchOptions(0, 0, 2, ("catalogue",)),
    knobs=(KNOB,),
)
SMALL = (
    '[contract]\ngoal = "x"\n[workload]\nentry = "a.py"\ncommand = ["python", "a.py"]\n[scope]\neditable = ["*.py"]\n'
)

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
scalars = st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | words


def test_render_reads_back_and_is_commented():
    text = intents.render(INTENT)
    assert intents.parse(text) == INTENT
    assert text.count("#") > 8


@given(words, st.dictionaries(words, scalars, max_size=4), st.lists(words, min_size=1, max_size=3), st.integers(1, 500))
def test_any_intent_reads_back(goal, flags, command, trials):
    launch = Launch("python3", "off", tuple(Assignment("flag", k, v) for k, v in flags.items()))
    budget = Budget(trials=trials)
    intent = dataclasses.replace(INTENT, goal=goal, launch=launch, command=tuple(command), budget=budget)
    assert intents.parse(intents.render(intent)) == intent


def test_the_least_document_has_sane_defaults():
    intent = intents.parse(SMALL)
    assert (intent.numerics, intent.data_level, intent.world_size) == ("reorder", "exact", 1)
    assert intent.budget == Budget()
    assert intent.launch == Launch("python3", "auto", ())


@pytest.mark.parametrize(
    ("text", "what", "why", "hint"),
    [
        (SMALL.replace("editable", "editible"), "scope.editable is missing", "line 6", "add editable"),
        (SMALL + 'lockd = ["a"]\n', "unknown key scope.lockd", "line 8", "did you mean locked?"),
        (SMALL.replace('goal = "x"', "goal = 3"), "contract.goal must be a string", "line 2", "3"),
        (SMALL + "[budget]\ntrials = true\n", "budget.trials must be a whole number", "line 9", "True"),
        (SMALL + "[budget]\ntrials = 0\n", "budget.trials must be at least 1", "line 9", "trials"),
        (SMALL.replace('goal = "x"', 'goal = "x"\nnumerics = "reduce"'), "cannot be 'reduce'", "line 3", "'reduced'"),
        (SMALL.replace('["python", "a.py"]', '"python a.py"'), "must be a list", "line 5", "python a.py"),
        (SMALL.replace('goal = "x"', "goal = x"), "is not valid TOML", "line 2", "quotes"),
        (SMALL.replace("[contract]", "[contrct]"), "has no [contract]", "", "git infrarsi init"),
        (SMALL + "[serach]\n", "unknown key serach", "line 8", "did you mean search?"),
        (SMALL + '[[knobs]]\nname="k"\nkind="flg"\nbaseline="1"\n', "knobs.kind cannot be", "line 10", "'flag'"),
        (SMALL + '[[knobs]]\nname="k"\nkind="flag"\nbaseline="1"\n', "at least one level", "", "levels"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_way_out(text, what, why, hint):
    with pytest.raises(UsageError) as caught:
        intents.parse(text)
    assert what in caught.value.what
    assert why in caught.value.why
    assert hint in caught.value.hint


def test_only_the_locked_tables_are_in_the_digest():
    """R-A8."""
    digest = intents.digest_of(INTENT)
    free = dataclasses.replace(INTENT, knobs=(), launch=Launch("/usr/bin/python", "off", ()))
    assert intents.digest_of(free) == digest
    for change in (
        {"goal": "other"},
        {"numerics": "reduced"},
        {"data_level": "sampled"},
        {"command": ("python", "train.py")},
        {"setup": ("make",)},
        {"scope": Scope(("**",))},
        {"budget": Budget(error_rate=0.2)},
        {"require_signature": True},
    ):
        assert intents.digest_of(dataclasses.replace(INTENT, **change)) != digest, change


def test_new_launch_settings_leave_everything_else_as_it_was():
    launch = "# my launch\n[launch]\nsandbox = 'off'  # on purpose\n\n[launch.flags]\n--old = 1 # why\n\n# end\n"
    text = SMALL + launch + "[search]\nfinalists = 3\n"
    wanted = (
        Assignment("flag", "--batch_size", 16),
        Assignment("env", "OMP_NUM_THREADS", "2"),
        Assignment("flag", "-x", None),
    )
    edited = intents.with_launch(text, (*wanted, Assignment("config", "a.json:b", 1)))
    assert set(intents.parse(edited).launch.assignments) == set(wanted)
    for line in ("# my launch", "sandbox = 'off'  # on purpose", "# end", "finalists = 3"):
        assert line in edited
    assert "--old" not in edited
    assert intents.digest_of(intents.parse(edited)) == intents.digest_of(intents.parse(text))


def test_a_promoted_state_map_stands_among_the_launch_settings():
    wanted = (Assignment("state_map", "blocks.*.qkv.weight", "blocks.*.{q,k,v}.weight; dim 0"),)
    edited = intents.with_launch(SMALL, wanted)
    assert '"blocks.*.qkv.weight" = "blocks.*.{q,k,v}.weight; dim 0"' in edited.split("[launch.state_map]")[1]
    assert intents.parse(edited).launch.assignments == wanted
    assert intents.digest_of(intents.parse(edited)) == intents.digest_of(intents.parse(SMALL))
    assert intents.parse(intents.with_launch(edited, [])).launch.assignments == ()


def test_equal_launch_settings_give_back_the_same_bytes():
    text = SMALL + "[launch.flags]\n'--a'   =   1\n"
    assert intents.with_launch(text, [Assignment("flag", "--a", 1)]) == text
    assert intents.with_launch(SMALL, []) == SMALL


def test_new_launch_settings_are_deterministic():
    """R-I1: verify recomputes the promoted file."""
    once = intents.with_launch(SMALL, INTENT.launch.assignments)
    assert once == intents.with_launch(SMALL, INTENT.launch.assignments)
    assert intents.with_launch(once, INTENT.launch.assignments) == once


@pytest.mark.parametrize(("said", "written"), [(0.6, "0.6"), (20, "20.0"), (1 / 3, "0.333333333")])
def test_memory_is_written_as_a_person_would(said: float, written: str) -> None:
    budget = Budget(memory_bytes=int(said * 2**30))  # what a sentence is read as
    text = intents.render(dataclasses.replace(INTENT, budget=budget))
    (line,) = [line for line in text.splitlines() if line.startswith("memory_gb")]
    assert line.split("=")[1].split("#")[0].strip() == written
    assert intents.parse(text).budget == budget
