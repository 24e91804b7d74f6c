"""The loop: from an outcome function and a design to a table of outcomes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import DataWarning
from whence.measuring.inline import in_batches, one_by_one
from whence.measuring.journal import FAILURES, Journal, open_journal
from whence.measuring.ledger import Ledger, unmeasured
from whence.measuring.plan import Plan, check_signature, make_plan
from whence.measuring.rows import Job, Result
from whence.outcomes import Outcomes

if TYPE_CHECKING:
    from whence.outcomes.checks import Directions

ENGINES = ("local", "ray", "inline")


def measure(
    outcome_fn: Any,
    design: Any,
    n: int | None = None,
    *,
    tasks: Iterable[str] | int | None = None,
    path: str | os.PathLike[str] | None = None,
    seed: int = 0,
    seeds: int = 1,
    jobs: int = 1,
    engine: str = "local",
    retry: bool = False,
    timeout: float | None = None,
    maximize: Directions = (),
) -> Outcomes:
    """Table of outcomes.

    Examples
    --------
    >>> import whence
    >>> def train(subset, seed):
    ...     return {"loss": 1.0 - 0.5 * ("code" in subset)}
    >>> whence.measure(train, whence.LeaveOneOut(), tasks=["code", "math"], engine="inline").values.ravel()
    array([0.5, 1. , 0.5])
    """
    plan = make_plan(outcome_fn, design, n, tasks=tasks, seed=seed, seeds=seeds, maximize=maximize)
    folder = None if path is None else Path(path)
    with _books(folder, plan) as (ledger, books):
        todo = list(plan.jobs(ledger.wanted(retry=retry)))
        for results in _results(outcome_fn, plan, todo):
            books.book(results)
    if ledger.failed:
        where = f"; see {folder / FAILURES}" if folder else ""
        warnings.warn(unmeasured(ledger, where), DataWarning, stacklevel=2)
    return ledger.outcomes()


@contextmanager
def _books(folder: Path | None, plan: Plan) -> Iterator[tuple[Ledger, Ledger | Journal]]:
    if folder is None:
        ledger = Ledger(plan)
        yield ledger, ledger
    else:
        with open_journal(folder, plan) as journal:
            yield journal.ledger, journal


def _results(outcome_fn: Any, plan: Plan, todo: list[Job]) -> Iterator[list[Result]]:
    if callable(getattr(outcome_fn, "batch", None)):
        return in_batches(outcome_fn, todo)
    check_signature(outcome_fn, plan)
    return one_by_one(outcome_fn, plan.task_names, todo)
