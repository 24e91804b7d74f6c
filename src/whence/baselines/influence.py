"""Influence functions of tasks: how the minimum of the weighted loss moves with the weight of each task.

Koh & Liang (2017) for the task-weighted loss of the paper (its equation for ℐ_k): with the trained weights W at s = 1,

    dF/ds_k = −∇F(W)ᵀ (∇²L(W) + λI)⁻¹ p_k (∇ℓ_k(W) − ∇L(W)),

which is one Newton step towards the minimum without the task. The inverse is applied to whichever are fewer, the
tasks' gradients or the targets'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.baselines.curvature import Curvature
from whence.baselines.scores import Scores, pulls, scores_of, shares_of
from whence.baselines.solvers import CG, Exact, Solver
from whence.errors import InputError
from whence.gradients.groups import n_targets, target_gradients, target_products, task_gradients
from whence.models.examples import Examples
from whence.models.points import points_of
from whence.models.problem import Problem

EXACT = 1500  # parameters up to which the matrix is made and factorised


def influence_scores(
    problem: Problem,
    *,
    solver: Solver | None = None,
    curvature: str = "hessian",
    damping: float = 1e-3,
    l2: float = 0.0,
    weighting: str = "sample",
    normalized: bool = True,
    examples: int | None = None,
    seed: int = 0,
) -> Scores:
    """Influence of every task on the loss of every target, as an additive surrogate.

    Parameters
    ----------
    problem, weighting, normalized, seed
        As in `whence.baselines`.
    solver : Exact, CG, LiSSA or EKFAC, optional
        How the inverse is applied; see `whence.baselines.solvers`. By default exactly for small models, else by
        conjugate gradients. EKFAC has the Gauss–Newton matrix for a curvature, whichever is given.
    curvature : {"hessian", "gauss_newton"}
    damping : float
        Added to every eigenvalue of the curvature.
    l2 : float
        Penalty ½ λ ‖W‖² that training added to the loss: curvature too.
    examples : int, optional
        Examples of each task, drawn at random, that the curvature is taken from; by default all. Gradients are always
        those of all.

    Returns
    -------
    Scores
        ``diagnostics`` has the solver, its steps and what it left.

    Examples
    --------
    >>> inputs = torch.tensor([[1.0], [1.0]])
    >>> tasks = {"low": (inputs, torch.zeros(2)), "high": (inputs, torch.full((2,), 2.0))}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)  # the minimum over both tasks
    >>> problem = Problem(model, tasks, tasks["high"], loss="squared")
    >>> influence_scores(problem, damping=0.0).to_frame()["loss"].to_dict()
    {'low': 0.5, 'high': -0.5}
    """
    if not (solver is None or isinstance(solver, Solver)):
        raise InputError(
            "The 'solver' parameter of influence_scores must be Exact(), CG(), LiSSA() or EKFAC() of whence.baselines. "
            f"Got {solver!r} instead."
        )
    for name, value in (("damping", damping), ("l2", l2)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"The '{name}' must be a finite number, 0 or more. Got {value!r}.")
    (point,) = points_of(problem, [])
    shares = shares_of(problem, weighting)
    right = pulls(task_gradients(problem, point), shares, normalized=normalized)
    some = curvature_examples(problem, examples, seed)
    matrix = Curvature(point, problem.loss, some, example_weights(some, shares), curvature, l2 + damping)
    chosen = solver or (Exact() if matrix.size <= EXACT else CG())
    fewer = right if len(right) < n_targets(problem) else target_gradients(problem, point)
    found = chosen.solve(matrix, fewer, damping=damping, seed=seed)
    products = target_products(problem, point, found.vectors) if fewer is right else right @ found.vectors.T
    told: dict[str, object] = {
        "solver": chosen.name,
        "curvature": "gauss_newton" if chosen.name == "ekfac" else curvature,
        "steps": found.steps,
        "residual": found.residual,
    }
    return scores_of(problem, -products, "influence", diagnostics=told)


def curvature_examples(problem: Problem, number: int | None, seed: int) -> Examples:
    """The examples of the tasks that the curvature is computed from: all, or a number of each."""
    if number is None:
        return problem.tasks
    if number < 1:
        raise InputError(f"The 'examples' of each task for the curvature must be 1 or more. Got {number}.")
    return problem.tasks.sample(number, seed)


def example_weights(examples: Examples, shares: Tensor) -> Tensor:
    """Weight of each example in the training loss, (n,): the share of its task, divided among its examples."""
    return (shares / torch.bincount(examples.owner))[examples.owner]
