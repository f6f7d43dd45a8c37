"""A machine and a campaign of numbers: the real doctor's noise, finals, removal and verdicts over simulated step times.

Nothing is executed; everything that decides (noise, drift, contest, paired, ablation, finals) is the tool's own code.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from infrarsi.commands.doctor import DEFAULT_REPEATS, MAX_DISTURBED
from infrarsi.commands.finals import finals
from infrarsi.commands.state import RunState, Tried
from infrarsi.records import Candidate, Effect, Outcome
from infrarsi.stats.drift import calm
from infrarsi.stats.noise import estimate_noise

EXECUTIONS = 130  # of one run: doctor, search, two finalists, removal, the minimal candidate


@dataclass(frozen=True)
class Machine:
    """How step times scatter here; all figures relative. Nothing of it is told to the code under test.

    `within` and `correlation`: AR(1) steps of one execution. `between`: what an execution is dealt as a whole (page
    placement, clock), Student's t with 4 degrees of freedom. `wander`: a random walk from one execution to the next;
    `slope`: a steady drift on top, per execution. `straggling`: share of steps that take half as long again or longer.
    `contended`: share of executions beside a neighbour, who takes up to half of the machine and shows as pressure.
    """

    steps: int = 12
    within: float = 0.025
    correlation: float = 0.3
    between: float = 0.008
    wander: float = 0.003
    slope: float = 0.0005
    straggling: float = 0.004
    contended: float = 0.03

    def executions(self, rng: np.random.Generator, runs: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return step seconds (runs, count, steps) around 1 s, and pressures (runs, count)."""
        shape = (runs, count, self.steps)
        steps = rng.standard_normal(shape, dtype=np.float32)
        keep, new = self.correlation, float(np.sqrt(1 - self.correlation**2))
        for k in range(1, self.steps):
            steps[..., k] = keep * steps[..., k - 1] + new * steps[..., k]
        steps = 1 + self.within * steps
        slow = rng.random(shape, dtype=np.float32) < self.straggling
        steps[slow] *= 1.5 + rng.exponential(0.5, int(slow.sum())).astype(np.float32)
        whole = self.between / np.sqrt(2) * rng.standard_t(4, (runs, count))  # sd of t(4) is the root of 2
        whole += np.cumsum(rng.normal(0, self.wander, (runs, count)), axis=1)
        whole += self.slope * rng.choice([-1, 1], (runs, 1)) * np.arange(count)
        pressure = np.where(rng.random((runs, count)) < self.contended, 0.5 * rng.random((runs, count)), 0.01)
        return steps * (np.exp(whole) / (1 - pressure))[..., None], pressure


class Measured(NamedTuple):
    mean_step_seconds: float
    peak_allocated_bytes: int = 1


class Execution(NamedTuple):
    id: str
    outcome: Outcome
    measurement: Measured
    pressure: float


OK = Outcome("ok")


class SimulatedCampaign:
    """What `finals` asks of a campaign, over the executions of one row in the order in which they are taken."""

    def __init__(self, noise, seconds, pressure, log_gains, effects=(), error_rate=0.05):
        self.calibration = SimpleNamespace(noise=noise)
        self.workspace = SimpleNamespace(contract=SimpleNamespace(budget=SimpleNamespace(error_rate=error_rate)))
        self.replays = SimpleNamespace(possible=False)  # What a candidate computes is not simulated.
        self.state = RunState("simulated", effects=tuple(effects))
        self.log_gains = log_gains  # of each part
        self._seconds, self._pressure, self._next = seconds, pressure, 0

    def log_gain(self, candidate: Candidate) -> float:
        return sum(self.log_gains[p] for p in candidate.patches)

    def build(self, candidate, why):
        found = self.state.tried(candidate)
        if found is None:
            number = len(self.state.candidates)
            found = self.state.candidates[number] = Tried(number, candidate, f"{number:040x}")
        return found

    @contextlib.contextmanager
    def checkout(self, tried):
        yield Path(str(tried.number))

    def dump_folder(self, stage, number):
        return Path(stage)

    def drop_dumps(self):
        """Nothing was written."""

    def shoot(self, tried, tree, role, *, block=0, why="", dump=None):
        at, self._next = self._next, self._next + 1
        seconds = self._seconds[at] * float(np.exp(-self.log_gain(tried.candidate)))
        return Execution(str(at), OK, Measured(seconds), self._pressure[at])

    def record(self, kind, body):
        """The replay's own fold, without the way through JSON."""
        state = self.state
        if kind == "pair":
            state.pairs.setdefault((body["stage"], body["number"]), []).append(body["pair"])
        elif kind == "verdict":
            state.verdicts[(body["stage"], body["number"])] = body["verdict"]
        elif kind == "ablation":
            state.ablations.append(body)
        elif kind == "finalists":
            state.finalists = tuple(item["number"] for item in body["candidates"])
            state.looks = tuple(body["pairs_per_look"])

    def say(self, text):
        pass

    def overdue(self):
        return False


class Ended(NamedTuple):
    """One simulated run: the last word, the true log gain of what it is about, the floor, and all executions taken."""

    decision: str
    log_gain: float
    floor: float
    between: float
    pairs: int
    executions: int


def doctor(steps, pressure):
    """Return the noise of the baseline's repeats, as doctor takes them, and how many executions it took."""
    taken = DEFAULT_REPEATS
    while len(calm(pressure[:taken])) < DEFAULT_REPEATS and taken < DEFAULT_REPEATS + MAX_DISTURBED:
        taken += 1
    return estimate_noise([steps[n] for n in calm(pressure[:taken])]), taken


def gain_at(floor: float) -> float:
    return float(np.log1p(floor))


def simulate(machine, rng, runs, gains, *, candidates=5, finalists=2, effects=(), error_rate=0.05):
    """Carry out whole runs: doctor, search by one execution each, the best `finalists`, removal, verification.

    `gains(floor, n)` gives the true log gain of each part of candidate n.
    """
    for start in range(0, runs, 500):
        count = min(500, runs - start)
        steps, pressure = machine.executions(rng, count, EXECUTIONS)
        means = steps.astype(float).mean(axis=2)
        for run in range(count):
            noise, used = doctor(steps[run], pressure[run])
            true = [gains(noise.floor, n) for n in range(candidates)]
            log_gains = {f"c{n}p{p}": gain for n in range(candidates) for p, gain in enumerate(true[n])}
            found = means[run, used : used + candidates] * np.exp([-sum(g) for g in true])
            used += candidates
            best = np.argsort(found)[:finalists]
            chosen = [Candidate((), tuple(f"c{n}p{p}" for p in range(len(true[n])))) for n in best]
            campaign = SimulatedCampaign(
                noise, means[run, used:].tolist(), pressure[run, used:].tolist(), log_gains, effects, error_rate
            )
            verdict = finals(campaign, chosen)
            gain = campaign.log_gain(verdict.candidate)
            yield Ended(verdict.decision, gain, noise.floor, noise.between_cv, len(verdict.pairs), campaign._next)


def believes(gain: float, sd: float, part: str) -> Effect:
    """What a search believes of a part that it was told the wrong thing about."""
    return Effect(part, "", -gain, sd, -gain, sd, "catalogue", 0.0)


def upper_bound(hits: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson bound."""
    from scipy.special import betaincinv

    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, level))
