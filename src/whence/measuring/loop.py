"""The loop: from an outcome function and a design to a table of outcomes."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from whence.errors import DataWarning, InputError
from whence.measuring.display import Display, duration
from whence.measuring.engine import Workers
from whence.measuring.fingerprint import fingerprint_of, state_of
from whence.measuring.journal import Books, open_journal
from whence.measuring.outcome_fn import Measurable, OutcomeFn, as_outcome_fn
from whence.measuring.plan import Designed, make_plan
from whence.outcomes import Outcomes
from whence.outcomes.ledger import Ledger, Result, unmeasured
from whence.outcomes.plan import Job, Plan
from whence.outcomes.runs import FAILURES

if TYPE_CHECKING:
    from whence.outcomes.checks import Directions


def measure(
    outcome_fn: Measurable,
    design: Designed,
    n: int | None = None,
    *,
    tasks: Iterable[str] | int | None = None,
    path: str | os.PathLike[str] | None = None,
    seed: int = 0,
    seeds: int | None = None,
    jobs: int = 1,
    engine: str = "local",
    threads: int = 1,
    timeout: float | None = None,
    retry: bool = False,
    keep_going: bool = False,
    accept_change: bool = False,
    maximize: Directions = (),
    address: str | None = None,
    cpus_per_task: float = 1,
    gpus_per_task: float = 0,
    progress: bool | None = None,
) -> Outcomes:
    """Measure the subsets of a design with an outcome function, and return the table of outcomes.

    With a ``path``, every finished row is written to disk at once. After any interruption, the same call resumes the
    run, and one with more subsets or seeds extends it; `whence.read_outcomes` reads the folder at any time. Resuming is
    refused if the source, data or settings of the function have changed (see `whence.measuring.fingerprint`). Values
    do not depend on the engine or the number of workers, as long as ``outcome_fn`` takes all randomness from its seed
    (the global generators of Python, numpy and, if loaded, torch are seeded with it too).

    A row fails if the outcome function raises, returns values that are not finite or other metrics than the first row,
    takes longer than ``timeout``, or ends its process. The others continue. Failed rows are NaN in the table, counted
    in a `DataWarning`, and explained in ``path/failures``. If a row fails before any other has succeeded, the run
    stops, because all others would most likely fail too. Fix the function and make the same call again.

    Parameters
    ----------
    outcome_fn : callable, or object with a method ``batch``
        ``outcome_fn(subset, seed)`` returns ``{metric: number}``, ``{metric: array}`` (targets ``metric[0], …``), or a
        number or array (``outcome``); text is left out, with a `DataWarning`. ``subset`` is a `Subset`: a row of 0 and
        1 with names, as in ``"a" in subset`` or ``subset.tasks``. ``batch(subsets, seeds)`` gets arrays (m, K) and
        (m,), at most ``batch_size`` (64) rows, and returns m values, or m rows, per metric; it is called in this
        process. `whence.measuring.outcome_fn.OutcomeFn` lists the optional attributes of both.
    design : design, text such as "fixed:7", or array, DataFrame or Outcomes of subsets
        Which subsets; see `whence.designs`. Given subsets are measured in their order.
    n : int, optional
        How many subsets; by default all, if the design lists them.
    tasks : sequence of str, or int
        Names of the tasks, or their number. Not needed if ``outcome_fn`` or the subsets name them.
    path : path, optional
        Run folder; created, or resumed if it exists. By default nothing is written.
    seed : int
        Of the design and of the rows. Replicate r of subset i is measured with the seed
        ``numpy.random.SeedSequence([seed, r]).generate_state(n)[i] >> 1``.
    seeds : int, optional
        Runs of each subset; by default as many as the outcome function asks for, usually one.
    jobs : int
        Number of workers; -1 for one per processor.
    engine : {"local", "ray", "inline"}
        Worker processes on this machine, actors of a Ray cluster, or this process, for debugging: without timeout or
        protection against crashes, and with the hash seed and the threads of this process.
    threads : int
        Threads of numpy and torch in each worker. More are faster for large models, but may change the last digits.
    timeout : float, optional
        Seconds after which a row has failed.
    retry : bool
        Whether to measure rows again that failed in an earlier call.
    keep_going : bool
        Whether to continue if rows fail before any has succeeded.
    accept_change : bool
        Whether to resume although the function, its data or its settings have changed. The provenance of the table
        then says so.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better (arrays by their name); by default as in the folder.
    address : str, optional
        Of a Ray cluster, or "auto"; by default one is started on this machine.
    cpus_per_task, gpus_per_task : float
        Resources of the Ray cluster for each row.
    progress : bool, optional
        False for none; True for plain lines even if stderr is not a terminal.

    Returns
    -------
    Outcomes
        A row per subset and seed: all subsets with the first seed, then with the second, and so on.

    Examples
    --------
    >>> import whence
    >>> def train(subset, seed):
    ...     return {"loss": 1.0 - 0.5 * ("code" in subset)}
    >>> whence.measure(train, whence.LeaveOneOut(), tasks=["code", "math"], engine="inline").values.ravel()
    array([0.5, 1. , 0.5])
    """
    function = as_outcome_fn(outcome_fn)
    plan = make_plan(function, design, n, tasks=tasks, seed=seed, seeds=seeds, maximize=maximize)
    workers = Workers(engine, jobs, threads, timeout, address, cpus_per_task, gpus_per_task)
    folder = None if path is None else Path(path)
    ledger = carry_out(
        plan, function, folder, workers, retry=retry, keep_going=keep_going, accept_change=accept_change,
        progress=progress,
    )  # fmt: skip
    if ledger.aside:
        warnings.warn(ledger.said_aside(), DataWarning, stacklevel=2)
    if ledger.failed:
        where = f"; see {folder / FAILURES}" if folder else ""
        warnings.warn(unmeasured(ledger, where), DataWarning, stacklevel=2)
    return ledger.outcomes(*[str(folder)] if folder else [])


def carry_out(
    plan: Plan,
    outcome_fn: OutcomeFn,
    folder: Path | None,
    workers: Workers,
    *,
    retry: bool = False,
    keep_going: bool = True,
    accept_change: bool = False,
    progress: bool | None = None,
    grow: Callable[[Books], Iterable[Job]] = lambda books: (),
) -> Ledger:
    """Measure the remaining rows of a plan, and return the state of every row.

    Without ``keep_going``, the run ends if the first rows, one for each worker, have all failed. ``grow`` is called for
    more jobs at the start and whenever rows are finished; it may extend the plan.
    """
    workers.check(outcome_fn, plan)
    if folder is not None or outcome_fn.fingerprint is not None:
        plan = replace(plan, fingerprint=fingerprint_of(outcome_fn))
    with nullcontext(Books(plan)) if folder is None else open_journal(folder, plan, accept=accept_change) as books:
        ledger = books.ledger
        again = retry or not (ledger.done or keep_going)
        todo = deque(ledger.plan.jobs(ledger.wanted(retry=again)))
        todo.extend(grow(books))
        if todo:
            try:
                _measure(outcome_fn, todo, workers, books, progress, grow, keep_going=keep_going)
            finally:
                if folder is not None:
                    books.finished(state_of(outcome_fn))
    return ledger


def _measure(
    outcome_fn: OutcomeFn,
    todo: deque[Job],
    workers: Workers,
    books: Books,
    progress: bool | None,
    grow: Callable[[Books], Iterable[Job]],
    *,
    keep_going: bool,
) -> None:
    ledger, planned = books.ledger, len(todo)
    # One row for each worker shows whether any succeeds; batches are taken whole.
    first = min(workers.count(), planned)
    wait = not (ledger.done or keep_going or outcome_fn.batch is not None)
    held = [todo.pop() for _ in range(len(todo) - first)][::-1] if wait else []
    failed: list[Result] = []
    with ExitStack() as stack:
        engine = stack.enter_context(workers.engine_for(outcome_fn, ledger.plan.task_names))
        # Closed to end the workers at once, and not when the error that ended the loop is garbage-collected.
        results = stack.enter_context(closing(cast("Generator[list[Result]]", engine.results(todo))))
        display = stack.enter_context(Display(ledger, planned, workers.described(outcome_fn), progress=progress))
        for finished in results:
            settled = books.book(finished)
            display.show(settled)
            if ledger.done:
                todo.extend(held)
                held = []
            elif not keep_going:
                failed += settled
                if first <= len(failed) < planned:
                    _stop(failed)
            todo.extend(grow(books))


def _stop(failed: Sequence[Result]) -> None:
    """End a run in which no row has succeeded, before others fail in the same way."""
    job, reply = failed[0]
    raise InputError(
        f"row {job.row} failed after {duration(reply.seconds)}, before any other succeeded: "
        f"{reply.reason.rstrip('.')}. The run was stopped, since the others would most likely fail too. Fix it "
        "and run the same again, or run the others anyway, with {keep_going}.",
        keep_going=True,
    )
