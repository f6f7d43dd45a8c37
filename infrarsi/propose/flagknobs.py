"""Flags that the training script already has and that change its speed: compile, precision, workers, fused…"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infrarsi.propose.catalogue import claims_of, device_kind
from infrarsi.records import Assignment, Hardware, Knob, Level, Numerics, Scalar

if TYPE_CHECKING:
    from infrarsi.contract.command import Command
    from infrarsi.contract.flags import Flag


@dataclass(frozen=True)
class _Switch:
    """A kind of on/off flag: the names that scripts give it, and what the catalogue says of turning it on."""

    knob: str
    names: tuple[str, ...]
    catalogue_id: str
    numerics: Numerics
    why: str
    hardware: tuple[str, ...] = ("cpu", "cuda", "rocm")
    both_ways: bool = False  # turning it off again is worth a trial as well


_SWITCHES = (
    _Switch("compile", ("compile", "torch_compile", "use_compile", "compile_model", "use_torch_compile", "compiled"),
            "compile", "reorder", "fuses elementwise work; the first step takes long", both_ways=True),
    _Switch("flash", ("flash", "flash_attn", "use_flash", "use_flash_attn", "flash_attention", "use_flash_attention",
                      "use_sdpa", "sdpa"), "sdpa", "reorder", "attention without the scores in memory"),
    _Switch("fused_optimizer", ("fused", "fused_adam", "use_fused", "fused_adamw", "fused_optimizer", "use_fused_adam"),
            "fused_adam", "reorder", "one kernel for the optimizer step"),
    _Switch("checkpointing", ("gradient_checkpointing", "activation_checkpointing", "grad_checkpointing",
                              "checkpoint_activations", "use_checkpoint", "recompute", "grad_checkpoint"),
            "ac_full", "bitwise", "trades time for memory", both_ways=True),
    _Switch("bf16", ("bf16", "use_bf16", "amp", "use_amp", "autocast", "mixed_precision", "amp_bf16"),
            "bf16_amp", "reduced", "bfloat16 forward pass"),
    _Switch("tf32", ("tf32", "allow_tf32", "use_tf32"), "tf32", "reduced", "TF32 matrix products", ("cuda",)),
    _Switch("bucket_view", ("gradient_as_bucket_view", "grad_as_bucket_view", "bucket_view"),
            "ddp_bucket_view", "bitwise", "no second copy of the gradients"),
    _Switch("pin_memory", ("pin_memory", "pin_mem", "dataloader_pin_memory"), "pin_mem", "bitwise",
            "copies beside computation", ("cuda", "rocm")),
    _Switch("persistent_workers", ("persistent_workers", "dataloader_persistent_workers"), "dl_workers", "reorder",
            "workers are not started anew for each epoch"),
)  # fmt: skip

_PRECISION = ("dtype", "precision", "amp_dtype", "compute_dtype", "mixed_precision", "train_dtype", "autocast_dtype")
_TO_BF16 = {
    "float32": "bfloat16", "fp32": "bf16", "float": "bfloat16", "32": "bf16-mixed", "32-true": "bf16-mixed",
    "float16": "bfloat16", "fp16": "bf16", "no": "bf16", "none": "bf16", "f32": "bf16",
    "torch.float32": "torch.bfloat16",
}  # fmt: skip
_WORKERS = (
    "num_workers",
    "workers",
    "dataloader_num_workers",
    "data_workers",
    "loader_workers",
    "n_workers",
    "dl_workers",
)
_BUCKETS = ("bucket_cap_mb", "ddp_bucket_cap_mb", "bucket_size_mb")


def matching(flags: Sequence[Flag], names: Sequence[str]) -> Flag | None:
    """Return the flag that bears the earliest of `names` (dashes, dots and groups before the name do not matter)."""
    for name in names:
        for flag in flags:
            shown = flag.name.lstrip("-").rpartition(".")[2].replace("-", "_")
            if shown == name or flag.dest.rpartition(".")[2] == name:
                return flag
    return None


def current(flag: Flag, command: Command) -> Scalar | None:
    """Return the value with which a flag runs now."""
    from infrarsi.contract.flags import current_value

    value: Scalar | None = current_value(flag, command)
    return value


def flag_knobs(flags: Sequence[Flag], command: Command, hardware: Hardware) -> Iterator[Knob]:
    """Yield a knob for each flag of the script whose meaning is known."""
    kind = device_kind(hardware)
    taken: set[str] = set()
    for switch in _SWITCHES:
        flag = matching([item for item in flags if item.boolean != "no"], switch.names)
        if flag is None or flag.name in taken or kind not in switch.hardware:
            continue
        on = bool(current(flag, command))
        if on and not switch.both_ways:
            continue
        taken.add(flag.name)
        claims = claims_of(switch.catalogue_id) if not on else ()
        yield Knob(
            name=switch.knob,
            kind="flag",
            levels=(Level("on" if on else "off"), Level("off" if on else "on", switched(flag, not on))),
            claims=((), claims),
            numerics=switch.numerics,
            catalogue_id=switch.catalogue_id,
            why=switch.why,
        )
    yield from _value_knobs(flags, command, hardware, taken)


def switched(flag: Flag, on: bool) -> tuple[Assignment, ...]:
    """Return the assignments that turn a boolean flag on or off in the way in which its script reads it."""
    if flag.boolean == "store_true":
        return (Assignment("flag", flag.name, True if on else None),)
    if flag.boolean == "store_false":
        return (Assignment("flag", flag.name, None if on else True),)
    if flag.boolean == "optional_action":
        negative = f"--no-{flag.name.lstrip('-')}"
        given, absent = (flag.name, negative) if on else (negative, flag.name)
        return (Assignment("flag", absent, None), Assignment("flag", given, True))
    return (Assignment("flag", flag.name, on),)


def _value_knobs(flags: Sequence[Flag], command: Command, hardware: Hardware, taken: set[str]) -> Iterator[Knob]:
    precision = matching([item for item in flags if item.boolean == "no" and item.name not in taken], _PRECISION)
    if precision is not None and (knob := _precision(precision, command, device_kind(hardware))) is not None:
        yield knob
    workers = matching(flags, _WORKERS)
    if workers is not None:
        now = current(workers, command)
        counts = [count for count in (2, 4, 8) if count <= max(2, hardware.cores) and count != now]
        why = "batches are prepared beside the computation; the contract compares the rows of every step"
        yield _numbers("workers", workers, now, counts, "dl_workers", "reorder", why)
    buckets = matching(flags, _BUCKETS)
    if buckets is not None:
        now = current(buckets, command)
        why = "fewer, larger reductions, or more that overlap"
        yield _numbers(
            "bucket_cap_mb", buckets, now, [size for size in (10, 50, 100) if size != now], "ddp_bucket", "reorder", why
        )


def _precision(flag: Flag, command: Command, kind: str) -> Knob | None:
    now = current(flag, command)
    target = _TO_BF16.get(str(now).lower()) if now is not None else None
    if target is not None and flag.choices and target not in flag.choices:
        target = next(
            (str(item) for item in flag.choices if str(item).lower() in ("bfloat16", "bf16", "bf16-mixed")), None
        )
    if target is None:
        return None
    name = "cpu_bf16" if kind == "cpu" else "bf16_amp"
    return Knob(
        name="precision",
        kind="flag",
        levels=(Level(str(now)), Level(target, (Assignment("flag", flag.name, target),))),
        claims=((), claims_of(name)),
        numerics="reduced",
        catalogue_id=name,
        why="matrix units compute bfloat16 several times faster",
    )


def _numbers(
    name: str, flag: Flag, now: Scalar | None, values: Sequence[int], catalogue_id: str, numerics: Numerics, why: str
) -> Knob:
    levels = (Level(str(now)), *(Level(str(value), (Assignment("flag", flag.name, value),)) for value in values))
    claim = claims_of(catalogue_id)
    ordered = isinstance(now, int) and all(value > now for value in values)
    return Knob(name, "flag", levels, ordered, ((), *(claim for _ in values)), numerics, catalogue_id, why)
