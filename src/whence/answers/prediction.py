"""Predictions of every target for any subset, with intervals, next to what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from whence.answers.effects import as_model
from whence.outcomes import Outcomes
from whence.shown import Shown
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Predictions(Shown):
    """Predicted outcomes of subsets.

    Attributes
    ----------
    runs : Outcomes
        The table that the model was fitted to.
    subsets : (n, K)
    predicted, std : (n, T)
        Mean and standard deviation of a new run; the std is NaN where the surrogate has none.
    measured : (n, T)
        Mean of the runs of the same subset; NaN where there are none.
    """

    runs: Outcomes
    subsets: Array
    predicted: Array
    std: Array
    measured: Array

    def __str__(self) -> str:
        return self.to_frame().drop(columns="subset").to_string(index=False)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Return the ends of the intervals that hold a new run with this probability, (n, T) each.

        Those of rates end at 0 and 1, and those of losses at 0 (`Outcomes.bounds`), as a run does.
        """
        half = float(ndtri((1 + level) / 2)) * self.std
        within = self.runs.within_bounds
        return within(self.predicted - half), within(self.predicted + half)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """Return one row per subset and target; ``name`` is the subset in words."""
        import pandas as pd

        low, high = self.interval(level)
        rows = []
        for at, subset in enumerate(self.subsets):
            name = self.runs.describe(subset)
            weights = {task: weight for task, weight in zip(self.runs.task_names, subset, strict=True) if weight}
            for t, target in enumerate(self.runs.target_names):
                row = {
                    "name": name,
                    "subset": list(weights) if self.runs.is_binary else weights,
                    "target": target,
                    "predicted": self.predicted[at, t],
                    "std": self.std[at, t],
                    "low": low[at, t],
                    "high": high[at, t],
                    "measured": self.measured[at, t],
                }
                rows.append(row)
        return pd.DataFrame(rows)


def predictions(model: Any, subsets: Any) -> Predictions:
    """Return what is predicted for each subset and target, and what was measured where it was.

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    subsets : (n, K) array of 0/1 or weights, or a list of lists of task names

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(3)
    >>> runs = whence.Outcomes(S[1:], S[1:, 0] - S[1:, 1], task_names=list("abc"), target_names=["loss"])
    >>> found = predictions(whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols")), [["a"], ["a", "b"]])
    >>> found.to_frame()[["name", "predicted", "measured"]].round(3).to_dict("records")
    [{'name': 'a', 'predicted': 1.0, 'measured': 1.0}, {'name': 'a, b', 'predicted': 0.0, 'measured': 0.0}]
    """
    model = as_model(model)
    rows = model.rows(subsets)
    return predicted_at(model, rows, *model.predict(rows, return_std=True))


def predicted_at(model: Model, rows: Array, predicted: Array, std: Array) -> Predictions:
    """Return predictions (n, T) that a model made for subsets (n, K), beside what was measured there."""
    seen, means, _ = model.outcomes.distinct()
    # Weights may differ in their last digits: they were scaled to sum to 1.
    known = {row.tobytes(): values for row, values in zip(seen.round(9), means, strict=True)}
    missing = np.full(len(model.target_names), np.nan)
    measured = np.array([known.get(row.tobytes(), missing) for row in rows.round(9) + 0.0]).reshape(predicted.shape)
    return Predictions(model.outcomes, rows, predicted, std, measured)
