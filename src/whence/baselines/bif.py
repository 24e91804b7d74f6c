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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whence.baselines.curvature import Curvature
from whence.baselines.influence import example_weights
from whence.baselines.krylov import extremes
from whence.baselines.mixing import effective_draws, r_hat
from whence.baselines.scores import Scores, scores_of, shares_of
from whence.errors import DataWarning, InputError
from whence.gradients.groups import differentiable
from whence.gradients.projections import flatten, split
from whence.models.examples import Examples, Inputs
from whence.models.functional import Params
from whence.models.points import points_of
from whence.models.problem import Problem
from whence.models.stack import Batched, Stack, side_by_side
from whence.progress import track

STRIDE = 0.2  # step size by default, over that at which the stiffest direction would be drawn anew in each step
MIXED, ENOUGH = 1.1, 50  # R-hat above which, and effective draws below which, scores are unreliable


@dataclass(frozen=True, kw_only=True)
class Langevin:
    """How BIF draws weights: stochastic gradient Langevin dynamics (SGLD).

    Parameters
    ----------
    beta : float, optional
        Inverse temperature; by default the number of training examples.
    damping : float
        λ, how strongly draws are kept near the trained weights, against the curvature of the mean loss.
    chains, draws : int
        Number of chains, and of draws kept from each.
    thin : int
        Steps from one draw to the next.
    burn_in : int, optional
        Steps before the first draw; by default a quarter of the others.
    step_size : float, optional
        ε of the update −½ ε ∇ + √ε noise. By default a fifth of the inverse of the largest curvature, times β.
    batch_size : int, optional
        Examples in each step, drawn at random; by default all. The noise of batches widens the posterior, which the
        standard errors do not include.
    """

    beta: float | None = None
    damping: float = 1e-2
    chains: int = 8
    draws: int = 200
    thin: int = 10
    burn_in: int | None = None
    step_size: float | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("chains", 2), ("draws", 4), ("thin", 1)):
            if (number := getattr(self, name)) < least:
                raise InputError(f"The '{name}' of BIF must be {least} or more. Got {number}.")
        for name in ("beta", "damping", "step_size"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"The '{name}' of BIF must be a finite number above 0. Got {value!r}.")


USUAL = Langevin()


def bif_scores(
    problem: Problem,
    *,
    sampler: Langevin = USUAL,
    weighting: str = "sample",
    normalized: bool = True,
    batched: Batched = "auto",
    seed: int = 0,
) -> Scores:
    """Bayesian influence of every task on the loss of every target, as an additive surrogate.

    Parameters
    ----------
    problem, weighting, normalized, seed
        As in `whence.baselines`.
    sampler : Langevin
        How weights are drawn.
    batched : bool or "auto"
        Whether chains run side by side, as for `whence.Retrain`.

    Returns
    -------
    Scores
        With the standard error of each over chains; ``diagnostics`` has ``r_hat`` (largest over all losses),
        ``effective_draws`` (smallest) and ``step_size``.

    Examples
    --------
    >>> tasks = {"low": (torch.ones(1, 1), torch.zeros(1)), "high": (torch.ones(1, 1), torch.full((1,), 2.0))}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> found = bif_scores(Problem(model, tasks, tasks["high"], loss="squared"), sampler=Langevin(draws=500))
    >>> found.coef_.ravel().round(1), found.diagnostics["r_hat"] < 1.1
    (array([ 0.5, -0.5]), True)
    """
    stack = Stack(problem, batched)
    damping, draws, thin = sampler.damping, sampler.draws, sampler.thin
    shares = shares_of(problem, weighting)
    weights = example_weights(problem.tasks, shares)
    beta = float(len(problem.tasks) if sampler.beta is None else sampler.beta)
    step_size = sampler.step_size
    if step_size is None:
        (point,) = points_of(problem, [])
        curvature = Curvature(point, problem.loss, problem.tasks, weights, "gauss_newton", damping)
        like = flatten({name: value[None] for name, value in point[1].items()})[0]
        step_size = STRIDE / (beta * max(extremes(curvature, like, seed=seed)[1], damping))
    chain = _Chains(stack, weights, beta, damping, step_size, sampler.batch_size, sampler.chains, seed)
    before = draws * thin // 4 if sampler.burn_in is None else sampler.burn_in
    of_tasks, of_targets = [], []
    for number in track(range(draws), "draws of SGLD"):
        chain.advance(thin + (before if number == 0 else 0))
        of_tasks.append(chain.losses(problem.tasks, problem.tasks.owner))
        owner = (
            torch.arange(len(problem.targets), device=problem.device) if problem.per_query else problem.targets.owner
        )
        of_targets.append(chain.losses(problem.targets, owner))
    left, right = torch.stack(of_targets, 1), torch.stack(of_tasks, 1)  # (chains, draws, T), (chains, draws, K)
    told = _diagnose(torch.cat([left, right], 2), draws, thin)
    if normalized:
        right = right - right @ shares.to(right)[:, None]
    shared = left.mean((0, 1)), right.mean((0, 1))
    products = torch.einsum("cnk,cnt->ckt", right - shared[1], left - shared[0]) / draws
    each = -beta * shares.to(right)[:, None] * products
    told |= {"step_size": step_size, "beta": beta}
    return scores_of(problem, each.mean(0), "BIF", std=each.std(0) / math.sqrt(sampler.chains), diagnostics=told)


class _Chains:
    """States of all chains, side by side, and the steps that they take."""

    def __init__(
        self, stack: Stack, weights: Tensor, beta: float, damping: float, step: float, batch_size: int | None,
        chains: int, seed: int,
    ) -> None:  # fmt: skip
        self.stack, self.problem, self.weights, self.beta = stack, stack.problem, weights, beta
        self.damping, self.step = damping, step
        problem = self.problem
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
        """Take this many steps with each chain."""
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
        state = {**self.stack.start(len(self.at)), **split(self.at, self.like)}
        return self.stack.evaluate(state, examples, {"loss": self.problem.loss})["loss"]

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
            if self.stack.batched:
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
            f"draws ({draws}) or thin ({thin}), or damping.",
            DataWarning,
            stacklevel=3,
        )
    return {"r_hat": worst, "effective_draws": fewest}
