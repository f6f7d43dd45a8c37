"""A simulated training: planted effects and interactions, stragglers, an out-of-memory cliff, crash pairs."""

from __future__ import annotations

import math

import numpy as np

from infrarsi.records import Assignment, Candidate, Claim, Knob, Level, Noise, Patch
from infrarsi.search.interface import WHOLE, Observation, Parts
from infrarsi.search.space import Space
from infrarsi.search.study import OptunaSearch

GIB = 2**30
NOISE = Noise(0.02, 0.015, 0.1, 0.0, 2, 10, 0.02, 3)
BASE_SECONDS, BASE_BYTES = 0.5, 10 * GIB


def knob(name: str, levels: int, ordinal: bool = False, claims: tuple[tuple[Claim, ...], ...] = ()) -> Knob:
    made = [Level("base")] + [Level(f"l{i}", (Assignment("flag", f"--{name}", i),)) for i in range(1, levels)]
    return Knob(name, "flag", tuple(made), ordinal, claims)


def patch(name: str, claims: tuple[Claim, ...] = (), **others: tuple[str, ...]) -> Patch:
    return Patch(name, name, "", "catalogue", claims, "reorder", **others)


class Landscape:
    """What is true: log time and memory effects per (dimension, level), pair interactions, pairs that crash."""

    def __init__(self, seed: int, *, knobs: int = 8, patches: int = 8, wrong: float = 0.25, hints: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.rng = np.random.default_rng(seed + 10_000)
        sizes = [int(rng.integers(2, 5)) for _ in range(knobs)] + [2] * patches
        self.time = [np.concatenate([[0.0], rng.normal(-0.02, 0.10, size - 1)]) for size in sizes]
        self.memory = [np.concatenate([[0.0], rng.normal(0.0, 0.15, size - 1)]) for size in sizes]
        for d in range(len(sizes)):  # what is faster tends to need more memory
            self.memory[d] = self.memory[d] - 0.8 * self.time[d]
        pairs = [(a, b) for a in range(len(sizes)) for b in range(a)]
        chosen = rng.choice(len(pairs), size=len(pairs) // 8, replace=False)
        self.interactions = {pairs[i]: float(rng.normal(0, 0.04)) for i in chosen}
        self.crashes = {pairs[i] for i in rng.choice(len(pairs), size=3, replace=False)}
        self.budget = int(BASE_BYTES * 1.25)

        def claim(d: int, level: int) -> tuple[Claim, ...]:
            if not hints or rng.random() < 0.3:
                return ()
            sign = -1 if rng.random() < wrong else 1
            told = sign * self.time[d][level] * rng.uniform(0.5, 1.5)
            return (Claim("catalogue", math.exp(told), math.exp(0.7 * self.memory[d][level]), 0.5),)

        self.knobs = tuple(
            knob(f"k{d}", sizes[d], d % 2 == 0, ((), *(claim(d, i) for i in range(1, sizes[d])))) for d in range(knobs)
        )
        self.patches = tuple(patch(f"p{d}", claim(knobs + d, 1)) for d in range(patches))
        self.space = Space(self.knobs, self.patches)

    def log_time(self, row: np.ndarray) -> float:
        total = sum(float(self.time[d][lv]) for d, lv in enumerate(row))
        return total + sum(v for (a, b), v in self.interactions.items() if row[a] and row[b])

    def log_memory(self, row: np.ndarray) -> float:
        return sum(float(self.memory[d][lv]) for d, lv in enumerate(row))

    def feasible(self, row: np.ndarray) -> bool:
        crashed = any(row[a] and row[b] for a, b in self.crashes)
        return not crashed and BASE_BYTES * math.exp(self.log_memory(row)) <= self.budget

    def try_it(self, candidate: Candidate) -> Observation:
        row = self.space.encode(candidate)
        if any(row[a] and row[b] for a, b in self.crashes):
            return Observation(candidate, "crash", None, None, 0.015)
        peak = int(BASE_BYTES * math.exp(self.log_memory(row)))
        if peak > self.budget:
            return Observation(candidate, "oom", None, None, 0.015)
        straggler = 0.2 if self.rng.random() < 0.06 else 0.0
        seconds = BASE_SECONDS * math.exp(self.log_time(row) + self.rng.normal(0, 0.015) + straggler)
        return Observation(candidate, "ok", seconds, peak, 0.015)

    def search(self, seed: int = 0, parts: Parts = WHOLE) -> OptunaSearch:
        return OptunaSearch(
            self.space,
            baseline_step_seconds=BASE_SECONDS,
            baseline_peak_bytes=BASE_BYTES,
            memory_budget=self.budget,
            noise=NOISE,
            seed=seed,
            parts=parts,
        )

    def best_known(self) -> float:
        """Return the log time of a good feasible row, by many restarts of coordinate descent on the truth."""
        rng = np.random.default_rng(5)
        best = 0.0
        for _ in range(12):
            row = rng.integers(self.space.sizes) if best else np.zeros(self.space.width, dtype=np.int64)
            if not self.feasible(row):
                row = np.zeros(self.space.width, dtype=np.int64)
            while True:
                moves = [m for m in self.space.moves(row) if self.feasible(m)]
                nearest = min(moves, key=self.log_time)
                if self.log_time(nearest) >= self.log_time(row) - 1e-9:
                    break
                row = nearest
            best = min(best, self.log_time(row))
        return best


def run(landscape: Landscape, search: OptunaSearch, trials: int) -> tuple[float, list[Observation]]:
    """Return (true log time of the first finalist, all observations)."""
    seen: list[Observation] = []
    for _ in range(trials):
        proposal = search.ask()
        if proposal is None:
            break
        seen.append(landscape.try_it(proposal.candidate))
        search.tell(seen[-1])
    chosen = search.finalists(1)
    return (landscape.log_time(landscape.space.encode(chosen[0])) if chosen else 0.0), seen


def run_random(landscape: Landscape, seed: int, trials: int) -> float:
    """Return the true log time of the best by measurement of random trials."""
    rng = np.random.default_rng(seed)
    best, chosen = BASE_SECONDS, np.zeros(landscape.space.width, dtype=np.int64)
    for _ in range(trials - 1):
        row = rng.integers(landscape.space.sizes)
        seen = landscape.try_it(landscape.space.decode(row))
        if seen.step_seconds is not None and seen.step_seconds < best:
            best, chosen = seen.step_seconds, row
    return landscape.log_time(chosen)
