"""The leaderboard: methods on the recorded runs, all learning from the same few and judged by the same others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from whence.datasets.recorded import index, load
from whence.errors import DataWarning, InputError
from whence.evaluation import repeated_splits
from whence.outcomes import Outcomes
from whence.progress import track
from whence.shown import Shown
from whence.surrogates.peers import Method

SIZES = (10, 20, 40, 150)


@dataclass(frozen=True, eq=False)
class Leaderboard(Shown):
    """Scores of methods by data set and number of runs to learn from.

    Attributes
    ----------
    frame : DataFrame
        A row for each data set, size and method: ``lds`` (mean over targets), ``lds_of_mean`` (of the mean over
        targets), ``residual_error``, ``coverage`` of 90% intervals, ``seconds`` to fit, and how many splits ``failed``.
    n_splits : int
    """

    frame: pd.DataFrame
    n_splits: int

    def to_frame(self) -> pd.DataFrame:
        """Return the scores, a row for each data set, size and method."""
        return self.frame

    def summary(self) -> pd.DataFrame:
        """Return the mean LDS over data sets, methods by sizes, the best method first.

        A method that failed on a data set has no mean, which would be over other data sets than that of the others.
        """
        means = self.frame.groupby(["method", "runs"], sort=False)["lds"].agg(lambda lds: lds.mean(skipna=False))
        table = means.unstack("runs")[list(dict.fromkeys(self.frame["runs"]))]
        return table.loc[table.mean(axis=1).sort_values(ascending=False).index]


def leaderboard(
    methods: Mapping[str, Method],
    *,
    names: Sequence[str] | Mapping[str, Outcomes] | None = None,
    sizes: Sequence[int] = SIZES,
    most_targets: int | None = None,
    n_splits: int = 5,
    seed: int = 0,
) -> Leaderboard:
    """Return the scores of methods on recorded runs.

    Parameters
    ----------
    methods : mapping of str to callable
        From runs to a model with ``predict``, as `whence.fit`.
    names : sequence of str, or mapping of str to Outcomes, optional
        Data sets, or tables of your own by name; by default all data sets.
    sizes : sequence of int
        Distinct subsets to learn from; a data set with fewer than twice as many is left out.
    most_targets : int, optional
        Judge by at most this many targets of a data set, drawn once; by default all. The mean over targets is always
        that of all.
    n_splits : int
    seed : int

    Examples
    --------
    >>> from whence.surrogates.peers import peers
    >>> found = leaderboard(peers(["size only"]), names=["digits"], sizes=[10], n_splits=2)
    >>> found.frame[["data", "runs", "method"]].to_dict("records")
    [{'data': 'digits', 'runs': 10, 'method': 'size only'}]
    """
    tables = dict(names) if isinstance(names, Mapping) else {name: load(name) for name in (names or index())}
    jobs = [(name, size) for name in tables for size in sizes if 2 * size <= len(tables[name].distinct()[0])]
    if not jobs:
        raise InputError("No data set has twice as many subsets as are to be learned from. Ask for a smaller size.")
    judges = {name: some_targets(runs, most_targets or runs.n_targets) for name, runs in tables.items()}
    rows: list[dict[str, object]] = []
    for name, size in track(jobs, "Scoring"):
        split = partial(repeated_splits, methods=methods, n_splits=n_splits, train_size=size, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            found, of_mean = (split(runs).to_frame() for runs in (judges[name], averaged(tables[name])))
        for method, row in found.iterrows():
            scores = {key: row[key] for key in ("residual_error", "coverage", "seconds", "failed", "message")}
            together = {"lds": row["lds"], "lds_of_mean": of_mean["lds"][str(method)]}
            rows.append({"data": name, "runs": size, "method": method, **together, **scores})
    return Leaderboard(pd.DataFrame(rows), n_splits)


def some_targets(runs: Outcomes, most: int) -> Outcomes:
    """The same runs with at most this many targets, drawn once."""
    kept = np.sort(np.random.default_rng(0).permutation(runs.n_targets)[:most])
    return runs.targets([runs.target_names[place] for place in kept])


def averaged(runs: Outcomes) -> Outcomes:
    """The same runs with the mean over targets as the only outcome; targets that run the other way are turned round."""
    turned = np.where(np.equal(runs.maximize, runs.maximize[0]), 1.0, -1.0)
    mean = np.asarray(runs.values @ turned / runs.n_targets)
    return Outcomes(runs.subsets, mean, task_names=runs.task_names, target_names=["mean"], maximize=runs.maximize[:1])
