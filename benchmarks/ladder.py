"""The prices that `whence estimate` probes beside those of the whole work, and how near each method comes to true runs.

Small models on scikit-learn's digits, sorted into 20 tasks of 40 images with mixed-up classes: a convolutional network
and a perceptron from a random start, and a linear classifier. Truth: the loss of each of 100 queries after training on
40 subsets of ten tasks, the mean of three seeds. Times are processor time on one thread.

    python benchmarks/ladder.py
    python benchmarks/ladder.py --quick
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import whence
from whence.ladder.advice import recommend, workload
from whence.ladder.methods import Setup, make_estimator
from whence.ladder.probes import probe

K, EACH, QUERIES = 20, 40, 100
MODELS = {
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 36), nn.ReLU(),
        nn.Linear(36, 10),
    ),
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
}  # fmt: skip


def problem(name: str, steps: int = 300) -> Setup:
    """A model on digits, as `whence estimate` takes it."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(images), generator=generator)
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 8, 8)[shuffled], torch.tensor(labels)[shuffled]
    order = torch.argsort(y[: K * EACH] + 1.5 * torch.randn(K * EACH, generator=generator))
    torch.manual_seed(0)
    tasks = {f"t{k}": (x[rows], y[rows]) for k, rows in enumerate(order.split(EACH))}
    made = whence.Problem(MODELS[name](), tasks, (x[-QUERIES:], y[-QUERIES:]), per_query=True)
    return Setup(made, whence.Recipe(steps=steps, lr=3e-3, batch_size=32))


def table(name: str, *, steps: int, n: int, seeds: int) -> str:
    """Rows of one model: probed and measured price in true runs, and LDS."""
    given = problem(name, steps)
    began = time.process_time()
    prices = probe(given, n)
    probing = time.process_time() - began
    work = workload(given)
    best, why = recommend(prices, work, 500)
    subsets = whence.FixedSize(K // 2).draw(K, n, seed=0)
    values, measured = {}, {}
    for method in prices:
        repeats = seeds if method == "retrain" else 1
        began = time.process_time()
        estimator = make_estimator(given, method)
        values[method] = np.mean([estimator.batch(subsets, np.full(n, s))["loss"] for s in range(repeats)], axis=0)
        measured[method] = (time.process_time() - began) / repeats
    truth = whence.Outcomes(subsets, values["retrain"])
    run = {"probed": prices["retrain"].total(n) / n, "measured": measured["retrain"] / n}
    lines = [f"\n## {name}: {work.n_trained:,} parameters, {n} subsets, runs of {steps} steps\n"]
    lines += ["| method | price, probed | measured | LDS per query |", "|---|---|---|---|"]
    for method, price in prices.items():
        cells = [f"{price.total(n) / run['probed']:.1f}", f"{measured[method] / run['measured']:.1f}"]
        score = "" if method == "retrain" else f"{whence.lds(values[method], truth).mean:.2f}"
        lines.append(f"| {method} | {' | '.join(cells)} | {score} |")
    lines.append(
        f"\nPrices are in true runs, one of which took {run['measured']:.3g} s (probed: {run['probed']:.3g} s); "
        f"probing took {probing:.1f} s. For 500 subsets it recommends {best}: {why}"
    )
    return "\n".join(lines)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Little of everything, to see that it works.")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("# Prices and fidelity on small models\n")
    command = f"`python benchmarks/{Path(__file__).name}`"
    print(f"{command}, {datetime.date.today()}, one thread, torch {torch.__version__}, {platform.system()}.\n")
    print((__doc__ or "").split("\n\n")[1])
    for name in MODELS:
        print(table(name, steps=10 if quick else 300, n=6 if quick else 40, seeds=1 if quick else 3), flush=True)


if __name__ == "__main__":
    main()
