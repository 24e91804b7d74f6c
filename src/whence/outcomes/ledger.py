"""The ledger of a run: what every row of its plan came to, and the table that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError, some_of
from whence.outcomes.checks import Floats
from whence.outcomes.plan import Job, Plan
from whence.outcomes.table import Outcomes

ALONE = "outcome"  # the name of what comes without one
OPEN, DONE, FAILED = 0, 1, 2
Place = tuple[int, int]  # replicate and row: the order of the plan


class Reply(NamedTuple):
    """What became of a row: values of targets, or why there are none, with what helps to find the cause."""

    targets: tuple[str, ...] = ()
    values: list[float] | None = None
    reason: str = ""
    report: str = ""
    seconds: float = 0.0
    printed: str = ""
    aside: tuple[str, ...] = ()  # names of what was returned and is not a number


class Result(NamedTuple):
    """A job and what became of it."""

    job: Job
    reply: Reply


class Ledger:
    """Status of every replicate of every subset, shape (seeds, n), and the values of those that are done.

    The targets are those of the first row, in the order of the plan, that has values; a row that returned others has
    failed. So they do not depend on which row was finished first: where an earlier row turns out to differ, the
    others are judged again.

    >>> ledger = Ledger(Plan("train", "given subsets", np.eye(2), ("a", "b")))
    >>> ledger.book([Result(Job(1, 0, np.ones(2), 0), Reply(("loss",), [0.5]))])
    >>> ledger.outcomes().values.ravel(), ledger.done, ledger.failed, ledger.open
    (array([nan, 0.5]), 1, 0, 1)
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.status = np.zeros(plan.shape, dtype=np.int8)
        self.targets: tuple[str, ...] = ()
        self.values: Floats = np.zeros((*plan.shape, 0))
        self.reasons: dict[tuple[int, int], str] = {}  # by row and replicate
        self.aside: dict[str, None] = {}  # names of what rows returned and is not a number
        self._first: Place | None = None  # the row that says which targets there are
        self._misfits: dict[Place, tuple[tuple[str, ...], list[float]]] = {}

    @property
    def done(self) -> int:
        """Number of rows that have values."""
        return int((self.status == DONE).sum())

    @property
    def failed(self) -> int:
        """Number of rows that were tried and have none."""
        return int((self.status == FAILED).sum())

    @property
    def open(self) -> int:
        """Number of rows that were not tried."""
        return int((self.status == OPEN).sum())

    def extend(self, plan: Plan) -> None:
        """Continue with a plan that has more subsets than this one."""
        more = ((0, 0), (0, len(plan.subsets) - self.plan.shape[1]))
        self.plan, self.status = plan, np.pad(self.status, more)
        self.values = np.pad(self.values, (*more, (0, 0)), constant_values=np.nan)

    def wanted(self, *, retry: bool) -> NDArray[np.bool_]:
        """Rows still to be measured, shape (seeds, n)."""
        return np.asarray(self.status != DONE if retry else self.status == OPEN)

    def book(self, results: Iterable[Result]) -> None:
        """Book results."""
        for job, reply in results:
            self.aside |= dict.fromkeys(reply.aside)
            if reply.values is None:
                self.fail(job.replicate, job.row, reply.reason)
            else:
                self.finish(job.replicate, job.row, reply.targets, reply.values)

    def said_aside(self) -> str:
        """Sentence on what is not a number."""
        return f"Set aside, since it is text and not a number: {some_of(map(repr, self.aside))}."

    def finish(self, replicate: int, row: int, targets: tuple[str, ...], values: list[float]) -> None:
        """Book the values of a row, under the names that it gave them."""
        at = replicate, row
        self._misfits.pop(at, None)
        if self._first is None or at < self._first:
            self._judge_by(at, targets)
        if targets != self.targets:
            if sorted(targets) != sorted(self.targets):
                self._misfits[at] = targets, values
                other = f"row {self._first[1]} returned {some_of(self.targets, 4)}" if self._first else ""
                self.fail(*at, f"it returned {some_of(targets, 4)} where {other}")
                return
            found = dict(zip(targets, values, strict=True))
            values = [found[name] for name in self.targets]
        self.values[at] = values
        self.status[at] = DONE
        self.reasons.pop((row, replicate), None)

    def _judge_by(self, first: Place, targets: tuple[str, ...]) -> None:
        """Take the targets of a row that comes before all others that have values, and judge those again."""
        had, values, done = self.targets, self.values, np.argwhere(self.status == DONE).tolist()
        others = [((replicate, row), (had, values[replicate, row].tolist())) for replicate, row in done]
        others += self._misfits.items()
        self._first, self.targets = first, targets
        if targets == had:
            return
        self.values = np.full((*self.plan.shape, len(targets)), np.nan)
        self.status[self.status == DONE] = OPEN
        self._misfits = {}
        for at, (names, numbers) in others:
            self.status[at] = OPEN
            self.finish(*at, names, numbers)

    def fail(self, replicate: int, row: int, reason: str) -> None:
        """Book a row that failed; one that has values keeps them."""
        if self.status[replicate, row] != DONE:
            self.status[replicate, row] = FAILED
            self.reasons[row, replicate] = reason

    def outcomes(self, source: str = "whence.measure") -> Outcomes:
        """Table of all rows, the first replicate of every subset before the second of any; NaN where not measured."""
        plan = self.plan
        provenance = {"source": source, "outcome_fn": plan.outcome_fn, "design": plan.design, "seed": str(plan.seed)}
        if plan.changes:
            provenance["accepted changes"] = "; ".join(plan.changes)
        targets, values, up = self.targets, self.values, plan.maximize
        if not targets:  # nothing is known of them yet
            targets, values, up = (ALONE,), np.full((*plan.shape, 1), np.nan), ()
        values, subsets = values.reshape(-1, len(targets)), np.tile(plan.subsets, (plan.seeds, 1))
        return Outcomes(subsets, values, plan.task_names, targets, up, provenance | plan.provenance | plan.origin)


def settled(result: Result, plan: Plan) -> Result:
    """Result as it is recorded: one whose numbers or names no table could hold has failed, with a reason."""
    job, reply = result
    if reply.values is None:
        return result
    if not np.isfinite(reply.values).all():
        bad = (f"{name} is {value}" for name, value in zip(reply.targets, reply.values, strict=True)
               if not np.isfinite(value))  # fmt: skip
        return Result(job, _without_values(reply, f"the outcome must be finite, and {some_of(bad, 3)}"))
    trouble = _trouble_with_names(reply.targets, plan.task_names)
    return Result(job, _without_values(reply, trouble)) if trouble else result


@lru_cache(maxsize=64)
def _trouble_with_names(targets: tuple[str, ...], tasks: tuple[str, ...]) -> str:
    """Why no table could have these columns; empty where one could."""
    try:
        Outcomes(np.zeros((0, len(tasks))), np.zeros((0, len(targets))), tasks, targets)
    except InputError as error:
        return str(error)
    return ""


def _without_values(reply: Reply, reason: str) -> Reply:
    return reply._replace(targets=(), values=None, reason=reason, report=f"It returned:\n{returned(reply)}\n")


def returned(reply: Reply) -> str:
    """What a row returned, a line per value, cut to a readable length."""
    lines = (f"{name}: {value!r}" for name, value in zip(reply.targets, reply.values or (), strict=True))
    return "\n".join(lines)[:10_000]


def unmeasured(ledger: Ledger, where: str) -> str:
    """Sentence on the rows that failed, with the first of them."""
    (row, replicate), reason = min(ledger.reasons.items())
    which = f"row {row}" if ledger.plan.seeds == 1 else f"row {row}, replicate {replicate}"
    total = ledger.status.size
    return f"{ledger.failed} of {total} rows failed and stay NaN{where}. The first, {which}: {reason.rstrip('.')}."
