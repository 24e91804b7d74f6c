"""BIF: influence as a covariance of losses under a posterior around the trained weights.

Kreer et al. (2025). For weights drawn from p(W) ∝ exp(−β (L(W) + ½ λ ‖W − W*‖²)), raising the weight of a task
changes the expected loss of a target by a covariance, exactly:

    dE[F]/ds_k = −β p_k Cov(F, ℓ_k − L).

No curvature is inverted. As β grows it becomes the influence function with damping λ. Draws are made by stochastic
gradient Langevin dynamics (SGLD), with all chains side by side, and only losses are kept of them. The noise of a step
is the mean of two draws, one of them that of the step before (Leimkuhler and Matthews, 2013). For a quadratic loss
this gives the exact covariance at any stable step size, where plain SGLD spreads too far; elsewhere the bias is of
second order.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from whence.baselines.curvature import Curvature
from whence.baselines.influence import example_weights
from whence.baselines.krylov import extremes
from whence.baselines.mixing import effective_draws, r_hat
from whence.baselines.scores import Scores, scores_of, shares_of
from whence.baselines.slopes import differentiable
from whence.errors import DataWarning, InputError
from whence.gradients.projections import flatten, split
from whence.models.examples import Examples, Given, Inputs
from whence.models.functional import Filter, Params
from whence.models.losses import Loss
from whence.models.points import points_of
from whence.models.problem import Problem, side_by_side
from whence.progress import track

STRIDE = 0.2  # step size by default, over that at which the stiffest direction would be drawn anew in each step
MIXED, ENOUGH = 1.1, 50  # R-hat above which, and effective draws below which, scores are not to be trusted


def bif_scores(
    model: nn.Module,
    tasks: Given,
    targets: Given,
    *,
    loss: str | Loss = "cross_entropy",
    per_query: bool = False,
    params: Filter = None,
    beta: float | None = None,
    damping: float = 1e-2,
    chains: int = 8,
    draws: int = 200,
    thin: int = 10,
    burn_in: int | None = None,
    step_size: float | None = None,
    batch_size: int | None = None,
    weighting: str = "task",
    normalized: bool = True,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Scores:
    """Bayesian influence of every task on the loss of every target, as an additive surrogate.

    Parameters
    ----------
    model, tasks, targets, loss, per_query, params, weighting, normalized, seed, device
        As `whence.baselines` has them.
    beta : float, optional
        Inverse temperature; the number of training examples where not given.
    damping : float
        λ, how strongly draws are kept near the trained weights, against the curvature of the mean loss.
    chains, draws : int
        Number of chains, and of draws kept from each.
    thin : int
        Steps from one draw to the next.
    burn_in : int, optional
        Steps before the first draw; a quarter of the others where not given.
    step_size : float, optional
        ε of the update −½ ε ∇ + √ε noise. Where not given, a fifth of the inverse of the largest curvature, times β.
    batch_size : int, optional
        Examples in each step, drawn at random; all where not given. The noise of batches widens the posterior, of which
        the standard errors know nothing.

    Returns
    -------
    Scores
        With the standard error of each over chains; ``diagnostics`` has ``r_hat`` (largest over all losses),
        ``effective_draws`` (smallest) and ``step_size``.

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> found = bif_scores(model, tasks, tasks["high"], loss="squared", draws=500)
    >>> found.coef_.ravel().round(1), found.diagnostics["r_hat"] < 1.1
    (array([ 0.5, -0.5]), True)
    """
    for name, number, least in (("chains", chains, 2), ("draws", draws, 4), ("thin", thin, 1)):
        if number < least:
            raise InputError(f"The '{name}' of BIF must be {least} or more. Got {number}.")
    for name, value in (("beta", beta), ("damping", damping), ("step_size", step_size)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"The '{name}' of BIF must be a finite number above 0. Got {value!r}.")
    problem = Problem(model, tasks, targets, loss=loss, per_query=per_query, params=params, device=device)
    shares = shares_of(problem, weighting)
    weights = example_weights(problem.tasks, shares)
    heat = float(len(problem.tasks) if beta is None else beta)
    if step_size is None:
        (point,) = points_of(problem, [])
        bend = Curvature(point, problem.loss, problem.tasks, weights, "gauss_newton", damping)
        like = flatten({name: value[None] for name, value in point[1].items()})[0]
        step_size = STRIDE / (heat * max(extremes(bend, like, seed=seed)[1], damping))
    chain = _Chains(problem, weights, heat, damping, step_size, batch_size, chains, seed)
    before = draws * thin // 4 if burn_in is None else burn_in
    of_tasks, of_targets = [], []
    for number in track(range(draws), "draws of SGLD"):
        chain.advance(thin + (before if number == 0 else 0))
        of_tasks.append(chain.losses(problem.tasks, problem.tasks.owner))
        owner = torch.arange(len(problem.targets), device=problem.device) if per_query else problem.targets.owner
        of_targets.append(chain.losses(problem.targets, owner))
    left, right = torch.stack(of_targets, 1), torch.stack(of_tasks, 1)  # (chains, draws, T), (chains, draws, K)
    told = _diagnose(torch.cat([left, right], 2), draws, thin)
    if normalized:
        right = right - right @ shares.to(right)[:, None]
    shared = left.mean((0, 1)), right.mean((0, 1))
    products = torch.einsum("cnk,cnt->ckt", right - shared[1], left - shared[0]) / draws
    each = -heat * shares.to(right)[:, None] * products
    told |= {"step_size": step_size, "beta": heat}
    return scores_of(problem, each.mean(0), "BIF", std=each.std(0) / math.sqrt(chains), diagnostics=told)


class _Chains:
    """States of all chains, side by side, and the steps that they take."""

    def __init__(
        self, problem: Problem, weights: Tensor, beta: float, damping: float, step: float, batch_size: int | None,
        chains: int, seed: int,
    ) -> None:  # fmt: skip
        self.problem, self.weights, self.beta, self.damping, self.step = problem, weights, beta, damping, step
        self.like = {name: problem.start[name] for name in problem.trained}
        self.centre = flatten({name: value[None] for name, value in self.like.items()})
        self.at = self.centre.repeat(chains, 1)
        n = len(problem.tasks)
        self.batch_size = None if batch_size is None or batch_size >= n else batch_size
        self.generator = torch.Generator(problem.device).manual_seed(seed)
        self.rows = torch.Generator().manual_seed(seed)
        self.noise = self._normal()
        self.taken = 0
        # A draw costs half a unit of βL for each parameter; far beyond that a chain is on its way to infinity.
        start = float((weights * self._losses(problem.tasks)[0]).sum())
        self.most = 100 * (start + self.at.shape[1] / (2 * beta))

    def advance(self, steps: int) -> None:
        """Take so many steps with each chain."""
        for _ in range(steps):
            before, self.noise = self.noise, self._normal()
            pull = self.beta * (self._gradients() + self.damping * (self.at - self.centre))
            self.at = self.at - 0.5 * self.step * pull + math.sqrt(self.step) * (before + self.noise) / 2
            self.taken += 1

    def _normal(self) -> Tensor:
        return torch.empty_like(self.at).normal_(generator=self.generator)

    def losses(self, examples: Examples, owner: Tensor) -> Tensor:
        """Mean loss of each group in each chain, (chains, G), in double precision."""
        found = self._losses(examples).double()
        if not bool(found.isfinite().all()):
            self._diverged()
        if examples is self.problem.tasks and float((found @ self.weights.to(found)).max()) > self.most:
            self._diverged()
        sizes = torch.bincount(owner)
        total = found.new_zeros(len(found), len(sizes)).index_add_(1, owner, found)
        return total / sizes

    def _losses(self, examples: Examples) -> Tensor:
        state = {**self.problem.started(len(self.at)), **split(self.at, self.like)}
        return self.problem.evaluate(state, examples, {"loss": self.problem.loss})["loss"]

    def _gradients(self) -> Tensor:
        problem, n = self.problem, len(self.problem.tasks)
        inputs, labels, weights = problem.tasks.inputs, problem.tasks.labels, self.weights
        if self.batch_size is not None:
            index = torch.randint(n, (self.batch_size,), generator=self.rows).to(problem.device)
            (inputs, labels), weights = problem.tasks.rows(index), weights[index] * n / self.batch_size

        def value(at: Params, x: Inputs) -> Tensor:
            return (weights * problem.loss(problem.output_fn(at, x), labels)).sum()

        states = split(self.at, self.like)
        with differentiable():
            if problem.batched:
                found = flatten(side_by_side(torch.func.grad(value), (0, None), states, inputs))  # type: ignore[arg-type]
            else:
                singles = [{name: value[c] for name, value in states.items()} for c in range(len(self.at))]
                found = torch.stack([flatten(torch.func.grad(value)(one, inputs), 0) for one in singles])
        if not bool(found.isfinite().all()):
            self._diverged()
        return found

    def _diverged(self) -> None:
        raise InputError(
            f"SGLD diverged at step {self.taken}: lower step_size ({self.step:.2g}), or raise damping "
            f"({self.damping:g})."
        )


def _diagnose(traces: Tensor, draws: int, thin: int) -> dict[str, float]:
    """R-hat and effective draws of the losses (chains, draws, P), with a warning where they are poor."""
    values = traces.cpu().numpy()
    worst, fewest = float(np.max(r_hat(values))), float(np.min(effective_draws(values)))
    if worst > MIXED or fewest < ENOUGH:
        warnings.warn(
            f"The chains of SGLD have not mixed (R-hat {worst:.2f}, {fewest:.0f} effective draws at the worst): raise "
            f"draws ({draws}) or thin ({thin}), or damping, which shortens the way.",
            DataWarning,
            stacklevel=3,
        )
    return {"r_hat": worst, "effective_draws": fewest}
