"""Losses and metrics of outputs, shared by what trains models and by what estimates them.

A `Loss` is convex in the outputs and knows its own slope and curvature, so that an estimator can minimise it over a
linearised model without automatic differentiation. Everything broadcasts over leading axes: outputs (..., n, C) and
labels (n,) give (..., n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from whence.errors import InputError, did_you_mean

Metric = Callable[[Tensor, Tensor], Tensor]  # outputs (..., n, C), labels (n,) → (..., n)


class Loss(Protocol):
    """What training minimises, per example."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example, (..., n)."""
        ...

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each example, (..., n), and its derivative by the outputs, (..., n, C)."""
        ...

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Square root R of the second derivative of each loss, (..., n, C, C), with R Rᵀ the Hessian by the outputs."""
        ...

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        """Refuse labels that do not go with the outputs."""
        ...


class CrossEntropy:
    """−log softmax(outputs)[label], for labels 0 … C−1 and C ≥ 2 outputs."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.logsumexp(-1) - _picked(outputs, labels)

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # Over few classes, several times as fast on a processor as softmax and log-sum-exp, which are for long rows.
        top = outputs.amax(-1, keepdim=True)
        slope = (outputs - top).exp_()
        total = slope.sum(-1, keepdim=True)
        losses = (total.log() + top)[..., 0] - _picked(outputs, labels)
        slope /= total
        slope[..., torch.arange(len(labels), device=labels.device), labels] -= 1
        return losses, slope

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # diag(p) − ppᵀ = (D − p√pᵀ)(D − p√pᵀ)ᵀ with D = diag(√p), since √p has norm one.
        p = outputs.softmax(-1)
        return torch.diag_embed(p.sqrt()) - p[..., :, None] * p.sqrt()[..., None, :]

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        if outputs.shape[-1] < 2:
            raise InputError(
                f"Cross-entropy needs two or more outputs, one per class. The model gives 1 for the {where}."
            )
        if labels.ndim != 1 or labels.is_floating_point():
            found = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise InputError(f"Labels of the {where} must be class numbers, one integer per example. Got {found}.")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= outputs.shape[-1]:
            wrong = low if low < 0 else high
            raise InputError(
                f"Labels of the {where} must be from 0 to {outputs.shape[-1] - 1}, one per output. Got {wrong}."
            )


class Logistic:
    """log(1 + exp(∓output)), for labels 1 (−) and 0 (+) and a single output, such as the margin of a language model."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return softplus(outputs[..., 0] * (1 - 2 * labels.to(outputs)))

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self(outputs, labels), torch.sigmoid(outputs) - labels.to(outputs)[:, None]

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        p = torch.sigmoid(outputs)
        return (p * (1 - p)).sqrt()[..., None]

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        if outputs.shape[-1] != 1:
            found = outputs.shape[-1]
            raise InputError(
                f"The logistic loss needs one output per example. The model gives {found} for the {where}."
            )
        if labels.ndim != 1 or not bool(((labels == 0) | (labels == 1)).all()):
            raise InputError(f"Labels of the {where} must be 0 or 1, one per example, for the logistic loss.")


class Squared:
    """½‖output − label‖², for labels of shape (n,) or (n, C)."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.with_slope(outputs, labels)[0]

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slope = outputs - labels.to(outputs).reshape(len(labels), -1)
        return slope.square().sum(-1) / 2, slope

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device).expand(*outputs.shape, -1)

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        if labels[0].numel() != outputs.shape[-1]:
            found = f"{outputs.shape[-1]} outputs and {labels[0].numel()} labels"
            raise InputError(f"The squared loss needs a label for each output. The {where} has {found} per example.")
        if not bool(labels.isfinite().all()):
            raise InputError(f"Labels of the {where} must be finite.")


LOSSES: dict[str, Loss] = {"cross_entropy": CrossEntropy(), "logistic": Logistic(), "squared": Squared()}


def loss_named(name: str | Loss) -> Loss:
    """Return the loss of that name, or the loss itself.

    Examples
    --------
    >>> loss_named("squared")(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([2.])
    """
    if not isinstance(name, str):
        return name
    if name not in LOSSES:
        raise InputError(f"There is no loss {name!r}. {did_you_mean(name, LOSSES)}")
    return LOSSES[name]


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output (or the sign of the only one) is the label, else 0."""
    guess = outputs.argmax(-1) if outputs.shape[-1] > 1 else (outputs[..., 0] > 0).to(labels.dtype)
    return (guess == labels).to(outputs)


def margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """Log-odds of the label: its output less the log-sum-exp of the others, or the only output with its sign."""
    if outputs.shape[-1] == 1:
        return outputs[..., 0] * (2 * labels.to(outputs) - 1)
    index = labels.expand(outputs.shape[:-1])[..., None]
    others = outputs.scatter(-1, index, float("-inf"))
    return _picked(outputs, labels) - others.logsumexp(-1)


METRICS: dict[str, Metric] = {"accuracy": accuracy, "margin": margin}  # higher is better; "loss" is the loss itself


def metrics_named(names: str | list[str] | tuple[str, ...], loss: Loss) -> dict[str, Metric]:
    """Return the metrics of those names.

    Examples
    --------
    >>> list(metrics_named(["loss", "accuracy"], CrossEntropy()))
    ['loss', 'accuracy']
    """
    known: dict[str, Metric] = {"loss": loss, **METRICS, **getattr(loss, "metrics", {})}
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"There is no metric {name!r}. {did_you_mean(name, known)}")
        if name != "loss" and isinstance(loss, Squared):
            raise InputError(f"The metric {name!r} is for classes; with the squared loss there is only 'loss'.")
    return {name: known[name] for name in wanted}


def _picked(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the output of each label."""
    return outputs.gather(-1, labels.expand(outputs.shape[:-1])[..., None])[..., 0]
