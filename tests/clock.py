"""Time that passes as a test says, and not as the machine is busy."""

from __future__ import annotations

import time
from types import SimpleNamespace

from whence.measuring import pool


def overdue_once(monkeypatch, condition):
    """Set the clock of workers forward by an hour as soon as a condition holds, so that any row has taken too long."""
    ahead = []

    def monotonic():
        if not ahead and condition():
            ahead.append(3600.0)
        return time.monotonic() + sum(ahead)

    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=monotonic))


def counted_seconds(work):
    """What some work with torch takes on an imagined machine: 10 µs for each operation and 1 ns for each number."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    spent = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            numbers = sum(leaf.numel() for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor))
            spent.append(1e-5 + 1e-9 * numbers)
            return result

    with Counting():
        work()
    return sum(spent)
