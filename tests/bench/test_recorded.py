"""A recorded training is replayed as it was measured."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from infrarsi.codec import encode
from infrarsi.records import Assignment, Candidate, Claim, Knob, Level, Noise, Patch, Setting
from infrarsi.search.space import Space

from .compare import compare, main, read
from .record import Everything
from .recorded import RecordedLandscape

KNOBS = [
    Knob("rows", "flag", (Level("2"), *(Level(str(n), (Assignment("flag", "--rows", n),)) for n in (4, 8))), True),
    Knob("fused", "flag", (Level("off"), Level("on", (Assignment("flag", "--fused", True),)))),
]
PATCHES = [Patch("sdpa", "sdpa", "", "catalogue", (Claim("catalogue", 0.8),))]
GAINS = {"rows": {"2": 0.0, "4": -0.1, "8": -0.4}, "fused": {"off": 0.0, "on": -0.05}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """All 12 combinations, measured twice; rows=8 with the patch runs out of memory."""
    trials = []
    for rows, fused, patch, again in itertools.product(("2", "4", "8"), ("off", "on"), (False, True), (0, 1)):
        settings = [Setting(k, v) for k, v in (("fused", fused), ("rows", rows)) if v not in ("off", "2")]
        log = GAINS["rows"][rows] + GAINS["fused"][fused] - 0.2 * patch + 0.02 * again
        full = rows == "8" and patch
        candidate = Candidate(tuple(settings), ("sdpa",) if patch else ())
        trials.append(
            {
                "candidate": encode(candidate), "outcome": "oom" if full else "ok",
                "seconds": None if full else math.exp(log), "peak": None if full else 1000 * int(rows),
            }
        )  # fmt: skip
    noise = Noise(0.01, 0.01, 0.0, 0.0, 2, 8, 0.02, 3)
    held = {
        "budget": None, "noise": encode(noise), "memory_terms": [["activations", 1000]],
        "knobs": encode(KNOBS), "patches": encode(PATCHES), "trials": trials,
    }  # fmt: skip
    path = tmp_path / "small.json"
    path.write_text(json.dumps(held))
    return path


def test_the_best_is_the_fastest_that_never_ran_out_of_memory(file: Path) -> None:
    job = RecordedLandscape(file)
    assert len(job.rows) == 12
    value, row = job.best
    assert job.space.decode(row) == Candidate((Setting("fused", "on"), Setting("rows", "8")))
    assert value == pytest.approx(-0.45)
    assert job.spread() == pytest.approx(0.02 / math.sqrt(2))
    assert job.capacity == 4 * 8000
    full = job.encode(Candidate((Setting("rows", "8"),), ("sdpa",)))
    assert not job.fits(full) and job.fails(full) == ""


def test_a_trial_is_one_of_those_that_were_measured(file: Path) -> None:
    session = RecordedLandscape(file).session(0)
    seen = {session.run(Candidate((Setting("rows", "4"),))).step_seconds for _ in range(20)}
    assert seen == {math.exp(-0.1), math.exp(-0.08)}


def test_methods_are_compared_on_it_and_find_the_best_of_twelve(file: Path, tmp_path: Path) -> None:
    job = RecordedLandscape(file)
    assert compare(job, "ours", 12).share > 0.9
    assert compare(job, "coordinates", 12).share > 0.5
    main(
        [
            "--recorded",
            str(file),
            "--seeds",
            "0-1",
            "--methods",
            "ours",
            "random",
            "--trials",
            "6",
            "--out",
            str(tmp_path / "o"),
        ]
    )
    assert [(r.kind, r.seed, r.method) for r in read(tmp_path / "o")] == [
        ("small", 0, "ours"), ("small", 0, "random"), ("small", 1, "ours"), ("small", 1, "random"),
    ]  # fmt: skip


def test_everything_that_is_chosen_is_asked_for_once_before_anything_is_again() -> None:
    asked = Everything(Space(KNOBS, PATCHES), ["rows", "+sdpa"], repeats=2)
    rows = []
    while (proposal := asked.ask()) is not None:
        rows.append(asked.space.encode(proposal.candidate))
    assert len(rows) == 12 and not np.array(rows)[:, 1].any()
    first, second = ({row.tobytes() for row in half} for half in (rows[:6], rows[6:]))
    assert first == second and len(first) == 6
    with pytest.raises(SystemExit, match="no nothing here; there are rows, fused, \\+sdpa"):
        Everything(Space(KNOBS, PATCHES), ["nothing"], repeats=1)
