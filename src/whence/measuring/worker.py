"""What runs in a worker process: load the outcome function, then measure the rows that come in, one after the other."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

from whence.errors import brief
from whence.measuring.pool import Broken, Measured, Ready
from whence.measuring.rows import Job, in_this_process, measure_row
from whence.outcomes.subset import Subset


def main(incoming: int, outgoing: int) -> None:
    """Serve until there is nothing more to read."""
    for handle in (incoming, outgoing):
        os.set_inheritable(handle, False)  # a program that the outcome function starts must not keep them open
    faulthandler.enable()  # a crash in compiled code says where it was
    jobs, replies = Connection(incoming, writable=False), Connection(outgoing, readable=False)
    outcome_fn, task_names = _load(jobs, replies)
    while True:
        try:
            job: Job = jobs.recv()
        except EOFError:
            return
        reply = measure_row(outcome_fn, Subset(job.weights, task_names), job.seed)
        replies.send(Measured(job.row, job.replicate, os.getpid(), reply))


def _load(jobs: Connection, replies: Connection) -> tuple[Callable[[Subset, int], object], tuple[str, ...]]:
    try:
        with in_this_process():
            found: tuple[Callable[[Subset, int], object], tuple[str, ...]] = jobs.recv()
    except Exception as error:
        replies.send(Broken(brief(error)))
        raise
    replies.send(Ready(os.getpid()))
    return found
