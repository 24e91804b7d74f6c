"""Measuring in this process: rows one by one, or in batches if the outcome function takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from whence.errors import brief
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


FIRST_BATCH = 8
LONGEST_BATCH = 10.0  # seconds, after which what is finished has to be on disk
FASTER, MUCH_FASTER = 0.9, 0.7  # shares of the time of an item in the batch before, below which batches grow


def growing(n: int, most: int) -> Iterator[slice]:
    """Slices of n items, each at most ``most``, as large as gains time, or else sized to take about ten seconds.

    If an item of a batch takes less time than one of the smaller batch before, as on a card that many keep busy, the
    next batch is twice as large, or has the largest size if it takes far less. From then on no batch is smaller than
    the largest that gained.

    >>> [part.stop - part.start for part in growing(100, 16)]
    [8, 16, 16, 16, 16, 16, 12]
    """
    size, at, gained, before = min(most, FIRST_BATCH), 0, 1, float("nan")
    while at < n:
        part, began = slice(at, min(at + size, n)), time.perf_counter()
        yield part
        at, count = part.stop, part.stop - part.start
        each = max(time.perf_counter() - began, 1e-9) / count
        if each < FASTER * before:
            gained, size = count, most if each < MUCH_FASTER * before else 2 * count
        else:
            size = 2 * count if at == count else max(gained, int(LONGEST_BATCH / each))
        size, before = max(1, min(size, most)), each
