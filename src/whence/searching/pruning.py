"""Stopping hopeless runs early: reports during training, the median rule, and extrapolation of stopped runs.

An outcome function with a parameter ``report`` calls ``report(step, value)`` while it trains; the value is what is
optimised, or correlates with it. A run that is worse than the median of the finished ones at the same step is stopped.
Finished runs show how values at that step relate to final values, which gives an extrapolated outcome. Curves are files
next to the run folder, one for each seed; workers on other machines need access to them.
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from whence.errors import InputError
from whence.measuring.fingerprint import parts_of
from whence.measuring.outcome_fn import OutcomeFn, as_outcome_fn, name_of
from whence.outcomes.subset import Subset
from whence.outcomes.writing import read_document, write_document
from whence.surrogates.kernels import Array

FEWEST_CURVES = 4  # finished runs before one may be stopped
Curve = dict[int, float]  # values by step


class Pruned(Exception):  # noqa: N818 - it ends a run, and is not an error
    """The run is not worth continuing."""


def takes_report(function: object) -> bool:
    """Whether an outcome function has a parameter ``report``."""
    if not callable(function):
        return False
    try:
        return "report" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclass
class Report:
    """Keeps the curve of a run, and ends the run by the median rule."""

    folder: Path
    seed: int
    maximize: bool

    def __post_init__(self) -> None:
        self.curve: Curve = {}
        self._others = [curve for curve in curves_in(self.folder, finished=True).values()]

    def __call__(self, step: int, value: float) -> None:
        """Keep a value; raise `Pruned` where it is worse than the median of four or more finished runs at this step."""
        if math.isfinite(value):
            self.curve[int(step)] = float(value)
            self.keep(finished=False)
        there = [other[int(step)] for other in self._others if int(step) in other]
        if len(there) >= FEWEST_CURVES:
            median = float(np.median(there))
            if not (value >= median if self.maximize else value <= median):
                raise Pruned(
                    f"stopped at step {step} with {value:.4g}, where the median of finished runs is {median:.4g}"
                )

    def keep(self, *, finished: bool) -> None:
        """Write the curve, whole or not at all."""
        write_document(self.folder / f"{self.seed}.json", {"finished": finished, "curve": list(self.curve.items())})


class Reporting(OutcomeFn):
    """Adapts an outcome function that takes ``report`` to one of a subset and a seed."""

    def __init__(self, function: object, folder: Path | None, maximize: bool) -> None:
        said = as_outcome_fn(function)
        own = getattr(function, "function", function)
        self.function = cast("Callable[[Subset, int, Report], object]", own)
        self.up = maximize
        self.folder = (
            Path(tempfile.mkdtemp()) if folder is None else folder.with_name(f"{folder.name}-curves").absolute()
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.task_names, self.maximize, self.provenance = said.task_names, said.maximize, said.provenance
        self.fingerprint = dict(parts_of(function))
        self.__qualname__ = name_of(function)

    def __call__(self, subset: Subset, seed: int) -> object:
        report = Report(self.folder, seed, self.up)
        found = self.function(subset, seed, report)
        report.keep(finished=True)
        return found


def curves_in(folder: Path, *, finished: bool = False) -> dict[int, Curve]:
    """Return the curves of a folder by seed; with ``finished``, of runs that came to their end.

    Damaged ones are left out: a run is then judged by fewer others.
    """
    found = {}
    for place in sorted(folder.glob("*.json")):
        with suppress(InputError):
            document = read_document(place)
            if document["finished"] or not finished:
                found[int(place.stem)] = {int(step): float(value) for step, value in document["curve"]}
    return found


def carried_on(curves: Mapping[int, Curve], seeds: Array, goodness: Array, stopped: Array) -> Array:
    """Return the extrapolated outcomes (s,) of the runs with the ``stopped`` seeds; NaN with too few finished runs.

    They follow from the curves, ``seeds`` and final ``goodness`` (n,) of the finished runs.
    """
    found = np.full(len(stopped), np.nan)
    for at, seed in enumerate(stopped):
        own = curves.get(int(seed), {})
        step = max(own, default=-1)
        pairs = [
            (curves[int(other)][step], value)
            for other, value in zip(seeds, goodness, strict=True)
            if step in curves.get(int(other), {})
        ]
        if len(pairs) >= FEWEST_CURVES:
            early, late = np.array(pairs).T
            spread = max(float(early.var()), 1e-300)
            slope = float(((early - early.mean()) * (late - late.mean())).mean()) / spread
            # A line is unreliable far outside of the finished runs.
            reach = np.ptp(late)
            guess = late.mean() + slope * (own[step] - early.mean())
            found[at] = np.clip(guess, late.min() - reach, late.max() + reach)
    return found
