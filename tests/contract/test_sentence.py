"""A sentence and what a person expects of it: understood in full, or said not to be."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract.sentence import Wishes, read_sentence, split_clauses

FILES = (
    "train.py",
    "model.py",
    "prepare.py",
    "src/data.py",
    "src/net.py",
    "lib/net.py",
    "configs/a.yaml",
    "data/notes.md",
)
GIB = 2**30


def wishes(sentence: str) -> dict[str, object]:
    """What differs from an empty sentence's wishes, the two lists of clauses left out."""
    read = read_sentence(sentence, FILES)
    empty = Wishes()
    names = [f.name for f in dataclasses.fields(Wishes) if not f.name.endswith("understood")]
    return {n: getattr(read, n) for n in names if getattr(read, n) != getattr(empty, n)}


UNDERSTOOD: list[tuple[str, dict[str, object]]] = [
    ("make this training faster, change nothing it learns", {"numerics": "reorder"}),
    ("Make my training as fast as possible, please.", {}),
    ("Speed this training up and don't change what it learns!", {"numerics": "reorder"}),
    ("bf16 is fine", {"numerics": "reduced"}),
    ("tf32 or fp8 allowed", {"numerics": "reduced"}),
    ("it's ok to use mixed precision", {"numerics": "reduced"}),
    ("you may use bf16", {"numerics": "reduced"}),
    ("no bf16", {"numerics": "reorder"}),
    ("bf16 is not fine", {"numerics": "reorder"}),
    ("make it faster but don’t use bf16, tf32 or fp8", {"numerics": "reorder"}),
    ("keep fp32", {"numerics": "reorder"}),
    ("never use lower precision", {"numerics": "reorder"}),
    ("exact same numbers, bit for bit", {"numerics": "bitwise"}),
    ("bit-identical", {"numerics": "bitwise"}),
    ("semantic changes are allowed", {"numerics": "semantic"}),
    ("do not touch model.py", {"locked": ("model.py",)}),
    ("don't change model.py or src/data.py", {"locked": ("model.py", "src/data.py")}),
    ("leave model.py, prepare.py and configs/a.yaml alone", {"locked": ("model.py", "prepare.py", "configs/a.yaml")}),
    ("the configs folder must stay unchanged", {"locked": ("configs/**",)}),
    ("do not touch the src directory", {"locked": ("src/**",)}),
    ("data.py is off limits", {"locked": ("src/data.py",)}),
    ("do not change get_batch in train.py", {"locked": ("train.py::get_batch",)}),
    ("lock train.py::get_batch", {"locked": ("train.py::get_batch",)}),
    ("change anything but model.py", {"locked": ("model.py",)}),
    ("only change train.py", {"editable": ("train.py",)}),
    ("you may only edit train.py and src/*.py", {"editable": ("train.py", "src/*.py")}),
    ("do not change anything except train.py", {"editable": ("train.py",)}),
    ("change nothing but train.py", {"editable": ("train.py",)}),
    ("train.py is the entry", {"entry": "train.py"}),
    ("make train.py faster", {"entry": "train.py"}),
    ("at most 20 GB", {"memory_bytes": 20 * GIB}),
    ("use no more than 16GiB of GPU memory per device", {"memory_bytes": 16 * GIB}),
    ("memory under 512 MB", {"memory_bytes": GIB // 2}),
    ("it must fit in 24 GB", {"memory_bytes": 24 * GIB}),
    ("two hours", {"seconds": 7200.0}),
    ("half an hour", {"seconds": 1800.0}),
    ("an hour and a half", {"seconds": 5400.0}),
    ("within 90 minutes", {"seconds": 5400.0}),
    ("take at most 1h30", {"seconds": 5400.0}),
    ("2.5 h", {"seconds": 9000.0}),
    ("a day", {"seconds": 86400.0}),
    ("spend no more than $5", {"dollars": 5.0}),
    ("don't spend more than $2.50", {"dollars": 2.5}),
    ("at most five dollars", {"dollars": 5.0}),
    ("50 cents", {"dollars": 0.5}),
    ("spend nothing", {"dollars": 0.0}),
    ("ten trials", {"trials": 10}),
    ("no more than 40 experiments", {"trials": 40}),
    ("keep the data order", {"data_level": "exact"}),
    ("same rows at every step", {"data_level": "exact"}),
    ("same data in any order", {"data_level": "same-set"}),
    ("error rate 1%", {"error_rate": 0.01}),
    ("be 99% sure", {"error_rate": 0.01}),
    ("make it 2x faster", {"target_speedup": 2.0}),
    ("at least 1.5 times faster", {"target_speedup": 1.5}),
    ("twice as fast", {"target_speedup": 2.0}),
    ("30% faster", {"target_speedup": 1.3}),
    ("without an API key", {"model_provider": "none"}),
    ("use Claude", {"model_provider": "claude"}),
    ("require a signature", {"require_signature": True}),
    ("do not change the learning rate", {}),
    (
        "Make this training faster, bf16 is fine, do not touch model.py, at most 20 GB and two hours.",
        {"numerics": "reduced", "locked": ("model.py",), "memory_bytes": 20 * GIB, "seconds": 7200.0},
    ),
    (
        "make it 2x faster in two and a half hours with at most 20 candidates",
        {"seconds": 9000.0, "trials": 20, "target_speedup": 2.0},
    ),
    (
        "Speed up train.py; leave src/data.py alone. Keep the data order, spend at most $3 in ten trials",
        {"entry": "train.py", "locked": ("src/data.py",), "data_level": "exact", "dollars": 3.0, "trials": 10},
    ),
    ("three hours, but no more than 2 h", {"seconds": 7200.0}),
    ("change nothing it learns, bf16 is fine", {"numerics": "reduced"}),
]


@pytest.mark.parametrize(("sentence", "expected"), UNDERSTOOD, ids=[s for s, _ in UNDERSTOOD])
def test_what_a_person_expects(sentence, expected):
    assert wishes(sentence) == expected
    read = read_sentence(sentence, FILES)
    assert read.not_understood == ()
    assert read.understood
    assert all(": " in line for line in read.understood)


NOT_UNDERSTOOD = [
    ("use a purple optimizer", "use a purple optimizer"),
    ("drop the last layer", "drop the last layer"),
    ("reduce memory", "reduce memory"),
    ("at least 20 GB", "least"),
    ("20 GB of disk", "disk"),
    ("more than 20 GB", "more than"),
    ("a $20 GPU", "GPU"),
    ("€5", "€5"),
    ("do not touch modle.py", "did you mean model.py?"),
    ("do not touch net.py", "ambiguous"),
    ("don't touch the model", "no model here"),
    ("bf16 only in the attention", "attention"),
    ("bf16 is fine except for the optimizer", "optimizer"),
    ("only change *.rs", "no file matches"),
    ("0.5x faster", "a speed-up is above 1"),
    ("99% faster time travel", "time travel"),
    ("do not use 20 GB", "not"),
    ("it is not ok to touch everything", "not ok to touch everything"),
    ("overnight", "overnight"),
    ("never finish in two hours", "never"),
]


@pytest.mark.parametrize(("sentence", "part"), NOT_UNDERSTOOD, ids=[s for s, _ in NOT_UNDERSTOOD])
def test_nothing_is_guessed(sentence, part):
    assert wishes(sentence) == {}
    (line,) = read_sentence(sentence, FILES).not_understood
    assert part in line


def test_the_known_part_of_a_sentence_is_kept():
    read = read_sentence("make it faster, paint it green, and take at most two hours", FILES)
    assert (read.seconds, read.not_understood) == (7200.0, ("paint it green",))
    assert len(read.understood) == 2


def test_a_permission_that_is_taken_back_is_not_granted():
    for sentence in ("tf32 is fine, but no bf16", "bit for bit, fp8 allowed", "no bf16 but tf32 is fine"):
        read = read_sentence(sentence, FILES)
        assert read.numerics in ("reorder", "bitwise")
        assert len(read.not_understood) == 1
        assert "another clause forbids" in read.not_understood[0]


def test_two_entries_cannot_both_be_the_entry():
    read = read_sentence("speed up train.py, prepare.py is the entry", FILES)
    assert read.entry == "train.py"
    assert read.not_understood == ("prepare.py is the entry (the entry is train.py already)",)


def test_an_empty_sentence_wishes_nothing():
    assert read_sentence("", ()) == Wishes()
    assert read_sentence(" , . please ", ()) == Wishes()


@given(st.text(alphabet=st.sampled_from(list("abdgnotx 0123456789.,;$%\"'()*[]?-:/+\\|\n")), max_size=80))
def test_every_clause_is_accounted_for(sentence):
    read = read_sentence(sentence, FILES)
    assert len(read.understood) + len(read.not_understood) == len(split_clauses(sentence))
