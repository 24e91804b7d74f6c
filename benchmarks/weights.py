"""How sharply to weigh the surrogates that `whence.fit` averages: LDS by the power of their held-out errors.

    python benchmarks/weights.py [--tables DIR] [--splits 2] [--sizes 10 20 40] [--recorded]

Every candidate of `fit` is cross-validated on 10, 20 and 40 runs of every table (arrays S, Y of ``*.npz`` in DIR, at
most 6 targets), or with ``--recorded`` of every recorded set, and fitted to all of them. Up to 300 other subsets are
predicted by averages whose weights are held-out errors to several powers; 0 is the plain average. Kernel ridge
on ranks and log weights, a rival, is tried as one more member. Written to benchmarks/results/weights.md, or
weights_recorded.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import whence
from surrogates import HERE, OnRanks
from whence.surrogates.averaged import OUTRIGHT, weights_by_error
from whence.surrogates.crossvalidation import _errors, _squares, cross_validated, fitted, held_runs
from whence.surrogates.fit import CANDIDATES

MOST_TARGETS, NEW, POWERS = 6, 300, (0.0, 1.0, 3.0, 6.0, 10.0, 20.0)
RIVAL = "kernel ridge on ranks"
MEMBERS = {**CANDIDATES, RIVAL: OnRanks(whence.KernelSurrogate())}


def few_targets(table: whence.Outcomes) -> whence.Outcomes:
    """The table with a few targets that were measured in the same runs."""
    alike = np.flatnonzero((np.isnan(table.values) == np.isnan(table.values[:, :1])).all(0))
    keep = np.sort(np.random.default_rng(0).permutation(alike)[:MOST_TARGETS])
    return table.targets([table.target_names[t] for t in keep]).rows(~np.isnan(table.values[:, alike[0]]))


def split(table: whence.Outcomes, size: int, seed: int) -> dict[str, float]:
    """LDS of every candidate, and of averages by the power of held-out errors, on new runs."""
    subset = np.unique(table.subsets, axis=0, return_inverse=True)[1].ravel()
    order = np.random.default_rng((size, seed)).permutation(subset.max() + 1)
    train, new = (table.rows(np.isin(subset, some)) for some in (order[:size], order[size : size + NEW]))
    held = held_runs(train, "auto", seed=0)
    guesses, errors = [], []
    for name, member in MEMBERS.items():
        trial = cross_validated(name, partial(fitted, member), held)
        errors.append(_errors(_squares(trial.predicted[None], held.table.values), OUTRIGHT)[0])
        guesses.append(fitted(member, train).predict(new.subsets).reshape(len(new.subsets), -1))
    found = {name: whence.lds(guess, new).mean for name, guess in zip(MEMBERS, guesses, strict=True)}
    for label, n in (("", len(CANDIDATES)), (f" with {RIVAL}", len(MEMBERS))):
        for power in POWERS:
            weights = weights_by_error(np.array(errors[:n]), np.full(n, 1 / n), power)
            guess = np.einsum("cnt,ct->nt", np.array(guesses[:n]), weights)
            found[f"power {power:g}{label}"] = whence.lds(guess, new).mean
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=HERE.parent.parent / "shared" / "data" / "tables")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--recorded", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.process_time()
    if arguments.recorded:
        tables = {name: whence.datasets.load(name) for name in whence.datasets.available().index}
    else:
        tables = {path.stem: whence.read_outcomes(path) for path in sorted(arguments.tables.glob("*.npz"))}
    rows = []
    for name, whole in tables.items():
        table = few_targets(whole)
        for size in arguments.sizes:
            if size <= 0.75 * len(table.distinct()[0]):
                found = [split(table, size, seed) for seed in range(arguments.splits)]
                rows.append({"table": name, "runs": size, **pd.DataFrame(found).mean().to_dict()})
                print(name, size, flush=True)
    scores = pd.DataFrame(rows)
    command = f"python benchmarks/weights.py --splits {arguments.splits} --sizes {' '.join(map(str, arguments.sizes))}"
    lines = [
        "# How sharply to weigh surrogates",
        "",
        f"`{command}{' --recorded' * arguments.recorded}` on {platform.machine()}, {time.strftime('%Y-%m-%d')}: "
        f"{len(tables)} tables, {time.process_time() - began:.0f} s of the processor. Mean LDS over tables by the runs",
        "learned from; averages by the power of held-out errors that weighs their members.",
        "",
        scores.drop(columns="table").groupby("runs").mean().T.round(3).to_markdown(),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (HERE / "results" / f"weights{'_recorded' * arguments.recorded}.md").write_text(text)


if __name__ == "__main__":
    main()
