"""Estimates compared with true runs: how well they agree, and whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whence.arrays import Floats
from whence.measuring.values import flatten_batch
from whence.outcomes import Outcomes
from whence.outcomes.checks import places

ENOUGH = 20  # comparisons, targets × (runs − 1), below which agreement is not judged
GOOD, SOME = 0.5, 0.2


@dataclass(frozen=True)
class Trust:
    """What a few true runs say about an estimator."""

    agreement: float  # correlation of estimates and true outcomes over runs, mean over targets; NaN with too few
    error_ratio: float  # error of the estimates as a share of the error of the untrained model; NaN if unknown
    n_runs: int
    n_targets: int  # that vary
    trusted: bool | None  # None if there is too little to tell
    verdict: str  # all this in a sentence

    def __str__(self) -> str:
        return self.verdict


def aligned(found: Mapping[str, Floats], truth: Outcomes) -> Floats:
    """Estimates (m, T) in the columns of the truth.

    >>> truth = Outcomes([[1, 0]], [[0.5]], target_names=["loss[1]"])
    >>> aligned({"loss": np.array([[0.1, 0.2]])}, truth)
    array([[0.2]])
    """
    names, values = flatten_batch(found, len(next(iter(found.values()))))
    return np.array(values)[:, places(truth.target_names, names, "estimated outcome")]


def trust(estimates: Floats, truth: Outcomes, untrained: Floats | None = None) -> Trust:
    """Agreement of estimates (m, T) with true runs of the same subsets, and a verdict.

    Estimates must be closer to the truth than the outcomes (1, T) of the ``untrained`` model.

    >>> truth = Outcomes([[1, 0], [0, 1], [1, 1]], [0.9, 0.8, 0.5], target_names=["loss"])
    >>> found = trust(np.array([[0.8], [0.7], [0.4]]), truth, np.array([[2.0]]))
    >>> round(found.agreement, 6), round(found.error_ratio, 3), found.trusted
    (1.0, 0.079, None)
    """
    m, found = truth.n_runs, agreement(estimates, truth.values)
    n_targets = int(np.isfinite(_correlations(estimates, truth.values)).sum())
    ratio = np.nan
    if untrained is not None:
        known = np.isfinite(estimates) & np.isfinite(untrained) & np.isfinite(truth.values)
        errors = [float(np.abs(guess - truth.values)[known].sum()) for guess in (estimates, untrained)]
        ratio = errors[0] / errors[1] if errors[1] > 0 else np.nan
    compared = f"{m} true runs and {n_targets} target{'' if n_targets == 1 else 's'}"
    far = f"they are {ratio:.1f} times as far from the truth as the untrained model is" if ratio >= 1 else ""
    trusted: bool | None = found >= GOOD
    if n_targets * (m - 1) >= ENOUGH:
        words = "can be trusted" if trusted else "help only together with true runs" if found >= SOME else "say nothing"
        level = f" Their level is off: {far}." if far else ""
        verdict = f"The estimates {words}: they correlate {found:.2f} with {compared}.{level}"
    elif far:
        trusted, verdict = False, f"Do not trust the estimates: {far} ({compared})."
    else:
        trusted, verdict = None, f"{compared.capitalize()} are too little to tell: give more, or outcomes per query."
    return Trust(found, ratio, m, n_targets, trusted, verdict)


def agreement(estimates: Floats, values: Floats) -> float:
    """Correlation over runs of estimates (m, T) and true values, mean over the targets that vary; NaN if none does.

    >>> agreement(np.array([[1.0], [2.0], [2.5]]), np.array([[1.0], [3.0], [4.0]]))
    1.0
    """
    per_target = _correlations(estimates, values)
    return float(np.nanmean(per_target)) if np.isfinite(per_target).any() else np.nan


def _correlations(estimates: Floats, values: Floats) -> Floats:
    """Correlation of each target over the runs that have it, (T,); NaN for a single run or no variation."""
    known = np.isfinite(values) & np.isfinite(estimates)
    n = known.sum(0)
    x, y = (np.where(known, array, 0.0) for array in (estimates, values))
    x, y = (np.where(known, array - array.sum(0) / np.maximum(n, 1), 0.0) for array in (x, y))
    spread = np.sqrt((x**2).sum(0) * (y**2).sum(0))
    varies = (n >= 2) & ((y**2).sum(0) > 0)
    # Estimates that do not vary agree with nothing.
    return np.where(varies, np.divide((x * y).sum(0), spread, out=np.zeros_like(spread), where=spread > 0), np.nan)
