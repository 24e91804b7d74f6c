"""Designs by name, and more rows for a design that was begun."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whence.designs.mixtures import Dirichlet
from whence.designs.subsets import Balanced, Bernoulli, Design, Exhaustive, FixedSize, LeaveOneOut, LeaveTwoOut
from whence.errors import InputError


def parse_design(text: str) -> Design:
    """Design named by a short text, as on the command line.

    ``bernoulli:0.5``, ``fixed:7``, ``balanced:7``, ``loo``, ``lto``, ``all`` (also ``exhaustive``), or for mixtures
    ``dirichlet`` or ``dirichlet:0.5``.

    >>> parse_design("fixed:7")
    FixedSize(size=7)
    """
    name, _, argument = text.strip().lower().partition(":")
    try:
        match name, argument:
            case "loo", "":
                return LeaveOneOut()
            case "lto", "":
                return LeaveTwoOut()
            case "all" | "exhaustive", "":
                return Exhaustive()
            case "dirichlet", _:
                return Dirichlet(float(argument or 1))
            case "bernoulli", _:
                return Bernoulli(float(argument))
            case "fixed", _:
                return FixedSize(int(argument))
            case "balanced", _:
                return Balanced(int(argument))
    except InputError:
        raise
    except ValueError:
        pass
    raise InputError(
        "A design must be bernoulli:P (P between 0 and 1), fixed:SIZE, balanced:SIZE, loo, lto, all, "
        "or dirichlet[:CONCENTRATION] for mixtures. "
        f"Got '{text}' instead."
    )


def extended(
    design: Design, n_tasks: int, n: int | None = None, *, known: NDArray[np.float64] | None = None, seed: int = 0
) -> NDArray[np.float64]:
    """Subsets of a design, ``n`` of them, that are not among those already known.

    >>> known = FixedSize(2).draw(4, 3, seed=0)
    >>> more = extended(FixedSize(2), 4, 3, known=known, seed=0)
    >>> len(np.unique(np.vstack([known, more]), axis=0))
    6
    """
    if known is None:
        return np.asarray(design.draw(n_tasks, n, seed=seed))
    seen = {row.tobytes() for row in known.round(6) + 0.0}

    def fresh(count: int | None) -> NDArray[np.float64]:
        rows = np.asarray(design.draw(n_tasks, count, seed=seed))
        return rows[[row.tobytes() not in seen for row in rows.round(6) + 0.0]]

    if n is None:
        return fresh(None)
    low, high = 0, len(known) + 1  # of how many rows more can be drawn than are asked for: low can, high cannot
    try:
        found = fresh(n + len(known))
        return found[:n]
    except InputError:
        found = fresh(n)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, found = middle, fresh(n + middle)
        except InputError:
            high = middle
    if len(found) < n:
        raise InputError(f"Only {len(found)} subsets of {design} are not there yet. Ask for at most {len(found)}.")
    return found[:n]
