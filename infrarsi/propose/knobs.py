"""Launch knobs: which flags, variables and libraries of this launch could be tried, with the baseline first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infrarsi.propose.allocators import allocator_knobs
from infrarsi.propose.catalogue import by_id, claims_of, device_kind
from infrarsi.propose.flagknobs import current, flag_knobs, matching
from infrarsi.records import Assignment, Claim, Hardware, Knob, Level, Numerics

if TYPE_CHECKING:
    from infrarsi.contract.command import Command
    from infrarsi.contract.flags import Flag

MICRO_BATCH = (
    *(
        "micro_batch_size",
        "microbatch_size",
        "micro_batch",
        "microbatch",
        "mbs",
        "device_batch_size",
        "local_batch_size",
    ),
    *("per_device_train_batch_size", "per_device_batch_size", "per_gpu_batch_size", "batch_size", "batch", "bs", "B"),
)
ACCUMULATION = (
    *(
        "gradient_accumulation_steps",
        "grad_accumulation_steps",
        "grad_accum_steps",
        "gradient_accumulation",
        "grad_accum",
    ),
    *("grad_acc_steps", "accumulation_steps", "accum_steps", "accumulate_grad_batches", "accumulate_steps", "accum"),
    *("gradient_acc_steps", "micro_steps", "accumulation"),
)
GLOBAL_BATCH = ("total_batch_size", "global_batch_size", "gbs", "effective_batch_size")
# Losses that see the micro-batch as a whole: another micro-batch is other mathematics.
_WHOLE_BATCH = re.compile(
    r"aux_?loss|load_?balanc|capacity_factor|exp(ert)?_capacity|BatchNorm|contrastive|info_?nce", re.I
)
_SPLITS_ACCUMULATION = re.compile(r"accum\w*\s*(//=|=\s*[\w.]*accum\w*\s*//)\s*[\w.]*world", re.I)


def propose_knobs(
    flags: Sequence[Flag],
    command: Command,
    hardware: Hardware,
    world_size: int,
    *,
    sources: Mapping[str, str] | None = None,
    memory_tight: bool = False,
    libraries: Iterable[Path] | None = None,
) -> tuple[Knob, ...]:
    """Return the knobs of one launch; the number of processes is workload and never one of them.

    `sources` (path -> text of the training code) tells whether a larger micro-batch is the same mathematics.
    `memory_tight` adds smaller micro-batches, the way out when the baseline hardly fits. `libraries` are folders to
    look for allocators in (default: where the system keeps its shared libraries).
    """
    found: list[Knob | None] = [_micro_batch(flags, command, world_size, sources or {}, memory_tight)]
    found += flag_knobs(flags, command, hardware)
    found.append(_threads(command, hardware, world_size))
    found += allocator_knobs(dict(command.environment), device_kind(hardware), libraries)
    return tuple(knob for knob in found if knob is not None and len(knob.levels) > 1)


def _micro_batch(
    flags: Sequence[Flag], command: Command, world_size: int, sources: Mapping[str, str], tight: bool
) -> Knob | None:
    """The joint knob: micro-batch up, accumulation down, their product unchanged."""
    micro = matching(flags, MICRO_BATCH)
    accumulation = matching(flags, ACCUMULATION)
    if micro is None:
        return None
    rows = current(micro, command)
    if accumulation is None:
        return _derived_accumulation(flags, micro, rows, sources)
    steps = current(accumulation, command)
    if not isinstance(rows, int) or not isinstance(steps, int) or rows < 1 or steps < 1:
        return None
    # nanoGPT and its kin divide the flag by the number of processes, and insist that it divides evenly
    unit = world_size if any(_SPLITS_ACCUMULATION.search(text) for text in sources.values()) else 1
    if steps % unit:
        return None
    pairs = [(rows * factor, steps // factor) for factor in _divisors(steps // unit)]
    if tight:
        pairs += [(rows // factor, steps * factor) for factor in _divisors(rows)[1:3]]
    levels = [Level(f"{rows} x {steps}")]
    claims: list[tuple[Claim, ...]] = [()]
    for size, count in pairs[1:]:
        setting = (Assignment("flag", micro.name, size), Assignment("flag", accumulation.name, count))
        levels.append(Level(f"{size} x {count}", setting))
        claims.append((_micro_batch_claim(size / rows),))
    return _micro_batch_knob(levels, claims, sources, ordinal=not (tight and len(_divisors(rows)) > 1))


def _derived_accumulation(flags: Sequence[Flag], micro: Flag, rows: object, sources: Mapping[str, str]) -> Knob | None:
    """Only the micro-batch is a flag; the accumulation follows from a global batch that the script is given."""
    if matching(flags, GLOBAL_BATCH) is None or not isinstance(rows, int):
        return None
    sizes = [rows * factor for factor in (1, 2, 4, 8)]
    levels = [Level(str(rows))] + [Level(str(size), (Assignment("flag", micro.name, size),)) for size in sizes[1:]]
    claims: list[tuple[Claim, ...]] = [()] + [(_micro_batch_claim(size / rows),) for size in sizes[1:]]
    return _micro_batch_knob(levels, claims, sources, ordinal=True)


def _micro_batch_knob(
    levels: list[Level], claims: list[tuple[Claim, ...]], sources: Mapping[str, str], *, ordinal: bool
) -> Knob:
    whole = next((path for path, text in sorted(sources.items()) if _WHOLE_BATCH.search(text)), "")
    numerics: Numerics = "semantic" if whole else "reorder"
    why = "larger matrix products and fewer launches, at the same global batch"
    if whole:
        why += f"; but {whole} computes a loss or statistic over the micro-batch, which makes this other mathematics"
    return Knob(
        name="micro_batch",
        kind="flag",
        levels=tuple(levels),
        ordinal=ordinal,
        claims=tuple(claims),
        numerics=numerics,
        catalogue_id="mbs_up",
        why=why,
    )


def _micro_batch_claim(factor: float) -> Claim:
    """Each doubling gives what the catalogue says of one; time gains are taken to end after three."""
    from math import log2

    entry = by_id()["mbs_up"]
    doublings = log2(factor)
    time = entry.time_factor ** min(doublings, 3.0)
    memory = entry.memory_factor**doublings
    return Claim("catalogue", round(time, 4), round(memory, 4), entry.confidence, entry.memory_term)


def _divisors(number: int) -> list[int]:
    """Return at most six divisors in ascending order, 1 first: the powers of two among them, and the number itself."""
    found = [item for item in range(1, number + 1) if number % item == 0]
    powers = [item for item in found if item & (item - 1) == 0]
    return sorted({*powers[:5], number})


def _threads(command: Command, hardware: Hardware, world_size: int) -> Knob | None:
    """OpenMP threads per rank: torchrun sets one, which leaves cores idle; too many spin against each other."""
    share = max(1, hardware.cores // max(1, world_size))
    given = dict(command.environment).get("OMP_NUM_THREADS")
    base = int(given) if given is not None and given.isdigit() else (1 if command.launcher == "torchrun" else None)
    counts = sorted({1, max(1, share // 2), share} - {base})
    levels = [Level(str(base) if base is not None else "default")]
    levels += [Level(str(count), (Assignment("env", "OMP_NUM_THREADS", str(count)),)) for count in counts]
    claim = claims_of("omp") if device_kind(hardware) == "cpu" else ()
    # the catalogue's factor is for cores that were left idle
    claims = tuple(
        claim if index and base is not None and count > base else () for index, count in enumerate([0, *counts])
    )
    return Knob(
        name="omp_threads",
        kind="env",
        levels=tuple(levels),
        ordinal=base is not None and all(count > base for count in counts),
        claims=claims,
        numerics="reorder",
        catalogue_id="omp",
        why=f"{hardware.cores} cores for {world_size} ranks",
    )
