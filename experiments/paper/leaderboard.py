"""The leaderboard: whence and simpler methods on every recorded set, as ``whence benchmark`` prints it.

    python experiments/paper/leaderboard.py            minutes
    python experiments/paper/leaderboard.py --quick    seconds

A method of your own, beside these: ``whence benchmark mine.py:ridge``.
"""

from __future__ import annotations

import numpy as np
from common import BLUE, GREY, arguments, plt, recorded, table, write

import whence
from whence.datasets import available, leaderboard
from whence.surrogates.peers import PEERS, peers

SIZES, MOST_TARGETS = (20, 40), 10


def main() -> None:
    given = arguments(__doc__)
    ours = {} if given.quick else {"whence": whence.fit}
    sets = {"digits": recorded(True)["digits"]} if given.quick else recorded(False)
    methods = ours | peers([*(name for name in PEERS if name != "lasso"), "size only"])  # a lasso takes too long
    sizes, n_splits = (SIZES[:1], 2) if given.quick else (SIZES, 5)
    found = leaderboard(methods, names=sets, sizes=sizes, most_targets=MOST_TARGETS, n_splits=n_splits)
    summary, frame = found.summary(), found.frame
    parts = []
    for (name, size), part in frame.groupby(["data", "runs"], sort=False):
        rows = [
            [
                row["method"],
                *(number(row[key]) for key in ("lds", "lds_of_mean", "residual_error", "coverage")),
                f"{row['seconds']:.2f}",
                row["failed"] or "",
            ]
            for _, row in part.sort_values("lds", ascending=False).iterrows()
        ]
        parts += [
            f"### {name}, {size} runs to learn from",
            table(
                [
                    "method",
                    "LDS",
                    "LDS of the mean",
                    "residual error",
                    "90% intervals hold",
                    "seconds",
                    "failed splits",
                ],
                rows,
            ),
        ]
    best = [part.loc[part["lds"].idxmax(), "method"] for _, part in frame.groupby(["data", "runs"], sort=False)]
    most = max(dict.fromkeys(best), key=best.count)
    write(
        given,
        "leaderboard",
        "Leaderboard",
        f"Of {len(best)} sets and sizes, {most} is best in {best.count(most)}. Mean LDS from {SIZES[0]} "
        "runs: " + ", ".join(f"{method} {row.iloc[0]:.3f}" for method, row in summary.iterrows()) + ".",
        "## Mean LDS over sets",
        table(
            ["method", *(f"{size} runs" for size in summary.columns)],
            [[method, *(f"{value:.3f}" for value in row)] for method, row in summary.iterrows()],
        ),
        "## What was recorded",
        table(
            ["set", "runs", "tasks", "targets", "what", "made by"],
            [
                [name, *(f"{row[key]:,}" for key in ("runs", "tasks", "targets")), row["title"], f"`{row['command']}`"]
                for name, row in available().iterrows()
            ],
        ),
        f"## Every set\n\nAt most {MOST_TARGETS} targets of a set, drawn once.",
        *parts,
        figure=draw(frame, summary),
    )


def number(value: float) -> str:
    """Return a score with three digits, or that there is none."""
    return "–" if np.isnan(value) else f"{value:.3f}"


def draw(frame, summary):
    """Draw the LDS of every method, a point for each set, and the mean, for every number of runs."""
    figure, axes = plt.subplots(
        1, len(summary.columns), figsize=(5.5 * len(summary.columns), 3.2), sharey=True, squeeze=False
    )
    for ax, size in zip(axes[0], summary.columns, strict=True):
        for place, method in enumerate(summary.index):
            own = frame.loc[(frame["runs"] == size) & (frame["method"] == method), "lds"]
            ax.plot(own, np.full(len(own), -place), "o", ms=4, color=GREY)
            ax.plot(own.mean(), -place, "D", ms=7, color=BLUE)
        ax.set(title=f"{size} runs to learn from", xlabel="LDS: sets (grey) and their mean")
    axes[0, 0].set_yticks(-np.arange(len(summary)), list(summary.index))
    return figure


if __name__ == "__main__":
    main()
