"""What a run has done so far: a pure replay of its ledger. Resume, report, apply, status and gc all read this."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infrarsi.codec import decode, digest, encode
from infrarsi.errors import InfrarsiError, UsageError
from infrarsi.ledger import Ledger
from infrarsi.records import (
    Calibration,
    Candidate,
    Effect,
    Examination,
    Hardware,
    Knob,
    LedgerLine,
    Pair,
    Patch,
    Trial,
    Verdict,
)
from infrarsi.vcs.door import Repository


@dataclass(frozen=True)
class Tried:
    """One candidate as it was built: its number, its commit on `infrarsi/<run>/<number>`."""

    number: int
    candidate: Candidate
    commit: str


@dataclass
class RunState:
    """The replay. Mutable while it is built, read-only afterwards."""

    run: str
    started: dict[str, Any] = field(default_factory=dict)
    candidates: dict[int, Tried] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    pairs: dict[tuple[str, int], list[Pair]] = field(default_factory=dict)
    ablations: list[dict[str, Any]] = field(default_factory=list)
    verdicts: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    finalists: tuple[int, ...] = ()
    looks: tuple[int, ...] = ()
    search_ended: str = ""
    effects: tuple[Effect, ...] = ()
    ended: dict[str, Any] | None = None
    in_flight: dict[str, dict[str, Any]] = field(default_factory=dict)
    busy_seconds: float = 0.0
    examinations: dict[tuple[str, str], Examination] = field(default_factory=dict)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Knobs of the run's search space."""
        return tuple(decode(Knob, value) for value in self.started.get("knobs", ()))

    @property
    def patches(self) -> tuple[Patch, ...]:
        """Patches of the run's search space."""
        return tuple(decode(Patch, value) for value in self.started.get("patches", ()))

    @property
    def final(self) -> Verdict | None:
        """The verdict that counts: of the minimal commit against the baseline, else of the best finalist."""
        final = [v for (stage, _), v in self.verdicts.items() if stage == "final"]
        return final[-1] if final else None

    @property
    def search_trials(self) -> list[Trial]:
        """Finished search trials in order."""
        return [t for t in self.trials if t.role == "search"]

    def tried(self, candidate: Candidate) -> Tried | None:
        """Return the candidate's build if this run has one."""
        return next((t for t in self.candidates.values() if t.candidate == candidate), None)


def replay(run: str, lines: Sequence[LedgerLine]) -> RunState:
    """Fold the ledger's lines into a state."""
    state = RunState(run)
    for line in lines:
        _fold(state, line.kind, line.body)
    return state


def _fold(state: RunState, kind: str, body: dict[str, Any]) -> None:
    if kind == "run-started":
        state.started = body
    elif kind == "candidate":
        state.candidates[body["number"]] = Tried(body["number"], decode(Candidate, body["candidate"]), body["commit"])
    elif kind == "trial-started":
        state.in_flight[body["id"]] = body
    elif kind == "trial":
        trial = decode(Trial, body)
        state.in_flight.pop(trial.id, None)
        state.trials.append(trial)
        state.busy_seconds += trial.wall_seconds
    elif kind == "effects":
        state.effects = tuple(decode(Effect, value) for value in body["effects"])
    elif kind == "search-ended":
        state.search_ended = body["reason"]
    elif kind == "finalists":
        state.finalists = tuple(item["number"] for item in body["candidates"])
        state.looks = tuple(body["pairs_per_look"])
    elif kind == "pair":
        state.pairs.setdefault((body["stage"], body["number"]), []).append(decode(Pair, body["pair"]))
    elif kind == "ablation":
        state.ablations.append(body)
    elif kind == "verdict":
        state.verdicts[(body["stage"], body["number"])] = decode(Verdict, body["verdict"])
    elif kind == "examination":
        examination = decode(Examination, body["examination"])
        state.examinations[(body["stage"], body["subject"])] = examination
        state.busy_seconds += examination.wall_seconds
    elif kind == "run-ended":
        state.ended = body


def new_run_id() -> str:
    """Return a run id that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def runs_folder(repo: Repository) -> Path:
    """Return the folder that holds one folder per run."""
    return repo.state_dir / "runs"


def list_runs(repo: Repository) -> list[str]:
    """Return the ids of all runs kept here, oldest first."""
    folder = runs_folder(repo)
    return sorted(p.parent.name for p in folder.glob("*/ledger.jsonl")) if folder.exists() else []


def open_run(repo: Repository, run: str | None) -> tuple[str, Ledger, RunState]:
    """Return the named run (or the newest) and its replay. UsageError where there is none."""
    runs = list_runs(repo)
    if not runs:
        raise UsageError("there is no run to read", why="nothing was measured here yet", hint="git infrarsi run")
    chosen = run or runs[-1]
    matches = [r for r in runs if r == chosen or r.startswith(chosen)]
    if len(matches) != 1:
        raise UsageError(
            f"no run is called {chosen}" if not matches else f"{chosen} is the beginning of several runs",
            why=f"runs here: {', '.join(runs[-5:])}",
            hint="git infrarsi report RUN",
        )
    ledger = Ledger(runs_folder(repo) / matches[0] / "ledger.jsonl")
    return matches[0], ledger, replay(matches[0], list(ledger.replay()))


def doctor_ledger(repo: Repository) -> Ledger:
    """Return the ledger of this machine's calibrations."""
    return Ledger(repo.state_dir / "doctor.jsonl")


def keep_calibration(repo: Repository, calibration: Calibration) -> str:
    """Append a calibration to this machine's ledger; return the digest that names it in runs and audits.

    The digest is that of the record alone, not of its place here, so that whoever has the record can compute it.
    """
    # Reading turns 1 into 1.0 where a float belongs; what is written is what a reader will write again.
    doctor_ledger(repo).append("calibration", read := decode(Calibration, encode(calibration)))
    return digest(read)


def latest_calibration(
    repo: Repository, contract_digest: str, hardware: Hardware | None
) -> tuple[str, Calibration] | None:
    """Return the newest calibration of a contract on this hardware (None: any), after its digest."""
    for line in reversed(doctor_ledger(repo).of_kind("calibration")):
        calibration = _calibration(line)
        if calibration and calibration.contract_digest == contract_digest and hardware in (None, calibration.hardware):
            return digest(calibration), calibration
    return None


def calibration_by_digest(repo: Repository, named: str) -> Calibration | None:
    """Return the calibration with this digest, None where this machine does not keep it."""
    line = next((v for v in doctor_ledger(repo).of_kind("calibration") if digest(v.body) == named), None)
    return _calibration(line) if line else None


def _calibration(line: LedgerLine) -> Calibration | None:
    """Return a ledger line's calibration; None for a record of another version, which doctor replaces."""
    try:
        return decode(Calibration, line.body)
    except InfrarsiError:
        return None
