"""Order: a surrogate of prompts in which it matters where a demonstration stands, and the best order by any model.

A prompt is an ordered list of demonstrations. The kernel is that of a feature map: a demonstration k in slot j is
e_k ⊗ ψ(j), a prompt is the sum over its slots, and κ(i, j) = ψ(i)·ψ(j) says how similar two slots are. With κ = 1 the
features are the subset, and the surrogate is blind to order; with κ = identity a demonstration in another slot is
another demonstration. Demonstrations of one group, such as a label, may share a part of what they do, so that "the last
label counts most" can be learned from few prompts. Linear and RBF kernels on these features, κ, the shared part and the
noise are chosen together by closed-form leave-one-out; order-blind ones are among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from whence.errors import InputError
from whence.surrogates.kernels import RBF, Array, Kernel, Sum
from whence.surrogates.posterior import Posterior
from whence.surrogates.sum_kernels import Polynomial
from whence.surrogates.tuning import grid_search, tuning_sample

SHARES = (0.0, 0.3, 3.0)  # weight of what the demonstrations of a group have in common
RATES = (0.1, 0.3, 1.0)  # of the RBF kernel, over the median squared distance
ALPHAS = tuple(10.0 ** np.arange(-3, 1.5, 0.5))
TUNING_RUNS = 300
MOST_ORDERS = 5040


def slot_kernels(n_slots: int) -> dict[str, Array]:
    """Similarities of slots, (n, n) each, by name; the first ignores order.

    >>> list(slot_kernels(2))
    ['blind', 'trend 0.3', 'trend 1', 'near 1', 'near 3', 'apart']
    >>> slot_kernels(2)["trend 1"]
    array([[2., 0.],
           [0., 2.]])
    """
    places = np.arange(n_slots)
    trend = np.linspace(-1, 1, n_slots) if n_slots > 1 else np.zeros(1)
    distance = np.abs(places[:, None] - places)
    found = {"blind": np.ones((n_slots, n_slots))}
    found |= {f"trend {weight:g}": 1 + weight * np.outer(trend, trend) for weight in (0.3, 1.0)}
    found |= {f"near {reach}": np.exp(-distance / reach) for reach in (1, 3)}
    return found | {"apart": np.eye(n_slots)}


class OrderSurrogate(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process from ordered prompts to outcomes.

    Parameters
    ----------
    n_demos : int
        Number of candidate demonstrations.
    groups : sequence of length ``n_demos``, optional
        What may share a part of its effect, such as the labels of the demonstrations.
    ordered : bool
        False for the same surrogate without order, to compare with.

    Attributes
    ----------
    slots_ : str
        Which of `slot_kernels` was chosen.
    share_ : float
        Weight of what the demonstrations of a group have in common.
    alpha_ : float

    Examples
    --------
    Only the last demonstration counts:

    >>> prompts = np.array(list(permutations(range(4), 2)))
    >>> values = np.array([0.0, 1.0, 2.0, 3.0])[prompts[:, 1]]
    >>> surrogate = OrderSurrogate(4).fit(prompts, values)
    >>> surrogate.predict([[0, 3], [3, 0]]).round(1).tolist(), surrogate.slots_ != "blind"
    ([3.0, 0.0], True)
    """

    def __init__(self, n_demos: int, *, groups: Sequence[Any] | None = None, ordered: bool = True) -> None:
        self.n_demos = n_demos
        self.groups = groups
        self.ordered = ordered

    def fit(self, X: ArrayLike, y: ArrayLike) -> OrderSurrogate:
        """Return self, fitted to prompts X (m, n), −1 for an empty slot, and outcomes y (m,) or (m, T)."""
        rows = self._prompts(X)
        Y = np.asarray(y, dtype=np.float64)
        if len(rows) < 3 or len(Y) != len(rows) or not np.isfinite(Y).all():
            raise InputError("There must be at least three prompts, and a finite outcome for each.")
        self.single_target_ = Y.ndim == 1
        self.n_slots_ = rows.shape[1]
        Y = Y.reshape(len(rows), -1)
        kernels = list(slot_kernels(self.n_slots_).items())[: None if self.ordered else 1]
        shares = SHARES if self.groups is not None else SHARES[:1]
        choices = [(name, share, rate) for name, _ in kernels for share in shares for rate in (0.0, *RATES)]
        sample, targets = tuning_sample(Y, TUNING_RUNS, seed=0)
        counts = np.ones(len(sample))
        grams = (self._features(rows[sample], name, share) for name, share, _ in choices)
        grams = (_kernel(F, rate).evaluate(F, F) for F, (*_, rate) in zip(grams, choices, strict=True))
        centred = Y[sample] - Y[sample].mean(0)
        which, self.alpha_ = grid_search(grams, centred[:, targets], ALPHAS, counts)
        self.slots_, self.share_, rate = choices[which]
        F = self._features(rows, self.slots_, self.share_)
        self.posterior_ = Posterior.condition(_kernel(F, rate), self.alpha_, F, Y, np.ones(len(F))).calibrated()
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return predicted outcomes, (m,) or (m, T) as y was; with ``return_std`` also the std of a new run."""
        check_is_fitted(self, "posterior_")
        rows = self._prompts(X)
        if rows.shape[1] != self.n_slots_:
            raise InputError(f"Prompts must have {self.n_slots_} slots, as in the fit. Got {rows.shape[1]}.")
        mean, variance = self.posterior_.predict(self._features(rows, self.slots_, self.share_))
        std = np.sqrt(variance + self.alpha_)[:, None] * self.posterior_.scale
        if self.single_target_:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    def _prompts(self, X: ArrayLike) -> NDArray[np.intp]:
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.min() < -1 or rows.max() >= self.n_demos:
            raise InputError(
                f"Prompts must be rows of places of demonstrations, from 0 to {self.n_demos - 1}, or −1 for an empty "
                f"slot. Got an array of shape {rows.shape} with {rows.dtype}."
            )
        return np.asarray(rows, dtype=np.intp)

    def _features(self, rows: NDArray[np.intp], slots: str, share: float) -> Array:
        """Features (m, D) of prompts."""
        values, vectors = np.linalg.eigh(slot_kernels(rows.shape[1])[slots])
        kept = values > 1e-9
        psi = vectors[:, kept] * np.sqrt(values[kept])  # (n, r), κ = ψ ψᵀ
        inside = np.eye(self.n_demos + 1)[rows][..., : self.n_demos]  # (m, n, K); −1 is the column that is cut off
        own = np.einsum("mnk,nr->mrk", inside, psi)
        if not share:
            return np.asarray(own.reshape(len(rows), -1))
        _, group = np.unique(np.asarray(self.groups), return_inverse=True)
        common = np.sqrt(share) * own @ np.eye(group.max() + 1)[group]
        return np.concatenate([own.reshape(len(rows), -1), common.reshape(len(rows), -1)], axis=1)


def _kernel(F: Array, rate: float) -> Kernel:
    """A linear kernel on features, or an RBF with a little of it, both about 1 where a prompt meets itself."""
    ones = np.ones(F.shape[1])
    squared = (F**2).sum(1)
    linear = Polynomial(1, ones / max(float(squared.mean()), 1e-12), 0.0)
    if not rate:
        return linear
    distance = squared[:, None] + squared - 2 * F @ F.T
    positive = distance[distance > 1e-9]
    typical = float(np.median(positive)) if len(positive) else 1.0
    return Sum((RBF(rate / typical * ones), linear), (1.0, 0.3))


def best_order(
    loss: Callable[[list[NDArray[np.intp]]], ArrayLike], demos: Iterable[int], *, seed: int = 0
) -> tuple[NDArray[np.intp], float, str]:
    """Order of demonstrations in which a prompt is predicted to do best.

    All orders are tried for up to seven demonstrations; beyond that, random ones and swaps of the best.

    Parameters
    ----------
    loss : callable
        What is predicted for a list of prompts; lower is better.
    demos : iterable of int
    seed : int

    Returns
    -------
    sequence : ndarray of shape (n,)
    predicted : float
    how : str

    Examples
    --------
    >>> best_order(lambda prompts: [abs(prompt[-1] - 2) for prompt in prompts], [1, 2, 3])[0].tolist()
    [1, 3, 2]
    """
    given = np.array(list(demos), dtype=np.intp)
    n_orders = factorial(len(given))
    if n_orders <= MOST_ORDERS:
        orders = [np.array(order, dtype=np.intp) for order in permutations(given.tolist())]
        values = np.asarray(loss(orders))
        best = int(np.argmin(values))
        return orders[best], float(values[best]), f"all {n_orders} orders tried"
    rng = np.random.default_rng(seed)
    orders = [given, *(rng.permutation(given) for _ in range(MOST_ORDERS // 10))]
    values = np.asarray(loss(orders))
    found, value = orders[int(np.argmin(values))], float(values.min())
    while True:
        swaps = [_swapped(found, i, j) for i in range(len(given)) for j in range(i)]
        values = np.asarray(loss(swaps))
        if not values.min() < value:
            return found, value, f"{len(orders)} random orders, then swaps until none helped"
        found, value = swaps[int(np.argmin(values))], float(values.min())


def _swapped(order: NDArray[np.intp], i: int, j: int) -> NDArray[np.intp]:
    other = order.copy()
    other[[i, j]] = other[[j, i]]
    return other
