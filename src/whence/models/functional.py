"""A model as a function of its parameters, used by retraining, gradients and merging.

``output_fn(params, inputs)`` returns the outputs of a batch, (n, C), with all axes after the first flattened.
`functional` makes one from any ``nn.Module``, which is copied without its weights and never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from whence.errors import InputError, some_of
from whence.models.examples import Inputs

Params = dict[str, Tensor]
OutputFn = Callable[[Params, Inputs], Tensor]
Filter = str | Iterable[str] | Callable[[str], bool] | None


class ModelFn:
    """Outputs of a module as a function of some of its parameters."""

    def __init__(self, module: nn.Module, fixed: Params) -> None:
        self.module = module  # without its weights
        self.fixed = fixed  # its other parameters, and its buffers
        self._recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())

    def __call__(self, params: Params, inputs: Inputs) -> Tensor:
        found = self.as_given(params, inputs)
        return found.flatten(1) if found.ndim > 1 else found[:, None]

    def as_given(self, params: Params, inputs: Inputs) -> Tensor:
        """Outputs in the shape that the model returns: (n,), (n, C) or with more axes."""
        several = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (several, {})
        # In training, where speed matters most, only plain gradients are taken.
        with plain_recurrence() if self._recurrent and not self.module.training else nullcontext():
            return as_outputs(torch.func.functional_call(self.module, {**self.fixed, **params}, args, kwargs))


def functional(model: nn.Module, params: Filter = None, *, training: bool = False) -> tuple[ModelFn, Params]:
    """Return the model as a function of some of its parameters, and their values, which share memory with the model.

    The model is called as ``model(x)``, ``model(*xs)`` or ``model(**xs)``, by the type of the inputs, and returns a
    tensor with a row of outputs per example, or an object with such ``logits``. It is neither changed nor kept. The
    parameters are those with names or patterns such as ``"head.*"``, those that pass a test of the name, or all that
    require a gradient (for a model with adapters: the adapters). Others, and buffers, keep their values.

    >>> output_fn, params = functional(nn.Linear(3, 2), "weight")
    >>> list(params), output_fn(params, torch.zeros(5, 3)).shape
    (['weight'], torch.Size([5, 2]))
    """
    chosen = _chosen(model, params)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fixed = {name: tensor.detach() for name, tensor in tensors.items() if name not in chosen}
    return ModelFn(_without_weights(model).train(training), fixed), chosen


def as_outputs(returned: object) -> Tensor:
    """Outputs, with one row per example, from the return value of a model."""
    outputs = getattr(returned, "logits", returned)
    if isinstance(outputs, dict):
        outputs = outputs.get("logits")
    if not isinstance(outputs, Tensor) or outputs.ndim == 0:
        found = "a single number" if isinstance(outputs, Tensor) else type(returned).__name__
        raise InputError(
            "The model must return one row of outputs per example, a tensor of shape (n, ...), or an object with such "
            f"'logits'. Got {found}: give a model that returns the outputs to attribute."
        )
    return outputs


def _chosen(model: nn.Module, params: Filter) -> Params:
    """Return the parameters that pass the filter."""
    known = dict(model.named_parameters())
    if params is None:
        keep = {name for name, value in known.items() if value.requires_grad}
        asked = "that require a gradient"
    elif callable(params):
        keep = {name for name in known if params(name)}
        asked = "for which the given test holds"
    else:
        patterns = [params] if isinstance(params, str) else list(params)
        for pattern in patterns:
            if not any(fnmatch(name, pattern) for name in known):
                raise InputError(f"The model has no parameter named {pattern!r}. There are: {some_of(known)}.")
        keep = {name for name in known if any(fnmatch(name, pattern) for pattern in patterns)}
        asked = f"named {some_of(patterns)}"
    if not keep:
        raise InputError(f"The model has no parameters {asked}. There are: {some_of(known)}.")
    return {name: value.detach() for name, value in known.items() if name in keep}


def _without_weights(model: nn.Module) -> nn.Module:
    """Copy the module with placeholders for its weights: a large model must not be held twice."""
    memo: dict[int, object] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(model, memo)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention made of matrix products: the fused kernels can be neither batched nor differentiated forward."""
    mha: Any = torch.backends.mha
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(fast)


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Recurrent layers made of matrix products: the fused kernels cannot be differentiated forward or twice."""
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(fused)
