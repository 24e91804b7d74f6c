"""Measuring in this process: rows one by one, or many together where the outcome function takes batches."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from whence.measuring.rows import Job, OutcomeFn, Reply, Result, brief, measure_row, seeded
from whence.measuring.values import flatten_batch
from whence.outcomes.subset import Subset

BATCH_SIZE = 64


def one_by_one(outcome_fn: OutcomeFn, task_names: tuple[str, ...], jobs: Iterable[Job]) -> Iterator[list[Result]]:
    """Results of the jobs, each as it comes."""
    for job in jobs:
        yield [Result(job, measure_row(outcome_fn, Subset(job.weights, task_names), job.seed))]


def in_batches(outcome_fn: Any, jobs: Iterable[Job]) -> Iterator[list[Result]]:
    """Results of the jobs, a batch at a time.

    Parameters
    ----------
    outcome_fn : object with a method ``batch(subsets, seeds)``
        From subsets (m, K) and seeds (m,) to ``{metric: (m,) or (m, T)}``; its ``batch_size`` is the largest m.
    jobs : iterable of Job

    Examples
    --------
    >>> class Sizes:
    ...     def batch(self, subsets, seeds):
    ...         return {"size": subsets.sum(axis=1)}
    >>> jobs = [Job(0, 0, np.ones(2), 5), Job(1, 0, np.zeros(2), 6)]
    >>> [[result.reply.values for result in batch] for batch in in_batches(Sizes(), jobs)]
    [[[2.0], [0.0]]]
    """
    size = int(getattr(outcome_fn, "batch_size", BATCH_SIZE))
    remaining = iter(jobs)
    while chunk := list(islice(remaining, size)):
        yield from _batch(outcome_fn, chunk)


def _batch(outcome_fn: Any, chunk: list[Job]) -> Iterator[list[Result]]:
    """Results of one batch. One that raises is halved, so that a bad row, or too little memory, costs no other row."""
    began = time.perf_counter()
    subsets, seeds = np.array([job.weights for job in chunk]), np.array([job.seed for job in chunk], dtype=np.int64)
    try:
        with seeded(int(seeds[0])):
            targets, values = flatten_batch(outcome_fn.batch(subsets, seeds), len(chunk))
    except Exception as error:
        if len(chunk) == 1:
            seconds = time.perf_counter() - began
            yield [Result(chunk[0], Reply(reason=brief(error), report=traceback.format_exc(), seconds=seconds))]
        else:
            half = len(chunk) // 2
            yield from _batch(outcome_fn, chunk[:half])
            yield from _batch(outcome_fn, chunk[half:])
        return
    share = (time.perf_counter() - began) / len(chunk)
    yield [Result(job, Reply(targets, row, seconds=share)) for job, row in zip(chunk, values, strict=True)]
