"""The picture of README: LDS against the total price, from the recorded results of scores.py.

    python benchmarks/price.py

True runs alone, estimates alone (crosses) and fused with true runs, and the default mix, on every problem of
results/scores.json. A star marks problems that the mix was chosen on.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

from scores_problems import CHOSEN_ON

HERE = Path(__file__).resolve().parent
LINES = {  # curve: words, colour
    "true runs": ("true runs alone", "0.55"),
    "merge": ("task vectors (a quarter of the steps), fused", "tab:green"),
    "trak": ("TRAK of one joint run, fused", "tab:orange"),
    "influence": ("EK-FAC influence of one joint run, fused", "tab:blue"),
}
MIX = "the default mix for this price, fused"


@plt.style.context("default")  # whatever else was drawn in this process
def main(path: Path = HERE.parent / "docs" / "images" / "price.png") -> None:
    """Draw the picture."""
    found = json.loads((HERE / "results" / "scores.json").read_text(encoding="utf-8"))
    columns = 4 if len(found) > 6 else min(3, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 3 * rows), sharey=True, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, (name, own) in zip(axes.flat, found.items(), strict=False):
        for curve, (words, colour) in LINES.items():
            fused = own["fused"].get(curve, {"lds": {}})
            if not fused["lds"]:
                continue
            x = [fused["price"] + int(m) for m in fused["lds"]]
            axis.plot(x, list(fused["lds"].values()), "o-", color=colour, label=words, markersize=4)
            alone = own["alone"].get(curve if curve != "merge" else "merge, a quarter")
            if alone is not None:
                axis.plot(alone["price"], alone["lds"], "x", color=colour)
        mix = own["mix"]
        axis.plot([*map(int, mix)], [one["lds"] for one in mix.values()], "o-", color="black", label=MIX, markersize=4)
        axis.set_title(name + " *" * (name in CHOSEN_ON), fontsize=10)
        axis.set_xlabel("total price, in true runs")
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("rank correlation with\ntrue runs, per query (LDS)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.3 / (3 * rows) + 0.05, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
