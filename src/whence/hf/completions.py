"""A language model as a function from tokens to one number per example: how well it knows the completion.

With p the geometric mean of the probabilities of an example's trained tokens, the output is log p/(1 − p). Its logistic
loss is −log p, the mean negative log-likelihood of these tokens. A model of any vocabulary thus has a single output,
which can be trained, linearised and merged like that of any other model. A second output is the smallest lead of a
trained token over its best rival: if it is above 0, the model would write all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import checkpoint

from whence.hf.frozen import blocks_of, starting_at, states_below, up_to_first_trained
from whence.icl.language import import_transformers
from whence.models.losses import Logistic
from whence.models.metrics import Metric

LEAST = 1e-6  # loss of an example, below which there is nothing left to learn
STEP = 8  # tokens that lengths are rounded up to on a card, or an eighth of the next power of two
ROWS = 512  # examples at once, so that short ones are not padded to the length of long ones


class TokenLoss(Logistic):
    """Mean negative log-likelihood of the trained tokens, from the log-odds in the first output."""

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics of these outputs, beside the loss."""
        return {"accuracy": _ahead}

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().__call__(outputs[..., :1], labels)

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses, slope = super().with_slope(outputs[..., :1], labels)
        return losses, torch.cat([slope, torch.zeros_like(outputs[..., 1:])], dim=-1)

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        found = torch.zeros(*outputs.shape, outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        found[..., :1, :1] = super().root(outputs[..., :1], labels)
        return found

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        super().check(outputs[..., :1], labels, where)


class Wrapped(nn.Module):
    """A model of transformers that takes stacked adapters, and can be sent to another process."""

    takes_stacks = True
    most_rows = ROWS

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = stackable(model)

    def __reduce__(self) -> tuple[Callable[[type[Wrapped]], Wrapped], tuple[type[Wrapped]], dict[str, object]]:
        return _new, (type(self),), self.__dict__


def _new(kind: type[Wrapped]) -> Wrapped:
    """An empty wrapper; its content is loaded after transformers, which must be imported with care."""
    import_transformers()
    return kind.__new__(kind)


class Completions(Wrapped):
    """Log-odds of the trained tokens of each example, (n, 1), or with their lead as well, (n, 2).

    The model is a causal language model of transformers, with adapters or without. Accuracy needs the ``lead``.

    Examples are ``input_ids`` (n, L), padded at the end, and ``places`` (n, T) of their trained tokens, −1 where there
    are fewer. Only these go through the output layer. Later tokens do not change the outputs of earlier ones, so
    padding needs no mask. With ``states`` (n, L, d), which `below` computes once, the frozen blocks below the first
    trained one are not run again.
    """

    def __init__(self, model: nn.Module, *, lead: bool = False) -> None:
        super().__init__(model)
        self.lead = lead
        self.blocks = up_to_first_trained(self.model)

    def below(self, input_ids: Tensor) -> Tensor:
        """Hidden states (n, L, d) of tokens, as the first trained block is given them."""
        return states_below(self.model, self.blocks, input_ids)

    def trimmed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs without the padding that all examples (…, n) have; on a card, in few lengths, each recorded."""
        ids, places = inputs["input_ids"], inputs["places"]
        width, length = int((places >= 0).sum(-1).max()), _rounded_up(int(places.max()) + 1, ids.device)
        kept = {"input_ids": ids[..., :length], "places": places[..., :width]}
        return kept | {name: value[..., :length, :] for name, value in inputs.items() if name == "states"}

    def forward(self, input_ids: Tensor, places: Tensor, states: Tensor | None = None) -> Tensor:
        if not _only_shapes(input_ids):
            given = {"input_ids": input_ids, "places": places} | ({} if states is None else {"states": states})
            given = self.trimmed(given)
            input_ids, places, states = given["input_ids"], given["places"], given.get("states")
        real, at = places >= 0, places.clamp_min(1)
        with nullcontext() if states is None else starting_at(self.blocks, states):
            logits = self._logits(input_ids, at - 1)
        tokens = input_ids.gather(1, at)[..., None]
        each = -logits.log_softmax(-1).gather(-1, tokens)[..., 0]
        loss = ((each * real).sum(1) / real.sum(1)).clamp_min(LEAST)
        outputs = -loss - torch.log(-torch.expm1(-loss))
        if not self.lead:
            return outputs[:, None]
        ahead = logits.gather(-1, tokens)[..., 0] - logits.scatter(-1, tokens, float("-inf")).amax(-1)
        return torch.stack([outputs, ahead.masked_fill(~real, float("inf")).amin(1)], dim=1)

    def _logits(self, input_ids: Tensor, at: Tensor) -> Tensor:
        """Logits (n, T, V) that follow the tokens at some places, in single precision or better."""
        model: Any = self.model

        def pick(head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            (hidden,) = args
            return (hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1])),)

        hook = model.get_output_embeddings().register_forward_pre_hook(pick)
        try:
            logits: Tensor = model(input_ids=input_ids, use_cache=False).logits
        finally:
            hook.remove()
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Classes(Wrapped):
    """Logits (n, C) of a sequence classifier of transformers."""

    def trimmed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs without the padding that all examples (…, n) have; on a card, in few lengths, each recorded."""
        mask = inputs["attention_mask"]
        length = _rounded_up(int(mask.sum(-1).max()), mask.device)
        return {name: value[..., :length] for name, value in inputs.items()}

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if not _only_shapes(input_ids):
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
            input_ids, attention_mask = self.trimmed(inputs).values()
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class StackedLinear(nn.Linear):
    """A linear layer whose weight may be that of m models, (m, out, in), for inputs of m · n rows, model after model.

    One pass through the frozen layers then serves all models, and their own layers are one batched product each.
    Products have the precision of the inputs, which is that of the frozen model.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.to(input.dtype)
        bias = None if self.bias is None else self.bias.to(input.dtype)
        if weight.ndim == 2:
            return linear(input, weight, bias)
        rows = input.reshape(len(weight), -1, input.shape[-1])
        outputs = rows @ weight.mT
        if bias is not None:
            outputs = outputs + bias[:, None]
        return outputs.reshape(*input.shape[:-1], -1)


def stackable(model: nn.Module) -> nn.Module:
    """The same model, with trained linear layers that take stacked weights."""
    layer: Any
    for layer in model.modules():
        if type(layer) is nn.Linear and any(value.requires_grad for value in layer.parameters()):
            layer.__class__ = StackedLinear
        if hasattr(layer, "cast_input_dtype_enabled"):  # a layer of peft, which would cast everything to float32
            layer.cast_input_dtype_enabled = False
    return model


def checkpointed(model: nn.Module) -> nn.Module:
    """The same model with gradient checkpointing: blocks keep only their inputs, and run again in the backward pass."""
    for block in blocks_of(model):
        if getattr(block.forward, "func", None) is not _run_again:
            block.forward = partial(_run_again, block, block.forward)
    return model


def _run_again(block: nn.Module, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    # In the backward pass, the parameters that a function was called with are no longer in their places.
    tensors = {**dict(block.named_parameters()), **dict(block.named_buffers())}

    def run(*args: object) -> object:
        with _reparametrize_module(block, tensors):
            return forward(*args, **kwargs)

    # Only models that draw no random numbers are recorded, which may not look at the state of their generator.
    recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=not recording)


def _only_shapes(ids: Tensor) -> bool:
    """Whether the numbers that lengths depend on may not be looked at: by torch.func, or while a graph is recorded."""
    recording = ids.is_cuda and torch.cuda.is_current_stream_capturing()
    return recording or torch._C._functorch.peek_interpreter_stack() is not None


def _rounded_up(length: int, device: torch.device) -> int:
    step = max(STEP, 2 ** length.bit_length() // 8)
    return -(-length // step) * step if device.type == "cuda" else length


def _ahead(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where all trained tokens are what the model would write, else 0."""
    return (outputs[..., -1] > 0).to(outputs)
