"""Where a run is examined by replay: its patches before the search may combine them, its finalists before they count.

Numbers of a timed run can look right for the wrong reasons. Here other processes, running the pristine baseline, say
whether the code computes the same thing (design: secret-step replay, weights transplant, second seed).
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from infrarsi.commands.campaign import Campaign
from infrarsi.commands.examine import examine_finalist, examine_patch, recorded
from infrarsi.commands.replays import Code
from infrarsi.commands.secondseed import second_seed
from infrarsi.commands.state import Tried
from infrarsi.errors import GitError
from infrarsi.records import Candidate, Examination, Patch

UNOBSERVED = "replay: the contract lists it as unobserved"


def vet_patches(campaign: Campaign) -> None:
    """Examine every patch of the run alone; what fails is not for the search. Finished ones are not repeated."""
    state = campaign.state
    waiting = [p for p in campaign.patches.values() if ("patch", p.id) not in state.examinations]
    if not campaign.replays.possible or not waiting:
        return
    campaign.replays.reference()
    for number, patch in enumerate(waiting, start=1):
        campaign.say(f"patch {number} of {len(waiting)} alone, against the baseline's gradients: {patch.title}")
        examination = _vet(campaign, patch)
        if examination is not None:
            campaign.record("examination", {"stage": "patch", "subject": patch.id, "examination": examination})


def _vet(campaign: Campaign, patch: Patch) -> Examination | None:
    """Return the examination of one patch; None where ring 1 or a conflict refuses it anyway, before any trial."""
    candidate = Candidate(patches=tuple(sorted({patch.id, *patch.needs})))
    try:
        tried = campaign.build(candidate, f"{patch.id} alone")
    except (GitError, KeyError):
        return None
    if campaign.violations(tried):
        return None
    with campaign.checkout(tried) as tree:
        code = Code(tree, tried.commit, campaign.assignments(candidate), candidate, tried.number)
        return examine_patch(campaign.replays, code, campaign.numerics(candidate), patch.id)


def sound_patches(campaign: Campaign) -> tuple[Patch, ...]:
    """Return the patches that no examination has refused."""
    found = campaign.state.examinations
    return tuple(p for p in campaign.state.patches if (e := found.get(("patch", p.id))) is None or e.passed)


def vet_finalist(campaign: Campaign, tried: Tried, stage: str, promised: float | None = None) -> Examination:
    """Examine a candidate that would be promoted: check steps replayed, another seed, weights transplanted.

    `promised` is the natural logarithm of the speed-up that has to last; None: the verdict's, where there is one.
    """
    known = campaign.state.examinations.get((stage, str(tried.number)))
    if known is not None:
        return known
    if not campaign.replays.possible:
        examination = Examination(str(tried.number), (), (UNOBSERVED,), 0.0, 0.0)
    else:
        with _dumps(campaign, stage, tried.number) as folder:
            if promised is None:
                measured = campaign.state.verdicts.get((stage, tried.number))
                promised = math.log(measured.speedup) if measured else 0.0
            examination = _examine(campaign, tried, promised, folder)
    campaign.record("examination", {"stage": stage, "subject": str(tried.number), "examination": examination})
    return examination


@contextlib.contextmanager
def _dumps(campaign: Campaign, stage: str, number: int) -> Iterator[Path]:
    """The folder of one candidate's check steps; removed once it has been examined: they are as large as the model."""
    folder = campaign.dump_folder(stage, number)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _examine(campaign: Campaign, tried: Tried, promised: float, folder: Path) -> Examination:
    campaign.say("checking what it computes: secret steps replayed by the baseline's code, another seed, final weights")
    with campaign.checkout(tried) as tree:
        numerics = campaign.numerics(tried.candidate)
        second = second_seed(campaign, tried, tree, folder / "seed", promised)
        if second.failure:
            return Examination(str(tried.number), (), (), 0.0, 0.0, second.failure)
        code = Code(tree, tried.commit, campaign.assignments(tried.candidate), tried.candidate, tried.number)
        steps = (*recorded(folder), *second.steps)
        found = examine_finalist(campaign.replays, code, numerics, str(tried.number), steps, second.finals)
    return replace(found, figures=(*found.figures, *second.figures), skipped=(*found.skipped, *second.skipped))
