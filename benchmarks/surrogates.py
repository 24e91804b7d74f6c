"""Find which surrogate predicts unseen subsets best, on real tables of runs.

    python benchmarks/surrogates.py [--tables DIR] [--splits 5] [--jobs 2] [--only NAME]

Every ``*.npz`` table in DIR (arrays S, Y; default: ../shared/data/tables) is split several times into training and
held-out rows at several training sizes. Every method sees the same rows and the same targets (at most 30 per table,
drawn once, because the per-target baselines would take hours otherwise) and tunes itself on the training rows only.
Printed and written to benchmarks/results/surrogates.md: LDS (mean Spearman per target on held-out rows), residual
error, coverage of 90% intervals, seconds; paired differences to ``whence.fit`` with their intervals; wins and losses
per table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy import special
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import whence
from whence.evaluation import Comparison, repeated_splits

try:
    from lightgbm import LGBMRegressor
except ImportError:  # that rival is left out, and the page says so
    LGBMRegressor = None

HERE = Path(__file__).resolve().parent
OURS, RIDGE, PAPER = "whence.fit", "ridge (tuned)", "kernel ridge (paper)"
MOST_TARGETS = 30


class TunedForest(RegressorMixin, BaseEstimator):
    """A random forest whose leaf size and features per split have the least out-of-bag error; outcomes standardised."""

    def fit(self, X, y):
        y = y.reshape(len(y), -1)
        self.center_, self.scale_ = y.mean(0), np.where(y.std(0) > 0, y.std(0), 1.0)
        Z = (y - self.center_) / self.scale_
        best = np.inf
        for leaf in (1, 3):
            for share in (0.33, 0.7, 1.0):
                forest = RandomForestRegressor(
                    200, min_samples_leaf=leaf, max_features=share, oob_score=True, random_state=0
                ).fit(X, Z if Z.shape[1] > 1 else Z[:, 0])
                error = np.mean((forest.oob_prediction_.reshape(Z.shape) - Z) ** 2)
                if error < best:
                    best, self.forest_ = error, forest
        return self

    def predict(self, X):
        return self.forest_.predict(X).reshape(len(X), -1) * self.scale_ + self.center_


class OnRanks(RegressorMixin, BaseEstimator):
    """Another regressor with our transforms: rank-Gaussian outcomes, and standardised logarithms of mixture weights."""

    def __init__(self, regressor):
        self.regressor = regressor

    def fit(self, X, y):
        y = np.asarray(y).reshape(len(X), -1)
        self.mixture_ = not np.isin(X, (0.0, 1.0)).all()
        self.floor_ = 0.01 * X.mean()
        logs = self._logs(X)
        self.center_, self.spread_ = logs.mean(0), np.where(logs.std(0) > 0, logs.std(0), 1.0)
        # Ranks at the ends would be infinite scores: the smallest and the largest are half a run away from them.
        scores = special.ndtri((rankdata(y, axis=0) - 0.5) / len(y))
        self.order_ = np.sort(scores, axis=0), np.sort(y, axis=0)
        self.fitted_ = clone(self.regressor).fit(self._coordinates(X), scores)
        return self

    def predict(self, X):
        scores = np.asarray(self.fitted_.predict(self._coordinates(X))).reshape(len(X), -1)
        columns = zip(scores.T, self.order_[0].T, self.order_[1].T, strict=True)
        # Linear beyond the ends, so that ranks of predictions are kept there too.
        return np.column_stack([np.interp(z, s, v) + 1e-6 * z * np.ptp(v) for z, s, v in columns])

    def _logs(self, X):
        return np.log(X + self.floor_) if self.mixture_ else X

    def _coordinates(self, X):
        logs = self._logs(X)
        return (logs - self.center_) / self.spread_ if self.mixture_ else logs


def tuned_lightgbm() -> MultiOutputRegressor:
    """Gradient-boosted trees, learning rate × leaves × trees by 3-fold cross-validation, for every target."""
    boosting = LGBMRegressor(min_child_samples=5, verbose=-1, n_jobs=1, random_state=0)
    grid = {"num_leaves": [4, 15], "n_estimators": [100, 300], "learning_rate": [0.05]}
    return MultiOutputRegressor(GridSearchCV(boosting, grid, cv=3, scoring="neg_mean_squared_error"))


def sklearn_process() -> GaussianProcessRegressor:
    """scikit-learn's Gaussian process: RBF with one length scale per task and noise, by marginal likelihood."""
    return make_pipeline(StandardScaler(), _Process())


class _Process(GaussianProcessRegressor):
    def fit(self, X, y):
        self.kernel = ConstantKernel() * RBF(np.full(X.shape[1], X.shape[1] ** 0.5)) + WhiteKernel()
        self.normalize_y = True
        return super().fit(X, y)


def baseline(estimator, train: whence.Outcomes) -> whence.Model:
    """Fit one estimator as it is, each group of targets on the runs where they were measured."""
    return whence.fit(train, surrogate=clone(estimator), n_folds=None)


METHODS = {
    OURS: whence.fit,
    "ols": partial(baseline, whence.AdditiveSurrogate("ols")),
    RIDGE: partial(baseline, whence.AdditiveSurrogate("ridge")),
    "lasso (tuned)": partial(baseline, whence.AdditiveSurrogate("lasso")),
    PAPER: partial(baseline, whence.KernelSurrogate(settings="paper")),
    "kernel ridge (tuned)": partial(baseline, whence.KernelSurrogate()),
    "kernel ridge (tuned, ranks and log weights)": partial(baseline, OnRanks(whence.KernelSurrogate())),
    "ridge (tuned, ranks and log weights)": partial(baseline, OnRanks(whence.AdditiveSurrogate("ridge"))),
    "random forest (tuned)": partial(baseline, TunedForest()),
    "sklearn GP (ARD)": partial(baseline, sklearn_process()),
}
if LGBMRegressor is not None:
    METHODS["LightGBM (tuned)"] = partial(baseline, tuned_lightgbm())


def load(path: Path) -> whence.Outcomes:
    table = whence.read_outcomes(path)
    if table.n_targets > MOST_TARGETS:
        keep = np.sort(np.random.default_rng(0).choice(table.n_targets, MOST_TARGETS, replace=False))
        table = table.targets([table.target_names[t] for t in keep])
    return table


def train_sizes(n_subsets: int) -> list[int]:
    """As few runs as people make, and more, that leave at least a quarter of the subsets to judge on."""
    return [size for size in (10, 20, 40, 150, 400) if size <= 0.75 * n_subsets]


def job(path: Path, size: int, n_splits: int) -> tuple[str, int, Comparison]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comparison = repeated_splits(load(path), METHODS, n_splits=n_splits, train_size=size, seed=0)
    return path.stem, size, comparison


def report(results: list[tuple[str, int, Comparison]], command: str, seconds: float) -> str:
    """Markdown: overall means, LDS per table, paired differences, wins and losses."""
    methods = list(METHODS)
    rows = []
    for name, size, comparison in results:
        frame = comparison.to_frame()
        for method in methods:
            rows.append({"table": name, "runs": size, "method": method, **frame.loc[method].to_dict()})
    scores = pd.DataFrame(rows)
    # Tables count alike, however many training sizes they have.
    by_table = scores.groupby(["table", "method"], sort=False)[["lds", "residual_error", "coverage", "seconds"]].mean()
    overall = by_table.groupby("method").mean().loc[methods]
    lds = by_table["lds"].unstack("method")[methods]
    lines = [
        "# Surrogates on real tables",
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; {seconds:.0f} s.",
        "Means over tables (each over training sizes and splits). LDS: mean Spearman per target on held-out subsets.",
        "",
        overall.round(3).rename_axis("method").to_markdown(),
        "",
        "## LDS by training size (means over the tables that have so many runs)",
        "",
        scores.pivot_table(index="method", columns="runs", values="lds", sort=False)
        .loc[methods]
        .sort_index(axis=1)
        .round(3)
        .to_markdown(),
        "",
        "## LDS per table",
        "",
        lds.round(3).to_markdown(),
        "",
        "## Paired differences: whence.fit minus the method",
        "",
        "LDS difference per table and training size with its 95% interval over splits; 'worse' counts those where",
        "whence.fit is lower by more than 0.01 and the interval excludes zero.",
        "",
        "| method | mean difference | better | within 0.01 or interval | worse | where worse |",
        "|---|---|---|---|---|---|",
    ]
    verdicts, where, sizes = {}, {method: [] for method in methods}, {}
    for name, size, _ in results:
        sizes.setdefault(name, []).append(size)
    for method in methods[1:]:
        differences = []
        for name, size, comparison in results:
            mean, low, high = comparison.difference(OURS, method)
            differences.append(mean)
            verdicts[method, name, size] = 1 if mean > 0.01 and low > 0 else -1 if mean < -0.01 and high < 0 else 0
            if verdicts[method, name, size] < 0:
                where[method].append(f"{name} ({size} runs): {mean:+.3f}")
        found = [verdicts[method, name, size] for name, size, _ in results]
        better, same, worse = (found.count(verdict) for verdict in (1, 0, -1))
        cells = (method, f"{np.mean(differences):+.3f}", better, same, worse, "; ".join(where[method]) or "–")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Wins and losses per table, over its training sizes:", ""]
    counts = {
        name: {
            method: "{} : {}".format(*(sum(verdicts[method, name, s] == sign for s in sizes[name]) for sign in (1, -1)))
            for method in methods[1:]
        }
        for name in lds.index
    }
    lines.append(pd.DataFrame(counts).T.rename_axis("table").to_markdown())
    lines += ["", "## Every table and training size (LDS)", ""]
    detail = scores.pivot_table(index=["table", "runs"], columns="method", values="lds", sort=False)[methods]
    lines.append(detail.round(3).reset_index().to_markdown(index=False))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=HERE.parent.parent / "shared" / "data" / "tables")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="only tables whose name contains this")
    arguments = parser.parse_args()
    paths = [path for path in sorted(arguments.tables.glob("*.npz")) if (arguments.only or "") in path.stem]
    if not paths:
        raise SystemExit(f"No tables (*.npz) in {arguments.tables}: nothing to compare on. Give --tables DIR.")
    tasks = [(path, size) for path in paths for size in train_sizes(len(load(path).distinct()[0]))]
    began = time.perf_counter()
    tasks.sort(key=lambda task: -task[1])  # the longest first
    results = Parallel(n_jobs=arguments.jobs, verbose=5, batch_size=1)(
        delayed(job)(path, size, arguments.splits) for path, size in tasks
    )
    command = f"python benchmarks/surrogates.py --splits {arguments.splits} --jobs {arguments.jobs}"
    text = report(results, command, time.perf_counter() - began)
    print(text)
    if not arguments.only:
        out = HERE / "results" / "surrogates.md"
        out.parent.mkdir(exist_ok=True)
        out.write_text(text)
        raw = {f"{name} {size}": comparison.to_frame().to_dict("index") for name, size, comparison in results}
        (HERE / "results" / "surrogates.json").write_text(json.dumps(raw, indent=1))


if __name__ == "__main__":
    main()
