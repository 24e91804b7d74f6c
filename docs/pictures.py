"""Draw docs/images/demo.png: what whence says after 150 of the demo's 1023 trainings, beside the truth.

python docs/pictures.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import TwoSlopeNorm

import whence
from whence.demo import digits_set_function, seen_and_unseen, true_index

OUT = Path(__file__).parent / "images" / "demo.png"
GOOD, BAD, DIM = "#2a7f62", "#b5483a", "#8a8f98"


def main() -> None:
    """Train, fit, draw."""
    truth = digits_set_function(seed=0)
    runs, unseen = seen_and_unseen(truth, seed=0)
    model = whence.fit(runs)
    scores, pairs = whence.attribute(model), whence.interactions(model)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), width_ratios=[1.15, 1.1, 1])

    order = np.argsort(scores.scores[:, 0])
    low, high = scores.interval()
    colours = {"helps": GOOD, "hurts": BAD}
    words = scores.verdicts()[:, 0]
    at = np.arange(len(order))
    left.barh(at, scores.scores[order, 0], color=[colours.get(words[k], DIM) for k in order], alpha=0.75)
    width = np.stack([scores.scores[order, 0] - low[order, 0], high[order, 0] - scores.scores[order, 0]])
    left.errorbar(scores.scores[order, 0], at, xerr=width, fmt="none", color="black", lw=1, capsize=2)
    exact = [true_index(truth, [truth.task_names[k]]) for k in order]
    left.plot(exact, at, "o", ms=5, mfc="white", mec="black", label="truth")
    left.set_yticks(at, [truth.task_names[k] for k in order])
    left.axvline(0, color="black", lw=0.8)
    left.set_xlabel("change of accuracy (Shapley)")
    left.set_title("Who helps, who hurts", loc="left", weight="bold")
    left.legend(frameon=False, loc="lower right")

    matrix = pairs.scores[:, :, 0]
    limit = np.abs(matrix).max()
    picture = middle.imshow(matrix, cmap="RdBu", norm=TwoSlopeNorm(0, -limit, limit))
    sure = pairs.verdicts()[:, :, 0] != "not distinguishable from zero"
    for i, j in np.argwhere(sure & ~np.eye(len(matrix), dtype=bool)):
        middle.text(j, i, "•", ha="center", va="center", fontsize=7)
    middle.set_xticks(range(len(matrix)), truth.task_names, rotation=60, ha="right")
    middle.set_yticks(range(len(matrix)), truth.task_names)
    middle.spines[:].set_visible(False)
    middle.set_title("Together or against", loc="left", weight="bold")
    figure.colorbar(picture, ax=middle, shrink=0.8)

    linear = whence.fit(runs, surrogate=whence.AdditiveSurrogate())
    for surrogate, colour, name in ((linear, DIM, "tuned linear"), (model, GOOD, "whence")):
        predicted = surrogate.predict(unseen.subsets)[:, 0]
        label = f"{name}: LDS {whence.lds(surrogate, unseen).mean:.2f}"
        right.plot(predicted, unseen.values[:, 0], ".", ms=3, color=colour, alpha=0.6, label=label)
    ends = [unseen.values.min(), unseen.values.max()]
    right.plot(ends, ends, color="black", lw=0.8)
    right.set_xlabel("predicted accuracy")
    right.set_ylabel("measured accuracy")
    right.set_title(f"{len(unseen)} unseen runs", loc="left", weight="bold")
    right.legend(frameon=False, markerscale=3, loc="lower right")

    figure.tight_layout()
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=130)
    print(f"wrote {OUT.relative_to(Path.cwd())}" if OUT.is_relative_to(Path.cwd()) else f"wrote {OUT}")


if __name__ == "__main__":
    main()
