"""Leave-one-out retraining, influence functions and a linear surrogate agree where effects add up.

The paper's figure on the Wisconsin breast cancer data: every training point is a task, the model is a logistic
regression with an ℓ2 penalty of 10⁻², and the outcome is the loss of one test point. Three scores for each of the 455
training points:

- LOO: the change of the loss when the model is trained without it, from scratch;
- IF: the influence function, with a damping of 10⁻³;
- linear surrogate: least squares on 1,000 subsets of 430 points.

The paper finds correlations of 0.98 (LOO / surrogate), 0.97 (LOO / IF) and 0.96 (IF / surrogate).

    python experiments/breast_cancer.py                  as in the paper; seconds; writes docs/images/breast_cancer.png
    python experiments/breast_cancer.py --points 60 --subsets 200 --picture out.png      a smaller one
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

import whence
from whence.baselines import influence_scores

L2, DAMPING, N_TRAIN, SIZE, N_SUBSETS = 1e-2, 1e-3, 455, 430, 1000
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "breast_cancer.png"


def data(n_train: int, seed: int):
    """Return standardised training rows with a constant, their labels, and one test point drawn at random."""
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=n_train, random_state=seed, stratify=y)
    mean, std = X.mean(axis=0), X.std(axis=0)
    X, X_test = (np.hstack([(part - mean) / std, np.ones((len(part), 1))]) for part in (X, X_test))
    drawn = np.random.default_rng(seed).integers(len(y_test))
    return X, y.astype(float), X_test[drawn], float(y_test[drawn])


class Regression:
    """Outcome function: loss of the test point after training on the points of a subset, by Newton's method."""

    def __init__(self, X, y, x_test, y_test) -> None:
        self.X, self.y, self.x_test, self.y_test = X, y, x_test, y_test
        self.squares = np.einsum("nd,ne->nde", X, X).reshape(len(X), -1)

    def weights(self, subsets):
        """Minimise the mean loss over each subset + ½ λ ‖w‖², all subsets together."""
        m, d = len(subsets), self.X.shape[1]
        share = subsets / subsets.sum(axis=1, keepdims=True)
        w = np.zeros((m, d))
        for _ in range(100):
            p = 1 / (1 + np.exp(-w @ self.X.T))
            slope = (share * (p - self.y)) @ self.X + L2 * w
            curvature = ((share * p * (1 - p)) @ self.squares).reshape(m, d, d) + L2 * np.eye(d)
            step = np.linalg.solve(curvature, slope[..., None])[..., 0]
            w -= step
            if np.abs(step).max() < 1e-12:
                return w
        raise RuntimeError("Newton's method did not converge.")

    def batch(self, subsets, seeds):
        """Losses of the subsets; nothing here is random."""
        margin = (2 * self.y_test - 1) * (self.weights(np.asarray(subsets, dtype=float)) @ self.x_test)
        return {"loss": np.logaddexp(0, -margin)}


def scores(n_train: int = N_TRAIN, size: int = SIZE, n_subsets: int = N_SUBSETS, seed: int = 0):
    """Return the three scores of each training point."""
    X, y, x_test, y_test = data(n_train, seed)
    train, names = Regression(X, y, x_test, y_test), [f"point {i}" for i in range(n_train)]
    alone = train.batch(np.vstack([np.ones(n_train), 1 - np.eye(n_train)]), None)["loss"]

    model = nn.Linear(X.shape[1], 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.as_tensor(train.weights(np.ones((1, n_train)))))
    tasks = {name: (X[i : i + 1], y[i : i + 1]) for i, name in enumerate(names)}
    target = (x_test[None], np.array([y_test]))
    influence = influence_scores(whence.Problem(model, tasks, target, loss="logistic"), damping=DAMPING, l2=L2)

    subsets = whence.FixedSize(size).draw(n_train, n_subsets, seed=seed)
    runs = whence.Outcomes(subsets, train.batch(subsets, None)["loss"], task_names=names)
    linear = whence.AdditiveSurrogate("ols").fit(runs.subsets, runs.values[:, 0])
    return {"LOO": alone[0] - alone[1:], "IF": influence.coef_[:, 0], "linear surrogate": linear.coef_[:, 0]}


PAIRS = (("LOO", "linear surrogate"), ("LOO", "IF"), ("IF", "linear surrogate"))


def correlations(found) -> list[float]:
    """Return the Pearson correlation of each pair of scores."""
    return [float(np.corrcoef(found[a], found[b])[0, 1]) for a, b in PAIRS]


def draw(found, path: Path) -> None:
    """Draw one score against the other, for each pair."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
    for ax, (a, b), r in zip(axes, PAIRS, correlations(found), strict=True):
        ends = [min(found[a].min(), found[b].min()), max(found[a].max(), found[b].max())]
        ax.plot(ends, ends, color="0.8", lw=1, zorder=0)
        ax.scatter(found[a], found[b], s=9, alpha=0.6, edgecolors="none", color="#1b6ca8")
        ax.set(xlabel=a, ylabel=b)
        ax.set_title(f"{a} / {b}: r = {r:.3f}", loc="left", weight="bold")
        ax.spines[["top", "right"]].set_visible(False)
        ax.ticklabel_format(scilimits=(-2, 2))
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Compute, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=N_TRAIN)
    parser.add_argument("--size", type=int, help="of a subset; 430 of 455 where not given")
    parser.add_argument("--subsets", type=int, default=N_SUBSETS)
    parser.add_argument("--seed", type=int, default=0, help="of the split, the test point and the subsets")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args()
    size = given.size or round(given.points * SIZE / N_TRAIN)
    found = scores(given.points, size, given.subsets, given.seed)
    for (a, b), r in zip(PAIRS, correlations(found), strict=True):
        print(f"{a} / {b}: {r:.3f}")
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(found, given.picture)
    print(f"wrote {given.picture}")


if __name__ == "__main__":
    main()
