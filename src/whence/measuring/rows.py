"""Measuring one row, the same in every engine: a subset and a seed in, numbers or the reason for a failure out."""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

import numpy as np

from whence.errors import brief, safe_text
from whence.measuring.values import flatten, texts_of
from whence.outcomes.ledger import Reply, Result
from whence.outcomes.plan import Job
from whence.outcomes.subset import Subset

__all__ = ["Job", "Reply", "Result", "as_queue", "in_this_process", "measure_row", "report", "seeded"]

LONGEST_REPORT = 64 * 1024


def as_queue(todo: Sequence[Job]) -> deque[Job]:
    """Jobs in their order; a deque is the queue itself, to which its owner may add."""
    return todo if isinstance(todo, deque) else deque(todo)


def measure_row(outcome_fn: Callable[[Subset, int], object], subset: Subset, seed: int) -> Reply:
    """Call the outcome function; an error in it becomes a reply too.

    >>> measure_row(lambda subset, seed: {"size": subset.sum()}, Subset([1, 1], ["a", "b"]), 0).values
    [2.0]
    >>> measure_row(lambda subset, seed: 1 / 0, Subset([1, 1], ["a", "b"]), 0).reason
    'ZeroDivisionError: division by zero'
    """
    began = time.perf_counter()
    try:
        with in_this_process(), restored(), seeded(seed):
            returned = outcome_fn(subset, seed)
            targets, values = flatten(returned)
    except (Exception, SystemExit) as error:
        return Reply(reason=brief(error), report=report(), seconds=time.perf_counter() - began)
    return Reply(targets, values, seconds=time.perf_counter() - began, aside=texts_of(returned))


@contextmanager
def in_this_process() -> Iterator[None]:
    """End every process that an outcome function has forked and that comes back from it.

    Otherwise it would go on as a second copy of the worker, or of the whole run, and write to the same journal.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


@contextmanager
def restored() -> Iterator[None]:
    """Restore the folder, the output streams and the recursion limit of the process after a row.

    Otherwise the next row could write into another folder, or fail when it prints.
    """
    folder, streams, depth = None, (sys.stdout, sys.stderr), sys.getrecursionlimit()
    with suppress(OSError):  # it may be gone
        folder = os.getcwd()
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)
        sys.stdout, sys.stderr = map(_opened, streams, (1, 2))
        with suppress(OSError):
            os.chdir(folder or os.curdir)


def _opened(stream: TextIO, handle: int) -> TextIO:
    """The stream, or a new one to the same place if it was closed."""
    if not getattr(stream, "closed", False):  # a stream of the user's own may have no such attribute
        return stream
    return open(handle, "w", buffering=1, errors="backslashreplace", closefd=False)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards.

    An outcome function should draw from its ``seed``. One that forgets to would otherwise depend on which rows its
    process has measured before, and so on the number of workers.
    """
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    torchs = torch.get_rng_state() if torch else None
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if torch:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch and torchs is not None:
            torch.set_rng_state(torchs)


def report() -> str:
    """Traceback of the error that is being handled, cut to a readable length."""
    try:
        text = traceback.format_exc()
    except Exception as error:  # a message can fail in more ways than traceback knows of
        text = f"The traceback cannot be shown ({type(error).__name__}).\n"
    return safe_text(text, LONGEST_REPORT)
