"""Record true outcomes as data sets of whence.

    python experiments/record.py digits                 seconds
    python experiments/record.py breast_cancer          seconds
    python experiments/record.py digits_network         minutes on two cores

Each is made from data that comes with scikit-learn, by the library itself, with fixed seeds. What is written lies in
src/whence/datasets/runs, with its index.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

import whence
from whence.datasets.recorded import record
from whence.demo import digits_set_function


def digits() -> whence.Outcomes:
    """All 1,024 subsets of ten groups of handwritten digits: accuracy of a logistic regression on odd or even."""
    return digits_set_function()


def breast_cancer() -> whence.Outcomes:
    """1,000 subsets of 430 of 455 training points of a logistic regression: loss of one test point."""
    from breast_cancer import N_SUBSETS, N_TRAIN, SIZE, Regression, data

    loss = Regression(*data(N_TRAIN, 0))
    subsets = whence.FixedSize(SIZE).draw(N_TRAIN, N_SUBSETS, seed=0)
    return whence.measure(loss, subsets, engine="inline")


def digits_network() -> whence.Outcomes:
    """300 subsets of 20 groups of digits, two seeds each: losses of a small network on 100 test images one by one.

    Groups hold one pair of digits each, and four of them have wrong labels; half of them in each run.
    """
    import torch
    from torch import nn

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
    rng, tasks, start = np.random.default_rng(1), {}, 100
    for group in range(20):
        first, second = rng.choice(10, 2, replace=False)
        rows = [row for row in range(start, len(labels)) if labels[row] in (first, second)]
        rows = rng.choice(rows, 40, replace=False)
        wrong = group % 5 == 4
        shown = torch.where(labels[rows] == first, second, first) if wrong else labels[rows]
        tasks[f"{first}{second}_{'wrong_' if wrong else ''}{group}"] = (images[rows], shown)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    problem = whence.Problem(network, tasks, (images[:100], labels[:100]), per_query=True)
    recipe = whence.Recipe(steps=200, lr=3e-3, batch_size=32)
    return whence.measure(whence.Retrain(problem, recipe), whence.FixedSize(10), n=300, seeds=2, engine="inline")


Make = Callable[[], whence.Outcomes]
SETS: dict[str, Make] = {made.__name__: made for made in (digits, breast_cancer, digits_network)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS)
    name = parser.parse_args().name
    title = (SETS[name].__doc__ or "").splitlines()[0]
    runs = SETS[name]()
    record(name, runs, title, f"python experiments/record.py {name}")
    print(runs)


if __name__ == "__main__":
    main()
