"""Which file of a repository trains, and how it would be launched when nobody says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from infrarsi.contract.command import Command
from infrarsi.contract.flags import Flag

# Below this a file has too little of a training loop to be proposed.
MINIMUM_SCORE = 6
_LARGEST_FILE = 400_000
_SKIPPED_FOLDERS = {"test", "tests", "testing", "docs", "doc", "node_modules", "third_party", "vendor", "site-packages"}
_SKIPPED_NAMES = re.compile(r"(setup|conftest|noxfile|test_.*|.*_test)\.py$")
_MENTION = re.compile(r"(torchrun|python[\d.]*|deepspeed|accelerate\s+launch|srun)\b[^\n]*?\s(?P<path>[\w./-]+\.py)\b")
_SIGNS: tuple[tuple[str, int, str], ...] = (
    (r"\.backward\(|autograd\.grad\(", 4, "calls backward()"),
    (r"(optim\w*|opt|scaler)\w*(\[\w+\])?\.step\(", 4, "steps an optimizer"),
    (r"trainer\w*\.(fit|train)\(", 5, "calls a trainer"),
    (r"if __name__ == [\"']__main__[\"']", 2, "can be run"),
    (r"ArgumentParser\(|HfArgumentParser|configurator\.py|click\.command|hydra\.main|tyro\.cli", 1, "reads flags"),
    (
        r"init_process_group|DistributedDataParallel|fully_shard|FullyShardedDataParallel|LOCAL_RANK",
        2,
        "is distributed",
    ),
    (r"state_dict\(\)|torch\.save\(", 1, "saves checkpoints"),
)
_NAME_SIGNS: tuple[tuple[str, int, str], ...] = (
    (r"^(train|pretrain|pre_train|training)$", 4, "its name says train"),
    (r"train", 2, "its name has train in it"),
    (r"^(main|run|run_clm)$", 2, "its name is a usual one"),
    (r"finetune|fine_tune|sft", 1, "its name says fine-tuning"),
    (
        r"bench|profile|eval|sample|generate|inference|infer|test|demo|example|plot|export|convert",
        -4,
        "its name says otherwise",
    ),
)
# A main guard, or a loop or a bare call at the top level: what is only imported has none of them.
_RUNS = re.compile(r"^(?:if __name__|for |while |with |[\w.]+\([^\n]*\)\s*(?:#[^\n]*)?$)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A file that may be the training's entry, with what speaks for it."""

    path: str
    score: int
    why: tuple[str, ...]


def find_entries(root: Path, files: Sequence[str]) -> tuple[Entry, ...]:
    """Return the training entries among `files` (paths relative to `root`), best first."""
    mentions = _mentions(root, files)
    entries = []
    for path in files:
        pure = PurePosixPath(path)
        if pure.suffix != ".py" or _SKIPPED_NAMES.match(pure.name) or _SKIPPED_FOLDERS.intersection(pure.parts[:-1]):
            continue
        entry = _judge(path, _read(root / path), mentions.get(path, 0))
        if entry is not None:
            entries.append(entry)
    return tuple(sorted(entries, key=lambda e: (-e.score, e.path.count("/"), e.path)))


def _judge(path: str, text: str, mentions: int) -> Entry | None:
    score, why = 0, []
    for pattern, points, reason in _SIGNS:
        if re.search(pattern, text):
            score += points
            why.append(reason)
    # a loop is what makes an entry: a name or a mention alone does not
    if score < 4:
        return None
    stem = PurePosixPath(path).stem.lower()
    named = next((sign for sign in _NAME_SIGNS if re.search(sign[0], stem)), None)
    if named is not None:
        score += named[1]
        why.append(named[2])
    if not _RUNS.search(text):
        score -= 4
        why.append("does nothing when run")
    if mentions:
        score += 3 + min(mentions, 3)
        why.append("the documentation or a script runs it")
    score -= path.count("/")
    return Entry(path, score, tuple(why)) if score >= MINIMUM_SCORE else None


def _mentions(root: Path, files: Sequence[str]) -> dict[str, int]:
    """Count how often each file is launched in documentation, scripts and the comments of code."""
    known = set(files)
    counts: dict[str, int] = {}
    for name in files:
        pure = PurePosixPath(name)
        if (
            pure.suffix not in (".md", ".rst", ".txt", ".sh", ".slurm", ".sbatch", ".py", ".yml", ".yaml")
            and pure.name != "Makefile"
        ):
            continue
        for match in _MENTION.finditer(_read(root / name)):
            said = PurePosixPath(match["path"]).as_posix().removeprefix("./")
            for path in (said, (pure.parent / said).as_posix()):
                if path in known:
                    counts[path] = counts.get(path, 0) + 1
                    break
    return counts


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return ""
        return path.read_text(errors="replace")
    except OSError:
        return ""


def guess_command(root: Path, entry: str, flags: Sequence[Flag], world_size: int, device: str) -> Command:
    """Return a launch of `entry` on `world_size` ranks of this machine, on "cpu" or "cuda".

    One plain process where nothing in the entry's folder knows ranks. A device or backend flag is set only where its
    default would not run here.
    """
    args = []
    by_dest = {flag.dest: flag for flag in flags}
    wanted = by_dest.get("device")
    if wanted is not None and not _fits(wanted.default, device):
        args.append(f"{wanted.name}={device}")
    ranks = world_size if world_size > 1 and _knows_ranks(root, entry) else 1
    backend = next((by_dest[n] for n in ("backend", "dist_backend", "ddp_backend") if n in by_dest), None)
    if backend is not None and device == "cpu" and ranks > 1 and backend.default == "nccl":
        args.append(f"{backend.name}=gloo")
    if ranks > 1:
        launcher_args = ("--standalone", f"--nproc_per_node={ranks}")
        return Command((), "torchrun", launcher_args, "", entry, tuple(args), False, root=root)
    return Command((), "python", (), "", entry, tuple(args), False, root=root)


def _fits(default: object, device: str) -> bool:
    """Whether a device flag's default chooses `device`: "auto" or none does, "cuda" does not on a CPU."""
    return default in (None, "", "auto") or str(default).partition(":")[0] == device


def _knows_ranks(root: Path, entry: str) -> bool:
    """Whether the entry, or a module beside it, is written for several ranks."""
    pattern = re.compile(r"init_process_group|LOCAL_RANK|init_device_mesh|Accelerator\(|Trainer\(|Fabric\(")
    folder = (root / entry).parent
    beside = (*sorted(folder.glob("*.py")), *sorted(folder.glob("*/*.py"))[:200])
    return any(pattern.search(_read(path)) for path in (root / entry, *beside))
