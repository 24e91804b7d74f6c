"""Gradients recorded as CUDA graphs, for GPUs that would otherwise wait for kernels to be launched.

Training adapters of a language model takes thousands of small kernels per step, which take far longer to launch than to
run. The first steps of a shape run normally; then one is recorded, and later steps replay it with other examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from whence.models.memory import make_room

Batch = TypeVar("Batch")
Shape = tuple[object, ...]  # of the leaves of a batch
FIRST = 3  # steps of a shape that run normally, to let libraries initialise before one is recorded


class Recorded(Generic[Batch]):
    """Work that puts gradients into ``.grad`` of the leaves, recorded for each shape of its batches.

    If a batch cannot be recorded (the model inspects its values, or memory runs out), nothing is recorded from then on.

    Parameters
    ----------
    work : callable
        ``work(batch)``, the same kernels for any batch of the same shapes; the gradients of the leaves are None before.
    leaves : list of Tensor
        Parameters, which stay where they are in memory.
    """

    def __init__(self, work: Callable[[Batch], None], leaves: list[Tensor]) -> None:
        self.work, self.leaves = work, leaves
        self.possible = leaves[0].device.type == "cuda"
        self.seen: Counter[Shape] = Counter()
        self.graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Batch, list[Tensor | None]]] = {}

    def __call__(self, batch: Batch) -> None:
        """Put the gradients of a batch into ``.grad`` of the leaves."""
        shape = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(batch))
        self.seen[shape] += 1
        if self.possible and self.seen[shape] > FIRST and shape not in self.graphs:
            self._record(shape, batch)
        if shape not in self.graphs:
            self.work(batch)
            return
        graph, place, gradients = self.graphs[shape]
        for to, given in zip(tree_leaves(place), tree_leaves(batch), strict=True):
            if isinstance(to, Tensor):
                to.copy_(given)
        graph.replay()
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient

    def _record(self, shape: Shape, batch: Batch) -> None:
        place = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other, *_ in self.graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool=pool):
                self.work(place)
            self.graphs[shape] = graph, place, [leaf.grad for leaf in self.leaves]
        except RuntimeError:
            self.possible = False
            self.graphs.clear()
            make_room()
        for leaf in self.leaves:
            leaf.grad = None
