"""Designs: who is in which run."""

from whence.designs.mixtures import Dirichlet, with_bounds
from whence.designs.naming import extended, parse_design
from whence.designs.subsets import Balanced, Bernoulli, Design, Exhaustive, FixedSize, LeaveOneOut, LeaveTwoOut

__all__ = [
    "Balanced",
    "Bernoulli",
    "Design",
    "Dirichlet",
    "Exhaustive",
    "FixedSize",
    "LeaveOneOut",
    "LeaveTwoOut",
    "extended",
    "parse_design",
    "with_bounds",
]
