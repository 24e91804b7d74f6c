"""Which part of the kernel's gain is what: parts switched off one at a time, on recorded sets and public tables.

`whence.fit` averages a linear surrogate and a Gaussian process with several kernels, on outcomes and on their ranks.
Each row leaves one of these out, and the loss of LDS is what it was worth:

- averaging: the one candidate that cross-validates best, instead of the average;
- ranks: without the candidate that models normal scores of the outcomes;
- size: without the kernel of the number of tasks;
- pairs: without the kernel of degree 2;
- locality: without the RBF kernel;
- relevance: all tasks count alike in the kernels;
- own numbers: hyperparameters shared by all targets;
- tuning: hyperparameters as they are before any run.

Centring, and tuning of the plain kernel, are switched on one after the other from the paper's own settings.

Each set gives at most 3 targets, drawn once; 80 subsets to learn from (1.5 for each task where that is more, at most
100), and up to 1.5 times as many to judge by, in five splits. Full precision would take hours; this takes minutes.

    python experiments/paper/parts.py            minutes
    python experiments/paper/parts.py --quick    seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from common import (
    BLUE,
    METHODS,
    RBF,
    TUNED_LINEAR,
    TUNED_RBF,
    KernelSurrogate,
    arguments,
    compare,
    fitting,
    plt,
    recorded,
    table,
    tables,
    train_size,
    write,
)

import whence
from whence import CombinedSurrogate
from whence.datasets.leaderboard import some_targets
from whence.surrogates import fit as fit_module
from whence.surrogates.fit import CANDIDATES
from whence.surrogates.tuning import CombinedKernel

ALL, MOST_TARGETS, MOST_RUNS, FIXED = "whence.fit", 3, 100, 1e-3
PARTS = {"pairs": "pairs", "locality": "rbf", "size": "size", "relevance": "relevance", "tuning": "tuning"}


@dataclass(frozen=True)
class KernelWithout(CombinedKernel):
    """The family of kernels without one of its parts: its prior leaves that no room."""

    off: str = ""

    def prior(self):
        mean, std = super().prior()
        if self.off in self.names:
            mean[self.names.index(self.off)], std[self.names.index(self.off)] = -12.0, FIXED
        if self.off == "relevance":
            std[-self.n_coordinates :] = FIXED
        if self.off == "tuning":
            std[:] = FIXED
        return mean, std


class Without(CombinedSurrogate):
    """The combined surrogate without one of its parts."""

    def __init__(self, outcome_scale="raw", *, off="", weight_scale="auto", own=True, random_state=0, start=None):
        super().__init__(outcome_scale, weight_scale=weight_scale, own=own, random_state=random_state, start=start)
        self.off = off

    def _family(self, S, coordinates):
        family = super()._family(S, coordinates)
        return KernelWithout(**vars(family), off=self.off)


def averaging(**kernels):
    """Return the method that averages the linear surrogate and these kernels."""

    def method(train):
        candidates = {
            "additive": CANDIDATES["additive"],
            **{name.replace("_", " "): kernel for name, kernel in kernels.items()},
        }
        with patch.object(fit_module, "CANDIDATES", candidates):
            return whence.fit(train)

    return method


def best_candidate(train):
    """Return the one candidate that cross-validates best."""
    trials = [trial for part in whence.fit(train).parts for trial in part.trials if trial.name in CANDIDATES]
    scores = {name: np.nanmean([trial.lds.mean() for trial in trials if trial.name == name]) for name in CANDIDATES}
    return whence.fit(train, surrogate=max(scores, key=scores.__getitem__), n_folds=None)


VARIANTS = {
    ALL: whence.fit,
    "averaging": best_candidate,
    "ranks": averaging(kernel=CombinedSurrogate("raw")),
    "own numbers": averaging(
        kernel=CombinedSurrogate("raw", own=False), kernel_on_ranks=CombinedSurrogate("rank", own=False)
    ),
    **{
        name: averaging(kernel=Without("raw", off=off), kernel_on_ranks=Without("rank", off=off))
        for name, off in PARTS.items()
    },
}


def plain(n_tasks: int):
    """Return the paper's kernel, then centred, then tuned, and a tuned linear surrogate."""
    centred = fitting(KernelSurrogate(alpha=0.1, gamma=1 / n_tasks))
    return {RBF: METHODS[RBF], "centred": centred, TUNED_RBF: METHODS[TUNED_RBF], TUNED_LINEAR: METHODS[TUNED_LINEAR]}


def main() -> None:
    given = arguments(__doc__)
    sets = recorded(given.quick) | tables(given.quick)
    if given.quick:
        sets = {"digits": sets["digits"]}
    found = {}
    for name, runs in sets.items():
        size = min(20 if given.quick else MOST_RUNS, train_size(runs))
        methods = plain(runs.n_tasks) | VARIANTS
        found[name] = compare(some_targets(runs, 1 if given.quick else MOST_TARGETS), methods, given.quick, size, 5)
        print(f"{name}: {np.nansum(found[name].seconds):.0f} s", flush=True)
    lds = {name: dict(zip(each.methods, np.nanmean(each.lds, axis=1), strict=True)) for name, each in found.items()}
    means = {method: np.mean([row[method] for row in lds.values()]) for method in next(iter(lds.values()))}
    worth = {name: gains(found, ALL, name) for name in list(VARIANTS)[1:]}
    steps = [("centring", "centred", RBF), ("then tuning", TUNED_RBF, "centred"), ("all of whence.fit", ALL, TUNED_RBF)]
    worth |= {f"{name} (from the paper's kernel)": gains(found, a, b) for name, a, b in steps}
    worth["the paper's kernel over a tuned linear one"] = gains(found, RBF, TUNED_LINEAR)
    rows = [
        [
            name,
            f"{np.mean(gap):+.3f}",
            f"{np.median(gap):+.3f}",
            f"{np.min(gap):+.3f} to {np.max(gap):+.3f}",
            better,
            worse,
        ]
        for name, (gap, better, worse) in worth.items()
    ]
    failed = sum(len(each.failures) for each in found.values())
    write(
        given,
        "parts",
        "What the gain is made of",
        verdict(means, worth),
        "LDS that is lost without the part, mean over sets that count alike. *more*, *less*: sets on "
        "which the part adds or costs at least 0.01 with a 95% interval over splits that excludes zero. "
        f"{failed} fits failed.",
        table(["part", "LDS it adds, mean", "median", "over sets", "more", "less"], rows),
        "## Every set",
        table(
            ["set", *means],
            [[name, *(f"{value:.3f}" for value in row.values())] for name, row in [("mean", means), *lds.items()]],
        ),
        "Columns from *averaging* on are `whence.fit` without that part. `whence.fit` was developed "
        "with the public tables, so that its lead there is optimistic.",
        figure=draw(worth),
    )


def gains(found, a: str, b: str):
    """Return the LDS of one method less that of another on every set, and on how many it is more and less for sure."""
    gaps = [each.difference(a, b) for each in found.values()]
    more = sum(mean >= 0.01 and low > 0 for mean, low, _ in gaps)
    less = sum(mean <= -0.01 and high < 0 for mean, _, high in gaps)
    return [mean for mean, _, _ in gaps], more, less


def verdict(means, worth) -> str:
    """Rank the parts by what they add."""
    order = sorted(list(VARIANTS)[1:], key=lambda name: -np.mean(worth[name][0]))
    words = ", ".join(f"{name} {np.mean(worth[name][0]):+.3f}" for name in order)
    return (
        f"Over {len(worth[order[0]][0])} sets, a tuned linear surrogate has a mean LDS of "
        f"{means[TUNED_LINEAR]:.3f}, the paper's kernel {means[RBF]:.3f}, centred "
        f"{means['centred']:.3f}, "
        f"tuned too {means[TUNED_RBF]:.3f}, and `whence.fit` {means[ALL]:.3f}. Left out one at a time "
        f"from `whence.fit`, its parts are worth: {words}."
    )


def draw(worth):
    """Draw what every part adds: a point for each set, and the mean."""
    figure, ax = plt.subplots(figsize=(9, 0.36 * len(worth) + 1.2))
    for place, (gap, _, _) in enumerate(worth.values()):
        ax.plot(gap, np.full(len(gap), -place), "o", ms=4, color="0.65", alpha=0.7)
        ax.plot(np.mean(gap), -place, "D", ms=7, color=BLUE)
    ax.axvline(0, color="0.2", lw=0.8)
    ax.set_yticks(-np.arange(len(worth)), list(worth))
    ax.set_xscale("symlog", linthresh=0.05)
    ax.set_xticks(
        [-0.2, -0.05, -0.02, 0, 0.02, 0.05, 0.2, 0.5], ["−0.2", "−0.05", "−0.02", "0", "0.02", "0.05", "0.2", "0.5"]
    )
    ax.set(
        title="What each part adds to the LDS: sets (grey) and their mean",
        xlabel="LDS with the part less LDS without it",
    )
    return figure


if __name__ == "__main__":
    main()
