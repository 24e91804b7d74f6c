"""TracIn: what the steps of a training did to the targets, traced by gradients at its checkpoints.

Pruthi et al. (2020), from examples to tasks as in the paper: a step of length η along −p_k ∇ℓ_k changes the loss of the
target by −η p_k ∇ℓ_k · ∇F, and a checkpoint stands for the steps around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from whence.baselines.scores import Scores, pulls, scores_of, shares_of
from whence.baselines.slopes import target_gradients, task_gradients
from whence.errors import InputError, counted
from whence.estimators.points import Checkpoint, points_of
from whence.estimators.problem import Problem
from whence.examples import Given
from whence.functional import Filter
from whence.gradients.projections import CountSketch, check_rank
from whence.losses import Loss
from whence.progress import track


def tracin_scores(
    model: nn.Module,
    tasks: Given,
    targets: Given,
    *,
    learning_rates: Sequence[float],
    checkpoints: Sequence[Checkpoint] = (),
    loss: str | Loss = "cross_entropy",
    per_query: bool = False,
    params: Filter = None,
    weighting: str = "task",
    normalized: bool = False,
    rank: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Scores:
    """Sum over checkpoints of −η p_k ∇ℓ_k · ∇F, as an additive surrogate.

    Parameters
    ----------
    model : nn.Module
        As trained on all tasks; the only checkpoint where no others are given. It is never changed.
    tasks : mapping of str to (inputs, labels) or Dataset
    targets : (inputs, labels), Dataset, or mapping of str to those
    learning_rates : sequence of float
        For each checkpoint, the sum of the learning rates of the steps that it stands for.
    checkpoints : sequence of modules or state dicts
    loss : {"cross_entropy", "logistic", "squared"} or Loss
    per_query : bool
        Whether every query is a target of its own, instead of their mean.
    params : str, iterable of str or callable, optional
        Which parameters move; those that require a gradient where not given.
    weighting : {"task", "sample"}
        Whether tasks count equally in the loss, as in the paper, or their examples do.
    normalized : bool
        Whether a task that is left out leaves its weight to the others: then scores are differences from the mean task.
        The published score does not ask.
    rank : int, optional
        Sketch gradients to so many numbers, where those of all tasks and targets do not fit into memory.
    seed : int
        Of the sketch.
    device : str or device, optional

    Returns
    -------
    Scores

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> tracin_scores(model, tasks, tasks["high"], loss="squared", learning_rates=[0.1]).coef_.ravel().round(3)
    array([ 0.05, -0.05])
    """
    problem = Problem(
        model, tasks, targets, loss=loss, per_query=per_query, params=params, device=device, batched=False
    )
    points = points_of(problem, checkpoints)
    rates = check_rates(learning_rates, len(points), "checkpoint")
    shares = shares_of(problem, weighting)
    sketch = None if rank is None else CountSketch(rank, seed)
    coef = torch.zeros((), dtype=torch.float64, device=problem.device)
    for point, rate in zip(track(points, "checkpoints"), rates, strict=True):
        pull, left = (
            pulls(task_gradients(problem, point), shares, normalized=normalized),
            target_gradients(problem, point),
        )
        if sketch is not None:
            check_rank(sketch.rank, point[1])
            pull, left = sketch.project(pull, point[1]), sketch.project(left, point[1])
        coef = coef - rate * (pull @ left.T).double()
    return scores_of(problem, coef, "TracIn", diagnostics={"checkpoints": len(points)})


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
