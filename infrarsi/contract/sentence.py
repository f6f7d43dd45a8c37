"""One sentence of a person, read by rules. What is not understood is said, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infrarsi.contract.sentencerules import FILLER, RULES, Effect, Refusal, Wish
from infrarsi.records import NUMERICS_ORDER, DataLevel, Numerics

_DATA_ORDER: tuple[DataLevel, ...] = ("exact", "same-set", "sampled")
_CONTRACTIONS = (
    (r"\bcannot\b|\bcan't\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"\bdont\b", "do not"),
    (r"n't\b", " not"),
    (r"\b(it|that)'s\b", r"\1 is"),
    (r"'d\b", " would"),
    (r"'ll\b", " will"),
    (r"\b(and a half)\b", "and-a-half"),
    (r"\b(anything|everything|nothing|nothing else|any file|all files) but\b", r"\1 except"),
)
_LISTED = (
    r"(?:(?:any )?(?:bf16|bfloat16|fp16|float16|tf32|fp8|float8|amp|autocast|"
    r"(?:half|mixed|lower|reduced|low) precision)|[\w./*-]*(?:\.[A-Za-z]\w{0,5}|/)(?:::\w+)?|[\w./-]*\*[\w./*-]*)"
)
# "a.py and b.py", "bf16, tf32 or fp8": one list, unless a new statement starts ("b.py is the entry")
_LIST = re.compile(
    rf"(?<![\w./*-])({_LISTED})(?:,? (?:and|or|nor|&) |, )(?={_LISTED}(?![\w./*-])(?! is\b))", re.IGNORECASE
)
_STOP = re.compile(
    r"[;!?\n]+|,(?!\d)|\.(?=\s|$)|:\s(?=\w+ \w+)|\s[–—-]\s|\s(?:but|and|while|then|plus|yet)\s", re.IGNORECASE
)

_POLITE = ("", "please", "thanks", "thank you", "kindly", "and", "or")


@dataclass(frozen=True)
class Wishes:
    """What a sentence asks for. None and () mean that it says nothing about it.

    `understood` holds every clause that was understood with what it became, `not_understood` all others, where it
    helps with the reason in brackets. `model_provider` is "none" (no model may be asked) or "claude".
    """

    numerics: Numerics | None = None
    locked: tuple[str, ...] = ()
    editable: tuple[str, ...] = ()
    memory_bytes: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    trials: int | None = None
    data_level: DataLevel | None = None
    error_rate: float | None = None
    entry: str | None = None
    target_speedup: float | None = None
    model_provider: str | None = None
    require_signature: bool | None = None
    understood: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Clause:
    text: str
    effects: tuple[Effect, ...]
    reason: str = ""

    @property
    def shown(self) -> str:
        return self.text.replace(" + ", ", ").replace("and-a-half", "and a half")

    @property
    def understood(self) -> bool:
        return bool(self.effects) and not self.reason


def read_sentence(sentence: str, files: Sequence[str]) -> Wishes:
    """Read a sentence about a repository whose tracked files are `files`.

    Budgets named twice keep the smaller value. A permission that another clause takes back is not granted: it is
    reported as not understood.
    """
    clauses = [_read(text, files) for text in split_clauses(sentence)]
    clauses = _without_contradictions(clauses)
    effects = [effect for clause in clauses if clause.understood for effect in clause.effects]

    def values(wish: Wish) -> list[str]:
        return [str(e.value) for e in effects if e.wish == wish]

    def smallest(wish: Wish) -> float | None:
        return min((float(e.value) for e in effects if e.wish == wish), default=None)

    memory, trials = smallest("memory_bytes"), smallest("trials")
    levels = [level for level in _DATA_ORDER if level in values("data_level")]
    speedups = [float(e.value) for e in effects if e.wish == "target_speedup"]
    return Wishes(
        numerics=_numerics(values("soft_numerics"), values("allow"), values("ceiling")),
        locked=tuple(dict.fromkeys(values("locked"))),
        editable=tuple(dict.fromkeys(values("editable"))),
        memory_bytes=None if memory is None else int(memory),
        seconds=smallest("seconds"),
        dollars=smallest("dollars"),
        trials=None if trials is None else int(trials),
        data_level=levels[0] if levels else None,
        error_rate=smallest("error_rate"),
        entry=next(iter(values("entry")), None),
        target_speedup=max(speedups, default=None),
        model_provider=next(iter(sorted(values("model_provider"), key=lambda v: v != "none")), None),
        require_signature=True if values("require_signature") else None,
        understood=tuple(f"{c.shown}: {'; '.join(e.meaning for e in c.effects)}" for c in clauses if c.understood),
        not_understood=tuple(f"{c.shown} ({c.reason})" if c.reason else c.shown for c in clauses if not c.understood),
    )


def split_clauses(sentence: str) -> list[str]:
    """Return the clauses of a sentence; lists of files or formats stay together, joined by ` + `."""
    text = re.sub(r"[“”\"`]", "", sentence.replace("’", "'"))
    for pattern, replacement in _CONTRACTIONS:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    previous = ""
    while previous != text:
        previous, text = text, _LIST.sub(r"\1 + ", text)
    pieces = (re.sub(r"\s+", " ", piece).strip(" '()") for piece in _STOP.split(text))
    clauses = [re.sub(r"^(?:and|but|so|then|or) ", "", piece, flags=re.IGNORECASE) for piece in pieces]
    return [clause for clause in clauses if clause.lower() not in _POLITE]


def _read(clause: str, files: Sequence[str]) -> _Clause:
    """Cut every known phrase out of a clause; what remains decides whether it was understood."""
    rest = re.sub(r"^(?:please|kindly) ", "", clause, flags=re.IGNORECASE)
    effects: list[Effect] = []
    refused: list[str] = []
    for rule in RULES:
        while match := rule.pattern.search(rest):
            for found in rule.read(match, files):
                if isinstance(found, Refusal):
                    refused.append(found.reason)
                else:
                    effects.append(found)
            rest = f"{rest[: match.start()]} | {rest[match.end() :]}"
    if refused:
        return _Clause(clause, (), "; ".join(refused))
    left = [word for word in re.findall(r"[^\s|]+", rest) if word.lower().strip(".,:'") not in FILLER]
    if left and effects:
        return _Clause(clause, (), f"what does “{' '.join(left)}” mean here?")
    return _Clause(clause, () if left else tuple(effects))


def _numerics(soft: Sequence[str], allowed: Sequence[str], ceilings: Sequence[str]) -> Numerics | None:
    """Return the widest class asked for, under the narrowest ceiling."""
    if ceilings:
        return min((_class(c) for c in ceilings), key=NUMERICS_ORDER.index)
    if allowed:
        return max((_class(a) for a in allowed), key=NUMERICS_ORDER.index)
    return "reorder" if soft else None


def _class(name: str) -> Numerics:
    return next(c for c in NUMERICS_ORDER if c == name)


def _without_contradictions(clauses: Iterable[_Clause]) -> list[_Clause]:
    """Take back what two clauses say differently: a forbidden permission, a second entry, a file both ways."""
    listed = list(clauses)
    every = [e for c in listed if c.understood for e in c.effects]
    ceilings = [str(e.value) for e in every if e.wish == "ceiling"]
    entries = [e.value for e in every if e.wish == "entry"]
    checked = []
    for clause in listed:
        reason = ""
        for effect in clause.effects:
            if effect.wish == "allow" and ceilings:
                reason = "another clause forbids lower precision; the contract has one class for all formats"
            elif effect.wish == "entry" and effect.value != entries[0]:
                reason = f"the entry is {entries[0]} already"
        checked.append(_Clause(clause.text, clause.effects, clause.reason or reason))
    return checked
