"""The loop: from an outcome function and a design to a table of outcomes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import DataWarning, InputError, counted
from whence.measuring.display import Display
from whence.measuring.inline import BATCH_SIZE, in_batches, one_by_one
from whence.measuring.journal import FAILURES, Journal, open_journal
from whence.measuring.ledger import Ledger, unmeasured
from whence.measuring.plan import Plan, check_signature, make_plan, whole
from whence.measuring.pool import Engine, pooled
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
    threads: int = 1,
    timeout: float | None = None,
    retry: bool = False,
    maximize: Directions = (),
    address: str | None = None,
    cpus_per_task: float = 1,
    gpus_per_task: float = 0,
    progress: bool | None = None,
) -> Outcomes:
    """Table of the outcomes of the subsets of a design, each measured with an outcome function.

    With a ``path``, every finished row is on disk the moment it is there. Whatever ends the run, the same call goes on
    where it stopped, and one with more subsets or seeds extends it; `whence.read_outcomes` reads the folder at any
    time. Values depend neither on the engine nor on the number of workers, as long as ``outcome_fn`` takes all that is
    random from its seed (Python's, numpy's and, where it is loaded, torch's own generators are seeded with it too).

    A row fails where the outcome function raises, returns what is not finite or not what the first finished row
    returned, takes longer than ``timeout``, or ends its process. The other rows go on. Failed rows are NaN in the
    table, counted in a `DataWarning`, and explained in ``path/failures``.

    Parameters
    ----------
    outcome_fn : callable, or object with a method ``batch``
        ``outcome_fn(subset, seed)`` returns ``{metric: number}``, ``{metric: array}`` (targets ``metric[0], …``), or a
        number or array (``outcome``). ``subset`` is a `Subset`: a row of 0 and 1 that knows names, as in
        ``"a" in subset`` or ``subset.tasks``. ``batch(subsets, seeds)`` gets arrays (m, K) and (m,), at most
        ``batch_size`` (64) rows, and returns a column of m values, or m rows, per metric; it is called in this
        process. Attributes ``task_names``, ``maximize`` and ``provenance`` of either are used where it has them.
    design : design, text such as "fixed:7", or array, DataFrame or Outcomes of subsets
        Which subsets; see `whence.designs`. Subsets given as such are measured in their order.
    n : int, optional
        How many subsets; all of them where the design lists them.
    tasks : sequence of str, or int
        Names of the tasks, or their number. Not needed where ``outcome_fn`` or the subsets name them.
    path : path, optional
        Run folder, new or of an earlier run. Nothing is written where it is not given.
    seed : int
        Of the design and of the rows. Replicate r of subset i is measured with the seed
        ``numpy.random.SeedSequence([seed, r]).generate_state(n)[i] >> 1``.
    seeds : int
        How often each subset is measured.
    jobs : int
        Number of workers; -1 for one per processor.
    engine : {"local", "ray", "inline"}
        Worker processes on this machine, actors of a Ray cluster, or this process itself, for debugging: it has no
        timeout, and no protection against a crash.
    threads : int
        Of numpy, torch and the like in each worker. More are faster for large models, and may change the last digits.
    timeout : float, optional
        Seconds after which a row has failed.
    retry : bool
        Whether to measure rows again that failed in an earlier call.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better.
    address : str, optional
        Of a Ray cluster, or "auto"; one is started on this machine where it is not given.
    cpus_per_task, gpus_per_task : float
        What a row takes of the Ray cluster.
    progress : bool, optional
        False for none; True for plain lines also where stderr is not a terminal.

    Returns
    -------
    Outcomes
        A row per subset and seed, the first seed of every subset before the second of any.

    Examples
    --------
    >>> import whence
    >>> def train(subset, seed):
    ...     return {"loss": 1.0 - 0.5 * ("code" in subset)}
    >>> whence.measure(train, whence.LeaveOneOut(), tasks=["code", "math"], engine="inline").values.ravel()
    array([0.5, 1. , 0.5])
    """
    plan = make_plan(outcome_fn, design, n, tasks=tasks, seed=seed, seeds=seeds, maximize=maximize)
    workers = Workers(engine, jobs, threads, timeout, address, cpus_per_task, gpus_per_task)
    folder = None if path is None else Path(path)
    ledger = carry_out(plan, outcome_fn, folder, workers, retry=retry, progress=progress)
    if ledger.failed:
        where = f"; see {folder / FAILURES}" if folder else ""
        warnings.warn(unmeasured(ledger, where), DataWarning, stacklevel=2)
    return ledger.outcomes(*[str(folder)] if folder else [])


@dataclass(frozen=True)
class Workers:
    """Who measures: how many, where, and with what each; see `measure`."""

    engine: str = "local"
    jobs: int = 1
    threads: int = 1
    timeout: float | None = None
    address: str | None = None
    cpus_per_task: float = 1
    gpus_per_task: float = 0

    def check(self, outcome_fn: Any, plan: Plan) -> None:
        """Refuse what cannot be, before anything is begun."""
        if self.engine not in ENGINES:
            named = "', '".join(ENGINES)
            raise InputError(f"The 'engine' parameter of measure must be '{named}'. Got {self.engine!r} instead.")
        if self.jobs != -1:
            whole(self.jobs, "jobs", 1)
        whole(self.threads, "threads", 1)
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise InputError(
                f"must be a number of seconds above 0. Got {self.timeout!r} instead.", parameter="timeout", of="measure"
            )
        batched = takes_batches(outcome_fn)
        if batched:
            whole(getattr(outcome_fn, "batch_size", BATCH_SIZE), "batch_size", 1)
        else:
            check_signature(outcome_fn, plan)
        if batched and self.engine == "ray":
            raise InputError(
                f"{plan.outcome_fn} measures batches of subsets in this process: leave out {{engine}}.", engine="ray"
            )
        if (batched or self.engine == "inline") and (self.jobs != 1 or self.timeout is not None):
            raise InputError(
                f"{plan.outcome_fn} measures in this process, which has neither workers nor a timeout: leave out "
                "{jobs} and {timeout}.",
                jobs=None,
                timeout=None,
            )

    def described(self, outcome_fn: Any) -> str:
        """Say who measures."""
        if takes_batches(outcome_fn):
            return " in batches, in this process"
        if self.engine == "inline":
            return " in this process"
        where = " on Ray" if self.engine == "ray" else ""
        return f" with {counted(self.count(), 'worker')}{where}, {counted(self.threads, 'thread')} each"

    def count(self) -> int:
        """Number of workers."""
        from joblib import cpu_count

        return int(cpu_count()) if self.jobs == -1 else self.jobs


def takes_batches(outcome_fn: Any) -> bool:
    """Whether an outcome function measures many subsets together."""
    return callable(getattr(outcome_fn, "batch", None))


def carry_out(
    plan: Plan,
    outcome_fn: Any,
    folder: Path | None,
    workers: Workers,
    *,
    retry: bool = False,
    progress: bool | None = None,
) -> Ledger:
    """Measure what a plan leaves to be measured, and return what every row has come to."""
    workers.check(outcome_fn, plan)
    with _books(folder, plan) as (ledger, books):
        todo = list(plan.jobs(ledger.wanted(retry=retry)))
        results = _results(outcome_fn, plan, todo, workers)
        # Closed, so that workers end at once and not when the error that ended the loop is forgotten.
        with closing(results), Display(ledger, len(todo), workers.described(outcome_fn), progress=progress) as display:
            for finished in results:
                display.show(books.book(finished))
    return ledger


@contextmanager
def _books(folder: Path | None, plan: Plan) -> Iterator[tuple[Ledger, Ledger | Journal]]:
    """Where results are booked: in memory, or in a folder too."""
    if folder is None:
        ledger = Ledger(plan)
        yield ledger, ledger
    else:
        with open_journal(folder, plan) as journal:
            yield journal.ledger, journal


def _results(outcome_fn: Any, plan: Plan, todo: list[Job], workers: Workers) -> Generator[list[Result], None, None]:
    if takes_batches(outcome_fn):
        yield from in_batches(outcome_fn, todo)
    elif workers.engine == "inline":
        yield from one_by_one(outcome_fn, plan.task_names, todo)
    elif todo:
        with _engine(outcome_fn, plan, workers) as engine:
            yield from pooled(engine, workers.count(), todo, workers.timeout)


def _engine(outcome_fn: Any, plan: Plan, workers: Workers) -> Any:
    engine: Engine
    if workers.engine == "local":
        from whence.measuring.local import LocalEngine

        engine = LocalEngine(outcome_fn, plan.task_names, workers.threads)
        return nullcontext(engine)
    from whence.measuring.cluster import RayEngine

    return RayEngine(
        outcome_fn,
        plan.task_names,
        address=workers.address,
        n_workers=workers.count(),
        cpus=workers.cpus_per_task,
        gpus=workers.gpus_per_task,
        threads=workers.threads,
    )
