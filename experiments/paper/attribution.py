"""The paper's table of attribution in its own setting: every baseline beside surrogates, ± over five independent runs.

    python experiments/paper/attribution.py                from recorded runs; minutes
    python experiments/paper/attribution.py --scores DIR   first judge the scores that attribution_runs.py left in DIR
    python experiments/paper/attribution.py --quick        small trainings of its own, in seconds

Modular arithmetic from scratch, 50 Bernoulli(0.9) subsets of 25 groups for each run, 40 to learn from, as in the paper.
Influence functions, TracIn, TRAK, SOURCE and BIF score one training on all groups and are judged by all 50 subsets;
surrogates learn from 40 true trainings and are judged by the other 10, mean over five splits. 12 subsets of a run have
a second seed, for the noise ceiling. attribution.json keeps the rank correlations of the baselines.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
from attribution_runs import BASELINES, EACH, FULL, QUICK, SUBSETS, problem_of, scores, truth
from common import BLUE, METHODS, ORANGE, PAGES, RBF, TUNED_LINEAR, TUNED_RBF, arguments, plt, plus_minus, table, write
from scipy.stats import t

import whence
from whence.datasets import load
from whence.datasets.leaderboard import averaged
from whence.evaluation import lds, noise_ceiling, repeated_splits
from whence.models.sampling import task_shares

LEARNED_FROM, CEILING = 40, "noise ceiling"
NAMES = {"xor": "XOR"}
PAPER = {  # addition and quadratic
    "Influence functions": ("0.03", "0.01"), "TracIn": ("0.17", "0.32"), "TRAK": ("0.14", "0.28"),
    "SOURCE": ("0.22", "0.28"), "BIF": ("0.18", "0.42"), "linear": ("0.18", "0.44"), RBF: ("0.30", "0.52"),
}  # fmt: skip
Found = dict[str, list[tuple[float, float]]]  # LDS per query and of the mean loss of each method, by run


def runs_of(table: whence.Outcomes, n: int) -> list[whence.Outcomes]:
    """The n independent runs at the end of a set, in each 50 subsets and then some of them again."""
    return [table.rows(np.arange(stop - EACH, stop)) for stop in table.n_runs - EACH * np.arange(n)[::-1]]


def judged(operation: str, folder: Path, table: whence.Outcomes, quick: bool) -> dict:
    """What the scores of the baselines are worth, judged by the true outcomes of their runs."""
    problem = problem_of(operation, QUICK if quick else FULL, "cpu")
    found: Found = {name: [] for name in BASELINES}
    with np.load(folder / f"{operation}_scores.npz") as made:
        about = json.loads(str(made["about"]))
        n = 1 + max(int(key.partition("|")[2]) for key in made if "|" in key)
        for number, run in enumerate(runs_of(table, n)):
            own = run.rows(np.arange(SUBSETS))
            shares, whole = (
                task_shares(some, problem.tasks.sizes, whence.Recipe(steps=1).weighting)
                for some in (own.subsets, np.ones_like(own.subsets[:1]))
            )
            for name in BASELINES:
                if f"{name}|{number}" in made:
                    guess = (shares / whole) @ made[f"{name}|{number}"].astype(float)
                    found[name].append((lds(guess, own).mean, lds(guess.mean(1), averaged(own)).mean))
    return {"lds": found, **about}


def surrogates(table: whence.Outcomes, n: int, quick: bool) -> Found:
    """The scores of the surrogates in each of n runs, and the noise ceilings."""
    found: Found = {name: [] for name in [*METHODS, CEILING]}
    for number, run in enumerate(runs_of(table, n)):
        both = [run, averaged(run)]
        found[CEILING].append(tuple(noise_ceiling(each).mean for each in both))
        once = [each.rows(np.arange(SUBSETS)) for each in both]
        splits = [
            repeated_splits(each, METHODS, n_splits=2 if quick else 5, train_size=LEARNED_FROM, seed=number)
            for each in once
        ]
        per_query, of_mean = (split.to_frame()["lds"] for split in splits)
        for name in METHODS:
            found[name].append((float(per_query[name]), float(of_mean[name])))
    return found


def small(folder: Path) -> None:
    """Two runs of a small model on addition, with the baselines that take no time."""
    args = Namespace(out=folder, device="cpu", first=0, runs=2, at_once=320)
    truth("addition", QUICK, args)
    scores("addition", QUICK, args, np.inf, [*BASELINES][:3])


def interval(gaps: np.ndarray) -> tuple[float, float, float]:
    """Mean over independent runs with its 95% interval."""
    half = t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    return gaps.mean(), gaps.mean() - half, gaps.mean() + half


def what_holds(found: dict[str, dict[str, np.ndarray]]) -> str:
    """Return whether the kernel gains on a tuned linear surrogate, and how baselines compare."""
    gaps = {operation: ways[RBF][:, 0] - ways[TUNED_LINEAR][:, 0] for operation, ways in found.items()}
    ahead = sum(interval(gap)[1] > 0 for gap in gaps.values())
    said = ", ".join(
        "{} {:+.3f} ({:+.3f} to {:+.3f})".format(named(name), *interval(gap)) for name, gap in gaps.items()
    )

    def level(operation: str, way: str) -> float:
        return float(found[operation][way][:, 0].mean())

    def each(way: str) -> str:
        return ", ".join(f"{level(name, way):.2f}" for name in found)

    best = [max((level(name, way), way) for way in found[name] if way in BASELINES) for name in found]
    baselines = ", ".join(f"{value:.2f} ({way})" for value, way in best)
    return (
        f"In the paper's own setting the kernel is ahead of a tuned linear surrogate on {ahead} of {len(found)} "
        f"operations (LDS per query, difference with its 95% interval over runs: {said}). On "
        f"{', '.join(map(named, found))} baselines have at most {baselines}, a linear surrogate {each('linear')}, a "
        f"tuned one {each(TUNED_LINEAR)}, the paper's kernel {each(RBF)} and a tuned one {each(TUNED_RBF)}; the "
        f"size of the subset alone has {each('size only')}, and the noise ceiling is {each(CEILING)}."
    )


def named(operation: str) -> str:
    """Return the operation as it is written."""
    return NAMES.get(operation, operation)


def how_many(operation: str, ways: dict[str, np.ndarray]) -> str:
    """Return the number of runs of an operation, and which methods have been given fewer."""
    most = max(map(len, ways.values()))
    fewer = ", ".join(f"{way} {len(values)}" for way, values in ways.items() if len(values) < most)
    return f"{named(operation)} {most}{f' ({fewer})' if fewer else ''}"


def draw(found: dict[str, dict[str, np.ndarray]]):
    """Draw the scores of every method, with their standard deviation over runs."""
    figure, axes = plt.subplots(1, len(found), figsize=(3.2 + 2.6 * len(found), 3.8), sharey=True, squeeze=False)
    for ax, (operation, ways) in zip(axes[0], found.items(), strict=True):
        for shift, column, color, words in ((-0.18, 0, BLUE, "per query"), (0.18, 1, ORANGE, "of the mean loss")):
            means, errors = (
                [each(values[:, column]) for values in ways.values()] for each in (np.mean, lambda v: v.std(ddof=1))
            )
            ax.barh(np.arange(len(ways)) + shift, means, 0.34, xerr=errors, color=color, label=words)
        ax.set_yticks(range(len(ways)), list(ways))
        ax.set(title=named(operation), xlabel="LDS, ± std over runs")
    axes[0, 0].invert_yaxis()
    axes[0, 0].legend(frameon=False, fontsize=7)
    return figure


def main() -> None:
    given = arguments(__doc__, scores="folder of scores by attribution_runs.py, to be judged first")
    report = given.out / "attribution.json"
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if given.quick else given.scores
        if given.quick:
            small(folder)

        def true(operation: str) -> whence.Outcomes:
            name = f"modular_{operation}_scratch"
            return whence.read_outcomes(folder / f"{name}_more.npz") if given.quick else load(name)

        if folder is not None:
            known = [name for name in FULL.operations if (folder / f"{name}_scores.npz").is_file()]
            found = {name: judged(name, folder, true(name), given.quick) for name in known}
            report.write_text(json.dumps(found, indent=1), encoding="utf-8")
        baselines = json.loads((report if report.is_file() else PAGES / report.name).read_text(encoding="utf-8"))
        tables = {name: true(name) for name in baselines}
    found = {}
    for operation, runs in tables.items():
        made = baselines[operation]["lds"]
        both = {**made, **surrogates(runs, max(map(len, made.values())), given.quick)}
        found[operation] = {way: np.array(values) for way, values in both.items() if values}
    methods = list(dict.fromkeys(way for ways in found.values() for way in ways))
    rows = [
        [way, *PAPER.get(way, ("–", "–")),
         *(plus_minus(ways[way][:, c]) if way in ways else "–" for c in (0, 1) for ways in found.values())]
        for way in methods
    ]  # fmt: skip
    about = next(iter(baselines.values()))
    seconds = {name: [s for part in baselines.values() for s in part["seconds"][name]] for name in BASELINES}
    slow = ", ".join(f"{name} {np.mean(each):.1f}" for name, each in seconds.items() if each)
    numbers = ", ".join(how_many(name, ways) for name, ways in found.items())
    write(
        given,
        "attribution",
        "Attribution with all baselines",
        what_holds(found),
        f"From scratch, {about['size']}; independent runs of {SUBSETS} Bernoulli(0.9) subsets each: {numbers}. "
        f"Trainings and scores: `python experiments/paper/attribution_runs.py --device cuda`, "
        f"{about['machine']}, {about['date']}. Baselines take one training, surrogates 40; all queries count. Seconds "
        f"for the scores of one run: {slow}. SOURCE (rank 8) and BIF (4 chains of 25 draws, which have not mixed) see "
        "40 examples of each group, the others all.",
        table(
            ["method", "paper: addition", "paper: quadratic",
             *(f"{named(name)}: {kind}" for kind in ("per query", "mean loss") for name in found)],
            rows,
        ),
        figure=draw(found),
    )  # fmt: skip


if __name__ == "__main__":
    main()
