"""`infrarsi.lock`: the facts of the contract, generated and committed. Portable: no host, hardware, path or time."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from infrarsi.codec import decode, digest, encode
from infrarsi.contract.intent import Intent, digest_of
from infrarsi.errors import ContractError, InfrarsiError
from infrarsi.records import SCHEMA_VERSION, Contract

FILE = "infrarsi.lock"
_REMAKE = "git infrarsi init --force makes a new one (and starts a new lineage of experience)"


def render(contract: Contract) -> str:
    """Return the lock's text: sorted keys, one value per line, so that two locks diff well."""
    return json.dumps(encode(contract), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str) -> Contract:
    """Read a lock. Raises ContractError with the way out: conflict markers, broken JSON, another schema, wrong keys."""
    if any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines()):
        raise ContractError(
            f"{FILE} holds a merge conflict",
            why="two branches made two contracts; a mix of them was never observed",
            hint=f"take one side (git checkout --ours or --theirs {FILE}), or: {_REMAKE}",
            code="lock-conflict",
        )
    try:
        value: Any = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except ValueError as error:
        raise ContractError(f"{FILE} is not readable", why=f"it is not JSON: {error}", hint=_REMAKE) from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise ContractError(
            f"{FILE} was written by a newer infrarsi",
            why=f"its schema is {schema}, this version reads up to {SCHEMA_VERSION}",
            hint="pip install --upgrade infrarsi",
            code="lock-newer",
        )
    try:
        return decode(Contract, value)
    except InfrarsiError as error:
        raise ContractError(f"{FILE} is not a contract", why=error.why, hint=_REMAKE, code="lock-malformed") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: people read the first one, JSON takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no limit")


def contract_digest(contract: Contract) -> str:
    """Return the contract's identity: sha256 of its canonical JSON."""
    return digest(contract)


def check_intent(contract: Contract, intent: Intent) -> None:
    """Raise ContractError where the locked part of the intent is not what the contract was made from (R-A8)."""
    changed = changed_keys(contract, intent)
    if contract.intent_digest == digest_of(intent):
        if not changed:
            return
        raise ContractError(
            f"{FILE} does not say what infrarsi.toml says",
            why=f"it was edited by hand: {', '.join(changed)}",
            hint=f"git checkout an older {FILE}, or: {_REMAKE}",
            code="contract-changed",
        )
    raise ContractError(
        "infrarsi.toml was changed since infrarsi.lock was made",
        why=f"changed: {', '.join(changed)}" if changed else "a key of its locked tables differs",
        hint=f"undo the change, or: {_REMAKE}",
        code="contract-changed",
    )


def changed_keys(contract: Contract, intent: Intent) -> tuple[str, ...]:
    """Return the keys of infrarsi.toml that differ from the contract; `setup` is only in the digest."""
    work, scope, budget = contract.workload, contract.scope, contract.budget
    pairs: list[tuple[str, Any, Any]] = [
        ("contract.goal", contract.goal, intent.goal),
        ("contract.numerics", contract.invariants.numerics, intent.numerics),
        ("contract.data_level", work.data_level, intent.data_level),
        ("contract.require_signature", contract.require_signature, intent.require_signature),
        ("workload.entry", work.entry, intent.entry),
        ("workload.command", work.command, intent.command),
        ("workload.environment", work.environment, intent.environment),
        ("workload.world_size", work.world_size, intent.world_size),
        ("workload.held_out", work.held_out, intent.held_out or work.held_out),  # init fills it in
    ]
    pairs += [(f"scope.{k}", getattr(scope, k), getattr(intent.scope, k)) for k in _fields(scope)]
    names = {"seconds": "hours", "memory_bytes": "memory_gb"}
    pairs += [(f"budget.{names.get(k, k)}", getattr(budget, k), getattr(intent.budget, k)) for k in _fields(budget)]
    changed = [name for name, locked, now in pairs if locked != now]
    if not _same_data([d.name for d in work.data], intent.data):
        changed.append("workload.data")
    return tuple(changed)


def _fields(record: object) -> tuple[str, ...]:
    return tuple(encode(record))


def _same_data(locked: list[str], named: tuple[str, ...]) -> bool:
    """Folders are locked file by file: every name must cover a locked file, and every file have a name."""
    plain = (PurePosixPath(n).as_posix() for n in named)
    covers = [(n, "" if n == "." else f"{n}/") for n in plain]
    used = {name for file in locked for name, folder in covers if file == name or file.startswith(folder)}
    return all(any(f == n or f.startswith(d) for n, d in covers) for f in locked) and used == {n for n, _ in covers}
