"""The ladder of estimators beside true runs: how well each rank-correlates with the truth, and what it costs.

    python benchmarks/estimators.py --device cuda                   modular arithmetic, the paper's size
    python benchmarks/estimators.py --newsgroups MODEL_DIR TEXT_DIR    a pretrained encoder on real text (newsgroups.py)
    … --truth DIR    keep the true runs there, or take them from there
    … --keep DIR     keep task vectors there, or take them from there
    … --only TEXT    settings whose name has this text
    … --every N      judge every Nth query only
    … --quick        a small problem, minutes on a processor; nothing written

*Modular*: W₀ has learned three other operations; the tasks are 25 groups of equations of a new one; true runs are
fine-tuned for 30, 100 or 300 steps on 100 subsets of 15 groups, with three seeds. *Newsgroups*: 20 sources of text, 60
subsets of 12, two seeds. The outcome is the loss of each held-out query. Scores are rank correlations with the mean of
the seeds within fifths of the subsets, per query (LDS) and of the mean loss. Whatever learns from true runs sees one
seed of some of the runs outside of the fifth that it is judged on. "Another run" is one seed against the mean of the
others; "perfect" is what the noise of the seeds leaves to an estimator that knows the expected outcome.

Costs are those of `whence estimate`, for 500 subsets, in true runs. Seconds are those that it took here for the judged
subsets; true runs are trained one after the other.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import whence
from newsgroups import Newsgroups
from truth import Setting, load_pretrained
from whence.estimators.ladder import prices, workload
from whence.evaluation import noise_ceiling
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
SINGLE = "merge of single tasks"
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
        self.common = (setting.model, setting.tasks, setting.target)
        self.work = workload(
            {"model": setting.model, "tasks": setting.tasks, "targets": setting.target, "recipe": setting.recipe}
        )
        self.run = prices(self.work)["retrain"].each
        self.results: list[Result] = []
        self.rungs: dict[str, tuple[Result, Rung]] = {}  # what is fused: one variant of each method
        size = int(setting.subsets[0].sum())
        others = whence.FixedSize(size).draw(len(setting.tasks), args.estimates, seed=1)
        self.known = np.concatenate([setting.subsets, others])
        self.another, self.perfect = yardsticks(setting)

    def cost(self, method, **other) -> float:
        return prices(replace(self.work, **other))[method].total(SUBSETS) / self.run

    def add(self, method, variant, cost, began, estimate, n_runs=0) -> Result:
        found = Result(method, variant, cost, time.perf_counter() - began, *self.setting.score(estimate), n_runs)
        self.results.append(found)
        told = f"{found.lds:.3f} / {found.mean:.3f}, {cost:.1f} runs, {found.seconds:.0f} s"
        print(f"  {method}, {variant}: {told}", flush=True)
        return found

    def keep(self, result, estimator, name=None) -> None:
        """Learn the estimates as a function of the subset, from those judged and others, to be fused."""
        values = estimator.batch(self.known)["loss"]
        table = whence.Outcomes(self.known, values, task_names=list(self.setting.tasks))
        model = whence.fit(table, surrogate=CombinedSurrogate(), n_folds=None)
        name = name or result.method
        self.rungs[name] = result, Rung.of(name, model, np.arange(values.shape[1]))

    # ---- estimates alone ---------------------------------------------------------------------------------

    def one_step(self) -> None:
        cost = self.cost("one-step")
        for words, kind in (("plain gradients", "none"), ("as AdamW scales them", "adam")):
            began = time.perf_counter()
            step = whence.OneStep(*self.common, per_query=True, preconditioner=kind)
            found = self.add("one-step", words, cost, began, step.batch(self.setting.subsets)["loss"])
        self.keep(found, step)
        self.tuned(step, "one-step", f"length by {FEW} true runs", cost)

    def gradex(self) -> None:
        options = {"per_query": True, "of": "margin", "weighting": "sample", "projection": "kronecker"}
        first = self.args.ranks[0]
        for rank, several in [(first, 4), *((rank, 1) for rank in self.args.ranks)]:
            began = time.perf_counter()
            estimator = whence.GradEx(*self.common, rank=rank, n_projections=several, **options)
            words = f"margins, rank {rank}" + (f", mean of {several}" if several > 1 else "")
            cost = several * self.cost("gradex", rank=rank, n_outputs=1)
            found = self.add("gradex", words, cost, began, estimator.batch(self.setting.subsets)["loss"])
        self.keep(found, estimator)

    def gradex_along(self) -> None:
        began, n = time.perf_counter(), self.args.along
        estimator = whence.GradEx.along(
            *self.common, self.setting.recipe, per_query=True, of="margin", examples=n, seed=100
        )
        cost = self.cost("gradex-along", n_outputs=1, n_examples=n * len(self.setting.tasks))
        estimate = estimator.batch(self.setting.subsets)["loss"]
        self.keep(self.add("gradex-along", f"margins, {n} examples a task", cost, began, estimate), estimator)

    def vectors(self, background, early=1.0, **options):
        """Task vectors and the seconds of their training, whether now or before."""
        folder = None
        if self.args.keep:
            name = f"{self.setting.name}_background_{background:g}" + (f"_early_{early:g}" if early < 1 else "")
            folder = self.args.keep / name.replace(", ", "_").replace(" ", "_")
        began = time.perf_counter()
        made = whence.TaskVectors(
            *self.common, self.setting.recipe, per_query=True, background=background, early=early, path=folder,
            **options,
        )  # fmt: skip
        note = folder.with_suffix(".seconds") if folder else None
        if note and note.exists():
            return made, float(note.read_text())
        _ = made.vectors
        seconds = time.perf_counter() - began
        if note:
            note.write_text(f"{seconds:.1f}")
        return made, seconds

    def merge(self) -> None:
        cost = self.cost("merge")
        quarter = prices(replace(self.work, run_examples=self.work.run_examples / 4))["merge"].total(SUBSETS) / self.run
        for background, early in ((0.0, 0.25), (0.0, 1.0), (BACKGROUND, 1.0)):
            words = f"all tasks in {background:g} of each" if background else "single tasks"
            merged, seconds = self.vectors(background, early)
            began = time.perf_counter() - seconds
            estimate = merged.batch(self.setting.subsets)["loss"]
            price, short = (quarter, ", a quarter of the steps") if early < 1 else (cost, "")
            found = self.add("merge", words + short, price, began, estimate)
            if early == 1:
                self.keep(found, merged, "merge" if background else SINGLE)
        self.tuned(merged, "merge", f"… scale by {FEW} true runs", cost)
        outer = {name: 0.5 for name in merged.problem.trained if name.startswith(("head", "token"))}
        for words, options in (("… all tasks alike", {"rule": "mean"}), ("… head, embeddings × ½", {"scale": outer})):
            other, _ = self.vectors(BACKGROUND, **options)
            self.add("merge", words, cost, time.perf_counter(), other.batch(self.setting.subsets)["loss"])

    def tuned(self, estimator, method, words, cost) -> None:
        """With the scale that a few true runs outside of each fifth choose."""
        setting, began = self.setting, time.perf_counter()
        found = np.empty_like(setting.mean)
        for rows, some in self.folds(FEW):
            names = [f"loss[{query}]" for query in range(found.shape[1])]
            truth = whence.Outcomes(
                setting.subsets[some], setting.values[0][some], task_names=estimator.task_names, target_names=names
            )
            found[rows] = estimator.tuned(truth).batch(setting.subsets[rows])["loss"]
        self.add(method, words, cost + FEW, began, found, FEW)

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
        began = time.perf_counter()
        whence.Retrain(*self.common, self.setting.recipe, per_query=True)(self.setting.subsets[0], 0)
        each = time.perf_counter() - began
        most = len(self.setting.mean) - max(len(rows) for rows in self.setting.fifths)
        alone = {"ridge": AdditiveSurrogate, "kernel": KernelSurrogate, "several kernels": CombinedSurrogate}
        for m in [m for m in RUNS if m <= most]:
            for name, make in alone.items():
                began = time.perf_counter() - m * each
                self.add("true runs", name, float(m), began, self.learned(make, m), m)
            for name, (result, rung) in self.rungs.items():
                began = time.perf_counter() - m * each - result.seconds
                fused = self.learned(partial(FusedSurrogate, (rung,)), m)
                self.add("fused", name, result.cost + m, began, fused, m)
            for names in (("one-step", "merge"), (SINGLE, "merge")):
                both = [self.rungs[name] for name in names]
                began = time.perf_counter() - m * each - sum(result.seconds for result, _ in both)
                fused = self.learned(partial(FusedSurrogate, tuple(rung for _, rung in both)), m)
                self.add("fused", " and ".join(names), sum(result.cost for result, _ in both) + m, began, fused, m)


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
    """Return in words whether merging reaches 0.8, and whether fusion with 10 true runs does what 40 alone do."""
    merged = max(r.lds for r in bench.results if r.method == "merge" and r.n_runs == 0)
    default = bench.rungs[SINGLE][0].lds
    both = [r for r in bench.results if r.method == "fused" and r.variant in (SINGLE, "merge")]
    fused = {m: max(r.lds for r in both if r.n_runs == m) for m in sorted({r.n_runs for r in both})}
    alone = {m: max(r.lds for r in bench.results if r.method == "true runs" and r.n_runs == m) for m in fused}
    enough = next((str(m) for m, lds in alone.items() if lds >= fused[10]), f"more than {max(alone)}")
    told = f"- {name}: merge of single tasks {default:.2f}, best merge {merged:.2f}, of {bench.perfect:.2f} at most; "
    if 40 in alone:
        verb = "reaches" if fused[10] >= alone[40] else "misses"
        told += f"the better of both fused with 10 true runs {fused[10]:.2f}, "
        told += f"which {verb} the {alone[40]:.2f} of 40 alone; "
    return told + f"as good alone: {enough}."


COLORS = {
    "true runs": "0.35",
    "one-step": "tab:orange",
    "gradex": "tab:green",
    "gradex-along": "tab:olive",
    SINGLE: "tab:cyan",
    "merge": "tab:blue",
}


LABELS = {"true runs": "true runs alone", "merge": f"merge, all tasks in {BACKGROUND:g} of each, then fused"}


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
            start = [bench.rungs[name][0]] if name in bench.rungs else []
            curve = [*start, *fused]
            label = LABELS.get(name, f"{name}, then fused")
            axis.plot([r.cost for r in curve], [r.lds for r in curve], "-", color=color, lw=1.5, label=label)
            axis.plot([r.cost for r in fused], [r.lds for r in fused], ".", color=color)
            axis.plot([r.cost for r in start], [r.lds for r in start], "D", color=color, ms=6)
            others = [r for r in bench.results if r.method == name != "true runs" and r not in start]
            axis.plot([r.cost for r in others], [r.lds for r in others], "x", color=color, ms=5, alpha=0.6)
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
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--along", type=int, default=40, help="examples a task for GradEx along a run; 0: without")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    args.subsets = 25 if args.quick else 60 if args.newsgroups else 100
    args.estimates = 50 if args.quick else 100
    args.ranks = (64, 256) if args.quick else (512, 2048) if args.device == "cpu" else (512, 2048, 8192)
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
        bench.true_runs()
        benches.append(bench)
        told(benches, args)


def told(benches, args) -> None:
    """Print and, unless the problem was a small one, write what there is so far."""
    name = "newsgroups" if args.newsgroups else "modular"
    where = torch.cuda.get_device_name() if args.device == "cuda" else "one thread of a processor"
    what = " --newsgroups MODEL_DIR TEXT_DIR" if args.newsgroups else ""
    what += f" --device {args.device} --along {args.along}" + f" --every {args.every}" * (args.every > 1)
    text = (
        f"# The ladder of estimators: {benches[0].setting.name if args.newsgroups else 'modular arithmetic'}\n\n"
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
