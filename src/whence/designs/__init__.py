"""Designs: who is in which run."""

from whence.designs.subsets import (
    Balanced,
    Bernoulli,
    Design,
    Exhaustive,
    FixedSize,
    LeaveOneOut,
    LeaveTwoOut,
    parse_design,
)

__all__ = [
    "Balanced",
    "Bernoulli",
    "Design",
    "Exhaustive",
    "FixedSize",
    "LeaveOneOut",
    "LeaveTwoOut",
    "parse_design",
]
