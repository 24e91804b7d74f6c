"""SOURCE: what each task did to the final weights, by approximate unrolling of the training in a few segments.

Bae et al. (2024). Within a segment of N steps with learning rate η, gradients g_k and curvature H are taken as those of
its checkpoints, averaged. A push at one step is then carried to the end of the segment by exp(−ηNH), and all pushes
of the segment together move the weights by −(I − exp(−ηNH)) H⁻¹ p_k g_k. The target's gradient is carried backwards
through the segments,

    dF/ds_k = −Σ_l (S_L … S_{l+1} ∇F)ᵀ φ_l(H_l) p_k g_{k,l},
    S_l = exp(−η_l N_l H_l),  φ_l(h) = (1 − exp(−η_l N_l h))/h,

or the tasks' pushes forwards, where these are fewer. Unlike an influence function, it needs no trained-out model and no
damping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whence.baselines.curvature import Curvature
from whence.baselines.influence import EXACT, curvature_examples, example_weights
from whence.baselines.krylov import lanczos
from whence.baselines.scores import Scores, pulls, scores_of, shares_of
from whence.baselines.tracin import check_rates
from whence.errors import InputError
from whence.gradients.groups import n_targets, target_gradients, target_products, task_gradients
from whence.gradients.projections import n_params
from whence.models.points import Checkpoint, points_of
from whence.models.problem import Problem
from whence.progress import track

Apply = Callable[[Tensor], tuple[Tensor, Tensor]]  # vectors → φ(H) and S applied to them


def source_scores(
    problem: Problem,
    *,
    segments: Sequence[Sequence[Checkpoint]],
    learning_rates: Sequence[float],
    steps: Sequence[int],
    curvature: str = "gauss_newton",
    l2: float = 0.0,
    weighting: str = "sample",
    normalized: bool = True,
    rank: int = 32,
    examples: int | None = None,
    seed: int = 0,
) -> Scores:
    """SOURCE score of every task for the loss of every target, as an additive surrogate.

    Parameters
    ----------
    problem, weighting, normalized, seed
        As in `whence.baselines`.
    segments : sequence of sequences of modules or state dicts
        The checkpoints of each segment, in the order of training.
    learning_rates : sequence of float
        The mean learning rate of each segment.
    steps : sequence of int
        The number of updates in each segment.
    curvature : {"gauss_newton", "hessian"}
        A Hessian with negative eigenvalues makes pushes grow, as it does in training.
    l2 : float
        Penalty ½ λ ‖W‖² that training added to the loss.
    rank : int
        Size of the Krylov space that functions of the curvature are computed in, for models that are not small.
    examples : int, optional
        Examples of each task, drawn at random, that the curvature is taken from; by default all. Gradients are always
        those of all.

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> problem = Problem(model, tasks, tasks["high"], loss="squared")
    >>> found = source_scores(problem, segments=[[model]], learning_rates=[0.1], steps=[10_000])
    >>> found.coef_.ravel().round(3)  # after so many steps: the influence function
    array([ 0.5, -0.5])
    """
    parts = [list(part) for part in segments]
    if not parts or not all(parts):
        raise InputError("The 'segments' of SOURCE must be lists of checkpoints, none of them empty: [[a, b], [c]].")
    rates = check_rates(learning_rates, len(parts), "segment")
    lengths = np.asarray(steps)
    if lengths.shape != (len(parts),) or lengths.dtype.kind not in "iu" or (lengths < 1).any():
        raise InputError(f"The 'steps' of SOURCE must be a whole number above 0 for each segment. Got {steps!r}.")
    (end,) = points_of(problem, [])
    shares = shares_of(problem, weighting)
    some = curvature_examples(problem, examples, seed)
    weights = example_weights(some, shares)
    order = list(zip(parts, rates, lengths.tolist(), strict=True))
    # Functions of the curvature go either to the targets' gradients, carried backwards, or to the tasks' and to what
    # earlier segments have pushed, carried forwards: whichever are fewer vectors.
    forwards = 2 * len(shares) < n_targets(problem)
    carried = shares.new_zeros(len(shares), n_params(end[1])) if forwards else target_gradients(problem, end)
    coef = torch.zeros((), dtype=torch.float64, device=problem.device)
    for checkpoints, rate, length in track(order if forwards else order[::-1], "segments"):
        points = points_of(problem, checkpoints)
        curvatures = [Curvature(point, problem.loss, some, weights, curvature, l2) for point in points]
        gradients = torch.stack([task_gradients(problem, point) for point in points]).mean(0)
        pull = pulls(gradients, shares, normalized=normalized)
        apply = _segment(curvatures, rate * length, rank)
        if forwards:
            reached, kept = apply(torch.cat([pull, carried]))
            carried = reached[: len(pull)] + kept[len(pull) :]
        else:
            reached, carried = apply(carried)
            coef = coef - (pull @ reached.T).double()
        if not bool(carried.isfinite().all()):
            raise InputError("SOURCE diverged along negative eigenvalues of the Hessian: use curvature='gauss_newton'.")
    if forwards:
        coef = -target_products(problem, end, carried).double()
    return scores_of(problem, coef, "SOURCE", diagnostics={"segments": len(parts)})


def _segment(curvatures: list[Curvature], time: float, rank: int) -> Apply:
    """Functions φ(H) and exp(−time H) of the mean curvature, applied to vectors."""

    def reach(values: Tensor) -> Tensor:
        x = (time * values).double()
        return time * torch.where(x.abs() < 1e-8, 1.0, -torch.expm1(-x) / x)

    def stay(values: Tensor) -> Tensor:
        return torch.exp(-time * values.double())

    if curvatures[0].size <= EXACT:
        values, basis = torch.linalg.eigh(sum(one.matrix() for one in curvatures) / len(curvatures))

        def exact(vectors: Tensor) -> tuple[Tensor, Tensor]:
            turned = vectors.double() @ basis
            return (turned * reach(values) @ basis.T).to(vectors), (turned * stay(values) @ basis.T).to(vectors)

        return exact

    def mean(vectors: Tensor) -> Tensor:
        total: Tensor = sum(one(vectors) for one in curvatures) / len(curvatures)  # type: ignore[assignment]
        return total

    def krylov(vectors: Tensor) -> tuple[Tensor, Tensor]:
        space = lanczos(mean, vectors, rank)
        return space.apply(reach), space.apply(stay)

    return krylov
