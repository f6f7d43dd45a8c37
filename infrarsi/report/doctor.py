"""Doctor's reader: where the baseline's time goes, how noisy the machine is, what is visible here, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from infrarsi.contract.envelopes import SAFETY
from infrarsi.records import Calibration, Hardware
from infrarsi.report.examined import rounding_section
from infrarsi.report.page import Page, Section, Table
from infrarsi.report.text import duration, line, percent, plural, size

LIMITS = {"floor": " +", "cap": " ^"}


def doctor_page(calibration: Calibration, notes: Sequence[str] = ()) -> Page:
    """Return the page of a calibration."""
    noise = calibration.noise
    headline = (
        f"Gains under {percent(noise.floor)} are invisible here: the baseline, measured against itself in "
        f"{plural(noise.repeats, 'process', 'processes')}, takes {duration(calibration.step_seconds)} per step."
    )
    sections = (
        _phases(calibration),
        _noise(calibration),
        _speed(calibration),
        _envelopes(calibration),
        rounding_section(calibration.replay),
        _machine(calibration.hardware, calibration.peak_flops),
        Section("Notes", tuple(notes), key="notes"),
        Section("Advice", tuple(f"* {text}" for text in calibration.advice), key="advice"),
    )
    return Page(headline, "", sections)


def _phases(calibration: Calibration) -> Section:
    total = sum(seconds for _, seconds in calibration.phases)
    ordered = sorted(calibration.phases, key=lambda item: -item[1])
    rows = tuple((name, duration(s), percent(s / total if total else None), _bar(s, total)) for name, s in ordered)
    lines = tuple(f"hot: {line(where, 90)}  {duration(seconds)}" for where, seconds in calibration.hot_lines[:5])
    table = Table(("phase", "time", "share", ""), rows, numeric=(1, 2))
    return Section("Where a step goes", lines, table, key="phases")


def _bar(part: float, total: float) -> str:
    return "█" * max(0, round(24 * part / total)) if total else ""


def _noise(calibration: Calibration) -> Section:
    noise = calibration.noise
    rows = (
        ("within a run", percent(noise.within_cv, 2)),
        ("between runs", percent(noise.between_cv, 2)),
        ("drift", percent(noise.drift, 2)),
        ("autocorrelation", f"{noise.autocorrelation:.2f}"),
        ("warm-up", plural(noise.warmup_steps, "step")),
        ("timed", plural(noise.timed_steps, "step")),
        ("smallest visible gain", percent(noise.floor)),
    )
    return Section("Noise", table=Table(("", ""), rows), key="noise")


def _speed(calibration: Calibration) -> Section:
    allocated, reserved = size(calibration.peak_allocated_bytes), size(calibration.peak_reserved_bytes)
    rows = [
        ("step", duration(calibration.step_seconds)),
        ("tokens per second", f"{calibration.tokens_per_second:,.0f}"),
        ("peak memory", f"{allocated} allocated, {reserved} reserved"),
    ]
    rows += [(f"  {term}", size(held)) for term, held in calibration.memory_terms]
    if calibration.flops_per_step is not None:
        rows.append(("model FLOPs per step", f"{calibration.flops_per_step / 1e9:,.1f} GFLOP, counted on the baseline"))
    rows.append(("MFU", percent(calibration.mfu)))
    return Section("Baseline", table=Table(("", ""), tuple(rows)), key="speed")


def _envelopes(calibration: Calibration) -> Section:
    """Each class' tolerances, what each is (measured, the least, the contract's cap), and what it comes from."""
    rows: list[tuple[str, ...]] = []
    known: set[str] = set()
    for envelope in calibration.envelopes:
        limits = envelope.limits or ("",) * 3
        values = (envelope.loss, envelope.grad_norm, envelope.update)
        cells = (f"{value:.1e}{LIMITS.get(limit, '')}" for value, limit in zip(values, limits, strict=True))
        rows.append((envelope.numerics, *cells, "allowed"))
        for moved in envelope.moved:
            if moved.name not in known:
                numbers = (f"{value:.1e}" for value in (moved.loss, moved.grad_norm, moved.update))
                rows.append(("", *numbers, line(moved.name, 60)))
        known |= {moved.name for moved in envelope.moved}
    said = (
        f"How far honest changes moved the baseline's numbers. A class allows {SAFETY:.0f} times the widest of its own",
        "and of the stricter ones', not less than a floor (+), never more than the contract's cap (^).",
    )
    header = ("numerics", "loss", "gradient norm", "update", "")
    table = Table(header, tuple(rows), numeric=(1, 2, 3))
    return Section("Envelopes", said if rows else (), table, key="envelopes")


def _machine(machine: Hardware, peaks: Sequence[tuple[str, float]]) -> Section:
    devices = line(", ".join(machine.accelerators)) or "none"
    software = [f"torch {machine.torch}", f"python {machine.python}", *([machine.driver] if machine.driver else [])]
    rows = [
        ("processor", f"{line(machine.cpu)}, {plural(machine.cores, 'core')}, {size(machine.memory_bytes)}"),
        ("accelerators", devices),
        ("software", line(", ".join(software))),
    ]
    rows += [(f"peak {line(dtype)}", f"{flops / 1e12:.2f} TFLOP/s") for dtype, flops in peaks]
    return Section("Machine", table=Table(("", ""), tuple(rows)), key="machine")
