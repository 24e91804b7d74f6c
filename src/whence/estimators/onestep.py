"""One step: any subset from K gradients at W₀, and a real forward pass at the weights they lead to.

The cheapest estimate: one pass over the tasks, no training and no gradient per example. The first step of training on
a subset moves the weights by −scale · Σ_k w_k u_k, with u_k the mean gradient of task k as the optimizer scales it; the
model is evaluated at the moved weights. This works for short fine-tuning.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from whence.estimators.deltas import Vectors
from whence.estimators.merged import Merged, Scale
from whence.gradients.groups import task_gradients
from whence.gradients.projections import split
from whence.models.optimizers import AdamW
from whence.models.points import points_of
from whence.models.problem import Problem
from whence.models.recipe import Recipe, Weighting
from whence.models.stack import Batched, Stack

REACH = np.geomspace(1e-3, 1, 13)  # lengths of the step that are tried, as shares of the length of W₀
KEPT = 0.9  # of the decrease of the loss that the gradients promise


class OneStep(Merged):
    """Outcome function that takes one step along the tasks' gradients, and runs the model there.

    Parameters
    ----------
    problem : Problem
    recipe : Recipe, optional
        Recipe of the runs to be estimated. Its optimizer scales the gradients: AdamW divides the gradients of every
        parameter by their root mean square over tasks, SGD leaves them unchanged. By default AdamW.
    weighting : {"sample", "task"}, optional
        How the gradients of a subset are averaged: by the number of examples of the tasks, or all equally. By default
        as in the recipe; without one, "sample".
    scale : float or mapping of str to float, optional
        Length of the step, or lengths by pattern of parameter names. By default the longest step for which the loss on
        the tasks' own examples falls by at least 0.9 of what the gradients predict. `tuned` chooses it by true runs.
    seed : int
        For the examples used to choose the scale.
    batched : bool or "auto"
        As for `Retrain`.

    Examples
    --------
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> model = torch.nn.Linear(4, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> problem = Problem(model, tasks, (inputs, labels), metrics="accuracy")
    >>> OneStep(problem).batch([[1, 1], [1, 0]])["accuracy"]
    array([1. , 0.5])
    """

    whole_runs = False

    def __init__(
        self,
        problem: Problem,
        recipe: Recipe | None = None,
        *,
        weighting: Weighting | None = None,
        scale: Scale | None = None,
        seed: int = 0,
        batched: Batched = "auto",
    ) -> None:
        own: Weighting = "sample" if recipe is None else recipe.weighting
        super().__init__(Stack(problem, batched), weighting=weighting or own, scale=scale, seed=seed)
        self.optimizer = AdamW() if recipe is None else recipe.update

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        step = f"{self.weighting} × {self.scale}, scaled as by {self.optimizer}"
        return {"outcomes": "one step of the task gradients", "step": step}

    @property
    def scales(self) -> tuple[float, ...]:
        """Scales worth trying: steps from a thousandth of the length of W₀ to all of it."""
        together = torch.full((1, len(self.task_names)), 1 / len(self.task_names))
        start = [self.problem.start[name] for name in self.problem.trained]
        step = [self.vectors.combine(name, together) for name in self.problem.trained]
        lengths = [float(torch.stack([part.double().norm() for part in parts]).norm()) for parts in (start, step)]
        return tuple(float(share * (lengths[0] or 1.0) / max(lengths[1], 1e-30)) for share in REACH)

    def default_scale(self) -> float:
        """Longest step up to which the loss on the tasks falls by 0.9 of what the shortest one promises, or more."""
        scales = self.scales
        before, *after = (float(self.losses_on_tasks(scale).double().mean()) for scale in (0.0, *scales))
        slope = (before - after[0]) / scales[0]
        if not slope > 0:  # nothing left to learn, or no gradient
            return scales[0]
        kept = [before - loss >= KEPT * slope * scale for scale, loss in zip(scales, after, strict=True)]
        return scales[max(kept.index(False) - 1, 0) if False in kept else -1]

    @cached_property
    def vectors(self) -> Vectors:
        """Minus the scaled gradient of every task at W₀; computed on first use."""
        (point,) = points_of(self.problem, [])
        gradients = task_gradients(self.problem, point, side_by_side=self.stack.batched)
        steps = split(-self.optimizer.first_steps(gradients), point[1])
        deltas = [{name: step[k] for name, step in steps.items()} for k in range(len(self.task_names))]
        return Vectors(deltas, self.problem.device)
