"""One run on all tasks, and the gradient of each task along it: a subspace that training moves in.

Random directions have little to do with where training goes, and a linear model at W₀ knows nothing of what the tasks
teach together. A single joint run gives both: points on the way that are near to where training on any large subset
ends, and at these points the gradient of each task, as it is and as the optimizer would scale it. `GradEx.along`
linearises at such points, within the span of these gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from whence.gradients.groups import Stacks, task_gradients
from whence.gradients.projections import Subspace, flatten, split
from whence.models.points import points_of
from whence.models.problem import Problem, State
from whence.models.recipe import Recipe
from whence.models.stack import Stack
from whence.models.training import train
from whence.progress import track

_NEGLIGIBLE = 1e-4  # of the strongest direction: weaker ones are rounding
_TRAINING = "Training on all tasks"


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Points of a joint run, and directions that the tasks pulled in."""

    steps: tuple[int, ...]  # of the points
    points: tuple[State, ...]  # from W₀ to the end of the run
    directions: Subspace  # orthonormal span of the gradients of the tasks at the points, and of point − W₀
    loss: float  # of all tasks at the end of the run, on the examples that gradients are taken of


def trace(problem: Problem, recipe: Recipe, *, n_points: int, examples: int | None = None, seed: int = 0) -> Trajectory:
    """Train on all tasks once, and take the gradients of the tasks at W₀ and ``n_points`` equally spaced points.

    Each point costs a gradient of every example, or of a random number of ``examples`` of each task.
    """
    wanted = sorted({round(step) for step in np.linspace(0, recipe.steps, n_points + 1)})
    pulling = (
        problem if examples is None else problem.with_examples(problem.tasks.sample(examples, seed), problem.targets)
    )
    states: list[State] = []
    pulls: list[Tensor] = []
    stacks = Stacks()

    def watch(step: int, state: State, optimizer: Optimizer) -> None:
        next(bar, None)
        if step not in wanted:
            return
        states.append({name: value.detach().clone() for name, value in state.items()})
        (point,) = points_of(problem, states[-1:])
        gradients = task_gradients(pulling, point, side_by_side=False, stacks=stacks)
        pulls.append(gradients)
        if (divisor := recipe.update.divisor(optimizer)) is not None:
            pulls.append(gradients / divisor)

    stack, everything = Stack(problem, batched=False), np.ones((1, len(problem.task_names)))
    with closing(track(range(recipe.steps + 1), _TRAINING)) as bar:
        end = train(stack, recipe, stack.start(1), everything, np.array([seed]), watch=watch)
    origin = _flat(states[0], problem)
    pulls.append(torch.stack([_flat(state, problem) - origin for state in states[1:]]))
    like = {name: problem.start[name] for name in problem.trained}
    directions = Subspace(split(orthonormal(torch.cat(pulls)), like))
    losses = stack.evaluate(end, pulling.tasks, {"loss": problem.loss})["loss"]
    return Trajectory(tuple(wanted), tuple(states), directions, float(losses.double().mean()))


def passed(
    problem: Problem,
    recipe: Recipe,
    steps: Collection[int],
    *,
    seed: int = 0,
    keep: Callable[[int, State], None] = lambda step, state: None,
) -> dict[int, State]:
    """States of one run on all tasks after some of its steps, by their number; ``keep`` gets each when it is passed."""
    states: dict[int, State] = {}

    def watch(step: int, state: State, _: Optimizer) -> None:
        next(bar, None)
        if step in steps:
            states[step] = {name: value.detach().clone() for name, value in state.items()}
            keep(step, states[step])

    stack, everything = Stack(problem, batched=False), np.ones((1, len(problem.task_names)))
    with closing(track(range(max(steps) + 1), _TRAINING)) as bar:
        train(stack, recipe, stack.start(1), everything, np.array([seed]), max(steps), watch=watch)
    return states


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


def _flat(state: State, problem: Problem) -> Tensor:
    return flatten({name: state[name][None] for name in problem.trained})[0]
