"""Scores and cells of the tables on the page of results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import spearmanr, t

PAPER = {"tuned linear": "0.76", "paper kernel": "0.80"}
ITSELF = "the task itself in or out"
FEW_RUNS = (5, 10, 20)


def correlations(guess: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each column, of what is measured; 0 for a constant guess, NaN for a constant truth."""
    found = np.full(guess.shape[1], np.nan)
    for column, (own, true) in enumerate(zip(guess.T, measured.T, strict=True)):
        known = ~np.isnan(true)
        if np.ptp(true[known]) > 0:
            found[column] = spearmanr(own[known], true[known])[0] if np.ptp(own[known]) > 0 else 0.0
    return found


def around(values: np.ndarray, digits: int = 2) -> str:
    """Mean and standard deviation over splits."""
    return f"{np.nanmean(values):.{digits}f} ± {np.nanstd(values, ddof=1):.{digits}f}"


def interval(gains: np.ndarray) -> str:
    """Mean over targets with its 95% interval."""
    half = t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    return f"{gains.mean():+.2f} ({gains.mean() - half:+.2f} to {gains.mean() + half:+.2f})"


def both(scores: np.ndarray) -> str:
    """Mean over targets, and the mean outcome's own."""
    return f"{np.nanmean(scores[:-1]):.2f} / {scores[-1]:.2f}"


def by_target(title: str, names: list[str], rows: dict[str, np.ndarray], digits: int = 2) -> Iterator[str]:
    """Lines of a table with a column for each target."""
    yield f"\n| {title} | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1)
    for name, values in rows.items():
        yield f"| {name} | " + " | ".join(f"{value:.{digits}f}" for value in values) + " |"
