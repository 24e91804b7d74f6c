"""The ladder of estimators beside true runs: how well each rank-correlates with the truth, and what it costs.

    python benchmarks/estimators.py --device cuda                   modular arithmetic, the paper's size
    python benchmarks/estimators.py --newsgroups MODEL_DIR TEXT_DIR    a pretrained encoder on real text (newsgroups.py)
    … --batch 1024   larger batches, and so less noise, in all modular runs
    … --truth DIR    keep the true runs there, or take them from there
    … --keep DIR     keep estimates and task vectors there, or take them from there
    … --only TEXT    settings whose name has this text
    … --every N      judge every Nth query only
    … --only-estimates    make estimates where there is a graphics card, and fuse those kept elsewhere
    … --quick        a small problem, minutes on a processor; nothing written

*Modular*: W₀ has learned three other operations; the tasks are 25 groups of equations of a new one; true runs are
fine-tuned for 30, 100 or 300 steps on 100 subsets of 15 groups, with three seeds. *Newsgroups*: 20 sources of text, 60
subsets of 12, two seeds. The outcome is the loss of each held-out query. Scores are rank correlations with the mean of
the seeds within fifths of the subsets, per query (LDS) and of the mean loss. Whatever learns from true runs sees one
seed of some of the runs outside of the fifth that it is judged on. "Another run" is one seed against the mean of the
others; "perfect" is what the noise of the seeds leaves to an estimator that knows the expected outcome.

Runs are merged by their weights, or by their outputs, probabilities or outcomes (`TaskVectors(merge=…)`); each run is
on a single task, with all tasks in a share of its batches (background), or on all tasks but its own (left out). What is
merged of the same runs otherwise than by weights is fused together. Costs count passes (`passes.py`), for 500
subsets, in true runs. Seconds are those that all estimates took, with the training of the runs that they need.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import whence
from newsgroups import Newsgroups
from passes import prices, workload
from truth import BATCH, Setting, load_pretrained
from whence.evaluation import noise_ceiling
from whence.ladder.methods import Setup
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.rungs import Rung

HERE = Path(__file__).resolve().parent
SUBSETS = 500  # that a cost is for
RUNS = (5, 10, 20, 40, 80)
FEW = 5  # true runs that a scale is chosen by
BACKGROUND = 0.75  # share of all tasks in each run, where it is not on a single task
QUARTER = "single tasks, a quarter of the steps"
KINDS: dict[str, tuple[dict, tuple[str, ...]]] = {  # what runs see, and what of them is merged
    QUARTER: ({"early": 0.25}, ("weights", "outputs", "probabilities")),
    "single tasks": ({}, ("weights", "outputs", "probabilities")),
    "background": ({"background": BACKGROUND}, ("weights", "outputs")),
    "left out": ({"runs": "left out"}, ("weights", "outputs", "outcomes")),
}
PLAIN = "single tasks, weights"
LENGTHS = [(30, 1e-4), (100, 3e-4), (300, 1e-3)]


@dataclass(frozen=True)
class Result:
    """How near a method came, and what it cost."""

    method: str
    variant: str
    cost: float  # in true runs
    seconds: float
    lds: float
    mean: float
    n_runs: int = 0


class Bench:
    """All methods on one setting."""

    def __init__(self, setting, args) -> None:
        self.setting, self.args = setting, args
        self.problem = whence.Problem(setting.model, setting.tasks, setting.target, per_query=True)
        self.work = workload(Setup(self.problem, setting.recipe))
        self.run = prices(self.work)["retrain"].each
        self.results: list[Result] = []
        self.rungs: dict[str, tuple[float, float, dict[str, np.ndarray]]] = {}  # to be fused: cost, seconds, estimates
        size = int(setting.subsets[0].sum())
        others = whence.FixedSize(size).draw(len(setting.tasks), args.estimates, seed=1)
        self.known = np.concatenate([setting.subsets, others])
        self.another, self.perfect = yardsticks(setting)

    def cost(self, method, **other) -> float:
        return prices(replace(self.work, **other))[method].total(SUBSETS) / self.run

    def add(self, method, variant, cost, seconds, estimate, n_runs=0) -> Result:
        judged = estimate[: len(self.setting.subsets)]
        found = Result(method, variant, cost, seconds, *self.setting.score(judged), n_runs)
        self.results.append(found)
        told = f"{found.lds:.3f} / {found.mean:.3f}, {cost:.1f} runs, {found.seconds:.0f} s"
        print(f"  {method}, {variant}: {told}", flush=True)
        return found

    def estimated(self, name, work):
        """Values that some work gives, and its seconds: now, or when it was done and kept."""
        file = None
        if self.args.keep:
            words = f"{self.setting.name}, {name}, every {self.args.every}"
            file = self.args.keep / f"{words.replace(', ', '_').replace(' ', '_')}.npz"
            if file.exists():
                kept = np.load(file)
                return kept["values"].astype(float), float(kept["seconds"])
        began = time.perf_counter()
        values = work()
        seconds = time.perf_counter() - began
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, values=values.astype(np.float32), seconds=seconds)
        return values, seconds

    def rung(self, name, values) -> Rung:
        """Estimates as a function of the subset, learned from those judged and others, to be fused."""
        table = whence.Outcomes(self.known, values, task_names=list(self.setting.tasks))
        return Rung.of(name, whence.fit(table, surrogate=CombinedSurrogate(), n_folds=None), np.arange(values.shape[1]))

    # ---- estimates alone ---------------------------------------------------------------------------------

    def one_step(self) -> None:
        cost = self.cost("one-step")
        for words, kind in (("plain gradients", "sgd"), ("as AdamW scales them", "adamw")):
            step = partial(whence.OneStep, self.problem, replace(self.setting.recipe, optimizer=kind))
            name = f"one-step, {words}"
            values, seconds = self.estimated(name, lambda step=step: step().batch(self.known)["loss"])
            self.add("one-step", words, cost, seconds, values)
        self.rungs["one-step"] = cost, seconds, {"one-step": values}
        self.tuned(step, "one-step", f"length by {FEW} true runs", cost)

    def gradex(self) -> None:
        options = {"of": "margin", "weighting": "sample", "projection": "kronecker"}
        first = self.args.ranks[0]
        for rank, several in [(first, 4), *((rank, 1) for rank in self.args.ranks)]:
            words = f"margins, rank {rank}" + (f", mean of {several}" if several > 1 else "")
            make = partial(whence.GradEx, self.problem, rank=rank, n_projections=several, **options)
            cost = several * self.cost("gradex", rank=rank, n_outputs=1)
            values, seconds = self.estimated(f"gradex, {words}", lambda make=make: make().batch(self.known)["loss"])
            self.add("gradex", words, cost, seconds, values)
        self.rungs["gradex"] = cost, seconds, {"gradex": values}

    def gradex_along(self) -> None:
        n = self.args.along
        words = f"margins, {n} examples a task"
        options = {"of": "margin", "features": whence.Features(examples=n), "seed": 100}
        values, seconds = self.estimated(
            f"gradex-along, {words}",
            lambda: whence.GradEx.along(self.problem, self.setting.recipe, **options).batch(self.known)["loss"],
        )
        cost = self.cost("gradex-along", n_outputs=1, n_examples=n * len(self.setting.tasks))
        self.add("gradex-along", words, cost, seconds, values)
        self.rungs["gradex-along"] = cost, seconds, {"gradex-along": values}

    def vectors(self, kind, **options):
        """Return a function that makes the runs of a kind, once."""
        words = f"{self.setting.name}, {kind}".replace(", ", "_").replace(" ", "_")
        folder = self.args.keep / "vectors" / words if self.args.keep else None
        options = {"path": folder, **KINDS[kind][0], **options}
        return cache(partial(whence.TaskVectors, self.problem, self.setting.recipe, **options))

    def merge(self) -> None:
        for kind, (options, merges) in KINDS.items():
            make, own = self.vectors(kind), {}
            _, training = self.estimated(f"{kind}, training", lambda make=make: np.zeros(len(make().vectors)))
            for merge in reversed(merges):
                name = f"{kind}, {merge}"
                values, took = self.estimated(
                    f"merge, {name}", lambda make=make, merge=merge: make().by(merge).batch(self.known)["loss"]
                )
                cost = self.cost("merge", merge=merge, early=options.get("early", 1.0))
                self.add("merge", name, cost, training + took, values)
                if merge != "weights":  # the last, and by far the most expensive where there are many queries
                    own[name] = values
                    self.rungs[f"merge: {kind}"] = cost, training + took, own
            if name == PLAIN:
                self.rungs[f"merge: {name}"] = cost, training + took, {name: values}
                self.rules(make, cost, training)

        short = self.rungs[f"merge: {QUARTER}"]
        for kind in ("background", "left out"):
            cost, seconds, own = self.rungs[f"merge: {kind}"]
            self.rungs[f"merge: a quarter, and {kind}"] = cost + short[0], seconds + short[1], {**own, **short[2]}

    def rules(self, make, cost, training) -> None:
        """Other averages of the weights of runs on single tasks."""
        self.tuned(make, "merge", f"{PLAIN}, scale by {FEW} true runs", cost)
        outer = {name: 0.5 for name in make().problem.trained if name.startswith(("head", "token"))}
        for words, options in (("all tasks alike", {"weighting": "task"}), ("head, embeddings × ½", {"scale": outer})):
            other, name = self.vectors("single tasks", **options), f"{PLAIN}, {words}"
            values, took = self.estimated(
                f"merge, {name}", lambda other=other: other().batch(self.setting.subsets)["loss"]
            )
            self.add("merge", name, cost, training + took, values)

    def tuned(self, make, method, words, cost) -> None:
        """With the scale that a few true runs outside of each fifth choose."""

        def work():
            setting, estimator = self.setting, make()
            found = np.empty_like(setting.mean)
            names = [f"loss[{query}]" for query in range(found.shape[1])]
            for rows, some in self.folds(FEW):
                truth = whence.Outcomes(
                    setting.subsets[some], setting.values[0][some], task_names=estimator.task_names, target_names=names
                )
                found[rows] = estimator.tuned(truth).batch(setting.subsets[rows])["loss"]
            return found

        values, seconds = self.estimated(f"{method}, {words}", work)
        self.add(method, words, cost + FEW, seconds, values, FEW)

    # ---- true runs, alone and with estimates -------------------------------------------------------------

    def folds(self, m):
        """Each fifth of the subsets, and m others."""
        for number, rows in enumerate(self.setting.fifths):
            others = np.setdiff1d(np.arange(len(self.setting.mean)), rows)
            yield rows, np.random.default_rng(number).permutation(others)[:m]

    def learned(self, make, m):
        """Predictions of each fifth by a surrogate of m true runs outside of it."""
        setting, found = self.setting, np.empty_like(self.setting.mean)
        for rows, some in self.folds(m):
            found[rows] = make().fit(setting.subsets[some], setting.values[0][some]).predict(setting.subsets[rows])
        return found

    def true_runs(self) -> None:
        retrain = whence.Retrain(self.problem, self.setting.recipe)
        _, each = self.estimated("one true run", lambda: retrain(self.setting.subsets[0], 0)["loss"])
        most = len(self.setting.mean) - max(len(rows) for rows in self.setting.fifths)
        made = {name: self.rung(name, values) for _, _, own in self.rungs.values() for name, values in own.items()}
        alone = {"ridge": AdditiveSurrogate, "kernel": KernelSurrogate, "several kernels": CombinedSurrogate}
        for m in [m for m in RUNS if m <= most]:
            for name, make in alone.items():
                self.add("true runs", name, float(m), m * each, self.learned(make, m), m)
            for name, (cost, seconds, own) in self.rungs.items():
                fused = self.learned(partial(FusedSurrogate, tuple(made[one] for one in own)), m)
                self.add("fused", name, cost + m, seconds + m * each, fused, m)


def yardsticks(setting):
    """LDS and mean of another run, and the LDS of the expected outcome against the mean of all seeds."""
    seeds, n = setting.values, len(setting.values)
    rest = [seeds[[j for j in range(n) if j != i]].mean(0) for i in range(n)]
    another = np.mean([setting.score(seeds[i], rest[i]) for i in range(n)], axis=0)
    runs = whence.Outcomes(np.tile(setting.subsets, (n, 1)), seeds.reshape(-1, seeds.shape[2]))
    r = np.nan_to_num(noise_ceiling(runs, n_boot=2).per_target) ** 2
    return another, float(np.sqrt(n * r / (1 + (n - 1) * r)).mean())


# ---- what is told ----------------------------------------------------------------------------------------


def table(rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def report(benches) -> str:
    """Return the tables, in Markdown."""
    names = [bench.setting.name.replace("fine-tuning, ", "") for bench in benches]
    rows = [["", "", *names]]
    rows.append(["another run", "", *("{:.2f} / {:.2f}".format(*bench.another) for bench in benches)])
    rows.append(["perfect", "", *(f"{bench.perfect:.2f}" for bench in benches)])
    direct = [[r for r in bench.results if r.method not in ("true runs", "fused")] for bench in benches]
    for own in zip(*direct, strict=True):
        cells = [f"{r.lds:.2f} / {r.mean:.2f} ({r.cost:,.0f}; {r.seconds:,.0f} s)" for r in own]
        rows.append([own[0].method, own[0].variant, *cells])
    parts = ["## Estimates alone\n\nLDS per query / mean loss (cost in true runs; seconds).\n", table(rows)]
    parts.append(
        "\n## True runs, alone and fused with estimates\n\nLDS per query / mean loss, by the number of true runs."
    )
    for bench, name in zip(benches, names, strict=True):
        learned = [r for r in bench.results if r.method in ("true runs", "fused")]
        counts = sorted({r.n_runs for r in learned})
        rows = [[name, "estimates cost", *map(str, counts)]]
        for method, variant in dict.fromkeys((r.method, r.variant) for r in learned):
            own = [r for r in learned if (r.method, r.variant) == (method, variant)]
            rows.append(
                [f"{method}: {variant}", f"{own[0].cost - own[0].n_runs:,.0f}"]
                + [f"{r.lds:.2f} / {r.mean:.2f}" for r in own]
            )
        parts.append("\n" + table(rows))
    return "\n".join(
        [*parts, "\n## Goals\n", *(goals(bench, name) for bench, name in zip(benches, names, strict=True))]
    )


def goals(bench, name) -> str:
    """Return in words how near merging comes, and which estimates, fused with 10 true runs, do what 40 alone do."""
    merged = [r for r in bench.results if r.method == "merge" and r.n_runs == 0]
    best = max(merged, key=lambda r: r.lds)
    plain = next(r.lds for r in merged if r.variant == PLAIN)
    told = f"- {name}: merged weights of single tasks {plain:.2f}, best merge {best.lds:.2f} ({best.variant}), "
    told += f"of {bench.perfect:.2f} at most"
    alone = {m: max(r.lds for r in bench.results if r.method == "true runs" and r.n_runs == m) for m in RUNS if m <= 40}
    fused = {r.variant: r.lds for r in bench.results if r.method == "fused" and r.n_runs == 10}
    if 40 in alone:
        good = [f"{variant.removeprefix('merge: ')} {lds:.2f}" for variant, lds in fused.items() if lds >= alone[40]]
        told += (
            f"; 40 true runs alone have {alone[40]:.2f}, which 10 fused with these reach: {'; '.join(good) or 'none'}"
        )
    return told + "."


COLORS = {
    "true runs": "0.35",
    "one-step": "tab:orange",
    "gradex": "tab:green",
    "gradex-along": "tab:olive",
    f"merge: {PLAIN}": "0.7",
    f"merge: {QUARTER}": "tab:purple",
    "merge: single tasks": "tab:cyan",
    "merge: background": "tab:blue",
    "merge: left out": "tab:red",
}


def names_of(kind):
    """Return the names of estimates of one kind of runs, as in the table."""
    return [f"{kind}, {merge}" for merge in KINDS[kind][1]] if kind in KINDS else []


def draw(benches, file) -> None:
    """LDS against cost, a curve per method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(benches))
    lines = -(-len(benches) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.4 * max(columns, 2), 3.6 * lines), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(benches) :]:
        axis.set_visible(False)
    for axis, bench in zip(axes.flat, benches, strict=False):
        for name, color in COLORS.items():
            fused = [r for r in bench.results if (r.method, r.variant) == ("fused", name)]
            if name == "true runs":
                fused = [r for r in bench.results if (r.method, r.variant) == ("true runs", "several kernels")]
            if not fused:
                continue
            label = "true runs alone" if name == "true runs" else f"{name}, fused"
            axis.plot([r.cost for r in fused], [r.lds for r in fused], ".-", color=color, lw=1.5, label=label)
            kind = name.removeprefix("merge: ")
            alone = [
                r for r in bench.results
                if r.n_runs == 0 and (r.method == name or (r.method == "merge" and r.variant in names_of(kind)))
            ]  # fmt: skip
            axis.plot([r.cost for r in alone], [r.lds for r in alone], "x", color=color, ms=5, alpha=0.7)
        axis.axhline(bench.another[0], color="0.5", ls=":", lw=1, label="another run")
        axis.axhline(bench.perfect, color="0.5", ls="--", lw=1, label="perfect, given the noise")
        axis.set(xscale="log", title=bench.setting.name.replace("fine-tuning, ", ""), xlabel="cost, in true runs")
        axis.grid(alpha=0.2)
    for axis in axes[:, 0]:
        axis.set_ylabel("LDS per query")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.12 if lines > 1 else 0.22, 1, 1))
    figure.savefig(file, dpi=130)


def settings_of(args):
    """Yield the settings, one at a time."""
    if args.newsgroups:
        yield Newsgroups(*args.newsgroups, args)
        return
    args.pretrained = load_pretrained(args)
    for operation, (steps, lr) in product(("addition", "quadratic"), [(10, 1e-3)] if args.quick else LENGTHS):
        if args.only in f"{operation}, {steps} steps":
            setting = Setting("fine-tuning", operation, steps, lr, "fixed", args)
            setting.target = tuple(part[:: args.every] for part in setting.target)
            setting.values, setting.mean = setting.values[..., :: args.every], setting.mean[..., :: args.every]
            yield setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--newsgroups", nargs=2, type=Path, metavar=("MODEL_DIR", "TEXT_DIR"))
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--only", default="")
    parser.add_argument("--only-estimates", action="store_true", help="make them, to be kept, and fuse nothing")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--along", type=int, default=40, help="examples a task for GradEx along a run; 0: without")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    args.subsets = 25 if args.quick else 60 if args.newsgroups else 100
    args.estimates = 50 if args.quick else 100
    args.ranks = (64, 256) if args.quick else (512, 2048, 8192)
    args.size = {"width": 32} if args.quick else {}
    args.along = min(args.along, 10) if args.quick else args.along
    benches = []
    for setting in settings_of(args):
        print(setting.name, flush=True)
        bench = Bench(setting, args)
        bench.one_step()
        bench.gradex()
        if args.along:
            bench.gradex_along()
        bench.merge()
        if not args.only_estimates:
            bench.true_runs()
            benches.append(bench)
            told(benches, args)


def told(benches, args) -> None:
    """Print and, unless the problem was a small one, write what there is so far."""
    name = "newsgroups" if args.newsgroups else "modular" + (f"_{args.batch}" if args.batch != BATCH else "")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "one thread of a processor"
    what = " --newsgroups MODEL_DIR TEXT_DIR" if args.newsgroups else ""
    what += f" --device {args.device} --along {args.along}" + f" --every {args.every}" * (args.every > 1)
    what += f" --batch {args.batch}" * (args.batch != BATCH)
    title = benches[0].setting.name if args.newsgroups else "modular arithmetic"
    title += f", batches of {args.batch}" * (args.batch != BATCH)
    text = (
        f"# The ladder of estimators: {title}\n\n"
        f"`python benchmarks/estimators.py{what}`, {time.strftime('%d %B %Y')}, {where}, torch "
        f"{torch.__version__}, {platform.system()}.\n\n{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n\n"
        f"![LDS against cost](../../docs/images/estimators_{name}.png)\n\n{report(benches)}\n"
    )
    print(text)
    if not args.quick:
        (HERE / "results" / f"estimators_{name}.md").write_text(text, encoding="utf-8")
        draw(benches, HERE.parent / "docs" / "images" / f"estimators_{name}.png")


if __name__ == "__main__":
    main()
