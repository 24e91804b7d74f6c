"""The ledger of a run: what every row of its plan came to, and the table that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.errors import some_of
from whence.measuring.plan import Plan
from whence.measuring.rows import Reply, Result
from whence.measuring.values import ALONE
from whence.outcomes import Outcomes
from whence.outcomes.subset import Floats

OPEN, DONE, FAILED = 0, 1, 2


class Ledger:
    """Status of every replicate of every subset, shape (seeds, n), and the values of those that are done.

    The first row that is done says which targets there are; a later one that differs has failed.

    Examples
    --------
    >>> from whence.measuring.rows import Job
    >>> ledger = Ledger(Plan("train", "given subsets", np.eye(2), ("a", "b")))
    >>> _ = ledger.book([Result(Job(1, 0, np.ones(2), 0), Reply(("loss",), [0.5]))])
    >>> ledger.outcomes().values.ravel(), ledger.done, ledger.failed, ledger.open
    (array([nan, 0.5]), 1, 0, 1)
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.status = np.zeros(plan.shape, dtype=np.int8)
        self.targets: tuple[str, ...] = ()
        self.values: Floats = np.zeros((*plan.shape, 0))
        self.reasons: dict[tuple[int, int], str] = {}  # by row and replicate

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

    def wanted(self, *, retry: bool) -> NDArray[np.bool_]:
        """Rows still to be measured, shape (seeds, n)."""
        return np.asarray(self.status != DONE if retry else self.status == OPEN)

    def settle(self, result: Result) -> Result:
        """Result as it will be booked: values in the order of the targets, or failed where they do not fit.

        The targets are those of the first result with values that is settled.
        """
        job, reply = result
        if reply.values is None:
            return result
        if not np.isfinite(reply.values).all():
            bad = (f"{name} is {value}" for name, value in zip(reply.targets, reply.values, strict=True)
                   if not np.isfinite(value))  # fmt: skip
            return Result(job, _without_values(reply, f"the outcome must be finite, and {some_of(bad, 3)}"))
        if not self.targets:
            self.fix_targets(reply.targets)
        if reply.targets == self.targets:
            return result
        if len(set(reply.targets)) == len(reply.targets) and set(reply.targets) == set(self.targets):
            found = dict(zip(reply.targets, reply.values, strict=True))
            return Result(job, reply._replace(targets=self.targets, values=[found[name] for name in self.targets]))
        had, got = some_of(self.targets, 4), some_of(reply.targets, 4)
        return Result(job, _without_values(reply, f"it returned {got} where the first finished row returned {had}"))

    def fix_targets(self, targets: Iterable[str]) -> None:
        """Say which targets there are, once; names that no table could hold are refused."""
        names = tuple(targets)
        Outcomes(self.plan.subsets[:0], np.zeros((0, len(names))), self.plan.task_names, names, self.plan.maximize)
        self.targets = names
        self.values = np.full((*self.plan.shape, len(names)), np.nan)

    def book(self, results: Iterable[Result]) -> list[Result]:
        """Book results, and return them as they were settled."""
        settled = [self.settle(result) for result in results]
        for job, reply in settled:
            if reply.values is None:
                self.fail(job.replicate, job.row, reply.reason)
            else:
                self.finish(job.replicate, job.row, reply.values)
        return settled

    def finish(self, replicate: int, row: int, values: list[float]) -> None:
        """Book the values of a row."""
        self.values[replicate, row] = values
        self.status[replicate, row] = DONE
        self.reasons.pop((row, replicate), None)

    def fail(self, replicate: int, row: int, reason: str) -> None:
        """Book a row that failed."""
        if self.status[replicate, row] != DONE:
            self.status[replicate, row] = FAILED
            self.reasons[row, replicate] = reason

    def outcomes(self, source: str = "whence.measure") -> Outcomes:
        """Table of all rows, the first replicate of every subset before the second of any; NaN where not measured."""
        plan = self.plan
        provenance = {"source": source, "outcome_fn": plan.outcome_fn, "design": plan.design, "seed": str(plan.seed)}
        targets, values, up = self.targets, self.values, plan.maximize
        if not targets:  # nothing is known of them yet
            targets, values, up = (ALONE,), np.full((*plan.shape, 1), np.nan), ()
        values, subsets = values.reshape(-1, len(targets)), np.tile(plan.subsets, (plan.seeds, 1))
        return Outcomes(subsets, values, plan.task_names, targets, up, provenance | plan.provenance)


def _without_values(reply: Reply, reason: str) -> Reply:
    values: Any = reply.values
    returned = "\n".join(f"{name}: {value!r}" for name, value in zip(reply.targets, values, strict=True))
    return reply._replace(targets=(), values=None, reason=reason, report=f"It returned:\n{returned[:10_000]}\n")


def unmeasured(ledger: Ledger, where: str) -> str:
    """Sentence on the rows that failed, with the first of them."""
    (row, replicate), reason = min(ledger.reasons.items())
    which = f"row {row}" if ledger.plan.seeds == 1 else f"row {row}, replicate {replicate}"
    total = ledger.status.size
    return f"{ledger.failed} of {total} rows failed and stay NaN{where}. The first, {which}: {reason.rstrip('.')}."
