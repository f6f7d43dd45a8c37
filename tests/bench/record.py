"""Measures every combination of some knobs and patches of a real training, for methods to be compared on afterwards.

    python -m tests.bench.record REPOSITORY --choose micro_batch omp_threads +sdpa --repeats 2 --out recorded.json

The repository has a contract and a calibration (`git infrarsi init`, `doctor`). Combinations are measured in random
order, all of them once before any is measured again, so that drift does not fall on some of them only.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from infrarsi.codec import encode
from infrarsi.commands import run as running
from infrarsi.commands.campaign import Campaign
from infrarsi.commands.events import Event
from infrarsi.commands.state import calibration_by_digest, open_run
from infrarsi.commands.vetting import sound_patches
from infrarsi.commands.workspace import load
from infrarsi.records import Candidate, Effect, Price, Trust
from infrarsi.search.interface import Observation, Proposal
from infrarsi.search.space import Rows, Space
from infrarsi.trial.local import LocalEngine


class Everything:
    """A `Search` that asks for each combination of some dimensions, in random order, several times."""

    reason = ""

    def __init__(self, space: Space, chosen: Sequence[str], repeats: int, seed: int = 0) -> None:
        """Ask for all levels of the dimensions called `chosen`; a patch is called `+id`."""
        names = [f"+{d.name}" if d.patch else d.name for d in space.dimensions]
        if missing := set(chosen) - set(names):
            raise SystemExit(f"no {', '.join(sorted(missing))} here; there are {', '.join(names)}")
        levels = [
            range(len(d.levels)) if n in chosen else range(1) for n, d in zip(names, space.dimensions, strict=True)
        ]
        rows = np.array(list(itertools.product(*levels)), dtype=np.int64)
        rows = rows[space.valid(rows)]
        rng = np.random.default_rng(seed)
        self.space = space
        self.queue: list[Rows] = [rows[i] for _ in range(repeats) for i in rng.permutation(len(rows))]
        self.rows = len(rows)

    def ask(self) -> Proposal | None:
        """Return the next combination."""
        if not self.queue:
            self.reason = "every combination has been measured"
            return None
        return Proposal(self.space.decode(self.queue.pop(0)), f"{len(self.queue)} left", None, None, 1.0)

    def tell(self, observation: Observation) -> None:
        """Learn nothing; the ledger has it."""

    def effects(self) -> tuple[Effect, ...]:
        """Return nothing: nothing is believed."""
        return ()

    def finalists(self, k: int) -> tuple[Candidate, ...]:
        """Return nothing: nothing is verified."""
        return ()

    def should_stop_early(self, step_seconds: float) -> bool:
        """Return False: every trial counts."""
        return False

    def prices(self) -> tuple[Price, ...]:
        """Return nothing."""
        return ()

    def trust(self) -> tuple[Trust, ...]:
        """Return nothing."""
        return ()


def recorded(repository: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """Return what the newest run measured, with the space that was chosen: numbers and names, no code."""
    workspace = load(repository)
    _, _, state = open_run(workspace.repo, None)
    calibration = calibration_by_digest(workspace.repo, state.started["calibration_digest"])
    assert calibration is not None, "the run has just used it"
    knobs = [k for k in state.knobs if k.name in chosen]
    patches = [replace(p, diff="") for p in state.patches if f"+{p.id}" in chosen]
    trials = [
        {
            "candidate": encode(t.candidate),
            "outcome": t.outcome.kind,
            "seconds": t.measurement.mean_step_seconds if t.measurement and t.outcome.kind == "ok" else None,
            "peak": t.measurement.peak_allocated_bytes if t.measurement else None,
        }
        for t in state.search_trials
    ]
    return {
        "budget": workspace.contract.budget.memory_bytes,
        "noise": encode(calibration.noise),
        "memory_terms": encode(calibration.memory_terms),
        "knobs": encode(knobs),
        "patches": encode(patches),
        "trials": trials,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--choose", nargs="+", required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--patch", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)

    def everything(campaign: Campaign, seed: int) -> Everything:
        space = Space(campaign.state.knobs, sound_patches(campaign))
        made = Everything(space, given.choose, given.repeats, seed)
        print(f"{made.rows} combinations, {given.repeats} times each", flush=True)
        return made

    def tell(event: Event) -> None:
        if event.kind == "trial":
            measured = event.body.get("measurement") or {}
            print(event.body["outcome"]["kind"], measured.get("mean_step_seconds"), event.body["why"], flush=True)
        elif event.text:
            print(event.text, flush=True)

    # A run is what this is, but for what it tries: all there is to try, and no verification.
    running.make_search = everything
    running.run(
        given.repository, running.RunOptions(trials=10**6, fresh=True, patches=tuple(given.patch)), LocalEngine(), tell
    )
    given.out.write_text(json.dumps(recorded(given.repository, given.choose), indent=1) + "\n")


if __name__ == "__main__":
    main()
