"""Workers that are actors of a Ray cluster: an existing one by its address, or one on this machine."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

from whence.errors import InputError, brief, needed
from whence.measuring.engine import Workers
from whence.measuring.local import KEPT, environment, pack
from whence.measuring.outcome_fn import OutcomeFn
from whence.measuring.pool import Broken, Lost, Measured, Message, Pool, Ready, Worker
from whence.measuring.rows import Job, measure_row
from whence.outcomes.subset import Subset


class RayEngine(Pool):
    """Actors that each hold the outcome function, with their CPUs and GPUs of the cluster.

    Without an address, a cluster is started that has room for all workers.
    """

    def __init__(self, outcome_fn: OutcomeFn, task_names: tuple[str, ...], workers: Workers) -> None:
        super().__init__(workers)
        cpus, gpus = workers.cpus_per_task, workers.gpus_per_task
        packed = sys.path, pack(outcome_fn, task_names)
        self._ray = ray = needed("ray", "The engine 'ray' needs Ray", "ray")
        self._began = not ray.is_initialized()
        if self._began:
            _connect(ray, workers.address, room=max(1, workers.count() * cpus))
        needs = {"CPU": cpus, "GPU": gpus}
        has = ray.cluster_resources()
        if short := [name for name, amount in needs.items() if amount > has.get(name, 0)]:
            self.close()
            raise InputError(
                f"A worker needs {needs[short[0]]:g} {short[0]} and the Ray cluster has {has.get(short[0], 0):g}. "
                "Ask for less per task, or give the address of another cluster."
            )
        self._packed = ray.put(packed)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(_Actor).options(**options, runtime_env={"env_vars": environment(workers.threads)})

    def start(self) -> RayWorker:
        return RayWorker(self._ray, self._actor.remote(self._packed))

    def wait(self, workers: Sequence[RayWorker], seconds: float) -> None:
        due = [worker.due for worker in workers if worker.due is not None]
        if due:
            self._ray.wait(due, num_returns=1, timeout=seconds)

    def close(self) -> None:
        if self._began:  # for this run
            self._ray.shutdown()


def _connect(ray: ModuleType, address: str | None, *, room: float) -> None:
    try:
        if address is None:
            from joblib import cpu_count

            cpus = max(cpu_count(), int(-(-room // 1)))
            ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")
        else:
            ray.init(address, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises almost anything here
        where = "started on this machine" if address is None else f"reached at '{address}'"
        raise InputError(f"No Ray cluster could be {where} ({brief(error)}).") from error


class _Tail(io.TextIOBase):
    """A text stream that keeps the end of what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, piece: str) -> int:
        self.text = (self.text + piece)[-KEPT:]
        return len(piece)


class _Actor:
    """What runs in the cluster."""

    def __init__(self, packed: tuple[list[str], bytes]) -> None:
        places, self._packed = packed
        sys.path += [place for place in places if place not in sys.path]

    def load(self) -> Ready | Broken:
        try:
            self._outcome_fn, self._task_names = ForkingPickler.loads(self._packed)
        except Exception as error:
            return Broken(brief(error))
        return Ready(os.getpid())

    def measure(self, job: Job) -> Measured:
        printed = _Tail()
        with redirect_stdout(printed), redirect_stderr(printed):
            reply = measure_row(self._outcome_fn, Subset(job.weights, self._task_names), job.seed)
        return Measured(job.row, job.replicate, os.getpid(), reply._replace(printed=printed.text))


class RayWorker(Worker):
    """An actor, and the reply that is due from it."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.due: Any = actor.load.remote()

    def begin(self, job: Job) -> bool:
        self.due = self._actor.measure.remote(job)
        return True

    def poll(self) -> Message | None:
        if self.due is None or not self._ray.wait([self.due], timeout=0)[0]:
            return None
        due, self.due = self.due, None
        try:
            message: Message = self._ray.get(due)
        except self._ray.exceptions.RayError as error:
            return Lost(f"its Ray worker died ({type(error).__name__})", f"{error}\n")
        return message

    def stop(self) -> None:
        with suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._actor)
