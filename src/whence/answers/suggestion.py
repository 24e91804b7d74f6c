"""Suggestion: the next subsets worth measuring, given what the runs so far have shown.

The surrogate's posterior does not need the outcome of a run to know how much that run would teach: suggestions are
made one after the other, each taking the earlier ones as measured, so that a batch does not ask the same thing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from whence.answers.search import objective_columns
from whence.designs import Exhaustive
from whence.designs.mixtures import mixtures_like
from whence.errors import InputError, counted
from whence.shown import Shown
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

if TYPE_CHECKING:
    import pandas as pd

CANDIDATES = 2000
ENUMERATED_TASKS = 12
MOST = 5000  # suggestions at once: minutes of work, and gigabytes for the covariance of the candidates
ALL_MEASURED = (
    "Every subset like the measured ones has been measured: only repeats with other seeds would add anything."
)


@dataclass(frozen=True)
class Suggestions(Shown):
    """Subsets (n, K) in the order to measure them, with what is predicted for them now, (n, T)."""

    subsets: Array
    predicted: Array
    std: Array
    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    by: str

    def to_frame(self) -> pd.DataFrame:
        """Return one row per suggested run: a column per task, then predicted outcomes and their std."""
        import pandas as pd

        frame = pd.DataFrame(self.subsets, columns=list(self.task_names))
        if np.isin(self.subsets, (0.0, 1.0)).all():
            frame = frame.astype(int)
        for t, name in enumerate(self.target_names):
            frame[f"predicted {name}"] = self.predicted[:, t]
            frame[f"std {name}"] = self.std[:, t]
        return frame

    def __str__(self) -> str:
        return f"to measure next, by {self.by}:\n{self.to_frame().to_string(index=False)}"


def suggest(
    model: Model, n: int = 10, *, by: str = "variance", target: str | None = None, seed: int = 0
) -> Suggestions:
    """Return the next ``n`` subsets worth measuring.

    Parameters
    ----------
    model : Model
    n : int
    by : {"variance", "improvement"}
        "variance": runs that most reduce the posterior variance over all subsets like the measured ones.
        "improvement": runs expected to beat the best one so far.
    target : str, optional
        The target to improve; the mean over all if not given.
    seed : int
        Of the candidate subsets.

    Examples
    --------
    >>> import whence
    >>> S = whence.FixedSize(3).draw(6, 12)
    >>> model = whence.fit(whence.Outcomes(subsets=S, values=S @ np.arange(6.0)))
    >>> suggest(model, n=2).subsets.shape
    (2, 6)
    """
    if n < 1:
        raise InputError(f"The 'n' parameter of suggest must be at least 1. Got {n} instead.")
    if n > MOST:
        raise InputError(
            f"must be at most {MOST:,}. Got {n:,} instead: measure some, and ask again.", parameter="n", of="suggest"
        )
    if by not in ("variance", "improvement"):
        raise InputError(f"The 'by' parameter of suggest must be 'variance' or 'improvement'. Got {by!r} instead.")
    pool = _candidates(model, n, np.random.default_rng(seed))
    if not len(pool):
        raise InputError(ALL_MEASURED)
    if len(pool) < n:
        raise InputError(
            f"Only {counted(len(pool), 'subset')} like the measured ones {'is' if len(pool) == 1 else 'are'} left to "
            f"measure. Ask for at most {len(pool)}."
        )
    covariance, noise = model.covariance(pool)
    planned = _Planned(covariance, noise, n)
    chosen: list[int] = []
    if by == "improvement":
        columns, sign = objective_columns(model, target)
        mean, std = model.predict_quietly(pool, return_std=True)
        goodness = sign * mean[:, columns].mean(1)
        # The covariance is relative; the std of predictions brings it to the scale of the outcome.
        unit = float(np.median(std[:, columns].mean(1) / np.sqrt(np.diag(covariance) + noise)))
        measured = sign * model.outcomes.values[:, columns].mean(1)
        # Where no run has all the targets, the best prediction at a known subset stands in for the best run.
        if np.isnan(measured).all():
            measured = sign * model.predict_quietly(model.subsets)[:, columns].mean(1)
        best = np.nanmax(measured)
    for _ in range(n):
        if by == "variance":
            worth = planned.squares / (planned.variance + noise)
        else:
            spread = unit * np.sqrt(planned.variance)
            z = (goodness - best) / spread
            worth = spread * (z * ndtr(z) + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
        worth[chosen] = -np.inf
        pick = int(worth.argmax())
        chosen.append(pick)
        planned.add(pick)
    predicted, std = model.predict_quietly(pool[chosen], return_std=True)
    return Suggestions(pool[chosen], predicted, std, model.task_names, model.target_names, by)


class _Planned:
    """Posterior variances of a pool of subsets, as if some of them had been measured.

    Each of these takes c cᵀ / (variance + noise) from the covariance C, c being its column then. The columns are kept
    instead of the matrix, so that one more costs a product with a vector.
    """

    def __init__(self, covariance: Array, noise: float, n: int) -> None:
        self._before, self._noise = covariance, noise
        self._taken = np.empty((len(covariance), n))
        self._count = 0
        self.variance = np.maximum(np.diag(covariance), 1e-300)  # (p,)
        self.squares = np.einsum("ij,ij->j", covariance, covariance)  # (p,) of the columns of the covariance

    def add(self, pick: int) -> None:
        """Take the subset ``pick`` as measured."""
        taken = self._taken[:, : self._count]
        column = self._before[:, pick] - taken @ taken[pick]
        column /= np.sqrt(self.variance[pick] + self._noise)
        through = self._before @ column - taken @ (taken.T @ column)
        self.squares += column * (column * (column @ column) - 2 * through)
        self.variance = np.maximum(self.variance - column**2, 1e-300)
        self._taken[:, self._count] = column
        self._count += 1


def _candidates(model: Model, n: int, rng: np.random.Generator) -> Array:
    """Subsets not measured yet that look like the measured or estimated ones (as many tasks, or similar mixtures)."""
    runs = model.subsets
    n_tasks = runs.shape[1]
    if not model.outcomes.is_binary:
        return mixtures_like(runs, CANDIDATES + n, rng)
    sizes = runs.sum(1).astype(int)
    if n_tasks <= ENUMERATED_TASKS:
        pool = Exhaustive().draw(n_tasks)
        pool = pool[np.isin(pool.sum(1), sizes)]
    else:
        drawn = rng.choice(sizes, CANDIDATES + n)
        order = rng.random((len(drawn), n_tasks)).argsort(1).argsort(1)
        pool = np.unique((order < drawn[:, None]).astype(np.float64), axis=0)
    seen = {row.tobytes() for row in model.outcomes.subsets + 0.0}
    fresh = np.array([row.tobytes() not in seen for row in pool], dtype=bool)
    pool = pool[fresh & (pool.sum(1) > 0)]
    return np.asarray(pool[rng.permutation(len(pool))[: CANDIDATES + n]])
