"""Products of each example's gradient with given directions, from what the layers of a model see.

Beside `whence.gradients.factored`, which does the same with Kronecker directions and makes no gradient of a weight at
all. Here the gradients of one layer at a time are made for all examples. For small weights, as those of adapters, that
takes little more than the forward and the backward pass; for large ones, vmap does as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whence.errors import InputError
from whence.gradients.factored import LINEAR, Kronecker, Layers, Readout, by_feature, patches, positions_of
from whence.models.examples import Examples, Inputs
from whence.models.functional import ModelFn, OutputFn, Params


def layers_of(output_fn: OutputFn, params: Params, examples: Examples) -> Layers | None:
    """The layers that hold the parameters; None if they do not tell each example's gradient, or it is too large."""
    if not isinstance(output_fn, ModelFn):
        return None
    try:
        found = Layers.checked(output_fn, params, Kronecker(32), examples.rows(slice(0, 3))[0])
    except InputError:
        return None
    return None if any(isinstance(layer, nn.Embedding) for layer in found.uses) else found


def block_along(layers: Layers, directions: Params, inputs: Inputs, readout: Readout) -> tuple[Tensor, Tensor]:
    """Outputs (b, C) and products (b, C, r) of each example's gradient with directions, tensors (r, ...)."""
    outputs, seen, gradients = layers.differentiated(inputs, readout)
    n, rank = len(outputs), len(next(iter(directions.values())))
    features = torch.zeros(*outputs.shape, rank, device=outputs.device)
    for c, deltas in enumerate(gradients):
        for use, delta in zip(seen, deltas, strict=True):
            for own, name in layers.uses[use.layer].items():
                found = _by_example(use.layer, own, use.inputs, delta, n)
                features[:, c] += found.flatten(1).float() @ directions[name].flatten(1).to(features).T
    return outputs, features


def _by_example(layer: nn.Module, own: str, inputs: Tensor, delta: Tensor, n: int) -> Tensor:
    """Gradient of each example by the weight or the bias of a layer, (n, ...)."""
    if not isinstance(layer, LINEAR):
        return by_feature(layer, delta * inputs if own == "weight" else delta)
    places = positions_of(layer, delta, n)
    return places.sum(dim=1) if own == "bias" else places.transpose(1, 2) @ patches(layer, inputs, n).to(delta)
