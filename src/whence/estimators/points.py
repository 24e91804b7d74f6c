"""Points in parameter space: the model's own weights, or checkpoints of it, as functions and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import InputError, did_you_mean
from whence.functional import ModelFn, OutputFn, Params, functional

Checkpoint = nn.Module | Mapping[str, Tensor]


def points_of(
    model: nn.Module | OutputFn, params: Any, checkpoints: Sequence[Checkpoint], device: Any
) -> list[tuple[OutputFn, Params]]:
    """Function and parameters of each checkpoint, or of the model itself where there is none."""
    if isinstance(model, nn.Module):
        output_fn, start = functional(model, params)
        place = torch.device(device) if device is not None else next(iter(start.values())).device
        fixed = {name: value.to(place) for name, value in output_fn.fixed.items()}
        states = [{**fixed, **start, **_state(point, {**fixed, **start})} for point in checkpoints] or [
            {**fixed, **start}
        ]
        made: list[tuple[OutputFn, Params]] = []
        for state in states:
            at = {name: state[name].detach().to(place) for name in start}
            made.append((ModelFn(output_fn.module, {name: state[name].to(place) for name in fixed}), at))
        return made
    if not isinstance(params, Mapping) or not all(isinstance(value, Tensor) for value in params.values()):
        raise InputError("With an output_fn(params, inputs), 'params' must be the dict of tensors W₀ to linearise at.")
    start = {name: value.detach().to(device) for name, value in params.items()}
    return [(model, moved_to(start, point)) for point in checkpoints] or [(model, start)]


def moved_to(start: Params, point: Checkpoint) -> Params:
    """Parameters of a checkpoint, those of ``start`` by name and shape."""
    state = _state(point, start)
    if missing := [name for name in start if name not in state]:
        raise InputError(f"The checkpoint has no parameter {missing[0]!r}. {did_you_mean(missing[0], state)}")
    return {name: state[name].detach().to(value) for name, value in start.items()}


def _state(point: Checkpoint, like: Params) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, with shapes checked."""
    state = dict(point.state_dict() if isinstance(point, nn.Module) else point)
    for name, value in like.items():
        if name in state and state[name].shape != value.shape:
            found, wanted = tuple(state[name].shape), tuple(value.shape)
            raise InputError(f"{name!r} of the checkpoint must have shape {wanted}, as in the model. Got {found}.")
    return state
