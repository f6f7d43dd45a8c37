"""A small SVG canvas: elements are built as a tree, so that every text and attribute is escaped by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from infrarsi.report.text import clean


@dataclass(frozen=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of `value`, kept inside the axis."""
        span = (self.high - self.low) or 1.0
        share = min(1.0, max(0.0, (value - self.low) / span))
        return round(self.start + share * (self.end - self.start), 2)


class Canvas:
    """One figure. Colours are CSS classes, so that the page's light and dark schemes both work."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        box = f"0 0 {width} {height}"
        self._root = ElementTree.Element("svg", {"viewBox": box, "role": "img", "aria-label": clean(title)})

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line."""
        self._add("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)

    def circle(self, x: float, y: float, radius: float, kind: str, tip: str) -> None:
        """Draw a dot that says `tip` under the pointer."""
        self._tip(self._add("circle", kind, cx=x, cy=y, r=radius), tip)

    def cross(self, x: float, y: float, kind: str, tip: str, size: float = 4) -> None:
        """Draw a cross that says `tip` under the pointer."""
        path = f"M{x - size} {y - size}L{x + size} {y + size}M{x - size} {y + size}L{x + size} {y - size}"
        self._tip(self._add("path", kind, d=path), tip)

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, tip: str) -> None:
        """Draw a bar that says `tip` under the pointer."""
        self._tip(self._add("rect", kind, x=x, y=y, width=max(0.0, width), height=height), tip)

    def steps(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line that holds each value until the next point."""
        if points:
            moves = [f"M{points[0][0]} {points[0][1]}"] + [f"H{x}V{y}" for x, y in points[1:]]
            self._add("path", kind, d="".join(moves))

    def text(self, x: float, y: float, text: str, kind: str = "label", anchor: str = "start") -> None:
        """Write one line of text."""
        element = self._add("text", kind, x=x, y=y)
        element.set("text-anchor", anchor)
        element.text = clean(text)

    def render(self) -> str:
        """Return the figure as markup."""
        return ElementTree.tostring(self._root, encoding="unicode")

    def _add(self, tag: str, kind: str, **values: float | str) -> ElementTree.Element:
        attributes = {name: str(value) for name, value in values.items()}
        return ElementTree.SubElement(self._root, tag, {"class": kind, **attributes})

    @staticmethod
    def _tip(element: ElementTree.Element, tip: str) -> None:
        ElementTree.SubElement(element, "title").text = clean(tip)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round values between `low` and `high`, about `count` of them."""
    from math import ceil, floor, log10

    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10 ** floor(log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    return [round(step * n, 10) for n in range(ceil(low / step), floor(high / step + 1e-9) + 1)]
