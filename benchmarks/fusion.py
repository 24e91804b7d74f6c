"""Fusion beside its parts: good estimates must be kept, and useless ones cost little.

    python benchmarks/fusion.py
    python benchmarks/fusion.py --fit      `whence.fit` as a whole instead of its fused member alone (slow)
    python benchmarks/fusion.py --tables   `whence.fit` on real tables (../shared/data/tables, or --tables DIR)
    python benchmarks/fusion.py --quick    one world, few runs, nothing written

25 tasks, subsets of 15, T targets. The truth of a target is a sum of effects, half of whose variance targets share in
five directions, plus pairs (their share of the variance is given), plus the noise of a run (relative to the truth). Its
estimates are a sum of effects that correlate with the true ones as far as "quality" says; 0 is useless. LDS is
the rank correlation with the mean of three runs at 100 new subsets, the mean over targets and over the worlds of a row.
How much fusion believes of a kernel, and how it pools targets, was chosen on other worlds of these kinds.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import whence
from whence.evaluation import spearman_per_target
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rungs import Rung

K, SIZE, RUNS, NEW = 25, 15, 200, 100
NUMBERS = (4, 5, 8, 12, 20, 40, 80)
WORLDS = {  # words: quality, noise, pairs, targets
    "good, noisy runs": (0.8, 0.8, 0.3, 40),
    "good": (0.8, 0.4, 0.1, 40),
    "fair": (0.5, 0.4, 0.1, 40),
    "useless": (0.0, 0.4, 0.1, 40),
    "useless, noisy runs": (0.0, 0.8, 0.3, 40),
    "good, few targets": (0.8, 0.4, 0.1, 3),
    "useless, few targets": (0.0, 0.4, 0.1, 3),
}

HERE = Path(__file__).resolve().parent
TABLES = HERE.parent.parent / "shared" / "data" / "tables"
DEVELOPED = ("shapiq_image_resnet14", "shapiq_sentiment14")  # weights were set on these, and on simulated worlds
SEEN = ("shapiq_dataval_adult", "shapiq_dsetval_bike", "shapiq_ensemble_california", "shapiq_featsel_adult")
GROUPS = {
    "Tables that weights were set on": DEVELOPED,
    "Tables that were in view when weights were last changed": SEEN,
}
TABLE_NUMBERS, ESTIMATED, JUDGING = (4, 6, 10, 20, 40), 200, 300
KINDS = ("0.8 × truth", "noisy", "correlated 0.8", "correlated 0.5", "another function", "noise")
ABOUT_TABLES = f"""One column of a table of many subsets is the truth. {ESTIMATED} rows of it are estimated, others are
the true runs, and {JUDGING} more judge. Estimates are 0.8 × the truth; that with noise of half its spread; a sum of the
truth and a random function (effects, and a product of two sums) that correlates with it as said; that function alone;
or noise. The better part is the estimates' own surrogate or `whence.fit` on the true runs alone, whichever has the
higher LDS on average over the splits of a table; the gap is how far both together are above it, the mean over tables
and the worst of them."""


def table_scores(table: whence.Outcomes, kind: str, numbers, seed: int) -> list[dict]:
    """LDS of estimates alone, of true runs alone and of both, for one random column and split."""
    rng = np.random.default_rng(seed)
    order, t = rng.permutation(table.n_runs), rng.integers(table.n_targets)
    S, y = table.subsets, table.values[:, t]
    estimated, runs, judging = np.split(
        order[: ESTIMATED + max(numbers) + JUDGING], [ESTIMATED, ESTIMATED + max(numbers)]
    )
    centred, effects = S - S.mean(0), rng.normal(size=(3, table.n_tasks))
    other = centred @ effects[0] + (centred @ effects[1]) * (centred @ effects[2])
    other, spread = (other - other.mean()) / other.std() * y.std(), y.std()
    share = float(kind.split()[-1]) if kind.startswith("correlated") else 0.0
    values = {
        "0.8 × truth": 0.8 * y,
        "noisy": 0.8 * y + 0.5 * spread * rng.normal(size=len(y)),
        "noise": y.mean() + spread * rng.normal(size=len(y)),
    }.get(kind, share * y + np.sqrt(1 - share**2) * other)
    model = whence.fit(whence.Outcomes(S[estimated], values[estimated]))
    new, found = whence.Outcomes(S[judging], y[judging]), []
    for n in numbers:
        true_runs = whence.Outcomes(S[runs[:n]], y[runs[:n]])
        if np.ptp(true_runs.values) > 0:
            parts = {"estimates": model, "true runs": whence.fit(true_runs)}
            parts["both"] = whence.fit(true_runs, estimates=model)
            scores = {
                name: float(np.nan_to_num(whence.lds(part, new).per_target).mean()) for name, part in parts.items()
            }
            found.append({"kind": kind, "runs": n, **scores})
    return found


def on_tables(folder: Path, splits: int, quick: bool) -> str:
    """Markdown of what fusion comes to on real tables."""
    numbers, rows = ((4, 10) if quick else TABLE_NUMBERS), []
    for name in (DEVELOPED + SEEN)[: 1 if quick else None]:
        table = whence.read_outcomes(folder / f"{name}.npz")
        for kind in KINDS[: 2 if quick else None]:
            for split in range(1 if quick else splits):
                seed = zlib.crc32(f"{name} {split}".encode())
                rows += [{"table": name, **row} for row in table_scores(table, kind, numbers, seed)]
            print(name, kind, flush=True)
    scores = pd.DataFrame(rows)
    means = scores.groupby(["table", "kind", "runs"])[["estimates", "true runs", "both"]].mean()
    means["gap"] = means["both"] - means[["estimates", "true runs"]].max(axis=1)
    lines = []
    for words, names in GROUPS.items():
        own = means[means.index.isin(names, level="table")].groupby(level=["kind", "runs"], sort=False)
        if not len(own):
            continue
        lines += [
            "",
            f"## {words}",
            "",
            "| estimates | true runs | estimates alone | true runs alone | both | gap | worst |",
        ]
        lines.append("|:---|---:|---:|---:|---:|---:|---:|")
        for (kind, n), found in own:
            mean = found.mean()
            lines.append(
                f"| {kind} | {n} | {mean['estimates']:.2f} | {mean['true runs']:.2f} | {mean['both']:.2f} "
                f"| {mean['gap']:+.3f} | {found['gap'].min():+.3f} |"
            )
    return "\n".join(lines)


class World:
    """Subsets, estimates and runs of one simulated problem."""

    def __init__(self, quality, noise, pairs, n_targets, seed) -> None:
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(K, 5)) @ rng.normal(size=(5, n_targets)) / np.sqrt(5)
        effects = np.sqrt(0.5) * (common + rng.normal(size=(K, n_targets)))
        errors = rng.normal(size=(K, n_targets)) * effects.std(0)
        self.subsets = whence.FixedSize(SIZE).draw(K, RUNS + NEW, seed=seed)
        products = rng.normal(size=(K, K, n_targets))
        centred = self.subsets - SIZE / K
        both = np.einsum("mi,ijt,mj->mt", centred, products, centred)
        sums = self.subsets @ effects
        truth = np.sqrt(1 - pairs) * sums + np.sqrt(pairs) * sums.std(0) / both.std(0) * both
        self.estimates = self.subsets @ (quality * effects + np.sqrt(1 - quality**2) * errors)
        runs = truth + noise * truth.std(0) * rng.normal(size=(3, *truth.shape))
        self.run, self.goal = runs[0], runs.mean(0)[RUNS:]
        self.order = rng.permutation(RUNS)

    def table(self, rows, values):
        return whence.Outcomes(self.subsets[rows], values[rows])

    def score(self, predicted) -> float:
        return float(np.nan_to_num(spearman_per_target(predicted, self.goal)).mean())

    def scores(self, n, *, whole) -> tuple[float, float, float]:
        """LDS of estimates alone, of n true runs alone, and of both."""
        rows, new = self.order[:n], self.subsets[RUNS:]
        known = self.table(np.arange(RUNS), self.estimates)
        alone = CombinedSurrogate().fit(self.subsets[rows], self.run[rows]).predict(new)
        if whole:
            both = whence.fit(self.table(rows, self.run), estimates=known).predict(new)
        else:
            model = whence.fit(known, surrogate=AdditiveSurrogate("ols"), n_folds=None)
            rung = Rung.of("estimates", model, np.arange(known.n_targets))
            both = FusedSurrogate((rung,)).fit(self.subsets[rows], self.run[rows]).predict(new)
        return self.score(self.estimates[RUNS:]), self.score(alone), self.score(both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--tables", type=Path, nargs="?", const=TABLES)
    parser.add_argument("--splits", type=int, default=10, help="of every table and kind of estimates")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.tables:
        text = (
            "# Fusion beside its parts on real tables\n\n"
            f"`python benchmarks/fusion.py --tables --splits {args.splits}`, "
            f"{time.strftime('%d %B %Y')}, {platform.machine()}, one thread.\n\n{ABOUT_TABLES}\n"
            f"{on_tables(args.tables, args.splits, args.quick)}\n"
        )
        print(text)
        if not args.quick:
            (HERE / "results" / "fusion_tables.md").write_text(text, encoding="utf-8")
        return
    numbers = (5, 10) if args.quick else NUMBERS
    lines = [
        "| estimates | alone | " + " | ".join(f"{n} runs" for n in numbers) + " |",
        "|---|---|" + "---|" * len(numbers),
    ]
    gaps = []
    for words, world in list(WORLDS.items())[: 1 if args.quick else None]:
        worlds = [World(*world, seed) for seed in range(1 if args.quick else args.worlds)]
        found = np.array([[one.scores(n, whole=args.fit) for n in numbers] for one in worlds]).mean(0)
        gaps.append(found[:, 2] - found[:, :2].max(1))
        cells = [f"{alone:.2f} → {both:.2f}" for _, alone, both in found]
        lines.append(f"| {words} | {found[0, 0]:.2f} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    gap = np.array(gaps)
    lines.append(
        "| fused less the better part, mean | | " + " | ".join(f"{value:+.3f}" for value in gap.mean(0)) + " |"
    )
    lines.append("| … the worst | | " + " | ".join(f"{value:+.3f}" for value in gap.min(0)) + " |")
    text = (
        f"# Fusion beside its parts\n\n`python benchmarks/fusion.py{' --fit' * args.fit} --worlds {args.worlds}`, "
        f"{time.strftime('%d %B %Y')}, {platform.system()}, one thread.\n\n"
        f"{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n\nTrue runs alone → both.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if not args.quick:
        file = HERE / "results" / f"fusion{'_fit' * args.fit}.md"
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
