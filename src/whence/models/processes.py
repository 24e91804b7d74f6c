"""Rows shared by the processes of ``torchrun``: each works on some of them, and all have every one afterwards."""

from __future__ import annotations

import torch
from torch import Tensor


def n_processes() -> int:
    """Number of processes that share work: 1 unless ``torch.distributed`` was initialised.

    Examples
    --------
    >>> n_processes()
    1
    """
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def own_rows(n: int) -> slice:
    """Which of n rows are this process's.

    Examples
    --------
    >>> own_rows(5)
    slice(0, 5, None)
    """
    return _share(n, torch.distributed.get_rank() if n_processes() > 1 else 0)


def gather(rows: Tensor) -> Tensor:
    """Fill in the rows (n, ...) of the other processes, in place."""
    for process in range(n_processes() if n_processes() > 1 else 0):
        part = rows[_share(len(rows), process)]
        if len(part):
            torch.distributed.broadcast(part, src=process)
    return rows


def _share(n: int, process: int) -> slice:
    return slice(n * process // n_processes(), n * (process + 1) // n_processes())
