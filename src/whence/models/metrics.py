"""Metrics of outputs, by name or given as functions: how a model is evaluated on the targets.

Like losses, they broadcast over leading axes: outputs (..., n, C) and labels (n, ...) give (..., n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from whence.errors import InputError, did_you_mean
from whence.models.callables import OwnFunction, OwnMetric, name_of
from whence.models.losses import IGNORED, Loss, NextToken, picked

Metric = Callable[[Tensor, Tensor], Tensor]  # outputs (..., n, C), labels (n, ...) → (..., n)
GivenMetrics = str | OwnFunction | Iterable[str | OwnFunction] | Mapping[str, str | OwnFunction]


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output (or the sign of the only one) is the label, else 0; the mean over several labels."""
    if labels.ndim > 1:
        return ((outputs > 0) == (labels.reshape(len(labels), -1) > 0)).to(outputs.dtype).mean(-1)
    guess = outputs.argmax(-1) if outputs.shape[-1] > 1 else (outputs[..., 0] > 0).to(labels.dtype)
    return (guess == labels).to(outputs)


def margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """Log-odds of the label: its output less the log-sum-exp of the others, or the only output with its sign."""
    if outputs.shape[-1] == 1:
        return outputs[..., 0] * (2 * labels.to(outputs) - 1)
    index = labels.expand(outputs.shape[:-1])[..., None]
    others = outputs.scatter(-1, index, float("-inf"))
    return picked(outputs, labels) - others.logsumexp(-1)


# Losses of torch, by their names, whose labels are not classes, and whose outputs are not log-odds.
OF_NUMBERS = {"Squared", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"}
OF_NUMBERS |= {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
OF_PROBABILITIES = {"BCELoss", "binary_cross_entropy"}
METRICS: dict[str, Metric] = {"accuracy": accuracy, "margin": margin}  # higher is better; "loss" is the loss itself


def metrics_named(
    given: GivenMetrics, loss: Loss, labels: Tensor | None = None, shape: tuple[int, ...] = (1,)
) -> dict[str, Metric]:
    """Return the metrics by name, from names or functions of (outputs, labels).

    ``labels`` are those of the targets, and ``shape`` is that of the outputs of one example.

    >>> from whence.models.losses import CrossEntropy
    >>> list(metrics_named(["loss", "accuracy"], CrossEntropy()))
    ['loss', 'accuracy']
    """
    own: dict[str, Metric] = {"loss": loss, **getattr(loss, "metrics", {})}
    known = {**METRICS, **own}
    found: dict[str, Metric] = {}
    for name, one in _pairs(given):
        if not isinstance(one, str):
            found[name] = OwnMetric(one, name, shape)
            continue
        if one not in known:
            raise InputError(f"There is no metric {one!r}. {did_you_mean(one, known)}")
        found[name] = own[one] if one in own else _of_classes(one, loss, labels, shape)
    return found


def _pairs(given: GivenMetrics) -> list[tuple[str, str | OwnFunction]]:
    """Name and metric of each."""
    if isinstance(given, Mapping):
        wanted = [(str(name), one) for name, one in given.items()]
    else:
        many = [given] if isinstance(given, str) or callable(given) else list(given)
        wanted = [(one if isinstance(one, str) else name_of(one), one) for one in many]
    for name, one in wanted:
        if not isinstance(one, str) and not callable(one):
            raise InputError(f"A metric must be a name or a function of (outputs, labels). Got {one!r}.")
        if name == "<lambda>":
            raise InputError("A metric without a name needs one: give metrics={'name': function}.")
    return wanted


def _are_classes(labels: Tensor | None, shape: tuple[int, ...]) -> bool:
    """Whether labels number the outputs from 0, or are 0 and 1."""
    if labels is None or bool(((labels == 0) | (labels == 1)).all()):
        return True
    one_output = labels.ndim == 1 and math.prod(shape) == 1
    return not labels.is_floating_point() and not one_output and (labels.ndim > 1 or bool((labels >= 0).all()))


def _of_classes(name: str, loss: Loss, labels: Tensor | None, shape: tuple[int, ...]) -> Metric:
    """The metric of classes, as the labels have them."""
    of = name_of(getattr(loss, "given", loss))
    if of in OF_NUMBERS or not _are_classes(labels, shape):
        raise InputError(
            f"The metric {name!r} is for classes, counted from 0. For other labels, give 'loss' or a function of "
            "(outputs, labels)."
        )
    if labels is None or labels.ndim == 1 or (name == "accuracy" and len(shape) < 2):
        known = METRICS[name]
        if of in OF_PROBABILITIES:
            return lambda outputs, labels: known(outputs.logit(torch.finfo(outputs.dtype).eps), labels)
        return known
    if name == "margin":
        raise InputError("The metric 'margin' is for one label per example. Use 'loss' or 'accuracy'.")
    if labels.shape[1:] != shape[:1]:
        raise InputError(f"The metric {name!r} is for classes that come last. Give a function of (outputs, labels).")
    ignored, shifted = getattr(loss, "ignored", IGNORED), isinstance(loss, NextToken)

    def of_places(outputs: Tensor, labels: Tensor) -> Tensor:
        guess = torch.unflatten(outputs, -1, (labels.shape[1], -1)).argmax(-1)
        guess, labels = (guess[..., :-1], labels[:, 1:]) if shifted else (guess, labels)
        counts = labels != ignored
        right: Tensor = ((guess == labels) & counts).sum(-1).to(outputs)
        return right / counts.sum(-1)

    return of_places
