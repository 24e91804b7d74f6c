"""Refusing, before the work starts, what memory cannot hold or numbers cannot carry."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from whence.errors import InputError
from whence.outcomes.checks import Floats

LONGEST = 3600.0  # seconds that an answer may take
LARGEST = 1e150  # of an outcome: the square of a larger one is infinite


def size_in_words(n_bytes: float) -> str:
    """Text of a number of bytes.

    >>> size_in_words(3.2e9)
    '3.2 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def free_memory() -> float:
    """Bytes of main memory available now; infinite where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * float(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(AttributeError, OSError, ValueError):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return math.inf


def refuse_too_large(
    what: str,
    n: int,
    unit: str,
    needed: Callable[[int], float],
    *,
    remedy: str = "",
    free: float | None = None,
    of: str = "memory",
) -> None:
    """Raise where something of size n, in a unit, needs more bytes than are free; the sentence says what size would do.

    ``needed`` gives the bytes for a size; those that are ``free`` are by default of the memory of this machine.
    """
    free = free_memory() if free is None else free
    if needed(n) <= free:
        return
    fits = max(0, bisect_right(range(n), free, key=needed) - 1)
    raise InputError(
        f"{what} of {n:,} {unit} takes about {size_in_words(needed(n))} of {of}, and {size_in_words(free)} are free: "
        f"at most {fits:,} would do. {remedy}".rstrip()
    )


def refuse_too_long(what: str, seconds: float, remedy: str) -> None:
    """Raise where something would take more than `LONGEST` seconds of a processor, however roughly that is known."""
    if seconds > LONGEST:
        raise InputError(f"{what} would take about {seconds / 3600:.2g} hours. {remedy}")


def refuse_extreme(values: Floats, target_names: tuple[str, ...]) -> None:
    """Raise where outcomes are so large that their squares are infinite.

    >>> try:
    ...     refuse_extreme(np.array([[1e300]]), ("loss",))
    ... except InputError as error:
    ...     print(error)
    The outcome 'loss' reaches 1e+300, beyond what can be squared (1e+150): rescale it.
    """
    sizes = np.nanmax(np.abs(values), axis=0, initial=0.0)
    if (sizes > LARGEST).any():
        worst = int(np.argmax(sizes))
        raise InputError(
            f"The outcome '{target_names[worst]}' reaches {sizes[worst]:.3g}, beyond what can be squared "
            f"({LARGEST:g}): rescale it."
        )
