"""Points in parameter space to linearise at: the model's own weights, or checkpoints of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from whence.errors import InputError, did_you_mean
from whence.models.functional import ModelFn, Params
from whence.models.problem import Problem, as_problem

Checkpoint = nn.Module | Mapping[str, Tensor]
Point = tuple[ModelFn, Params]  # the model as a function of what may move, and where that is


def points_of(problem: Problem, checkpoints: Iterable[Checkpoint]) -> list[Point]:
    """Return the model at each checkpoint, or unchanged without any."""
    everything = {**as_problem(problem).output_fn.fixed, **problem.start}
    points = []
    for checkpoint in list(checkpoints) or [everything]:
        state = {**everything, **state_of(checkpoint, everything, problem.trained)}
        fixed = {name: value for name, value in state.items() if name not in problem.trained}
        moving = {name: state[name] for name in problem.trained}
        points.append((ModelFn(problem.output_fn.module, fixed), moving))
    return points


def state_of(checkpoint: Checkpoint, like: Params, needed: Iterable[str], what: str = "the checkpoint") -> Params:
    """Return the tensors of a checkpoint that the model has, with the types and device of those in ``like``.

    The checkpoint must have all that are ``needed``; ``what`` names it in errors.

    >>> import torch
    >>> state_of({"w": torch.ones(2), "other": torch.zeros(1)}, {"w": torch.zeros(2)}, ["w"])
    {'w': tensor([1., 1.])}
    """
    state = dict(checkpoint.state_dict() if isinstance(checkpoint, nn.Module) else checkpoint)
    if missing := [name for name in needed if name not in state]:
        hint = did_you_mean(missing[0], state)
        raise InputError(f"{what[0].upper()}{what[1:]} has no parameter {missing[0]!r}. {hint}")
    for name, value in like.items():
        if name in state and state[name].shape != value.shape:
            found, wanted = tuple(state[name].shape), tuple(value.shape)
            raise InputError(f"{name!r} of {what} must have shape {wanted}, as in the model. Got {found}.")
    return {name: state[name].detach().to(value) for name, value in like.items() if name in state}
