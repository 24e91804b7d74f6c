"""How far to trust a model, in words: what its scores on held-out runs allow, and what estimates are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rank_fused import RankFusedSurrogate

if TYPE_CHECKING:
    from whence.surrogates.model import Model

# True runs of different subsets that it takes to weigh fused surrogates against others.
FEWEST_TO_FUSE = 4
UNCHECKED = "Not checked on held-out runs: treat every number as a guess."
COMPLETE = "Every subset was run, so nothing is extrapolated; predictions and effects smooth over the noise of runs."
TRUST = (
    (0.8, "Predictions can be relied on within the range of the runs."),
    (0.5, "Good for ranking subsets; check the chosen one with a real run."),
    (0.25, "Weak: trust only the largest effects."),
    (-np.inf, "Too weak to act on: the runs do not determine these outcomes."),
)
# Ranks may be right where values are not: beyond this share of the variance, predictions are good for ranking at best.
LARGE_ERROR = 0.5
# Of the spread of outcomes, below which what estimates move is nothing, whatever the units of both.
NEGLIGIBLE = 1e-3
# A rank correlation of fewer subsets than this is itself uncertain by tenths.
FEW_SUBSETS = 20


def trust(correlation: float, n_subsets: int, *, error: float = np.nan, complete: bool = False) -> str:
    """Return in words how far to trust a rank correlation on held-out runs of this many subsets; it may be NaN.

    ``error`` is the residual error there, a share of the variance, and ``complete`` says that every subset was run, so
    that nothing has to be predicted.

    Examples
    --------
    >>> trust(0.6, 50) == trust(0.95, 50, error=0.8)
    True
    >>> trust(0.6, 50)
    'Good for ranking subsets; check the chosen one with a real run.'
    """
    if complete:
        return COMPLETE
    levels = TRUST[1:] if error > LARGE_ERROR else TRUST
    words = next((words for bound, words in levels if correlation >= bound), UNCHECKED)
    if words != UNCHECKED and n_subsets < FEW_SUBSETS:
        words += f" Judged on {n_subsets} subsets only, so this score is itself uncertain."
    return words


def typical_slopes(model: Model) -> dict[str, float]:
    """Return the slope of every rung, the median over targets, each weighted as fused surrogates are in the average."""
    slopes = np.zeros((len(model.rungs), model.outcomes.n_targets))
    for part in model.parts:
        for name, member in part.members.items():
            fused = member.plain_ if isinstance(member, RankFusedSurrogate) else member
            if isinstance(fused, FusedSurrogate):
                slopes[:, part.targets] += part.weights[name] * fused.slopes_.mean
    return {rung.name: float(slope) for rung, slope in zip(model.rungs, np.median(slopes, axis=1), strict=True)}


def trust_in_estimates(model: Model) -> str:
    """Return in words how far estimates are trusted, and what held-out true runs say of that."""
    slopes = typical_slopes(model)
    each = [f"{slope:.2g}" if len(slopes) == 1 else f"{slope:.2g} with {name}" for name, slope in slopes.items()]
    said = [f"where they move by 1, predictions move by {', '.join(each)}"]
    measured = [column[~np.isnan(column)] for column in model.outcomes.values.T]
    spread = np.median([known.std() for known in measured if len(known)] or [0.0])
    moved = max(abs(slopes[rung.name]) * np.median(rung.spread) for rung in model.rungs)
    if moved <= NEGLIGIBLE * spread:
        said = ["none: predictions rest on the true runs alone"]
    scores = model.quality()
    words = {"lds": "both together", "lds_estimates": "estimates alone", "lds_true_runs": "true runs alone"}
    known = ", ".join(f"{what} {scores[key]:.2f}" for key, what in words.items() if not np.isnan(scores[key]))
    if known:
        said.append(f"rank correlation on held-out true runs: {known}{_in_doubt(scores, model.n_subsets)}")
    else:
        said.append(f"not checked, which takes {FEWEST_TO_FUSE} true runs of different subsets")
    return f"Trust in the estimates: {'; '.join(said)}."


def _in_doubt(scores: Mapping[str, float], n_subsets: int) -> str:
    """Words for both together that scored lower than one alone, where that is within two standard errors."""
    lower = max(scores["lds_estimates"], scores["lds_true_runs"]) - scores["lds"]
    chance = 0.005 < lower <= 2 / np.sqrt(n_subsets - 1)
    return f" (on {n_subsets} subsets, too few to tell these apart)" if chance else ""
