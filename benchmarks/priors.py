"""Learn what runs usually look like: the prior of the kernel's hyperparameters, over real tables.

    python benchmarks/priors.py [--tables DIR] [--judge]

On up to 250 runs of every table (arrays S, Y of ``*.npz`` in DIR), raw and on ranks, the kernel is tuned with a prior
that says next to nothing. Means and stds over tables, with `FEW_RUNS` changed, are what
`src/whence/surrogates/priors.py` states: tuned on few runs, so many hyperparameters find more signal and less noise
than there is. With ``--judge``, every table is fitted at 10, 20 and 40 runs with what the other tables say, with those
`SHIFTS` of it that help to predict the other tables from 10 and 20 runs, and with `FEW_RUNS`, beside the prior that
says next to nothing. Both are written to benchmarks/results/priors.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import whence
from surrogates import HERE, load
from weights import few_targets
from whence.evaluation import repeated_splits
from whence.surrogates import priors
from whence.surrogates.combined import CombinedSurrogate

Prior = dict[str, tuple[float, float]]  # mean and std by name
MANY, SIZES, SPLITS = 250, (10, 20, 40), 3
NAMES = [name for name in priors.LEARNED if name != "relevance"]
VAGUE = {name: (np.log(0.3), 3.0) for name in NAMES}
VAGUE |= {"rbf rate": (0.0, 2.0), "size rate": (0.0, 2.0), "relevance": (0.0, 1.0)}
# Added to the mean of one hyperparameter, to see which way few runs would have it.
SHIFTS = list(product(NAMES, (-0.8, 0.8)))
# What `priors.py` adds to the means over tables, and what it multiplies the std of "linear" with.
FEW_RUNS = {"linear": -1.1, "pairs": -1.3, "size": 0.8, "noise": 1.7, "rbf rate": 0.1, "size rate": -1.0}
NARROWER = 0.7


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


def learned(found: dict[str, list[dict[str, float]]], without: str = "") -> Prior:
    """Mean and std over tables, each counting alike."""
    tables = pd.DataFrame([each for name, own in found.items() if name != without for each in own])
    moments = {name: (float(tables[name].mean()), float(tables[name].std())) for name in NAMES}
    return moments | {"relevance": priors.LEARNED["relevance"]}


def fitted_with(prior: Prior, own: float):
    """A way to fit "kernel on ranks" with another prior."""

    def fit(train: whence.Outcomes) -> whence.Model:
        kept = priors.LEARNED, priors.OWN
        priors.LEARNED, priors.OWN = prior, own
        try:
            return whence.fit(train, surrogate="kernel on ranks", n_folds=None)
        finally:
            priors.LEARNED, priors.OWN = kept

    return fit


def shifted(prior: Prior, shifts: Mapping[str, float]) -> Prior:
    """The prior with this added to its means."""
    return {name: (mean + shifts.get(name, 0.0), std) for name, (mean, std) in prior.items()}


def for_few_runs(prior: Prior) -> Prior:
    """What `priors.py` makes of the means and stds over tables."""
    mean, std = prior["linear"]
    return shifted(prior | {"linear": (mean, NARROWER * std)}, FEW_RUNS)


def scored(name: str, table: whence.Outcomes, size: int, methods: dict) -> dict:
    """LDS of every method, a row of a table."""
    scores = repeated_splits(table, methods, n_splits=SPLITS, train_size=size, seed=0).to_frame()["lds"]
    return {"table": name, "runs": size, **scores.to_dict()}


def helpful(gains: pd.DataFrame) -> dict[str, float]:
    """Of every hyperparameter the shift that gains most on average over these tables, if any does."""
    best = {}
    for name, pair in gains.mean().groupby(level=0):
        if pair.max() > 0:
            best[name] = pair.idxmax()[1]
    return best


def judged(tables: dict[str, whence.Outcomes], found: dict[str, list[dict[str, float]]]) -> tuple[pd.DataFrame, dict]:
    """LDS by prior per table and number of runs, and the shifts that help the other tables, per table."""
    tables = {name: few_targets(table) for name, table in tables.items()}
    sizes = {name: [n for n in SIZES if n <= 0.75 * len(table.distinct()[0])] for name, table in tables.items()}
    others = {name: learned(found, without=name) for name in tables}
    tried = []
    for name, table in tables.items():
        methods = {"as learned": fitted_with(others[name], priors.OWN)}
        methods |= {one: fitted_with(shifted(others[name], dict([one])), priors.OWN) for one in SHIFTS}
        tried += [scored(name, table, size, methods) for size in sizes[name] if size < SIZES[-1]]
    by_table = pd.DataFrame(tried).groupby("table").mean()
    gains = by_table[SHIFTS].sub(by_table["as learned"], axis=0)
    gains.columns = pd.MultiIndex.from_tuples(SHIFTS)
    best = {name: helpful(gains.drop(name)) for name in tables}
    rows = []
    for name, table in tables.items():
        methods = {
            "says next to nothing": fitted_with(VAGUE, 0.5),
            "learned on the other tables": fitted_with(others[name], priors.OWN),
            "with shifts that help the others": fitted_with(shifted(others[name], best[name]), priors.OWN),
            "as stated for few runs": fitted_with(for_few_runs(others[name]), priors.OWN),
        }
        rows += [scored(name, table, size, methods) for size in sizes[name]]
    return pd.DataFrame(rows), best


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
        "",
        "Stated with this added for few runs: "
        f"{', '.join(f'{name} {shift:+}' for name, shift in FEW_RUNS.items())}; the std of linear times {NARROWER}.",
    ]
    if arguments.judge:
        scores, best = judged(tables, found)
        by_size = scores.drop(columns="table").groupby("runs").mean()
        lines += [
            "",
            '## LDS of "kernel on ranks", mean over tables, by the prior it starts from',
            "",
            by_size.round(3).to_markdown(),
            "",
            scores.round(3).to_markdown(index=False),
            "",
            f"At most 6 targets, {SPLITS} splits. What is stated for few runs was chosen on these and others. The",
            "shifts that help the other tables:",
            "",
            *(
                f"- {name}: {', '.join(f'{which} {by:+}' for which, by in shifts.items())}"
                for name, shifts in best.items()
            ),
        ]
    lines += ["", f"{time.perf_counter() - began:.0f} s."]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.judge:
        (HERE / "results" / "priors.md").write_text(text)


if __name__ == "__main__":
    main()
