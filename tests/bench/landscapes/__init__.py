"""Simulated training jobs: step time from rooflines and exposed remainders, additive memory, a cliff, crash pairs."""

from .kinds import KINDS
from .landscape import Claims, Experience, Landscape, Session, Split

__all__ = ["KINDS", "Claims", "Experience", "Landscape", "Session", "Split"]
