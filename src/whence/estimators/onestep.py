"""One step: any subset from K gradients at W₀, and a real forward pass at the weights they lead to.

The cheapest estimate: one pass over the tasks, no training and no gradient per example. Training on a subset first
moves the weights by −scale · P⁻¹ Σ_k w_k g_k, with g_k the mean gradient of task k and P the optimizer's
preconditioner; the model at the moved weights is judged for real. It holds for short fine-tuning.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import nn

from whence.errors import InputError, did_you_mean
from whence.estimators.deltas import Vectors
from whence.estimators.merged import Merged, Rule, Scale
from whence.models.examples import Given
from whence.models.functional import Filter
from whence.models.losses import Loss
from whence.models.memory import free_bytes
from whence.models.problem import Batched, Problem, State

Preconditioner = Literal["adam", "none"]
REACH = np.geomspace(1e-3, 1, 13)  # lengths of the step that are tried, as shares of the length of W₀
KEPT = 0.9  # of the decrease of the loss that the gradients promise


class OneStep(Merged):
    """Outcome function that takes one step along the tasks' gradients, and runs the model there.

    Parameters
    ----------
    model, tasks, targets, loss, metrics, per_query, params, device, batched
        As for `Retrain`.
    preconditioner : {"adam", "none"}
        "adam": every parameter's gradient is divided by its root mean square over tasks, as AdamW divides it by that
        over batches. "none": gradients as they are, as in SGD.
    rule : {"mean", "sample"}
        How the gradients of a subset are averaged: all alike, or by the number of examples of the tasks.
    scale : float or mapping of str to float, optional
        Length of the step, or by pattern of parameter names. Where not given, the step goes as far as the gradients
        can be trusted: until the loss on the tasks' own examples falls by less than 0.9 of what they promise. `tuned`
        chooses it by true runs.
    seed : int
        Of the examples that a scale is chosen by.

    Examples
    --------
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> model = nn.Linear(4, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> OneStep(model, tasks, (inputs, labels), metrics="accuracy").batch([[1, 1], [1, 0]])["accuracy"]
    array([1. , 0.5])
    """

    whole_runs = False

    def __init__(
        self,
        model: nn.Module,
        tasks: Given,
        targets: Given,
        *,
        loss: str | Loss = "cross_entropy",
        metrics: str | list[str] = "loss",
        per_query: bool = False,
        params: Filter = None,
        device: torch.device | str | None = None,
        batched: Batched = "auto",
        preconditioner: Preconditioner = "adam",
        rule: Rule = "sample",
        scale: Scale | None = None,
        seed: int = 0,
    ) -> None:
        if preconditioner not in ("adam", "none"):
            told = did_you_mean(str(preconditioner), ("adam", "none"))
            raise InputError(f"There is no preconditioner {preconditioner!r}. {told}")
        problem = Problem(
            model, tasks, targets, loss=loss, metrics=metrics, per_query=per_query, params=params, device=device,
            batched=batched,
        )  # fmt: skip
        super().__init__(problem, rule=rule, scale=scale, seed=seed)
        self.preconditioner = preconditioner

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        step = f"{self.rule} × {self.scale}, preconditioner {self.preconditioner}"
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
        """−P⁻¹ g_k of every task; computed when first asked for."""
        gradients = [self._gradient(k) for k in range(len(self.task_names))]
        for name in self.problem.trained if self.preconditioner == "adam" else ():
            size = torch.stack([gradient[name] for gradient in gradients]).square().mean(0).sqrt()
            for gradient in gradients:
                # A parameter that no task moves stays where it is.
                gradient[name] = torch.where(size > 0, gradient[name] / size.clamp_min(1e-30), 0.0)
        return Vectors(
            [{name: -value for name, value in gradient.items()} for gradient in gradients], self.problem.device
        )

    def _gradient(self, task: int) -> State:
        """Mean gradient of the loss of one task's examples at W₀, the model behaving as in use."""
        problem = self.problem
        state = {name: value.clone().requires_grad_(name in problem.trained) for name, value in problem.start.items()}
        leaves = [state[name] for name in problem.trained]
        rows = torch.nonzero(problem.tasks.owner == task)[:, 0]
        total = [torch.zeros_like(leaf, dtype=torch.promote_types(leaf.dtype, torch.float32)) for leaf in leaves]
        fits = max(1, free_bytes(problem.device) // (2 * problem.bytes_per_row))
        for part in torch.split(rows, fits):
            inputs, labels = problem.tasks.rows(part)
            loss = problem.loss(problem.output_fn(state, inputs), labels).sum() / len(rows)
            for sum_, gradient in zip(total, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
                if gradient is not None:
                    sum_ += gradient
        return dict(zip(problem.trained, total, strict=True))
