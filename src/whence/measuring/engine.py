"""The contract of engines, and the table of them: who measures rows, and where.

An engine is made from an outcome function, the task names and a `Workers`, and returns the results of jobs. To add one,
write an `Engine`, and add a line to `ENGINES` and to the conformance table of the tests.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from types import TracebackType

import numpy as np

from whence.errors import InputError, check_choice, counted
from whence.measuring.outcome_fn import OutcomeFn, check_signature
from whence.measuring.plan import whole
from whence.outcomes.ledger import Result
from whence.outcomes.plan import Job, Plan
from whence.outcomes.subset import Subset

ENGINES = {
    "local": "whence.measuring.local:LocalEngine",
    "ray": "whence.measuring.cluster:RayEngine",
    "inline": "whence.measuring.inline:InlineEngine",
}


class Engine(AbstractContextManager["Engine"]):
    """Measures rows.

    If a row raises, hangs or ends its process, only that row fails. Every job is answered exactly once, in any order.
    Values depend only on the subset and the seed of the job.
    """

    @abstractmethod
    def results(self, todo: Sequence[Job]) -> Iterator[list[Result]]:
        """Results of the jobs, in lists of jobs that finished together.

        If ``todo`` is a deque, jobs are taken from it, and its owner may add more between results.
        """

    def close(self) -> None:
        """End everything that was started and still runs."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class Workers:
    """Who measures: how many, where, and with what each; see `whence.measure`."""

    engine: str = "local"
    jobs: int = 1
    threads: int = 1
    timeout: float | None = None
    address: str | None = None
    cpus_per_task: float = 1
    gpus_per_task: float = 0

    def check(self, outcome_fn: OutcomeFn, plan: Plan) -> None:
        """Refuse invalid settings before anything starts."""
        check_choice(self.engine, list(ENGINES), "engine", of="measure")
        if self.jobs != -1:
            whole(self.jobs, "jobs", 1)
        whole(self.threads, "threads", 1)
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise InputError(
                f"must be a number of seconds above 0. Got {self.timeout!r} instead.", parameter="timeout", of="measure"
            )
        batched = outcome_fn.batch is not None
        if not batched:
            check_signature(outcome_fn, Subset(np.ones(len(plan.task_names)), plan.task_names))
        if batched and self.engine == "ray":
            raise InputError(f"{plan.outcome_fn} measures batches of subsets in this process: leave out engine='ray'.")
        if (batched or self.engine == "inline") and (self.jobs != 1 or self.timeout is not None):
            raise InputError(
                f"{plan.outcome_fn} measures in this process, which has neither workers nor a timeout: leave out "
                "'jobs' and 'timeout'."
            )

    def engine_for(self, outcome_fn: OutcomeFn, task_names: tuple[str, ...]) -> Engine:
        """Engine that measures with an outcome function; one that takes batches is called in this process."""
        name = "inline" if outcome_fn.batch is not None else self.engine
        module, _, kind = ENGINES[name].partition(":")
        engine: Engine = getattr(importlib.import_module(module), kind)(outcome_fn, task_names, self)
        return engine

    def described(self, outcome_fn: OutcomeFn) -> str:
        """Say who measures."""
        if outcome_fn.batch is not None:
            return " in batches, in this process"
        if self.engine == "inline":
            return " in this process"
        where = " on Ray" if self.engine == "ray" else ""
        return f" with {counted(self.count(), 'worker')}{where}, {counted(self.threads, 'thread')} each"

    def count(self) -> int:
        """Number of workers."""
        from joblib import cpu_count

        return int(cpu_count()) if self.jobs == -1 else self.jobs
