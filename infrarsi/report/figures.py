"""The three figures of the HTML page: intervals, trial history, memory against the budget."""

from __future__ import annotations

from infrarsi.report.model import RunReport, TrialRow
from infrarsi.report.run_page import with_interval
from infrarsi.report.svg import Canvas, Scale, ticks
from infrarsi.report.text import first_line, line, ratio, size

WIDTH = 760
LABEL = 250
MARGIN = 24


def figures(report: RunReport) -> dict[str, str]:
    """Return markup by section key; a figure without data is left out."""
    drawn = {"verdicts": intervals(report), "trials": history(report), "cost": memory(report)}
    return {key: markup for key, markup in drawn.items() if markup}


def intervals(report: RunReport) -> str:
    """Draw each verdict's speed-up with its interval, beside 1x and the noise floor."""
    rows = [(f"{v.stage}: {v.label}", v.speedup, v.decision) for v in report.verdicts]
    rows += [(f"with {a.part}, over without", a.speedup, "part") for a in report.ablations]
    known = [(label, speedup, kind) for label, speedup, kind in rows if speedup is not None]
    if not known:
        return ""
    floor = 1 + (report.baseline.floor or 0.0)
    low = min(0.95, *(s.low for _, s, _ in known)) - 0.02
    high = max(floor, *(s.high for _, s, _ in known)) + 0.05
    height = 34 + 26 * len(known) + 22
    canvas = Canvas(WIDTH, height, "Speed-ups with their intervals")
    x = Scale(low, min(high, 20.0), LABEL, WIDTH - MARGIN)
    bottom = height - 22
    canvas.rectangle(x(1.0), 14, x(floor) - x(1.0), bottom - 14, "floor", f"noise floor: gains under {ratio(floor)}")
    canvas.line(x(1.0), 14, x(1.0), bottom, "one")
    for tick in ticks(low, min(high, 20.0)):
        canvas.text(x(tick), height - 6, ratio(tick), anchor="middle")
    for index, (label, speedup, kind) in enumerate(known):
        y = 34 + 26 * index
        tip = f"{label}: {with_interval(speedup)}"
        canvas.text(0, y + 4, line(label, 38))
        canvas.line(x(speedup.low), y, x(speedup.high), y, f"bar {kind}")
        for end in (speedup.low, speedup.high):
            canvas.line(x(end), y - 5, x(end), y + 5, f"bar {kind}")
        canvas.circle(x(speedup.ratio), y, 5, f"dot {kind}", tip)
    return canvas.render()


def history(report: RunReport) -> str:
    """Draw the estimates in the order of the trials, failures on the ground line, and the best so far."""
    rows = report.search_trials
    estimates = [t.estimate.ratio for t in rows if t.estimate]
    if not rows:
        return ""
    top = max([1.1, *estimates]) * 1.05
    low = min([0.9, *estimates]) * 0.95
    canvas = Canvas(WIDTH, 240, "Search trials in order, estimated speed-up")
    x = Scale(0, max(1, len(rows) - 1), 56, WIDTH - MARGIN)
    y = Scale(low, top, 196, 14)
    for tick in ticks(low, top):
        canvas.line(56, y(tick), WIDTH - MARGIN, y(tick), "one" if tick == 1 else "grid")
        canvas.text(48, y(tick) + 4, ratio(tick), anchor="end")
    best: list[tuple[float, float]] = []
    record = 0.0
    for index, trial in enumerate(rows):
        if trial.estimate and trial.estimate.ratio > record:
            record = trial.estimate.ratio
            best.append((x(index), y(record)))
    if best:
        canvas.steps([*best, (x(len(rows) - 1), best[-1][1])], "best")
    for index, trial in enumerate(rows):
        _trial_mark(canvas, trial, x(index), y)
    canvas.text(56, 234, "first trial")
    canvas.text(WIDTH - MARGIN, 234, f"trial {len(rows)} (crosses: failed or refused)", anchor="end")
    return canvas.render()


def _trial_mark(canvas: Canvas, trial: TrialRow, x: float, y: Scale) -> None:
    if trial.estimate:
        tip = f"{trial.label}: estimated {with_interval(trial.estimate)}"
        canvas.line(x, y(trial.estimate.low), x, y(trial.estimate.high), "bar ok")
        canvas.circle(x, y(trial.estimate.ratio), 4, "dot ok", tip)
    else:
        canvas.cross(x, 208, f"fail {trial.outcome}", f"{trial.label}: {trial.outcome} {first_line(trial.message)}")


def memory(report: RunReport) -> str:
    """Draw each search trial's peak; a trial that ran out of memory is a lower bound, drawn up to the budget."""
    rows = [t for t in report.search_trials if t.peak_bytes is not None or t.outcome == "oom"]
    if not rows:
        return ""
    budget = report.memory_budget
    peaks = [float(t.peak_bytes) for t in rows if t.peak_bytes is not None]
    top = max([*peaks, float(budget or 0), 1.0]) * 1.1
    height = 30 + 20 * len(rows) + 10
    canvas = Canvas(WIDTH, height, "Peak memory per device or rank, against the budget")
    x = Scale(0, top, LABEL, WIDTH - MARGIN)
    canvas.text(0, 14, "peak memory per device or rank", "strong")
    for index, trial in enumerate(rows):
        y = 26 + 20 * index
        canvas.text(0, y + 11, line(f"{trial.number}: {trial.label}", 38))
        if trial.peak_bytes is not None:
            tip = f"{trial.label}: {size(trial.peak_bytes)}"
            canvas.rectangle(LABEL, y, x(trial.peak_bytes) - LABEL, 13, "memory", tip)
        else:
            least = float(budget) if budget else max(peaks, default=top)
            canvas.rectangle(LABEL, y, x(least) - LABEL, 13, "memory oom", f"{trial.label}: out of memory")
            canvas.text(x(least) - 6, y + 11, "out of memory: more than this", "inside", anchor="end")
    if budget is not None:
        canvas.line(x(budget), 18, x(budget), height - 8, "budget")
        left = x(budget) < WIDTH / 2  # keep clear of the title
        canvas.text(x(budget) + (4 if left else -4), 14, f"budget {size(budget)}", anchor="start" if left else "end")
    return canvas.render()
