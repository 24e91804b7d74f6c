"""The table of selection, with running times: which subset to use, chosen by attribution or by prediction.

The paper takes the tasks of highest score (top 4 demonstrations, top 3 tasks), with the score of a kernel surrogate
the mean of its predictions over subsets that include the task. Here the choice is made among held-out subsets of every
recorded set, whose true outcome is known, whichever is chosen. The outcome is the mean over targets. What is shown is
the regret: 0 is the best of the held-out subsets, 1 their mean, that is a subset drawn at random.

Influence functions, TracIn, TRAK, SOURCE and BIF need the model itself, of which a recorded set has only the outcomes:
they are measured on the small network on digits, which is trained again here.

    python experiments/paper/selection.py            minutes
    python experiments/paper/selection.py --quick    seconds
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from common import (
    BLUE,
    GREY,
    LINEAR,
    METHODS,
    RBF,
    TUNED_LINEAR,
    TUNED_RBF,
    arguments,
    plt,
    plus_minus,
    recorded,
    table,
    tables,
    train_size,
    write,
)

import whence
from whence.datasets.leaderboard import averaged

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
NETWORK = "digits_network"
BASELINES = {"influence": "influence functions", "tracin": "TracIn", "trak": "TRAK", "source": "SOURCE", "bif": "BIF"}
PAPER = """| | SST-2, loss | coin flip, loss | minutes | MT10, reward | minutes |
|---|---|---|---|---|---|
| influence functions | 0.23 ± 0.21 | 1.62 ± 1.33 | 17 | 16.3 ± 1.4 | 2 |
| TracIn | 0.25 ± 0.40 | 0.54 ± 0.68 | 3 | 16.0 ± 2.3 | 3 |
| TRAK | 0.32 ± 0.48 | 0.72 ± 0.87 | 2 | 15.8 ± 4.5 | 1 |
| linear surrogate | 0.20 ± 0.11 | 0.05 ± 0.03 | 2 | 13.1 ± 4.3 | 1 |
| kernel surrogate | 0.16 ± 0.08 | 0.02 ± 0.03 | 2 | 18.8 ± 5.6 | 1 |"""


def by_prediction(method):
    """Return the way to choose that takes the subset of best prediction."""
    return lambda train: lambda rows: method(train).predict(rows)[:, 0]


def by_attribution(train):
    """Return the paper's way: the sum of what the kernel surrogate predicts on average where each task is in."""
    model = METHODS[RBF](train)
    scores = whence.attribute(model, rule="inclusion").scores[:, 0]
    return lambda rows: rows @ scores


WAYS = {
    LINEAR: by_prediction(METHODS[LINEAR]),
    TUNED_LINEAR: by_prediction(METHODS[TUNED_LINEAR]),
    f"{RBF}, by attribution (the paper's way)": by_attribution,
    f"{RBF}, by prediction": by_prediction(METHODS[RBF]),
    f"{TUNED_RBF}, by prediction": by_prediction(METHODS[TUNED_RBF]),
    "whence.fit, by prediction": by_prediction(whence.fit),
}
MEASURED = "the best run that was learned from"


def choices(runs: whence.Outcomes, ways, n_splits: int):
    """Return regret and seconds of every way on every split, and the regret of the best run that was learned from."""
    distinct, means, _ = runs.distinct()
    sign = -1.0 if runs.maximize[0] else 1.0
    truth, n_train = sign * means[:, 0], train_size(runs)
    regret, seconds = {name: [] for name in [*ways, MEASURED]}, {name: [] for name in ways}
    for split in range(n_splits):
        order = np.random.default_rng(split).permutation(len(distinct))
        learn, judge = order[:n_train], order[n_train:]
        train = whence.Outcomes(distinct[learn], truth[learn], task_names=runs.task_names)
        best, mean = truth[judge].min(), truth[judge].mean()
        for name, way in ways.items():
            began = time.perf_counter()
            place = judge[np.argmin(way(train)(distinct[judge]))]
            seconds[name].append(time.perf_counter() - began)
            regret[name].append((truth[place] - best) / (mean - best))
        regret[MEASURED].append((truth[learn].min() - best) / (mean - best))
    return regret, seconds


def baselines(quick: bool):
    """Return a way to choose for every baseline on the network, with the seconds that its scores took."""
    from record import digits_problem

    from whence.baselines.joint import JointScores

    problem, recipe = digits_problem()
    found = {}
    for kind, words in list(BASELINES.items())[1 : 2 if quick else None] if quick else BASELINES.items():
        began = time.perf_counter()
        scores = JointScores(problem, recipe, kind)
        scores.batch(np.ones((1, len(problem.task_names))), [0])
        found[words] = (scores, time.perf_counter() - began)
    return found


def main() -> None:
    given = arguments(__doc__)
    sets = {name: averaged(runs) for name, runs in (recorded(given.quick) | tables(given.quick, "paper_coin")).items()}
    ways = dict(list(WAYS.items())[:3]) if given.quick else WAYS
    n_splits = 3 if given.quick else 10
    found = {name: choices(runs, ways, n_splits) for name, runs in sets.items()}
    scored = baselines(given.quick)
    given_scores = {
        words: (
            lambda train, scores=scores: (
                lambda rows: np.asarray(scores.batch(rows, np.zeros(len(rows), dtype=int))["loss"]).mean(1)
            )
        )
        for words, (scores, _) in scored.items()
    }
    network = choices(sets[NETWORK], given_scores, n_splits)[0]
    names = [*ways, MEASURED]
    regret = {way: [np.mean(found[name][0][way]) for name in sets] for way in names}
    seconds = {way: np.mean([np.mean(found[name][1][way]) for name in sets]) for way in ways}
    rows = [
        [
            way,
            *(plus_minus(found[name][0][way]) for name in sets),
            f"{np.mean(regret[way]):.2f}",
            f"{seconds[way]:.2f}" if way in seconds else "–",
        ]
        for way in names
    ]
    n_train = train_size(sets[NETWORK])
    once = [[words, plus_minus(network[words]), f"{scored[words][1]:.1f}", "one run on all tasks"] for words in scored]
    once += [
        [way, plus_minus(found[NETWORK][0][way]), f"{np.mean(found[NETWORK][1][way]):.2f}", f"{n_train} runs"]
        for way in ways
    ]
    once += [[MEASURED, plus_minus(found[NETWORK][0][MEASURED]), "–", f"{n_train} runs"]]
    write(
        given,
        "selection",
        "Selection",
        verdict(regret, list(sets)),
        "Regret of the chosen subset (0: the best held-out one, 1: one at random), ± standard deviation "
        "over splits, which share runs; seconds to fit and to choose, mean over sets.",
        table(["chosen by", *sets, "mean", "seconds"], rows),
        f"*{MEASURED}* is not a choice among the held-out subsets but the best outcome among those that "
        "were run anyway, noise included: below 0 where these happen to hold a better one.",
        "## Methods that need the model",
        f"On {NETWORK}, with the price in true runs; scores of one model are the same for all splits.",
        table(["chosen by", "regret", "seconds", "price"], once),
        "## In the paper",
        PAPER,
        figure=draw(regret, list(sets)),
    )


def verdict(regret, names) -> str:
    """Say whether the paper's way beats a linear surrogate."""
    ours = f"{RBF}, by attribution (the paper's way)"
    wins = [sum(a < b for a, b in zip(regret[ours], regret[other], strict=True)) for other in (LINEAR, TUNED_LINEAR)]
    ordered = sorted(regret, key=lambda way: np.mean(regret[way]))
    return (
        "Tasks of highest kernel attribution make a better subset than a linear surrogate's on "
        f"{wins[0]} of {len(names)} sets (tuned: {wins[1]}); mean regrets are "
        f"{np.mean(regret[ours]):.2f}, "
        f"{np.mean(regret[LINEAR]):.2f} (linear) and {np.mean(regret[TUNED_LINEAR]):.2f} (tuned linear), "
        f"where a random subset has 1. Least regret: {ordered[0]} ({np.mean(regret[ordered[0]]):.2f}), "
        "then "
        f"{ordered[1]} ({np.mean(regret[ordered[1]]):.2f}). All of them take seconds; the price is in the runs."
    )


def draw(regret, names):
    """Draw the regret of every way: a point for each set, and the mean."""
    figure, ax = plt.subplots(figsize=(9, 0.42 * len(regret) + 1.2))
    for place, values in enumerate(regret.values()):
        ax.plot(values, np.full(len(values), -place), "o", ms=4, color=GREY)
        ax.plot(np.mean(values), -place, "D", ms=7, color=BLUE)
    ax.axvline(0, color="0.2", lw=0.8)
    ax.axvline(1, color="0.2", lw=0.8, ls=":")
    ax.set_yticks(-np.arange(len(regret)), list(regret))
    ax.set(
        title=f"Regret of the chosen subset: {len(names)} sets (grey) and their mean",
        xlabel="0: the best held-out subset, 1: a random one",
    )
    return figure


if __name__ == "__main__":
    main()
