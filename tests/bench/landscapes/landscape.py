"""One simulated job: its space, what is claimed about it, what a trial shows, and the best that is known of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from infrarsi.records import Assignment, Candidate, Claim, Knob, Level, Noise, Patch
from infrarsi.search.interface import Observation
from infrarsi.search.space import Rows, Space

from .cost import Cost, cost
from .job import Machine, Model, Plan, perturbed
from .kinds import KINDS
from .options import EXPERT_PATCHES, PATCHES, CodeChange, Option

Claims = Literal["honest", "none", "flipped"]
Experience = Literal["none", "right", "wrong"]
Split = Literal["dev", "test"]
SPLITS = {"dev": 0, "test": 1_000_000}
STRAGGLER_DOF = 3.0
TRUST_RANGE = (0.3, 0.6)
BASELINE_REPEATS = 3


@dataclass(frozen=True)
class World:
    """The truth: constants, options, how strong each patch is, which pairs of levels fail and how."""

    machine: Machine
    model: Model
    stalls: float
    knobs: tuple[Option, ...]
    patches: tuple[CodeChange, ...]
    strengths: tuple[float, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each dimension, knobs first."""
        return (*(len(k.levels) for k in self.knobs), *(2 for _ in self.patches))

    def cost(self, row: Rows) -> Cost:
        """Return the noise-free cost of a row, whether it fits or not. Knobs act in order, patches after them."""
        plan = Plan(stalls=self.stalls)
        for knob, level in zip(self.knobs, row, strict=False):
            plan.apply(knob.levels[int(level)][1])
        for i, (patch, strength) in enumerate(zip(self.patches, self.strengths, strict=True)):
            if row[len(self.knobs) + i]:
                plan.apply(patch.changes, strength)
        return cost(self.machine, self.model, plan)


def _world(kind: str, options: np.random.Generator, constants: np.random.Generator) -> World:
    """Return a world; two calls with equal `options` streams have the same space under other constants."""
    chosen = KINDS[kind]
    knobs = [k for k in chosen.knobs() if k.name in ("micro_batch", "compile") or options.random() < 0.85]
    offered = [*PATCHES, *(EXPERT_PATCHES if chosen.model.experts else ())]
    names = {offered[i].name for i in options.choice(len(offered), size=chosen.patches, replace=False)}
    names |= {need for p in offered if p.name in names for need in p.needs}
    patches = tuple(p for p in offered if p.name in names)
    strengths = tuple(float(s) for s in constants.uniform(0.2, 1.4, len(patches)))
    stalls = chosen.stalls * float(constants.lognormal(0, 0.4))
    machine, model = perturbed(chosen.machine, constants), perturbed(chosen.model, constants)
    return World(machine, model, stalls, tuple(knobs), patches, strengths)


class Landscape:
    """A job of one kind and seed. Immutable; a session holds the random stream of a search's trials."""

    def __init__(
        self, kind: str, seed: int, *, split: Split = "dev", claims: Claims = "honest", experience: Experience = "none"
    ) -> None:
        """Build the job. Claims and experience change what is told, never what is true."""
        self.kind, self.seed = kind, seed
        code = [sorted(KINDS).index(kind), SPLITS[split] + seed]
        self.world = _world(kind, np.random.default_rng([1, *code]), np.random.default_rng([2, *code]))
        # What catalogues say was learnt on other jobs of the kind.
        sibling = _world(kind, np.random.default_rng([1, *code]), np.random.default_rng([3, *code]))
        self._claims = _told(sibling, np.random.default_rng([4, *code]), claims, experience, self.world)
        self.space = Space(self._knobs(), self._patches())
        rng = np.random.default_rng([5, *code])
        spec = KINDS[kind]
        self.base = self.world.cost(np.zeros(self.space.width, dtype=np.int64))
        self.capacity = self.base.reserved * float(rng.uniform(*spec.tightness))
        self.noise_sd = float(rng.uniform(spec.noise[0] / 2, spec.noise[0] * 1.5))
        self.straggling = float(rng.uniform(0, 2 * spec.noise[1]))
        self.crashes = self._crash_pairs(rng)
        self._session_code = [6, *code]

    def encode(self, candidate: Candidate) -> Rows:
        """Return the row of a candidate."""
        return self.space.encode(candidate)

    def fails(self, row: Rows) -> str:
        """Return how a row fails without regard to memory, or the empty string."""
        for (a, i), (b, j), how in self.crashes:
            if row[a] == i and row[b] == j:
                return how
        return ""

    def fits(self, row: Rows) -> bool:
        """Return whether a row stays within the device."""
        return self.world.cost(row).reserved <= self.capacity

    def log_ratio(self, row: Rows) -> float:
        """Return the noise-free log of step seconds over the baseline's."""
        return math.log(self.world.cost(row).seconds / self.base.seconds)

    def session(self, seed: int) -> Session:
        """Return a session of trials with its own noise."""
        return Session(self, np.random.default_rng([*self._session_code, seed]))

    @cached_property
    def best(self) -> tuple[float, Rows]:
        """Return (log ratio, row) of the best known row that runs: random rows and local search on the truth."""
        rng = np.random.default_rng([7, *self._session_code])
        zero = np.zeros(self.space.width, dtype=np.int64)
        random = self.space.repair(rng.integers(self.space.sizes, size=(1500, self.space.width)))
        ranked = sorted(random, key=self._value)
        starts = [zero, *ranked[:5]]
        ends = [self._descend(row) for row in starts]
        found = min(ends, key=self._value)
        for _ in range(6):  # kicks out of the local optimum
            kicked = found.copy()
            at = rng.choice(self.space.width, size=min(4, self.space.width), replace=False)
            kicked[at] = rng.integers(self.space.sizes[at])
            found = min(found, self._descend(self.space.repair(kicked[None, :])[0]), key=self._value)
        return self._value(found), found

    def _value(self, row: Rows) -> float:
        if self.fails(row):
            return math.inf
        truth = self.world.cost(row)
        return math.log(truth.seconds / self.base.seconds) if truth.reserved <= self.capacity else math.inf

    def _descend(self, row: Rows) -> Rows:
        value = self._value(row)
        while True:
            nearest = min(self.space.moves(row), key=self._value)
            if not self._value(nearest) < value - 1e-9:
                return row
            row, value = nearest, self._value(nearest)

    def _crash_pairs(self, rng: np.random.Generator) -> list[tuple[tuple[int, int], tuple[int, int], str]]:
        """Return pairs of levels that fail, mostly of a compiler or parallel setting with a risky patch."""
        names = [d.name for d in self.space.dimensions]
        risky = [
            i for i, n in enumerate(names) if n in ("compile", "sharding", "tensor_parallel", "dispatch", "NCCL_ALGO")
        ]
        first_patch = len(self.world.knobs)
        risks = np.array([p.risk for p in self.world.patches])
        found: list[tuple[tuple[int, int], tuple[int, int], str]] = []
        for _ in range(int(rng.integers(3, 7))):
            a = int(rng.choice(risky))
            b = first_patch + int(rng.choice(risks.size, p=risks / risks.sum()))
            # "With the setting left as it is" is a pair as well, now and then.
            level = 0 if rng.random() < 0.15 else int(rng.integers(1, self.space.sizes[a]))
            found.append(((a, level), (b, 1), "hang" if rng.random() < 0.1 else "crash"))
        others = [i for i in range(first_patch) if i not in risky]
        for _ in range(2):
            a, b = int(rng.choice(risky)), int(rng.choice(others))
            found.append(
                (
                    (a, int(rng.integers(1, self.space.sizes[a]))),
                    (b, int(rng.integers(1, self.space.sizes[b]))),
                    "crash",
                )
            )
        if rng.random() < 0.3:
            at = first_patch + int(rng.integers(risks.size))
            found.append(((at, 1), (at, 1), "rejected"))
        return found

    def _knobs(self) -> list[Knob]:
        made = []
        for i, k in enumerate(self.world.knobs):
            levels = [Level(k.levels[0][0])]
            levels += [Level(n, (Assignment("flag", f"--{k.name}", n),)) for n, _ in k.levels[1:]]
            claims = tuple(self._claims.get((i, j), ()) for j in range(len(levels)))
            made.append(Knob(k.name, "flag", tuple(levels), k.ordinal, claims))
        return made

    def _patches(self) -> list[Patch]:
        start, present = len(self.world.knobs), {p.name for p in self.world.patches}
        return [
            Patch(
                p.name, p.name, "", "catalogue", self._claims.get((start + i, 1), ()), "reorder", p.needs,
                tuple(c for c in p.conflicts if c in present),
            )
            for i, p in enumerate(self.world.patches)
        ]  # fmt: skip


@dataclass
class Session:
    """Trials of one search on one landscape."""

    landscape: Landscape
    rng: np.random.Generator

    def baseline(self) -> tuple[float, int, Noise]:
        """Return (seconds, allocated bytes, noise) as some repeats of the baseline show them."""
        land = self.landscape
        seconds = np.mean([self._seconds(land.base.seconds) for _ in range(BASELINE_REPEATS)])
        sd = land.noise_sd * float(self.rng.uniform(0.7, 1.4))
        noise = Noise(sd, sd, 0.1, 0.0, 2, 10, max(0.005, 2.3 * 0.5 * sd), BASELINE_REPEATS)
        return float(seconds), int(land.base.allocated), noise

    def run(self, candidate: Candidate) -> Observation:
        """Return what a trial of a candidate shows."""
        land = self.landscape
        row = land.encode(candidate)
        failure = land.fails(row)
        if failure:
            return Observation(candidate, failure, None, None, land.noise_sd)  # type: ignore[arg-type]
        truth = land.world.cost(row)
        if truth.reserved * float(np.exp(self.rng.normal(0, 0.003))) > land.capacity:
            peak = min(truth.allocated, land.capacity * float(self.rng.uniform(0.86, 0.98)))
            return Observation(candidate, "oom", None, int(peak), land.noise_sd)
        return Observation(candidate, "ok", self._seconds(truth.seconds), int(truth.allocated), land.noise_sd)

    def _seconds(self, seconds: float) -> float:
        land = self.landscape
        late = 0.08 * abs(float(self.rng.standard_t(STRAGGLER_DOF))) if self.rng.random() < land.straggling else 0.0
        return seconds * math.exp(float(self.rng.normal(0, land.noise_sd)) + late)


def _told(
    sibling: World, rng: np.random.Generator, claims: Claims, experience: Experience, truth: World
) -> dict[tuple[int, int], tuple[Claim, ...]]:
    """Return claims per (dimension, level): of a catalogue learnt elsewhere, of experience on this very job."""
    told: dict[tuple[int, int], tuple[Claim, ...]] = {}
    zero = np.zeros(len(sibling.sizes), dtype=np.int64)
    for d, size in enumerate(sibling.sizes):
        for level in range(1, size):
            row = zero.copy()
            row[d] = level
            time, memory = _ratios(sibling, row)
            noisy, silent = np.exp(rng.normal(0, 0.4)), rng.random() < 0.25
            sign = -1 if rng.random() < 0.12 else 1
            confidence = float(rng.uniform(*TRUST_RANGE))
            flip = -1 if claims == "flipped" else 1
            given: list[Claim] = []
            if claims != "none" and not silent:
                given.append(_claim("catalogue", flip * sign * noisy * time, flip * memory, confidence))
            if experience != "none":
                own, size_ratio = _ratios(truth, row)
                flip = -1 if experience == "wrong" else 1
                given.append(_claim("bank", flip * own, flip * size_ratio, 0.7))
            told[(d, level)] = tuple(given)
    return told


def _ratios(world: World, row: Rows) -> tuple[float, float]:
    base, changed = world.cost(np.zeros_like(row)), world.cost(row)
    return math.log(changed.seconds / base.seconds), math.log(changed.allocated / base.allocated)


def _claim(source: str, log_time: float, log_memory: float, confidence: float) -> Claim:
    return replace(
        Claim(source), time_factor=math.exp(log_time), memory_factor=math.exp(log_memory), confidence=confidence
    )
