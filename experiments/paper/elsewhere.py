"""Pages of studies that train models of their own: flatness and first-order errors.

flatness.py and first_order.py leave flatness.json and first_order.json in their folder. Put these into
docs/results/paper; the pages are made by:

    python experiments/paper/elsewhere.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce

import numpy as np
from common import (
    BLUE,
    GREEN,
    ORANGE,
    PAGES,
    arguments,
    plt,
    plus_minus,
    write,
)
from common import table as markdown

from whence.errors import counted

STYLES = {"least squares": ("--", "linear"), "tuned linear": (":", "tuned linear"), "paper kernel": ("-", "RBF")}


def flatness(given, found: dict) -> None:
    """Hessian trace, LDS and residual error over training, by optimizer: means over seeds."""
    runs = {name: part["seeds"] for name, part in found["optimizers"].items()}
    made = [f"`{part['command']}`, {part['machine']}, {part['date']}" for part in found["optimizers"].values()]
    colors = dict(zip(runs, (ORANGE, BLUE, GREEN), strict=False))
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    rows = []
    for name, seeds in runs.items():
        steps = [row["steps"] for row in seeds[0]]
        trace = over_seeds(seeds, "trace")
        color, label = colors[name], name.upper()
        axes[0].errorbar(steps, trace.mean(0), spread(trace), color=color, marker="o", ms=3, capsize=2, label=label)
        for ax, score in zip(axes[1:], ("lds", "residual_error"), strict=True):
            for method, (style, words) in STYLES.items():
                values = over_seeds(seeds, "query" if score == "lds" else "mean", method, score).mean(0)
                ax.plot(steps, values, style, color=colors[name], lw=1.4, label=words if name == "sgd" else None)
        for i, length in enumerate(steps):
            pairs = [[over_seeds(seeds, kind, m, "lds")[:, i] for kind in ("query", "mean")]
                     for m in (*STYLES, "size only")]  # fmt: skip
            pairs.append([over_seeds(seeds, "ceiling", kind)[:, i] for kind in ("query", "mean")])
            errors = [" / ".join(f"{over_seeds(seeds, kind, m, 'residual_error')[:, i].mean():,.2f}"
                                 for kind in ("query", "mean")) for m in STYLES]  # fmt: skip
            fit = f"{over_seeds(seeds, 'training_loss')[:, i].mean():.3f}"
            rows.append([name.upper(), length, plus_minus(trace[:, i], 0), fit,
                         *(" / ".join(map(plus_minus, pair)) for pair in pairs), *errors])  # fmt: skip
    for ax, title in zip(axes, ("Hessian trace", "LDS per query", "Residual error of the mean loss"), strict=True):
        ax.set(title=title, xlabel="steps")
        ax.legend(frameon=False, fontsize=7)
    axes[2].set_yscale("log")
    header = ["", "steps", "Hessian trace", "training loss"]
    header += [f"LDS {name}: per query / mean" for name in (*STYLES, "size only", "noise ceiling")]
    write(
        given,
        "flatness",
        "Flatness",
        what_flatness_does(runs),
        f"{found['size']} Means over {counted(len(runs['sgd']), 'seed')} (± standard deviation), each with a start and "
        f"subsets of its own. Runs: {'; '.join(dict.fromkeys(made))}.",
        markdown([*header, *(f"residual error {m}: per query / mean" for m in STYLES)], rows),
        figure=figure,
        script="elsewhere",
    )


def over_seeds(seeds: list[list[dict]], *keys: str) -> np.ndarray:
    """Return a number of every row, (seeds, lengths)."""
    return np.array([[reduce(lambda part, key: part[key], keys, row) for row in lengths] for lengths in seeds], float)


def spread(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over seeds, 0 for one of them."""
    return values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def what_flatness_does(runs: dict) -> str:
    """Return what holds of the paper's figure: of the trace over training, and of the LDS at its end."""
    steps = [row["steps"] for row in runs["sgd"][0]]
    traces = "; ".join(
        f"{', '.join(f'{value:,.0f}' for value in over_seeds(seeds, 'trace').mean(0))} under {name.upper()}"
        for name, seeds in runs.items()
    )
    errors = listed(f"{residual_errors(seeds)} under {name.upper()}" for name, seeds in runs.items())
    lds = {name: over_seeds(seeds, "query", "least squares", "lds").mean(0) for name, seeds in runs.items()}
    of_mean = over_seeds(runs["sgd"], "mean", "least squares", "lds").mean(0)
    back = "is reproduced" if abs(lds["sgd"][-1]) < 0.05 else "is not reproduced"
    last = {
        name: over_seeds(runs["sgd"], "query", name, "lds").mean(0)[-1] for name in ("tuned linear", "paper kernel")
    }
    per_query = over_seeds(runs["sgd"], "query", "least squares", "residual_error").mean(0)[-1]
    left_out = [name.upper() for name in ("sam", "nso") if name not in runs]
    ends = listed(f"{values[-1]:.2f} under {name.upper()}" for name, values in lds.items())
    return (
        f"That the LDS of a linear surrogate drops to 0.01 under SGD {back}: per query it goes from "
        f"{lds['sgd'][0]:.2f} after {steps[0]} steps to {lds['sgd'][-1]:.2f} after {steps[-1]}, and ends at {ends}. "
        f"After {', '.join(map(str, steps))} steps the trace is {traces}. "
        f"The LDS of the mean loss is {', '.join(f'{value:.2f}' for value in of_mean)} under SGD. "
        f"The residual error of the mean loss goes {errors}; per query, a few whose loss is next to 0 dominate it "
        f"({per_query:,.0f} at the end of SGD). "
        f"At the end of SGD, a tuned linear surrogate has {last['tuned linear']:.2f} per query, the paper's kernel "
        f"{last['paper kernel']:.2f}, and the noise ceiling is "
        f"{over_seeds(runs['sgd'], 'ceiling', 'query').mean(0)[-1]:.2f}."
        + "".join(f" {name} has not been run at this size." for name in left_out)
    )


def residual_errors(seeds: list[list[dict]]) -> str:
    """Return how the residual error of least squares goes, with its highest value where that is far above both ends."""
    errors = over_seeds(seeds, "mean", "least squares", "residual_error").mean(0)
    highest = int(errors.argmax())
    far = errors[highest] > 2 * max(errors[0], errors[-1])
    peak = f" ({errors[highest]:.1f} after {seeds[0][highest]['steps']} steps)" if far else ""
    return f"from {errors[0]:.1f} to {errors[-1]:.1f}{peak}"


def listed(parts: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def first_order(given, found: dict) -> None:
    """Relative errors of the first-order expansion, of the outputs and of their change."""
    every = [row for part in found["parts"].values() for row in part["rows"]]
    rows = [row for row in every if np.isfinite(row["of_outputs"])]
    made = "; ".join(f"`{part['command']}`, {part['machine']}, {part['date']}" for part in found["parts"].values())
    figure, ax = plt.subplots(figsize=(11, 0.24 * len(rows) + 1.4))
    for key, color, words in (
        ("of_outputs", BLUE, "of the outputs, as in the paper"),
        ("of_change", ORANGE, "of their change"),
    ):
        ax.plot([row[key] for row in rows], -np.arange(len(rows)), "o", ms=4, color=color, label=words)
    ax.axvline(0.02, color="0.5", lw=0.8, ls=":", label="the paper's 2%")
    ax.axvline(1, color="0.2", lw=0.8)
    ax.set_yticks(-np.arange(len(rows)), [f"{row['model']}: {row['setting']}" for row in rows], fontsize=6)
    ax.set(
        xscale="log", title="First-order error", xlabel="1: no better than predicting no change", ylim=(-len(rows), 1)
    )
    ax.legend(frameon=False, fontsize=7)
    diverged = [f"{row['model']}, {row['setting']}" for row in every if row not in rows]
    cells = [
        [
            row["model"],
            f"{row['parameters']:,}",
            row["setting"],
            f"{row['of_outputs']:.2%} ± {row['of_outputs_std']:.2%}",
            f"{row['of_change']:.1%} ± {row['of_change_std']:.1%}",
        ]
        for row in rows
    ]
    ways = ("right", *LANGUAGE_WAYS.values())
    models = dict.fromkeys((row["model"], row["parameters"]) for row in rows if " right)" in row["setting"])
    write(
        given,
        "first_order",
        "First-order errors",
        what_is_linear(rows),
        f"Runs: {made}. ± is the standard deviation over inputs. SmolLM2-135M on prompts is among the [results on "
        "prompts](../icl.md); the images for the card were compressed with loss (AVIF, quality 74)."
        + "".join(f" Not shown, since training diverges: {words}." for words in diverged),
        "## Language models of growing size",
        "The paper's table has 0.07% and 0.09% of the outputs at 34 billion parameters, and up to 1.8% at 7 and 8 "
        "billion. Here: the error of the outputs where the four examples of a prompt are exchanged, and where weights "
        "have taken ten steps of AdamW, beside the share of right answers. Llamas were trained on reviews of films "
        "and prompts of both tasks for this; SmolLM2 is as it is, from weights of four bits.",
        markdown(
            ["model", "parameters", *(f"{task}: {way}" for task in LANGUAGES for way in ways)],
            [
                [name, f"{n:,}", *(cell for task in LANGUAGES for cell in language_cells(rows, name, task))]
                for name, n in models
            ],
        ),
        "## Every setting",
        "The paper has 1.02% ± 0.69% of the outputs on CIFAR-10, 2.40% ± 2.17% on modular arithmetic, 0.51% ± 0.04% in "
        "context and 0.43% ± 0.73% in reinforcement learning, and does not say how far W is from W₀.",
        markdown(["model", "parameters", "setting", "of the outputs", "of their change"], cells),
        figure=figure,
        script="elsewhere",
    )  # fmt: skip


LANGUAGES = ("SST-2", "coin flip")
LANGUAGE_WAYS = {"embeddings": "other examples", "at 1e-06": "steps of 1e-6", "at 1e-05": "1e-5", "at 0.0001": "1e-4"}


def language_cells(rows: list[dict], model: str, task: str) -> list[str]:
    """Return how well a language model answers a task, and its errors there."""
    own = [row for row in rows if row["model"] == model and row["setting"].startswith(f"{task} (")]
    right = own[0]["setting"].partition("(")[2].partition(" right")[0]
    each = (next(row for row in own if way in row["setting"]) for way in LANGUAGE_WAYS)
    return [right, *(f"{row['of_outputs']:.2%} ± {row['of_outputs_std']:.2%}" for row in each)]


def what_is_linear(rows: list[dict]) -> str:
    """Return what holds of the paper's tables: after small steps, from a random start, and for other prompts."""

    def between(some: list[dict], key: str) -> str:
        ends = (extreme(row[key] for row in some) for extreme in (min, max))
        return " to ".join(f"{end:.2%}" if end < 0.1 else f"{end:,.0%}" for end in ends)

    far = [row for row in rows if "random" in row["setting"]]
    prompts = [row for row in rows if "embeddings" in row["setting"]]
    near = [row for row in rows if row not in far and row not in prompts]
    small = sum(row["of_outputs"] < 0.024 for row in near)
    said = [
        f"It holds where steps are few and small: from a trained W₀ the error is below the paper's 2.4% of the outputs "
        f"in {small} of {len(near)} settings, and up to {between(near, 'of_outputs').rpartition(' ')[2]} elsewhere. "
        f"Of the *change* that training makes, which attribution is about, it is {between(near, 'of_change')}."
    ]
    for some, words in ((far, "Where W is trained from random weights"), (prompts, "For other examples in a prompt")):
        if some:
            said.append(
                f"{words}, it is {between(some, 'of_outputs')} of the outputs and {between(some, 'of_change')} of the "
                f"change: no better than predicting no change in {sum(row['of_change'] >= 1 for row in some)} of "
                f"{len(some)}."
            )
    if len({row["parameters"] for row in prompts}) > 1:
        sizes = sorted({row["parameters"] for row in prompts})
        first, *_, last = (
            np.mean([row["of_outputs"] for row in prompts if row["parameters"] == size]) for size in sizes
        )
        falls, ends = last < first, " to ".join(f"{size / 1e6:.0f}" for size in (sizes[0], sizes[-1]))
        said.append(
            f"From {ends} million parameters it {'falls' if falls else 'does not fall'} with size, as it does in the "
            "paper from 7 to 34 billion."
        )
    return " ".join(said)


FILES = {"flatness.json": flatness, "first_order.json": first_order}


def main() -> None:
    given = arguments(__doc__)
    for name, make in FILES.items():
        path = given.out / name if (given.out / name).is_file() else PAGES / name
        if path.is_file():
            make(given, json.loads(path.read_text(encoding="utf-8")))
        else:
            print(f"not measured yet: {path}")


if __name__ == "__main__":
    main()
