"""How strongly to hold an update back: penalties that do not depend on the scale of a model's gradients."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning

from whence.arrays import Floats
from whence.gradients.linearize import Linearization
from whence.gradients.solve import solve
from whence.models.losses import Loss

_EXPONENTS = (-6.0, 0.0)  # of the shares considered
_HALVINGS = 8  # of that range; the penalty is then known to 5%


def mean_square(linear: Linearization) -> float:
    """Mean squared length of the features of an output."""
    total = sum(float(features.double().square().sum()) for _, features in linear.blocks(1))
    n, width, _ = linear.features.shape
    return total / (n * width)


def matching_share(linear: Linearization, shares: Floats, loss: Loss, wanted: float) -> float:
    """Return the penalty, as a share of `mean_square`, with which the linear model has a given training loss.

    Training that is stopped early does not go all the way to the minimum, nor does a penalised update. A run that was
    really made says how far it went; the loss of the solution grows with the penalty, so bisection finds the one
    that matches. NaN if none of those considered does.

    Parameters
    ----------
    linear : Linearization
        Of the tasks.
    shares : ndarray of shape (1, K)
        Shares of the tasks in the run, as `solve` takes them.
    loss : Loss
    wanted : float
        Mean loss of its examples after the run.
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
