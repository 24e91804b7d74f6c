"""Scores of one joint run as rungs: how near each comes to true runs, what it adds to a few of them, and its price.

    python benchmarks/scores.py                          the page, from what scores_record.py has recorded: minutes
    python benchmarks/scores.py --only "digits"          problems whose name has this text anew, the others as they were
    python benchmarks/scores.py --quick                  little of everything, nothing written

Truth: the loss of each query after training on the subsets, mean of two or three seeds (one seed for CIFAR-10). LDS is
the rank correlation with it for each query, in the mean; whatever learns from true runs sees one seed of runs outside
of the fifth that it is judged on. Prices are in true runs, by passes (passes.py): a forward pass of an example is 1, a
backward pass 2 more. Kinds of scores that are fused share their joint run.

The default mix is that of `whence estimate --budget` at these prices: influence functions and TRAK, both "along" (in
the mean of the four quarters of a run) or at its half, whichever cost at most half of the budget. Settings of fusion
were chosen on simulated worlds (fusion.py). How points are averaged and the default mix were chosen on the problems
marked "chosen on". There a damping of influence functions by 0.1 or 0.3 of the mean eigenvalue was equally good, and a
fixed one of 0.001 slightly better; 0.3 was taken with the other problems in view, so that influence functions may be
slightly better on these than elsewhere.

Modular arithmetic at full size and CIFAR-10 were recorded on an NVIDIA H200 (torch 2.11), the others on a processor
(torch 2.13). Influence functions of models with ten outputs were recorded with all columns of EK-FAC; one random
combination of them, as now, has the same LDS to 0.006. CIFAR-10 has one seed of true runs, of which two agree to 0.03
for an image: it tells nothing here.

Where a goal is missed, these were tried by hand, first on the problems "chosen on", and gained less than 0.01 in the
mean at the same price: true runs chosen to determine effects (D-optimal), to spread the estimates, or where the two
kinds disagree (up to 0.06 on modular arithmetic, -0.04 on LoRA); runs of a quarter of the steps in place of some true
ones; scores of two more joint runs in place of two true runs; leaving out the kind that agrees much less with the true
runs; errors of similar queries learned together.
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
from scipy.stats import rankdata

import scores_problems
import whence
from scores_file import Record, file_name, lora
from scores_problems import CHOSEN_ON, PROBLEMS
from truth import Truth
from whence.baselines.joint import QUARTERS
from whence.ladder import advice
from whence.ladder.advice import default_mix
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rungs import Rung

HERE = Path(__file__).resolve().parent
RUNS, FUSED = (3, 5, 10, 20, 25, 40, 50, 80), (3, 5, 10, 20, 40)
GOALS = {8: (40, 25), 20: (80, 50)}  # total price: true runs alone to be matched, of at most 100 steps and of more
SCORED = advice.Workload(1, 1, 1, 1, 1)  # whatever the model: scores are what is judged here
TOTALS = (5, 8, 10, 20, 40)  # prices that the default mix is made for
FAMILIES = ("reviews", "arithmetic")  # of LoRA
NEAR = (0.375, 0.25, 0.25, 0.125)  # shares of a run that are nearest to each quarter
VARIANTS = {  # words: kind, shares of the run, seeds of runs
    "influence": ("influence", (0.5,), (0,)),
    "influence-along": ("influence", QUARTERS, (0,)),
    "influence, after a quarter": ("influence", (0.25,), (0,)),
    "influence, at the end": ("influence", (1.0,), (0,)),
    "influence, mean of three runs": ("influence", (0.5,), (0, 1, 2)),
    "influence, damped by 0.1": ("influence, damped by 0.1", (0.5,), (0,)),
    "influence, damped by 1": ("influence, damped by 1", (0.5,), (0,)),
    "influence, damping 0.01": ("influence, damping 0.01", (0.5,), (0,)),
    "influence, 16 examples a task": ("influence, 16 examples a task", (0.5,), (0,)),
    "trak": ("trak", (0.5,), (0,)),
    "trak-along": ("trak", QUARTERS, (0,)),
    "trak, at the end": ("trak", (1.0,), (0,)),
    "trak, mean of three runs": ("trak", (0.5,), (0, 1, 2)),
    "trak, 16 examples a task": ("trak, 16 examples a task", (0.5,), (0,)),
    "tracin": ("tracin", QUARTERS, (0,)),
}
MIXES = {
    "influence": ("influence",),
    "trak": ("trak",),
    "influence-along": ("influence-along",),
    "trak-along": ("trak-along",),
    "influence, trak": ("influence", "trak"),
    "influence, trak-along": ("influence", "trak-along"),
    "influence-along, trak-along": ("influence-along", "trak-along"),
    "merge": ("merge, a quarter",),
    "influence, merge": ("influence", "merge, a quarter"),
    "influence, background": ("influence", "background"),
}


class Study(Truth):
    """One problem as it was recorded, and all that is held against its true runs."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.subsets, record.truth)
        self.record, self.alone, self.rungs = record, {}, {}
        for words, (kind, shares, seeds) in VARIANTS.items():
            keys = [f"{kind}/{share}/{seed}" for seed in seeds for share in shares]
            if all(key in record.scores for key in keys):
                self.add(words, self._scored(kind, keys), self._price(kind, shares, len(seeds)))
        for words, values in record.values.items():
            self.add(words, values, record.price(words))

    def _scored(self, kind: str, keys):
        if kind != "tracin":
            return self.record.made(*keys).predict(self.record.known)
        parts = [self.record.made(key) for key in keys]
        return sum(share * part.predict(self.record.known) for share, part in zip(NEAR, parts, strict=True))

    def _price(self, kind: str, shares, runs: int) -> float:
        """What scores cost, in true runs."""
        method, _, few = kind.partition(", ")
        tasks = self.subsets.shape[1]
        fewer = {"n_examples": int(few.split()[0]) * tasks} if few.endswith("a task") else {}
        return runs * self.record.prices(shares, **fewer)[method].once

    def add(self, words, values, price: float) -> None:
        lds, mean = self.score(values[: len(self.subsets)])
        self.alone[words] = {"lds": lds, "mean": mean, "price": price}
        table = whence.Outcomes(self.record.known, values)
        additive = words in VARIANTS and len(set(self.record.known.sum(1))) == 1
        model = whence.fit(table, surrogate=AdditiveSurrogate("ols") if additive else CombinedSurrogate(), n_folds=None)
        self.rungs[words] = price, Rung.of(words, model, np.arange(values.shape[1]))

    def learned(self, make, m):
        """LDS of a surrogate of m true runs, each fifth predicted from runs outside of it."""
        found = np.empty_like(self.mean)
        for number, rows in enumerate(self.fifths):
            some = self.some(number, rows, m)
            found[rows] = make().fit(self.subsets[some], self.values[0][some]).predict(self.subsets[rows])
        return self.score(found)[0]

    def some(self, number, rows, m):
        """The m true runs that a fifth is predicted from."""
        others = np.setdiff1d(np.arange(len(self.mean)), rows)
        return np.random.default_rng(number).permutation(others)[:m]

    def fused(self):
        most = len(self.mean) - max(map(len, self.fifths))
        curves = {"true runs": {m: self.learned(CombinedSurrogate, m) for m in RUNS if m <= most}}
        for words, names in MIXES.items():
            if all(name in self.rungs for name in names):
                curves[words] = {m: self.learned(self.mixed(names), m) for m in FUSED if m <= most}
        cost = {words: self.price(MIXES[words]) for words in curves if words in MIXES}
        found = {}
        for total in TOTALS:
            spent, m = default_mix(self.record.prices(), SCORED, total)
            if m <= most:
                alone = [self.alone[name]["lds"] for name in spent] + [self.learned(CombinedSurrogate, m)]
                lds = self.learned(self.mixed(spent) if spent else CombinedSurrogate, m)
                found[total] = {"estimates": spent, "true runs": m, "lds": lds, "best part": max(alone)}
        return {
            "another run": self.another_run(),
            "steps": self.record.steps,
            "mix": found,
            "alone": self.alone,
            "fused": {words: {"price": cost.get(words, 0.0), "lds": own} for words, own in curves.items()},
        }

    def price(self, names) -> float:
        """What estimates cost together: scores of one kind or another share their joint run."""
        known = self.record.prices()
        shared = [name for name in names if name in known and known[name].run]
        return sum(advice.added_prices(known, shared).values()) + sum(
            self.rungs[name][0] for name in names if name not in shared
        )

    def another_run(self) -> float:
        if self.record.again is not None:  # seeds of some of the subsets
            values = self.record.again
            ranks = rankdata(values, axis=1)
            ranks -= ranks.mean(1, keepdims=True)
            ranks /= np.sqrt((ranks**2).sum(1, keepdims=True))
            return float(np.mean([(ranks[i] * ranks[i - 1]).sum(0).mean() for i in range(len(values))]))
        seeds = range(len(self.values))
        return float(np.mean([self.score(self.values[i], self.values[i - 1])[0] for i in seeds]))

    def mixed(self, names):
        """A surrogate that fuses true runs with some estimates."""
        return partial(FusedSurrogate, tuple(self.rungs[name][1] for name in names))


def read(file):
    """What an earlier run, or one of another problem beside this one, has found."""
    found = json.loads(file.read_text(encoding="utf-8"))
    for own in found.values():
        own["mix"] = {int(total): mix for total, mix in own["mix"].items()}
        for curve in own["fused"].values():
            curve["lds"] = {int(m): value for m, value in curve["lds"].items()}
    return found


def table(rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def goals(found) -> str:
    """What the default mix gives at a total price, beside true runs alone."""
    heads = ["problem", "at a price of", "default mix", "LDS", "true runs alone", "of so many", "less its best part"]
    rows = [heads]
    for name, own in found.items():
        true = own["fused"]["true runs"]["lds"]
        for total, (short, long) in GOALS.items():
            if total not in own["mix"]:
                continue
            mix, wanted = own["mix"][total], short if own["steps"] <= 100 else long
            least = max(known for known in true if known <= wanted)
            parts = [f"{method} ({price:.1f})" for method, price in mix["estimates"].items()]
            cells = [", ".join([*parts, f"{mix['true runs']} runs"]), f"{mix['lds']:.2f}", f"{true[least]:.2f}"]
            cells += [str(least), f"{mix['lds'] - mix['best part']:+.3f}"]
            rows.append([titled(name), str(total), *cells])
    return table(rows)


def titled(name: str) -> str:
    return name + " (chosen on)" * (name in CHOSEN_ON)


def report(found) -> str:
    """Return the tables, in Markdown."""
    parts = ["## Goals\n\nThe default mix with as many true runs as a total price leaves.\n", goals(found)]
    parts += ["\n## Alone\n\nLDS, and the price in true runs.\n"]
    words = [*VARIANTS, *(other for other in ("one-step", "merge, a quarter", "background"))]
    for some in (list(found)[i : i + 7] for i in range(0, len(found), 7)):
        rows = [["alone", *map(titled, some)]]
        rows.append(["another run", *(f"{found[name]['another run']:.2f}" for name in some)])
        for word in words:
            own = [found[name]["alone"].get(word) for name in some]
            if any(own):
                rows.append([word, *(f"{r['lds']:.2f} ({r['price']:.1f})" if r else "" for r in own)])
        parts += [table(rows), ""]
    parts += ["## Fused with true runs\n\nLDS by the number of true runs.\n"]
    for name in found:
        curves = found[name]["fused"]
        numbers = [m for m in RUNS if m in curves["true runs"]["lds"]]
        rows = [[titled(name), "price", *map(str, numbers)]]
        rows += [
            [words, f"{own['price']:.1f}", *(f"{own['lds'][m]:.2f}" if m in own["lds"] else "" for m in numbers)]
            for words, own in curves.items()
        ]
        parts += [table(rows), ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    file = HERE / "results" / "scores.json"
    found = read(file) if file.exists() and not args.quick else {}
    files = {name: HERE / "results" / "scores" / f"{file_name(name)}.npz" for name in PROBLEMS}
    records = [Record.read(path) for path in files.values() if path.exists()] + [lora(kind) for kind in FAMILIES]
    for record in [record for record in records if args.only in record.name][: 1 if args.quick else None]:
        found[record.name] = Study(record).fused()
        told = {m: round(mix["lds"], 3) for m, mix in found[record.name]["mix"].items()}
        print(f"{record.name}: the default mix {told}", flush=True)
    found = {record.name: found[record.name] for record in records if record.name in found}
    text = (
        f"# Scores of one joint run as rungs\n\n`python benchmarks/scores.py`, {time.strftime('%d %B %Y')}, "
        f"{platform.system()}.\n\n{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n\n"
        f"{(scores_problems.__doc__ or '').split(chr(10) * 2, 1)[1].strip()}\n\n{report(found)}\n"
    )
    if not args.quick:
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        file.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
