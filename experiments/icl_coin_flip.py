"""The paper's coin-flip outcomes: kernel surrogates against linear ones, on all queries, in paired splits.

TABLE is the released table (Qwen3-8B; 120 of the 200 four-shot prompts of 50 demonstrations, 400 of the 869 queries),
an npz file with arrays S and Y. In each split, 80 prompts are learned from, as in the paper, and the others judged.
Every query counts: none is left out for varying little.

    python experiments/icl_coin_flip.py TABLE --splits 20
    python experiments/icl_coin_flip.py TABLE --splits 20 --train 48
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import whence
from whence import AdditiveSurrogate, CombinedSurrogate, KernelSurrogate
from whence.evaluation import repeated_splits

METHODS = {
    "kernel, combined": lambda: CombinedSurrogate("raw"),
    "kernel, combined on ranks": lambda: CombinedSurrogate("rank"),
    "kernel, RBF tuned": lambda: KernelSurrogate(),
    "kernel, RBF as in the paper": lambda: KernelSurrogate(settings="paper"),
    "linear, tuned ridge": lambda: AdditiveSurrogate("ridge"),
    "linear, least squares": lambda: AdditiveSurrogate("ols"),
}


def fitter(make):
    """A method of `repeated_splits`: from runs to a fitted surrogate."""
    return lambda runs: make().fit(runs.subsets, runs.values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the released outcomes, .npz")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--train", type=int, default=80, help="prompts to learn from")
    parser.add_argument("--queries", type=int, help="only the first so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    with np.load(given.table) as arrays:
        subsets, values = arrays["S"].astype(float), arrays["Y"][:, : given.queries]
    runs = whence.Outcomes(subsets, values)
    print(f"{runs.n_runs} prompts, {runs.n_tasks} demonstrations, {runs.n_targets} queries; {given.splits} splits")
    low = float((values.var(0) < 0.1).mean())
    print(f"{low:.0%} of the queries vary by less than 0.1 and would be left out by the paper's score\n")
    methods = {name: fitter(make) for name, make in METHODS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.DataWarning)
        found = repeated_splits(runs, methods, n_splits=given.splits, train_size=given.train, seed=given.seed)
    print(found.to_frame().round(3).to_string(), "\n")
    against = "linear, tuned ridge"
    gaps = {name: found.difference(name, against) for name in methods if name != against}
    for name, (mean, lower, upper) in gaps.items():
        print(f"LDS of {name} less that of {against}: {mean:+.3f} (95% interval {lower:+.3f} to {upper:+.3f})")
    if given.out:
        scores = json.loads(found.to_frame().reset_index().to_json(orient="records"))
        given.out.write_text(json.dumps({"scores": scores, "lds_less_ridge": gaps, "low_variance": low}, indent=1))


if __name__ == "__main__":
    main()
