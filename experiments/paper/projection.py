"""The Johnson–Lindenstrauss bound: what random projection does to inner products and to GradEx.

The proposition of the paper's appendix: with a random projection that keeps inner products up to ε, the training loss
of the estimate is within 2δ + 4GDε of the least one (G: norm of gradients, D: radius of the search, δ: Taylor error).
Here the model is a softmax regression on handwritten digits, linear in its parameters, so that δ = 0 and only the
projection counts; ε is measured instead of bounded. Its proof says |⟨g, v⟩ − ⟨Pg, Pv⟩| ≤ ε |⟨g, v⟩|, which no
projection gives: what it gives is ε ‖g‖ ‖v‖. Both are measured.

    python experiments/paper/projection.py            a minute
    python experiments/paper/projection.py --quick    seconds
"""

from __future__ import annotations

import numpy as np
import torch
from common import BLUE, GREEN, GREY, ORANGE, arguments, plt, table, write
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import whence
from whence.gradients.projections import Gaussian

L2, N_CLASSES = 1e-4, 10


def softmax_regression(n: int):
    """Return inputs, labels and the problem of predicting them from weights of 0."""
    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))[:n]
    X, y = torch.tensor(X[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])
    model = torch.nn.Linear(X.shape[1], N_CLASSES, bias=False)
    torch.nn.init.zeros_(model.weight)
    return X, y, whence.Problem(model, {"all": (X, y)}, (X, y))


def inner_products(X, update, rank: int, seed: int):
    """Return ⟨g, v⟩ and ⟨Pg, Pv⟩ for the gradient g of every logit of every example, and the update v."""
    like = {"weight": torch.zeros(update.shape)}
    rows = Gaussian(rank=rank, seed=seed).rows(like, 0, rank).reshape(rank, *update.shape)
    projected_update = torch.einsum("rcd,cd->r", rows, update)
    # The gradient of logit c with respect to the weights is x in row c: P g = Σ_d P[:, c, d] x_d.
    kept = torch.einsum("rcd,nd,r->nc", rows, X, projected_update)
    return (X @ update.T).numpy().ravel(), kept.numpy().ravel()


def main() -> None:
    given = arguments(__doc__)
    X, y, problem = softmax_regression(200 if given.quick else 1797)
    ranks, seeds = ((16, 64), 2) if given.quick else ((8, 16, 32, 64, 128, 256, 512), 5)
    n = len(y)
    exact = LogisticRegression(C=1 / (n * L2), fit_intercept=False, tol=1e-8, max_iter=5000).fit(X, y)
    update = torch.tensor(exact.coef_, dtype=torch.float32)
    least = float(torch.nn.functional.cross_entropy(X @ update.T, y))
    G, D = float(X.norm(dim=1).max()), float(update.norm())
    norms = np.repeat(X.norm(dim=1).numpy(), N_CLASSES) * D
    found = []
    for rank in ranks:
        for seed in range(seeds):
            true, kept = inner_products(X, update, rank, seed)
            error = np.abs(kept - true)
            epsilon = float((error / norms).max())
            loss = float(
                whence.GradEx(problem, rank=rank, projection="gaussian", l2=L2, seed=seed).batch([[1]], [0])["loss"][0]
            )
            found.append(
                {
                    "rank": rank,
                    "epsilon": epsilon,
                    "holds": float((error <= epsilon * np.abs(true)).mean()),
                    "typical": float(np.median(error / np.abs(true))),
                    "gap": loss - least,
                    "bound": 4 * G * D * epsilon,
                }
            )
    means = {
        rank: {key: np.mean([each[key] for each in found if each["rank"] == rank]) for key in found[0]}
        for rank in ranks
    }
    theory = {rank: np.sqrt(8 * np.log(n * N_CLASSES) / rank) for rank in ranks}
    rows = [
        [
            rank,
            f"{theory[rank]:.2f}",
            f"{mean['epsilon']:.3f}",
            f"{mean['holds']:.0%}",
            f"{mean['typical']:.0%}",
            f"{mean['gap']:.3f}",
            f"{mean['bound']:.0f}",
        ]
        for rank, mean in means.items()
    ]
    last = means[ranks[-1]]
    whole = float(whence.GradEx(problem, rank=10_000, l2=L2).batch([[1]], [0])["loss"][0])
    holds = (
        f"The bound holds but is too loose to be of use: at rank {ranks[-1]} of {X.shape[1] * N_CLASSES} "
        f"parameters it allows a training loss {last['bound']:.0f} nats above the minimum, although guessing at "
        f"random costs only {np.log(N_CLASSES):.1f}; the actual estimate is {last['gap']:.2f} above. The inequality "
        "that the proof starts from, an error of at most ε |⟨g, v⟩|, fails for "
        f"{1 - last['holds']:.0%} of the gradients if ε is the error relative to ‖g‖‖v‖; relative "
        f"to |⟨g, v⟩| the typical error is {last['typical']:.0%}. The rate does hold: ε falls with "
        "the square root of the rank."
    )
    write(
        given,
        "projection",
        "The Johnson–Lindenstrauss bound",
        holds,
        f"Softmax regression on {n} digits, {X.shape[1] * N_CLASSES} parameters, from weights of 0; "
        f"Gaussian projection, mean over {seeds} of them. Greatest gradient G = {G:.1f}, radius D = "
        f"{D:.1f} (the norm of the "
        f"best weights at λ = {L2:g}), least training loss {least:.3f} by scikit-learn (GradEx with all "
        f"parameters: {whole:.3f}).",
        table(
            [
                "rank",
                "√(8 log N / rank)",
                "ε measured, of ‖g‖‖v‖",
                "gradients within ε ⟨g, v⟩",
                "typical error of ⟨g, v⟩",
                "training loss above the least",
                "the bound 4GDε",
            ],
            rows,
        ),
        figure=draw(ranks, means, theory, least),
    )


def draw(ranks, means, theory, least):
    """Draw ε and the loss above the least one by rank, beside what the bounds allow."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    left.plot(ranks, [theory[rank] for rank in ranks], "--", color=GREY, label="√(8 log N / rank)")
    left.plot(
        ranks, [means[rank]["epsilon"] for rank in ranks], "o-", color=BLUE, label="ε, greatest error over ‖g‖‖v‖"
    )
    left.plot(
        ranks, [means[rank]["typical"] for rank in ranks], "o-", color=ORANGE, label="typical error over |⟨g, v⟩|"
    )
    left.set(title="Inner products", xlabel="rank", xscale="log", yscale="log")
    right.plot(ranks, [means[rank]["bound"] for rank in ranks], "--", color=GREY, label="the bound 4GDε")
    right.axhline(np.log(N_CLASSES) - least, color=GREEN, lw=1, label="a model that knows nothing")
    right.plot(ranks, [means[rank]["gap"] for rank in ranks], "o-", color=BLUE, label="the estimate")
    right.set(title="Training loss above the least", xlabel="rank", xscale="log", yscale="log", ylabel="nats")
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8)
        ax.set_xticks(ranks, ranks)
        ax.minorticks_off()
    return figure


if __name__ == "__main__":
    main()
