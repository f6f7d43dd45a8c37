"""Replays: the pristine baseline and a candidate compute loss and gradients for the same weights and rows.

Each replay is one short process of the user's own command under the probe in replay mode (design: secret-step replay).
The baseline's side is always the *original* baseline, however much was promoted since, so that nothing drifts (R-A9).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infrarsi.codec import digest
from infrarsi.commands.bench import Bench, Shot, Window
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.workspace import Workspace
from infrarsi.contract.envelopes import trace
from infrarsi.contract.replayed import gradients
from infrarsi.errors import TrialError
from infrarsi.records import Assignment, Candidate
from infrarsi.trial.comparing import Compared, Comparison, compare_files
from infrarsi.trial.engine import Execution
from infrarsi.trial.plan import Section

FLOAT64 = ("float64",)


@dataclass(frozen=True)
class Code:
    """One code to replay: a worktree of a commit, and the overlay on the command."""

    tree: Path
    commit: str
    assignments: tuple[Assignment, ...] = ()
    candidate: Candidate = field(default_factory=Candidate)
    number: int = 0


@dataclass(frozen=True)
class Replayed:
    """One replay that ended well: gradients and loss (None: not observed) by section, and what it cost."""

    gradients: tuple[Path, ...]
    losses: tuple[float | None, ...]
    wall_seconds: float


@dataclass(frozen=True)
class Reference:
    """The baseline's own check step, kept per contract and machine: the step after a trial's window.

    Its rows are held out from every trial; `float64`, `float32` and `autocast` are the baseline's gradients there.
    """

    step: int
    section: Section
    trial: Path
    float64: Path
    float32: Path
    autocast: Path
    seconds: float


class Replays:
    """Makes and compares replays of one contract on this machine."""

    def __init__(self, workspace: Workspace, bench: Bench, window: Window, notify: Notify) -> None:
        self.workspace, self.bench, self.window, self._notify = workspace, bench, window, notify

    @property
    def possible(self) -> bool:
        """Whether the contract says that check steps can be replayed at all."""
        return "replay" not in self.workspace.contract.invariants.unobserved

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A folder for the files of one examination, removed afterwards: they are as large as the model."""
        path = self.bench.folder / "replays" / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def baseline(self) -> Iterator[Code]:
        """The original baseline, checked out for as long as it is needed."""
        commit = self.workspace.contract.base_commit
        with self.bench.checkout(commit) as tree:
            yield Code(tree, commit)

    def replay(
        self, code: Code, sections: Sequence[Section], out: Path, perturb: tuple[str, ...] = FLOAT64
    ) -> Replayed:
        """Replay sections with a code. TrialError, with the cause, where it does not get through them."""
        return replay(self.bench, code, sections, out, perturb)

    def compare(self, comparisons: Sequence[Comparison], scratch: Path) -> tuple[Compared, ...]:
        """Compare gradients in the training interpreter."""
        return compare_files(self.bench.job.python, comparisons, scratch)

    def reference(self) -> Reference:
        """Return this machine's reference of the contract, made where there is none yet. TrialError where it fails."""
        folder = self._reference_folder()
        if not (folder / "about.json").exists():
            self._notify(Event("stage", "the baseline's own check step, and its replays in float64 and float32"))
            self._make_reference(folder)
        about = json.loads((folder / "about.json").read_text())
        step = int(about["step"])
        dump = folder / "dump" / str(step)
        return Reference(
            step=step,
            section=Section(dump / "weights.pt", dump),
            trial=dump / "gradients.pt",
            float64=folder / "float64" / "gradients.0.pt",
            float32=folder / "float32" / "gradients.0.pt",
            autocast=folder / "float32" / "gradients.1.pt",
            seconds=float(about["seconds"]),
        )

    def _reference_folder(self) -> Path:
        contract, window = self.workspace.contract, self.window
        name = digest([self.workspace.digest, contract.base_commit, window.warmup_steps, window.timed_steps])[:16]
        return self.workspace.repo.state_dir / "replay" / name

    def _make_reference(self, folder: Path) -> None:
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        step = self.window.warmup_steps + self.window.timed_steps + 1
        longer = Window(self.window.warmup_steps, self.window.timed_steps + 2)
        with self.baseline() as code:
            shot = Shot(code.tree, code.commit, (), longer, "calibration", dump=partial / "dump", check_step=step)
            execution = self.bench.execute(self.bench.plan(shot))
            why = _failure(execution)
            if why or execution.checked != step:
                reason = why or f"step {step} was not written down"
                raise TrialError("the baseline's check step could not be recorded", why=reason, code="replay")
            dump = partial / "dump" / str(step)
            section = Section(dump / "weights.pt", dump)
            exact = self.replay(code, [section], partial / "float64")
            plain = self.replay(
                code, [section, Section(section.weights, section.rows, autocast=True)], partial / "float32", ()
            )
        seconds = execution.wall_seconds + exact.wall_seconds + plain.wall_seconds
        about = {"step": step, "seconds": seconds}
        (partial / "about.json").write_text(json.dumps(about))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def replay(bench: Bench, code: Code, sections: Sequence[Section], out: Path, perturb: tuple[str, ...]) -> Replayed:
    """Replay sections with a code. TrialError, with the cause, where it does not get through them."""
    shot = Shot(
        code.tree,
        code.commit,
        code.assignments,
        Window(0, len(sections)),
        "replay",
        "replay",
        number=code.number,
        candidate=code.candidate,
        perturb=perturb,
        sections=tuple(sections),
        out=out,
    )
    execution = bench.execute(bench.plan(shot))
    files = tuple(out / f"gradients.{k}.pt" for k in range(len(sections)))
    why = _failure(execution)
    if not why and not all(path.exists() for path in files):
        why = "it made no gradients for the recorded rows"
    if why:
        raise TrialError("the replay failed", why=why, code="replay")
    losses = {t.step: t.loss for t in trace(execution.steps, bench.job.world_size)}
    return Replayed(
        files,
        tuple(losses.get(k) for k in range(1, len(sections) + 1)),
        execution.wall_seconds,
    )


def self_replay(bench: Bench, code: Code, step: int, dump: Path) -> str:
    """Return why a code does not give its own gradients again when it replays its own check step; empty where it does.

    It computes the same sums in the same order, so that next to nothing may differ. TrialError where it does not run.
    """
    folder = dump / str(step)
    again = replay(bench, code, [Section(folder / "weights.pt", folder)], dump / "replay", ())
    (compared,) = compare_files(bench.job.python, [Comparison(folder / "gradients.pt", again.gradients[0])], dump)
    if compared.dropout:
        return ""  # the replay turns it off: other gradients, and nothing wrong with them
    if compared.unlike:
        return f"other parameters have gradients in the replay: {', '.join(compared.unlike[:3])}"
    figure = gradients(compared.groups, step, "reorder")
    return "" if figure.held else f"the gradients of {figure.where} come out {figure.value:.1e} off in the replay"


def _failure(execution: Execution) -> str:
    """Return why an execution does not count; empty where it does."""
    if execution.outcome.kind != "ok":
        return f"{execution.outcome.kind}: {execution.outcome.message}"
    if execution.violations:
        return execution.violations[0].message
    broken = [end.rank for end in execution.ends if not end.hooks_intact]
    return f"the probe's hooks were changed on rank {broken[0]}" if broken else ""
