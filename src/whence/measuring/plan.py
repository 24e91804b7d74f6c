"""The plan of a run: which subsets, how often, with which seeds. It says all that a later start has to agree with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.designs import parse_design
from whence.errors import InputError, counted, some_of
from whence.measuring.rows import Job
from whence.outcomes.checks import as_names, as_numbers, check_weights, listed
from whence.outcomes.subset import Floats, Subset

GIVEN = "given subsets"


@dataclass(frozen=True, eq=False)
class Plan:
    """Subsets of shape (n, K), each to be measured ``seeds`` times.

    Replicate r of subset i gets the seed ``SeedSequence([seed, r]).generate_state(n)[i] >> 1`` of numpy: an integer
    below 2^31 that depends on nothing else, so that it stays when there are more subsets, replicates or workers.

    Examples
    --------
    >>> plan = Plan("train", "LeaveOneOut()", np.ones((2, 3)), ("a", "b", "c"), seed=0, seeds=2)
    >>> plan.run_seeds().shape, [(job.row, job.replicate) for job in plan.jobs(np.ones((2, 2), dtype=bool))]
    ((2, 2), [(0, 0), (1, 0), (0, 1), (1, 1)])
    """

    outcome_fn: str
    design: str
    subsets: Floats
    task_names: tuple[str, ...]
    seed: int = 0
    seeds: int = 1
    maximize: Any = ()
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of replicates and of subsets."""
        return self.seeds, len(self.subsets)

    def run_seeds(self) -> NDArray[np.int64]:
        """Seed of every replicate of every subset, shape (seeds, n)."""
        n = len(self.subsets)
        words = [np.random.SeedSequence([self.seed, r]).generate_state(n) >> 1 for r in range(self.seeds)]
        return np.array(words, dtype=np.int64).reshape(self.shape)

    def jobs(self, wanted: NDArray[np.bool_]) -> Iterator[Job]:
        """Rows to measure, the first replicate of every subset before the second of any."""
        seeds = self.run_seeds()
        for replicate, row in np.argwhere(wanted).tolist():
            yield Job(row, replicate, self.subsets[row], int(seeds[replicate, row]))

    def refuse_other(self, now: Plan) -> None:
        """Raise where ``now`` is not this plan, nor one that goes on from it with more subsets or replicates."""
        for what, was, given in (
            ("outcome function", self.outcome_fn, now.outcome_fn),
            ("design", self.design, now.design),
            ("seed", self.seed, now.seed),
            ("list of tasks", some_of(self.task_names), some_of(now.task_names)),
        ):
            if was != given:
                raise _other(f"the {what} {was}, and now it is {given}")
        if self.task_names != now.task_names:
            raise _other(f"{counted(len(self.task_names), 'task')} of other names or in another order")
        n, more = len(self.subsets), len(now.subsets)
        if now.seeds < self.seeds:
            raise _other(f"seeds={self.seeds}, and now it is {now.seeds}")
        if more < n:
            raise _other(f"n={n}, and now it is {more}")
        differ = np.flatnonzero((self.subsets != now.subsets[:n]).any(axis=1))
        if len(differ):
            raise _other(f"other subsets (from row {differ[0]} on; n was {n} and is {more})")


def _other(what: str) -> InputError:
    return InputError(f"this run was begun with {what}. Go on as it was begun, or use another folder.")


def make_plan(outcome_fn: Any, design: Any, n: int | None, *, tasks: Any, seed: int, seeds: int, maximize: Any) -> Plan:
    """Plan of a run from what `whence.measure` is given."""
    seeds = whole(seeds, "seeds", 1)
    seed = whole(seed, "seed", 0)
    if n is not None:
        n = whole(n, "n", 1)
    design = parse_design(design) if isinstance(design, str) else design
    names = _task_names(tasks if tasks is not None else getattr(outcome_fn, "task_names", None))
    if callable(getattr(design, "draw", None)):
        if names is None:
            raise InputError(
                f"The tasks must be known to draw subsets of them: name them with {{tasks}}, or give their number. The "
                f"outcome function has no 'task_names', and {design} is a design for any tasks.",
                tasks=None,
            )
        # The repr of an object that has none of its own is another one in every process.
        kind: Any = type(design)
        text = kind.__name__ if kind.__repr__ is object.__repr__ else str(design)
        subsets = np.array(design.draw(len(names), n, seed=seed), dtype=np.float64)
        if subsets.ndim != 2 or subsets.shape[1] != len(names) or not len(subsets):
            raise InputError(
                f"A design must draw at least one subset, an array of shape (n, {len(names)}). {text} drew an array of "
                f"shape {subsets.shape}."
            )
    else:
        text = GIVEN
        subsets, names = _given(design, n, names)
    check_weights(subsets, names)
    up = getattr(outcome_fn, "maximize", ()) if maximize is None or maximize == () else maximize
    provenance = {str(key): str(value) for key, value in getattr(outcome_fn, "provenance", {}).items()}
    up = up if isinstance(up, bool) else [up] if isinstance(up, str) else list(up)
    return Plan(name_of(outcome_fn), text, subsets, names, seed, seeds, up, provenance)


def whole(value: Any, parameter: str, least: int) -> int:
    """Integer of at least ``least``, or an error that names the parameter of measure."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(
            f"must be an integer of at least {least}. Got {value!r} instead.", parameter=parameter, of="measure"
        )
    return int(value)


def name_of(outcome_fn: Any) -> str:
    """Name of a function, of what a partial calls, or of the class of an object.

    Examples
    --------
    >>> name_of(len), name_of(functools.partial(len))
    ('len', 'len')
    """
    while isinstance(outcome_fn, functools.partial):
        outcome_fn = outcome_fn.func
    return str(getattr(outcome_fn, "__qualname__", type(outcome_fn).__qualname__))


def check_signature(outcome_fn: Any, plan: Plan) -> None:
    """Refuse what cannot be called with a subset and a seed before anything is begun."""
    if not callable(outcome_fn):
        raise InputError(
            "The 'outcome_fn' parameter of measure must be a function of (subset, seed), or an object with a method "
            f"batch(subsets, seeds). Got {outcome_fn!r} instead."
        )
    try:
        signature = inspect.signature(outcome_fn)
    except (TypeError, ValueError):
        return  # some built-in functions do not tell
    try:
        signature.bind(Subset(plan.subsets[0], plan.task_names), 0)
    except TypeError as error:
        raise InputError(
            f"The outcome function must take a subset and a seed, as in {plan.outcome_fn}(subset, seed). "
            f"It takes {signature}."
        ) from error


def _task_names(tasks: Any) -> tuple[str, ...] | None:
    if tasks is None:
        return None
    if isinstance(tasks, Integral):
        return as_names(None, "task", whole(tasks, "tasks", 1))
    names = listed(tasks)
    if not names:
        raise InputError("The 'tasks' parameter of measure must name at least one task, or be their number.")
    return as_names(names, "task", len(names))


def _given(design: Any, n: int | None, names: tuple[str, ...] | None) -> tuple[Floats, tuple[str, ...]]:
    """Subsets given as an array, a frame, or something that has subsets and task names, and the task names."""
    named = getattr(design, "task_names", None) if hasattr(design, "subsets") else None
    rows, columns = as_numbers(design.subsets if hasattr(design, "subsets") else design, "design")
    if rows.ndim != 2 or not rows.size:
        raise InputError(
            "The 'design' parameter of measure must be a design, or an array of subsets with a row per subset and a "
            f"column per task. Got shape {rows.shape} instead."
        )
    named = columns if named is None else named
    if named is None:
        found = as_names(names, "task", rows.shape[1])
    else:
        found = as_names(named, "task", rows.shape[1])
        if names is not None:
            rows, found = rows[:, _order(found, names)], names
    if n is not None and n > len(rows):
        raise InputError(f"There are {counted(len(rows), 'subset')} to measure, fewer than the n={n} asked for.")
    return rows[:n] + 0.0, found


def _order(have: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where each wanted task is among those that the subsets have."""
    if set(have) != set(wanted):
        odd = sorted(set(have) ^ set(wanted))
        raise InputError(
            f"The subsets to measure and 'tasks' must name the same tasks. They differ in: {some_of(odd)}."
        )
    return [list(have).index(name) for name in wanted]
