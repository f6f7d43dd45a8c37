"""Recomputes a promoted verdict from its sealed evidence: chain, tree, claims, samples, interval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from infrarsi.codec import canonical, decode, digest
from infrarsi.commands.payload import Payload
from infrarsi.commands.state import RunState, replay
from infrarsi.contract import lock as locks
from infrarsi.errors import InfrarsiError
from infrarsi.ledger import parse
from infrarsi.records import Assignment, Calibration, Candidate, Hardware, Pair, Trial, Verdict
from infrarsi.vcs.door import Repository

TOLERANCE = 1e-6
Row = tuple[str, Literal["pass", "fail", "inconclusive"], str]


def recompute(repo: Repository, payload: Payload, measured_tree: str) -> tuple[Row, ...]:
    """Return one row per check of the evidence, up to the first that makes the later ones meaningless.

    `measured_tree` is the tree that the promoted change has been measured as, if the audit tells the truth.
    """
    try:
        return tuple(_rows(repo, payload, measured_tree))
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, RuntimeError, InfrarsiError) as error:
        # Evidence comes from elsewhere: a ledger that chains well can still hold anything.
        return (("evidence", "fail", f"the sealed ledger cannot be replayed: {type(error).__name__}: {error}"),)


def _rows(repo: Repository, payload: Payload, measured_tree: str) -> Iterator[Row]:
    ref = f"refs/infrarsi/runs/{payload.run}"
    try:
        data = repo.read_blob(repo.resolve(payload.evidence), "ledger.jsonl")
    except InfrarsiError:
        where = f"evidence {payload.evidence[:12]} of run {payload.run}"
        yield "evidence", "inconclusive", f"{where} is not here: git fetch <remote> {ref}:{ref}"
        return
    if data is None:
        yield "evidence", "fail", "the sealed evidence holds no ledger"
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
    yield from _calibrated(repo, state, payload)
    verdict = state.final
    if verdict is None:
        yield "verdict", "fail", "the sealed run has no final verdict"
        return
    trees = {line.body["commit"]: line.body["tree"] for line in lines if line.kind == "candidate"}
    if trees.get(verdict.commit) != measured_tree:
        yield "candidate", "fail", "the sealed run measured another tree than the promoted one"
    yield from _claims(state, verdict, payload)
    yield from _samples(state, verdict)
    yield from _examined(repo, payload, state, verdict)
    yield from _interval(state, verdict, payload)


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


def _calibrated(repo: Repository, state: RunState, payload: Payload) -> Iterator[Row]:
    """The sealed calibration must be the one in the audit, of this contract and machine, with the run's floor."""
    data = repo.read_blob(repo.resolve(payload.evidence), "calibration.json")
    if data is None:
        yield "calibration", "fail", "the sealed evidence holds no calibration"
        return
    calibration = decode(Calibration, json.loads(data))
    if digest(calibration) != payload.calibration or canonical(calibration) != data.rstrip(b"\n"):
        yield "calibration", "fail", "the sealed calibration is not the one that the audit names"
        return
    facts = (
        ("contract", calibration.contract_digest, payload.contract),
        ("hardware", calibration.hardware, decode(Hardware, state.started["hardware"])),
        ("floor", calibration.noise.floor, state.started["floor"]),
    )
    wrong = [name for name, found, expected in facts if found != expected]
    if wrong:
        yield "calibration", "fail", f"the run says another {wrong[0]} than its calibration"
    else:
        yield "calibration", "pass", f"digest {payload.calibration[:12]}, floor {calibration.noise.floor:.1%}"


def _claims(state: RunState, verdict: Verdict, payload: Payload) -> Iterator[Row]:
    """Compare what the audit says beside the interval with the sealed verdict."""
    records = tuple(t for p in verdict.pairs for t in (p.baseline_trial, p.candidate_trial))
    facts = (
        ("settings", payload.settings, settings_of(state, verdict.candidate)),
        ("error rate", payload.error_rate, verdict.error_rate),
        ("number of pairs", payload.pairs, len(verdict.pairs)),
        ("records", payload.records, records),
    )
    for name, claimed, found in facts:
        if claimed != found:
            yield "verdict", "fail", f"the sealed verdict has another {name} than the audit"
    if verdict.finalists < len(state.finalists):
        yield "verdict", "fail", f"the error rate was not split over all {len(state.finalists)} finalists"
    if verdict.floor != state.started["floor"]:
        yield "verdict", "fail", "the sealed verdict was judged at another floor than the run's"


def settings_of(state: RunState, candidate: Candidate) -> tuple[Assignment, ...]:
    """Return the overlay to promote: what the baseline had already, the winner's settings, its patches' state maps."""
    merged = {(a.kind, a.target): a for a in (decode(Assignment, v) for v in state.started.get("launch", ()))}
    knobs = {k.name: k for k in state.knobs}
    for setting in candidate.settings:
        level = next(v for v in knobs[setting.knob].levels if v.label == setting.level)
        merged.update({(a.kind, a.target): a for a in level.assignments})
    for patch in state.patches:
        if patch.id in candidate.patches:
            merged.update({(a.kind, a.target): a for a in patch.state_map})
    return tuple(a for a in merged.values() if a.kind != "config")


def _samples(state: RunState, verdict: Verdict) -> Iterator[Row]:
    """The pairs must be all that were taken, of the right commits, and equal to their trials' raw arrivals."""
    trials = {t.id: t for t in state.trials}
    numbers = [n for n, t in state.candidates.items() if t.commit == verdict.commit]
    taken = [tuple(p for p in pairs if not p.voided) for (_, n), pairs in state.pairs.items() if n in numbers]
    if verdict.pairs not in taken:
        yield "samples", "fail", "the verdict rests on other pairs than those the ledger recorded"
    wrong = [message for pair in verdict.pairs if (message := _pair_differs(pair, verdict, state, trials))]
    if wrong:
        yield "samples", "fail", wrong[0]


def _examined(repo: Repository, payload: Payload, state: RunState, verdict: Verdict) -> Iterator[Row]:
    """What the promoted candidate computes must have been replayed by the baseline's code, and have held."""
    numbers = {str(n) for n, t in state.candidates.items() if t.commit == verdict.commit}
    found = [e for (stage, n), e in state.examinations.items() if stage != "patch" and n in numbers]
    if not found:
        yield "replay", "fail", "the sealed run never examined what the promoted candidate computes"
        return
    wrong = next((e for e in found if not e.passed), None)
    if wrong is not None:
        yield "replay", "fail", wrong.reason
        return
    checks = sorted({f.check for e in found for f in e.figures})
    skipped = [text for e in found for text in e.skipped]
    if not checks and not _excused(repo, payload):
        yield "replay", "fail", "the examination holds no figure, and the contract does not say that there can be none"
        return
    text = f"held: {', '.join(checks)}" if checks else "the contract lists it as unobserved"
    yield "replay", "pass", "; ".join((text, *(f"not checked: {s}" for s in skipped if checks)))


def _excused(repo: Repository, payload: Payload) -> bool:
    """Whether the sealed contract, which the audit names by its digest, says that steps cannot be replayed."""
    text = repo.read_blob(repo.resolve(payload.evidence), locks.FILE)
    if text is None:
        return False
    contract = locks.parse(text.decode())
    return locks.contract_digest(contract) == payload.contract and "replay" in contract.invariants.unobserved


def _pair_differs(pair: Pair, verdict: Verdict, state: RunState, trials: dict[str, Trial]) -> str:
    """Compare a pair with its two trials: what ran, how it ended, and the step times as they arrived."""
    from infrarsi.trial.collect import window_seconds

    for name, seconds, commit in (
        (pair.baseline_trial, pair.baseline_step_seconds, state.started["base_commit"]),
        (pair.candidate_trial, pair.candidate_step_seconds, verdict.commit),
    ):
        trial = trials.get(name)
        if trial is None or trial.measurement is None or not trial.steps:
            return f"trial {name} has no samples in the sealed ledger"
        if trial.commit != commit:
            return f"trial {name} ran {trial.commit[:12]}, not {commit[:12]}"
        if trial.outcome.kind != "ok" or trial.violations:
            return f"trial {name} ended with {trial.outcome.kind}; it decides nothing"
        window, steps = window_seconds(trial.steps)
        if not steps or abs(window / steps - seconds) > TOLERANCE * seconds:
            found = f"{window / steps:.6f} s a step" if steps else "no timed step"
            return f"trial {name}: its samples give {found}, the pair says {seconds:.6f}"
    return ""


def _interval(state: RunState, verdict: Verdict, payload: Payload) -> Iterator[Row]:
    from infrarsi.commands.finals import LOOKS
    from infrarsi.stats.paired import Design, judge

    design = Design(state.looks or LOOKS, verdict.error_rate, verdict.finalists)
    again = judge(verdict.pairs, floor=verdict.floor, design=design, look=verdict.looks - 1)
    claimed = (payload.speedup, payload.low, payload.high)
    found = (again.speedup, again.low, again.high)
    text = f"{found[0]:.4f} [{found[1]:.4f}, {found[2]:.4f}]"
    if again.decision != "accepted":
        yield "interval", "fail", f"recomputed {text}, which is not a win: {again.reason}"
    elif any(abs(a - b) > TOLERANCE * b for a, b in zip(claimed, found, strict=True)):
        said = f"{claimed[0]:.4f} [{claimed[1]:.4f}, {claimed[2]:.4f}]"
        yield "interval", "fail", f"recomputed {text}, the audit says {said}"
    else:
        yield "interval", "pass", f"recomputed from the samples of {len(verdict.pairs)} pairs: {text}"
