"""The share of runs to learn from: 20% to 80%, linear against kernel, on every recorded set.

The paper's ablation: "across a range of training splits from 20% to 80%, the kernel model consistently yields a lower
residual error than the linear model". Its linear model is unpenalised least squares; a tuned one stands beside it here.

    python experiments/paper/samples.py            minutes
    python experiments/paper/samples.py --quick    seconds
"""

from __future__ import annotations

import numpy as np
from common import (
    COLORS,
    LINEAR,
    METHODS,
    RBF,
    TUNED_LINEAR,
    TUNED_RBF,
    arguments,
    compare,
    plt,
    plus_minus,
    recorded,
    table,
    tables,
    write,
)

from whence.datasets.leaderboard import some_targets

SHARES = (0.2, 0.4, 0.6, 0.8)
KEPT = {name: METHODS[name] for name in (LINEAR, TUNED_LINEAR, RBF, TUNED_RBF)}
MOST_TARGETS = 100


def main() -> None:
    given = arguments(__doc__)
    sets = recorded(given.quick) | tables(given.quick, "paper")
    found = {}
    for name, runs in sets.items():
        for share in SHARES[::3] if given.quick else SHARES:
            size = max(3, round(share * len(runs.distinct()[0])))
            found[name, share] = compare(some_targets(runs, MOST_TARGETS), KEPT, given.quick, size)
    parts = []
    for score, words in (("residual_error", "Residual error"), ("lds", "LDS")):
        rows = [
            [name, f"{share:.0%}", each.n_train, *map(plus_minus, getattr(each, score))]
            for (name, share), each in found.items()
        ]
        parts += [f"## {words}", table(["set", "share", "subsets", *KEPT], rows)]
    write(
        given,
        "samples",
        "The share of runs to learn from",
        verdict(found),
        *parts,
        f"± standard deviation over 10 splits; at most {MOST_TARGETS} targets of a set, drawn once.",
        figure=draw(found, list(sets)),
    )


def verdict(found) -> str:
    """Count the settings in which the kernel has less error than a linear surrogate.

    By the median over splits: the mean is decided by targets that hardly vary among a few held-out runs.
    """
    means = [dict(zip(each.methods, np.nanmedian(each.residual_error, axis=1), strict=True)) for each in found.values()]
    n, least = len(means), sum(mean[RBF] < mean[LINEAR] for mean in means)
    tuned, both = (sum(mean[a] < mean[TUNED_LINEAR] for mean in means) for a in (RBF, TUNED_RBF))
    few = [mean for (_, share), mean in zip(found, means, strict=True) if share == SHARES[0]]
    return (
        f"Of {n} sets and shares, the paper's kernel has less residual error (median over splits) than unpenalised "
        f"least squares in {least}, and than a *tuned* linear surrogate in {tuned} "
        f"(a tuned RBF kernel in {both}). At 20%, where the paper finds the kernel better too, it has "
        "less error than least squares on "
        f"{sum(mean[RBF] < mean[LINEAR] for mean in few)} of {len(few)} sets, and less than a tuned "
        f"linear surrogate on {sum(mean[RBF] < mean[TUNED_LINEAR] for mean in few)}."
    )


def draw(found, names):
    """Draw residual error by share, a panel for each set: median and quartiles over splits."""
    rows = -(-len(names) // 4)
    figure, axes = plt.subplots(rows, 4, figsize=(12, 2.7 * rows), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        shares = [share for each, share in found if each == name]
        for method in KEPT:
            scores = [found[name, share].residual_error[list(KEPT).index(method)] for share in shares]
            low, middle, high = np.nanquantile(scores, (0.25, 0.5, 0.75), axis=1)
            bars = (middle - low, high - middle)
            ax.errorbar(shares, middle, bars, fmt="o-", ms=3, lw=1.3, capsize=2, color=COLORS[method], label=method)
        ax.set_title(name.replace("_", " "), fontsize=8)
        ax.set(yscale="log", xlabel="share of subsets learned from")
        ax.xaxis.set_major_formatter("{x:.0%}")
    for ax in axes.flat[len(names) :]:
        ax.axis("off")
    axes[0, 0].set_ylabel("residual error")
    axes[0, 1].legend(frameon=False, fontsize=7, loc="upper right")
    return figure


if __name__ == "__main__":
    main()
