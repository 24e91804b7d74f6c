"""How many runs it takes to see an effect of a given size, from the noise of the runs so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import nctdtr, stdtrit

from whence.errors import InputError
from whence.evaluation.statistics import Floats, ratio, varies
from whence.outcomes import Outcomes

if TYPE_CHECKING:
    import pandas as pd

MOST = 10_000_000


@dataclass(frozen=True, eq=False, repr=False)
class RunsNeeded:
    """Runs that it takes to see an effect, per target; arrays have shape (T,).

    Attributes
    ----------
    effect : ndarray
        Size of the effect to see, in units of the target.
    noise_std : ndarray
        Of one run of a subset; NaN where no subset was measured twice.
    seeds : ndarray
        Runs of each of two subsets that it takes to see that they differ by the effect.
    subsets : ndarray
        Subsets like the measured ones, each measured as often as they are, that it takes to see that a task has the
        effect on average; NaN where the outcome does not vary.
    visible : ndarray
        Effect of a task that can be seen with the subsets measured so far; NaN where there are too few.
    level, power : float
        "Seen" means that the interval of this level excludes zero, in this share of cases.
    target_names : tuple of str
    """

    effect: Floats
    noise_std: Floats
    seeds: Floats
    subsets: Floats
    visible: Floats
    level: float
    power: float
    target_names: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row per target."""
        import pandas as pd

        names = ("effect", "noise_std", "seeds", "subsets", "visible")
        return pd.DataFrame({"target": self.target_names, **{name: getattr(self, name) for name in names}})

    def __repr__(self) -> str:
        return (
            f"RunsNeeded (seen: the {self.level:.0%} interval excludes zero, in {self.power:.0%} of cases)\n"
            f"{self.to_frame().to_string(index=False)}"
        )


def runs_needed(outcomes: Outcomes, effect: ArrayLike, *, level: float = 0.9, power: float = 0.8) -> RunsNeeded:
    r"""Seeds per subset, and subsets, that it takes to see an effect of a given size.

    **Seeds.** Two subsets measured s times each differ by δ. With the standard deviation σ of a run, from replicates,
    their difference over its standard error has a noncentral t distribution with 2 (s - 1) degrees of freedom and
    noncentrality δ / (σ √(2 / s)); the answer is the smallest s at which it leaves the interval often enough.

    **Subsets.** An additive model of K tasks is fitted to m subsets by least squares. The effect of a task over its
    standard error has m - K - 1 degrees of freedom and the noncentrality δ √(v (m - K - 1)) / ρ, where v is the
    variance of a task's column (a quarter where it is in half of the subsets) and ρ the standard deviation of what the
    additive model of the runs so far leaves: noise, and what tasks do together. Tuned surrogates may need less.

    Parameters
    ----------
    outcomes : Outcomes
    effect : float, or array-like of shape (T,)
        Size of the effect, in units of the target.
    level : float
        Of the interval that has to exclude zero.
    power : float
        Share of cases in which it has to.

    Returns
    -------
    RunsNeeded

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> S = np.repeat((rng.random((40, 5)) < 0.5).astype(float), 2, axis=0)
    >>> needed = runs_needed(Outcomes(S, S @ np.arange(5.0) + rng.normal(size=80)), effect=1.0)
    >>> needed.seeds, needed.subsets
    (array([17.]), array([20.]))
    """
    size = _sizes(effect, outcomes.n_targets)
    for name, value in (("level", level), ("power", power)):
        if not 0 < value < 1:
            raise InputError(f"The '{name}' of runs_needed must lie between 0 and 1. Got {value!r} instead.")
    noise = np.sqrt(outcomes.noise_variance())
    left, spread, n_tasks, n_subsets = _additive_residuals(outcomes)
    seeds, subsets, visible = np.full((3, outcomes.n_targets), np.nan)
    for t in range(outcomes.n_targets):
        if np.isfinite(noise[t]):
            with np.errstate(divide="ignore"):
                per_root = size[t] / (noise[t] * np.sqrt(2))

            def two_subsets(s: int, per_root: float = per_root) -> float:
                return _power(2 * (s - 1), per_root * np.sqrt(s), level)

            seeds[t] = _smallest(two_subsets, power, 2)
        if np.isfinite(left[t]) and spread > 0:
            with np.errstate(divide="ignore"):
                per_root = size[t] * np.sqrt(spread) / left[t]

            def one_task(m: int, per_root: float = per_root) -> float:
                return _power(m - n_tasks - 1, per_root * np.sqrt(m - n_tasks - 1), level)

            subsets[t] = _smallest(one_task, power, n_tasks + 2)
            if (freedom := int(n_subsets[t]) - n_tasks - 1) > 0:
                visible[t] = _noncentrality(freedom, level, power) * left[t] / np.sqrt(spread * freedom)
    return RunsNeeded(size, noise, seeds, subsets, visible, level, power, outcomes.target_names)


def _sizes(effect: ArrayLike, n_targets: int) -> Floats:
    size = np.asarray(effect, dtype=np.float64)
    if size.shape not in ((), (n_targets,)) or not (np.isfinite(size) & (size > 0)).all():
        raise InputError(
            f"must be a number above 0, or one for each of {n_targets} targets. Got {effect!r} instead.",
            parameter="effect",
            of="runs_needed",
        )
    return np.broadcast_to(size, (n_targets,)).copy()


def _additive_residuals(outcomes: Outcomes) -> tuple[Floats, float, int, Floats]:
    """Std that an additive model of the means of subsets leaves, (T,); variance of a column; columns; subsets, (T,).

    With too few subsets for such a model the std is that of the outcomes, which is more.
    """
    S, means, _ = outcomes.distinct()
    measured = ~np.isnan(means)
    left = np.full(outcomes.n_targets, np.nan)
    ranks = [0]
    for t in range(outcomes.n_targets):
        rows = measured[:, t]
        if rows.sum() < 2 or not varies(means[rows, t : t + 1])[0]:
            continue
        X = np.column_stack([np.ones(rows.sum()), S[rows]])
        y = means[rows, t]
        rank = int(np.linalg.matrix_rank(X))
        ranks.append(rank - 1)
        freedom = len(y) - rank
        if freedom > 0:
            residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
            left[t] = np.sqrt(residual @ residual / freedom)
        else:
            left[t] = y.std(ddof=1)
    columns = S.var(axis=0) if len(S) else np.zeros(outcomes.n_tasks)
    spread = float(ratio(np.atleast_1d(columns.sum()), np.atleast_1d((columns > 0).sum()))[0])
    return left, spread, max(ranks), measured.sum(axis=0).astype(np.float64)


def _power(freedom: int, noncentrality: float, level: float) -> float:
    """Probability that a noncentral t variable leaves the central interval of this level."""
    if not np.isfinite(noncentrality) or noncentrality > 30:  # certain, and beyond what the series can sum
        return 1.0
    edge = float(stdtrit(freedom, (1 + level) / 2))
    below = np.nan_to_num(nctdtr(freedom, noncentrality, -edge))  # what the series cannot sum is next to nothing
    return float(1 - nctdtr(freedom, noncentrality, edge) + below)


def _smallest(power_of: Callable[[int], float], power: float, least: int) -> float:
    """Smallest number of runs that has the power; infinite beyond ten millions."""
    high = least
    while power_of(high) < power:
        if high > MOST:
            return np.inf
        high *= 2
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle + 1, high)
    return float(high)


def _noncentrality(freedom: int, level: float, power: float) -> float:
    """Noncentrality at which a t variable leaves the interval with this power."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _power(freedom, middle, level) >= power else (middle, high)
    return high
