"""One row, from its subset and seed to its numbers or the reason why there are none: the same in every engine."""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from whence.errors import InputError
from whence.measuring.values import flatten
from whence.outcomes.subset import Floats, Subset

OutcomeFn = Callable[[Subset, int], Any]


class Job(NamedTuple):
    """A row to measure: which subset, which replicate of it, and with what."""

    row: int
    replicate: int
    weights: Floats
    seed: int


class Reply(NamedTuple):
    """What became of a row: values of targets, or why there are none, with what helps whoever looks into it."""

    targets: tuple[str, ...] = ()
    values: list[float] | None = None
    reason: str = ""
    report: str = ""
    seconds: float = 0.0
    printed: str = ""


class Result(NamedTuple):
    """A job and what became of it."""

    job: Job
    reply: Reply


def measure_row(outcome_fn: OutcomeFn, subset: Subset, seed: int) -> Reply:
    """Call the outcome function; whatever goes wrong in it is a reply too.

    Examples
    --------
    >>> measure_row(lambda subset, seed: {"size": subset.sum()}, Subset([1, 1], ["a", "b"]), 0).values
    [2.0]
    >>> measure_row(lambda subset, seed: 1 / 0, Subset([1, 1], ["a", "b"]), 0).reason
    'ZeroDivisionError: division by zero'
    """
    began = time.perf_counter()
    try:
        with seeded(seed):
            targets, values = flatten(outcome_fn(subset, seed))
    except (Exception, SystemExit) as error:
        return Reply(reason=brief(error), report=traceback.format_exc(), seconds=time.perf_counter() - began)
    return Reply(targets, values, seconds=time.perf_counter() - began)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and give them back as they were.

    An outcome function should draw from its ``seed``. One that forgets to would otherwise depend on which rows its
    process has measured before, and so on the number of workers.
    """
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch: Any = sys.modules.get("torch")
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


def brief(error: BaseException) -> str:
    r"""Error in one line.

    Examples
    --------
    >>> brief(ValueError("no\n  good"))
    'ValueError: no good'
    """
    text = " ".join(str(error).split())[:300]
    kind = "" if isinstance(error, InputError) else type(error).__name__
    return ": ".join(part for part in (kind, text) if part)
