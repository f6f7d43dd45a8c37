"""From claims to numbers: what catalogue, experience and model say, how wide, and on which part of memory.

A claim of confidence q about a log ratio mu gets the width 0.03 + 0.6 (1 - q) 1.5 max(|mu|, 0.04). What nobody claims
anything about is expected to do nothing, give or take 6 % of time and 10 % of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from infrarsi.records import Claim
from infrarsi.search.space import Space

Array = NDArray[np.float64]
UNCLAIMED_TIME = 0.06
UNCLAIMED_MEMORY = 0.10
FACTOR_BOUNDS = (0.02, 50.0)
# A rough split of a training rank's peak (Adam, no sharding, moderate activations), for want of doctor's. Wrong by tens
# of percent is enough: it only keeps a claim on one term from being taken for a claim on the total.
MEMORY_TERMS = ("parameters", "gradients", "optimizer", "activations", "workspace")
MEMORY_SHARES = (0.12, 0.12, 0.24, 0.44, 0.08)


@dataclass(frozen=True)
class Priors:
    """Claims of all effects of a space, E effects by S sources; log ratios, zero where a source is silent."""

    space: Space
    sources: tuple[str, ...]
    time: Array
    time_sd: Array
    memory_sd: Array
    memory_total: Array
    memory_terms: Array
    shares: tuple[float, ...] = MEMORY_SHARES

    def time_means(self, points: Array) -> Array:
        """Return the claimed log time ratio of points (n by E) per source (n by S)."""
        return points @ self.time

    def memory_means(self, points: Array) -> Array:
        """Return the claimed log memory ratio per source: factors act on their own term, terms add up to the peak."""
        result = points @ self.memory_total
        shares = np.asarray(self.shares)
        for source in range(len(self.sources)):
            terms = np.exp(points @ self.memory_terms[:, source, :])
            result[:, source] += np.log(terms @ shares)
        return result

    @cached_property
    def claimed_time(self) -> Array:
        """Return the claimed log time ratio of each effect over all sources (E)."""
        return np.asarray(self.time.sum(axis=1))


def memory_shares(terms: Mapping[str, int]) -> tuple[float, ...]:
    """Return each term's share of the baseline's peak, from bytes by term; the rough split where nothing is known."""
    sizes = [max(0, terms.get(term, 0)) for term in MEMORY_TERMS]
    total = sum(sizes)
    return tuple(size / total for size in sizes) if total else MEMORY_SHARES


def read_claims(space: Space, shares: tuple[float, ...] = MEMORY_SHARES) -> Priors:
    """Return the priors of a space. Several sources on one effect are averaged by confidence.

    `shares` are those of MEMORY_TERMS in the baseline's peak.
    """
    effects = [space.dimensions[d].claims[level] for d, level in space.effects]
    sources = tuple(sorted({c.source for claims in effects for c in claims}))
    count = len(effects)
    time = np.zeros((count, len(sources)))
    total = np.zeros((count, len(sources)))
    terms = np.zeros((count, len(sources), len(MEMORY_TERMS)))
    time_sd = np.full(count, UNCLAIMED_TIME)
    memory_sd = np.full(count, UNCLAIMED_MEMORY)
    for e, claims in enumerate(effects):
        if not claims:
            continue
        weights = [max(c.confidence, 1e-3) for c in claims]
        for claim, weight in zip(claims, weights, strict=True):
            at, share = sources.index(claim.source), weight / sum(weights)
            time[e, at] += share * _log(claim.time_factor)
            if claim.memory_term == "total":
                total[e, at] += share * _log(claim.memory_factor)
            else:
                terms[e, at, MEMORY_TERMS.index(claim.memory_term)] += share * _log(claim.memory_factor)
        surest = max(c.confidence for c in claims)
        time_sd[e] = width(float(time[e].sum()), surest)
        memory_sd[e] = width(float(np.mean([_memory_of(c, shares) for c in claims])), surest)
    return Priors(space, sources, time, time_sd, memory_sd, total, terms, shares)


def width(mu: float, confidence: float) -> float:
    """Return the prior standard deviation of an effect that is claimed to be `mu` (log ratio)."""
    doubt = 1 - min(max(confidence, 0.0), 1.0)
    return 0.03 + 0.6 * doubt * 1.5 * max(abs(mu), 0.04)


def _memory_of(claim: Claim, shares: tuple[float, ...]) -> float:
    if claim.memory_term == "total":
        return _log(claim.memory_factor)
    share = shares[MEMORY_TERMS.index(claim.memory_term)]
    return math.log(1 - share + share * math.exp(_log(claim.memory_factor)))


def _log(factor: float) -> float:
    return math.log(min(max(factor, FACTOR_BOUNDS[0]), FACTOR_BOUNDS[1]))
