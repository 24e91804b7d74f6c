"""Scores of one joint run as rungs: how near each comes to true runs, what it adds to a few of them, and its price.

    python benchmarks/scores.py --only "digits, perceptron"     one problem; without it, all, one after the other
    python benchmarks/scores.py --device cuda --paper           modular arithmetic of the paper's size
    python benchmarks/scores.py --keep DIR                      keep true runs there, or take them from there
    python benchmarks/scores.py --quick                         little of everything, nothing written

Problems: scikit-learn's digits in 20 tasks with mixed-up classes, subsets of 10 (two networks from a random start); and
fine-tuning a transformer to modular addition or a² + ab + b², 25 tasks, subsets of 15, from a model that knows three
other operations (of width 32 on a processor). Truth: the loss of each query after training on 60 subsets, mean of two
seeds. LDS is the rank correlation with it for each query, in the mean; whatever learns from true runs sees one seed of
runs outside of the fifth that it is judged on. Prices are in true runs, by passes (passes.py): a forward pass of an
example is 1, a backward pass 2 more.

Settings of fusion were chosen on simulated worlds (fusion.py). Those of the scores (halfway, damping 0.01, l2 of 1)
were there before. The default mix, influence functions and TRAK, was chosen with the problems marked "chosen on" in
view; others were run afterwards. SOURCE is truncated (rank 8, curvature of 10 examples a task) and has no price here.
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
import torch

import ladder
import whence
from modular import tasks_and_target
from passes import prices, workload
from truth import Truth, load_pretrained
from whence.ladder.methods import Setup
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rungs import Rung

HERE = Path(__file__).resolve().parent
SUBSETS, SEEDS, RUNS, ESTIMATED = 60, 2, (5, 10, 20, 40), 100
CHOSEN_ON = ("digits, perceptron", "digits, convolutions", "addition, 100 steps")
MODULAR = {
    "addition, 100 steps": ("addition", 100, 3e-4),
    "quadratic, 100 steps": ("quadratic", 100, 3e-4),
    "addition, 300 steps": ("addition", 300, 1e-3),
    "quadratic, 300 steps": ("quadratic", 300, 1e-3),
}
QUARTERS = (0.25, 0.5, 0.75, 1.0)
VARIANTS = {  # words: method, options
    "influence": ("influence", {}),
    "influence, after a quarter": ("influence", {"at": 0.25}),
    "influence, at the end": ("influence", {"at": 1.0}),
    "influence, mean of four points": ("influence", {"at": QUARTERS}),
    "influence, mean of three runs": ("influence", {"runs": 3}),
    "influence, damping 0.001": ("influence", {"damping": 0.001}),
    "influence, damping 0.1": ("influence", {"damping": 0.1}),
    "influence, 16 examples a task": ("influence", {"examples": 16}),
    "trak": ("trak", {}),
    "trak, at the end": ("trak", {"at": 1.0}),
    "tracin": ("tracin", {}),
    "source": ("source", {"rank": 8, "examples": 10}),
}
MIXES = {
    "influence": ("influence",),
    "trak": ("trak",),
    "influence, trak": ("influence", "trak"),
    "merge": ("merge, a quarter",),
    "influence, merge": ("influence", "merge, a quarter"),
}


class Study(Truth):
    """One problem, its true runs, and all that is held against them."""

    def __init__(self, name, args) -> None:
        self.name, self.args = name, args
        if name.startswith("digits"):
            given = ladder.problem(name.split(", ")[1], steps=20 if args.quick else 300)
            self.problem, self.recipe, size = given.problem, given.recipe, 10
        else:
            operation, steps, lr = MODULAR[name]
            tasks, target = tasks_and_target(operation)
            target = tuple(part[:: 60 if args.quick else 6] for part in target)
            self.recipe, size = whence.Recipe(steps=10 if args.quick else steps, lr=lr, batch_size=256), 15
            args.model = args.model or load_pretrained(args)
            self.problem = whence.Problem(args.model, tasks, target, per_query=True)
        n_tasks = len(self.problem.task_names)
        subsets = whence.FixedSize(size).draw(n_tasks, 15 if args.quick else SUBSETS, seed=0)
        self.known = np.concatenate([subsets, whence.FixedSize(size).draw(n_tasks, ESTIMATED, seed=1)])
        super().__init__(subsets, self._truth(subsets))
        self.work = workload(Setup(self.problem, self.recipe))
        self.alone: dict[str, dict] = {}
        self.rungs: dict[str, tuple[float, Rung]] = {}

    def _truth(self, subsets):
        file = self.args.keep / f"{self.name.replace(', ', '_').replace(' ', '_')}.npz" if self.args.keep else None
        if file and file.exists():
            return np.load(file)["values"].astype(float)
        run = whence.Retrain(self.problem, self.recipe)
        values = np.array([run.batch(subsets, np.full(len(subsets), seed))["loss"] for seed in range(SEEDS)])
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, values=values.astype(np.float32))
        return values

    def price(self, method, *, at=(0.5,), runs=1, examples=None) -> float:
        work = self.work if examples is None else workload(Setup(self._fewer(examples), self.recipe))
        each = prices(work)["retrain"].each
        return runs * prices(work, at=at)[method].total(ESTIMATED) / each

    def _fewer(self, examples):
        return self.problem.with_examples(self.problem.tasks.sample(examples), self.problem.targets)

    def estimates(self) -> None:
        for words, (method, options) in VARIANTS.items():
            began = time.process_time()
            made = whence.JointScores(self.problem, self.recipe, method, **options)
            values = made.batch(self.known)["loss"]
            where = made.at if method != "influence" or "at" in options else (0.5,)
            known = method if method != "source" else "tracin"
            price = self.price(known, at=where, runs=made.runs, examples=made.examples if known != "tracin" else None)
            self.add(words, values, price if method != "source" else None, time.process_time() - began)
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
        curves = {"true runs": {m: self.learned(CombinedSurrogate, m) for m in RUNS if m <= most}}
        for words, names in MIXES.items():
            rungs = tuple(self.rungs[name][1] for name in names)
            curves[words] = {m: self.learned(partial(FusedSurrogate, rungs), m) for m in RUNS if m <= most}
            print(f"  fused, {words}: {curves[words]}", flush=True)
        costs = {words: sum(self.rungs[name][0] for name in names) for words, names in MIXES.items()}
        return {
            "another run": float(np.mean([self.score(self.values[i], self.values[1 - i])[0] for i in range(2)])),
            "alone": self.alone,
            "fused": {words: {"price": costs.get(words, 0.0), "lds": own} for words, own in curves.items()},
        }


def table(rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def report(found) -> str:
    """Return the tables, in Markdown."""
    names = list(found)
    heads = [f"{name}{' (chosen on)' if name in CHOSEN_ON else ''}" for name in names]
    rows = [["alone: LDS (price)", *heads]]
    rows.append(["another run", *(f"{found[name]['another run']:.2f}" for name in names)])
    for words in found[names[0]]["alone"]:
        own = [found[name]["alone"][words] for name in names]
        rows.append([words, *(f"{r['lds']:.2f}" + (f" ({r['price']:.1f})" if r["price"] else "") for r in own)])
    parts = ["## Alone\n", table(rows), "\n## Fused with true runs\n\nLDS by the number of true runs.\n"]
    for name, head in zip(names, heads, strict=True):
        curves = found[name]["fused"]
        numbers = list(curves["true runs"]["lds"])
        rows = [[head, "price", *map(str, numbers)]]
        rows += [
            [words, f"{own['price']:.1f}", *(f"{own['lds'][m]:.2f}" for m in numbers)] for words, own in curves.items()
        ]
        parts += [table(rows), ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--paper", action="store_true", help="modular arithmetic of the paper's size")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    args.truth, args.size, args.model = args.keep, {} if args.paper else {"width": 32}, None
    names = ["digits, perceptron", "digits, convolutions", *MODULAR]
    found = {}
    file = HERE / "results" / ("scores_paper.json" if args.paper else "scores.json")
    if file.exists() and not args.quick:
        found = json.loads(file.read_text(encoding="utf-8"))
        for own in found.values():
            for curve in own["fused"].values():
                curve["lds"] = {int(m): value for m, value in curve["lds"].items()}
    for name in names:
        if args.only not in name or (args.paper and name.startswith("digits")):
            continue
        print(name, flush=True)
        study = Study(name, args)
        study.estimates()
        found[name] = study.fused()
        if not args.quick:
            found = {known: found[known] for known in names if known in found}
            file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "one thread of a processor"
    text = (
        f"# Scores of one joint run as rungs\n\n`python benchmarks/scores.py{' --paper' * args.paper}`, "
        f"{time.strftime('%d %B %Y')}, {where}, torch {torch.__version__}, {platform.system()}.\n\n"
        f"{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n\n{report(found)}\n"
    )
    print(text)
    if not args.quick:
        file.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
