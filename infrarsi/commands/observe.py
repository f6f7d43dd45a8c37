"""The observation behind a contract: what the baseline really reads, consumes, trains and updates.

Nothing is declared yet, so the files that git ignores are brought into the worktree first: small ones as copies (the
training may overwrite them), large ones as links whose originals are checked for change afterwards (R-E1).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from infrarsi.commands.bench import Bench, Shot, Window
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.replays import Code, self_replay
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.envelopes import FLOAT_MAX, trace
from infrarsi.errors import TrialError
from infrarsi.records import Assignment, DataLevel, Knob, Level, StepRecord, TraceStep
from infrarsi.trial.engine import Execution
from infrarsi.trial.outcome import TOO_SHORT
from infrarsi.vcs.door import Repository

WINDOW = Window(warmup_steps=2, timed_steps=6)
CHECKED = 6
COPY_LIMIT_BYTES = 256 * 2**20
COPY_TOTAL_BYTES = 2 * 2**30
# Ignored folders that hold what was built or installed, never what a training reads.
NOT_DATA = {
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".tox",
}


@dataclass(frozen=True)
class Observation:
    """What the observation runs showed. `data` is relative to the root, `outside` absolute and not lockable.

    `replay_why`: why a step of the baseline cannot be replayed by itself; empty where it can.
    """

    execution: Execution
    steps: tuple[TraceStep, ...]
    data: tuple[str, ...]
    outside: tuple[str, ...]
    data_level: DataLevel
    level_why: str
    micro_batch_changes_loss: float | None
    replay_why: str = ""


def observe(bench: Bench, commit: str, knobs: Sequence[Knob], notify: Notify) -> Observation:
    """Run the baseline twice and, where there is one, its micro-batch variant; compare what they consumed.

    Raises TrialError where the baseline does not train.
    """
    signatures = _signatures(bench.repo)
    with bench.checkout(commit) as tree:
        mirror_ignored(bench.repo, tree)
        notify(Event("stage", "observing the baseline: what it reads, consumes and updates"))
        first = _run(bench, tree, commit, (), "observe")
        require_training(first, "the baseline does not train as it stands")
        notify(Event("stage", "repeating it, to see whether the data order is the same each time"))
        dump = bench.folder / "check"
        second = _run(bench, tree, commit, (), "trial", dump)
        variant, level = None, _variant(knobs)
        if level is not None:
            notify(Event("stage", f"and once with micro-batch {level.label}, to see what depends on it"))
            variant = _run(bench, tree, commit, level.assignments, "trial")
        notify(Event("stage", "replaying one step of it by itself, as finalists will be"))
        why = _replays(bench, tree, commit, second, dump)
        data, outside = _opened(first, tree, bench.repo)
    _require_untouched(bench.repo, signatures)
    return replace(_conclude(bench, first, second, variant, data, outside), replay_why=why)


def _run(
    bench: Bench, tree: Path, commit: str, assignments: tuple[Assignment, ...], mode: str, dump: Path | None = None
) -> Execution:
    shot = Shot(tree, commit, assignments, WINDOW, "observe", "observe" if mode == "observe" else "trial")
    if dump is not None:
        shot = replace(shot, dump=dump, check_step=CHECKED)
    return bench.execute(bench.plan(shot))


def _replays(bench: Bench, tree: Path, commit: str, run: Execution, dump: Path) -> str:
    """Return why the baseline cannot replay its own step; empty where it gives its own gradients again."""
    if run.outcome.kind == "ok" and run.checked != CHECKED:
        return run.violations[0].message if run.violations else "its check step was not written down"
    try:
        return self_replay(bench, Code(tree, commit), CHECKED, dump)
    except TrialError as error:
        return error.why or error.what
    finally:
        shutil.rmtree(dump, ignore_errors=True)


def require_training(execution: Execution, what: str) -> None:
    """Raise TrialError with the first error of the root rank where an execution did not train."""
    outcome = execution.outcome
    if outcome.kind == "ok" and execution.steps:
        _require_finite(execution.steps, what)
        return
    if outcome.phase == TOO_SHORT and execution.steps:
        raise TrialError(
            what,
            why=outcome.message,
            hint="give it more steps (its own --max_steps or --iters flag) in [workload] command",
            code="too-short",
        )
    if outcome.kind in ("ok", "rejected") or not outcome.message:
        raise TrialError(
            "the command never reached an optimizer step" if not execution.steps else what,
            why=outcome.message or execution.log_tail.strip()[-400:] or "it ended by itself",
            hint="check the command: git infrarsi init --command 'torchrun …'",
            code="no-steps",
        )
    where = f" on rank {outcome.rank}" if outcome.rank is not None else ""
    hint = "run the command by hand in this repository; then: git infrarsi init --command '…'"
    if outcome.kind == "oom":
        hint = "raise memory_gb under [budget], or start from a smaller micro-batch"
    kind = outcome.phase or "it does not start" if outcome.kind == "conflict" else outcome.kind
    raise TrialError(what, why=f"{kind}{where}: {outcome.message}", hint=hint, code=f"baseline-{outcome.kind}")


def _require_finite(steps: Sequence[StepRecord], what: str) -> None:
    """Raise TrialError where the loss is not a number: nothing that follows could be compared with it."""
    bad = sorted(s.step for s in steps if s.loss is not None and not abs(s.loss) < FLOAT_MAX)
    if bad:
        raise TrialError(
            what,
            why=f"its loss is not a finite number, from step {bad[0]} on",
            hint="mend the training itself: weights that are never initialised, or a learning rate that is too high",
            code="not-finite",
        )


def _variant(knobs: Sequence[Knob]) -> Level | None:
    """Return a neighbouring level of the micro-batch knob: what must be allowed to change without changing the data."""
    knob = next((k for k in knobs if k.name == "micro_batch" and len(k.levels) > 1), None)
    return knob.levels[1] if knob else None


def _conclude(
    bench: Bench,
    first: Execution,
    second: Execution,
    variant: Execution | None,
    data: tuple[str, ...],
    outside: tuple[str, ...],
) -> Observation:
    world = bench.job.world_size
    steps = trace(first.steps, world)
    others = [("itself", trace(second.steps, world))]
    if variant is not None and variant.outcome.kind == "ok":
        others.append(("its micro-batch variant", trace(variant.steps, world)))
    level, why = strictest_level(steps, others)
    changes = None
    if len(others) == 2 and level != "sampled":
        changes = max((_relative(a.loss, b.loss) for a, b in zip(steps, others[1][1], strict=False)), default=0.0)
    return Observation(first, steps, data, outside, level, why, changes)


def _relative(a: float | None, b: float | None) -> float:
    return abs(a - b) / max(abs(a), 1e-12) if a is not None and b is not None else 0.0


def strictest_level(
    steps: Sequence[TraceStep], others: Sequence[tuple[str, Sequence[TraceStep]]]
) -> tuple[DataLevel, str]:
    """Return the strictest data level at which the baseline agrees with all of `others`, and why not a stricter one."""
    for name, other in others:
        pairs = list(zip(steps, other, strict=False))
        if all(a.row_hash == b.row_hash for a, b in pairs):
            continue
        if _total(a.row_hash for a, _ in pairs) == _total(b.row_hash for _, b in pairs):
            return "same-set", f"the baseline and {name} read the same rows in another order"
        return "sampled", f"the baseline and {name} read different rows (a random sampler)"
    return "exact", "the baseline reads the same rows at each step, whatever the micro-batch"


def _total(hashes: Iterable[str]) -> int:
    return sum(int(h, 16) for h in hashes) % 2**64


def _opened(execution: Execution, tree: Path, repo: Repository) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the files the ranks opened for reading into those of the repository and those outside it."""
    inside: set[str] = set()
    outside: set[str] = set()
    for name in sorted({n for end in execution.ends for n in end.opened_files}):
        path = Path(os.path.normpath(name))
        for root in (tree, repo.root):
            if path.is_relative_to(root):
                inside.add(str(path.relative_to(root)))
                break
        else:
            outside.add(str(path))
    return tuple(sorted(inside - {intents.FILE, locks.FILE})), tuple(sorted(outside))


def mirror_ignored(repo: Repository, tree: Path) -> None:
    """Bring the ignored files into `tree`: copies up to a total, links for what is large."""
    total = 0
    for name in repo.ignored_files():
        if NOT_DATA & set(PurePosixPath(name).parts) or name.endswith((".pyc", ".so", ".o")):
            continue
        source, target = repo.root / name, tree / name
        if target.exists() or target.is_symlink() or not source.is_file():
            continue
        size = source.stat().st_size
        target.parent.mkdir(parents=True, exist_ok=True)
        if size <= COPY_LIMIT_BYTES and total + size <= COPY_TOTAL_BYTES:
            shutil.copy2(source, target)
            total += size
        else:
            target.symlink_to(source)


def _signatures(repo: Repository) -> dict[str, tuple[int, int, int]]:
    """Return size, mtime and inode of every ignored file: what a linked original must still have afterwards."""
    signatures: dict[str, tuple[int, int, int]] = {}
    for name in repo.ignored_files():
        try:
            status = (repo.root / name).stat()
        except OSError:
            continue
        signatures[name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return signatures


def _require_untouched(repo: Repository, before: dict[str, tuple[int, int, int]]) -> None:
    after = _signatures(repo)
    changed = sorted(name for name, value in before.items() if after.get(name) != value)
    if changed:
        raise TrialError(
            f"the training wrote to {', '.join(changed[:5])} through its link",
            why="large ignored files are linked into the worktree, and this one is written while training",
            hint="let the training write to a folder of its own (an --out_dir flag), then init again",
        )
