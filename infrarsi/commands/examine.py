"""Examinations by replay: each patch alone before it is combined, each finalist before its verdict counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands.replays import FLOAT64, Code, Reference, Replayed, Replays
from infrarsi.contract import replayed as limits
from infrarsi.errors import TrialError
from infrarsi.records import Examination, Numerics, ReplayFigure
from infrarsi.trial.comparing import Compared, Comparison
from infrarsi.trial.plan import Section


@dataclass(frozen=True)
class Recorded:
    """A check step that a trial of the candidate has written down."""

    step: int
    folder: Path

    @property
    def section(self) -> Section:
        """The section that replays it."""
        return Section(self.folder / "weights.pt", self.folder)


@dataclass(frozen=True)
class FinalWeights:
    """Final weights of a candidate's run and of the baseline's over the same steps, for the transplant."""

    candidate: Path
    baseline: Path
    allowed: float


def recorded(folder: Path) -> tuple[Recorded, ...]:
    """Return the check steps below a trial's dump folder."""
    steps = [path for path in folder.glob("*/gradients.pt") if path.parent.name.isdigit()]
    return tuple(Recorded(int(path.parent.name), path.parent) for path in sorted(steps))


def examine_patch(replays: Replays, code: Code, numerics: Numerics, name: str) -> Examination:
    """Replay the baseline's check step with a patch alone in it; its gradients must be the baseline's."""
    began = time.monotonic()
    reference = replays.reference()
    figures: tuple[ReplayFigure, ...] = ()
    skipped: list[str] = []
    failure = ""
    with replays.scratch(f"patch-{name}") as folder:
        try:
            mine, exact = _candidate(replays, code, [reference.section], folder, skipped)
            others = (reference.float32, reference.autocast)
            (compared,) = replays.compare([Comparison(mine.gradients[0], reference.float64, others)], folder)
            figures = _figures(compared, reference.step, numerics, exact=exact)
        except TrialError as error:
            failure = f"{error.what}: {error.why}"
    wall = time.monotonic() - began
    return Examination(name, figures, tuple(skipped), wall, wall * replays.bench.job.world_size, failure)


def examine_finalist(
    replays: Replays,
    code: Code,
    numerics: Numerics,
    subject: str,
    steps: Sequence[Recorded],
    finals: FinalWeights | None,
) -> Examination:
    """Replay a finalist's check steps with the baseline and with its own code, and transplant its final weights."""
    began = time.monotonic()
    failure = ""
    skipped: list[str] = []
    figures: list[ReplayFigure] = []
    if not steps:
        failure = "none of its trials wrote its check step down"
    with replays.scratch(f"finalist-{subject}") as folder, replays.baseline() as baseline:
        try:
            if steps:
                reference = replays.reference()
                figures += _steps(replays, code, baseline, numerics, steps, folder, skipped)
                if finals is not None:
                    figures.append(_transplant(replays, baseline, reference, finals, folder))
                else:
                    skipped.append("transplant: the contract has no envelope for the loss")
        except TrialError as error:
            failure = f"{error.what}: {error.why}"
    wall = time.monotonic() - began
    return Examination(subject, tuple(figures), tuple(skipped), wall, wall * replays.bench.job.world_size, failure)


def _steps(
    replays: Replays,
    code: Code,
    baseline: Code,
    numerics: Numerics,
    steps: Sequence[Recorded],
    folder: Path,
    skipped: list[str],
) -> list[ReplayFigure]:
    sections = [step.section for step in steps]
    wanted = replays.replay(baseline, sections, folder / "baseline-float64")
    both = [replace(s, autocast=cast) for s in sections for cast in ((False, True) if _casts(numerics) else (False,))]
    noisy = replays.replay(baseline, both, folder / "baseline-float32", ())
    mine, exact = _candidate(replays, code, sections, folder, skipped)
    each = len(both) // len(sections)
    asked = []
    for index, step in enumerate(steps):
        others = noisy.gradients[index * each : (index + 1) * each]
        asked.append(Comparison(mine.gradients[index], wanted.gradients[index], others))
        asked.append(Comparison(step.folder / "gradients.pt", wanted.gradients[index], others))
    found: list[ReplayFigure] = []
    results = replays.compare(asked, folder)
    for index, step in enumerate(steps):
        again, trial = results[2 * index], results[2 * index + 1]
        found += _figures(again, step.step, numerics, exact=exact)
        if trial.dropout:
            skipped.append(f"gradients of step {step.step}: dropout, which a replay turns off, was on in the trial")
        else:
            found += _figures(trial, step.step, numerics, exact=False)
    return found


def _figures(compared: Compared, step: int, numerics: Numerics, *, exact: bool) -> tuple[ReplayFigure, ...]:
    judge = limits.mathematics if exact else limits.gradients
    if compared.unlike and numerics != "semantic":
        return (limits.unlike(compared.unlike, "mathematics" if exact else "gradients", step),)
    return (judge(compared.groups, step, numerics),)


def _candidate(
    replays: Replays, code: Code, sections: Sequence[Section], folder: Path, skipped: list[str]
) -> tuple[Replayed, bool]:
    """Replay a candidate in float64 or, where it does not run in it (a kernel, memory), in its own precision.

    `skipped` then says why; the gradients are held to the wider limits of that precision.
    """
    try:
        return replays.replay(code, sections, folder / "candidate-float64", FLOAT64), True
    except TrialError as error:
        skipped.append(f"mathematics in float64, where it does not run: {error.why}")
        return replays.replay(code, sections, folder / "candidate", ()), False


def _transplant(
    replays: Replays, baseline: Code, reference: Reference, finals: FinalWeights, folder: Path
) -> ReplayFigure:
    """The baseline's code on held-out rows, with the candidate's final weights and with the baseline's own."""
    sections = [Section(path, reference.section.rows) for path in (finals.candidate, finals.baseline)]
    both = replays.replay(baseline, sections, folder / "transplant")
    return limits.transplant(both.losses[0], both.losses[1], reference.step, finals.allowed)


def _casts(numerics: Numerics) -> bool:
    return numerics in ("reduced", "semantic")


def own_rounding(replays: Replays) -> tuple[tuple[ReplayFigure, ...], tuple[str, ...]]:
    """Return how far the baseline's own precision takes it from float64, per class, and notes where it cannot be seen.

    These figures are what the limits of a finalist's replay come from; they are part of the calibration.
    """
    if not replays.possible:
        return (), ()
    try:
        reference = replays.reference()
        others = (reference.float32, reference.autocast)
        asked = [Comparison(path, reference.float64, others) for path in (reference.trial, reference.autocast)]
        with replays.scratch("rounding") as folder:
            trial, autocast = replays.compare(asked, folder)
    except TrialError as error:
        return (), (f"no finalist can be examined by replay: {error.what}: {error.why}",)
    found = [replace(limits.gradients(trial.groups, reference.step, "reorder"), note="the trial's own precision")]
    if replays.workspace.contract.invariants.numerics in ("reduced", "semantic"):
        figure = limits.gradients(autocast.groups, reference.step, "reduced")
        found.append(replace(figure, note="bfloat16 autocast"))
    wrong = [f for f in found[:1] if not f.held and not trial.dropout]
    notes = [
        f"the baseline's own gradients are {f.value:.1e} off float64 in {f.where}, beyond the cap of {f.allowed:.1e}: "
        "no finalist can pass the replay"
        for f in wrong
    ]
    return tuple(found), tuple(notes)
