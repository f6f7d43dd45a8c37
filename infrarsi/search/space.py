"""The search space: knobs and patches as dimensions, candidates as rows of level indices.

A patch is an on/off knob. Level 0 is always the baseline's and is left out of a candidate. Declared conflicts and needs
are hard: no row that breaks one is ever proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infrarsi.errors import UsageError
from infrarsi.records import NUMERICS_ORDER, Candidate, Claim, Knob, Numerics, Patch, Setting
from infrarsi.stats.kernel import Layout

Rows = NDArray[np.int64]
ON = "on"
OFF = "off"


@dataclass(frozen=True)
class Dimension:
    """One knob, or one patch as a knob with the levels off and on. `claims[i]` belongs to `levels[i]`."""

    name: str
    levels: tuple[str, ...]
    ordinal: bool
    claims: tuple[tuple[Claim, ...], ...]
    patch: bool
    edits_tree: bool
    aliases: tuple[str, ...] = ()


class Space:
    """Dimensions, coding and hard constraints. Immutable once built; its row coding is int64, n by D."""

    def __init__(self, knobs: Sequence[Knob], patches: Sequence[Patch], *, numerics: Numerics | None = None) -> None:
        """Build the space of what `numerics` allows (None: everything was filtered already)."""
        allowed = NUMERICS_ORDER[: NUMERICS_ORDER.index(numerics) + 1] if numerics else NUMERICS_ORDER
        self.knobs = tuple(k for k in knobs if k.numerics in allowed and len(k.levels) > 1)
        self.patches = tuple(p for p in patches if p.numerics in allowed)
        self.dimensions = tuple(_of_knob(k) for k in self.knobs) + tuple(_of_patch(p) for p in self.patches)
        self.sizes = np.array([len(d.levels) for d in self.dimensions], dtype=np.int64)
        self._index = {(d.patch, d.name): i for i, d in enumerate(self.dimensions)}
        self.conflicts = self._conflicts()
        self.needs, self.impossible = self._needs()
        self._effect_start = np.concatenate([[0], np.cumsum(self.sizes - 1)])
        self._level_start = np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def width(self) -> int:
        """Number of dimensions D."""
        return len(self.dimensions)

    @property
    def combinations(self) -> int:
        """Number of rows, before constraints."""
        return int(np.prod([float(s) for s in self.sizes])) if self.width else 1

    @property
    def effects(self) -> tuple[tuple[int, int], ...]:
        """Return (dimension, level) of every effect, in the order of the columns of `points`."""
        return tuple((d, lv) for d in range(self.width) for lv in range(1, int(self.sizes[d])))

    @property
    def layout(self) -> Layout:
        """Return the effects' layout for the kernel."""
        effects = self.effects
        return Layout(
            np.array([d for d, _ in effects], dtype=np.int64),
            np.array([lv for _, lv in effects], dtype=float),
            np.array([self.dimensions[d].ordinal for d, _ in effects], dtype=bool),
        )

    def encode(self, candidate: Candidate) -> Rows:
        """Return the row of a candidate (D); raises UsageError for a knob, level or patch that is not in the space."""
        row = np.zeros(self.width, dtype=np.int64)
        for setting in candidate.settings:
            at = self._index.get((False, setting.knob))
            if at is None or setting.level not in self.dimensions[at].levels:
                raise UsageError(f"the search does not know {setting.knob}={setting.level}", code="unknown-setting")
            row[at] = self.dimensions[at].levels.index(setting.level)
        for patch in candidate.patches:
            at = self._index.get((True, patch))
            if at is None:
                raise UsageError(f"the search does not know the patch {patch}", code="unknown-patch")
            row[at] = 1
        return row

    def decode(self, row: Rows) -> Candidate:
        """Return the candidate of a row (D), sorted, without baseline levels."""
        active = [(self.dimensions[d], int(row[d])) for d in np.flatnonzero(row)]
        settings = sorted((Setting(d.name, d.levels[at]) for d, at in active if not d.patch), key=lambda s: s.knob)
        return Candidate(tuple(settings), tuple(sorted(d.name for d, _ in active if d.patch)))

    def points(self, rows: Rows) -> NDArray[np.float64]:
        """Return rows (n by D) as zeros and ones over effects (n by E)."""
        result = np.zeros((rows.shape[0], int(self._effect_start[-1])))
        at, dimension = np.nonzero(rows)
        result[at, self._effect_start[dimension] + rows[at, dimension] - 1] = 1.0
        return result

    def levels(self, rows: Rows) -> NDArray[np.float64]:
        """Return rows (n by D) as zeros and ones over all levels, the baseline's included (n by L)."""
        result = np.zeros((rows.shape[0], int(self._level_start[-1])))
        columns = self._level_start[:-1][None, :] + rows
        np.put_along_axis(result, columns, 1.0, axis=1)
        return result

    def level_of(self, column: int) -> tuple[int, int]:
        """Return (dimension, level) of a column of `levels`."""
        dimension = int(np.searchsorted(self._level_start, column, side="right")) - 1
        return dimension, column - int(self._level_start[dimension])

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows keep all constraints."""
        good = np.ones(rows.shape[0], dtype=bool)
        active = rows > 0
        for a, b in self.conflicts:
            good &= ~(active[:, a] & active[:, b])
        for a, b in self.needs:
            good &= ~active[:, a] | active[:, b]
        for a in self.impossible:
            good &= ~active[:, a]
        return good

    def repair(self, rows: Rows, keep: Sequence[int] = ()) -> Rows:
        """Return rows that keep all constraints: what `keep` names stays, with what it needs, its rivals go.

        A need is switched on for a kept dimension, otherwise the one in need is switched off.
        """
        result = rows.copy()
        for at in np.flatnonzero(~self.valid(result)):
            self._repair_row(result[at], keep)
        return result

    def moves(self, row: Rows) -> Rows:
        """Return all valid rows that differ from `row` in one dimension, and in what that one needs or excludes."""
        dimension = np.repeat(np.arange(self.width), self.sizes)
        level = np.arange(dimension.size) - self._level_start[dimension]
        differs = level != row[dimension]
        dimension, level = dimension[differs], level[differs]
        result = np.repeat(row[None, :], dimension.size, axis=0)
        result[np.arange(dimension.size), dimension] = level
        for at in np.flatnonzero(~self.valid(result)):
            result[at] = self.repair(result[at][None, :], keep=(int(dimension[at]),))[0]
        moved: Rows = result[self.valid(result) & (result != row).any(axis=1)]
        return moved

    def _repair_row(self, row: Rows, keep: Sequence[int]) -> None:
        wanted = {d for d in keep if row[d]}
        for a, b in self.needs:
            if a in wanted and not row[b]:
                row[b] = 1
                wanted.add(b)
        row[list(self.impossible)] = 0
        for a, b in self.conflicts:
            if row[a] and row[b]:
                row[a if b in wanted and a not in wanted else b] = 0
        for _ in range(self.width):
            lacking = [a for a, b in self.needs if row[a] and not row[b]]
            if not lacking:
                return
            row[lacking] = 0

    def _named(self, name: str) -> list[int]:
        """Return the dimensions that a conflict or need means by a name: patch id, knob name or catalogue id."""
        return [i for i, d in enumerate(self.dimensions) if name == d.name or name in d.aliases]

    def _conflicts(self) -> tuple[tuple[int, int], ...]:
        found = set()
        for patch in self.patches:
            a = self._index[(True, patch.id)]
            for name in patch.conflicts:
                found |= {(min(a, b), max(a, b)) for b in self._named(name) if b != a}
        return tuple(sorted(found))

    def _needs(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        found, impossible = set(), set()
        for patch in self.patches:
            a = self._index[(True, patch.id)]
            for name in patch.needs:
                options = [b for b in self._named(name) if b != a]
                found |= {(a, b) for b in options[:1]}
                impossible |= set() if options else {a}
        return tuple(sorted(found)), tuple(sorted(impossible))


def _of_knob(knob: Knob) -> Dimension:
    claims = tuple(knob.claims[i] if i < len(knob.claims) else () for i in range(len(knob.levels)))
    labels = tuple(level.label for level in knob.levels)
    aliases = (knob.catalogue_id,) if knob.catalogue_id else ()
    return Dimension(knob.name, labels, knob.ordinal, claims, False, knob.kind == "config", aliases)


def _of_patch(patch: Patch) -> Dimension:
    aliases = (patch.catalogue_id,) if patch.catalogue_id else ()
    return Dimension(patch.id, (OFF, ON), False, ((), patch.claims), True, True, aliases)
