"""Scores and cells of the tables on the page of results."""

from __future__ import annotations

import os
from collections.abc import Iterator

import joblib
import numpy as np
from scipy.stats import spearmanr, t

import whence

PAPER = {"tuned linear": "0.76", "paper kernel": "0.80"}
ITSELF = "the task itself in or out"
FEW_RUNS = (5, 10, 20)
MEMORY = joblib.Memory(os.environ.get("MT10_CACHE"), verbose=0)  # of what takes long, by its data; nowhere by default


def correlations(guess: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each column, of what is measured; 0 for a constant guess, NaN for a constant truth."""
    found = np.full(guess.shape[1], np.nan)
    for column, (own, true) in enumerate(zip(guess.T, measured.T, strict=True)):
        known = ~np.isnan(true)
        if np.ptp(true[known]) > 0:
            found[column] = spearmanr(own[known], true[known])[0] if np.ptp(own[known]) > 0 else 0.0
    return found


@MEMORY.cache
def with_runs(first: whence.Outcomes, estimates: whence.Outcomes | None, splits: int) -> list[np.ndarray]:
    """Rank correlations, mean over splits: estimates fused with 5, 10 and 20 true runs, judged by others."""
    found = []
    for n in FEW_RUNS:
        scores = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(first.n_runs)
            others = first.rows(order[max(FEW_RUNS) :])
            model = whence.fit(first.rows(order[:n]), estimates=estimates)
            scores.append(correlations(model.predict(others.subsets), others.values))
        found.append(np.nanmean(scores, axis=0))
    return found


def around(values: np.ndarray, digits: int = 2) -> str:
    """Mean and standard deviation over splits."""
    return f"{np.nanmean(values):.{digits}f} ± {np.nanstd(values, ddof=1):.{digits}f}"


def interval(gains: np.ndarray, digits: int = 2) -> str:
    """Mean over targets with its 95% interval."""
    half = t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    low, high = gains.mean() - half, gains.mean() + half
    return f"{gains.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def both(scores: np.ndarray) -> str:
    """Mean over targets, and the mean outcome's own."""
    return f"{np.nanmean(scores[:-1]):.2f} / {scores[-1]:.2f}"


def by_target(title: str, names: list[str], rows: dict[str, np.ndarray], digits: int = 2) -> Iterator[str]:
    """Lines of a table with a column for each target."""
    yield f"\n| {title} | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1)
    for name, values in rows.items():
        yield f"| {name} | " + " | ".join(f"{value:.{digits}f}" for value in values) + " |"


def of_played(
    reached: dict[str, tuple[np.ndarray, np.ndarray]], inside: np.ndarray, trained: np.ndarray
) -> Iterator[str]:
    """Lines about policies that played: their returns and successes (subset, task), beside returns of trained ones."""
    yield "\n| policies of | return, target in the subset | … not in it | success, in it | … not | rank correlation |"
    yield "|" + "---|" * 6
    for title, (returns, success) in reached.items():
        parts = [f"{returns[k].mean():.0f}" for k in (inside, ~inside)]
        parts += [f"{success[k].mean():.2f}" for k in (inside, ~inside)]
        yield f"| {title} | {' | '.join(parts)} | {np.nanmean(correlations(returns, trained)):.2f} |"
