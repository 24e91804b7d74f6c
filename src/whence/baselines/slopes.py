"""Gradients of losses by group: of every task, and of every target or query, at a point in parameter space.

A gradient is as long as the model is large, so that those of many queries are not held: they are made a few at a time,
and of each lot only what is asked for is kept, such as its products with the gradients of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whence.errors import InputError
from whence.gradients.projections import flatten, n_params, split
from whence.models.examples import Examples, Inputs
from whence.models.functional import Params, plain_attention
from whence.models.losses import Loss
from whence.models.points import Point
from whence.models.problem import Problem
from whence.progress import track

ROWS = 512  # examples of a group per pass
AT_ONCE = 4096  # examples of all groups per pass
NUMBERS = 2**24  # in the gradients that are made side by side
Reading = Callable[[Params], Tensor]  # gradients of b groups, tensors (b, ...) → what to keep of them, (b, ...)


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention that can be differentiated twice and forward, and no graph of torch's own."""
    with torch.no_grad(), plain_attention():
        yield


def task_gradients(problem: Problem, point: Point, read: Reading = flatten) -> Tensor:
    """Gradient of the mean loss of each task, (K, d)."""
    return group_gradients(point, problem.loss, problem.tasks, problem.tasks.owner, "tasks", read)


def n_targets(problem: Problem) -> int:
    """Number of targets, or of queries, T."""
    return len(problem.targets if problem.per_query else problem.targets.names)


def target_gradients(problem: Problem, point: Point, read: Reading = flatten) -> Tensor:
    """Gradient of each target's mean loss, or of each query's, (T, d)."""
    targets = problem.targets
    owner = torch.arange(len(targets), device=problem.device) if problem.per_query else targets.owner
    return group_gradients(point, problem.loss, targets, owner, "target", read)


def target_products(problem: Problem, point: Point, vectors: Tensor) -> Tensor:
    """Products of vectors (r, d) with the gradient of each target, (r, T), where that is never held."""
    parts = {name: part.flatten(1) for name, part in split(vectors, point[1]).items()}

    def read(gradients: Params) -> Tensor:
        return torch.stack([gradients[name].flatten(1) @ part.T for name, part in parts.items()]).sum(0)

    return target_gradients(problem, point, read).T


def group_gradients(
    point: Point, loss: Loss, examples: Examples, owner: Tensor, what: str, read: Reading = flatten
) -> Tensor:
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
    read : callable
        What to keep of the gradients instead: a function from those of some groups, by parameter, to a row for each.
    """
    output_fn, params = point
    sizes = torch.bincount(owner)
    members = torch.split(torch.argsort(owner, stable=True), sizes.tolist())

    def mean(at: Params, inputs: Inputs, labels: Tensor, weights: Tensor) -> Tensor:
        return (loss(output_fn(at, inputs), labels) * weights).sum()

    side_by_side = torch.func.vmap(torch.func.grad(mean), in_dims=(None, 0, 0, 0))
    portion = max(1, min(NUMBERS // n_params(params), AT_ONCE // int(sizes.max())))
    like, parts = next(iter(params.values())), []
    with differentiable():
        for start in track(range(0, len(sizes), portion), f"gradients of {what}"):
            padded = pad_sequence(list(members[start : start + portion]), batch_first=True)
            counts = sizes[start : start + portion, None]
            real = torch.arange(padded.shape[1], device=owner.device) < counts
            # Short groups are filled up with their first example, which does not count again.
            filled, weights = torch.where(real, padded, padded[:, :1]), real.to(like) / counts
            found: Params = {}
            for columns in torch.split(torch.arange(padded.shape[1], device=owner.device), ROWS):
                inputs, labels = examples.rows(filled[:, columns])
                some = side_by_side(params, inputs, labels, weights[:, columns])
                found = {name: found[name] + part for name, part in some.items()} if found else some
            _check(found, start, examples, owner, what)
            parts.append(read(found))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check(gradients: Params, start: int, examples: Examples, owner: Tensor, what: str) -> None:
    """Refuse gradients that are no numbers; their sums tell, at the price of reading them once."""
    finite = torch.stack([part.flatten(1).sum(1) for part in gradients.values()]).isfinite().all(0)
    if not bool(finite.all()):
        bad = start + int((~finite).nonzero()[0, 0])
        name = examples.names[int(examples.owner[(owner == bad).nonzero()[0, 0]])]
        raise InputError(
            f"The gradient for the {what} {name!r} is not finite: check its examples, and the model there."
        )
