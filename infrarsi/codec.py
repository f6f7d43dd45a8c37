"""Records to JSON and back, and the one canonical form that every digest and signature is taken over."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from infrarsi.errors import InfrarsiError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def encode(record: object) -> Any:
    """Return `record` (a dataclass, or tuples and dicts of them) as plain JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: encode(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, (tuple, list)):
        return [encode(item) for item in record]
    if isinstance(record, dict):
        return {str(key): encode(value) for key, value in record.items()}
    return record


def decode(kind: type[T], value: Any) -> T:
    """Build a `kind` from JSON values; unknown keys and wrong types raise InfrarsiError.

    Strict about keys, so that a newer file is refused and never half read.
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(cast(Hashable, kind)).validate_python(value))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InfrarsiError(
            f"a {kind.__name__} record cannot be read",
            why=f"{where or 'value'}: {first['msg']}",
            hint="it was written by another version of infrarsi, or edited by hand",
            code="malformed-record",
        ) from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    _forbid_extra(kind)
    if dataclasses.is_dataclass(kind):
        return TypeAdapter(kind)
    return TypeAdapter(kind, config=ConfigDict(extra="forbid"))


def _forbid_extra(kind: type[Any]) -> None:
    """Set pydantic's `extra='forbid'` on the record classes; standard dataclasses carry no config of their own."""
    from pydantic import ConfigDict

    import infrarsi.records as records

    for item in vars(records).values():
        if isinstance(item, type) and dataclasses.is_dataclass(item):
            item.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of records or JSON values: sorted keys, no spaces, UTF-8, no NaN.

    Floats are written by `repr`, the shortest form that reads back as the same number.
    """
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()
