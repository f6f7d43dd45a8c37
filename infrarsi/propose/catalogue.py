"""The packaged list of known optimisations: what each is expected to do, and where that is known from."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources

from infrarsi.records import Claim, Hardware, MemoryTerm, Numerics


@dataclass(frozen=True)
class CatalogueEntry:
    """One known optimisation. Factors are new / old at an equal global batch, `confidence` is 0..1.

    The memory factor is that of `memory_term`, where one part of the peak changes.

    `evidence` is M (measured in the source), D (direction documented, number ours) or P (prior knowledge).
    """

    id: str
    name: str
    kind: str
    models: tuple[str, ...]
    nodes: tuple[str, ...]
    hardware: tuple[str, ...]
    detect: str
    apply: str
    time_factor: float
    time_range: tuple[float, float]
    memory_factor: float
    memory_range: tuple[float, float]
    confidence: float
    evidence: str
    numerics: Numerics
    conflicts: str
    source: str
    warmup: str = ""
    memory_term: MemoryTerm = "total"

    @property
    def claim(self) -> Claim:
        """What the search may expect, under the catalogue's name."""
        return Claim("catalogue", self.time_factor, self.memory_factor, self.confidence, self.memory_term)


@functools.cache
def load() -> tuple[CatalogueEntry, ...]:
    """Return every entry, in the order of the file."""
    text = resources.files("infrarsi.propose").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return tuple(_entry(item) for item in tomllib.loads(text)["optimization"])


@functools.cache
def by_id() -> dict[str, CatalogueEntry]:
    """Return the entries by their id."""
    return {entry.id: entry for entry in load()}


def claims_of(catalogue_id: str) -> tuple[Claim, ...]:
    """Return the claims of one entry, none for an id that the catalogue does not have."""
    entry = by_id().get(catalogue_id)
    return (entry.claim,) if entry is not None else ()


def device_kind(hardware: Hardware) -> str:
    """Return cuda, rocm or cpu: the words in which the catalogue says where an optimisation can pay."""
    if not hardware.accelerators:
        return "cpu"
    shown = " ".join((*hardware.accelerators, hardware.driver, hardware.torch)).lower()
    return "rocm" if any(word in shown for word in ("amd", "instinct", "rocm", "+hip")) else "cuda"


def _entry(item: dict[str, object]) -> CatalogueEntry:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    return CatalogueEntry(**values)  # type: ignore[arg-type]
