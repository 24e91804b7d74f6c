"""What a budget of runs is spent on: which estimates of many subsets, and how many true runs.

Prices are counted in passes of an example through the model, and given in true runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from whence.errors import InputError, counted
from whence.estimators.gradex import GradEx
from whence.gradients.routes import prices
from whence.models.problem import Problem
from whence.models.recipe import Recipe

RANK = 512  # directions of GradEx, and of joint scores
POINTS, MANY = (0.25, 0.5, 0.75), 256  # of the steps of the joint run, and examples of each source, for GradEx
HALFWAY, EXAMPLES = 0.5, 64  # the same for joint scores
EARLY = 0.15  # of the steps, after which runs of single sources are merged
SUBSETS_PER_TASK, FEWEST_SUBSETS, MOST_SUBSETS = 20, 200, 1000  # to estimate
MERGED_PER_TASK, FEWEST_MERGED, MOST_MERGED = 7, 60, 300  # to merge, each of which takes a pass over the queries
FEWEST_RUNS = 3
BACKWARD = 3  # passes that an example takes in training, one forward and two backward
GRADEX, SCORES, MERGED = "gradex", "joint scores", "merged adapters"


@dataclass(frozen=True)
class Plan:
    """What a budget is spent on, in true runs' worth of passes.

    Attributes
    ----------
    prices : dict of str to float
        Of each kind of estimates that is made.
    n_true : int
        True runs.
    """

    prices: dict[str, float]
    n_true: int

    @property
    def total(self) -> float:
        """All of it, in true runs."""
        return sum(self.prices.values()) + self.n_true


def plan_of(problem: Problem, recipe: Recipe, budget: float, *, weights: bool = False) -> Plan:
    """Spend a budget: up to half of it on estimates, and the rest on true runs, of which there are always a few.

    Estimates are those of GradEx along a joint run alone: other ones beside it cost more than they add. They are made
    where the budget is too small for it, or where its features are too expensive for the model.

    Parameters
    ----------
    problem : Problem
        On the loss.
    recipe : Recipe
    budget : float
        In true runs.
    weights : bool
        Whether sources are mixed with weights. Otherwise there are no more true runs than subsets.
    """
    if not FEWEST_RUNS <= budget < np.inf:
        raise InputError(
            f"must be at least {FEWEST_RUNS}, in true runs. Got {budget:g} instead.", parameter="budget", of="finetune"
        )
    n_tasks, queries = len(problem.task_names), len(problem.targets)
    steps = recipe.steps * (recipe.batch_size or len(problem.tasks)) * BACKWARD
    run = steps + queries
    many, few = (int(np.minimum(problem.tasks.sizes, each).sum()) for each in (MANY, EXAMPLES))
    merged = n_estimated(n_tasks, weights=weights)[MERGED]
    most = min(budget / 2, budget - FEWEST_RUNS)
    along = max(POINTS) * steps + len(POINTS) * _passes_of_features(problem) * (many + queries)
    if along <= most * run:
        chosen = {GRADEX: along / run}
    else:
        others = {
            SCORES: (HALFWAY * steps + BACKWARD * (few + queries)) / run,
            MERGED: (n_tasks * EARLY * steps + merged * queries) / run,
        }
        chosen = {}
        for name, price in sorted(others.items(), key=lambda item: item[1]):
            if sum(chosen.values()) + price <= most:
                chosen[name] = price
    n_true = int(budget - sum(chosen.values()))
    return Plan(chosen, n_true if weights else min(n_true, 2**n_tasks - 1))


def n_estimated(n_tasks: int, *, weights: bool) -> dict[str, int]:
    """How many subsets each kind of estimates is made of."""
    of_gradients = np.clip(SUBSETS_PER_TASK * n_tasks, FEWEST_SUBSETS, MOST_SUBSETS)
    wanted = {
        GRADEX: of_gradients,
        SCORES: of_gradients,
        MERGED: np.clip(MERGED_PER_TASK * n_tasks, FEWEST_MERGED, MOST_MERGED),
    }
    return {name: int(n) if weights else min(int(n), 2**n_tasks - 1) for name, n in wanted.items()}


def plan_in_words(plan: Plan) -> str:
    """A sentence on what will be run."""
    parts = [f"{name} ({price:.1f})" for name, price in plan.prices.items()]
    return ", ".join([*parts, counted(plan.n_true, "true run")]) + f": {plan.total:.0f} runs' worth in all"


def _passes_of_features(problem: Problem) -> float:
    """Passes that the features of an example take, infinitely many where a model cannot be linearised."""
    try:
        gradex = GradEx(problem, RANK)
    except InputError:
        return np.inf
    (output_fn, params), *_ = gradex.points
    some, _ = problem.tasks.rows(slice(0, 2))
    with torch.no_grad():
        width = output_fn(params, some).shape[1]
    each = min(prices(output_fn, params, problem.tasks, gradex.projection(0), width).values())
    return each * BACKWARD / 2  # it counts a backward pass as one, which takes as long as two
