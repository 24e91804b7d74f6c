"""Quality: what cross-validation says of the surrogates that were tried, overall and for each target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whence.surrogates.model import Model

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("lds", "residual_error", "coverage")


def trials(model: Model) -> pd.DataFrame:
    """Return one row per surrogate that was tried: mean scores over targets, and its weight in the average.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> model = whence.fit(whence.Outcomes(S, S[:, 0] - S[:, 1]), surrogate=whence.AdditiveSurrogate())
    >>> trials(model)[["name", "weight"]].to_dict("records")
    [{'name': 'size only', 'weight': 0.0}, {'name': 'AdditiveSurrogate', 'weight': 1.0}]
    """
    import pandas as pd

    rows = []
    for name in dict.fromkeys(trial.name for part in model.parts for trial in part.trials):
        own = [trial for part in model.parts for trial in part.trials if trial.name == name]
        row: dict[str, Any] = {"name": name}
        for score in SCORES:
            values = np.concatenate([getattr(trial, score) for trial in own])
            values = values[np.isfinite(values)]
            row[score] = float(values.mean()) if len(values) else np.nan
        row["seconds"] = sum(trial.seconds for trial in own)
        weights = [part.weights.get(name, np.zeros(len(part.targets))) for part in model.parts]
        row["weight"] = float(np.concatenate(weights).mean())
        rows.append(row)
    return pd.DataFrame(rows, columns=["name", *SCORES, "seconds", "weight"])


def target_scores(model: Model) -> pd.DataFrame:
    """Return one row per target: its surrogate, and the scores of that in cross-validation."""
    import pandas as pd

    rows = {}
    for part in model.parts:
        for place, t in enumerate(part.targets):
            scores = {score: float(getattr(part.chosen, score)[place]) if part.chosen else np.nan for score in SCORES}
            rows[t] = {"target": model.target_names[t], "surrogate": part.name, **scores}
    return pd.DataFrame([rows[t] for t in sorted(rows)], columns=["target", "surrogate", *SCORES])
