"""Learn what runs usually look like: the prior of the kernel's hyperparameters, over real tables.

    python benchmarks/priors.py [--tables DIR] [--judge]

On up to 250 runs of every table (arrays S, Y of ``*.npz`` in DIR), raw and on ranks, the kernel is tuned with a prior
that says next to nothing. Means and stds over tables are what `src/whence/surrogates/priors.py` states. With
``--judge``, every table is fitted at 10, 20 and 40 runs with what the other tables say, beside the prior that says next
to nothing. Both are written to benchmarks/results/priors.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import whence
from surrogates import HERE, load
from whence.evaluation import repeated_splits
from whence.surrogates import priors
from whence.surrogates.combined import CombinedSurrogate

MANY, SIZES = 250, (10, 20, 40)
NAMES = [name for name in priors.LEARNED if name != "relevance"]
VAGUE = {name: (np.log(0.3), 3.0) for name in NAMES}
VAGUE |= {"rbf rate": (0.0, 2.0), "size rate": (0.0, 2.0), "relevance": (0.0, 1.0)}


def tuned(table: whence.Outcomes) -> list[dict[str, float]]:
    """The logarithms that many runs of a table are tuned to, raw and on ranks."""
    # Targets that were measured in the runs of the first one.
    alike = (np.isnan(table.values) == np.isnan(table.values[:, :1])).all(0)
    whole = table.targets([n for n, same in zip(table.target_names, alike, strict=True) if same])
    whole = whole.rows(~np.isnan(whole.values[:, 0]))
    rows = np.random.default_rng(0).permutation(whole.n_runs)[:MANY]
    found = []
    for scale in ("raw", "rank"):
        model = CombinedSurrogate(scale, own=False).fit(whole.subsets[rows], whole.values[rows])
        names = [*model.family_.names, "noise", "rbf rate", "size rate"]
        each = dict(zip(names, model.theta_[0], strict=False))
        if "size" not in each:
            del each["size rate"]  # nothing has moved it
        found.append(each)
    return found


def learned(found: dict[str, list[dict[str, float]]], without: str = "") -> dict[str, tuple[float, float]]:
    """Mean and std over tables, each counting alike."""
    tables = pd.DataFrame([each for name, own in found.items() if name != without for each in own])
    moments = {name: (float(tables[name].mean()), float(tables[name].std())) for name in NAMES}
    return moments | {"relevance": priors.LEARNED["relevance"]}


def fitted_with(prior: dict[str, tuple[float, float]], own: float):
    """A way to fit "kernel on ranks" with another prior."""

    def fit(train: whence.Outcomes) -> whence.Model:
        kept = priors.LEARNED, priors.OWN
        priors.LEARNED, priors.OWN = prior, own
        try:
            return whence.fit(train, surrogate="kernel on ranks", n_folds=None)
        finally:
            priors.LEARNED, priors.OWN = kept

    return fit


def judged(tables: dict[str, whence.Outcomes], found: dict[str, list[dict[str, float]]]) -> pd.DataFrame:
    """LDS of both priors per table and number of runs; what was learned leaves the table out."""
    rows = []
    for name, table in tables.items():
        methods = {
            "says next to nothing": fitted_with(VAGUE, 0.5),
            "learned on the other tables": fitted_with(learned(found, without=name), priors.OWN),
        }
        for size in SIZES:
            if size <= 0.75 * len(table.distinct()[0]):
                scores = repeated_splits(table, methods, n_splits=5, train_size=size, seed=0).to_frame()["lds"]
                rows.append({"table": name, "runs": size, **scores.to_dict()})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=HERE.parent.parent / "shared" / "data" / "tables")
    parser.add_argument("--judge", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    tables = {path.stem: load(path) for path in sorted(arguments.tables.glob("*.npz"))}
    with_priors, priors.LEARNED = priors.LEARNED, VAGUE
    found = {name: tuned(table) for name, table in tables.items()}
    priors.LEARNED = with_priors
    lines = [
        "# What runs usually look like",
        "",
        f"`python benchmarks/priors.py{' --judge' * arguments.judge}` on {platform.machine()}, "
        f"{time.strftime('%Y-%m-%d')}. Logarithms, mean and std over {len(tables)} tables, raw and on ranks:",
        "",
        pd.DataFrame(learned(found), index=["mean", "std"]).T.round(1).to_markdown(),
    ]
    if arguments.judge:
        scores = judged(tables, found)
        by_size = scores.drop(columns="table").groupby("runs").mean()
        lines += [
            "",
            '## LDS of "kernel on ranks", mean over tables, by the prior it starts from',
            "",
            by_size.round(3).to_markdown(),
            "",
            scores.round(3).to_markdown(index=False),
        ]
    lines += ["", f"{time.perf_counter() - began:.0f} s."]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.judge:
        (HERE / "results" / "priors.md").write_text(text)


if __name__ == "__main__":
    main()
