"""A real training as a landscape: what `record` measured, replayed with the noise that was measured."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from infrarsi.codec import decode
from infrarsi.records import Candidate, Knob, Noise, Patch
from infrarsi.search.interface import Observation
from infrarsi.search.space import Rows, Space

from .landscapes import Landscape

ROOMY = 4  # without a budget the device holds this many times the largest peak


class RecordedLandscape:
    """Every combination of some knobs and patches with its measured trials. A repeated trial draws one of them."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        """Read a file that `record` wrote; `seed` is that of the methods and of what each trial draws."""
        held: dict[str, Any] = json.loads(path.read_text())
        self.kind, self.seed = path.stem, seed
        self.knobs = [decode(Knob, k) for k in held["knobs"]]
        self.patches = [decode(Patch, p) for p in held["patches"]]
        self.space = Space(self.knobs, self.patches)
        self.noise = decode(Noise, held["noise"])
        self.memory_terms: dict[str, int] = dict(held["memory_terms"])
        self._trials: dict[bytes, list[dict[str, Any]]] = {}
        for trial in held["trials"]:
            row = self.space.encode(decode(Candidate, trial["candidate"]))
            self._trials.setdefault(row.tobytes(), []).append(trial)
        peaks = [t["peak"] for t in held["trials"] if t["peak"]]
        self.capacity = float(held["budget"] or ROOMY * max(peaks))

    @property
    def rows(self) -> Rows:
        """Every row that was measured."""
        return np.array([np.frombuffer(key, dtype=np.int64) for key in self._trials])

    def encode(self, candidate: Candidate) -> Rows:
        """Return the row of a candidate."""
        return self.space.encode(candidate)

    def trials(self, row: Rows) -> list[dict[str, Any]]:
        """Return the trials of a row; one that was not measured is a mistake of the caller."""
        return self._trials[np.asarray(row, dtype=np.int64).tobytes()]

    def fails(self, row: Rows) -> str:
        """Return how a row fails most often without regard to memory, or the empty string."""
        commonest = Counter(t["outcome"] for t in self.trials(row)).most_common(1)[0][0]
        return "" if commonest in ("ok", "oom") else str(commonest)

    def fits(self, row: Rows) -> bool:
        """Return whether a row ran out of memory in no trial."""
        return all(t["outcome"] != "oom" for t in self.trials(row))

    def log_ratio(self, row: Rows) -> float:
        """Return the log of step seconds over the baseline's, each the geometric mean of its trials."""
        zero = np.zeros(self.space.width, dtype=np.int64)
        return self._log_seconds(row) - self._log_seconds(zero)

    def _log_seconds(self, row: Rows) -> float:
        seconds = [t["seconds"] for t in self.trials(row) if t["seconds"]]
        return float(np.mean(np.log(seconds))) if seconds else math.inf

    def spread(self) -> float:
        """Return the standard deviation of log seconds between trials of one row, pooled over all rows."""
        logs = [[math.log(t["seconds"]) for t in found if t["seconds"]] for found in self._trials.values()]
        pairs = [np.var(each, ddof=1) for each in logs if len(each) > 1]
        return math.sqrt(float(np.mean(pairs))) if pairs else 0.0

    @cached_property
    def best(self) -> tuple[float, Rows]:
        """Return (log ratio, row) of the fastest row that runs."""
        runs = [row for row in self.rows if not self.fails(row) and self.fits(row)]
        row = min(runs, key=self.log_ratio)
        return self.log_ratio(row), row

    def session(self, seed: int) -> RecordedSession:
        """Return a session of trials that draws by itself."""
        return RecordedSession(self, np.random.default_rng([self.seed, seed]))


@dataclass
class RecordedSession:
    """Trials of one method on one recorded landscape."""

    landscape: RecordedLandscape
    rng: np.random.Generator

    def baseline(self) -> tuple[float, int, Noise]:
        """Return (seconds, peak bytes, noise) of the baseline."""
        found = self.landscape.trials(np.zeros(self.landscape.space.width, dtype=np.int64))
        seconds = float(np.mean([t["seconds"] for t in found if t["seconds"]]))
        return seconds, max(int(t["peak"] or 0) for t in found), self.landscape.noise

    def run(self, candidate: Candidate) -> Observation:
        """Return what one of the candidate's trials showed."""
        found = self.landscape.trials(self.landscape.encode(candidate))
        drawn = found[int(self.rng.integers(len(found)))]
        error = max(self.landscape.noise.between_cv, 0.005)
        return Observation(candidate, drawn["outcome"], drawn["seconds"], drawn["peak"], error)


Job = Landscape | RecordedLandscape
