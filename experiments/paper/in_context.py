"""The table of attribution in context: SST-2 and coin flip with a real model, every method; and prompts to look at.

    python experiments/paper/in_context.py                  from recorded runs; a minute
    python experiments/paper/in_context.py --scores DIR     first judge the scores that prompt_scores.py left in DIR
    python experiments/paper/in_context.py --quick          seconds

Prompts of four demonstrations of SmolLM2-135M-Instruct; the outcome is the loss of a query. Surrogates learn from true
prompts and are judged by others, over ten splits. Influence functions, TracIn and TRAK score every demonstration by the
model's gradients, run no prompt, and are judged by all of them. in_context.json keeps their rank correlations. Of every
query of coin flip, the demonstrations that help and hurt it most by the paper's kernel stand beside the query itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from common import BLUE, METHODS, ORANGE, PAGES, RBF, TUNED_LINEAR, arguments, compare, plt, plus_minus, table, write
from order import spreads

import whence
from whence.datasets import load
from whence.datasets.leaderboard import averaged, some_targets
from whence.evaluation import lds, noise_ceiling

SETS = {"sst2_50": "SST-2", "coin_flip": "coin flip", "coin_flip_taught": "coin flip, taught"}
SCORED = {"sst2_50": "sst2"}  # what the files of scores are called, where they are not called as the set
BASELINES = ("Influence functions", "TracIn", "TRAK")
PAPER = {  # SST-2 and coin flip
    "Influence functions": ("0.16", "0.05"), "TracIn": ("0.21", "0.32"), "TRAK": ("0.11", "0.23"),
    "linear": ("0.33", "0.43"), RBF: ("0.37", "0.54"),
}  # fmt: skip
SHOWN = 3


def judged(name: str, folder: Path) -> dict[str, tuple[float, float]]:
    """LDS per query and of their mean of the scores of demonstrations, by all prompts."""
    runs, found = load(name), {}
    with np.load(folder / f"{SCORED.get(name, name)}_scores.npz") as made:
        for way in BASELINES:
            guess = runs.subsets @ made[way].astype(float)
            found[way] = (lds(guess, runs).mean, lds(guess.mean(1), averaged(runs)).mean)
    return found


def matches(name: str) -> tuple[list[list[str]], dict[str, float]]:
    """Queries of coin flip with the demonstrations that help and hurt most, and how often these have its answer."""
    from prompt_tasks import asked

    runs, (demos, queries) = load(name), asked(name, None)
    effects = whence.attribute(METHODS[RBF](runs), rule="inclusion").scores  # (demonstrations, queries), of the loss
    best, worst = effects.argmin(0), effects.argmax(0)
    answers, labels = np.array([demo.label for demo in demos]), np.array([query.label for query in queries])
    acts, those = (np.array([done(example.text) for example in examples]) for examples in (demos, queries))
    truth = np.where(np.isin(acts, (0, 3)), "yes", "no")
    share = {
        "helps": float((answers[best] == labels).mean()),
        "hurts": float((answers[worst] == labels).mean()),
        "acts": float((acts[best] == those).mean()),
        "wrong helps": float((answers != truth)[best].mean()),
        "wrong hurts": float((answers != truth)[worst].mean()),
    }
    rows = [
        [f"{example.text} *{example.label}*" for example in (queries[q], demos[best[q]], demos[worst[q]])]
        for q in range(SHOWN)
    ]
    return rows, share


def by_wrong() -> list[list[str]]:
    """Share of right answers and loss of the model that was taught, by how many of the four examples are wrong."""
    from prompt_tasks import TAUGHT, asked

    runs, (demos, _) = load(TAUGHT), asked(TAUGHT, None)
    truth = ["yes" if done(demo.text) in (0, 3) else "no" for demo in demos]
    wrong = runs.subsets @ np.array([demo.label != right for demo, right in zip(demos, truth, strict=True)], float)
    return [
        [f"{n:.0f}", int((wrong == n).sum()), f"{(part < np.log(2)).mean():.0%}", f"{part.mean():.2f}"]
        for n in np.unique(wrong)
        for part in [runs.values[wrong == n]]
    ]


def done(text: str) -> int:
    """Which of the two flip the coin, as a number."""
    first, second = ("does not" in act for act in text.split(". ")[1:3])
    return 2 * first + second


def main() -> None:
    given = arguments(__doc__, scores="folder of scores by prompt_scores.py, to be judged first")
    report = PAGES / "in_context.json"
    if given.scores:
        report.write_text(json.dumps({name: judged(name, given.scores) for name in SETS}, indent=1), encoding="utf-8")
    baselines = json.loads(report.read_text(encoding="utf-8"))
    found, split, ceilings, orders = {}, {}, {}, {}
    for name in SETS:
        runs = load(name)
        kinds = [some_targets(runs, 3) if given.quick else runs, averaged(runs)]
        split[name] = [compare(kind, METHODS, given.quick) for kind in kinds]
        ceilings[name] = [noise_ceiling(kind).mean for kind in kinds]
        over_orders, over_prompts = (float(each[0]) for each in spreads(kinds[1]))
        orders[name] = (over_orders / float(runs.values.mean()), over_orders, over_prompts)
        found[name] = {way: [f"{value:.2f}" for value in baselines[name][way]] for way in BASELINES}
        for row, way in enumerate(METHODS):
            found[name][way] = [plus_minus(each.lds[row]) for each in split[name]]
        found[name]["noise ceiling"] = [f"{value:.2f}" for value in ceilings[name]]
    gaps = {name: split[name][0].difference(RBF, TUNED_LINEAR) for name in SETS}
    said = "; ".join(f"{words} {{:+.3f}} ({{:+.3f}} to {{:+.3f}})".format(*gaps[name]) for name, words in SETS.items())
    ahead = sum(low > 0 for _, low, _ in gaps.values())
    rows, share = matches("coin_flip")
    _, follows = matches("coin_flip_taught")
    right = {name: (load(name).values < np.log(2)).mean() for name in SETS}  # the likelier of two words
    best = {name: max((baselines[name][way][0], way) for way in BASELINES) for name in SETS}
    top = "; ".join(f"{best[name][0]:.2f} on {words} ({best[name][1]})" for name, words in SETS.items())
    write(
        given,
        "in_context",
        "Attribution in context",
        f"On a small model the kernel is ahead of a tuned linear surrogate on {ahead} of {len(SETS)} tasks (LDS per "
        f"query, difference with its 95% interval over splits: {said}). SmolLM2-135M gives {right['sst2_50']:.0%} "
        f"right answers on SST-2, {right['coin_flip']:.0%} on coin flip, which it cannot do, and "
        f"{right['coin_flip_taught']:.0%} once it has been taught it and follows its examples, three in ten of which "
        f"are wrong. What prompts do to its losses before is structured all the same (noise ceiling "
        f"{ceilings['coin_flip'][0]:.2f}): the demonstration that helps most by the kernel has the query's answer in "
        f"{share['helps']:.0%} of the queries. Scores that run no prompt have at most {top}.",
        "200 prompts of 4 of 50 demonstrations, 60 of them in a second order; 450 queries of SST-2 and 869 of coin "
        "flip, as in the paper. Prompts: `python experiments/paper/prompt_sets.py`, scores of the gradients of the "
        "last four blocks: `python experiments/paper/prompt_scores.py`, NVIDIA H200. SOURCE and BIF were not run: they "
        "follow a training, or a posterior of 135 million weights.",
        table(
            ["method", "paper: SST-2", "paper: coin flip",
             *(f"{words}: {kind}" for words in SETS.values() for kind in ("per query", "mean loss"))],
            [[way, *PAPER.get(way, ("–", "–")), *(cell for name in SETS for cell in found[name][way])]
             for way in found["sst2_50"]],
        ),
        "The order of the four: for the mean loss, the standard deviation over orders is "
        + ", ".join(f"{orders[n][0]:.0%} of the level on {w} ({orders[n][1]:.2f}; over prompts {orders[n][2]:.2f})"
                    for n, w in SETS.items()) + ".",
        "## A model that follows its examples",
        "Taught on coin flips of other names, a quarter of its prompts answered the other way round and a fifth of all "
        "answers wrong, the model does the task and takes a vote of what it is shown. 15 of the 50 candidates have the "
        f"wrong answer: the demonstration that hurts a query most is one of these for {follows['wrong hurts']:.0%} of "
        f"the queries, the one that helps most for {follows['wrong helps']:.0%}.",
        table(["wrong examples in a prompt", "prompts", "right answers", "loss"], by_wrong()),
        "## Prompts that help and that hurt",
        "As in the paper's table of prompts, by the kernel surrogate. There, what helps looks like the query. So it "
        f"does here, with a model that cannot do the task: the demonstration that helps most has the query's answer "
        f"for {share['helps']:.0%} of the queries, the one that hurts most for {share['hurts']:.0%}. It is the answer "
        "that counts, and hardly what was done: among those with that answer, one in two does what the query does by "
        f"chance, and of those that help most it is {share['acts'] / share['helps']:.0%}.",
        table(["query", "helps most", "hurts most"], rows),
        figure=draw(split, baselines, ceilings),
    )  # fmt: skip


def draw(split, baselines, ceilings):
    """Draw the LDS of every method, per query and of the mean."""
    figure, axes = plt.subplots(1, len(SETS), figsize=(4.5 * len(SETS), 3.2), sharey=True)
    ways = [*BASELINES, *METHODS]
    for ax, (name, words) in zip(axes, SETS.items(), strict=True):
        for column, (color, kind) in enumerate(((BLUE, "per query"), (ORANGE, "of the mean loss"))):
            scores = split[name][column].lds
            means = [*(baselines[name][way][column] for way in BASELINES), *np.nanmean(scores, axis=1)]
            errors = [*(0.0 for _ in BASELINES), *np.nanstd(scores, axis=1, ddof=1)]
            ax.barh(np.arange(len(ways)) + 0.36 * column - 0.18, means, 0.34, xerr=errors, color=color, label=kind)
            ax.axvline(ceilings[name][column], color=color, lw=1, ls=":")
        ax.set_yticks(range(len(ways)), ways)
        ax.set(title=words[0].upper() + words[1:], xlabel="LDS; dotted: noise ceiling")
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize=7)
    return figure


if __name__ == "__main__":
    main()
