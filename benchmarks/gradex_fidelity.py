"""How near GradEx comes to true retraining: modular arithmetic, pretrained and from scratch.

    python benchmarks/gradex_fidelity.py --device cuda       the paper's size; minutes on one GPU
    python benchmarks/gradex_fidelity.py --quick             a small one, minutes on a processor; nothing written
    … --truth DIR                                            keep the true runs there, or take them from there
    … --only TEXT                                            what has this in its name: a setting, "first-order" for
                                                             errors, "curves"; nothing written

Truth: 100 subsets of the 25 groups × 3 seeds, trained side by side; the outcome is the loss of each held-out query.
*Fine-tuning*: from a model that has learned three other operations, 30, 100 or 300 steps on subsets of 15 groups (no
effect of size). *From scratch*: 800 steps from a random start, on subsets of 15 groups and on Bernoulli(0.9) subsets as
in the paper. Scores are rank correlations with the mean of the three seeds, within fifths of the subsets, so that
surrogates of true runs can be held against the same ones: each fifth is predicted from 80 runs (one seed) outside of
it. "Another run" is one seed against the mean of the other two. TRAK is taken at the end of a run on all groups. From
scratch, GradEx along a run is of the margin and the mean over the runs of three starts.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch

import whence
from modular import initial, trained
from truth import BATCH, K, Setting, load_pretrained
from whence.baselines import trak_scores
from whence.estimators.linearity import linearization_error
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.kernel import KernelSurrogate

HERE = Path(__file__).resolve().parent


def problem_of(setting, model=None) -> whence.Problem:
    """Return the problem of a setting, with another model if one is given."""
    return whence.Problem(model or setting.model, setting.tasks, setting.target, per_query=True)


def run_price(setting) -> float:
    """Forward passes over the training examples of one true run."""
    n = sum(len(y) for _, y in setting.tasks.values())
    return 3 * setting.recipe.steps * setting.recipe.batch_size / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "gradex_fidelity.md")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.subsets, args.estimates, args.rank = (40, 60, 64) if args.quick else (100, 400, 2048)
    args.along, args.batch = 100 if args.quick else 512, BATCH
    args.size = {"width": 32} if args.quick else {}
    began = time.perf_counter()
    args.pretrained = load_pretrained(args)
    lines: list[str] = []

    def say(text: str = "") -> None:
        print(text, flush=True)
        lines.append(text)

    lengths = [(10, 1e-3)] if args.quick else [(30, 1e-4), (100, 3e-4), (300, 1e-3)]
    settings = [("fine-tuning", op, *length, "fixed") for op in ("addition", "quadratic") for length in lengths]
    if not args.quick:
        settings += [
            ("scratch", op, 800, 1e-3, kept) for op in ("addition", "quadratic") for kept in ("fixed", "bernoulli")
        ]
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "processor"
    say("# How near GradEx comes to true retraining\n")
    say(
        f"`python benchmarks/gradex_fidelity.py --device {args.device}`, {time.strftime('%Y-%m-%d')}, {device}, torch "
        f"{torch.__version__}. {(__doc__ or '').split(chr(10) * 2)[2]}\n"
    )
    say(
        "Each cell: LDS per query / rank correlation of the mean loss. Cost: of all estimates, in forward passes over "
        "the training data, a backward pass counting two; a true run of this setting beside it.\n"
    )
    header = [
        "setting",
        "another run",
        "size alone",
        "ridge, 80 true runs",
        "kernel, 80 true runs",
        "TRAK",
        f"GradEx at W₀, rank {args.rank}",
        "… kernel on it",
        "GradEx along a run",
        "… ridge on it",
        "… kernel on it",
        "share of 80 true runs",
        "cost along a run / true run",
    ]
    say("| " + " | ".join(header) + " |")
    say("|" + "---|" * len(header))
    for given in settings:
        if args.only in ", ".join(map(str, given)):
            say("| " + " | ".join(row_of(Setting(*given, args), args)) + " |")
    say("\n## First-order error at truly trained weights\n")
    say(
        "The paper's ε: ‖f(W) − f(W₀) − ∇f·(W − W₀)‖ relative to ‖f(W)‖, and relative to the change ‖f(W) − f(W₀)‖, "
        "median over held-out queries, for the first subset; how far training moved; the same error from a point "
        "halfway along a run on all tasks.\n"
    )
    say("| setting | of outputs | of the change | ‖W − W₀‖ / ‖W₀‖ | of the change, from halfway |")
    say("|---|---|---|---|---|")
    for given in settings if args.only in "first-order" else ():
        say(error_of(Setting(*given, args)))
    say()
    if args.only in "curves":
        curves(args, say)
    say(f"\nAll in {time.perf_counter() - began:.0f} s.")
    if not args.quick and not args.only:
        args.output.write_text("\n".join(lines) + "\n")


def row_of(setting, args) -> list[str]:
    """Return the cells of one setting."""

    def cell(estimate, against=None) -> str:
        return "{:.2f} / {:.2f}".format(*setting.score(estimate, against))

    seeds = setting.values
    another = [setting.score(seeds[i], seeds[[j for j in range(3) if j != i]].mean(0)) for i in range(3)]
    by_size = np.repeat(-setting.subsets.sum(1, keepdims=True), seeds.shape[2], axis=1)
    by_kernel = setting.from_true_runs(KernelSurrogate())
    at_start = whence.GradEx(problem_of(setting), args.rank)
    plain, plain_kernel = at_start.batch(setting.subsets)["loss"], setting.from_estimates(KernelSurrogate(), at_start)
    del at_start
    end = trained(setting.model, setting.tasks, setting.recipe, seed=100)
    trak = trak_scores(problem_of(setting, end), args.rank, l2=1.0)
    scratch = setting.kind == "scratch"
    starts = [initial(s, args.device, **args.size) for s in (1, 2, 3)] if scratch else [setting.model]
    along = Mean(
        [
            whence.GradEx.along(
                problem_of(setting, start), setting.recipe, rank=args.along, seed=100 + i,
                of="margin" if scratch else "outputs",
            )
            for i, start in enumerate(starts)
        ]
    )  # fmt: skip
    best = along.batch(setting.subsets)["loss"]
    share = setting.score(best)[0] / setting.score(by_kernel)[0]
    price = sum(price_along(one, setting) for one in along.members)
    return [
        setting.name,
        "{:.2f} / {:.2f}".format(*np.mean(another, axis=0)),
        "–" if setting.design == "fixed" else cell(by_size),
        cell(setting.from_true_runs(AdditiveSurrogate())),
        cell(by_kernel),
        cell(trak.predict(setting.subsets)),
        cell(plain),
        cell(plain_kernel),
        f"**{cell(best)}**",
        cell(setting.from_estimates(AdditiveSurrogate(), along)),
        cell(setting.from_estimates(KernelSurrogate(), along)),
        f"{share:.2f}",
        f"{price:,.0f} / {run_price(setting):.0f}",
    ]


class Mean:
    """Mean of several estimators."""

    def __init__(self, members) -> None:
        self.members = members

    def batch(self, subsets):
        found = [member.batch(subsets) for member in self.members]
        return {name: np.mean([one[name] for one in found], axis=0) for name in found[0]}


def price_along(estimator, setting) -> float:
    """The run, the gradients of the tasks on its way, and the features at the points."""
    linear = estimator.members[0].tasks
    gradients = linear.rank // (2 * K) + 1
    features = float(linear.route.split("about ")[1].split(" ")[0].replace(",", ""))
    return run_price(setting) + 3 * gradients + len(estimator.points) * features


def error_of(setting) -> str:
    """Return the first-order errors of one truly trained model, as a row."""
    end = trained(setting.model, setting.tasks, setting.recipe, setting.subsets[0])
    halfway = trained(setting.model, setting.tasks, setting.recipe, seed=100, steps=setting.recipe.steps // 2)
    errors = [
        np.median(linearization_error(problem_of(setting), end)),
        np.median(linearization_error(problem_of(setting), end, relative_to="change")),
        np.median(linearization_error(problem_of(setting, halfway), end, relative_to="change")),
    ]
    start, stop = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (setting.model, end))
    moved = float((stop - start).norm() / start.norm())
    return f"| {setting.name} | {errors[0]:.0%} | {errors[1]:.0%} | {moved:.2f} | {errors[2]:.0%} |"


def curves(args, say) -> None:
    """Rank, penalty, point, projection, what is linearised and ensembles, one at a time, on one setting."""
    setting = Setting("fine-tuning", "addition", *((10, 1e-3) if args.quick else (100, 3e-4)), "fixed", args)
    say(f"## What decides it ({setting.name})\n")
    say("| | LDS per query / mean loss |\n|---|---|")

    def line(name, estimator) -> None:
        score = setting.score(estimator.batch(setting.subsets)["loss"])
        say(f"| {name} | {score[0]:.2f} / {score[1]:.2f} |")

    start = problem_of(setting)
    top = whence.GradEx(start, args.rank)
    for part in (16, 4, 1):
        line(f"W₀, rank {args.rank // part}", top._with(args.rank // part, 1.0, (0,)))
    for factor in (100, 0.01):
        line(f"… rank {args.rank}, penalty × {factor:g}", top._with(args.rank, factor, (0,)))
    del top
    quarter = args.rank // 4
    line(f"W₀, 4 projections of rank {quarter}", whence.GradEx(start, quarter, n_projections=4))
    line(f"W₀, Gaussian, rank {quarter}", whence.GradEx(start, quarter, projection="gaussian"))
    line(f"W₀, margin only, rank {4 * args.rank}", whence.GradEx(start, 4 * args.rank, of="margin"))
    run = whence.GradEx.along(start, setting.recipe, rank=args.along, seed=100)
    full = run.members[0].tasks.rank
    line(f"W₀, the {full} directions of the run", whence.GradEx(start, projection=run.projection(0)))
    halfway = [run.points[len(run.points) // 2][1]]
    line(
        f"halfway along the run, random directions, rank {args.rank}",
        whence.GradEx(start, args.rank, checkpoints=halfway),
    )
    everywhere = tuple(range(len(run.points)))
    for i in everywhere:
        line(f"along the run, at point {i + 1} of {len(run.points)}", run._with(full, 1.0, (i,)))
    line("along the run, mean of the points", run)
    for factor in (100, 10, 0.1, 0.01):
        line(f"… penalty × {factor:g}", run._with(full, factor, everywhere))
    for rank in (50, 150):
        small = whence.GradEx.along(start, setting.recipe, rank=rank, seed=100)
        line(f"along the run, {small.members[0].tasks.rank} directions", small)
    runs = [whence.GradEx.along(start, setting.recipe, seed=100 + i, rank=args.along, of="margin") for i in range(3)]
    line("along the run, margin only", runs[0])
    line("… mean over 3 runs", Mean(runs))


if __name__ == "__main__":
    main()
