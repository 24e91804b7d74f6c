"""Gradients of losses by group: of every task, and of every target or query, at a point in parameter space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from whence.errors import InputError
from whence.estimators.points import Point
from whence.estimators.problem import Problem
from whence.examples import Examples, Inputs
from whence.functional import Params
from whence.gradients.projections import flatten, n_params
from whence.losses import Loss
from whence.progress import track

ROWS = 512  # examples per pass
FEW = 4  # examples per group up to which their gradients are made one by one, side by side
NUMBERS = 2**26  # in the gradients that are held side by side


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention that can be differentiated twice and forward, and no graph of torch's own."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


def task_gradients(problem: Problem, point: Point) -> Tensor:
    """Gradient of the mean loss of each task, (K, d)."""
    return group_gradients(point, problem.loss, problem.tasks, problem.tasks.owner, "tasks")


def target_gradients(problem: Problem, point: Point) -> Tensor:
    """Gradient of each target's mean loss, or of each query's, (T, d)."""
    targets = problem.targets
    owner = torch.arange(len(targets), device=problem.device) if problem.per_query else targets.owner
    return group_gradients(point, problem.loss, targets, owner, "target")


def group_gradients(point: Point, loss: Loss, examples: Examples, owner: Tensor, what: str) -> Tensor:
    """Gradient of the mean loss of each group, (G, d), over the parameters one after another.

    Parameters
    ----------
    point : (output_fn, params)
    loss : Loss
    examples : Examples
    owner : tensor of shape (n,)
        The group of each example, from 0; every group has some.
    what : str
        How to call the examples in messages.
    """
    output_fn, params = point
    sizes = torch.bincount(owner)
    total = next(iter(params.values())).new_zeros(len(sizes), n_params(params))

    def summed(at: Params, inputs: Inputs, labels: Tensor) -> Tensor:
        return loss(output_fn(at, inputs), labels).sum()

    def single(at: Params, x: Inputs, y: Tensor) -> Tensor:
        return summed(at, tree_map(lambda leaf: leaf[None], x), y[None])

    label = f"gradients of {what}"
    with differentiable():
        if len(owner) <= FEW * len(sizes):
            gradient = torch.func.vmap(torch.func.grad(single), in_dims=(None, 0, 0))
            portion = max(1, min(ROWS, NUMBERS // total.shape[1]))
            for rows in track(list(examples.blocks(portion)), label):
                total.index_add_(0, owner[rows], flatten(gradient(params, *examples.rows(rows))))
        else:
            for group in track(range(len(sizes)), label):
                for index in torch.split((owner == group).nonzero()[:, 0], ROWS):
                    found = torch.func.grad(summed)(params, *examples.rows(index))
                    total[group] += flatten(found, 0)
    if not bool(total.isfinite().all()):
        bad = int((~total.isfinite()).any(dim=1).nonzero()[0, 0])
        name = examples.names[int(examples.owner[(owner == bad).nonzero()[0, 0]])]
        raise InputError(
            f"The gradient for the {what} {name!r} is not finite: check its examples, and the model there."
        )
    return total.div_(sizes[:, None])
