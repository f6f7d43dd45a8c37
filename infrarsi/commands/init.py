"""`init`: read the repository and a sentence, observe the baseline, write `infrarsi.toml` and `infrarsi.lock`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi.commands import observe as observing
from infrarsi.commands.bench import Bench, Job
from infrarsi.commands.contractwords import InitResult, describe
from infrarsi.commands.events import Event, Notify
from infrarsi.commands.fingerprint import fingerprint, resolve_python
from infrarsi.commands.state import new_run_id
from infrarsi.commands.workspace import CommitReader, exclusive
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.command import Command, argv_of, parse_command, world_size_of
from infrarsi.contract.data import digest_data
from infrarsi.contract.entry import find_entries, guess_command
from infrarsi.contract.envelopes import default_caps
from infrarsi.contract.flags import Flag, read_flags
from infrarsi.contract.intent import Intent, Launch, SearchOptions
from infrarsi.contract.invariants import beyond_shadow
from infrarsi.contract.scope import is_editable, lock_digests
from infrarsi.contract.sentence import Wishes, read_sentence
from infrarsi.errors import ContractError, GitError, UsageError
from infrarsi.records import (
    NUMERICS_ORDER,
    Budget,
    Contract,
    DataLevel,
    Invariants,
    Knob,
    Numerics,
    RankEnd,
    Scope,
    Workload,
)
from infrarsi.trial.engine import Engine
from infrarsi.vcs.door import Repository

DEFAULT_GOAL = "make this training faster, change nothing it learns"
DEFAULT_TRIALS = 24
HELD_OUT = "the rows of the optimizer step after the timed window"
# Never proposed as editable: what the contract itself, tests, packaging and other tools live in.
NEVER_EDITABLE = ("tests/**", "test/**", "docs/**", "setup.py", "conftest.py", "noxfile.py")


@dataclass(frozen=True)
class InitOptions:
    """What the command line may say."""

    sentence: str = ""
    command: str = ""
    numerics: Numerics | None = None
    force: bool = False
    python: str = ""


def init(start: Path, options: InitOptions, engine: Engine, notify: Notify) -> InitResult:
    """Make (or, when one stands, check and repeat) the contract of the repository at `start`.

    Raises UsageError (nothing to train found, unknown flag), TrialError (the baseline does not train), GitError.
    """
    repo = Repository.discover(start)
    head = repo.head()
    toml, lock = repo.root / intents.FILE, repo.root / locks.FILE
    if toml.exists() and lock.exists() and not options.force:
        return _existing(repo, toml.read_text(), lock.read_text(), options)
    if toml.exists() and not lock.exists() and not options.force and options.sentence:
        raise ContractError(
            f"{intents.FILE} stands here already, without its lock",
            why="a sentence would overwrite what was written in it",
            hint="git infrarsi init (locks the file as it stands), or: git infrarsi init --force '…'",
        )
    keep = toml.exists() and not (options.sentence or options.command or options.numerics)
    if keep:
        kept = _as_laid_out_now(toml.read_text())
        intent, wishes = intents.parse(kept), _no_wishes()
        text: str | None = kept
    else:
        intent, wishes = propose(repo, head, _carried_over(toml, options), notify)
        text = None
    _require_clean(repo, intent)
    with exclusive(repo, "init"):  # the observation trains, and would disturb a run's time
        intent, contract, notes = _observe_and_lock(repo, head, intent, engine, notify, fixed=keep, wishes=wishes)
    if text is None:
        notes += _keep_old(toml)
        text = intents.render(intent)
    if not toml.exists() or toml.read_text() != text:
        toml.write_text(text)
    lock.write_text(locks.render(contract))
    return describe(intent, contract, wishes, notes, created=True, committed=False)


def _as_laid_out_now(text: str) -> str:
    """Return infrarsi.toml without the state map of what was promoted: the new contract locks the parameters as is."""
    launch = intents.parse(text).launch.assignments
    return intents.with_launch(text, [a for a in launch if a.kind != "state_map"])


def _carried_over(toml: Path, options: InitOptions) -> InitOptions:
    """Take from the contract that stands here what the command line leaves open: command, sentence, interpreter."""
    if not toml.exists():
        return options
    try:
        old = intents.parse(toml.read_text())
    except UsageError:
        return options  # It cannot be read, and is kept aside as a backup.
    command = shlex.join([*(f"{k}={v}" for k, v in old.environment), *old.command])
    return replace(
        options,
        command=options.command or command,
        sentence=options.sentence or old.goal,
        python=options.python or old.launch.python,
    )


def _no_wishes() -> Wishes:
    return read_sentence("", ())


def _existing(repo: Repository, text: str, lock_text: str, options: InitOptions) -> InitResult:
    """Idempotence: check what stands; another sentence needs `--force`."""
    intent, contract = intents.parse(text), locks.parse(lock_text)
    if (options.sentence and options.sentence != intent.goal) or options.command or options.numerics:
        raise ContractError(
            "there is a contract here already",
            why=f"its goal is: {intent.goal}",
            hint="git infrarsi init --force '…' makes a new one (and starts a new lineage of experience)",
            code="contract-exists",
        )
    locks.check_intent(contract, intent)
    head = repo.head()
    committed = all(repo.read_blob(head, n) == (repo.root / n).read_bytes() for n in (intents.FILE, locks.FILE))
    return describe(intent, contract, _no_wishes(), (), created=False, committed=committed)


def propose(repo: Repository, head: str, options: InitOptions, notify: Notify) -> tuple[Intent, Wishes]:
    """Return the intent that the repository, the sentence and the options lead to, before anything was observed."""
    from infrarsi.propose.knobs import propose_knobs

    files = repo.tracked_files(head)
    wishes = read_sentence(options.sentence, files)
    python = options.python or "python3"
    notify(Event("stage", "reading the repository: entry, flags, launch command"))
    machine = fingerprint(python, repo.root)
    command, flags = _command(repo, files, options, wishes, len(machine.hardware.accelerators))
    numerics = options.numerics or wishes.numerics or "reorder"
    knobs = tuple(
        k
        for k in propose_knobs(
            flags, command, machine.hardware, world_size_of(command), sources=_sources(repo, head, files)
        )
        if NUMERICS_ORDER.index(k.numerics) <= NUMERICS_ORDER.index(numerics)
    )
    intent = Intent(
        goal=options.sentence or DEFAULT_GOAL,
        numerics=numerics,
        data_level=wishes.data_level or "exact",
        require_signature=bool(wishes.require_signature),
        entry=command.entry,
        command=argv_of(command),
        environment=command.environment,
        world_size=world_size_of(command),
        data=(),
        setup=(),
        held_out="",
        scope=_scope(files, wishes),
        budget=Budget(
            trials=wishes.trials or DEFAULT_TRIALS,
            seconds=wishes.seconds,
            dollars=wishes.dollars,
            memory_bytes=wishes.memory_bytes,
            error_rate=wishes.error_rate or 0.05,
        ),
        launch=Launch(python, "auto", ()),
        search=SearchOptions(0, 0, 2, ("catalogue",)),
        knobs=knobs,
    )
    return intent, wishes


def _sources(repo: Repository, head: str, files: Sequence[str]) -> dict[str, str]:
    """Return the Python sources at HEAD: they tell whether a larger micro-batch is the same mathematics."""
    blobs = {path: repo.read_blob(head, path) for path in files if path.endswith(".py")}
    return {path: blob.decode(errors="replace") for path, blob in blobs.items() if blob is not None}


def _command(
    repo: Repository, files: Sequence[str], options: InitOptions, wishes: Wishes, accelerators: int
) -> tuple[Command, tuple[Flag, ...]]:
    if options.command:
        command = parse_command(options.command, repo.root)
        return command, read_flags(repo.root, command.entry)
    if wishes.entry:
        entry = wishes.entry
    else:
        entries = find_entries(repo.root, files)
        if not entries:
            raise UsageError(
                "no training entry was found",
                why=f"none of {sum(f.endswith('.py') for f in files)} Python files calls backward() and an optimizer",
                hint="git infrarsi init --command 'torchrun --standalone --nproc_per_node=2 train.py'",
                code="no-entry",
            )
        entry = entries[0].path
    flags = read_flags(repo.root, entry)
    device = "cuda" if accelerators else "cpu"
    return guess_command(repo.root, entry, flags, accelerators or 2, device), flags


def _scope(files: Sequence[str], wishes: Wishes) -> Scope:
    """Propose the Python files as editable, less tests and whatever the sentence forbids."""
    locked = tuple(dict.fromkeys((*wishes.locked, *(g for g in NEVER_EDITABLE if _any_match(g, files)))))
    editable = wishes.editable or ("*.py",)
    return Scope(tuple(editable), locked)


def _any_match(glob: str, files: Sequence[str]) -> bool:
    return any(is_editable(Scope((glob,)), f) for f in files)


def _require_clean(repo: Repository, intent: Intent) -> None:
    dirty = [d.path for d in repo.dirty_paths() if d.status != "??" and is_editable(intent.scope, d.path)]
    if dirty:
        raise GitError(
            f"uncommitted changes in scope: {', '.join(dirty[:5])}",
            why="the contract is anchored at a commit, and these changes are not in one",
            hint="git commit (or git stash), then init again",
            code="dirty-scope",
        )


def _observe_and_lock(
    repo: Repository, head: str, intent: Intent, engine: Engine, notify: Notify, *, fixed: bool, wishes: Wishes
) -> tuple[Intent, Contract, tuple[str, ...]]:
    job = Job(
        command=intent.command,
        environment=intent.environment,
        entry=intent.entry,
        python=resolve_python(intent.launch.python, repo.root),
        world_size=intent.world_size,
        data=(),
        setup=intent.setup,
        sandbox=intent.launch.sandbox,
        memory_bytes=intent.budget.memory_bytes,
    )
    run = f"init-{new_run_id()}"
    bench = Bench(repo, job, engine, run, repo.state_dir / "init" / run)
    seen = observing.observe(bench, head, intent.knobs, notify)
    notes = [f"data level {seen.data_level}: {seen.level_why}"]
    if fixed:
        level = intent.data_level
    else:
        level = _agreed_level(seen.data_level, wishes)
        intent = replace(intent, data=_declared(seen.data, repo), data_level=level, knobs=_classed(intent, seen, notes))
    if seen.replay_why:
        notes.append(f"a step cannot be replayed, so finalists are judged without: {seen.replay_why}")
    if seen.outside:
        notes.append(f"read from outside the repository, and so not locked: {', '.join(seen.outside[:3])}")
    notify(Event("stage", "hashing the data and the locked files"))
    contract = lock(repo, head, intent, seen)
    return intent, contract, tuple(notes)


def _agreed_level(seen: DataLevel, wishes: Wishes) -> DataLevel:
    """A wish may ask for a stricter level than the baseline holds: refuse, since the baseline itself would fail it."""
    order: tuple[DataLevel, ...] = ("sampled", "same-set", "exact")
    wanted = wishes.data_level
    if wanted and order.index(wanted) > order.index(seen):
        raise ContractError(
            f"the data level {wanted} was asked for, but the baseline itself does not keep it",
            why="it draws its batches at random, and its micro-batch changes which rows it draws",
            hint="leave the wish out, or make the sampler depend on the step only",
            code="data-level",
        )
    return wanted or seen


def _declared(data: tuple[str, ...], repo: Repository) -> tuple[str, ...]:
    """Declare everything that git ignores and the training reads; of what it tracks, neither code nor settings."""
    ignored, tracked = set(repo.ignored_files()), set(repo.tracked_files())
    code = (".py", ".md", ".yaml", ".yml", ".json", ".toml", ".lock", ".sh")
    return tuple(n for n in data if n in ignored or (n in tracked and not n.endswith(code)))


def _classed(intent: Intent, seen: observing.Observation, notes: list[str]) -> tuple[Knob, ...]:
    """Mark the micro-batch as semantic where the baseline's own variant changes the loss beyond reordering."""
    cap = next(c.loss for c in default_caps(seen.data_level) if c.numerics == "reorder")
    change = seen.micro_batch_changes_loss
    if change is None or change <= cap:
        return intent.knobs
    notes.append(f"the micro-batch changes the loss by {change:.1e}: it is part of the mathematics here, so it stays")
    kept = [replace(k, numerics="semantic") if k.name == "micro_batch" else k for k in intent.knobs]
    limit = NUMERICS_ORDER.index(intent.numerics)
    return tuple(k for k in kept if NUMERICS_ORDER.index(k.numerics) <= limit)


def lock(repo: Repository, head: str, intent: Intent, seen: observing.Observation) -> Contract:
    """Return the contract: the intent and the observed facts, nothing of this machine."""
    end = next(e for e in seen.execution.ends if e.rank == 0)
    first = seen.steps[0]
    return Contract(
        goal=intent.goal,
        base_commit=head,
        workload=Workload(
            entry=intent.entry,
            command=intent.command,
            environment=intent.environment,
            world_size=intent.world_size,
            rows_per_step=first.rows,
            tokens_per_step=first.tokens,
            data_level=intent.data_level,
            data=digest_data(repo.root, intent.data),
            held_out=intent.held_out or HELD_OUT,
        ),
        scope=intent.scope,
        locked=lock_digests(intent.scope, repo.tracked_files(head), CommitReader(repo, head)),
        invariants=Invariants(
            parameters=end.parameters,
            hyper_parameters=end.hyper_parameters,
            optimizer_steps=max(1, round(end.optimizer_steps / len(seen.steps))),
            clips_per_step=max(s.clip_calls for s in seen.steps),
            numerics=intent.numerics,
            caps=default_caps(intent.data_level),
            unobserved=_unobserved(end, seen),
        ),
        budget=intent.budget,
        intent_digest=intents.digest_of(intent),
        require_signature=intent.require_signature,
    )


def _unobserved(end: RankEnd, seen: observing.Observation) -> tuple[str, ...]:
    """Return what the baseline does not show; an optimizer that bears a known name but has a rule of its own, too."""
    found = {*end.unobserved, *(["replay"] if seen.replay_why else [])}
    return tuple(sorted(found | ({"shadow"} if beyond_shadow(seen.execution.steps) else set())))


def _keep_old(toml: Path) -> tuple[str, ...]:
    """Keep a file that a person may have edited beside the new one, and say so."""
    if not toml.exists():
        return ()
    backup = toml.with_suffix(".toml.orig")
    number = 1
    while backup.exists() and backup.read_bytes() != toml.read_bytes():  # an earlier backup may be the only copy
        number += 1
        backup = toml.with_suffix(f".toml.orig{number}")
    backup.write_bytes(toml.read_bytes())
    return (f"the {toml.name} that stood here is kept as {backup.name}",)
