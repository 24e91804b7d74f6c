"""Batches of work, each saved when it is finished: small enough that a kill loses only seconds of work."""

from __future__ import annotations

import time
from collections.abc import Iterator

FIRST_BATCH = 8
LONGEST_BATCH = 10.0  # seconds, after which what is finished has to be on disk
TOGETHER = 0.7  # share of the time of single items below which they are better worked on together


def growing(n: int, most: int) -> Iterator[slice]:
    """Slices of n items, each at most ``most``, sized to take about ten seconds.

    The first two show how long an item takes. If many items take hardly longer than few, as on a GPU, the others have
    the largest size.

    >>> [part.stop - part.start for part in growing(100, 16)]
    [8, 16, 16, 16, 16, 16, 12]
    """
    sizes: list[int] = []
    times: list[float] = []
    size, at = min(most, FIRST_BATCH), 0
    while at < n:
        part, began = slice(at, min(at + size, n)), time.perf_counter()
        yield part
        at = part.stop
        sizes, times = [*sizes, part.stop - part.start], [*times, time.perf_counter() - began]
        if len(times) == 1:
            size = min(most, 2 * FIRST_BATCH)
        elif times[1] < TOGETHER * times[0] * sizes[1] / sizes[0]:
            size = most
        else:
            size = min(most, max(1, int(LONGEST_BATCH * sizes[-1] / max(times[-1], 1e-9))))
