"""How strongly to hold an update back, whatever the scale of a model's gradients, and whether there is any to make."""

from __future__ import annotations

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning

from whence.arrays import Floats
from whence.errors import DataWarning
from whence.gradients.linearize import Linearization
from whence.gradients.solve import solve
from whence.models.losses import Loss

_EXPONENTS = (-6.0, 0.0)  # of the shares considered
LEARNED = 0.02  # share of the loss of a model that knows nothing, below which there is nothing left to learn
_HALVINGS = 8  # of that range; the penalty is then known to 5%


def mean_square(linear: Linearization) -> float:
    """Mean squared length of the features of an output."""
    total = sum(float(features.double().square().sum()) for _, features in linear.blocks(1))
    n, width, _ = linear.features.shape
    return total / (n * width)


def matching_share(linear: Linearization, shares: Floats, loss: Loss, wanted: float) -> float:
    """Return the penalty, as a share of `mean_square`, with which the linear model has a given training loss.

    Training that is stopped early does not reach the minimum, and neither does a penalised update. The loss of the
    solution for the ``shares`` (1, K) of the tasks grows with the penalty, so bisection finds the penalty that gives
    the ``wanted`` mean loss of a true run; NaN if none in the range does.
    """
    scale = mean_square(linear)

    def above(exponent: float) -> bool:
        l2 = scale * 10.0**exponent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the loss is near enough for a comparison
            found = solve(linear, shares, loss, l2=l2, tol=1e-4)
        return bool(found.objective[0] - l2 / 2 * float(found.delta.square().sum()) > wanted)

    low, high = _EXPONENTS
    if above(low) or not above(high):
        return float("nan")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return float(10.0 ** ((low + high) / 2))


def warn_if_learned(tasks: Linearization, loss: Loss, where: str) -> None:
    """Warn of a point, such as "The model", at which the tasks have been learned already."""
    labels = tasks.examples.labels
    idle = torch.zeros_like(tasks.outputs)
    if labels.is_floating_point() and labels[0].numel() == idle.shape[1]:
        idle += labels.to(idle).reshape(len(labels), -1).mean(dim=0)
    now, before = (float(loss(outputs, labels).mean()) for outputs in (tasks.outputs, idle))
    if now < LEARNED * before:
        warnings.warn(
            f"{where} has learned the tasks already (loss {now:.2g}, {before:.2g} without any training): its "
            "gradients vanish, and GradEx can estimate almost nothing there. Use an earlier or pretrained point.",
            DataWarning,
            stacklevel=6,
        )
