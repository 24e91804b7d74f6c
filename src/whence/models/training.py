"""Training on subsets: many models at once, their parameters stacked, or one after the other with the same result.

The models of a stack are independent, so the gradient of the sum of their losses is the gradient of each: one backward
pass and one call of the optimizer serve all of them, and a GPU runs as many kernels as for a single model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from whence.arrays import Floats, Integers
from whence.models.examples import Inputs
from whence.models.graphs import Recorded
from whence.models.memory import Chunks, make_room, out_of_memory
from whence.models.optimizers import lengths, like
from whence.models.problem import Problem, State, as_problem
from whence.models.recipe import Recipe
from whence.models.sampling import Draws, draw_batches, example_shares, task_shares
from whence.models.stack import Stack, unstacked

Watch = Callable[[int, State, torch.optim.Optimizer], None]
Batch = tuple[Inputs, Tensor, Tensor | float]  # inputs, labels, and what the loss of each example counts


def train(
    stack: Stack,
    recipe: Recipe,
    state: State,
    subsets: Floats,
    seeds: Integers,
    steps: int | None = None,
    watch: Watch | None = None,
    draws: Draws = "own",
) -> State:
    """Stacked states after training each on its subset (m, K), with its seed; the empty one leaves it unchanged.

    The state is where training starts; it is overwritten. ``watch(step, state, optimizer)`` is called before each step
    and after the last. ``draws`` "own": each run draws its own examples. "shared": runs of one seed see the same
    examples as far as their subsets allow. "reweighted": they see exactly the same examples, weighted by how much of
    their task the subset has.
    """
    problem = as_problem(stack.problem)
    steps = recipe.steps if steps is None else steps
    learning = np.flatnonzero(subsets.sum(1) > 0)
    for rows in [learning] if stack.batched and len(learning) else learning[:, None]:
        place = torch.from_numpy(rows).to(problem.device)
        part = {name: value[place] for name, value in state.items()}
        batches = _batches(stack, recipe, subsets[rows], seeds[rows], steps, draws)
        each = [int(seed) for seed in seeds[rows]]
        if stack.batched:
            part = _descend(stack, recipe, part, batches, each, watch)
        else:
            with problem.own_randomness(each[0]):  # only here may the model draw any, as dropout does
                part = _descend(stack, recipe, unstacked(part)[0], batches, each, watch)
        for name, value in part.items():
            state[name][place] = value
    return state


def bytes_per_model(problem: Problem, recipe: Recipe) -> int:
    """Bytes that training takes for each model of a stack: weights, gradients, optimizer, examples, activations."""
    weights = sum(problem.start[name].nbytes for name in problem.trained)
    row = problem.bytes_per_row + sum(int(leaf[:1].nbytes) for leaf in tree_leaves(problem.tasks.inputs))
    # Weights where they start and where they are now, two copies of the gradient while it is added up, the optimizer.
    rows = math.ceil((recipe.batch_size or len(problem.tasks)) / recipe.accumulate)
    return (4 + recipe.update.copies) * weights + rows * row


def _descend(
    stack: Stack, recipe: Recipe, state: State, batches: Iterator[Batch], seeds: list[int], watch: Watch | None
) -> State:
    """Take the steps of the recipe, of stacked models or of a single one."""
    problem, stacked = stack.problem, stack.batched
    dims = (0, 0, 0) if recipe.batch_size else (0, None, None)
    half = torch.autocast(problem.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    losses = half(partial(stack.side_by_side, problem.losses, dims) if stacked else problem.losses)
    leaves = [state[name].requires_grad_() for name in problem.trained]
    buffers = [value for name, value in state.items() if name not in problem.trained]
    optimizer, normal = recipe.update.make(recipe, leaves), _normal(seeds, leaves, stacked=stacked)
    axis, chunks = int(stacked and recipe.batch_size is not None), Chunks(recipe.batch_size or len(problem.tasks))

    def loss(batch: Batch, rows: slice) -> Tensor:
        """What some rows of a batch add to the loss of a step."""
        weights = batch[2]
        some = tree_map(lambda leaf: leaf.narrow(axis, rows.start, rows.stop - rows.start), batch[:2])
        each: Tensor = losses(state, *some)
        return (each * (weights if isinstance(weights, float) else weights[..., rows])).sum()

    def gradients(batch: Batch) -> None:
        once: list[Tensor] = []  # statistics after the first pass of the step, which others leave as they are

        def backward() -> None:
            for part in _parts(batch, recipe, axis):
                _backward(partial(loss, part), part[1].shape[axis], leaves, chunks)
            for value, kept in zip(buffers, once, strict=False):
                value.copy_(kept)
            if recipe.update.passes > 1 and not once:
                once.extend(value.clone() for value in buffers)

        recipe.update.gradients(backward, leaves, stacked=stacked, normal=normal)
        if recipe.clip is not None:
            _clip([leaf.grad for leaf in leaves if leaf.grad is not None], recipe.clip, stacked=stacked)

    # A model that is not stacked may draw random numbers, and optimizers of several passes do.
    recorded = (stacked or stack.steady) and recipe.update.passes == 1
    take = Recorded(gradients, leaves) if recorded else gradients
    trimmed = getattr(problem.train_fn.module, "trimmed", None)
    step = -1
    for step, batch in enumerate(batches):
        if watch is not None:
            watch(step, state, optimizer)
        take((trimmed(batch[0]), *batch[1:]) if trimmed else batch)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch(step + 1, state, optimizer)
    return {name: value.detach() for name, value in state.items()}


def _parts(batch: Batch, recipe: Recipe, axis: int) -> Iterator[Batch]:
    """Yield the batch in as many parts as the recipe says; full batches are shared by all models."""
    if recipe.accumulate == 1:
        yield batch
        return
    inputs, labels, weights = batch
    n = labels.shape[axis]
    bounds = [round(part * n / recipe.accumulate) for part in range(recipe.accumulate + 1)]
    for start, stop in pairwise(bounds):
        if start < stop:
            rows = (slice(None),) * axis + (slice(start, stop),)
            some = tree_map(lambda leaf, rows=rows: leaf[rows], inputs)
            yield some, labels[rows], weights[..., start:stop] if isinstance(weights, Tensor) else weights


def _normal(seeds: list[int], leaves: list[Tensor], *, stacked: bool) -> Callable[[], list[Tensor]]:
    """Return a function that draws normal numbers shaped like the parameters, with one seed per model."""
    device = leaves[0].device
    generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    sizes = [leaf[0].numel() if stacked else leaf.numel() for leaf in leaves]

    def draw() -> list[Tensor]:
        rows = [torch.randn(sum(sizes), generator=one, device=device) for one in generators]
        parts = torch.split(torch.stack(rows) if stacked else rows[0], sizes, dim=-1)
        return [part.view_as(leaf).to(leaf) for part, leaf in zip(parts, leaves, strict=True)]

    return draw


def _backward(loss: Callable[[slice], Tensor], n: int, leaves: list[Tensor], chunks: Chunks) -> None:
    """Add the gradients of a loss that is a sum over n examples, halving the batch when memory runs out."""
    before = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    if chunks.size >= n:
        try:
            # backward gives gradients the memory layout of their parameters, which fused optimizers take for granted.
            torch.autograd.backward(loss(slice(0, n)), inputs=leaves)
            return
        except RuntimeError as error:
            if n == 1 or not out_of_memory(error):
                raise
            chunks.size = n // 2
        make_room()
    totals = [torch.zeros_like(leaf) for leaf in leaves]

    def some(rows: slice) -> None:
        for total, gradient in zip(
            totals, torch.autograd.grad(loss(rows), leaves, materialize_grads=True), strict=True
        ):
            total += gradient

    chunks.run(n, some)
    for leaf, total, grad in zip(leaves, totals, before, strict=True):
        leaf.grad = total if grad is None else total + grad


def _clip(gradients: list[Tensor], longest: float, *, stacked: bool) -> None:
    """Clip the gradients of each model to the given norm, as ``torch.nn.utils.clip_grad_norm_`` does."""
    factor = (longest / (lengths(gradients, stacked=stacked) + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(like(factor, gradient, stacked=stacked))


def _batches(
    stack: Stack, recipe: Recipe, subsets: Floats, seeds: Integers, steps: int, draws: Draws
) -> Iterator[Batch]:
    """Yield the batch of every step; without the leading dimension for a single model."""
    problem = stack.problem
    tasks, device = problem.tasks, problem.device
    if recipe.batch_size is None:
        yield from [_all_examples(stack, recipe, subsets)] * steps
        return
    if draws != "reweighted":
        for drawn in draw_batches(subsets, seeds, tasks.sizes, recipe, steps, shared=draws == "shared"):
            rows = torch.from_numpy(drawn if stack.batched else drawn[0]).to(device, non_blocking=True)
            yield *tasks.rows(rows), 1 / recipe.batch_size
        return
    everything = np.ones_like(subsets)
    wanted, given = (task_shares(some, tasks.sizes, recipe.weighting) for some in (subsets, everything))
    counts = torch.from_numpy(wanted / given / recipe.batch_size).to(problem.precision).to(device)  # by task, (m, K)
    for drawn in draw_batches(everything, seeds, tasks.sizes, recipe, steps):
        rows = torch.from_numpy(drawn).to(device, non_blocking=True)
        weights = counts.gather(1, tasks.owner[rows])
        one = 0 if not stack.batched else slice(None)
        yield *tasks.rows(rows[one]), weights[one]


def _all_examples(stack: Stack, recipe: Recipe, subsets: Floats) -> Batch:
    """All examples with their weight for each model; for a single model, the examples of its subset."""
    problem = stack.problem
    shares = torch.from_numpy(example_shares(subsets, problem.tasks.sizes, recipe.weighting))
    weights = shares.to(problem.precision).to(problem.device)
    if stack.batched:
        return problem.tasks.inputs, problem.tasks.labels, weights
    inside = weights[0].nonzero()[:, 0]
    return *problem.tasks.rows(inside), weights[0][inside]
