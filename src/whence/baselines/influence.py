"""Influence functions of tasks: how the minimum of the weighted loss moves with the weight of each task.

Koh & Liang (2017) for the task-weighted loss of the paper (its equation for ℐ_k): with the trained weights W at s = 1,

    dF/ds_k = −∇F(W)ᵀ (∇²L(W) + λI)⁻¹ p_k (∇ℓ_k(W) − ∇L(W)),

which is one Newton step towards the minimum without the task. The inverse is applied to whichever are fewer, the
tasks' gradients or the targets'.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from whence.baselines.curvature import Curvature
from whence.baselines.ekfac import ekfac_solve
from whence.baselines.krylov import DivergenceError, Solved, conjugate_gradients, extremes, neumann
from whence.baselines.scores import Scores, pulls, scores_of, shares_of
from whence.baselines.slopes import n_targets, target_gradients, target_products, task_gradients
from whence.errors import DataWarning, InputError, did_you_mean
from whence.models.examples import Examples, Given
from whence.models.functional import Filter
from whence.models.losses import Loss
from whence.models.points import points_of
from whence.models.problem import Problem

SOLVERS = ("auto", "exact", "cg", "lissa", "ekfac")
EXACT = 1500  # parameters up to which the matrix is made and factorised


def influence_scores(
    model: nn.Module,
    tasks: Given,
    targets: Given,
    *,
    loss: str | Loss = "cross_entropy",
    per_query: bool = False,
    params: Filter = None,
    curvature: str = "hessian",
    solver: str = "auto",
    damping: float = 1e-3,
    l2: float = 0.0,
    weighting: str = "task",
    normalized: bool = True,
    tol: float = 1e-5,
    max_steps: int = 500,
    scale: float | None = None,
    batch_size: int | None = None,
    examples: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Scores:
    """Influence of every task on the loss of every target, as an additive surrogate.

    Parameters
    ----------
    model, tasks, targets, loss, per_query, params, weighting, normalized, seed, device
        As `whence.baselines` has them.
    curvature : {"hessian", "gauss_newton"}
    solver : {"auto", "exact", "cg", "lissa", "ekfac"}
        How the inverse is applied: by factorising the matrix (directions without any curvature are left alone), by
        conjugate gradients, by LiSSA's series, or as an eigenvalue-corrected Kronecker factorisation of the
        Gauss–Newton matrix (linear, embedding, convolution and norm layers). "auto": exact for small
        models, else conjugate gradients.
    damping : float
        Added to every eigenvalue of the curvature.
    l2 : float
        Penalty ½ λ ‖W‖² that training added to the loss: curvature too.
    tol, max_steps
        Of conjugate gradients; LiSSA takes ``max_steps`` terms.
    scale : float, optional
        Of LiSSA: what the matrix is divided by; a little more than its largest eigenvalue where not given.
    batch_size : int, optional
        Of LiSSA: examples in each term, drawn at random; all where not given.
    examples : int, optional
        So many of each task, drawn at random, that the curvature is taken from; all where not given. Gradients are
        always those of all.

    Returns
    -------
    Scores
        ``diagnostics`` has the solver, its steps and what it left.

    Examples
    --------
    >>> inputs = torch.tensor([[1.0], [1.0]])
    >>> tasks = {"low": (inputs, torch.zeros(2)), "high": (inputs, torch.full((2,), 2.0))}
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)  # the minimum over both tasks
    >>> influence_scores(model, tasks, tasks["high"], loss="squared", damping=0.0).to_frame()["loss"].to_dict()
    {'low': 0.5, 'high': -0.5}
    """
    if solver not in SOLVERS:
        raise InputError(f"There is no solver {solver!r}. {did_you_mean(solver, SOLVERS)}")
    for name, value in (("damping", damping), ("l2", l2)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"The '{name}' must be a finite number, 0 or more. Got {value!r}.")
    problem = Problem(
        model, tasks, targets, loss=loss, per_query=per_query, params=params, device=device, batched=False
    )
    (point,) = points_of(problem, [])
    shares = shares_of(problem, weighting)
    right = pulls(task_gradients(problem, point), shares, normalized=normalized)
    some = examples_to_bend(problem, examples, seed)
    bend = Curvature(point, problem.loss, some, example_weights(some, shares), curvature, l2 + damping)
    chosen = ("exact" if bend.size <= EXACT else "cg") if solver == "auto" else solver
    fewer = right if len(right) < n_targets(problem) else target_gradients(problem, point)
    if chosen == "exact":
        found = _exact(bend, fewer, damping)
    elif chosen == "cg":
        found = _conjugate(bend, fewer, tol, max_steps, damping, seed)
    elif chosen == "lissa":
        found = _lissa(bend, fewer, scale, max_steps, batch_size, damping, seed)
    else:
        found = Solved(ekfac_solve(bend, fewer, seed=seed), math.nan, 0)
    products = target_products(problem, point, found.vectors) if fewer is right else right @ found.vectors.T
    kind = "gauss_newton" if chosen == "ekfac" else curvature
    told: dict[str, Any] = {"solver": chosen, "curvature": kind, "steps": found.steps, "residual": found.residual}
    return scores_of(problem, -products, "influence", diagnostics=told)


def examples_to_bend(problem: Problem, number: int | None, seed: int) -> Examples:
    """The examples of the tasks that the curvature is taken from: all, or so many of each."""
    if number is None:
        return problem.tasks
    if number < 1:
        raise InputError(f"The 'examples' of each task for the curvature must be 1 or more. Got {number}.")
    return problem.tasks.sample(number, seed)


def example_weights(examples: Examples, shares: Tensor) -> Tensor:
    """Weight of each example in the training loss, (n,): the share of its task, divided among its examples."""
    return (shares / torch.bincount(examples.owner))[examples.owner]


def _exact(bend: Curvature, right: Tensor, damping: float) -> Solved:
    """Solve with the matrix itself, in double precision."""
    values, vectors = torch.linalg.eigh(bend.matrix())
    rounding = float(values.abs().max()) * len(values) * torch.finfo(right.dtype).eps
    if float(values[0]) < -rounding:
        _warn_indefinite(float(values[0]), damping)
    # What rounding leaves of a zero is no curvature to divide by: such directions are left alone.
    inverse = torch.where(values.abs() > rounding, 1 / values, 0.0)
    return Solved((((right.double() @ vectors) * inverse) @ vectors.T).to(right), 0.0, 1)


def _conjugate(bend: Curvature, right: Tensor, tol: float, max_steps: int, damping: float, seed: int) -> Solved:
    found = conjugate_gradients(bend, right, tol=tol, max_steps=max_steps)
    if found.indefinite:
        _warn_indefinite(extremes(bend, right[0], seed=seed)[0], damping)
    elif found.residual > tol:
        warnings.warn(
            f"Conjugate gradients stopped after {found.steps} steps with a residual of {found.residual:.1g} (tol "
            f"{tol:.1g}): raise max_steps, or damping ({damping:g}).",
            DataWarning,
            stacklevel=3,
        )
    return found


def _lissa(
    bend: Curvature, right: Tensor, scale: float | None, depth: int, batch_size: int | None, damping: float, seed: int
) -> Solved:
    low, high = extremes(bend, right[0], seed=seed)
    used = 1.1 * high if scale is None else scale
    n = len(bend.examples)
    generator = torch.Generator().manual_seed(seed)

    def product(vectors: Tensor) -> Tensor:
        if batch_size is None or batch_size >= n:
            return bend(vectors)
        return bend(vectors, torch.randint(n, (batch_size,), generator=generator).to(vectors.device))

    try:
        # A sample of the examples may bend more than all of them do, now and then.
        found = neumann(product, right, scale=used, depth=depth, slack=1.0 if batch_size is None else 10.0)
    except DivergenceError as error:
        if low < 0:
            advice = f"the curvature is indefinite: raise damping ({damping:g}) by {-low:.2g} or more"
        else:
            advice = f"raise scale ({used:.3g}) above the largest eigenvalue, about {high:.3g}"
        also = ", or use larger batches" if batch_size is not None else ""
        raise InputError(f"LiSSA diverged at step {error.step}: {advice}{also}.") from None
    if low < 0:
        _warn_indefinite(low, damping)
    elif found.residual > 0.1 and batch_size is None:
        warnings.warn(
            f"LiSSA's series is far from its end after {depth} terms (residual {found.residual:.1g}): raise max_steps, "
            f"or damping ({damping:g}).",
            DataWarning,
            stacklevel=3,
        )
    return found


def _warn_indefinite(low: float, damping: float) -> None:
    least = damping - low
    warnings.warn(
        f"The curvature has an eigenvalue of about {low:.2g} with damping {damping:g}, so that the model is at no "
        f"minimum of its loss and scores mean little: give damping above {least:.2g}, or curvature='gauss_newton'.",
        DataWarning,
        stacklevel=4,
    )
