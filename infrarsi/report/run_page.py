"""A run's report as a page: what won, what it cost, what was refused and why, and every source path touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infrarsi.report.believed import effects_section, prices_section
from infrarsi.report.examined import examined_section
from infrarsi.report.model import Component, PathAudit, RunReport, SpeedUp, TrialRow, VerdictRow
from infrarsi.report.page import Page, Section, Table, Tone
from infrarsi.report.text import dollars, duration, first_line, line, percent, plural, ratio, size, span

_TONES: dict[str, Tone] = {"accepted": "good", "rejected": "bad", "inconclusive": "unsure"}
_STATUS = {"A": "added", "M": "changed", "D": "deleted", "T": "type changed"}


def run_page(report: RunReport) -> Page:
    """Return the page of a run."""
    sections = (
        _facts(report),
        _winner(report),
        _verdicts(report),
        examined_section(report.examinations),
        _ablations(report),
        _trials(report),
        _refused(report),
        _cost(report),
        effects_section(report),
        prices_section(report),
        _audit(report),
        Section("Diff", code=report.diff, key="diff"),
    )
    return Page(report.sentence, _tone(report), sections, _next(report))


def _tone(report: RunReport) -> Tone:
    return _TONES[report.verdict.decision] if report.verdict else "unsure" if report.stage != "finished" else "faint"


def _next(report: RunReport) -> str:
    if report.stage == "finished":
        return f"git infrarsi apply {report.run}" if report.accepted else ""
    return "git infrarsi run"


def with_interval(value: SpeedUp | None) -> str:
    """Return a speed-up with its interval, and never without."""
    return f"{ratio(value.ratio)} {span(value.low, value.high)}" if value else "not measured"


def _facts(report: RunReport) -> Section:
    base, verdict = report.baseline, report.verdict
    rows: list[tuple[str, str]] = [("goal", line(report.goal))] if report.goal else []
    if verdict is not None:
        rows.append(("decision", "undecided" if verdict.decision == "inconclusive" else verdict.decision))
        rows.append(("speed-up", with_interval(report.speedup)))
        if verdict.memory_ratio is not None:
            rows.append(("peak memory", f"{verdict.memory_ratio:.2f} of the baseline's"))
    if base.step_seconds is not None:
        rows.append(("baseline", f"{duration(base.step_seconds)} per step, peak {size(base.peak_bytes)}"))
    if base.floor is not None:
        rows.append(("smallest visible gain", percent(base.floor)))
    if base.mfu is not None:
        rows.append(("MFU", _mfu(report)))
    if report.memory_budget is not None:
        rows.append(("memory budget", f"{size(report.memory_budget)} per device or rank"))
    if report.numerics:
        rows.append(("contract", f"numerics {report.numerics}, data level {report.data_level}"))
    if report.unobserved:
        rows.append(("not observed", line(", ".join(report.unobserved))))
    if base.hardware is not None:
        machine = base.hardware
        devices = ", ".join(machine.accelerators) or f"{machine.cpu}, {plural(machine.cores, 'core')}"
        rows.append(("machine", line(f"{devices}; torch {machine.torch}")))
    rows += _identity(report)
    return Section("Run", table=Table(("", ""), tuple(rows)), key="facts")


def _mfu(report: RunReport) -> str:
    before = f"baseline {percent(report.baseline.mfu)}"
    if report.mfu is None:
        return before
    after = report.mfu
    return f"{before}, now {percent(after.ratio)} [{percent(after.low)}, {percent(after.high)}]"


def _identity(report: RunReport) -> list[tuple[str, str]]:
    named = (
        ("run", report.run),
        ("contract digest", report.contract_digest[:12]),
        ("base commit", report.base_commit[:12]),
        ("original commit", report.original_commit[:12] if report.original_commit != report.base_commit else ""),
        ("candidate commit", report.verdict.commit[:12] if report.verdict else ""),
        ("started", report.started_at),
        ("ended", report.ended_at),
        ("ended because", line(report.end_reason or report.search_reason)),
        ("resumed", plural(report.resumed, "time") if report.resumed else ""),
    )
    return [(name, value) for name, value in named if value]


def _winner(report: RunReport) -> Section:
    title = "What was accepted" if report.accepted else "The candidate that was verified"
    rows = tuple(_component(c) for c in report.components)
    return Section(title, table=Table(("part", "what it is", "numerics", "from"), rows), key="winner")


def _component(item: Component) -> tuple[str, ...]:
    what = item.title if item.kind == "patch" else f"{item.value} ({', '.join(item.assignments)})".replace(" ()", "")
    name = f"+{item.name}" if item.kind == "patch" else item.name
    return line(name), line(what, 120), item.numerics, line(item.source, 60)


def _verdicts(report: RunReport) -> Section:
    rows = tuple(_verdict(row) for row in report.verdicts)
    tones = tuple(_TONES[row.decision] for row in report.verdicts)
    header = ("stage", "candidate", "decision", "speed-up [interval]", "pairs", "reason")
    said = ("Finalists against the baseline, in interleaved blocks of fresh executions.",) if rows else ()
    return Section("Verification", said, Table(header, rows, tones=tones), key="verdicts")


def _verdict(row: VerdictRow) -> tuple[str, ...]:
    decision = "undecided" if row.decision == "inconclusive" else row.decision
    pairs = _pairs(row.pairs, row.voided)
    return row.stage, line(row.label, 80), decision, with_interval(row.speedup), pairs, first_line(row.reason)


def _pairs(good: int, voided: int) -> str:
    return f"{good} ({voided} void)" if voided else str(good)


def _ablations(report: RunReport) -> Section:
    rows = tuple(
        (line(a.part, 60), "kept" if a.kept else "dropped", with_interval(a.speedup), first_line(a.reason))
        for a in report.ablations
    )
    said = ("Each part was removed in turn; what does not earn its place is not in the commit.",) if rows else ()
    header = ("without", "so it is", "what having it is worth", "reason")
    tones: tuple[Tone, ...] = tuple("" if a.kept else "faint" for a in report.ablations)
    return Section("Ablation", said, Table(header, rows, tones=tones), key="ablations")


def _trials(report: RunReport) -> Section:
    rows = [_trial(t) for t in report.search_trials]
    tones: list[Tone] = ["bad" if t.failed else "" for t in report.search_trials]
    for item in report.interrupted:
        rows.append((str(item.number), item.role, "interrupted", "", "", "", "it was in flight when the tool stopped"))
        tones.append("unsure")
    header = ("no", "candidate", "outcome", "estimate", "step (expected)", "peak (expected)", "message")
    said = (
        "Estimates from one search trial each, widened by the noise floor; only verification decides. In brackets what "
        "the search expected before the trial.",
    )
    return Section(
        "Trials", said if rows else (), Table(header, tuple(rows), numeric=(0,), tones=tuple(tones)), key="trials"
    )


def _trial(row: TrialRow) -> tuple[str, ...]:
    outcome = f"{row.outcome} (stopped early)" if row.stopped_early else row.outcome
    estimate = with_interval(row.estimate) if row.estimate else ""
    step = _beside(row.step_seconds, row.predicted_step_seconds, duration)
    peak = _beside(row.peak_bytes, row.predicted_peak_bytes, lambda value: size(int(value)))
    return str(row.number), line(row.label, 80), outcome, estimate, step, peak, first_line(row.message)


def _beside(measured: float | None, expected: float | None, shown: Callable[[float], str]) -> str:
    """Return what was measured, and in brackets what was expected."""
    found = [shown(measured)] if measured is not None else []
    return " ".join([*found, f"({shown(expected)})"] if expected is not None else found)


def _refused(report: RunReport) -> Section:
    rows = [(f"+{r.patch}", line(r.title, 80), line(r.source, 40), first_line(r.reason)) for r in report.refusals]
    for trial in report.trials:
        for violation in trial.violations:
            seen = f" (observed {violation.observed}, allowed {violation.allowed})" if violation.observed else ""
            reason = first_line(violation.message + seen, 160)
            rows.append(
                (f"trial {trial.number}", line(trial.label, 80), f"{violation.ring}: {violation.check}", reason)
            )
    said = ("Patches refused before a trial, and trials that broke the contract.",) if rows else ()
    header = ("what", "title", "from or check", "reason")
    table = Table(header, tuple((line(a), b, line(c), d) for a, b, c, d in rows))
    return Section("Refused", said, table, key="refused")


def _cost(report: RunReport) -> Section:
    cost = report.cost
    rows = [(o.outcome, str(o.trials), duration(o.wall_seconds), duration(o.device_seconds)) for o in cost.by_outcome]
    rows.append(("all", str(cost.trials), duration(cost.wall_seconds), duration(cost.device_seconds)))
    share = cost.failed_device_seconds / cost.device_seconds if cost.device_seconds else 0.0
    said = [
        f"{cost.failed} of {plural(cost.trials, 'trial')} failed and cost {duration(cost.failed_device_seconds)} of "
        f"device time ({percent(share, 0)} of all)."
    ]
    if cost.interrupted:
        said.append(f"{plural(cost.interrupted, 'trial')} interrupted: that cost is not known and not in these sums.")
    if cost.examined:
        seconds = duration(cost.examined_device_seconds)
        said.append(
            f"{plural(cost.examined, 'examination')} by replay took {seconds} of device time beside the trials."
        )
    if cost.llm_calls:
        unpriced = f"; {plural(cost.unpriced_calls, 'call')} without a known price" if cost.unpriced_calls else ""
        calls = plural(cost.llm_calls, "model call")
        said.append(f"{calls}, {cost.llm_tokens:,} tokens, {dollars(cost.dollars)}{unpriced}.")
    if not cost.trials and not cost.interrupted:
        return Section("Cost", ("No trial was run.",), key="cost")
    header = ("outcome", "trials", "wall time", "device time")
    return Section("Cost", tuple(said), Table(header, tuple(rows), numeric=(1, 2, 3)), key="cost")


def _audit(report: RunReport) -> Section:
    rows = tuple(_path(p) for p in report.audit)
    tones: tuple[Tone, ...] = tuple("bad" if p.allowed is False else "" for p in report.audit)
    if not rows:
        said = ("No source path is touched.",) if report.verdict else ()
        return Section("Audit of source paths", said, key="audit")
    outside = sum(p.allowed is False for p in report.audit)
    asked = all(p.allowed is not None for p in report.audit)
    where = f"{outside} outside the contract's scope" if asked else "the scope is unknown without the contract"
    said = (f"{plural(len(rows), 'path')} touched, {where}.",)
    header = ("path", "what", "lines", "mode", "from", "scope")
    return Section("Audit of source paths", said, Table(header, rows, tones=tones), key="audit")


def _path(item: PathAudit) -> tuple[str, ...]:
    lines = f"+{item.added} -{item.removed}" if item.added is not None else "no text diff"
    mode = item.new_mode if item.old_mode == item.new_mode else f"{item.old_mode} -> {item.new_mode}"
    scope = {True: "editable", False: "OUTSIDE", None: "unknown"}[item.allowed]
    return line(item.path), _STATUS.get(item.status, item.status), lines, mode, _origin(item.origin), scope


def _origin(names: Sequence[str]) -> str:
    return line(", ".join(names), 60) or "unknown"
