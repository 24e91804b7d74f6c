"""Losses of outputs, used in training and in estimates.

A `Loss` is convex in the outputs and computes its own slope and curvature, so an estimator can minimise it over a
linearised model without automatic differentiation. Everything broadcasts over leading axes: outputs (..., n, C) and
labels (n, ...) give (..., n). Outputs with several axes, such as the logits of a sequence, are flattened to C numbers.
For any other function of (outputs, labels), slope and curvature are derived: see callables.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from whence.errors import InputError, did_you_mean

IGNORED = -100  # the label that does not count, as in torch
MOST_CURVATURE = 2**29  # numbers in the curvature of a batch


@runtime_checkable
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
        """Refuse labels that do not fit the outputs of the model for some examples."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """−log softmax(outputs)[label], for labels 0 … C−1 and C ≥ 2 outputs.

    Of a sequence, with outputs (n, L, C) and labels (n, L), it is the mean over the places whose label counts.
    """

    smoothing: float = 0.0  # share of the label that all classes have alike
    ignored: int = IGNORED  # label of places in a sequence that do not count

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if labels.ndim > 1:
            logits, labels, weights = self._places(outputs, labels)
            losses = self(logits.flatten(-3, -2), labels)
            return (torch.unflatten(losses, -1, weights.shape) * weights).sum(-1)
        return outputs.logsumexp(-1) - self._expected(outputs, labels)

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if labels.ndim > 1:
            logits, flat, weights = self._places(outputs, labels)
            losses, slope = self.with_slope(logits.flatten(-3, -2), flat)
            slope = torch.unflatten(slope, -2, weights.shape) * weights[..., None]
            left = outputs.shape[-1] - slope.shape[-2] * slope.shape[-1]
            return (torch.unflatten(losses, -1, weights.shape) * weights).sum(-1), pad(slope.flatten(-2), (0, left))
        # Over few classes, several times as fast on a processor as softmax and log-sum-exp, which are for long rows.
        top = outputs.amax(-1, keepdim=True)
        slope = (outputs - top).exp_()
        total = slope.sum(-1, keepdim=True)
        losses = (total.log() + top)[..., 0] - self._expected(outputs, labels)
        slope /= total
        slope[..., torch.arange(len(labels), device=labels.device), labels] -= 1 - self.smoothing
        return losses, slope - self.smoothing / outputs.shape[-1] if self.smoothing else slope

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if labels.ndim > 1:
            logits, flat, weights = self._places(outputs, labels)
            check_curvature(outputs)
            blocks = torch.unflatten(self.root(logits.flatten(-3, -2), flat), -3, weights.shape)
            blocks = blocks * weights.sqrt()[..., None, None]
            places, classes = blocks.shape[-3:-1]
            here = torch.eye(places, dtype=blocks.dtype, device=blocks.device)
            whole = (blocks[..., :, :, None, :] * here[:, None, :, None]).flatten(-4, -3).flatten(-2)
            left = outputs.shape[-1] - places * classes
            return pad(whole, (0, left, 0, left))
        # diag(p) − ppᵀ = (D − p√pᵀ)(D − p√pᵀ)ᵀ with D = diag(√p), since √p has norm one.
        p = outputs.softmax(-1)
        return torch.diag_embed(p.sqrt()) - p[..., :, None] * p.sqrt()[..., None, :]

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        self._check_form(outputs, labels, where)
        if outputs.shape[-1] < 2:
            raise InputError(
                f"Cross-entropy needs two or more outputs, one per class. The model gives 1 for the {where}."
            )
        counted = labels != self.ignored if labels.ndim > 1 else torch.ones_like(labels, dtype=torch.bool)
        if labels.ndim > 1 and not bool(counted.any(1).all()):
            empty = int((~counted.any(1)).nonzero()[0, 0])
            raise InputError(
                f"Every example of the {where} must have a label that counts. All of row {empty} are {self.ignored}."
            )
        low, high = int(labels[counted].min()), int(labels[counted].max())
        if low < 0 or high >= outputs.shape[-1]:
            wrong = low if low < 0 else high
            raise InputError(
                f"Labels of the {where} must be from 0 to {outputs.shape[-1] - 1}, one per output. Got {wrong}."
            )

    def _check_form(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        if outputs.ndim == 3:
            if labels.shape[1:] != outputs.shape[1:2] or labels.is_floating_point():
                raise InputError(
                    f"Labels of the {where} must be class numbers, one integer for each of the {outputs.shape[1]} "
                    f"places of a sequence ({self.ignored} where none counts). Got {found}."
                )
        elif outputs.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
            fitting = labels.shape == (len(labels), outputs.shape[-1])
            others = " For several labels of an example give loss=nn.BCEWithLogitsLoss(), for numbers nn.MSELoss()."
            raise InputError(
                f"Labels of the {where} must be class numbers, one integer per example. Got {found}."
                f"{others if fitting else ''}"
            )

    def _expected(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The output that is expected of the label."""
        found = picked(outputs, labels)
        return found if not self.smoothing else (1 - self.smoothing) * found + self.smoothing * outputs.mean(-1)

    def _places(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (..., n, L, C), labels (n·L,) and what each place counts, (n, L)."""
        logits = torch.unflatten(outputs, -1, (labels.shape[1], -1))
        counts = labels != self.ignored
        weights = counts.to(logits.dtype) / counts.sum(1, keepdim=True).clamp_min(1)
        return logits, torch.where(counts, labels, 0).flatten(), weights


class NextToken(CrossEntropy):
    """Cross-entropy of each next token: outputs (n, L, C) at place t against the label of place t + 1.

    Labels are those of a causal language model in Hugging Face: the tokens themselves, −100 where none counts.
    """

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        if outputs.ndim != 3:
            raise InputError(
                "The loss 'next_token' needs logits of shape (n, L, V), as causal language models give them. The model "
                f"gives {tuple(outputs.shape)} for the {where}."
            )
        self._check_form(outputs, labels, where)
        super().check(outputs[:, :-1], labels[:, 1:], where)

    def _places(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.unflatten(outputs, -1, (labels.shape[1], -1))[..., :-1, :]
        return super()._places(logits.flatten(-2), labels[:, 1:])


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(∓output)), for labels 1 (−) and 0 (+) and a single output, such as the margin of a language model.

    With several labels per example, (n, C), it is the mean over the C outputs.
    """

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return softplus(outputs * (1 - 2 * _columns(labels, outputs))).mean(-1)

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slope = torch.sigmoid(outputs) - _columns(labels, outputs)
        return self(outputs, labels), slope / outputs.shape[-1]

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        p = torch.sigmoid(outputs)
        return torch.diag_embed((p * (1 - p) / outputs.shape[-1]).sqrt())

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        width = outputs[0].numel()
        if labels.ndim == 1 and width != 1:
            raise InputError(
                f"The logistic loss needs one output per label. The model gives {width} outputs, and an example of the "
                f"{where} has one label."
            )
        if labels[0].numel() != width or not bool(((labels == 0) | (labels == 1)).all()):
            raise InputError(
                f"Labels of the {where} must be 0 or 1, one for each of {width} outputs, for the logistic loss."
            )


@dataclass(frozen=True)
class Squared:
    """½‖output − label‖², for labels of shape (n,) or (n, C)."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.with_slope(outputs, labels)[0]

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slope = outputs - _columns(labels, outputs)
        return slope.square().sum(-1) / 2, slope

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device).expand(*outputs.shape, -1)

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        if labels[0].numel() != outputs[0].numel():
            found = f"{outputs[0].numel()} outputs and {labels[0].numel()} labels"
            raise InputError(f"The squared loss needs a label for each output. The {where} has {found} per example.")
        if not bool(labels.isfinite().all()):
            raise InputError(f"Labels of the {where} must be finite.")


LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "next_token": NextToken(),
    "logistic": Logistic(),
    "squared": Squared(),
}


_OTHER_NAMES = dict.fromkeys(("mse", "l2", "squared_error", "mean_squared_error"), "'squared'")
_OTHER_NAMES |= dict.fromkeys(("bce", "binary_cross_entropy", "multilabel"), "nn.BCEWithLogitsLoss()")
_OTHER_NAMES |= {"ce": "'cross_entropy'", "lm": "'next_token'", "causal": "'next_token'", "l1": "nn.L1Loss()"}


def loss_named(given: object) -> object:
    """Return the loss of that name, or our own for a loss of torch; anything else unchanged.

    >>> loss_named("squared")(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([2.])
    >>> loss_named(nn.CrossEntropyLoss(label_smoothing=0.1))
    CrossEntropy(smoothing=0.1, ignored=-100)
    """
    if isinstance(given, str):
        if given not in LOSSES:
            meant = _OTHER_NAMES.get(given.lower())
            hint = did_you_mean(given, LOSSES) if meant is None else f"Did you mean {meant}?"
            raise InputError(f"There is no loss {given!r}. {hint}")
        return LOSSES[given]
    if isinstance(given, type):
        raise InputError(
            f"The loss must be a function of (outputs, labels). Got a class: give {given.__name__}() instead."
        )
    if type(given) is nn.CrossEntropyLoss and given.weight is None and given.reduction != "sum":
        return CrossEntropy(given.label_smoothing, given.ignore_index)
    return given


def one_label_each(loss: Loss, labels: Tensor) -> bool:
    """Whether each example has one class, and its loss is that of the class's log-odds."""
    plain = isinstance(loss, Logistic) or (type(loss) is CrossEntropy and not loss.smoothing)
    return plain and labels.ndim == 1


def picked(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the output of each label."""
    return outputs.gather(-1, labels.expand(outputs.shape[:-1])[..., None])[..., 0]


def check_curvature(outputs: Tensor) -> None:
    """Refuse a curvature that would not fit in memory."""
    n, width = outputs.shape[-2:]
    if n * width**2 > MOST_CURVATURE:
        raise InputError(
            f"The curvature of {width:,} outputs per example is too large. Methods that need it (GradEx, influence "
            "functions, EK-FAC) are for fewer outputs; task vectors, one step, TracIn and retraining do without."
        )


def _columns(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels (n, C) as numbers."""
    return labels.to(outputs.dtype).reshape(len(labels), -1)
