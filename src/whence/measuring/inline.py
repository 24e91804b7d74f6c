"""Measuring in this process: rows one by one, or in batches if the outcome function takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from whence.errors import brief
from whence.measuring.batches import growing
from whence.measuring.engine import Engine, Workers
from whence.measuring.outcome_fn import OutcomeFn
from whence.measuring.rows import Job, Reply, Result, as_queue, in_this_process, measure_row, report, seeded
from whence.measuring.values import flatten_batch, texts_of
from whence.outcomes.subset import Subset


class InlineEngine(Engine):
    """Engine that is this process."""

    def __init__(self, outcome_fn: OutcomeFn, task_names: tuple[str, ...], workers: Workers | None = None) -> None:
        self._outcome_fn, self._task_names = outcome_fn, task_names

    def results(self, todo: Sequence[Job]) -> Iterator[list[Result]]:
        waiting = as_queue(todo)
        while waiting and self._outcome_fn.batch is not None:
            jobs = [waiting.popleft() for _ in range(len(waiting))]
            for part in growing(len(jobs), int(self._outcome_fn.batch_size)):
                yield from _batch(self._outcome_fn, jobs[part])
        while waiting:
            job = waiting.popleft()
            yield [Result(job, measure_row(self._outcome_fn, Subset(job.weights, self._task_names), job.seed))]


def _batch(outcome_fn: OutcomeFn, chunk: Sequence[Job]) -> Iterator[list[Result]]:
    """Results of one batch. If it raises, it is halved: a bad row, or too little memory, then fails no other row."""
    assert outcome_fn.batch is not None
    began = time.perf_counter()
    subsets, seeds = np.array([job.weights for job in chunk]), np.array([job.seed for job in chunk], dtype=np.int64)
    try:
        with in_this_process(), seeded(int(seeds[0])):
            returned = outcome_fn.batch(subsets, seeds)
            targets, values = flatten_batch(returned, len(chunk))
    except Exception as error:
        if len(chunk) == 1:
            seconds = time.perf_counter() - began
            yield [Result(chunk[0], Reply(reason=brief(error), report=report(), seconds=seconds))]
        else:
            half = len(chunk) // 2
            yield from _batch(outcome_fn, chunk[:half])
            yield from _batch(outcome_fn, chunk[half:])
        return
    share = (time.perf_counter() - began) / len(chunk)
    aside = texts_of(returned)
    yield [Result(job, Reply(targets, row, seconds=share, aside=aside)) for job, row in zip(chunk, values, strict=True)]
