"""What the search believes at its end: each option as claimed, measured and believed, and the price of memory."""

from __future__ import annotations

import math

from infrarsi.records import Effect, Price
from infrarsi.report.model import RunReport
from infrarsi.report.page import Section, Table
from infrarsi.report.text import line

MOST_PRICES = 12


def effects_section(report: RunReport) -> Section:
    """Return each option's effect on the step time, and how far each source of claims is trusted by now."""
    rows = tuple(_effect(e) for e in sorted(report.effects, key=lambda e: e.posterior))
    if not rows:
        return Section("Effects", key="effects")
    said = [
        "Step time with the option over step time without it: as claimed, as the trials alone say, and as the search "
        "believes (two standard deviations). Surprise is how many prior deviations the belief lies beside the claim."
    ]
    said += [
        f"Claims of {line(t.source, 60)} are taken at {t.time:.0%} of what they say of time, {t.memory:.0%} of memory."
        for t in report.trust
    ]
    header = ("option", "claimed", "measured", "believed", "two sigma", "claim from", "surprise")
    return Section("Effects", tuple(said), Table(header, rows, numeric=(1, 3, 6)), key="effects")


def prices_section(report: RunReport) -> Section:
    """Return what memory costs at the best that was found: the changes that save some, cheapest first."""
    savers = [p for p in report.prices if p.milliseconds_per_gib is not None][:MOST_PRICES]
    if not savers:
        return Section("Price of memory", key="prices")
    said = (
        "One change each to the best that was found, as the search predicts it; negative: it costs less than nothing.",
    )
    header = ("change", "saves", "costs per step", "per GiB")
    return Section("Price of memory", said, Table(header, tuple(map(_price, savers)), numeric=(1, 2, 3)), key="prices")


def _effect(effect: Effect) -> tuple[str, ...]:
    name = f"{effect.knob}={effect.level}" if effect.level else effect.knob
    low, high = effect.posterior - 2 * effect.posterior_sd, effect.posterior + 2 * effect.posterior_sd
    measured = "not tried enough"
    if effect.measured is not None and effect.measured_sd is not None:
        measured = f"{_factor(effect.measured)} ± {2 * effect.measured_sd:.2f}"
    claimed = _factor(effect.claimed) if effect.source else "nothing"
    believed = (_factor(effect.posterior), f"{_factor(low)} to {_factor(high)}")
    return line(name, 60), claimed, measured, *believed, line(effect.source, 40), f"{effect.surprise:+.1f}"


def _price(price: Price) -> tuple[str, ...]:
    change = f"{price.knob}={price.level}"
    per_gib = "" if price.milliseconds_per_gib is None else f"{price.milliseconds_per_gib:,.1f} ms"
    return line(change, 60), f"{price.gibibytes * 1024:,.0f} MiB", f"{price.milliseconds:+,.1f} ms", per_gib


def _factor(log_ratio: float) -> str:
    return f"{math.exp(max(-50.0, min(50.0, log_ratio))):.2f}"
