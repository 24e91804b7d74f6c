"""The learning curve: how the rank correlation on held-out runs grows with the number of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError
from whence.evaluation.splits import repeated_splits
from whence.evaluation.statistics import Floats
from whence.outcomes import Outcomes
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

SHARES = (0.2, 0.4, 0.6, 0.8)
FEWEST = 4
# Rank correlation gained by doubling the runs: above the first more runs help, below the second they hardly do.
HELPFUL, NEGLIGIBLE = 0.03, 0.01


@dataclass(frozen=True, eq=False)
class LearningCurve(Shown):
    """Rank correlation by number of distinct subsets learned from.

    Attributes
    ----------
    sizes : ndarray of shape (N,)
        Distinct subsets to learn from.
    lds : ndarray of shape (N, S)
        Mean LDS over targets, on each of S random splits.

    Examples
    --------
    >>> curve = LearningCurve(np.array([50, 100, 200]), np.array([[0.5], [0.6], [0.7]]))
    >>> round(curve.per_doubling, 3)
    0.1
    >>> curve.in_words()
    'More runs would help: each doubling of the runs has raised the rank correlation by about 0.10.'
    """

    sizes: NDArray[np.intp]
    lds: Floats

    @property
    def mean(self) -> Floats:
        """Mean over splits, (N,)."""
        return np.asarray(self.lds.mean(axis=1))

    @property
    def per_doubling(self) -> float:
        """Slope of the last three points, in rank correlation for twice as many subsets; NaN with fewer than two."""
        known = np.isfinite(self.mean)
        sizes, mean = self.sizes[known][-3:], self.mean[known][-3:]
        return float(np.polyfit(np.log2(sizes), mean, 1)[0]) if len(sizes) > 1 else np.nan

    def __str__(self) -> str:
        return f"{self.to_frame().to_string(index=False)}\n{self.in_words()}"

    def to_frame(self) -> pd.DataFrame:
        """Return a row per number of subsets: the mean LDS over splits, the lowest and the highest."""
        import pandas as pd

        return pd.DataFrame(
            {"subsets": self.sizes, "lds": self.mean, "low": self.lds.min(axis=1), "high": self.lds.max(axis=1)}
        )

    def in_words(self) -> str:
        """Whether more runs would help."""
        gain = self.per_doubling
        if np.isnan(gain):
            return "Too few runs to tell whether more would help."
        if gain > HELPFUL:
            return (
                f"More runs would help: each doubling of the runs has raised the rank correlation by about {gain:.2f}."
            )
        if gain > NEGLIGIBLE:
            return f"More runs would help a little: about {gain:.2f} in rank correlation for twice as many."
        return "The curve has levelled off: more runs of this kind would add little."


def learning_curve(
    outcomes: Outcomes,
    method: Callable[[Outcomes], Any],
    *,
    n_splits: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> LearningCurve:
    """Rank correlation on held-out runs of a method that learns from a fifth, two, three and four fifths of the runs.

    Parameters
    ----------
    outcomes : Outcomes
        All runs; splits are by distinct subset.
    method : callable
        Takes a table and returns a model, as `whence.fit` does.
    n_splits : int
        Random splits at each size.
    seed : int
        Same seed, same splits.
    progress : callable, optional
        Called with (done, total) after each fit.

    Returns
    -------
    LearningCurve
        LDS is NaN on splits where the method failed.

    Examples
    --------
    >>> from whence.evaluation import SizeOnly
    >>> subsets = np.random.default_rng(0).integers(0, 2, (40, 6))
    >>> learning_curve(Outcomes(subsets, subsets.sum(axis=1)), SizeOnly.fit, n_splits=1).lds.ravel().round(2)
    array([1., 1., 1., 1.])
    """
    n_distinct = len(outcomes.distinct()[0])
    sizes = sorted({round(share * n_distinct) for share in SHARES})
    sizes = [size for size in sizes if FEWEST <= size <= n_distinct - 2]
    if not sizes:
        raise InputError(
            f"A learning curve needs at least {FEWEST + 2} distinct subsets. Got {n_distinct} instead; measure more."
        )
    lds = []
    for done, size in enumerate(sizes):

        def report(step: int, steps: int, done: int = done) -> None:
            if progress is not None:
                progress(done * steps + step, len(sizes) * steps)

        found = repeated_splits(
            outcomes, {"method": method}, n_splits=n_splits, train_size=size, seed=seed, progress=report
        )
        lds.append(found.lds[0])
    return LearningCurve(np.array(sizes), np.array(lds))
