"""Processes that tests look at from outside, by what Linux says of them."""

from __future__ import annotations

import time
from pathlib import Path


def children_of(pid):
    """Numbers of the processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def born(pid):
    """When a process was started, which tells it from a later one with its number; None once it has ended."""
    try:
        state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else more[18]


def ended(workers):
    """Whether processes, each given by its number and when it was born, have all ended."""
    return all(since is None or born(pid) != since for pid, since in workers)


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)
