"""Gradients of losses by group: of every task, and of every target or query, at a point in parameter space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from whence.errors import InputError
from whence.estimators.points import Point
from whence.estimators.problem import Problem
from whence.examples import Examples, Inputs
from whence.functional import Params
from whence.gradients.projections import flatten, n_params
from whence.losses import Loss
from whence.progress import track

ROWS = 512  # examples of a group per pass
AT_ONCE = 4096  # examples of all groups per pass
NUMBERS = 2**26  # in the gradients that are made side by side


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
    members = torch.split(torch.argsort(owner, stable=True), sizes.tolist())

    def summed(at: Params, inputs: Inputs, labels: Tensor, counted: Tensor) -> Tensor:
        return (loss(output_fn(at, inputs), labels) * counted).sum()

    side_by_side = torch.func.vmap(torch.func.grad(summed), in_dims=(None, 0, 0, 0))
    longest = int(sizes.max())
    portion = max(1, min(NUMBERS // total.shape[1], AT_ONCE // longest))
    with differentiable():
        for start in track(range(0, len(sizes), portion), f"gradients of {what}"):
            groups = members[start : start + portion]
            padded = pad_sequence(list(groups), batch_first=True)
            width = padded.shape[1]
            real = torch.arange(width, device=owner.device) < sizes[start : start + portion, None]
            # Short groups are filled up with their first example, which does not count again.
            filled = torch.where(real, padded, padded[:, :1])
            for columns in torch.split(torch.arange(width, device=owner.device), ROWS):
                inputs, labels = examples.rows(filled[:, columns])
                found = side_by_side(params, inputs, labels, real[:, columns].to(total))
                total[start : start + portion] += flatten(found)
    if not bool(total.isfinite().all()):
        bad = int((~total.isfinite()).any(dim=1).nonzero()[0, 0])
        name = examples.names[int(examples.owner[(owner == bad).nonzero()[0, 0]])]
        raise InputError(
            f"The gradient for the {what} {name!r} is not finite: check its examples, and the model there."
        )
    return total.div_(sizes[:, None])
