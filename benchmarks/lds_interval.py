"""Check how often the interval of the rank correlation that `whence.fit` prints holds the one on new runs.

    python benchmarks/lds_interval.py [--tables DIR] [--splits 6] [--jobs 2]

Every ``*.npz`` table in DIR (arrays S, Y; default: ../shared/data/tables, at most 5 targets of each) is split several
times: `whence.fit` sees 8, 12, 16, 24 or 40 runs and says between what its rank correlation on new runs lies in four of
five cases; up to 300 other subsets are the new runs. Written to benchmarks/results/lds_interval.md.
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
from joblib import Parallel, delayed

import whence
from surrogates import HERE
from whence.evaluation import coverage

SIZES, MOST_TARGETS, NEW = (8, 12, 16, 24, 40), 5, 300


def load(path: Path) -> whence.Outcomes:
    """The table with a few targets that were measured in the same runs."""
    table = whence.read_outcomes(path)
    alike = np.flatnonzero((np.isnan(table.values) == np.isnan(table.values[:, :1])).all(0))
    keep = np.sort(np.random.default_rng(0).permutation(alike)[:MOST_TARGETS])
    return table.targets([table.target_names[t] for t in keep]).rows(~np.isnan(table.values[:, alike[0]]))


def split(path: Path, size: int, seed: int) -> dict[str, object]:
    """One fit, what it says of itself, and the truth."""
    table = load(path)
    subset = np.unique(table.subsets, axis=0, return_inverse=True)[1].ravel()
    order = np.random.default_rng((size, seed)).permutation(subset.max() + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = whence.fit(table.rows(np.isin(subset, order[:size])))
    new = table.rows(np.isin(subset, order[size : size + NEW]))
    said, score = model.quality(), whence.lds(model, new)
    truth, interval = score.mean, model.parts[0].chosen.interval
    return {
        "table": path.stem,
        "runs": size,
        "held": said["lds_low"] <= truth <= said["lds_high"],
        "single": np.mean((interval.low <= score.per_target) & (score.per_target <= interval.high)),
        "printed": said["lds"],
        "truth": truth,
        "width": said["lds_high"] - said["lds_low"],
        "prediction intervals": coverage(model, new).mean,
    }


def report(found: pd.DataFrame, command: str, seconds: float) -> str:
    """Markdown: how often the intervals held, by the number of runs and by table."""
    numbers = [column for column in found if column not in ("table", "runs")]
    lines = [
        "# The interval of the printed rank correlation",
        "",
        f"`{command}` on {platform.machine()}, {time.strftime('%Y-%m-%d')}: {len(found)} fits of real tables, "
        f"{seconds:.0f} s.",
        "held: how often the 80% interval held the rank correlation on new runs; single: the same of each target.",
        "printed, truth: mean rank correlation in cross-validation and on new runs. width: of the interval. prediction",
        "intervals: how many new runs their 90% intervals held. Constants of the first were set on these tables.",
        "",
        f"Overall: held {found['held'].mean():.1%}, single {found['single'].mean():.1%}, "
        f"prediction intervals {found['prediction intervals'].mean():.1%}.",
        "",
        found.groupby("runs")[numbers].mean().round(2).to_markdown(),
        "",
        found.groupby("table")[numbers].mean().round(2).to_markdown(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=HERE.parent.parent / "shared" / "data" / "tables")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    began = time.perf_counter()
    tasks = [
        (path, size, seed)
        for path in sorted(arguments.tables.glob("*.npz"))
        for size in SIZES
        for seed in range(arguments.splits)
        if size <= 0.75 * len(load(path).distinct()[0])
    ]
    found = pd.DataFrame(Parallel(arguments.jobs)(delayed(split)(*task) for task in tasks))
    text = report(found, f"python benchmarks/lds_interval.py --splits {arguments.splits}", time.perf_counter() - began)
    print(text)
    (HERE / "results" / "lds_interval.md").write_text(text)


if __name__ == "__main__":
    main()
