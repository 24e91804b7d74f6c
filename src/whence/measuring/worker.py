"""What runs in a worker process: load the outcome function, then measure the rows that come in, one after the other."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from whence.measuring.pool import Broken, Ready
from whence.measuring.rows import brief, measure_row
from whence.outcomes.subset import Subset


def main(incoming: int, outgoing: int, lifeline: int) -> None:
    """Serve until there is nothing more to read; end at once where whoever started it has died."""
    for handle in (incoming, outgoing, lifeline):
        os.set_inheritable(handle, False)  # a program that the outcome function starts must not keep them open
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    faulthandler.enable()  # a crash in compiled code says where it was
    jobs, replies = Connection(incoming, writable=False), Connection(outgoing, readable=False)
    outcome_fn, task_names = _load(jobs, replies)
    while True:
        try:
            weights, seed = jobs.recv()
        except EOFError:
            return
        replies.send(measure_row(outcome_fn, Subset(weights, task_names), seed))


def _load(jobs: Connection, replies: Connection) -> Any:
    try:
        found = jobs.recv()
    except Exception as error:
        replies.send(Broken(brief(error)))
        raise
    replies.send(Ready())
    return found


def _die_with_parent(lifeline: int) -> None:
    """Wait for the end of a pipe that nobody writes to, and take along whatever the outcome function has started."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)
