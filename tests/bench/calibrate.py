"""Are the search's predictions as sure as they say? Coverage of intervals and reliability of P(out of memory).

    python -m tests.bench.calibrate --seeds 0-4 --split test

After a search of each simulated job, every prediction is held to the truth at points that the search did not choose:
random rows, and random changes of one to three knobs to the best that was found.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infrarsi.search.beliefs import Beliefs
from infrarsi.search.interface import WHOLE
from infrarsi.search.space import Rows
from infrarsi.search.suggest import mutations

from .compare import ours, seeds
from .landscapes import KINDS, Landscape

Z90 = 1.6449
POINTS = 200
BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)


@dataclass(frozen=True)
class Held:
    """Predictions held to the truth at n rows: standardised errors of log time and memory, P(fits), whether it did."""

    time: np.ndarray
    memory: np.ndarray
    fits: np.ndarray
    fitted: np.ndarray


def held(landscape: Landscape, beliefs: Beliefs, rows: Rows) -> Held:
    """Hold the predictions at some rows to the truth; time and memory at rows that run and fit only."""
    predicted = beliefs.predict(rows)
    fitted = np.array([landscape.fits(row) for row in rows])
    runs = fitted & np.array([not landscape.fails(row) for row in rows])
    truth = np.array([landscape.log_ratio(row) for row in rows])
    peaks = np.array([landscape.world.cost(row).allocated / landscape.base.allocated for row in rows])
    time = (truth - predicted.time) / np.sqrt(predicted.time_variance)
    memory = (np.log(peaks) - predicted.memory) / np.sqrt(predicted.memory_variance)
    return Held(time[runs], memory[runs], np.exp(predicted.log_fits), fitted)


def after(landscape: Landscape, trials: int) -> dict[str, Held]:
    """Search a job for some trials; return what holds at random rows and around the best."""
    session = landscape.session(0)
    search = ours(landscape, WHOLE, *session.baseline())
    for _ in range(trials):
        proposal = search.ask()
        if proposal is None:
            break
        search.tell(session.run(proposal.candidate))
    beliefs = search.sampler.believe(search.sampler.read(search.study)[0])
    rng = np.random.default_rng([landscape.seed, trials])
    space = landscape.space
    anywhere = space.repair(rng.integers(space.sizes, size=(POINTS, space.width)))
    near = space.repair(mutations(space, beliefs.incumbent[None, :], rng, POINTS))
    return {"random rows": held(landscape, beliefs, anywhere), "around the best": held(landscape, beliefs, near)}


def covered(errors: np.ndarray) -> float:
    """Return the share of standardised errors within the 90 % interval."""
    return float((abs(errors) <= Z90).mean()) if errors.size else math.nan


def reliability(found: Sequence[Held]) -> list[tuple[float, float, float, float, int]]:
    """Return per bin of predicted P(out of memory): its bounds, mean prediction, share that did not fit, rows."""
    predicted = 1 - np.concatenate([h.fits for h in found])
    happened = ~np.concatenate([h.fitted for h in found])
    rows = []
    for low, high in itertools.pairwise(BINS):
        inside = (predicted >= low) & ((predicted < high) | (high == BINS[-1]))
        if inside.any():
            rows.append((low, high, float(predicted[inside].mean()), float(happened[inside].mean()), int(inside.sum())))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print coverage and reliability over all kinds and some seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--split", default="dev", choices=("dev", "test"))
    parser.add_argument("--trials", type=int, default=30)
    chosen = parser.parse_args(arguments)
    found = [
        after(Landscape(kind, seed, split=chosen.split), chosen.trials)
        for seed in seeds(chosen.seeds)
        for kind in sorted(KINDS)
    ]
    for where in ("random rows", "around the best"):
        these = [each[where] for each in found]
        time, memory = (np.concatenate([getattr(h, name) for h in these]) for name in ("time", "memory"))
        print(f"{where}: 90 % intervals cover {covered(time):.1%} of times, {covered(memory):.1%} of peaks")
        print(f"{'P(out of memory)':>20}{'predicted':>11}{'happened':>10}{'rows':>8}")
        for low, high, mean, share, count in reliability(these):
            print(f"{f'{low:.2f} to {high:.2f}':>20}{mean:11.3f}{share:10.3f}{count:8}")


if __name__ == "__main__":
    main()
