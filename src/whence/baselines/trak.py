"""TRAK: one Newton step of the linearised model, in the coordinates of a random projection.

Park et al. (2023), with tasks for examples as in the paper. The model is linearised at its trained weights, as GradEx
linearises it elsewhere (the features are the same, and so is the store for them); what is linearised is the margin
of the label, or every output under the squared loss. With Φ the features, φ_k the mean feature of task k and q_k the
mean slope of the loss by the margin, the score is

    −q_F φ_Fᵀ (ΦᵀWΦ + λI)⁻¹ φ_k q_k p_k,

averaged over checkpoints and projections. The curvature of the loss by the margin is left out, as in TRAK.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.baselines.scores import Scores, scores_of, shares_of
from whence.errors import DataWarning, InputError
from whence.estimators.gradex import USUAL, GradEx
from whence.gradients.factored import Kronecker
from whence.gradients.linearize import Features, Linearization
from whence.gradients.projections import Projection
from whence.models.losses import Loss, one_label_each
from whence.models.points import Checkpoint
from whence.models.problem import Problem, as_problem


def trak_scores(
    problem: Problem,
    rank: int = 512,
    *,
    kernel: str = "samples",
    l2: float = 0.0,
    weighting: str = "sample",
    projection: str | Projection | Kronecker = "auto",
    checkpoints: Sequence[Checkpoint] = (),
    n_projections: int = 1,
    features: Features = USUAL,
    seed: int = 0,
) -> Scores:
    """TRAK score of every task for the loss of every target, as an additive surrogate.

    Parameters
    ----------
    problem, weighting, seed
        As in `whence.baselines`.
    rank, projection, checkpoints, n_projections, features
        How the model is linearised, as for `whence.GradEx`. A folder that GradEx filled with the same settings and
        ``of="margin"`` is used again.
    kernel : {"samples", "tasks"}
        Whose features ΦᵀWΦ is made of: those of all examples, as in TRAK, or the K means over tasks, as in the paper.
    l2 : float
        Penalty λ, as a share of the mean eigenvalue; directions without features count nothing if it is 0.
        With nearly as many directions as examples, 1.0 predicts true runs far better than the published 0.

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> trak_scores(Problem(model, tasks, tasks["high"], loss="squared"), rank=1).coef_.ravel().round(3)
    array([ 0.5, -0.5])
    """
    if kernel not in ("samples", "tasks"):
        raise InputError(f"The 'kernel' of TRAK must be 'samples' or 'tasks'. Got {kernel!r}.")
    problem = as_problem(problem).on_loss()
    of = "margin" if one_label_each(problem.loss, problem.tasks.labels) else "outputs"
    gradex = GradEx(
        problem, rank, of=of, weighting=weighting, projection=projection, checkpoints=checkpoints,
        n_projections=n_projections, features=features, seed=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        # GradEx needs a point from which there is something to learn; TRAK one at which it has been learned.
        warnings.filterwarnings("ignore", ".*has learned the tasks already", DataWarning)
        members = gradex.members
    shares = shares_of(problem, weighting).double()
    coef = torch.zeros((), dtype=torch.float64, device=problem.device)
    for member in members:
        gradients, means = _means(member.tasks, member.tasks.examples.owner, gradex.loss)
        left, _ = _means(member.targets, problem.query_owner, gradex.loss)
        if kernel == "tasks":
            # Slopes and features are averaged separately.
            slopes = _mean_slopes(member.tasks, gradex.loss)
            gradients = torch.einsum("kc,kcr->kr", slopes, means)
            gram = torch.einsum("k,kcr,kcs->rs", shares, means, means)
        else:
            gram = _gram(member.tasks, shares)
        coef = coef - shares[:, None] * (gradients @ _solved(gram, left, l2).T) / len(members)
    return scores_of(problem, coef, "TRAK", diagnostics={"members": len(members), "rank": members[0].tasks.rank})


def _means(linear: Linearization, owner: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Means over groups of the projected gradient of the loss, (G, rank), and of the features, (G, C, rank)."""
    sizes = torch.bincount(owner).double()
    _, width, rank = linear.features.shape
    gradients = torch.zeros(len(sizes), rank, dtype=torch.float64, device=linear.outputs.device)
    means = torch.zeros(len(sizes), width, rank, dtype=torch.float64, device=linear.outputs.device)
    for rows, features in linear.blocks(1):
        slope = loss.with_slope(linear.outputs[rows], linear.examples.labels[rows])[1]
        gradients.index_add_(0, owner[rows], torch.einsum("nc,ncr->nr", slope, features).double())
        means.index_add_(0, owner[rows], features.double())
    return gradients / sizes[:, None], means / sizes[:, None, None]


def _mean_slopes(linear: Linearization, loss: Loss) -> Tensor:
    """Mean over each task of the slope of the loss by the outputs, (K, C)."""
    owner = linear.examples.owner
    slope = loss.with_slope(linear.outputs, linear.examples.labels)[1].double()
    sizes = torch.bincount(owner).double()
    return slope.new_zeros(len(sizes), slope.shape[1]).index_add_(0, owner, slope) / sizes[:, None]


def _gram(linear: Linearization, shares: Tensor) -> Tensor:
    """ΦᵀWΦ of all examples, (rank, rank), with the weight that each has in the loss."""
    owner = linear.examples.owner
    weights = (shares / torch.bincount(owner))[owner]
    gram = torch.zeros(linear.rank, linear.rank, dtype=torch.float64, device=linear.outputs.device)
    for rows, features in linear.blocks(1):
        root = (features * weights[rows, None, None].sqrt().to(features)).reshape(-1, linear.rank)
        gram += (root.T @ root).double()
    return gram


def _solved(gram: Tensor, right: Tensor, l2: float) -> Tensor:
    """(gram + λI)⁻¹ applied to each row, or the pseudo-inverse where there is no penalty."""
    if l2 > 0:
        penalty = l2 * gram.diagonal().mean()
        factor, failed = torch.linalg.cholesky_ex(gram + penalty * torch.eye(len(gram)).to(gram))
        if not failed:
            return torch.cholesky_solve(right.T, factor).T
    values, vectors = torch.linalg.eigh(gram)
    floor = values[-1] * len(values) * 1e-7  # of features in single precision
    shifted = values + l2 * values.clamp_min(0).mean()
    inverse = torch.where(values > floor, 1 / shifted, 1 / shifted if l2 > 0 else 0.0)
    solved: Tensor = ((right @ vectors) * inverse) @ vectors.T
    return solved
