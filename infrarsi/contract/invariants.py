"""Ring 2: did this execution train what the contract says, on what it says, as it says?

Reads what the ranks reported and compares it with the lock (counts, parameters, hyper-parameters) and with the trace of
the baseline on this machine (rows, loss, gradient norm, update). Each check is one function that yields violations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infrarsi.contract import numbers
from infrarsi.contract.envelopes import common, sum_hashes, trace
from infrarsi.records import Calibration, Contract, HyperParameters, Numerics, RankEnd, StepRecord, TraceStep, Violation

# Window means of rows and tokens where batches differ in length: 5 % is beyond any sampler's scatter over a window and
# far below what dropped tokens would have to save to be worth it.
_COUNT_TOLERANCE = 0.05
# Rates of distinct rows scatter with the sampler; a cached or repeated batch halves them.
_UNIQUE_TOLERANCE = 0.2
# Honest float32 steps are 1e-7 off the float64 shadow once what rounds a weight is taken out (4e-4 with it), up to 6e-4
# where a device holds beta2 as float32. Weights kept in bfloat16 are 0.1 to 0.8 off, a skipped step 1.0, a learning
# rate as much as it was changed, one frozen parameter of N about 1/sqrt(N): 0.01 finds one in 10,000.
SHADOW_LIMIT = 0.01
# Hyper-parameters come from the same formula in Python floats; a tensor lr (fused, capturable) holds float32.
_HYPER_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Evidence:
    """What the checks read: the contract, the baseline's trace, the ranks' records and their sum over ranks."""

    contract: Contract
    reference: tuple[TraceStep, ...]
    steps: tuple[StepRecord, ...]
    merged: tuple[TraceStep, ...]
    ends: tuple[RankEnd, ...]

    @property
    def exact(self) -> bool:
        """Whether each step must have the baseline's rows."""
        return self.contract.workload.data_level == "exact"

    def excused(self, *words: str) -> bool:
        """Whether the contract says that the baseline itself did not show this."""
        names = [n.lower().replace("_", " ").replace("-", " ") for n in self.contract.invariants.unobserved]
        return any(word in name for word in words for name in names)


def check(
    contract: Contract,
    calibration: Calibration | None,
    steps: Sequence[StepRecord],
    ends: Sequence[RankEnd],
    *,
    numerics: Numerics,
) -> tuple[Violation, ...]:
    """Return every invariant that did not hold, in plain words (R-A3); empty when all did.

    Without a calibration only what the lock holds is compared. `numerics` is the class of the change, which chooses the
    envelope. What the contract lists as unobserved cannot fail.
    """
    ranks = {s.rank for s in steps}
    merged = trace(steps, len(ranks))
    evidence = Evidence(contract, calibration.trace if calibration else (), tuple(steps), merged, tuple(ends))
    if not merged:
        why = "no rank reported one" if not steps else "the ranks have no complete step in common"
        return (violation("optimizer-steps", f"no optimizer step was made: {why}", "0 steps", "at least 1"),)
    found: list[Violation] = []
    checks = (_reported, _counts, _rows, _unique, _parameters, _optimizer, _hyper, _shadow, _clips, _ranks, _tampering)
    for one in checks:
        found += one(evidence)
    found += numbers.check_finite(steps)
    if calibration is not None:
        found += numbers.check_numbers(contract, calibration, merged, numerics, evidence.excused)
    return tuple(found)


def violation(name: str, message: str, observed: str = "", allowed: str = "") -> Violation:
    """Return a violation of this ring."""
    return Violation("invariant", name, message, observed=observed, allowed=allowed)


def _reported(e: Evidence) -> Iterator[Violation]:
    """Every rank reports every step and its end; what could be observed of the baseline must be observed again."""
    ranks = sorted({s.rank for s in e.steps})
    silent = [r for r in ranks if r not in {end.rank for end in e.ends}]
    if silent or not e.ends:
        yield violation("report", f"rank {_list(silent or ranks)} gave no final report", "absent", "one per rank")
    present = {s.step for s in e.merged}
    missing = [n for n in range(1, max(present) + 1) if n not in present]
    if missing:
        message = f"optimizer step {_list(missing)} was not reported by all ranks"
        yield violation("report", message, f"{len(present)} steps", f"{max(present)}")
    new = sorted({n for end in e.ends for n in end.unobserved} - set(e.contract.invariants.unobserved))
    if new:
        message = f"{_list(new)} could not be observed, though the baseline showed it"
        yield violation("unobserved", message, _list(new), _list(e.contract.invariants.unobserved) or "nothing")


def _counts(e: Evidence) -> Iterator[Violation]:
    work = e.contract.workload
    for name, locked in (("rows", work.rows_per_step), ("tokens", work.tokens_per_step)):
        if e.excused("rows", name):
            continue
        if e.exact:
            yield from _counts_by_step(e, name, locked)
        else:
            yield from _counts_over_window(e, name, locked)


def _counts_by_step(e: Evidence, name: str, locked: int) -> Iterator[Violation]:
    """At the same rows, each step has the count of the trace's step; batches of one size have the contract's always."""
    known = {t.step: getattr(t, name) for t in e.reference} or {1: locked}
    steady = set(known.values()) == {locked} and len(known) > 1
    for step in e.merged:
        expected = known.get(step.step, locked if steady else None)
        if expected is not None and getattr(step, name) != expected:
            yield _count(name, f"optimizer step {step.step}", getattr(step, name), expected)
            return


def _counts_over_window(e: Evidence, name: str, locked: int) -> Iterator[Violation]:
    values = [getattr(t, name) for t in e.merged]
    known = [getattr(t, name) for t in e.reference]
    if known and len(set(known)) == 1:
        wrong = next((t for t in e.merged if getattr(t, name) != known[0]), None)
        if wrong is not None:
            yield _count(name, f"optimizer step {wrong.step}", getattr(wrong, name), known[0])
        return
    mean, expected = statistics.fmean(values), statistics.fmean(known) if known else float(locked)
    if abs(mean - expected) > _COUNT_TOLERANCE * expected:
        yield _count(name, "the mean step", round(mean), round(expected))


def _count(name: str, where: str, observed: int, expected: int) -> Violation:
    message = f"{where} consumed {observed} {name}; the contract has {expected}"
    return violation(name, message, str(observed), str(expected))


def _rows(e: Evidence) -> Iterator[Violation]:
    """Same rows at each step (`exact`), or over the window (`same-set`)."""
    pairs = [(a, b) for a, b in common(e.reference, e.merged) if a.rows and int(a.row_hash or "0", 16)]
    level = e.contract.workload.data_level
    if not pairs or level == "sampled":
        return
    if level == "same-set":
        expected, observed = (sum_hashes(t.row_hash for t in side) for side in zip(*pairs, strict=True))
        if expected != observed:
            message = f"the rows of steps 1 to {pairs[-1][0].step} are not the rows that the baseline read in them"
            yield violation("same-rows", message, observed, expected)
        return
    wrong = [(a, b) for a, b in pairs if a.row_hash != b.row_hash]
    if wrong:
        a, b = wrong[0]
        message = (
            f"optimizer step {a.step} trained on other rows than the baseline's ({len(wrong)} of {len(pairs)} steps)"
        )
        yield violation("same-rows", message, b.row_hash, a.row_hash)
    changed = [(a, b) for a, b in pairs if a.row_hash == b.row_hash and a.token_hash != b.token_hash]
    if changed:
        a, b = changed[0]
        yield violation("same-tokens", f"the tokens of optimizer step {a.step} differ", b.token_hash, a.token_hash)


def _unique(e: Evidence) -> Iterator[Violation]:
    """No batch twice: not at two steps, not on two ranks, not within a rank, unless the baseline does so too."""
    pairs = [p for p in common(e.reference, e.merged) if p[0].rows and p[1].rows]
    if not pairs or e.excused("rows"):
        return
    before, after = (_repeats(side) for side in zip(*pairs, strict=True))
    if after > max(before, math.ceil(before * (1 + _UNIQUE_TOLERANCE))):
        message = f"{after} of {len(pairs)} optimizer steps repeat the rows of another one; the baseline: {before}"
        yield violation("repeated-rows", message, str(after), str(before))
    fewer = next(((a, b) for a, b in pairs if b.parts < min(a.parts, _ranks_of(e))), None)
    if fewer:
        message = f"ranks trained on the same rows at optimizer step {fewer[0].step}"
        yield violation("repeated-rows", message, f"{fewer[1].parts} different parts", f"{fewer[0].parts}")
    rates = [[t.unique_rows / t.rows for t in side if t.unique_rows is not None] for side in zip(*pairs, strict=True)]
    if rates[0] and rates[1]:
        expected, observed = statistics.fmean(rates[0]), statistics.fmean(rates[1])
        if observed < expected * (1 - _UNIQUE_TOLERANCE):
            message = f"only {observed:.0%} of the rows within a batch differ; of the baseline's {expected:.0%}"
            yield violation("repeated-rows", message, f"{observed:.3f}", f"{expected:.3f}")


def _repeats(steps: Sequence[TraceStep]) -> int:
    return len(steps) - len({t.row_hash for t in steps})


def _ranks_of(e: Evidence) -> int:
    return len({s.rank for s in e.steps})


def _parameters(e: Evidence) -> Iterator[Violation]:
    """Names, shapes, dtypes and what is trained stay as they are: no smaller model, nothing frozen."""
    refused = next((end.state_map_refused for end in e.ends if end.state_map_refused), "")
    if refused:
        yield violation("state-map", refused)
    locked = {p.name: p for p in e.contract.invariants.parameters}
    first = min(e.ends, key=lambda end: end.rank, default=None)
    if not locked or first is None or e.excused("parameters"):
        return
    now = {p.name: p for p in first.parameters}
    for word, names in (("missing", locked.keys() - now.keys()), ("new", now.keys() - locked.keys())):
        if names:
            message = f"{len(names)} parameters are {word}: {_list(sorted(names))}"
            yield violation("parameters", message, f"{len(now)} parameters", f"{len(locked)}")
    for field, word in (("shape", "shape"), ("dtype", "dtype"), ("trainable", "trainable")):
        pairs = [(n, getattr(p, field), getattr(now[n], field)) for n, p in locked.items() if n in now]
        wrong = [(n, was, value) for n, was, value in pairs if was != value]
        if wrong:
            name, was, value = wrong[0]
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            message = f"parameter {name}{more}: {word} is {value}, the contract has {was}"
            yield violation("parameters", message, str(value), str(was))


def _optimizer(e: Evidence) -> Iterator[Violation]:
    """Each step applies every optimizer of the baseline as often as the baseline does."""
    expected = e.contract.invariants.optimizer_steps
    for end in e.ends:
        made = len({s.step for s in e.steps if s.rank == end.rank})
        # One step may be in flight when a rank ends.
        if not made or abs(end.optimizer_steps - expected * made) > expected:
            per_step = end.optimizer_steps / max(made, 1)
            message = f"rank {end.rank} stepped its optimizers {per_step:.2g} times a step; the contract has {expected}"
            yield violation("optimizer-steps", message, f"{end.optimizer_steps} in {made}", f"{expected} per step")
            return


def _hyper(e: Evidence) -> Iterator[Violation]:
    """Learning rate, betas, weight decay and the rest are the contract's at each step it saw, then the trace's."""
    if e.excused("hyper"):
        return
    first = min(e.ends, key=lambda end: end.rank, default=None)
    locked = e.contract.invariants.hyper_parameters
    if first is not None and locked:
        named = list(_hyper_values(locked, first.hyper_parameters, e.merged[-1].step))
        if named:
            yield named[0]
            return
    wrong = [a.step for a, b in common(e.reference, e.merged) if a.hyper_digest != b.hyper_digest]
    if wrong:
        message = f"optimizer hyper-parameters at step {_list(wrong)} are not the baseline's"
        yield violation("hyper-parameters", message, "other values", "the baseline's")


def _hyper_values(locked: Sequence[HyperParameters], now: Sequence[HyperParameters], last: int) -> Iterator[Violation]:
    groups = sorted({(h.optimizer, h.group) for h in locked} | {(h.optimizer, h.group) for h in now})
    horizon = min(max(h.step for h in locked), last)
    for optimizer, group in groups:
        for step in sorted({h.step for h in (*locked, *now) if h.step <= horizon}):
            was, value = _at(locked, optimizer, group, step), _at(now, optimizer, group, step)
            for key in sorted(was.keys() | value.keys()):
                if not _close(was.get(key), value.get(key)):
                    message = f"{key} of {optimizer} (group {group}) at step {step} is {value.get(key)}"
                    yield violation("hyper-parameters", message, str(value.get(key)), str(was.get(key)))


def _at(records: Sequence[HyperParameters], optimizer: str, group: int, step: int) -> dict[str, object]:
    """Return the values in force at `step`: records are written when values change."""
    mine = [h for h in records if h.optimizer == optimizer and h.group == group and h.step <= step]
    return dict(max(mine, key=lambda h: h.step).values) if mine else {}


def _close(a: object, b: object) -> bool:
    plain = (int, float)
    if isinstance(a, plain) and isinstance(b, plain):
        return math.isclose(a, b, rel_tol=_HYPER_TOLERANCE)
    return a == b


def _shadow(e: Evidence) -> Iterator[Violation]:
    """The parameters move as their optimizer's own rule moves them: none frozen, skipped, or kept in low precision."""
    beyond = beyond_shadow(e.steps)
    if beyond and not e.excused("shadow"):
        worst = max(beyond, key=lambda s: s.shadow_error or 0.0)
        kinds = _list(sorted({h.optimizer for end in e.ends for h in end.hyper_parameters})) or "the optimizer"
        message = (
            f"at optimizer step {_list(sorted({s.step for s in beyond}))} the parameters did not move as {kinds} moves "
            f"them with these gradients and hyper-parameters (a skipped step is 100 % off)"
        )
        yield violation("shadow", message, f"{min(worst.shadow_error or 0.0, 1e3):.0%} off", f"{SHADOW_LIMIT:.0%}")


def beyond_shadow(steps: Sequence[StepRecord]) -> tuple[StepRecord, ...]:
    """Return the steps whose parameters moved otherwise than their optimizer's rule says."""
    return tuple(s for s in steps if s.shadow_error is not None and not s.shadow_error <= SHADOW_LIMIT)


def _clips(e: Evidence) -> Iterator[Violation]:
    known = {t.step: t.clip_calls for t in e.reference}
    usual = e.contract.invariants.clips_per_step
    for step in e.merged:
        expected = known.get(step.step, usual)
        if (step.clip_calls > 0) != (expected > 0):
            word = "was not clipped" if expected else "was clipped"
            message = (
                f"the gradient of optimizer step {step.step} {word}; the contract has {expected} clip calls a step"
            )
            yield violation("clipping", message, str(step.clip_calls), str(expected))
            return


def _ranks(e: Evidence) -> Iterator[Violation]:
    """Data-parallel ranks end with the same parameters; a contract whose baseline shards them says so."""
    hashes = {end.rank: end.parameter_hash for end in e.ends if end.parameter_hash}
    if len(set(hashes.values())) > 1 and not e.excused("agree", "parameter hash"):
        observed = ", ".join(f"rank {r}: {h[:8]}" for r, h in sorted(hashes.items()))
        yield violation("rank-agreement", "the ranks ended with different parameters", observed, "all equal")


def _tampering(e: Evidence) -> Iterator[Violation]:
    outside = sorted({m for end in e.ends for m in end.modules_outside})
    if outside:
        message = f"modules were imported from outside the worktree: {_list(outside)}"
        yield violation("modules", message, _list(outside), "the worktree only")
    for end in e.ends:
        if not end.hooks_intact:
            yield violation("hooks", f"the probe's hooks were removed on rank {end.rank}", "changed", "intact")


def _list(values: Sequence[object], most: int = 3) -> str:
    shown = ", ".join(str(v) for v in values[:most])
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown
