"""The plan of a run, from the arguments of `whence.measure`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.designs import Design, parse_design
from whence.errors import InputError, counted, some_of, whole_number
from whence.measuring.outcome_fn import OutcomeFn, name_of
from whence.outcomes import Outcomes
from whence.outcomes.checks import Directions, Floats, as_names, as_numbers, check_weights, listed
from whence.outcomes.plan import Plan

GIVEN = "given subsets"
Designed = Design | str | Outcomes | ArrayLike
whole = partial(whole_number, of="measure")


def make_plan(
    outcome_fn: OutcomeFn,
    design: Designed,
    n: int | None,
    *,
    tasks: Iterable[str] | int | None,
    seed: int,
    seeds: int | None,
    maximize: Directions | None,
) -> Plan:
    """Plan of a run, from the arguments of `whence.measure`."""
    seeds = whole(outcome_fn.replicates if seeds is None else seeds, "seeds", 1)
    seed = whole(seed, "seed", 0)
    if n is not None:
        n = whole(n, "n", 1)
    design = parse_design(design) if isinstance(design, str) else design
    own = task_names(outcome_fn.task_names)
    names = own if tasks is None or (own and tasks == len(own)) else task_names(tasks)
    draw = getattr(design, "draw", None)
    if callable(draw):
        if names is None:
            raise InputError(
                f"The tasks must be known to draw subsets of them: name them with {{tasks}}, or give their number. The "
                f"outcome function has no 'task_names', and {design} is a design for any tasks.",
                tasks=None,
            )
        # The default repr of an object differs from process to process.
        kind = type(design)
        text = kind.__name__ if kind.__repr__ is object.__repr__ else str(design)
        subsets = np.array(draw(len(names), n, seed=seed), dtype=np.float64)
        if subsets.ndim != 2 or subsets.shape[1] != len(names) or not len(subsets):
            raise InputError(
                f"A design must draw at least one subset, an array of shape (n, {len(names)}). {text} drew an array of "
                f"shape {subsets.shape}."
            )
    else:
        text = GIVEN
        subsets, names = _given(design, n, names)
    if own is not None:  # the columns that the function gets are in its own order
        subsets, names = subsets[:, _order(names, own, "'tasks' and the outcome function")], own
    check_weights(subsets, names)
    up = outcome_fn.maximize if maximize is None or maximize == () else maximize
    directions: Any = up  # as JSON can hold them
    if not isinstance(up, bool):
        directions = [up] if isinstance(up, str) else [name if isinstance(name, str) else bool(name) for name in up]
    provenance = {str(key): str(value) for key, value in outcome_fn.provenance.items()}
    return Plan(name_of(outcome_fn), text, subsets, names, seed, seeds, directions, provenance)


def task_names(tasks: Iterable[str] | int | None) -> tuple[str, ...] | None:
    """Names of tasks, from names or their number; None from None."""
    if tasks is None:
        return None
    if isinstance(tasks, int | Integral):
        return as_names(None, "task", whole(tasks, "tasks", 1))
    names = listed(tasks)
    if not names:
        raise InputError("The 'tasks' parameter of measure must name at least one task, or be their number.")
    return as_names(names, "task", len(names))


def _given(design: object, n: int | None, names: tuple[str, ...] | None) -> tuple[Floats, tuple[str, ...]]:
    """Subsets given as an array, a frame, or something that has subsets and task names, and the task names."""
    subsets = getattr(design, "subsets", None)
    rows, columns = as_numbers(design if subsets is None else subsets, "design")
    if rows.ndim != 2 or not rows.size:
        raise InputError(
            "The 'design' parameter of measure must be a design, or an array of subsets with a row per subset and a "
            f"column per task. Got shape {rows.shape} instead."
        )
    named = None if subsets is None else getattr(design, "task_names", None)
    named = columns if named is None else named
    if named is None:
        found = as_names(names, "task", rows.shape[1])
    else:
        found = as_names(named, "task", rows.shape[1])
        if names is not None:
            rows, found = rows[:, _order(found, names, "The subsets to measure and 'tasks'")], names
    if n is not None and n > len(rows):
        raise InputError(f"There are {counted(len(rows), 'subset')} to measure, fewer than the n={n} asked for.")
    return rows[:n] + 0.0, found


def _order(have: Sequence[str], wanted: Sequence[str], whose: str) -> list[int]:
    """Index of each wanted task in those that are given."""
    if set(have) != set(wanted):
        odd = sorted(set(have) ^ set(wanted))
        raise InputError(f"{whose} must name the same tasks. They differ in: {some_of(odd)}.")
    return [list(have).index(name) for name in wanted]
