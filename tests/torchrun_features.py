"""Features of a small problem, saved by every process: run by torchrun in test_processes.py."""

import sys

import numpy as np
import torch
from torch import nn

from whence import Features, GradEx, Problem
from whence.gradients import linearize as module


def problem() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    tasks = {name: (torch.randn(7, 5), torch.randint(3, (7,))) for name in "abc"}
    return Problem(model, tasks, (torch.randn(5, 5), torch.randint(3, (5,))), per_query=True)


SUBSETS = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]])


def estimates(store: str | None = None) -> np.ndarray:
    return GradEx(problem(), rank=12, features=Features(store=store)).batch(SUBSETS)["loss"]


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank, seen = torch.distributed.get_rank(), []
    whole = module.block_fn

    def counting(*args):
        work = whole(*args)

        def count(inputs, labels):
            seen.append(len(labels))
            return work(inputs, labels)

        return count

    module.block_fn = counting

    np.savez(f"{sys.argv[1]}/rank{rank}.npz", values=estimates(), rows=sum(seen))
    if rank == 0:
        try:
            estimates(store=f"{sys.argv[1]}/store")
        except Exception as error:
            print(error)
    torch.distributed.destroy_process_group()
