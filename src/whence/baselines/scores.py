"""What a baseline gives: one coefficient per task and target, as an additive surrogate that knows their names.

A coefficient is the change of the target's loss to be expected when the task is in, so helpful tasks have negative
ones, and the prediction for all tasks together is the loss of the model as it is. The evaluator, attribution, plots and
selection take the result like any other surrogate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from whence.errors import InputError, some_of
from whence.measuring.values import flatten_batch
from whence.models.problem import Problem
from whence.models.sampling import task_shares
from whence.models.stack import Stack
from whence.surrogates.additive import AdditiveSurrogate

if TYPE_CHECKING:
    import pandas as pd


class Scores(AdditiveSurrogate):
    """Coefficients of a baseline, (K, T), as an additive surrogate.

    Attributes
    ----------
    coef_ : ndarray of shape (K, T)
        Change of each target's loss that each task brings.
    task_names, target_names : tuple of str
        Named as `whence.measure` names the outcomes of `whence.Retrain`.
    diagnostics : dict
        What the method says about its own computation.
    """

    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    diagnostics: Mapping[str, object]

    def to_frame(self) -> pd.DataFrame:
        """Table with a row per task and a column per target, as ``whence evaluate --scores`` reads it."""
        import pandas as pd

        return pd.DataFrame(self.coef_, pd.Index(self.task_names, name="task"), pd.Index(self.target_names))


def scores_of(
    problem: Problem,
    coef: Tensor,
    method: str,
    *,
    std: Tensor | None = None,
    diagnostics: Mapping[str, object] | None = None,
) -> Scores:
    """Scores with these coefficients (K, T) and standard errors, at the level of the model's own losses.

    ``method`` is its name in errors.
    """
    values = coef.double().cpu().numpy()
    if not np.isfinite(values).all():
        wrong = [problem.task_names[k] for k in np.flatnonzero(~np.isfinite(values).all(axis=1))]
        raise InputError(
            f"The scores that {method} found for {some_of(wrong, 3)} are not finite: check the model's losses on these "
            "tasks and on the targets, and give more damping where the method has it."
        )
    stack = Stack(problem.on_loss(), batched=False)
    now = stack.outcomes(stack.start(1))
    names, level = flatten_batch(now, 1)
    spread = None if std is None else std.double().cpu().numpy()
    made = Scores.from_coefficients(values, np.array(level[0]) - values.sum(axis=0), spread)
    assert isinstance(made, Scores)
    made.task_names, made.target_names, made.diagnostics = problem.task_names, names, diagnostics or {}
    return made


def shares_of(problem: Problem, weighting: str) -> Tensor:
    """Share of each task in the loss that training minimises, (K,), adding up to one."""
    everything = np.ones((1, len(problem.task_names)))
    shares = task_shares(everything, problem.tasks.sizes, weighting)[0]
    return torch.from_numpy(shares).to(problem.device, problem.precision)


def pulls(gradients: Tensor, shares: Tensor, *, normalized: bool) -> Tensor:
    """Derivative of the training gradient by the weight of each task, (K, d), from the tasks' gradients.

    The weighted loss of the paper is L(s) = Σ_k s_k p_k ℓ_k / Σ_j s_j p_j. Its gradient changes with s_k by
    p_k (∇ℓ_k − ∇L): a task that joins takes weight from the others. Where the others keep their weight, as in a sum of
    losses, or where ∇L is 0, as at the end of a training without weight decay, it changes by p_k ∇ℓ_k.

    Examples
    --------
    >>> pulls(torch.tensor([[1.0], [3.0]]), torch.tensor([0.5, 0.5]), normalized=True)
    tensor([[-0.5000],
            [ 0.5000]])
    """
    mean = shares @ gradients if normalized else 0.0
    return shares[:, None] * (gradients - mean)
