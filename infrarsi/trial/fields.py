"""Reads the fields of a message of the probe, strictly: what does not fit is Malformed, never guessed."""

from __future__ import annotations

from typing import Any

from infrarsi.records import HyperParameters, Parameter, RankEnd, Scalar, StepRecord


class Malformed(ValueError):
    """A message that the protocol does not know."""


def step_record(
    rank: int, step: int, tick: tuple[float, float], message: dict[str, Any], in_window: bool
) -> StepRecord:
    """Return one step of one rank; `tick` is (our clock, its clock) at the step's close."""
    arrival, clock = tick
    return StepRecord(
        rank=rank,
        step=step,
        arrival_seconds=arrival,
        rank_seconds=clock,
        loss=_optional(message, "loss"),
        backward_calls=whole(message, "backward_calls"),
        rows=whole(message, "rows"),
        tokens=whole(message, "tokens"),
        row_hash=_hash(message, "row_hash"),
        token_hash=_hash(message, "token_hash"),
        grad_norm=_optional(message, "grad_norm"),
        clip_calls=whole(message, "clip_calls"),
        update_sketch=tuple(_number(v) for v in _list(message, "update_sketch")),
        hyper_digest=str(message.get("hyper_digest", "")),
        in_window=in_window,
        unique_rows=None if message.get("unique_rows") is None else whole(message, "unique_rows"),
        shadow_error=_optional(message, "shadow_error"),
        check=False,  # which steps are left out of the time is never the rank's to say
        phases=tuple((str(n), _number(v)) for n, v in _pairs(message.get("phases") or [])),
    )


def rank_end(
    rank: int, message: dict[str, Any], model: tuple[Parameter, ...], seen: tuple[HyperParameters, ...]
) -> RankEnd:
    """Return a rank's end; parameters and hyper-parameters that it leaves out are those it reported before."""
    hyper = tuple(_hyper_list(message.get("hyper_parameters") or []))
    return RankEnd(
        rank=rank,
        peak_allocated_bytes=whole(message, "peak_allocated_bytes"),
        peak_reserved_bytes=whole(message, "peak_reserved_bytes"),
        parameters=parameters(message) or model,
        parameter_hash=str(message.get("parameter_hash", "")),
        hyper_parameters=seen or hyper,  # every change that was reported; the end holds the last values only
        modules_outside=_texts(message, "modules_outside"),
        hooks_intact=message.get("hooks_intact") is True,
        optimizer_steps=whole(message, "optimizer_steps"),
        unobserved=_texts(message, "unobserved"),
        opened_files=_texts(message, "opened_files"),
        flops_per_step=_optional(message, "flops_per_step"),
        data_functions=_texts(message, "data_functions"),
        overhead_seconds=_optional(message, "overhead_seconds") or 0.0,
        hot_lines=tuple((str(line), _number(seconds)) for line, seconds in _pairs(message.get("hot_lines") or [])),
        state_map_refused=str(message.get("state_map_refused") or "")[:500],
        memory_terms=tuple((str(term), int(_number(size))) for term, size in _pairs(message.get("memory_terms") or [])),
    )


def whole(message: dict[str, Any], name: str) -> int:
    """Return a field that must be a whole number."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"{name} is no whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(f"{str(value)[:40]!r} is no number")
    return float(value)


def number_of(message: dict[str, Any], name: str) -> float:
    """Return a field that must be a number."""
    return _number(message.get(name))


def _optional(message: dict[str, Any], name: str) -> float | None:
    value = message.get(name)
    return None if value is None else _number(value)


def _hash(message: dict[str, Any], name: str) -> str:
    text = message.get(name)
    try:
        int(text or "", 16)
    except (TypeError, ValueError) as error:
        raise Malformed(f"{name} is no hexadecimal number") from error
    return str(text)


def _list(message: dict[str, Any], name: str) -> list[Any]:
    value = message.get(name) or []
    if not isinstance(value, list):
        raise Malformed(f"{name} is no list")
    return value


def _texts(message: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(item) for item in _list(message, name))


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """Return (name, value) pairs of an object or of a list of two-item lists."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
        raise Malformed("not a list of pairs")
    return [(p[0], p[1]) for p in pairs]


def parameters(message: dict[str, Any]) -> tuple[Parameter, ...]:
    """Return a message's parameters, written as lists or as objects."""
    result = []
    for item in _list(message, "parameters"):
        if isinstance(item, dict):
            item = [item.get(k) for k in ("name", "shape", "dtype", "trainable")]
        if not isinstance(item, list) or len(item) != 4 or not isinstance(item[1], list):
            raise Malformed("a parameter is not [name, shape, dtype, trainable]")
        shape = tuple(int(_number(n)) for n in item[1])
        result.append(Parameter(str(item[0]), shape, str(item[2]), item[3] is True))
    return tuple(result)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def hyper_parameters(message: dict[str, Any], step: int) -> list[HyperParameters]:
    """Return a message's parameter groups as they are in force from `step` on."""
    result = []
    for group in _list(message, "groups"):
        if not isinstance(group, dict):
            raise Malformed("a parameter group is no object")
        values = tuple(sorted((str(k), _scalar(v)) for k, v in _pairs(group.get("values") or [])))
        result.append(HyperParameters(step, str(group.get("optimizer", "")), whole(group, "group"), values))
    return result


def _hyper_list(items: Any) -> list[HyperParameters]:
    if not isinstance(items, list) or any(not isinstance(item, dict) for item in items):
        raise Malformed("hyper_parameters is no list of objects")
    return [h for item in items for h in hyper_parameters({"groups": [item]}, whole(item, "step"))]
