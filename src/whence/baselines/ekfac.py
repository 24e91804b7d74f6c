"""The inverse of an eigenvalue-corrected Kronecker factorisation (EK-FAC) of the Gauss–Newton matrix, by curvlinops.

George et al. (2018); for influence functions Grosse et al. (2023). It costs a few passes over the data whatever
the number of right-hand sides, and is exact only where the inputs and output gradients of each layer are independent.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from whence.baselines.slopes import ROWS
from whence.errors import InputError
from whence.estimators.problem import Problem
from whence.losses import CrossEntropy, Logistic, Squared


def ekfac_solve(model: nn.Module, problem: Problem, right: Tensor, damping: float) -> Tensor:
    """Inverse of the damped factorisation applied to each row of ``right`` (r, d).

    Parameters
    ----------
    model : nn.Module
        The model of the problem, at the weights where the curvature is wanted.
    problem : Problem
    right : tensor of shape (r, d)
    damping : float
    """
    try:
        from curvlinops import EKFACLinearOperator, FisherType, KFACInverseLinearOperator
    except ModuleNotFoundError:
        raise InputError(
            'The solver "ekfac" needs curvlinops: pip install "whence[curvature]", or use "cg" with gauss_newton.'
        ) from None
    own = copy.deepcopy(model).to(problem.device).eval()
    named = dict(own.named_parameters())
    for name, value in named.items():
        value.requires_grad_(name in problem.trained)
    loss, scale = _torch_loss(problem)
    data = [problem.tasks.rows(rows) for rows in problem.tasks.blocks(ROWS)]
    if isinstance(problem.loss, (Logistic, Squared)):
        data = [(x, y.to(right).reshape(len(y), -1)) for x, y in data]
    try:
        factors = EKFACLinearOperator(
            own, loss, [named[name] for name in problem.trained], data, fisher_type=FisherType.TYPE2,
            separate_weight_and_bias=False, check_deterministic=False, num_data=len(problem.tasks),
        )  # fmt: skip
        # (s G + λ)⁻¹ = (G + λ/s)⁻¹ / s, where torch's mean over outputs makes the curvature 1/s of ours.
        solved: Any = KFACInverseLinearOperator(factors, damping=damping / scale, use_exact_damping=True) @ right.T
    except (NotImplementedError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(
            f"curvlinops has no EK-FAC for this model ({text}): choose linear and convolution layers with params=, "
            'or use "cg".'
        ) from error
    return torch.as_tensor(solved).T / scale


def _torch_loss(problem: Problem) -> tuple[nn.Module, float]:
    """The loss as torch has it, and its curvature over that of torch's."""
    if isinstance(problem.loss, CrossEntropy):
        return nn.CrossEntropyLoss(), 1.0
    if isinstance(problem.loss, Logistic):
        return nn.BCEWithLogitsLoss(), 1.0
    if isinstance(problem.loss, Squared):
        with torch.no_grad():
            width = problem.output_fn(problem.start, problem.tasks.rows(slice(0, 1))[0]).shape[1]
        return nn.MSELoss(), width / 2
    raise InputError('The solver "ekfac" knows the losses cross_entropy, logistic and squared; use "cg" for another.')
