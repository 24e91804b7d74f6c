"""How many models or examples fit at once: an estimate beforehand, and half as many whenever it was too high."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from whence.outcomes.sizes import free_memory

Part = TypeVar("Part")
MOST_AT_ONCE = 256  # models; more gain little, and each batch of a measurement is lost as a whole
SHARE = {"cuda": 0.7, "cpu": 0.25}  # of what is free: a graphics card is ours, the memory of a machine is not


def free_bytes(device: torch.device) -> int:
    """Bytes that may be used on a device.

    >>> free_bytes(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(SHARE["cuda"] * (torch.cuda.mem_get_info(device)[0] + unused))
    return int(SHARE["cpu"] * min(free_memory(), sys.maxsize))


def bytes_for_backward(forward: Callable[[], Tensor]) -> int:
    """Bytes of what a forward pass keeps for its backward pass, each tensor once.

    >>> x = torch.zeros(10, requires_grad=True)
    >>> bytes_for_backward(lambda: x.exp().sum())
    40
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an operation that keeps its own output would else keep itself, for ever

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Bytes of a graphics card that some work is seen to take at most, beside what was there before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def bytes_per_row(forward: Callable[[int], Tensor]) -> int:
    """Bytes that a forward pass keeps for its backward pass for each of its n examples, given the pass as a function.

    >>> weight = torch.zeros(100, requires_grad=True)
    >>> bytes_per_row(lambda n: (weight * torch.ones(n, 100)).exp().sum())
    800
    """
    # What two more examples add: the weights are kept too, however many there are.
    return max(bytes_for_backward(lambda: forward(4)) - bytes_for_backward(lambda: forward(2)), 512) // 2


class Chunks:
    """Work on n things, some at a time; half as many from the moment that memory runs out.

    >>> Chunks(2).run(5, lambda rows: (rows.start, rows.stop))
    [(0, 2), (2, 4), (4, 5)]
    """

    def __init__(self, size: int) -> None:
        self.size = max(1, size)

    def run(self, n: int, work: Callable[[slice], Part]) -> list[Part]:
        """Results of the work on consecutive slices of 0 … n−1."""
        parts: list[Part] = []
        start = 0
        while start < n:
            stop = min(start + self.size, n)
            if found := _attempt(work, slice(start, stop)):
                parts += found
                start = stop
                continue
            self.size = max(1, (stop - start) // 2)
            make_room()
        return parts


def make_room() -> None:
    """Free the tensors of a failed attempt, which are in reference cycles with its traceback."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _attempt(work: Callable[[slice], Part], rows: slice) -> list[Part]:
    """The result alone in a list, which is empty if memory ran out and fewer rows may help."""
    try:
        return [work(rows)]
    except RuntimeError as error:
        if rows.stop - rows.start == 1 or not out_of_memory(error):
            raise
        return []


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory has run out."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)
