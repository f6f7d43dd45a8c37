"""The red-team cases themselves: they fit the shipped trainers, and cover what the requirements list (R-A1 to R-A3)."""

import ast
from pathlib import Path

import pytest

import infrarsi
from infrarsi.errors import UsageError
from infrarsi.redteam.case import SYMLINK, TRAINERS
from infrarsi.redteam.patch import changed, diff_of
from infrarsi.redteam.suite import ALL, chosen

SHIPPED = Path(infrarsi.__file__).parent / "demo" / "trainers"
SOURCES = {
    trainer: {
        **{p.name: p.read_text() for p in (SHIPPED / trainer).iterdir() if p.is_file()},
        "infrarsi.toml": 'goal = "x"\n',
        "infrarsi.lock": "{}\n",
    }
    for trainer in TRAINERS
}
# What R-A3 names, and the cases that try it.
REQUIRED = {
    "skipping steps": "steps-every-second",
    "smaller batch": "batch-smaller",
    "fewer layers": "layers-fewer",
    "fewer parameters": "width-smaller",
    "shorter sequences": "sequence-shrunk",
    "dropped tokens": "tokens-masked",
    "repeated batches": "batch-repeated",
    "cached batches": "replay-cached",
    "frozen parameters": "frozen-half",
    "skipped optimizer for some parameters": "parameters-unstepped",
    "learning rate": "rate-changed",
    "seed": "seed-changed",
    "schedule": "schedule-flat",
    "constant loss": "loss-constant",
    "detached loss": "loss-detached",
    "zero gradients": "gradients-zeroed",
    "scaled loss": "loss-halved",
    "evaluation data": "evaluation-data",
    "work moved into warm-up": "work-in-warm-up",
    "work left unsynchronised past the window": "update-past-window",
}


def ids(case):
    return f"{case.trainer}-{case.name}"


def test_names_are_unique_and_the_suite_is_large():
    names = [(c.trainer, c.name) for c in ALL]
    assert len(set(names)) == len(names)
    assert len({c.name for c in ALL if c.kind == "cheat"}) >= 100
    assert len({c.name for c in ALL if c.kind == "honest"}) >= 15


@pytest.mark.parametrize("name", REQUIRED.values(), ids=REQUIRED)
def test_every_cheat_of_the_requirements_is_tried_on_both_trainers(name):
    """R-A3."""
    assert {c.trainer for c in ALL if c.name == name} == set(TRAINERS)


@pytest.mark.parametrize("case", ALL, ids=ids)
def test_a_case_fits_the_shipped_trainer_and_stays_python(case):
    changes = changed(case, SOURCES[case.trainer])
    assert bool(changes) == case.changes_tree
    for change in changes:
        if change.path.endswith(".py") and change.new_mode != SYMLINK:
            ast.parse(change.after)
        assert (change.before, change.old_mode) != (change.after, change.new_mode)


@pytest.mark.parametrize("case", ALL, ids=ids)
def test_a_case_says_what_it_does_and_what_is_expected(case):
    assert case.what and "\n" not in case.what
    assert bool(case.ring) == (case.kind == "cheat")
    if case.kind == "honest":
        assert case.changes_tree or case.assignments or case.pending or case.name == "repeat"


def test_a_text_that_stands_elsewhere_or_twice_is_refused():
    case = next(c for c in ALL if c.edits and c.edits[0].replacements and c.trainer == "dense")
    path, (old, _) = case.edits[0].path, case.edits[0].replacements[0]
    for text in ("", old * 2):
        with pytest.raises(ValueError, match="times in"):
            changed(case, {**SOURCES["dense"], path: text})


def test_a_link_and_a_mode_are_written_as_git_writes_them():
    link = diff_of(next(c for c in ALL if c.name == "symlink"), SOURCES["dense"], "/elsewhere")
    assert "new file mode 120000" in link and "+/elsewhere/fast.py\n\\ No newline" in link
    mode = diff_of(next(c for c in ALL if c.name == "mode-change"), SOURCES["dense"])
    assert mode == "diff --git a/train.py b/train.py\nold mode 100644\nnew mode 100755\n"


def test_an_unknown_case_is_refused_with_what_was_meant():
    with pytest.raises(UsageError) as caught:
        chosen(names=["symlnk"])
    assert "symlink" in caught.value.why


def test_the_quick_suite_has_all_of_ring_one_and_few_trials():
    quick = chosen(quick=True)
    assert {c.name for c in ALL if c.ring == "scope"} <= {c.name for c in quick}
    assert {c.trainer for c in quick if c.ring == "scope"} == set(TRAINERS)
    trials = [c for c in quick if c.ring != "scope"]
    assert 4 <= len(trials) <= 9 and {c.trainer for c in trials} == {"dense"}
    assert any(c.kind == "honest" for c in trials)


def test_cases_that_compile_run_on_request_only():
    assert not any(c.slow for c in chosen())
    assert any(c.slow for c in chosen(slow=True))
    assert chosen(names=["compiled"], trainer="moe")[0].slow


def test_the_docs_have_every_case_with_what_catches_it():
    text = (Path(__file__).parents[2] / "docs" / "selftest.md").read_text()
    for case in ALL:
        row = next((line for line in text.splitlines() if line.startswith(f"| `{case.name}`")), "")
        assert case.what in row, case.name
        assert row.endswith(f", {case.check} |" if case.check else " |"), case.name
