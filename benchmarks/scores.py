"""Scores of one joint run as rungs: how near each comes to true runs, what it adds to a few of them, and its price.

    python benchmarks/scores.py --only "digits, perceptron"     one problem; without it, all, one after the other
    python benchmarks/scores.py --device cuda --paper           modular arithmetic of the paper's size
    python benchmarks/scores.py --keep DIR                      keep true runs there, or take them from there
    python benchmarks/scores.py --only nothing                  the page again, from what was recorded
    python benchmarks/scores.py --quick                         little of everything, nothing written

Truth: the loss of each query after training on 60 to 100 subsets, mean of two seeds; of three at the paper's size. LDS
is the rank correlation with it for each query, in the mean; whatever learns from true runs sees one seed of runs
outside of the fifth that it is judged on. Prices are in true runs, by passes (passes.py): a forward pass of an example
is 1, a backward pass 2 more. Every kind of scores has a joint run of its own, as in `whence estimate`;
`JointScores.by` would save all but one of them.

The default mix is that of `whence estimate --budget` at these prices: influence functions and TRAK, both "along" (in
the mean of the four quarters of a run) or at its half, whichever cost at most half of the budget. Settings of fusion
were chosen on simulated worlds (fusion.py). How points are averaged and the default mix were chosen on the problems
marked "chosen on". There a damping of influence functions by 0.1 or 0.3 of the mean eigenvalue was equally good, and a
fixed one of 0.001 slightly better; 0.3 was taken with the other problems in view, so that influence functions may be
slightly better on these than elsewhere. SOURCE is truncated (rank 8, curvature of 10 examples a task) and has no price
here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))

import scores_problems
import whence
from passes import prices, workload
from scores_problems import CHOSEN_ON, PROBLEMS
from truth import Truth
from whence.baselines import EKFAC
from whence.ladder import advice
from whence.ladder.advice import default_mix
from whence.ladder.methods import Setup, make_estimator
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rungs import Rung

HERE = Path(__file__).resolve().parent
RUNS, ESTIMATED = (3, 5, 10, 20, 25, 40, 50, 80), 100
FUSED = (3, 5, 10, 20, 40)
GOALS = {8: (40, 25), 20: (80, 50)}  # total price: true runs alone to be matched, of at most 100 steps and of more
SCORED = advice.Workload(1, 1, 1, 1, 1)  # whatever the model: scores are what is judged here
TOTALS = (5, 8, 10, 20, 40)  # prices that the default mix is made for
VARIANTS = {  # words: method of the ladder, options
    "influence": ("influence", {}),
    "influence-along": ("influence-along", {}),
    "influence, after a quarter": ("influence", {"at": 0.25}),
    "influence, at the end": ("influence", {"at": 1.0}),
    "influence, mean of three runs": ("influence", {"runs": 3}),
    "influence, damped by 0.1": ("influence", {"solver": EKFAC(relative_damping=0.1)}),
    "influence, damped by 1": ("influence", {"solver": EKFAC(relative_damping=1.0)}),
    "influence, damping 0.01": ("influence", {"solver": EKFAC(), "damping": 0.01}),
    "influence, 16 examples a task": ("influence", {"examples": 16}),
    "trak": ("trak", {}),
    "trak-along": ("trak-along", {}),
    "trak, at the end": ("trak", {"at": 1.0}),
    "tracin": ("tracin", {}),
    "source": ("source", {"rank": 8, "examples": 10}),
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
}


class Study(Truth):
    """One problem, its true runs, and all that is held against them."""

    def __init__(self, name, args) -> None:
        self.name, self.args = name, args
        given = PROBLEMS[name](args)
        self.problem, self.recipe = given.problem, given.recipe
        n_tasks, size = len(self.problem.task_names), int(given.subsets[0].sum())
        self.known = np.concatenate([given.subsets, whence.FixedSize(size).draw(n_tasks, ESTIMATED, seed=1)])
        super().__init__(given.subsets, self._truth(given.subsets) if given.values is None else given.values)
        self.work = workload(Setup(self.problem, self.recipe))
        self.alone: dict[str, dict] = {}
        self.rungs: dict[str, tuple[float, Rung]] = {}

    def _truth(self, subsets):
        file = self.args.keep / f"{self.name.replace(', ', '_').replace(' ', '_')}.npz" if self.args.keep else None
        if file and file.exists():
            return np.load(file)["values"].astype(float)
        run = whence.Retrain(self.problem, self.recipe)
        values = np.array([run.batch(subsets, np.full(len(subsets), seed))["loss"] for seed in range(self.args.seeds)])
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, values=values.astype(np.float32))
        return values

    def price(self, method, made) -> float | None:
        """What scores cost, in true runs."""
        if method == "source":
            return None
        few = self.problem if made.examples is None else self._fewer(made.examples)
        found = prices(workload(Setup(few, self.recipe)), at=made.at)
        return made.runs * found[method].total(ESTIMATED) / found["retrain"].each

    def _fewer(self, examples):
        return self.problem.with_examples(self.problem.tasks.sample(examples), self.problem.targets)

    def estimates(self) -> None:
        for words, (method, options) in VARIANTS.items():
            began = time.process_time()
            made = make_estimator(Setup(self.problem, self.recipe), method, **options)
            values = made.batch(self.known)["loss"]
            self.add(words, values, self.price(method, made), time.process_time() - began)
        for words, make, options in (
            ("one-step", whence.OneStep, {}),
            ("merge, a quarter", whence.TaskVectors, {"early": 0.25, "merge": "outputs"}),
        ):
            began = time.process_time()
            values = make(self.problem, self.recipe, **options).batch(self.known)["loss"]
            priced = prices(workload(Setup(self.problem, self.recipe, {"merge": options} if options else {})))
            price = priced[words.split(",")[0]].total(ESTIMATED) / priced["retrain"].each
            self.add(words, values, price, time.process_time() - began)

    def add(self, words, values, price, seconds) -> None:
        lds, mean = self.score(values[: len(self.subsets)])
        self.alone[words] = {"lds": lds, "mean": mean, "price": price, "seconds": seconds}
        print(f"  {words}: {lds:.3f} / {mean:.3f}, {price or 0:.1f} runs, {seconds:.1f} s", flush=True)
        table = whence.Outcomes(self.known, values, task_names=list(self.problem.task_names))
        surrogate = CombinedSurrogate() if words.startswith(("merge", "one-step")) else AdditiveSurrogate("ols")
        model = whence.fit(table, surrogate=surrogate, n_folds=None)
        self.rungs[words] = price or 0.0, Rung.of(words, model, np.arange(values.shape[1]))

    def learned(self, make, m):
        """LDS of a surrogate of m true runs, each fifth predicted from runs outside of it."""
        found = np.empty_like(self.mean)
        for number, rows in enumerate(self.fifths):
            others = np.setdiff1d(np.arange(len(self.mean)), rows)
            some = np.random.default_rng(number).permutation(others)[:m]
            found[rows] = make().fit(self.subsets[some], self.values[0][some]).predict(self.subsets[rows])
        return self.score(found)[0]

    def fused(self):
        most = len(self.mean) - max(map(len, self.fifths))
        known = prices(self.work)
        mixes = {total: default_mix(known, SCORED, total) for total in TOTALS}
        true = {m for m in RUNS if m <= most}
        curves = {"true runs": {m: self.learned(CombinedSurrogate, m) for m in sorted(true)}}
        for words, names in MIXES.items():
            curves[words] = {m: self.learned(self.mixed(names), m) for m in FUSED if m <= most}
            print(f"  fused, {words}: {curves[words]}", flush=True)
        cost = {words: sum(self.rungs[name][0] for name in names) for words, names in MIXES.items()}
        found = {}
        for total, (spent, m) in mixes.items():
            if m <= most:
                alone = [self.alone[name]["lds"] for name in spent] + [self.learned(CombinedSurrogate, m)]
                lds = self.learned(self.mixed(spent) if spent else CombinedSurrogate, m)
                found[total] = {"estimates": spent, "true runs": m, "lds": lds, "best part": max(alone)}
        print(f"  default mix: {found}", flush=True)
        seeds = range(len(self.values))
        return {
            "another run": float(np.mean([self.score(self.values[i], self.values[i - 1])[0] for i in seeds])),
            "steps": self.recipe.steps,
            "mix": found,
            "alone": self.alone,
            "fused": {words: {"price": cost.get(words, 0.0), "lds": own} for words, own in curves.items()},
        }

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
            rows.append([name + " (chosen on)" * (name in CHOSEN_ON), str(total), *cells])
    return table(rows)


def report(found) -> str:
    """Return the tables, in Markdown."""
    names = list(found)
    heads = [f"{name}{' (chosen on)' if name in CHOSEN_ON else ''}" for name in names]
    parts = ["## Goals\n\nThe default mix with as many true runs as a total price leaves.\n", goals(found)]
    rows = [["alone: LDS (price)", *heads]]
    rows.append(["another run", *(f"{found[name]['another run']:.2f}" for name in names)])
    for words in found[names[0]]["alone"]:
        own = [found[name]["alone"][words] for name in names]
        rows.append([words, *(f"{r['lds']:.2f}" + (f" ({r['price']:.1f})" if r["price"] else "") for r in own)])
    parts += ["\n## Alone\n", table(rows), "\n## Fused with true runs\n\nLDS by the number of true runs.\n"]
    for name, head in zip(names, heads, strict=True):
        curves = found[name]["fused"]
        numbers = [m for m in RUNS if m in curves["true runs"]["lds"]]
        rows = [[head, "price", *map(str, numbers)]]
        rows += [
            [words, f"{own['price']:.1f}", *(f"{own['lds'][m]:.2f}" if m in own["lds"] else "" for m in numbers)]
            for words, own in curves.items()
        ]
        parts += [table(rows), ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--paper", action="store_true", help="modular arithmetic of the paper's size")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--wheels", type=Path, help="where those of newsgroups.py are unpacked")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    args.truth, args.size, args.model = args.keep, {} if args.paper else {"width": 32}, None
    args.seeds = 3 if args.paper else 2
    names = [name for name in PROBLEMS if not args.paper or (name.endswith("steps") and not name.startswith("seq"))]
    file = HERE / "results" / ("scores_paper.json" if args.paper else "scores.json")
    found = read(file) if file.exists() and not args.quick else {}
    for name in names:
        if args.only not in name or (name == "newsgroups" and args.wheels is None):
            continue
        print(name, flush=True)
        study = Study(name, args)
        study.estimates()
        fresh = {name: study.fused()}
        if args.quick:
            found = fresh
            continue
        found |= fresh
        found = {known: found[known] for known in names if known in found}
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "one thread of a processor"
    text = (
        f"# Scores of one joint run as rungs\n\n`python benchmarks/scores.py{' --paper' * args.paper}`, "
        f"{time.strftime('%d %B %Y')}, {where}, torch {torch.__version__}, {platform.system()}.\n\n"
        f"{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n\n"
        f"{(scores_problems.__doc__ or '').split(chr(10) * 2, 1)[1].strip()}\n\n{report(found)}\n"
    )
    print(text)
    if not args.quick:
        file.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
