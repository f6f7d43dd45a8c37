"""What the replays showed, drawn: of a run's patches and finalists, and of the baseline itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from infrarsi.codec import decode
from infrarsi.records import Examination, ReplayFigure
from infrarsi.report.page import Section, Table, Tone
from infrarsi.report.text import clean, first_line, line

CHECKS = {
    "mathematics": "same gradients in float64",
    "gradients": "gradients of its timed run",
    "transplant": "its final weights in the baseline's code",
    "sustained": "its gain lasts beyond the window",
}
HEADER = ("subject", "check", "step", "where it is widest", "off by", "allowed", "")


def examined_section(examinations: Sequence[tuple[str, str, Examination]]) -> Section:
    """Return the section of a run's examinations: (stage, subject in words, examination) each."""
    rows: list[tuple[str, ...]] = []
    tones: list[Tone] = []
    said: list[str] = []
    for stage, subject, examination in examinations:
        name = line(subject, 60) if stage != "patch" else f"+{line(subject, 59)}"
        for figure in examination.figures:
            rows.append((name, *figure_cells(figure)))
            tones.append("" if figure.held else "bad")
            name = ""
        if examination.failure:
            rows.append((name, line(examination.failure, 120), "", "", "", "", "refused"))
            tones.append("bad")
        said += [f"{line(subject, 60)}: not checked: {line(text, 160)}" for text in examination.skipped]
    if rows:
        said.insert(0, "The baseline's own code, in processes of its own, at the same weights and rows.")
    table = Table(HEADER, tuple(rows), numeric=(2, 4, 5), tones=tuple(tones))
    return Section("What it computes", tuple(said), table, key="examined")


def rounding_section(figures: Sequence[ReplayFigure]) -> Section:
    """Return the section of a calibration: what the limits of a finalist's replay come from."""
    rows = tuple((line(f.note, 60), *figure_cells(f)[1:5]) for f in figures)
    said = (
        ("How far the baseline's own precision takes its gradients from float64, where it is widest.",) if rows else ()
    )
    return Section("Replay", said, Table(("precision", *HEADER[2:6]), rows, numeric=(1, 3, 4)), key="replay")


def figure_cells(figure: ReplayFigure) -> tuple[str, ...]:
    """Return check, step, place, value, limit and word of one figure."""
    value = f"{figure.value:.1e}" if figure.value < 1e8 else line(figure.note or "not comparable", 60)
    word = "held" if figure.held else "refused"
    if figure.check == "sustained":
        gone, allowed = (f"{-math.expm1(-x):.0%}" for x in (figure.value, figure.allowed))
        return CHECKS[figure.check], str(figure.step), "speed", gone, allowed, word
    where = line(figure.where, 60) or "loss"
    return CHECKS[figure.check], str(figure.step), where, value, f"{figure.allowed:.1e}", word


def examined_line(body: dict[str, Any]) -> str:
    """Return an examination, as the ledger has it, in one line: whether it held, and what came closest to its limit."""
    examination = decode(Examination, body["examination"])
    who = f"+{clean(body['subject'])}" if body["stage"] == "patch" else f"{body['stage']} {clean(body['subject'])}"
    if not examination.passed:
        return f"{who} refused: {first_line(examination.reason)}"
    numbers = [f for f in examination.figures if f.check != "sustained"]
    widest = max(numbers, key=lambda f: f.value / max(f.allowed, 1e-300), default=None)
    if widest is None:
        return f"{who} not examined: {first_line('; '.join(examination.skipped))}"
    return f"{who} computes what the baseline does: at most {widest.value:.1e} off, {widest.allowed:.1e} allowed"
