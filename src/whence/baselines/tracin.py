"""TracIn: what the steps of a training did to the targets, traced by gradients at its checkpoints.

Pruthi et al. (2020), from examples to tasks as in the paper: a step of length η along −p_k ∇ℓ_k changes the loss of the
target by −η p_k ∇ℓ_k · ∇F, and a checkpoint stands for the steps around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from whence.baselines.scores import Scores, pulls, scores_of, shares_of
from whence.errors import InputError, counted
from whence.gradients.groups import target_gradients, target_products, task_gradients
from whence.gradients.projections import CountSketch, check_rank, flatten
from whence.models.functional import Params
from whence.models.points import Checkpoint, points_of
from whence.models.problem import Problem
from whence.progress import track


def tracin_scores(
    problem: Problem,
    *,
    learning_rates: Sequence[float],
    checkpoints: Sequence[Checkpoint] = (),
    weighting: str = "sample",
    normalized: bool = False,
    rank: int | None = None,
    seed: int = 0,
) -> Scores:
    """Sum over checkpoints of −η p_k ∇ℓ_k · ∇F, as an additive surrogate.

    Parameters
    ----------
    problem, weighting, seed
        As in `whence.baselines`.
    learning_rates : sequence of float
        For each checkpoint, the sum of the learning rates of the steps that it stands for.
    checkpoints : sequence of modules or state dicts
        By default the model itself.
    normalized : bool
        Whether a task that is left out leaves its weight to the others: then scores are differences from the mean task.
        The published score does not do so.
    rank : int, optional
        Sketch gradients to this many numbers, if those of all tasks and targets do not fit into memory.

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> problem = Problem(model, tasks, tasks["high"], loss="squared")
    >>> tracin_scores(problem, learning_rates=[0.1]).coef_.ravel().round(3)
    array([ 0.05, -0.05])
    """
    points = points_of(problem, checkpoints)
    rates = check_rates(learning_rates, len(points), "checkpoint")
    shares = shares_of(problem, weighting)
    sketch = None if rank is None else CountSketch(rank, seed)
    coef = torch.zeros((), dtype=torch.float64, device=problem.device)
    for point, rate in zip(track(points, "checkpoints"), rates, strict=True):
        if sketch is None:
            pull = pulls(task_gradients(problem, point), shares, normalized=normalized)
            products = target_products(problem, point, pull)
        else:
            check_rank(sketch.rank, point[1])
            read = partial(_sketched, sketch, point[1])
            pull = pulls(task_gradients(problem, point, read), shares, normalized=normalized)
            products = pull @ target_gradients(problem, point, read).T
        coef = coef - rate * products.double()
    return scores_of(problem, coef, "TracIn", diagnostics={"checkpoints": len(points)})


def _sketched(sketch: CountSketch, like: Params, gradients: Params) -> Tensor:
    return sketch.project(flatten(gradients), like)


def check_rates(given: Sequence[float] | None, n: int, of: str) -> list[float]:
    """Learning rates, one for each checkpoint or segment.

    >>> check_rates([0.1, 0.2], 2, "checkpoint")
    [0.1, 0.2]
    """
    rates = np.asarray([] if given is None else given, dtype=np.float64).ravel()
    if len(rates) != n:
        raise InputError(
            f"There must be a learning rate for each {of}, {n} in all: give learning_rates. "
            f"Got {counted(len(rates), 'rate')}."
        )
    if not (np.isfinite(rates) & (rates > 0)).all():
        raise InputError(f"Learning rates must be finite numbers above 0. Got {rates.tolist()}.")
    return [float(rate) for rate in rates]
