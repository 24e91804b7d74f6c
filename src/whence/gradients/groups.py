"""Gradients of losses by group: of every task, and of every target or query, at a point in parameter space.

A gradient is as large as the model, so the gradients of many queries do not fit in memory. They are computed a few at a
time, and only what is needed is kept, such as their products with the gradients of the tasks. Small groups are
differentiated side by side; a group that fills a batch needs just a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whence.errors import InputError
from whence.gradients.projections import flatten, n_params, split
from whence.models.derivatives import mapped
from whence.models.examples import Examples, Inputs
from whence.models.functional import Params, plain_attention
from whence.models.graphs import Recorded
from whence.models.memory import free_bytes
from whence.models.points import Point
from whence.models.problem import Problem
from whence.progress import track

ROWS = 512  # examples of a group per pass, at most
AT_ONCE = 4096  # examples of all groups per pass
NUMBERS = 2**25  # in the gradients that are made side by side; on a card, which is idle in small passes, more
ON_A_CARD = 8
Reading = Callable[[Params], Tensor]  # gradients of b groups, tensors (b, ...) → what to keep of them, (b, ...)


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention that can be differentiated twice and forward, and no graph of torch's own."""
    with torch.no_grad(), plain_attention():
        yield


def task_gradients(
    problem: Problem, point: Point, read: Reading = flatten, *, side_by_side: bool = True, stacks: Stacks | None = None
) -> Tensor:
    """Gradient of the mean loss of each task, (K, d).

    Without ``side_by_side``, for models that vmap cannot run. The same ``stacks`` given at several points make it
    faster at the later ones, for modules that take stacked parameters.
    """
    return _gradients(
        problem, point, problem.tasks, problem.tasks.owner, "tasks", read, side_by_side=side_by_side, stacks=stacks
    )


def n_targets(problem: Problem) -> int:
    """Number of targets, or of queries, T."""
    return len(problem.targets if problem.per_query else problem.targets.names)


def target_gradients(problem: Problem, point: Point, read: Reading = flatten) -> Tensor:
    """Gradient of each target's mean loss, or of each query's, (T, d)."""
    return _gradients(problem, point, problem.targets, problem.query_owner, "target", read)


def target_products(problem: Problem, point: Point, vectors: Tensor) -> Tensor:
    """Products of vectors (r, d) with the gradient of each target, (r, T), where that is never held."""
    parts = {name: part.flatten(1) for name, part in split(vectors, point[1]).items()}

    def read(gradients: Params) -> Tensor:
        return torch.stack([gradients[name].flatten(1) @ part.T for name, part in parts.items()]).sum(0)

    return target_gradients(problem, point, read).T


def _gradients(
    problem: Problem, point: Point, examples: Examples, owner: Tensor, what: str, read: Reading, *,
    side_by_side: bool = True, stacks: Stacks | None = None,
) -> Tensor:  # fmt: skip
    """What ``read`` keeps of the gradient of the mean loss of each group, by the group of each example (n,)."""
    sizes = torch.bincount(owner)
    members = torch.split(torch.argsort(owner, stable=True), sizes.tolist())
    takes_stacks = getattr(getattr(point[0], "module", None), "takes_stacks", False)
    stacks = Stacks() if stacks is None else stacks
    fits = max(1, free_bytes(problem.device) // (2 * problem.bytes_per_row))
    many = side_by_side or takes_stacks
    numbers = NUMBERS * (ON_A_CARD if problem.device.type == "cuda" else 1)
    portion = max(1, min(numbers // n_params(point[1]), AT_ONCE // int(sizes.max()), fits)) if many else 1
    parts = []
    for start in track(range(0, len(sizes), portion), f"gradients of {what}"):
        some = list(members[start : start + portion])
        rows = max(1, min(ROWS, fits // len(some)))
        if len(some) == 1:
            found = _alone(problem, point, examples, some[0], rows)
        else:
            found = (stacks.gradients if takes_stacks else _together)(problem, point, examples, some, rows)
        _check(found, start, examples, owner, what)
        parts.append(read(found))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _alone(problem: Problem, point: Point, examples: Examples, members: Tensor, rows: int) -> Params:
    """Gradient of the mean loss of one group, tensors (1, ...)."""
    output_fn, params = point
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    total = {name: torch.zeros_like(value, dtype=_wide(value)) for name, value in params.items()}
    for index in torch.split(members, rows):
        inputs, labels = examples.rows(index)
        with torch.enable_grad():
            loss = problem.loss(output_fn(leaves, inputs), labels).sum() / len(members)
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for sum_, gradient in zip(total.values(), found, strict=True):
            sum_ += gradient
    return {name: value[None] for name, value in total.items()}


def _together(problem: Problem, point: Point, examples: Examples, members: list[Tensor], rows: int) -> Params:
    """Gradients of the mean losses of b groups, tensors (b, ...)."""
    output_fn, params = point

    def mean(at: Params, inputs: Inputs, labels: Tensor, weights: Tensor) -> Tensor:
        return (problem.loss(output_fn(at, inputs), labels) * weights).sum()

    filled, weights = _filled(members, next(iter(params.values())))
    found = {name: torch.zeros(len(members), *p.shape, dtype=_wide(p), device=p.device) for name, p in params.items()}
    with differentiable():
        for columns in torch.split(torch.arange(filled.shape[1], device=filled.device), rows):
            inputs, labels = examples.rows(filled[:, columns])
            gradients = mapped(
                torch.func.grad(mean), params, inputs, labels, weights[:, columns], in_dims=(None, 0, 0, 0)
            )
            for name, part in gradients.items():
                found[name] += part
    return found


class Stacks:
    """Gradients by group of a module that takes stacked parameters: of equal models, each with the loss of its group.

    Passes are recorded on a card, as `whence.models.graphs` does, so that later points take a fraction of the time.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Params, Recorded[tuple[Inputs, Tensor, Tensor]]]] = {}

    def gradients(self, problem: Problem, point: Point, examples: Examples, members: list[Tensor], rows: int) -> Params:
        """Gradients of the mean losses of b groups, tensors (b, ...)."""
        output_fn, params = point
        leaves, take = self._stack(problem, point, len(members))
        for name, leaf in leaves.items():
            leaf.detach().copy_(params[name].expand_as(leaf))
        found = {name: torch.zeros_like(leaf, dtype=_wide(leaf)) for name, leaf in leaves.items()}
        filled, weights = _filled(members, next(iter(params.values())))
        trim = getattr(output_fn.module, "trimmed", lambda inputs: inputs)
        for columns in torch.split(torch.arange(filled.shape[1], device=filled.device), rows):
            inputs, labels = examples.rows(filled[:, columns].flatten())
            take((trim(inputs), labels, weights[:, columns].flatten()))
            for name, leaf in leaves.items():
                found[name] += 0 if leaf.grad is None else leaf.grad
                leaf.grad = None
        return found

    def _stack(self, problem: Problem, point: Point, m: int) -> tuple[Params, Recorded[tuple[Inputs, Tensor, Tensor]]]:
        """Parameters of m models, and what puts the gradients of a batch into them."""
        if m not in self.known:
            output_fn, params = point
            leaves = {name: value.new_empty(m, *value.shape).requires_grad_() for name, value in params.items()}

            def backward(batch: tuple[Inputs, Tensor, Tensor]) -> None:
                inputs, labels, weights = batch
                with torch.enable_grad():
                    loss = (problem.loss(output_fn(leaves, inputs), labels) * weights).sum()
                torch.autograd.backward(loss, inputs=list(leaves.values()))

            self.known[m] = leaves, Recorded(backward, list(leaves.values()))
        return self.known[m]


def _filled(members: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of b groups, (b, n), and what each counts: short ones are filled up with their first, which counts 0."""
    counts = torch.tensor([[len(group)] for group in members], device=like.device)
    padded = pad_sequence(members, batch_first=True)
    real = torch.arange(padded.shape[1], device=like.device) < counts
    return torch.where(real, padded, padded[:, :1]), real.to(like) / counts


def _wide(value: Tensor) -> torch.dtype:
    """The type that gradients are added up in."""
    return torch.promote_types(value.dtype, torch.float32)


def _check(gradients: Params, start: int, examples: Examples, owner: Tensor, what: str) -> None:
    """Refuse gradients that are no numbers; their sums tell, at the price of reading them once."""
    finite = torch.stack([part.flatten(1).sum(1) for part in gradients.values()]).isfinite().all(0)
    if not bool(finite.all()):
        bad = start + int((~finite).nonzero()[0, 0])
        name = examples.names[int(examples.owner[(owner == bad).nonzero()[0, 0]])]
        raise InputError(
            f"The gradient for the {what} {name!r} is not finite: check its examples, and the model there."
        )
