"""Compares the search with what a user would pick instead, on simulated jobs; appends JSON lines, so it can resume.

    python -m tests.bench.compare --seeds 0-5 --trials 30 --out results.jsonl
    python -m tests.bench.compare --out results.jsonl --summary

Every method has the same number of trials, the baseline's among them, and is judged by the true step time of what it
would hand to verification: of its best trial by measurement, of its first finalist for ours.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from infrarsi.records import Candidate, Noise
from infrarsi.search.interface import WHOLE, Observation, Parts
from infrarsi.search.study import OptunaSearch

from .landscapes import KINDS, Claims, Experience, Landscape, Session, Split
from .recorded import Job, RecordedLandscape, RecordedSession
from .rivals import RIVALS, Rival

OURS = {"ours": WHOLE} | {f"ours without {part}": replace(WHOLE, **{part: False}) for part in asdict(WHOLE)}
METHODS = (*OURS, *RIVALS)


@dataclass(frozen=True)
class Result:
    """One method on one job: share of the best known log speed-up after each trial, failures, seconds per suggestion.

    The share of the first finalist at the end is the last of `progress`.
    """

    kind: str
    seed: int
    method: str
    claims: str
    experience: str
    trials: int
    progress: tuple[float, ...]
    failed: int
    suggestion_seconds: float

    @property
    def share(self) -> float:
        """Share of the best known log speed-up at the end, 0 where nothing faster was found."""
        return self.progress[-1] if self.progress else 0.0


def compare(landscape: Job, method: str, trials: int, claims: str = "honest", experience: str = "none") -> Result:
    """Run one method on one job."""
    session = landscape.session(0)
    seconds, peak, noise = session.baseline()
    if method in OURS:
        search = ours(landscape, OURS[method], seconds, peak, noise)
        progress, failed, waited = _run_ours(landscape, session, search, trials)
    else:
        rival = RIVALS[method](landscape)
        progress, failed, waited = _run_rival(landscape, session, rival, seconds, trials)
    per_trial = waited / max(1, len(progress))
    found = (landscape.kind, landscape.seed, method, claims, experience, trials)
    return Result(*found, tuple(round(p, 4) for p in progress), failed, per_trial)


def ours(landscape: Job, parts: Parts, seconds: float, peak: int, noise: Noise) -> OptunaSearch:
    """Return our search on a job whose baseline showed these seconds and bytes."""
    return OptunaSearch(
        landscape.space,
        baseline_step_seconds=seconds,
        baseline_peak_bytes=peak,
        memory_budget=int(landscape.capacity),
        noise=noise,
        seed=landscape.seed,
        parts=parts,
    )


def _run_ours(
    landscape: Job, session: Session | RecordedSession, search: OptunaSearch, trials: int
) -> tuple[list[float], int, float]:
    progress: list[float] = []
    failed, waited = 0, 0.0
    for _ in range(trials):
        before = time.perf_counter()
        proposal = search.ask()
        waited += time.perf_counter() - before
        if proposal is None:
            break
        seen = session.run(proposal.candidate)
        search.tell(seen)
        failed += seen.outcome != "ok"
        progress.append(_share(landscape, search.finalists(1)))
    return progress, failed, waited


def _run_rival(
    landscape: Job, session: Session | RecordedSession, rival: Rival, seconds: float, trials: int
) -> tuple[list[float], int, float]:
    progress: list[float] = []
    best, chosen, failed, waited = seconds, Candidate(), 0, 0.0
    for number in range(trials):
        before = time.perf_counter()
        candidate = Candidate() if number == 0 else rival.ask()
        waited += time.perf_counter() - before
        seen: Observation = session.run(candidate)
        rival.tell(candidate, seen)
        failed += seen.outcome != "ok"
        if seen.step_seconds is not None and seen.step_seconds < best:
            best, chosen = seen.step_seconds, candidate
        progress.append(_share(landscape, [chosen]))
    return progress, failed, waited


def _share(landscape: Job, chosen: Sequence[Candidate]) -> float:
    """Return the true log speed-up of the chosen one over the best known; 0 where it is none or does not run."""
    if not chosen:
        return 0.0
    row = landscape.encode(chosen[0])
    if landscape.fails(row) or not landscape.fits(row):
        return 0.0
    return max(0.0, landscape.log_ratio(row) / landscape.best[0])


def summary(results: Sequence[Result]) -> str:
    """Return a table: per kind and over all, median and quartiles of the share, median failures, paired difference."""
    lines = [f"{'kind':16}{'method':32}{'share':>7}{'quartiles':>14}{'failed':>8}{'ours - it [95 %]':>24}{'n':>5}"]
    by_key = {(r.kind, r.seed, r.claims, r.experience, r.method): r for r in results}
    kinds = [*sorted({r.kind for r in results}), ""]
    for kind in kinds:
        for method in sorted({r.method for r in results}):
            mine = [r for r in results if r.method == method and kind in ("", r.kind)]
            if not mine:
                continue
            low, middle, high = np.percentile([r.share for r in mine], [25, 50, 75])
            pairs = [(by_key.get((r.kind, r.seed, r.claims, r.experience, "ours")), r) for r in mine]
            differences = np.array([a.share - b.share for a, b in pairs if a is not None])
            failed = np.median([r.failed for r in mine])
            lines.append(
                f"{kind or 'all':16}{method:32}{middle:7.2f}{f'[{low:.2f}, {high:.2f}]':>14}{failed:8.0f}"
                f"{_interval(differences) if method != 'ours' else '':>24}{len(mine):5}"
            )
    return "\n".join(lines)


def _interval(differences: np.ndarray) -> str:
    """Return the mean paired difference with its percentile bootstrap interval."""
    if differences.size < 2:
        return ""
    rng = np.random.default_rng(0)
    means = rng.choice(differences, size=(2000, differences.size)).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


def read(path: Path) -> list[Result]:
    """Return the results in a file of JSON lines; none where it is not there."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**{**json.loads(line), "progress": tuple(json.loads(line)["progress"])}) for line in lines]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing from the file, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=sorted(KINDS), choices=sorted(KINDS))
    parser.add_argument("--seeds", default="0-2", help="first-last, both included")
    parser.add_argument("--split", default="dev", choices=("dev", "test"))
    parser.add_argument("--methods", nargs="+", default=["ours", *RIVALS], choices=METHODS, metavar="METHOD")
    parser.add_argument("--claims", default="honest", choices=("honest", "none", "flipped"))
    parser.add_argument("--experience", default="none", choices=("none", "right", "wrong"))
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument(
        "--recorded", nargs="*", type=Path, default=[], help="files of `record`, in place of simulated jobs"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.summary:
        print(summary(read(chosen.out)))
        return
    made: Iterable[Job] = (RecordedLandscape(path, seed) for seed in seeds(chosen.seeds) for path in chosen.recorded)
    if not chosen.recorded:
        told: tuple[Split, Claims, Experience] = (chosen.split, chosen.claims, chosen.experience)
        made = (_simulated(kind, seed, *told) for seed in seeds(chosen.seeds) for kind in chosen.kinds)
    done = {(r.kind, r.seed, r.claims, r.experience, r.trials, r.method) for r in read(chosen.out)}
    for landscape in made:
        for method in chosen.methods:
            if (landscape.kind, landscape.seed, chosen.claims, chosen.experience, chosen.trials, method) in done:
                continue
            result = compare(landscape, method, chosen.trials, chosen.claims, chosen.experience)
            with chosen.out.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")


def seeds(text: str) -> range:
    """Return the seeds of `first-last`, both included."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _simulated(kind: str, seed: int, split: Split, claims: Claims, experience: Experience) -> Landscape:
    return Landscape(kind, seed, split=split, claims=claims, experience=experience)


if __name__ == "__main__":
    main()
