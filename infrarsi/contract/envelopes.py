"""How far an honest change may move the numbers: traces of the baseline, deviations between them, envelopes.

**One number per step, whatever the partition.** A step's loss is what its gradients come from: the sum over a rank's
backward calls, averaged over the ranks as data-parallel training averages gradients. Where the trainer divides the loss
by its accumulation steps (or sums over tokens), any split of one global batch gives that same number. Some trainers
divide the gradients instead; there it is the mean over all backward calls that stays. A trace holds both. The second
scale is accepted only where a rank's number of backward calls differs and the gradient norm is observed in both, so
that a loss that was merely rescaled is still caught by its gradient. With equal calls both scales say the same.

**Same rows or other rows.** Traces with the same rows step by step are compared step by step. Traces with other rows
(another seed, a random sampler) share no step, so their means over the window are compared, in a far wider envelope.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from infrarsi.records import Caps, DataLevel, Envelope, Moved, Numerics, StepRecord, TraceStep

MODULUS = 2**64
FLOAT_MAX = sys.float_info.max
# Doctor sees two to six honest changes, so the next one exceeds the widest seen with probability 1/7 to 1/3. Rounding
# differences of one kind spread over about half a decade between steps and seeds; four times the widest covers them.
SAFETY = 4.0
# Denominators: a loss or norm far below its usual size would make a relative deviation meaningless.
_SMALL = 0.05

# What a calibration may never go below: the honest changes it happened to try may all round alike on this machine.
# Measured on a small GPT, 20 steps of AdamW (other micro-batches, ranks, threads; float64): loss 2e-7, gradient norm
# 5e-5, update 8e-5. The floors leave room for sums over more terms (a larger vocabulary, more layers) and for Adam,
# which divides by the gradient's own size: where that is zero (key biases, idle experts), rounding alone moves.
_FLOORS = {
    "bitwise": Caps("bitwise", 0.0, 0.0, 0.0),
    "reorder": Caps("reorder", 5e-6, 2e-4, 1e-3),
    # bf16 autocast, same model: loss 4e-4, gradient norm 8e-2 (at spikes; 1e-3 before), update 8e-2.
    "reduced": Caps("reduced", 1e-3, 2e-2, 1e-1),
    "semantic": Caps("semantic", 1e-2, 1e-1, 2e-1),
}
# What a calibration may never exceed, or a noisy machine would loosen the contract (R-A4). `reorder` lies below what
# bf16 does, so that precision cannot be lowered under its name, and leaves the floors room for 60 steps of chaotic
# growth. `bitwise` has the same room, for machines whose baseline is not bit-exact with itself (atomics); elsewhere
# it calibrates to zero. `reduced` lies below a loss on half the tokens (update 0.8 off). `semantic` changes the
# mathematics by the user's word; what is left to hold is that it trains about as before.
DEFAULT_CAPS: tuple[Caps, ...] = (
    Caps("bitwise", 3e-4, 1e-2, 5e-2),
    Caps("reorder", 3e-4, 1e-2, 5e-2),
    Caps("reduced", 1e-2, 2.5e-1, 5e-1),
    Caps("semantic", 5e-2, 5e-1, 1.0),
)
# Window means over other rows. Same model, other seeds: loss 8e-4, gradient norm 0.12 (one spike in 20 steps), length
# of the update 4e-2; natural text scatters some times more in its loss.
_SAMPLED_FLOOR = Caps("semantic", 2e-3, 5e-2, 5e-2)
_SAMPLED_CAP = Caps("semantic", 3e-2, 3e-1, 3e-1)


class Deviation(NamedTuple):
    """Relative deviations of loss, gradient norm and update from a reference; 0.0 where one was not observed."""

    loss: float
    grad_norm: float
    update: float


def default_caps(level: DataLevel) -> tuple[Caps, ...]:
    """Return the caps a contract starts with: `DEFAULT_CAPS` for the same rows at each step, window caps otherwise."""
    if level == "exact":
        return DEFAULT_CAPS
    return tuple(
        Caps(c.numerics, *(max(a, b) for a, b in zip(_limits(c), _limits(_SAMPLED_CAP), strict=True)))
        for c in DEFAULT_CAPS
    )


def trace(steps: Sequence[StepRecord], world_size: int) -> tuple[TraceStep, ...]:
    """Return one TraceStep per optimizer step that all ranks reported, in order.

    Rows, tokens and hashes are summed over ranks. A gradient norm is the root mean square over ranks: the norm itself
    where ranks agree (DDP), a fixed fraction of the whole one where each holds a shard.
    """
    by_step: dict[int, dict[int, StepRecord]] = defaultdict(dict)
    for record in steps:
        by_step[record.step][record.rank] = record
    whole = ((step, [ranks[r] for r in sorted(ranks)]) for step, ranks in sorted(by_step.items()))
    return tuple(_trace_step(step, ranks) for step, ranks in whole if len(ranks) >= world_size)


def _trace_step(step: int, ranks: Sequence[StepRecord]) -> TraceStep:
    losses = [r.loss for r in ranks if r.loss is not None]
    calls = sum(r.backward_calls for r in ranks if r.loss is not None)
    norms = [r.grad_norm for r in ranks if r.grad_norm is not None]
    unique = [r.unique_rows for r in ranks if r.unique_rows is not None]
    hashed = [r.row_hash for r in ranks if r.rows and r.row_hash]
    return TraceStep(
        step=step,
        loss=_mean(losses, len(losses)) if losses else None,
        grad_norm=_root_mean_square(norms) if norms else None,
        update_sketch=_sketch([r.update_sketch for r in ranks]),
        row_hash=sum_hashes(r.row_hash for r in ranks),
        token_hash=sum_hashes(r.token_hash for r in ranks),
        rows=sum(r.rows for r in ranks),
        tokens=sum(r.tokens for r in ranks),
        clip_calls=max(r.clip_calls for r in ranks),
        hyper_digest="+".join(sorted({r.hyper_digest for r in ranks if r.hyper_digest})),
        loss_per_call=_mean(losses, calls) if losses and calls else None,
        backward_calls=max(r.backward_calls for r in ranks),
        parts=len(set(hashed)),
        unique_rows=sum(unique) if len(unique) == len(ranks) else None,
    )


def _root_mean_square(values: Sequence[float]) -> float:
    if len(set(values)) == 1:
        return values[0]  # Exactly, so that bit-equal ranks give a bit-equal trace whatever their number.
    return math.sqrt(_mean([v * v for v in values], len(values)))


def _mean(values: Sequence[float], count: int) -> float:
    """Return the sum over `count`; the largest float where a number among them is not finite, as the probe sends it."""
    try:
        return math.fsum(values) / count
    except OverflowError:
        return FLOAT_MAX


def _sketch(sketches: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Average over ranks (the sketch is linear, so shards add up); stages of a pipeline are put side by side."""
    present = [s for s in sketches if s]
    if len(set(present)) <= 1:
        return present[0] if present else ()
    if len({len(s) for s in present}) == 1:
        return tuple(_mean(column, len(present)) for column in zip(*present, strict=True))
    return tuple(value for sketch in present for value in sketch)


def sum_hashes(hashes: Iterable[str]) -> str:
    """Return the sum modulo 2**64 of hex hashes, as 16 hex digits: the order-independent hash of their union."""
    return f"{sum(int(h, 16) for h in hashes if h) % MODULUS:016x}"


def same_rows(reference: Sequence[TraceStep], other: Sequence[TraceStep]) -> bool:
    """Whether both traces consumed the same rows at each common step. Unknown rows count as the same."""
    return all(a.row_hash == b.row_hash or not (a.rows and b.rows) for a, b in common(reference, other))


def common(reference: Sequence[TraceStep], other: Sequence[TraceStep]) -> list[tuple[TraceStep, TraceStep]]:
    """Return the pairs of equal steps, in order."""
    others = {t.step: t for t in other}
    return [(t, others[t.step]) for t in reference if t.step in others]


def deviation(reference: Sequence[TraceStep], other: Sequence[TraceStep], *, by_step: bool | None = None) -> Deviation:
    """Return how far `other` is from `reference`, relative: the widest over steps, or the difference of window means.

    `by_step` None compares step by step where the rows are the same, by window means where they are not. What is not
    finite deviates infinitely.
    """
    pairs = common(reference, other)
    if by_step is None:
        by_step = same_rows(reference, other)
    compare = _widest if by_step else _of_means
    norm = compare([(a.grad_norm, b.grad_norm) for a, b in pairs])
    update = _update_by_step(pairs) if by_step else compare([(_norm(a), _norm(b)) for a, b in pairs])
    losses = [compare([(a.loss, b.loss) for a, b in pairs])]
    if _may_rescale(pairs):
        losses.append(compare([(a.loss_per_call, b.loss_per_call) for a, b in pairs]))
    return Deviation(min(losses), norm, update)


def _may_rescale(pairs: Sequence[tuple[TraceStep, TraceStep]]) -> bool:
    """Whether the per-call scale may stand in for the loss's own: other number of calls, gradient norms observed."""
    return any(a.backward_calls != b.backward_calls for a, b in pairs) and all(
        a.grad_norm is not None and b.grad_norm is not None for a, b in pairs
    )


def _widest(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    usual = statistics.median(abs(a) for a, _ in known) if known else 0.0
    return max((_relative(a, b, usual * _SMALL) for a, b in known), default=0.0)


def _of_means(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return 0.0
    left, right = (statistics.fmean(side) for side in zip(*known, strict=True))
    return _relative(left, right, 0.0)


def _relative(reference: float, value: float, least: float) -> float:
    if reference == value:
        return 0.0
    if not (math.isfinite(reference) and math.isfinite(value)):
        return math.inf
    return abs(value - reference) / max(abs(reference), least, 1e-30)


def _norm(step: TraceStep) -> float | None:
    return math.hypot(*step.update_sketch) if step.update_sketch else None


def _update_by_step(pairs: Sequence[tuple[TraceStep, TraceStep]]) -> float:
    """Return the widest distance between two sketches, relative to the reference's length."""
    known = [(a.update_sketch, b.update_sketch) for a, b in pairs if a.update_sketch and b.update_sketch]
    if any(len(a) != len(b) for a, b in known):
        return math.inf
    lengths = [math.hypot(*a) for a, _ in known]
    usual = statistics.median(lengths) if lengths else 0.0
    widest = 0.0
    for (a, b), length in zip(known, lengths, strict=True):
        if a != b:
            distance = math.dist(a, b) / max(length, usual * _SMALL, 1e-30)
            widest = max(widest, distance if math.isfinite(distance) else math.inf)
    return widest


def calibrate(
    numerics: Numerics,
    baseline_traces: Sequence[Sequence[TraceStep]],
    perturbed: Mapping[str, Sequence[TraceStep]],
    cap: Caps,
    *,
    data_level: DataLevel | None = None,
) -> Envelope:
    """Return the envelope of one class: `SAFETY` times the widest honest deviation, from the floor up to the cap.

    `perturbed` holds the honest changes of this class and of the stricter ones. For `bitwise` only the baseline's own
    repeats count. At data level `exact` changes with other rows are left out, at the other levels window means are
    compared; None goes by what the traces have. A change that gave no finite number says nothing and is left out.
    """
    reference = baseline_traces[0]
    honest = {f"repeat {n}": t for n, t in enumerate(baseline_traces[1:], start=1)}
    if numerics != "bitwise":
        honest |= perturbed
    if data_level == "exact":
        honest = {name: t for name, t in honest.items() if same_rows(reference, t)}
    by_step = data_level in ("exact", None) and all(same_rows(reference, t) for t in honest.values())
    found = {name: _moved(reference, t, by_step=by_step) for name, t in honest.items() if common(reference, t)}
    found = {name: d for name, d in found.items() if all(math.isfinite(v) for v in d)}
    floor = _floor(numerics, by_step=by_step)
    values: list[float] = []
    limits: list[Literal["measured", "floor", "cap"]] = []
    for i, (least, most) in enumerate(zip(_limits(floor), _limits(cap), strict=True)):
        wanted = max(SAFETY * max((d[i] for d in found.values()), default=0.0), least)
        values.append(min(wanted, most))
        limits.append("cap" if wanted > most else "floor" if wanted == least else "measured")
    moved = tuple(Moved(name, *d) for name, d in found.items())
    return Envelope(numerics, values[0], values[1], values[2], tuple(found), moved, tuple(limits))


def _moved(reference: Sequence[TraceStep], other: Sequence[TraceStep], *, by_step: bool) -> Deviation:
    """Return the deviation that an honest change shows; of window means never less than their standard error.

    Two windows over other rows may have nearly the same mean by chance, and one or two of them bound nothing. How far
    the next one will lie is known from the steps: the differences step by step are as many samples as there are steps.
    """
    found = deviation(reference, other, by_step=by_step)
    if by_step:
        return found
    pairs = common(reference, other)
    errors = (
        _standard_error([(a.loss, b.loss) for a, b in pairs]),
        _standard_error([(a.grad_norm, b.grad_norm) for a, b in pairs]),
        _standard_error([(_norm(a), _norm(b)) for a, b in pairs]),
    )
    return Deviation(*(max(seen, error) for seen, error in zip(found, errors, strict=True)))


def _standard_error(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    """Return the standard error of the mean difference, relative to the reference's mean.

    With the lag-1 autocovariance of the differences, as in Newey and West, Econometrica 55 (1987).
    """
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 3 or not all(math.isfinite(v) for pair in known for v in pair):
        return 0.0
    differences = [b - a for a, b in known]
    mean = statistics.fmean(differences)
    centred = [d - mean for d in differences]
    variance = math.fsum(d * d for d in centred) / (len(known) - 1)
    lagged = math.fsum(a * b for a, b in itertools.pairwise(centred)) / (len(known) - 1)
    error = math.sqrt((variance + max(0.0, lagged)) / len(known))  # weight 1/2 on lag 1, counted twice
    return error / max(abs(statistics.fmean(a for a, _ in known)), 1e-30)


def beyond_cap(reference: Sequence[TraceStep], other: Sequence[TraceStep], cap: Caps) -> tuple[str, ...]:
    """Return what of an honest change exceeds `cap`; where there is any, such changes cannot be accepted here."""
    found = deviation(reference, other)
    pairs = zip(Deviation._fields, found, _limits(cap), strict=True)
    return tuple(f"{name.replace('_', ' ')} {value:.1e} > {most:.1e}" for name, value, most in pairs if value > most)


def _floor(numerics: Numerics, *, by_step: bool) -> Caps:
    if by_step:
        return _FLOORS[numerics]
    if numerics == "bitwise":
        # Other rows cannot be judged bit by bit, whatever the class of the change.
        return _SAMPLED_FLOOR
    wider = zip(_limits(_FLOORS[numerics]), _limits(_SAMPLED_FLOOR), strict=True)
    return Caps(numerics, *(max(a, b) for a, b in wider))


def _limits(caps: Caps) -> tuple[float, float, float]:
    return caps.loss, caps.grad_norm, caps.update
