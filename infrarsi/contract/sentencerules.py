"""The phrases a sentence may hold, and what each of them asks for.

A rule cuts its phrase out of a clause. A clause counts as understood only if nothing but filler is left of it, so that
a number with an unknown noun ("20 GB of disk") or a stray negation is never taken for something else.
"""

# A table of patterns reads better in long lines.
# ruff: noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from infrarsi.contract import wording
from infrarsi.records import Scalar

Wish = Literal[
    "goal", "soft_numerics", "allow", "ceiling", "data_level", "locked", "editable", "entry", "memory_bytes", "seconds",
    "dollars", "trials", "error_rate", "target_speedup", "model_provider", "require_signature", "kept",
]  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """What one phrase asks for, and how that is told back to the person."""

    wish: Wish
    value: Scalar
    meaning: str


@dataclass(frozen=True)
class Refusal:
    """A phrase whose form is known but whose content is not, with the reason."""

    reason: str


Effects = tuple[Effect | Refusal, ...]
Reader = Callable[[re.Match[str], Sequence[str]], Effects]


@dataclass(frozen=True)
class Rule:
    """A phrase and its reader. Rules are tried in order, each as often as it matches."""

    pattern: re.Pattern[str]
    read: Reader


# Words that may be left over without changing what was asked for.
FILLER = frozenset(
    re.findall(
        r"\w+",
        "please also too then and it this that the a an with in of for to at all just so my our use using training train "
        "run total overall altogether make have get you we i want would like can may take spend finish done be is are "
        "should within on by as well budget if possible needed thanks",
    )
)
_ITEM = rf"{wording.FILE}"
_ITEMS = rf"(?P<items>{_ITEM}(?: \+ {_ITEM})*)"
_NOUN = r"(?:the )?(?:files? |folders? |function |class |symbol )?"
_FOLDER = r"(?: (?:file|files|folder|directory))?"
_EDIT = r"(?:touch|change|modify|edit|alter|rewrite)"
_EDITED = r"(?:touched|changed|modified|edited|altered)"
_EDITING = r"(?:touching|changing|modifying|editing|altering)"
_NOT = r"(?:do not|must not|may not|can not|should not|never|not)"
_EXCEPT = r"(?:except(?: for)?|other than|apart from|outside(?: of)?|besides)"
_SAME = r"(?:alone|untouched|unchanged|as is|as it is|as they are|as-is|fixed|frozen|locked|the same|out of (?:it|this)|intact)"
_PRECISION = r"(?:bf16|bfloat16|fp16|float16|tf32|fp8|float8|amp|autocast|(?:half|mixed|lower|reduced|low|16-bit|8-bit) precision)"
_PRECISIONS = rf"(?:any )?{_PRECISION}(?: \+ {_PRECISION})*"
_FINE = r"(?:fine|ok|okay|allowed|acceptable|permitted|welcome|good|all right|alright)"
_ALSO = r"(?:also |too |both |perfectly |totally )?"
_CAP = (
    r"(?:(?:at most|(?:no|not) more than|up to|under|below|within|max(?:imum)?(?: of)?|less than|<=?|≤|"
    r"(?:(?:must |should |has to )?fits?|stay|keep|keep it|remain)(?: memory)? (?:in|into|on|under|below|within)|a (?:limit|budget|cap) of|limit of|"
    r"in|for|on a|on|with|try|spend|(?:do not|never|not) (?:spend|use|take|need|run) (?:more than|over|above)|"
    r"(?:do not|never) (?:exceed|go (?:over|above|beyond))) )?"
)
_KEPT = (
    r"(?:(?:global )?batch size|learning rate(?: schedule)?|lr|schedule|seed|hyper-?parameters|number of (?:layers|parameters|"
    r"steps|tokens)|parameters|sequence length|context length|block size|weight decay|loss(?: curve)?"
    r"|(?:data|dataset)(?! (?:order|folder|director|in any|level|at|in|on)))"
)


def _items(match: re.Match[str], files: Sequence[str], wish: Wish, what: str) -> Effects:
    found: list[Effect | Refusal] = []
    for word in match["items"].split(" + "):
        path, reason = wording.resolve(word, files)
        found.append(Refusal(reason) if path is None else Effect(wish, path, f"{what} {path}"))
    return tuple(found)


def _locked(match: re.Match[str], files: Sequence[str]) -> Effects:
    return _items(match, files, "locked", "locked:")


def _editable(match: re.Match[str], files: Sequence[str]) -> Effects:
    return _items(match, files, "editable", "editable, and nothing else:")


def _symbol(match: re.Match[str], files: Sequence[str]) -> Effects:
    path, reason = wording.resolve(f"{match['path']}::{match['symbol']}", files)
    return (Refusal(reason) if path is None else Effect("locked", path, f"locked: {path}"),)


def _entry(match: re.Match[str], files: Sequence[str]) -> Effects:
    path, reason = wording.resolve(match["entry"], files)
    return (Refusal(reason) if path is None else Effect("entry", path, f"training entry: {path}"),)


def _always(wish: Wish, value: Scalar, meaning: str) -> Reader:
    return lambda _match, _files: (Effect(wish, value, meaning),)


def _memory(match: re.Match[str], _files: Sequence[str]) -> Effects:
    unit = 2**30 if match["memory_unit"][0].lower() == "g" else 2**20
    size = wording.number(match["number"])
    return (Effect("memory_bytes", round(size * unit), f"at most {size * unit / 2**30:g} GiB per device or rank"),)


def _seconds(match: re.Match[str], _files: Sequence[str]) -> Effects:
    value = wording.seconds(match)
    return (Effect("seconds", value, f"at most {value / 3600.0:g} hours"),)


def _dollars(match: re.Match[str], _files: Sequence[str]) -> Effects:
    value = wording.number(match["amount"] or match["words"])
    if (match["currency"] or "").lower().startswith("cent"):
        value /= 100.0
    return (Effect("dollars", value, f"at most ${value:g}"),)


def _trials(match: re.Match[str], _files: Sequence[str]) -> Effects:
    value = wording.number(match["number"])
    if value != int(value) or value < 1:
        return (Refusal("trials are counted in whole numbers"),)
    return (Effect("trials", int(value), f"at most {int(value)} trials"),)


def _error_rate(match: re.Match[str], _files: Sequence[str]) -> Effects:
    said = match.groupdict()
    value = wording.number(said.get("rate") or said.get("sure") or "0")
    value = value / 100.0 if match["percent"] or value > 1.0 else value
    if said.get("sure"):
        value = 1.0 - value
    if not 0.0 < value < 0.5:
        return (Refusal("an error rate lies between 0 and 50 %"),)
    return (Effect("error_rate", round(value, 6), f"error rate {value:.3g}"),)


def _speedup(value: float) -> Effects:
    if value <= 1.0:
        return (Refusal("a speed-up is above 1"),)
    return (Effect("target_speedup", round(value, 4), f"hoped-for speed-up {value:.4g}x"),)


def _times(match: re.Match[str], _files: Sequence[str]) -> Effects:
    return _speedup(wording.number(match["number"]))


def _percent(match: re.Match[str], _files: Sequence[str]) -> Effects:
    share = wording.number(match["number"]) / 100.0
    if match["way"].lower().startswith(("less", "shorter")):
        return _speedup(1.0 / (1.0 - share)) if share < 1.0 else (Refusal("that much time cannot be saved"),)
    return _speedup(1.0 + share)


def _named(wish: Wish, group: str, meaning: str) -> Reader:
    return lambda match, _files: (Effect(wish, match[group].lower(), f"{meaning} {match[group].lower()}"),)


def _rules(*pairs: tuple[str, Reader]) -> tuple[Rule, ...]:
    return tuple(
        Rule(re.compile(rf"(?<![\w.$€£/%-])(?:{pattern})(?![\w%])", re.IGNORECASE), read) for pattern, read in pairs
    )


_REORDER = _always("soft_numerics", "reorder", "numerics reorder: the same mathematics, up to the order of sums")
_BITWISE = _always("ceiling", "bitwise", "numerics bitwise: the same numbers, bit for bit")
_ALLOW = _always("allow", "reduced", "numerics reduced: bf16, tf32 and fp8 are allowed")
_DENY = _always("ceiling", "reorder", "no lower precision than the baseline's")
_EXACT = _always("data_level", "exact", "data level exact: the same rows at every step")
_SAME_SET = _always("data_level", "same-set", "data level same-set: the same rows over the window, in any order")
_KEPT_READER = _always("kept", True, "always kept by the contract")
_NO_MODEL = _always("model_provider", "none", "no model is asked: the built-in catalogue proposes")
_GOAL = _always("goal", True, "the goal")
_NUM = rf"(?P<number>{wording.NUMBER})"

RULES: tuple[Rule, ...] = _rules(
    # what may be changed
    (rf"{_NOT} {_EDIT} (?:anything|any file|any code|any other file) {_EXCEPT} {_NOUN}{_ITEMS}{_FOLDER}", _editable),
    (rf"{_EDIT} nothing(?: else)? {_EXCEPT} {_NOUN}{_ITEMS}{_FOLDER}", _editable),
    (rf"(?:only {_EDIT}|{_EDIT} only) {_NOUN}{_ITEMS}{_FOLDER}", _editable),
    (rf"only {_NOUN}{_ITEMS}{_FOLDER} (?:may|can|should) (?:be )?(?:{_EDITED}|{_EDIT})", _editable),
    (rf"(?:stay (?:within|inside|in)|(?:restrict|limit|confine) (?:changes|edits|yourself|it) to) {_NOUN}{_ITEMS}{_FOLDER}",
     _editable),
    (rf"(?:{_EDIT} )?(?:anything|everything|all files|any file) {_EXCEPT} {_NOUN}{_ITEMS}{_FOLDER}", _locked),
    (rf"{_NOT} {_EDIT} (?:the )?(?:function |class )?(?P<symbol>[A-Za-z_]\w*) (?:in|of) (?P<path>{_ITEM}\.py)", _symbol),
    (rf"(?:lock|freeze) (?:the )?(?:function |class )?(?P<symbol>[A-Za-z_]\w*) (?:in|of) (?P<path>{_ITEM}\.py)", _symbol),
    # what the contract keeps anyhow, before the general "do not change X"
    (rf"(?:{_NOT} {_EDIT}|without {_EDITING}|keep|same) (?:the )?(?:same )?{_KEPT}(?: {_SAME})?", _KEPT_READER),
    (rf"(?:the )?{_KEPT} (?:must|should|has to|have to) (?:stay|remain|be|be kept) (?:exactly )?{_SAME}", _KEPT_READER),
    # what it learns
    (r"(?:change nothing|(?:do not|never) change (?:anything|what)|without changing (?:anything|what))(?: that)? it learns"
     r"|(?:change nothing|without changing anything) (?:in|about) (?:what it learns|the (?:results?|learning|math\w*))", _REORDER),
    (r"(?:it )?(?:must |should |still |to )*learns? (?:exactly )?the same(?: things?)?", _REORDER),
    (r"(?:keep )?(?:the )?same (?:math(?:s|ematics)?|results?)|mathematically (?:equivalent|identical|the same)", _REORDER),
    (r"(?:the )?(?:results?|math(?:s|ematics)?) (?:must|should) (?:stay|remain|be) (?:exactly )?(?:the same|unchanged)", _REORDER),
    (r"(?:keep )?(?:the )?(?:(?:exact(?:ly)? )?(?:the )?same|identical|equal) (?:numbers?|bits)(?: bit for bit| bit-for-bit)?"
     r"|bit for bit(?: (?:the same|identical|equal))?|bit-for-bit(?: (?:the same|identical|equal))?|bitwise(?: (?:the same|"
     r"identical|equal|exact|numerics))?|bit[- ](?:identical|exact)", _BITWISE),
    (r"numerics(?: class)?(?: is|:|=)? (?P<numerics>reduced|semantic)", _named("allow", "numerics", "numerics")),
    (r"numerics(?: class)?(?: is|:|=)? (?P<numerics>bitwise|reorder)", _named("ceiling", "numerics", "numerics")),
    (rf"semantic changes (?:are )?{_FINE}|allow semantic changes",
     _always("allow", "semantic", "numerics semantic: the mathematics may change")),
    # precision: denials first
    (rf"(?:no|without|avoid|never|nothing in|{_NOT} (?:use|allow|try|want|go to)|not) {_PRECISIONS}", _DENY),
    (rf"{_PRECISIONS} (?:is|are) (?:not {_FINE}|forbidden|off[- ]limits|out|not an option)", _DENY),
    (rf"(?:it is )?not {_FINE} to use {_PRECISIONS}", _DENY),
    (rf"{_PRECISIONS} (?:must|may|can|should) not be used|nothing (?:below|under|lower than) (?:fp32|float32)", _DENY),
    (r"(?:keep|keep it in|stay (?:in|with|at)|only|use) (?:fp32|float32|full precision|single precision)(?: only)?", _DENY),
    (rf"{_PRECISIONS} (?:(?:is|are|would be) )?{_ALSO}{_FINE}(?: too| also)?", _ALLOW),
    (rf"(?:it is )?{_FINE} to use {_PRECISIONS}", _ALLOW),
    (rf"(?:you )?(?:may|can) (?:also )?(?:use|try|go to) {_PRECISIONS}|(?:feel free to )?(?:allow|permit|accept|use|try|with|in)"
     rf" {_PRECISIONS}|{_PRECISIONS} (?:may|can) be used", _ALLOW),
    # data
    (r"(?:keep |preserve |in )?(?:the )?(?:same |exact )?(?:data|batch|sample|row)s?(?:'s)? order(?: exactly)?"
     r"(?: (?:must|should|has to) (?:stay|remain|be kept)(?: the same| unchanged)?| unchanged| fixed| the same)?", _EXACT),
    (r"(?:keep |in )?(?:the )?same order(?: of (?:the )?(?:data|batches|rows|samples))?", _EXACT),
    (r"(?:the )?same (?:rows|batches|samples|data) (?:at|in|on) (?:each|every) step", _EXACT),
    (r"(?:the )?same (?:data|rows|samples|batches) in any order|(?:the )?order (?:of (?:the )?(?:data|rows|samples) )?"
     r"does not matter", _SAME_SET),
    (r"(?:the )?(?:data|sample|row|batch) order (?:may|can) change|data order does not matter", _SAME_SET),
    (r"data level(?: is|:|=)? (?P<level>exact|same-set|sampled)", _named("data_level", "level", "data level")),
    # locks, in general
    (rf"(?:{_NOT} {_EDIT}|without {_EDITING}|no {_EDITING}|lock|freeze|hands off|protect) {_NOUN}{_ITEMS}{_FOLDER}", _locked),
    (rf"(?:leave|keep|hold) {_NOUN}{_ITEMS}{_FOLDER} {_SAME}", _locked),
    (rf"{_NOUN}{_ITEMS}{_FOLDER} (?:must|should|has to|have to) (?:stay|remain|be left|be kept|be) {_SAME}", _locked),
    (rf"{_NOUN}{_ITEMS}{_FOLDER} (?:must|may|can|should) not be {_EDITED}", _locked),
    (rf"{_NOUN}{_ITEMS}{_FOLDER} (?:is|are) (?:off[- ]limits|locked|frozen|read-only|fixed)", _locked),
    # the entry
    (rf"(?:the )?(?:training )?(?:entry(?: ?point)?|script)(?: is|:)? (?P<entry>{_ITEM}\.py)", _entry),
    (rf"(?P<entry>{_ITEM}\.py) is the (?:training )?(?:entry(?: ?point)?|script|trainer|training)", _entry),
    (rf"make (?P<entry>{_ITEM}\.py) (?:run |train )?(?:faster|quicker)", _entry),
    (rf"(?:speed up|accelerate|optimi[sz]e|run|train with) (?P<entry>{_ITEM}\.py)", _entry),
    # budgets
    (rf"{_CAP}(?:memory (?:under|below|within|at most|limit|budget)?(?: of| is|:)? ?)?{_NUM} ?"
     r"(?P<memory_unit>g|gb|gib|gigs?|gigabytes?|gbytes?|mb|mib|megabytes?)(?: of)?(?: (?:gpu|device|peak|video|main))?"
     r"(?: (?:memory|ram|vram))?(?: (?:limit|budget|cap))?(?: (?:per|each|a) (?:gpu|device|rank|card|process)| (?:card|gpu))?", _memory),
    (rf"{_CAP}{wording.DURATION}", _seconds),
    (rf"{_CAP}(?:\$ ?(?P<amount>\d+(?:\.\d+)?)|(?P<words>{wording.NUMBER}) ?(?P<currency>dollars?|usd|bucks?|cents?))", _dollars),
    (r"spend nothing(?: at all)?|(?:spend )?no money|(?:do not|never) spend (?:anything|any money|money)|for free",
     _always("dollars", 0.0, "at most $0")),
    (rf"{_CAP}{_NUM} (?:trials?|experiments?|attempts?|tries|candidates?)", _trials),
    # statistics
    (rf"(?:at most |an? )?(?P<rate>{wording.NUMBER}) ?(?P<percent>%|percent)? (?:error rate|false (?:positives|accepts|alarms)|risk)"
     , _error_rate),
    (rf"(?:an? )?error rate (?:of |below |under |at most |is |: ?|= ?)?(?P<rate>{wording.NUMBER})(?: ?(?P<percent>%|percent))?",
     _error_rate),
    (rf"(?:be |with )?(?P<sure>{wording.NUMBER}) ?(?P<percent>%|percent)? (?:sure|certain|confident|confidence)", _error_rate),
    (rf"(?:with )?(?:a )?confidence (?:of )?(?P<sure>{wording.NUMBER})(?: ?(?P<percent>%|percent))?", _error_rate),
    # the speed hoped for
    (rf"(?:at least |by )?{_NUM} ?(?:x|times)(?: (?:faster|as fast|speed-?up|the speed))?", _times),
    (r"(?:at least )?twice as fast|double (?:the |its )?(?:speed|throughput)", lambda _m, _f: _speedup(2.0)),
    (r"(?:cut|reduce) (?:the )?(?:training |step |run )?time (?:in|by) half|(?:in )?half the time", lambda _m, _f: _speedup(2.0)),
    (r"triple (?:the |its )?(?:speed|throughput)", lambda _m, _f: _speedup(3.0)),
    (rf"(?:at least |by )?{_NUM} ?(?:%|percent) (?P<way>faster|less time|shorter|more throughput|speed-?up)", _percent),
    # who proposes, and how it is signed
    (r"(?:no|without|{0} use)(?: an?| any)? (?:llms?|ai|api key|claude|language models?)".replace("{0}", _NOT), _NO_MODEL),
    (r"(?:only )?(?:use )?(?:only )?the (?:built-in )?catalogue(?: only)?", _NO_MODEL),
    (r"(?:use|ask|with|let) claude(?: propose| help)?", _always("model_provider", "claude", "Claude may propose patches")),
    (r"(?:require|demand) (?:a )?signatures?|(?:must be |only )signed(?: commits?)?",
     _always("require_signature", True, "the promoted commit must be signed")),
    # the goal itself
    (r"(?:make|get|let) (?:this|the|my|our|it|its)?(?: ?(?:training|pre-?training|model|script|code|repository|repo|trainer|loop|"
     r"run|step|steps))*(?: (?:go|run|train|step))? (?:much |a lot |even )?(?:faster|quicker|fast|as fast as (?:possible|you can))", _GOAL),
    (r"(?:speed up|accelerate|optimi[sz]e|speed)(?: (?:this|the|my|our|it))?(?: (?:training|model|script|code|run|speed|throughput"
     r"|loop|step))*(?: up)?", _GOAL),
    (r"(?:reduce|cut|lower|shorten) (?:the )?(?:training |step |run )?time|(?:increase|raise|improve) (?:the )?(?:throughput|speed)"
     r"|(?:faster|quicker)(?: training)?|as fast as (?:possible|you can)", _GOAL),
)  # fmt: skip
