"""One run on all tasks, and where each task pulled along the way: a subspace that training really moves in.

Random directions have little to do with where training goes, and a linear model at W₀ knows nothing of what the tasks
teach together. A single joint run gives both: points on the way that are near to where training on any large subset
ends, and at these points the gradient of each task, as it is and as the optimizer would scale it. `GradEx.along`
linearises at such points, within the span of these gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from whence.gradients.projections import Subspace, flatten, split
from whence.models.functional import Params
from whence.models.losses import Loss
from whence.models.problem import Problem, State
from whence.models.recipe import Recipe
from whence.models.training import train
from whence.progress import track

_NEGLIGIBLE = 1e-4  # of the strongest direction: weaker ones are rounding


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Points of a joint run, and directions that the tasks pulled in.

    Attributes
    ----------
    steps : tuple of int
        When each point was passed.
    points : tuple of State
        The model there; the first is W₀, the last the end of the run.
    directions : Subspace
        Orthonormal: span of the gradients of the tasks at the points, and of the way from W₀ to each.
    loss : float
        Of all tasks at the end of the run.
    """

    steps: tuple[int, ...]
    points: tuple[State, ...]
    directions: Subspace
    loss: float


def trace(problem: Problem, recipe: Recipe, *, n_points: int, seed: int = 0) -> Trajectory:
    """Train on all tasks once, and note where each task pulls at equally spaced points.

    Parameters
    ----------
    problem : Problem
    recipe : Recipe
        That of the runs to be estimated.
    n_points : int
        After W₀. Each costs a gradient of every example.
    seed : int
        What the examples of the run are drawn with.
    """
    wanted = sorted({round(step) for step in np.linspace(0, recipe.steps, n_points + 1)})
    points: list[State] = []
    pulls: list[Tensor] = []

    def watch(step: int, state: State, optimizer: Optimizer) -> None:
        if step not in wanted:
            return
        # Models side by side are stacked; there is only one.
        now = {name: value.detach()[0] if problem.batched else value.detach() for name, value in state.items()}
        points.append({name: value.clone() for name, value in now.items()})
        gradients = task_gradients(problem, now)
        pulls.append(gradients)
        if isinstance(optimizer, AdamW) and step:
            pulls.append(gradients / _scale(optimizer, problem))

    start = {name: value[None].clone() for name, value in problem.start.items()}
    n_tasks = len(problem.task_names)
    end = train(problem, recipe, start, np.ones((1, n_tasks)), np.array([seed]), watch=watch)
    origin = _flat(points[0], problem)
    pulls.append(torch.stack([_flat(point, problem) - origin for point in points[1:]]))
    like = {name: problem.start[name] for name in problem.trained}
    directions = Subspace(split(orthonormal(torch.cat(pulls)), like))
    final = {name: value[0] for name, value in end.items()}
    return Trajectory(tuple(wanted), tuple(points), directions, mean_loss(problem, final))


def task_gradients(problem: Problem, state: State) -> Tensor:
    """Gradient of the mean loss of each task, (K, d)."""
    fixed = {name: value for name, value in state.items() if name not in problem.trained}
    stops = np.cumsum(problem.tasks.sizes)
    found = []
    for start, stop in track(list(zip(stops - problem.tasks.sizes, stops, strict=True)), "gradients of the tasks"):
        total: Params = {name: torch.zeros_like(state[name]) for name in problem.trained}
        for first in range(start, stop, _EXAMPLES_AT_ONCE):
            inputs, labels = problem.tasks.rows(slice(first, min(first + _EXAMPLES_AT_ONCE, stop)))

            def loss(params: Params, inputs: object = inputs, labels: Tensor = labels) -> Tensor:
                return problem.loss(problem.output_fn({**fixed, **params}, inputs), labels).sum()

            part = torch.func.grad(loss)({name: state[name] for name in problem.trained})
            total = {name: value + part[name] for name, value in total.items()}
        found.append(flatten({name: value[None] for name, value in total.items()})[0] / (stop - start))
    return torch.stack(found)


_EXAMPLES_AT_ONCE = 1024


def orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal basis of the span of rows, strongest first, after giving all the same length: (r, d) → (r', d)."""
    lengths = rows.norm(dim=1)
    rows = rows[lengths > 0] / lengths[lengths > 0, None]
    gram = sum(part.double() @ part.double().T for part in torch.split(rows, 2**20, dim=1))
    assert isinstance(gram, Tensor)
    strength, vectors = torch.linalg.eigh(gram)
    keep = strength > _NEGLIGIBLE**2 * strength[-1]
    mix = vectors[:, keep] / strength[keep].sqrt()
    basis: Tensor = mix.flip(1).T.to(rows) @ rows
    return basis


@torch.no_grad()
def mean_loss(problem: Problem, state: State) -> float:
    """Mean loss of all examples of the tasks."""
    loss: Loss = problem.loss
    total = 0.0
    for rows in problem.tasks.blocks(_EXAMPLES_AT_ONCE):
        inputs, labels = problem.tasks.rows(rows)
        total += float(loss(problem.output_fn(state, inputs), labels).double().sum())
    return total / len(problem.tasks)


def _flat(state: State, problem: Problem) -> Tensor:
    return flatten({name: state[name][None] for name in problem.trained})[0]


def _scale(optimizer: AdamW, problem: Problem) -> Tensor:
    """Return what AdamW divides a gradient by, (d,)."""
    group = optimizer.param_groups[0]
    parts = []
    for leaf in group["params"]:
        memory = optimizer.state[leaf]
        average = memory["exp_avg_sq"] / (1 - group["betas"][1] ** float(memory["step"]))
        parts.append((average.sqrt() + group["eps"]).flatten())
    return torch.cat(parts)
