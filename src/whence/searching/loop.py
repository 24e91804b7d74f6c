"""The loop: from an outcome function and a budget to an answer, choosing runs while others are still running."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import InputError, some_of
from whence.measuring.engine import Workers
from whence.measuring.journal import Books
from whence.measuring.loop import carry_out
from whence.measuring.outcome_fn import Measurable, as_outcome_fn, name_of
from whence.measuring.plan import task_names
from whence.outcomes.ledger import Ledger
from whence.outcomes.plan import Job
from whence.outcomes.runs import FAILURES
from whence.searching.ask import Search
from whence.searching.page import View
from whence.searching.pruning import Reporting, takes_report
from whence.searching.result import SearchResult, result_of
from whence.searching.rungs import prepare

if TYPE_CHECKING:
    from whence.ladder.methods import Setup
    from whence.models.problem import Problem
    from whence.models.recipe import Recipe
    from whence.outcomes.checks import Directions

HOPELESS = 5  # failures, and no run that succeeded, after which a search ends


def search(
    outcome_fn: Measurable | Problem | Setup | tuple[Problem, Recipe],
    *,
    tasks: Iterable[str] | int | None = None,
    budget: int = 40,
    goal: str = "best",
    path: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    engine: str = "local",
    threads: int = 1,
    timeout: float | None = None,
    retry: bool = False,
    accept_change: bool = False,
    maximize: Directions = (),
    address: str | None = None,
    cpus_per_task: float = 1,
    gpus_per_task: float = 0,
    progress: bool | None = None,
    **question: Any,
) -> SearchResult:
    """Spend a budget of runs, and return the best subset or mixture, effects of tasks, or predictions.

    The first runs are balanced; each later one is chosen from the finished runs, while others are still running. With a
    ``path``, every decision and every finished run is written to disk at once, with a live page (``search.html``).
    After any interruption, the same call resumes with the decisions already made; a larger budget extends the search.
    Subsets like those that failed are avoided. If the first five runs all fail, the search ends and says why; the same
    call, with the function fixed, tries them again.

    Parameters
    ----------
    outcome_fn : callable, object with a method ``batch``, or Problem
        As in `whence.measure`. One with a third parameter ``report`` may call ``report(step, value)`` while it trains:
        runs that are worse than the median of the finished ones at the same step are stopped, and their final outcome
        is extrapolated (:mod:`whence.searching.pruning`). For a `whence.Problem` with a `whence.Recipe`, given as
        (problem, recipe), a cheap estimator is made first, and true runs correct it.
    tasks : sequence of str, or int
        Names of the tasks, or their number. Not needed if ``outcome_fn`` names them.
    budget : int
        Largest number of runs; the search stops earlier once the answer is settled.
    goal : {"best", "effects", "prediction"}
        See `whence.searching.goals` for the rule by which runs are chosen.
    path : path, optional
        Run folder, created, or resumed if it exists.
    jobs, engine, threads, timeout, retry, accept_change, address, cpus_per_task, gpus_per_task
        As in `whence.measure`.
    maximize : bool, or sequence of target names
        For which targets higher is better.
    progress : bool, optional
        False for none; True for plain lines even if stderr is not a terminal.
    **question
        Of `whence.Search`: target, weights, size, max_size, include, exclude, costs, max_cost, mixture, bounds,
        candidates, within, stop, seed.

    Examples
    --------
    >>> import whence
    >>> def train(subset, seed):
    ...     return {"loss": 1.0 - 0.5 * ("code" in subset) + 0.2 * ("noise" in subset)}
    >>> found = whence.search(train, tasks=["code", "math", "noise"], budget=12, engine="inline")
    >>> "code" in found.tasks and "noise" not in found.tasks
    True
    """
    folder = None if path is None else Path(path)
    given, cheap = prepare(outcome_fn, folder, budget, question.get("seed", 0), progress)
    if takes_report(given):
        given = Reporting(given, folder, bool(maximize))
    function = as_outcome_fn(given)
    own = task_names(function.task_names)
    names = own if tasks is None or (own and tasks == len(own)) else task_names(tasks)
    if own and names != own:
        raise InputError(
            f"must be those of the outcome function, in its order: {some_of(own)}. Got {some_of(names or ())}.",
            parameter="tasks",
            of="search",
        )
    if names is None:
        raise InputError("The tasks must be known: name them with {tasks}, or give their number.", tasks=None)
    up = function.maximize if maximize is None or maximize == () else maximize
    asking = Search(names, goal, budget, maximize=up, path=path, estimates=cheap.estimates or None, **question)
    asking.outcome_fn, asking.rung_words = name_of(function), cheap.words
    asking.curves = given.folder if isinstance(given, Reporting) else None
    workers = Workers(engine, jobs, threads, timeout, address, cpus_per_task, gpus_per_task)
    finished = count()
    with View(asking, progress=progress) as view:
        ledger = carry_out(
            asking.plan(),
            function,
            folder,
            workers,
            retry=retry or not asking.ledger().done,
            accept_change=accept_change,
            progress=False,
            grow=lambda books: grow(asking, books, workers.count(), view, next(finished)),
        )
        if not ledger.done:
            raise _no_run(ledger, folder)
        found = result_of(asking, ledger)
        view.finish(found)
    return found


def grow(asking: Search, books: Books, n_workers: int, view: View, finished: int) -> Iterator[Job]:
    """Yield the runs to begin now: as many as there are workers without one, until the answer is settled.

    ``finished`` is how often runs were finished since the search was begun or resumed.
    """
    if not books.ledger.done and finished >= max(HOPELESS, n_workers):
        raise _no_run(books.ledger, asking.folder)
    standing = asking.standing(books.ledger)
    while not standing.stop and books.ledger.open < n_workers and (job := asking.decide(books)):
        yield job
    view.show(books.ledger, standing)


def _no_run(ledger: Ledger, folder: Path | None) -> InputError:
    """Return the error for a search in which no run has succeeded, with the most common reason."""
    (reason, n_said), *others = Counter(ledger.reasons.values()).most_common()
    said = f"{reason.rstrip('.')} ({n_said} of them)" if others else reason.rstrip(".")
    where = f" See {folder / FAILURES}." if folder else ""
    again = "Fix it and run the same command again." if folder else ""
    return InputError(f"All {ledger.failed} runs failed: {said}.{where} {again}".rstrip())
