"""The noise ceiling: how well runs can be predicted at all, from replicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError
from whence.evaluation.statistics import Floats, out_of, ranks, ratio, varies
from whence.outcomes import Outcomes, distinct_rows
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

RANDOM_SETS, UNLIKELY = 1000, 0.05  # of subsets, and the share of them below which replicates are not typical


@dataclass(frozen=True, eq=False, repr=False)
class Ceiling(Shown):
    """Highest Spearman correlation that training noise leaves room for, with intervals.

    Attributes
    ----------
    per_target : ndarray of shape (T,)
        NaN where replicates do not tell.
    low, high : ndarray of shape (T,)
        Bounds of the interval of each target.
    mean, mean_low, mean_high : float
        Over the targets that have a ceiling, and the bounds of its interval.
    target_names : tuple of str
    reason : str
        Why no target has a ceiling; empty where one has.

    Examples
    --------
    >>> noise_ceiling(Outcomes([[1, 0], [0, 1], [1, 1]], [0.9, 0.8, 0.5])).reason[:45]
    'No subset was measured more than once, so tha'
    """

    per_target: Floats
    low: Floats
    high: Floats
    mean: float
    mean_low: float
    mean_high: float
    target_names: tuple[str, ...]
    reason: str = ""

    @property
    def n_undefined(self) -> int:
        """Number of targets without a ceiling."""
        return int(np.isnan(self.per_target).sum())

    def to_frame(self) -> pd.DataFrame:
        """Return a row per target: its ceiling, and the 95% interval."""
        import pandas as pd

        return pd.DataFrame(
            {"target": self.target_names, "ceiling": self.per_target, "low": self.low, "high": self.high}
        )

    def __repr__(self) -> str:
        if self.reason:
            return f"Ceiling: unknown. {self.reason}"
        interval = f"{self.mean_low:.4g} to {self.mean_high:.4g}"
        return f"Ceiling: {self.mean:.4g} ({interval}) {out_of(self.per_target)}"


def noise_ceiling(outcomes: Outcomes, *, n_boot: int = 200, seed: int = 0) -> Ceiling:
    """Spearman correlation with one measured run that no predictor of the subset can be expected to exceed.

    Let R be the rank of a run among all runs. Given the subset, two runs of it are independent draws, so the
    correlation of their ranks is r = Var(E[R | subset]) / Var(R). Of everything that a subset determines,
    E[R | subset] correlates best with R, by √r. The Spearman correlation of a predictor is the correlation of
    its own ranks with R, so √r bounds it whatever the distribution of the noise. The expected outcome itself
    reaches √r but for the difference between its rank and E[R | subset]: about 0.01 for normal outcomes, and
    up to 0.05 for outcomes of two values.

    Var(R) comes from all subsets, each with equal weight, and the noise within a subset from those measured
    more than once. If these lie closer together than subsets at random, as where a search repeats its best ones,
    their runs change places more easily than others do. What counts then is how much the noise of outcomes, taken
    to be the same everywhere, changes the rank of each of all subsets. Intervals (95%) come from resampling
    subsets, those with and without replicates apart. The root of a noisy r is too small on average, or too large
    near 0; so before the mean over targets is taken, the estimates of r are pulled together until their variance
    is what the resamples leave to true differences between targets.

    Parameters
    ----------
    outcomes : Outcomes
        Some subsets measured more than once.
    n_boot : int
        Number of resamples.
    seed : int
        Same seed, same interval.

    Returns
    -------
    Ceiling
        Undefined for a target that does not vary, or for which fewer than two subsets have replicates. A
        target whose replicates agree no more than by chance has a ceiling of 0.

    Examples
    --------
    >>> subsets = np.repeat([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], 2, axis=0)
    >>> noise_ceiling(Outcomes(subsets, [1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1]))
    Ceiling: 0.9632 (0.712 to 1) over 1 of 1 targets; 0 undefined
    """
    if n_boot < 2:
        raise InputError(f"The 'n_boot' of noise_ceiling must be at least 2. Got {n_boot!r} instead.")
    means, within, counts = _rank_moments(outcomes)
    once, twice = counts > 0, counts > 1
    # What adds up to r, subset by subset: numbers, ranks, their squares, noise, and the part of the noise
    # that the mean of the replicates no longer shows.
    unseen = within * (1 - 1 / np.maximum(counts, 1))
    for t in np.flatnonzero(_crowded(outcomes, seed)):
        within[:, t] = _noise_among_all(outcomes.subsets, outcomes.values[:, t])
    parts = (once, means, means**2, twice, within, unseen)
    agreement = _agreement(np.ones((1, len(counts))), parts)[0]
    agreement[(twice.sum(axis=0) < 2) | ~varies(outcomes.values)] = np.nan
    defined = ~np.isnan(agreement)
    drawn = _agreement(_resampled(twice[:, defined], n_boot, seed), [part[:, defined] for part in parts])
    low, high = np.full((2, len(agreement)), np.nan)
    mean, mean_low, mean_high, reason = np.nan, np.nan, np.nan, _why_no_ceiling(twice)
    if defined.any():
        low[defined], high[defined] = np.nanquantile(_root(drawn), [0.025, 0.975], axis=0)
        mean, mean_low, mean_high = _mean_ceiling(agreement[defined], drawn)
        reason = ""
    names = outcomes.target_names
    return Ceiling(_root(agreement), low, high, mean, mean_low, mean_high, names, reason)


def _rank_moments(outcomes: Outcomes) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean rank, variance of the rank and number of runs of each distinct subset, of shape (d, T) each.

    Ranks are scaled to [-1/2, 1/2]. Means are 0 for subsets not measured, variances for those measured once.
    """
    if not outcomes.n_runs:
        return np.zeros((0, outcomes.n_targets)), np.zeros((0, outcomes.n_targets)), outcomes.distinct()[2]
    placed = ranks(outcomes.values)
    n_measured = np.sum(~np.isnan(placed), axis=0)
    placed = (placed - 0.5) / np.maximum(n_measured, 1) - 0.5
    _, means, counts = Outcomes(outcomes.subsets, placed).distinct()
    _, squares, _ = Outcomes(outcomes.subsets, placed**2).distinct()
    unbiased = counts / np.maximum(counts - 1, 1)
    within = np.where(counts > 1, np.maximum(squares - means**2, 0.0) * unbiased, 0.0)
    return np.nan_to_num(means), within, counts


def _crowded(outcomes: Outcomes, seed: int) -> NDArray[np.bool_]:
    """Whether first runs of replicated subsets rank closer together than as many at random, target by target, (T,)."""
    found = np.zeros(outcomes.n_targets, dtype=bool)
    group = distinct_rows(outcomes.subsets)[1]
    patterns, which = np.unique(~np.isnan(outcomes.values), axis=1, return_inverse=True)
    for index, runs in enumerate(map(np.flatnonzero, patterns.T)):
        _, first, counts = np.unique(group[runs], return_index=True, return_counts=True)
        if not 2 <= (counts > 1).sum() < len(counts):
            continue
        targets, own = np.flatnonzero(which.ravel() == index), counts > 1
        drawn = np.random.default_rng(seed).permuted(np.broadcast_to(own, (RANDOM_SETS, len(own))), axis=1)
        sets, values = np.vstack([own, drawn]) / own.sum(), ranks(outcomes.values[np.ix_(runs[first], targets)])
        spread = sets @ values**2 - (sets @ values) ** 2
        found[targets] = (spread[1:] <= spread[0]).mean(axis=0) < UNLIKELY
    return found


def _noise_among_all(subsets: Floats, values: Floats) -> Floats:
    """Variance that the noise of outcomes gives to ranks, on average over all subsets; for each subset, (d,).

    In proportion to the variance of a subset's own outcomes, and 0 for subsets measured once: the mean over the
    replicated ones is what the noise of them all makes of a rank.
    """
    group = distinct_rows(subsets)[1]
    known = ~np.isnan(values)
    values, group, size = values[known], group[known], int(group.max()) + 1
    counts = np.bincount(group, minlength=size)
    means = np.bincount(group, values, size) / np.maximum(counts, 1)
    free = np.maximum(counts - 1, 1)
    noise = ((values - means[group]) * np.sqrt(counts / free)[group])[counts[group] > 1]
    own = np.bincount(group, (values - means[group]) ** 2, size) / free
    # Expected outcomes spread less than measured ones, by the noise that these hold.
    measured, pooled = means[counts > 0], own[counts > 1].mean()
    share = 1 - ratio(pooled * (1 / counts[counts > 0]).mean(), measured.var(ddof=1))
    expected = measured.mean() + np.sqrt(max(float(share), 0.0)) * (measured - measured.mean())
    ordered, moved = np.sort(values), expected[:, None] + noise
    ranks_of_moved = (np.searchsorted(ordered, moved, "left") + np.searchsorted(ordered, moved, "right")) / 2
    average = (ranks_of_moved / len(values)).var(axis=1).mean()
    return np.asarray(average * ratio(own, pooled))


def _agreement(draws: Floats, parts: Any) -> Floats:
    """Correlation r of the ranks of two runs of one subset, shape (B, T), for B draws of the subsets."""
    n, total, squares, n_twice, noise, unseen = (draws @ part for part in parts)
    between = ratio(squares - ratio(total**2, n), n - 1)
    return 1 - ratio(ratio(noise, n_twice), between + ratio(unseen, n))


def _resampled(twice: NDArray[np.bool_], n_boot: int, seed: int) -> Floats:
    """How often each subset is drawn, shape (B, d)."""
    rng = np.random.default_rng(seed)
    replicated = np.any(twice, axis=1)
    draws = np.zeros((n_boot, len(replicated)))
    for stratum in (replicated, ~replicated):
        if size := int(stratum.sum()):
            draws[:, stratum] = rng.multinomial(size, np.full(size, 1 / size), size=n_boot)
    return draws


def _root(agreement: Floats) -> Floats:
    return np.asarray(np.sqrt(np.maximum(agreement, 0.0)))


def _mean_ceiling(agreement: Floats, drawn: Floats) -> tuple[float, float, float]:
    """Mean of √r over targets and the bounds of its interval, from r, shape (T,), and draws of it, (B, T)."""
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    level, noise = agreement.mean(), float(np.nanvar(drawn, axis=0).mean())
    spread = float(agreement.var())
    true_share = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    narrowed = level + np.sqrt(true_share) * (agreement - level)
    shift = 1.96 * float(np.std(np.nanmean(drawn, axis=1)))
    shifted = np.clip(narrowed + np.array([[0.0], [-shift], [shift]]), -1.0, 1.0)
    # Chance agreement comes out below 0 as often as above it, and has to cancel out.
    signed = np.sign(shifted) * np.sqrt(np.abs(shifted))
    mean, low, high = np.maximum(signed.mean(axis=1), 0.0).tolist()
    return mean, low, high


def _why_no_ceiling(replicated: NDArray[np.bool_]) -> str:
    most = int(replicated.sum(axis=0).max(initial=0))
    if most == 0:
        return (
            "No subset was measured more than once, so that training noise cannot be told from the effect of "
            "the tasks; measure some subsets again with another seed."
        )
    if most == 1:
        return "Only one subset was measured more than once; measure others again with another seed."
    return "No target varies among the measured runs."
