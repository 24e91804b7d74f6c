"""Losses and metrics of users: any function of (outputs, labels), as in torch.

Training and estimates need the loss of every example, its slope and its curvature. A function of batches is therefore
called with each example as a batch of one, side by side, and differentiated; the loss of a batch is the mean over its
examples. A metric is called with the outputs for all queries of a target, and returns a value for each query, or one
for all of them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from whence.errors import DataWarning, InputError, brief
from whence.models.losses import IGNORED, Loss, check_curvature, loss_named

OwnFunction = Callable[[Tensor, Tensor], object]
GivenLoss = str | Loss | OwnFunction
OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
TRIED = 4  # examples


def as_loss(given: GivenLoss, shape: tuple[int, ...], labels: Tensor | None = None) -> Loss:
    """Return the loss of that name, or one made from a function of (outputs, labels).

    ``shape`` is that of the outputs of one example, and ``labels`` are those of the tasks.

    >>> loss = as_loss(nn.MSELoss(), (2,))
    >>> loss(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([2., 2.])
    """
    if isinstance(given, nn.Module) and labels is not None:
        given = copy.deepcopy(given).to(labels.device)
    if isinstance(given, OF_CLASSES) and labels is not None and _as_torch_has_them(labels, shape):
        return PerExample(given, shape, classes_last=False)
    found = loss_named(given)
    if isinstance(found, Loss):
        return found
    if not callable(found):
        raise InputError(
            "The 'loss' parameter of Problem must be the name of a loss or a function of (outputs, labels). "
            f"Got {found!r} instead."
        )
    return PerExample(found, shape)


def _as_torch_has_them(labels: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether labels are probabilities of classes, or classes that come second in the outputs, as in images."""
    second = len(shape) > 1 and labels.shape[1:] == shape[1:] and labels.shape[1:2] != shape[:1]
    shares = labels.is_floating_point() and tuple(labels.shape[1:]) == shape and bool((labels >= 0).all())
    return second or (shares and torch.allclose(labels.sum(1), torch.ones_like(labels[:, 0]), atol=1e-3))


class PerExample:
    """Loss of each example, from a function of outputs (1, ...) and labels (1, ...): the mean of what it returns.

    ``shape`` is that of the outputs of one example. With ``classes_last``, the outputs of a sequence have their classes
    last, while torch's losses of classes have them second.
    """

    def __init__(self, function: OwnFunction, shape: tuple[int, ...], *, classes_last: bool = True) -> None:
        self.given, self.shape = function, shape
        self._classes_last = classes_last and isinstance(function, OF_CLASSES) and len(shape) == 2
        self.side_by_side = True
        if isinstance(function, OF_CLASSES) and function.weight is not None and function.reduction == "mean":
            function = copy.copy(function)
            function.reduction = "none"  # else the weight of the only label is divided by itself
        self.function = function
        self.ignored = int(function.ignore_index) if isinstance(function, OF_CLASSES) else IGNORED

    @property
    def name(self) -> str:
        """Name of the function."""
        return name_of(self.given)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        flat, many = _flat(outputs, labels)
        if self.side_by_side:
            values: Tensor = torch.func.vmap(self._one)(flat, many)
        else:
            values = torch.stack([self._one(*pair) for pair in zip(flat, many, strict=True)])
        return values.reshape(outputs.shape[:-1])

    def with_slope(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each example, and its derivative by automatic differentiation."""
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            losses = self(at, labels)
            (slope,) = torch.autograd.grad(losses.sum(), at)
        return losses.detach(), slope

    def root(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Square root of the Hessian; directions in which the loss is not convex count as flat."""
        check_curvature(outputs)
        flat, many = _flat(outputs, labels)
        try:
            hessian = torch.func.vmap(torch.func.hessian(self._one))(flat, many)
        except Exception as error:
            raise InputError(
                f"The curvature of the loss {self.name} cannot be derived ({brief(error)}). Methods that need it "
                "(GradEx, influence functions) are for losses that torch.func can differentiate twice."
            ) from error
        values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
        root: Tensor = vectors * values.clamp_min(0).sqrt()[..., None, :]
        return root.reshape(*outputs.shape, -1)

    def check(self, outputs: Tensor, labels: Tensor, where: str) -> None:
        """Try the function on some examples, side by side or else one at a time."""
        flat, labels = outputs[:TRIED].flatten(1).detach().requires_grad_(), labels[:TRIED]
        for self.side_by_side in (True, False):
            try:
                with torch.enable_grad(), warnings.catch_warnings():
                    warnings.filterwarnings("error", message="Using a target size")  # torch compares each with all
                    found = self(flat, labels)
                break
            except Exception as error:
                trouble = error
        else:
            raise InputError(
                f"The loss {self.name} cannot be computed for the {where} ({brief(trouble)}). It got outputs of "
                f"shape {(1, *outputs.shape[1:])} and a label of shape {(1, *labels.shape[1:])}, {labels.dtype}."
            ) from trouble
        for good, what in (
            (found.requires_grad, "does not depend on the outputs in a way that can be differentiated"),
            (bool(found.isfinite().all()), "is not finite"),
        ):
            if not good:
                raise InputError(f"The loss {self.name} {what} for the {where}: give another one.")
        self._compare(flat.detach(), labels, found.detach())

    def _compare(self, flat: Tensor, labels: Tensor, found: Tensor) -> None:
        """Warn if the loss of a batch is not made of the losses of its examples."""
        unweighted = isinstance(self.given, OF_CLASSES) and self.given.weight is None
        if unweighted or len(found) < 2:
            return
        try:
            batch = _number(self.given(self._formed(flat), self._formed_labels(labels, flat)))
        except Exception:
            return  # it takes single examples only
        if not any(torch.allclose(batch, whole, rtol=1e-3, atol=1e-5) for whole in (found.mean(), found.sum())):
            warnings.warn(
                f"The loss {self.name} of a batch is not the mean over its examples, and whence uses the "
                f"loss of each example by itself: this trains with a different loss{self._difference}.",
                DataWarning,
                stacklevel=4,
            )

    @property
    def _difference(self) -> str:
        weight = getattr(self.given, "weight", None) if isinstance(self.given, OF_CLASSES) else None
        if weight is None:
            return ""
        return (
            ". Torch divides by the sum of the weights of a batch, whence by the number of its examples: divide the "
            "weights by their mean over your examples, and the two are alike"
        )

    def _one(self, output: Tensor, label: Tensor) -> Tensor:
        found = self.function(self._formed(output[None]), self._formed_labels(label[None], output[None]))
        if (
            isinstance(self.function, OF_CLASSES)
            and isinstance(found, Tensor)
            and found.ndim
            and not label.is_floating_point()
        ):
            return found.sum() / (label != self.function.ignore_index).sum().clamp_min(1)
        return _number(found)

    def _formed(self, outputs: Tensor) -> Tensor:
        """Outputs (n, C) in the form that the model gives them in; for torch's losses of classes, these come second."""
        formed = as_given(outputs, self.shape)
        return formed.mT if self._classes_last else formed

    def _formed_labels(self, labels: Tensor, outputs: Tensor) -> Tensor:
        return _formed_labels(self.function, labels, outputs, self.shape)


class OwnMetric:
    """A user's metric: a function of outputs (n, ...) and labels (n, ...) that returns n values, or one for all.

    ``shape`` is that of the outputs of one example.
    """

    def __init__(self, function: OwnFunction, name: str, shape: tuple[int, ...]) -> None:
        self.function, self.name, self.shape = function, name, shape
        self.whole = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Values (..., n) of outputs (..., n, C); of a metric of all queries together, the outputs themselves."""
        return outputs if self.whole else self._applied(outputs, labels).reshape(outputs.shape[:-1])

    def of_all(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Values (m,) of outputs (m, q, C) of all queries of a target."""
        return self._applied(outputs, labels)

    def _applied(self, outputs: Tensor, labels: Tensor) -> Tensor:
        many = outputs.reshape(-1, *outputs.shape[-2:])
        return torch.stack([torch.as_tensor(self._value(one, labels)).to(outputs) for one in many])

    def _value(self, outputs: Tensor, labels: Tensor) -> object:
        found = self.function(as_given(outputs, self.shape), _formed_labels(self.function, labels, outputs, self.shape))
        several = getattr(found, "ndim", 0) > 1
        return torch.as_tensor(found).double().flatten(1).mean(1) if several else found

    def check(self, outputs: Tensor, labels: Tensor, *, per_query: bool) -> None:
        """Try the function, and see whether it returns one value, or one for each query."""
        outputs = outputs.flatten(1)
        if len(labels) == 1:  # one value and one for each must be told apart
            outputs, labels = torch.cat([outputs] * 2), torch.cat([labels] * 2)
        shapes = []
        for n in (len(labels) - 1, len(labels)):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # few examples may all be of one class
                    shapes.append(torch.as_tensor(self._value(outputs[:n], labels[:n])).shape)
            except Exception as error:
                raise InputError(f"The metric {self.name!r} cannot be computed ({brief(error)}).") from error
        if shapes not in ([(), ()], [(len(labels) - 1,), (len(labels),)]):
            raise InputError(
                f"The metric {self.name!r} must return a number for each of {len(labels)} examples, or one for all. It "
                f"returned an array of shape {tuple(shapes[-1])}."
            )
        self._refuse_all_pairs(outputs, labels)
        self.whole = not shapes[-1]
        if self.whole and per_query:
            raise InputError(
                f"The metric {self.name!r} is one number for many queries: with per_query=True, give one that returns "
                "a number for each."
            )

    def _refuse_all_pairs(self, outputs: Tensor, labels: Tensor) -> None:
        """Refuse a function that compares each of n outputs (n, 1) with all labels (n,), as torch's arithmetic does."""
        formed = _formed_labels(self.function, labels, outputs, self.shape) is not labels
        if formed or len(self.shape) != 1 or outputs.shape[1] != 1 or labels.ndim != 1:
            return
        flat, column, others = outputs[:, 0], labels[:, None], labels.roll(1)
        try:
            given, shuffled, *right = (
                torch.as_tensor(self.function(*pair)).double().mean()
                for pair in ((outputs, labels), (outputs, others), (flat, labels), (outputs, column))
            )
        except Exception:
            return  # it takes one of the forms alone, so that it tells them apart
        alike = partial(torch.allclose, rtol=1e-4)
        if alike(given, shuffled) and alike(right[0], right[1]) and not alike(given, right[0]):
            n = len(labels)
            raise InputError(
                f"The metric {self.name!r} compares each output with the labels of all examples: outputs have shape "
                f"({n}, 1) and labels ({n},). Take outputs[:, 0] in it."
            )


def _formed_labels(function: OwnFunction, labels: Tensor, outputs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Labels; as numbers of the form of the outputs (n, C) for a loss of torch that compares the two."""
    ours = isinstance(function, _Loss) or getattr(function, "__module__", "") == "torch.nn.functional"
    classes = isinstance(function, OF_CLASSES) or name_of(function) in ("cross_entropy", "nll_loss")
    if not ours or classes or labels[0].numel() != outputs[0].numel():
        return labels
    return as_given(labels.to(outputs.dtype).reshape(outputs.shape), shape)


def is_whole(metric: object) -> bool:
    """Whether a metric is one number for all queries of a target."""
    return isinstance(metric, OwnMetric) and metric.whole


def as_given(outputs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Outputs (n, C) in the shape that the model returns; sequences may have another length."""
    if len(shape) == 1:
        return outputs
    return torch.unflatten(outputs, -1, (-1, *shape[1:])) if shape else outputs[..., 0]


def name_of(function: object) -> str:
    """Name of a function, or of the class of an object."""
    return str(getattr(function, "__name__", type(function).__name__))


def _flat(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (m·n, C), and the label of each."""
    many = labels.expand(*outputs.shape[:-2], *labels.shape)
    return outputs.reshape(-1, outputs.shape[-1]), many.reshape(-1, *labels.shape[1:])


def _number(found: object) -> Tensor:
    if not isinstance(found, Tensor):
        raise TypeError(f"it returned {type(found).__name__} where a tensor was expected")
    return found.mean()
