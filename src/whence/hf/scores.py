"""Scores of one joint run as estimates: TRAK halfway along a training on all sources, as an outcome function.

Every source gets one score per target, and a subset is worth the sum of those of its sources. It errs in other ways
than merged adapters do, so that both together tell far more than either.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from whence.arrays import Floats
from whence.baselines import Scores, trak_scores
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import as_subset, as_subsets
from whence.gradients.linearize import Features
from whence.models.problem import Problem, State
from whence.models.recipe import Recipe
from whence.models.stack import Stack
from whence.models.targets import by_target, outcome_names
from whence.models.training import train

HALFWAY = 0.5  # of the steps of a run
EXAMPLES = 64  # of each source that features are made of
RANK, L2 = 512, 1.0


class JointScores:
    """Outcome function that adds up TRAK scores of the tasks, found along one run on all of them.

    Parameters
    ----------
    problem : Problem
        With the loss as its only metric.
    recipe : Recipe
        That of the runs to be estimated.
    examples : int
        Of each task that features are made of.
    seed : int
    """

    batch_size = 256

    def __init__(self, problem: Problem, recipe: Recipe, *, examples: int = EXAMPLES, seed: int = 0) -> None:
        self.problem, self.recipe, self.examples, self.seed = problem, recipe, examples, seed
        self.task_names, self.maximize = problem.task_names, problem.maximize

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the outcomes depend on."""
        return problem_digests(self.problem) | {"scores": f"{self.provenance} {self.seed}"}

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        how = f"after {HALFWAY:g} of a run on all tasks, {self.examples} examples a task"
        return {"outcomes": "TRAK scores", "trak": how, "recipe": str(self.recipe)}

    @cached_property
    def scores(self) -> Scores:
        """The score of every task; found when first asked for."""
        features = Features(examples=self.examples)
        rank = min(RANK, self.problem.n_trained)
        return trak_scores(
            self.problem, rank, l2=L2, weighting=self.recipe.weighting, checkpoints=[self._halfway()],
            features=features, seed=self.seed,
        )  # fmt: skip

    def __call__(self, subset: Any, seed: int = 0) -> dict[str, Any]:
        """Estimated outcomes of one subset."""
        found = self.batch(as_subset(subset, self.task_names))
        return {name: value[0] for name, value in found.items()}

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q)."""
        rows = as_subsets(subsets, self.task_names)
        values = np.asarray(self.scores.predict(rows)).reshape(len(rows), -1)
        targets = self.problem.targets
        if self.problem.per_query:
            return by_target({"loss": torch.from_numpy(values)}, targets, per_query=True)
        return dict(zip(outcome_names("loss", targets.names), values.T, strict=True))

    def _halfway(self) -> State:
        """The model in the middle of a run on all tasks."""
        stack, everything = Stack(self.problem, batched=False), np.ones((1, len(self.task_names)))
        steps = max(1, math.ceil(HALFWAY * self.recipe.steps))
        state = train(stack, self.recipe, stack.start(1), everything, np.array([self.seed]), steps)
        return {name: value[0] for name, value in state.items()}
