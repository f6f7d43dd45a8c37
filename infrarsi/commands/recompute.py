"""Recomputes a promoted verdict from its sealed evidence: chain, samples, interval, tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from infrarsi.commands.payload import Payload
from infrarsi.commands.state import RunState, replay
from infrarsi.errors import InfrarsiError
from infrarsi.ledger import parse
from infrarsi.records import Pair, Trial, Verdict
from infrarsi.vcs.door import Repository

TOLERANCE = 1e-6
Row = tuple[str, Literal["pass", "fail", "inconclusive"], str]


def recompute(repo: Repository, payload: Payload) -> Iterator[Row]:
    """Yield one row per check of the evidence; stops at the first that makes the later ones meaningless."""
    ref = f"refs/infrarsi/runs/{payload.run}"
    try:
        data = repo.read_blob(repo.resolve(payload.evidence), "ledger.jsonl")
    except InfrarsiError:
        data = None
    if data is None:
        yield "evidence", "inconclusive", f"run {payload.run} is not here: git fetch <remote> {ref}:{ref}"
        return
    try:
        lines, covered = parse(data, f"the ledger of {payload.run}")
    except InfrarsiError as error:
        yield "evidence", "fail", f"{error.what}: {error.why}"
        return
    if covered != len(data):
        yield "evidence", "fail", "the sealed ledger has a torn line"
        return
    state = replay(payload.run, lines)
    yield "evidence", "pass", f"{len(lines)} ledger lines, chain intact"
    yield from _facts(state, payload)
    verdict = state.final
    if verdict is None:
        yield "verdict", "fail", "the sealed run has no final verdict"
        return
    yield from _verdict(state, verdict, payload)


def _facts(state: RunState, payload: Payload) -> Iterator[Row]:
    expected = {
        "contract_digest": payload.contract,
        "base_commit": payload.base_commit,
        "calibration_digest": payload.calibration,
        "run": payload.run,
    }
    for key, value in expected.items():
        if state.started.get(key) != value:
            yield "evidence", "fail", f"the sealed run has another {key.replace('_', ' ')} than the audit"


def _verdict(state: RunState, verdict: Verdict, payload: Payload) -> Iterator[Row]:
    from infrarsi.stats.paired import Design, judge

    trials = {t.id: t for t in state.trials}
    wrong = [message for pair in verdict.pairs if (message := _pair_differs(pair, trials))]
    if wrong:
        yield "samples", "fail", wrong[0]
        return
    looks = tuple(state_looks(state))
    design = Design(looks, verdict.error_rate, verdict.finalists)
    again = judge(verdict.pairs, floor=verdict.floor, design=design, look=verdict.looks - 1)
    claimed = (payload.speedup, payload.low, payload.high)
    found = (again.speedup, again.low, again.high)
    if again.decision != "accepted" or any(abs(a - b) > TOLERANCE * b for a, b in zip(claimed, found, strict=True)):
        yield (
            "interval",
            "fail",
            f"recomputed {found[0]:.4f} [{found[1]:.4f}, {found[2]:.4f}], the audit says otherwise",
        )
        return
    yield (
        "interval",
        "pass",
        f"recomputed from {len(verdict.pairs)} pairs: {found[0]:.2f}x [{found[1]:.2f}, {found[2]:.2f}]",
    )


def state_looks(state: RunState) -> list[int]:
    """Return the looks that the finals were planned with."""
    from infrarsi.commands.finals import LOOKS

    return list(state.looks or LOOKS)


def _pair_differs(pair: Pair, trials: dict[str, Trial]) -> str:
    """Compare a pair's step times with the raw arrivals that the ledger keeps for its two trials."""
    from infrarsi.trial.collect import window_seconds

    for name, seconds in (
        (pair.baseline_trial, pair.baseline_step_seconds),
        (pair.candidate_trial, pair.candidate_step_seconds),
    ):
        trial = trials.get(name)
        if trial is None or trial.measurement is None or not trial.steps:
            return f"trial {name} has no samples in the sealed ledger"
        window, steps = window_seconds(trial.steps)
        if abs(window / steps - seconds) > TOLERANCE * seconds:
            return f"trial {name}: its samples give {window / steps:.6f} s a step, the pair says {seconds:.6f}"
    return ""
