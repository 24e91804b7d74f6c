r"""What subsets of the ten tasks of Meta-World's MT10 tell: the page of results, from the recorded runs.

    python experiments/rl/mt10_results.py > benchmarks/results/mt10.md        about ten minutes of one core
    python experiments/rl/mt10_results.py --quick                             two minutes

With the environment variable MT10_CACHE, a folder, fits are kept there, so that changes of words take seconds.

Reads what cloning.py and policy_estimates.py wrote, from ``--runs`` (benchmarks/results/mt10), and draws
docs/images/mt10.png. The words of the page are in mt10_results.md.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sac_companions
import sac_results
import sac_rungs
from sac_results import SacTruth
from scoring import (
    FEW_RUNS,
    ITSELF,
    MEMORY,
    PAPER,
    around,
    both,
    by_target,
    correlations,
    interval,
    of_played,
    with_runs,
)  # fmt: skip

import whence
from whence.surrogates.peers import peers

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = ROOT / "benchmarks" / "results" / "mt10"
TRAINED_ON, JUDGED_BY = 40, 10  # subsets, as in the paper
ANY = "with any three (mean of all 84)"
SAC, EARLY, MORE, LATER = "sac", "sac_71k", "sac_more", "sac_later"  # folders of calls of sac_subsets.py
RUNGS = {  # name of the file: what it is, and its price in true runs, by passes
    "gradex_joint": ("GradEx at the joint policy", 1.7),
    "gradex_along": ("GradEx along the joint run", 46),
    "vectors": ("task vectors", 11),
    "vectors_background": ("task vectors, all tasks in 3 of 4 batches", 11),
    "left_out": ("left-out runs, outcomes added up", 10),
}


class Truth:
    """Recorded episodes of all seeds.

    Attributes
    ----------
    subsets : ndarray (m, 10)
    names : list of str
    return_, success, loss : ndarray (seeds, m, 10)
        Means over episodes, and imitation losses; NaN where there are none.
    sevens : ndarray (m,)
        Which subsets are those of seven.
    seeds : int
        How many seeds, the first ones, have all of these.
    """

    def __init__(self, folder: Path) -> None:
        files = [dict(np.load(path)) for path in sorted(folder.glob("truth_seed*.npz"))]
        self.subsets, self.names = files[0]["subsets"].astype(float), files[0]["task_names"].tolist()
        self.sevens = self.subsets.sum(1) == 7
        self.return_ = self._whole(files, [one["returns"].mean(2) for one in files])
        self.success = self._whole(files, [one["success"].mean(2) for one in files])
        self.loss = self._whole(files, [one["losses"] for one in files])
        self.seeds = int((~np.isnan(self.loss[:, self.sevens]).any((1, 2))).sum())

    def _whole(self, files: list[dict[str, np.ndarray]], seeds: list[np.ndarray]) -> np.ndarray:
        """Seeds as one array, NaN for the subsets that one lacks."""
        found = np.full((len(seeds), *self.subsets.shape), np.nan)
        for own, file, values in zip(found, files, seeds, strict=True):
            for subset, value in zip(file["subsets"], values, strict=True):
                own[(self.subsets == subset).all(1)] = value
        return found

    def runs(self, values: np.ndarray, outcome: str) -> whence.Outcomes:
        """Table of the subsets of seven, seed after seed; the mean over tasks is the last target."""
        table = np.vstack([own[self.sevens] for own in values])
        names = [f"{outcome}[{name}]" for name in (*self.names, "mean")]
        return whence.Outcomes(
            np.tile(self.subsets[self.sevens], (len(values), 1)),
            np.hstack([table, table.mean(1, keepdims=True)]),
            task_names=self.names,
            target_names=names,
            maximize=[] if outcome == "loss" else names,
        )


# ---- how well surrogates predict --------------------------------------------------------------------------


@MEMORY.cache
def fidelity(truth: Truth, values: np.ndarray, splits: int) -> dict[str, dict[str, np.ndarray]]:
    """Scores of methods over splits: {method: {score: (splits, targets)}}.

    One run of each subset, of the seeds in turn. ``lds``: of the subsets not learned from; ``of ten``: of ten of them;
    ``inside``: of those that contain the target; ``… elsewhere``: of their runs with another seed.
    """
    methods: dict[str, Callable[[whence.Outcomes], Any]] = {"whence.fit": whence.fit}
    methods |= peers(["tuned kernel", "paper kernel", "tuned linear"])
    scores: dict[str, dict[str, list[np.ndarray]]] = {}
    for split in range(splits):
        runs, again = (truth.runs(values[[(split + more) % len(values)]], "outcome") for more in (0, 1))
        order = np.random.default_rng(split).permutation(runs.n_runs)
        others, measured = runs.subsets[order[TRAINED_ON:]], runs.values[order[TRAINED_ON:]]
        guesses = {name: method(runs.rows(order[:TRAINED_ON])).predict(others) for name, method in methods.items()}
        guesses[ITSELF] = np.hstack([others, np.zeros((len(others), 1))])
        elsewhere = again.values[order[TRAINED_ON:]]
        outside = np.hstack([others, np.ones((len(others), 1))]) == 0
        for name, guess in guesses.items():
            found = {
                "of ten": correlations(guess[:JUDGED_BY], measured[:JUDGED_BY]),
                "lds": correlations(guess, measured),
                "inside": correlations(guess, np.where(outside, np.nan, measured)),
                "lds elsewhere": correlations(guess, elsewhere),
                "inside elsewhere": correlations(guess, np.where(outside, np.nan, elsewhere)),
            }
            for key, found_here in found.items():
                scores.setdefault(name, {}).setdefault(key, []).append(found_here)
    return {name: {key: np.array(rows) for key, rows in found.items()} for name, found in scores.items()}


def ceiling(values: np.ndarray, seeds: int) -> np.ndarray:
    """What the best predictor can expect of another seed's runs: the root of the correlation of two seeds, per target.

    All runs of a seed share their random start and the starts of episodes, so that seeds have levels of their own;
    `whence.evaluation.noise_ceiling` would count these as noise between runs of a subset.
    """
    by_seed = values.reshape(seeds, -1, values.shape[1])
    pairs = [correlations(by_seed[a], by_seed[b]) for a in range(seeds) for b in range(a)]
    return np.sqrt(np.maximum(np.mean(pairs, axis=0), 0))


def agreement(truth: Truth) -> str:
    """Rank correlation of the returns of any two seeds, mean over tasks, in words."""
    returns = truth.return_[: truth.seeds, truth.sevens]
    return ", ".join(
        f"{np.nanmean(correlations(returns[a], returns[b])):.2f} for seeds {a + 1} and {b + 1}"
        for a, b in itertools.combinations(range(truth.seeds), 2)
    )


def of_fidelity(truth: Truth, values: np.ndarray, splits: int) -> Iterator[str]:
    """Lines of the page about one outcome."""
    found = fidelity(truth, values, splits)
    *each, of_all = ceiling(truth.runs(values, "outcome").values, len(values))
    judged = ["10 to judge", "80 to judge", "… with the target in them"]
    judged += [f"another seed: {words}" for words in judged[1:]]
    yield f"\n| | {' | '.join(judged)} | mean over tasks, 80 to judge | another seed | paper |"
    yield "|" + "---|" * 9
    for method, scores in found.items():
        per_task = {key: around(np.nanmean(rows[:, :-1], axis=1)) for key, rows in scores.items()}
        of_mean = ["–" if method == ITSELF else around(scores[key][:, -1]) for key in ("lds", "lds elsewhere")]
        cells = [*per_task.values(), *of_mean, PAPER.get(method, "")]
        yield f"| {method} | {' | '.join(cells)} |"
    limits = f"{np.nanmean(each):.2f} ({min(each):.2f} to {max(each):.2f})"
    yield f"| ceiling | | | | {limits} | | | {of_all:.2f} | |"
    shown = {method: np.nanmean(found[method]["lds"], axis=0)[:-1] for method in found if method != "tuned kernel"}
    yield from by_target("80 to judge", truth.names, shown | {"ceiling, another seed": np.array(each)})


# ---- which three to train with ----------------------------------------------------------------------------


def cotraining(truth: Truth, sac: SacTruth, cosines: np.ndarray, expert: np.ndarray) -> Iterator[str]:
    """Lines of the page: for each target, what it reaches with the three tasks that each way finds."""
    sevens = {"return": truth.return_[: truth.seeds], "success": truth.success[: truth.seeds]}
    fitted = {name: whence.fit(truth.runs(values, name)) for name, values in sevens.items()}
    fitted |= {f"{name} of SAC": whence.fit(sac.runs(name, sac.all)) for name in sevens}
    chosen = [ways(truth, target, fitted, cosines) for target in range(len(truth.names))]
    table = {way: np.array([own(truth, rows[way], target) for target, rows in enumerate(chosen)]) for way in chosen[0]}
    for name, values in sevens.items():
        others = [np.delete(values, seed, axis=0) for seed in range(truth.seeds)]
        models = [whence.fit(truth.runs(other, name)) for other in others]
        of_sevens, of_fours = [], []
        for target, rows in enumerate(chosen):
            guesses = [model.predict(truth.subsets[rows[ANY]])[:, target] for model in models]
            of_sevens.append(across(truth, rows[ANY], guesses, target))
            seen = [np.nanmean(other[:, rows[ANY], target], axis=0) for other in others]
            of_fours.append(across(truth, rows[ANY], seen, target))
        table[f"with the top three by {name} of other seeds' sevens"] = np.array(of_sevens)
        table[f"with the best three of another seed, by {name}"] = np.array(of_fours)
    yield from of_cotraining(truth, table, expert)
    named = [way for way in chosen[0] if way.startswith("with the top")]
    yield "\n| target | " + " | ".join(named) + " |\n|" + "---|" * (len(named) + 1)
    for target, rows in enumerate(chosen):
        found = [np.flatnonzero(truth.subsets[rows[way][0]]) for way in named]
        cells = [", ".join(truth.names[k] for k in tasks if k != target) for tasks in found]
        yield f"| {truth.names[target]} | {' | '.join(cells)} |"


def of_cotraining(truth: Truth, table: dict[str, np.ndarray], expert: np.ndarray) -> Iterator[str]:
    """Lines of the tables of return and success (targets, 2) by way to choose."""
    base = table[ANY]
    yield "\n| the target … | return, share of the expert's | more than any three | success | more than any three |"
    yield "|" + "---|" * 5
    for way, values in table.items():
        gains = [] if way == ANY else [(values[:, 0] - base[:, 0]) / expert, values[:, 1] - base[:, 1]]
        told = [interval(gain) for gain in gains] or ["", ""]
        yield f"| {way} | {(values[:, 0] / expert).mean():.2f} | {told[0]} | {values[:, 1].mean():.2f} | {told[1]} |"
    returns = {way: values[:, 0] for way, values in table.items()} | {"the expert": expert}
    yield from by_target("success of the target …", truth.names, {way: values[:, 1] for way, values in table.items()})
    yield from by_target("return of the target …", truth.names, returns, digits=0)


def ways(truth: Truth, target: int, fitted: dict[str, Any], cosines: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the subsets that each way to choose trains the target in."""
    inside = np.flatnonzero((truth.subsets.sum(1) == 4) & (truth.subsets[:, target] == 1))
    found = {ANY: inside}
    for name, model in fitted.items():
        best = np.argmax(model.predict(truth.subsets[inside])[:, target])
        found[f"with the top three by {name} of the sevens"] = inside[[best]]
    alone, alike = np.eye(len(truth.names))[target], cosines[target].copy()
    alike[target] = np.inf
    near = np.isin(np.arange(len(alike)), np.argsort(-alike)[:4])
    others = {"with the top three by gradients": near, "alone": alone, "with all nine": np.ones(len(alike))}
    return found | {way: np.flatnonzero((truth.subsets == subset).all(1)) for way, subset in others.items()}


def own(truth: Truth, rows: np.ndarray, target: int) -> np.ndarray:
    """Return and success of a target, mean over subsets and then over seeds that have any of them: (2,)."""
    by_seed = np.array([of[:, rows, target] for of in (truth.return_, truth.success)])
    known = ~np.isnan(by_seed[0]).all(1)
    return np.nanmean(by_seed[:, known], axis=2).mean(1)


def across(truth: Truth, rows: np.ndarray, scores: list[np.ndarray], target: int) -> np.ndarray:
    """The same of the subsets with the best scores for each seed that has them, scores that other seeds have given."""
    found = []
    for seed, score in enumerate(scores):
        best = rows[score == score.max()]  # successes of a few episodes are often the same
        found.append([outcome[seed, best, target].mean() for outcome in (truth.return_, truth.success)])
    return np.nanmean(found, axis=0)


# ---- estimates --------------------------------------------------------------------------------------------


def estimates(truth: Truth, folder: Path, splits: int) -> Iterator[str]:
    """Lines of the page: estimated imitation losses, alone and fused with a few true runs."""
    first = truth.runs(truth.loss[:1], "loss")
    files = {name: np.load(folder / f"rung_{name}.npz")["losses"] for name in RUNGS}
    rungs = {name: truth.runs(losses[None].astype(float), "loss") for name, losses in files.items()}
    yield "\n| | price in true runs | no true run | " + " | ".join(f"and {n}" for n in FEW_RUNS) + " |"
    yield "|" + "---|" * (3 + len(FEW_RUNS))
    for name in ("", *rungs):
        title, price = RUNGS.get(name, ("true runs alone", ""))
        alone = both(correlations(rungs[name].values, first.values)) if name else ""
        cells = [both(scores) for scores in with_runs(first, rungs.get(name), splits)]
        yield f"| {title} | {price} | {alone} | {' | '.join(cells)} |"
    limit = ceiling(truth.runs(truth.loss[: truth.seeds], "loss").values, truth.seeds)
    yield f"| ceiling, another seed | | {both(limit)} | | | |"


def played(truth: Truth, folder: Path) -> Iterator[str]:
    """Lines of the page: estimated policies in real episodes, beside policies that were trained."""
    files = {title: dict(np.load(folder / f"rung_{name}.npz")) for name, (title, _) in RUNGS.items()}
    found = {title: file for title, file in files.items() if "rolled" in file}
    rows = next(iter(found.values()))["rolled"]
    inside, trained = truth.subsets[rows] > 0, truth.return_[:, rows]
    reached = {title: (file["returns"].mean(2), file["success"].mean(2)) for title, file in found.items()}
    reached["training, another seed"] = trained[1], truth.success[1, rows]
    yield from of_played(reached, inside, trained[0])


def draw(truth: Truth, sac: SacTruth, path: Path) -> None:
    """What each task does to each target, and which pairs work together in the mean, by cloning and by SAC."""
    import matplotlib.pyplot as plt

    from whence import plots

    plt.rcParams.update({"font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(12.5, 10.8))
    learned = {"Cloning": truth.runs(truth.success[: truth.seeds], "success"), "SAC": sac.runs("success", sac.all)}
    for (name, whole), (left, right) in zip(learned.items(), axes, strict=True):
        each, mean = (whole.targets(names) for names in (whole.target_names[:-1], whole.target_names[-1:]))
        plots.heat_map(whence.attribute(whence.fit(each), "shapley"), ax=left)
        left.set_title(f"{name}: what each task does to the success of each target", loc="left", weight="bold")
        plots.interaction_matrix(whence.interactions(whence.fit(mean)), ax=right)
        right.set_title(f"{name}: pairs, in the mean success", loc="left", weight="bold")
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=90)


def of_sac(truth: Truth, folder: Path, splits: int) -> tuple[dict[str, Iterator[str]], dict[str, object]]:
    """Lines of the page about learning from rewards, and facts, by their name in mt10_results.md."""
    values = {
        "return": truth.return_[: truth.seeds, truth.sevens],
        "success": truth.success[: truth.seeds, truth.sevens],
    }
    sevens = truth.subsets[truth.sevens]
    cloned = {name: sac_results.table(sevens, own[0], truth.names, name) for name, own in values.items()}
    flat = {name: np.concatenate(own) for name, own in values.items()}
    seeds = np.repeat(np.arange(truth.seeds), len(sevens))
    cloning = SacTruth(np.tile(sevens, (truth.seeds, 1)), seeds, 0 * seeds, flat, truth.names, {})
    sac, early = SacTruth.read(folder / SAC, folder / MORE), SacTruth.read(folder / EARLY)
    rungs = sac_rungs.read(folder)
    reached = {"SAC": sac.of(sac.first), "SAC, 71,400 steps": early, "cloning": cloning}
    lines = {
        "sac_reached": sac_results.reached(reached),
        "sac_fidelity": itertools.chain.from_iterable(
            sac_results.of_fidelity(sac, name, f"{name.capitalize()} of SAC", splits) for name in flat
        ),
        "sac_companions": sac_companions.companions(folder / MORE),
        "sac_threes": sac_companions.threes(folder / MORE, folder / LATER),
        "sac_plain": sac_companions.plain(folder / LATER, folder / MORE),
        "sac_estimates": sac_rungs.alone(rungs, sac),
        "sac_fused": sac_rungs.fused(sac, rungs, cloned, max(2, splits // 6)),
        "sac_played": sac_rungs.played(rungs, sac),
    }
    facts = sac_results.speed(early, folder / "sb3_speed.json") | sac_results.levels(sac)
    linear = json.loads((folder / SAC / "first_order.json").read_text(encoding="utf-8"))
    return lines, facts | {"sac_error": linear["error over outputs"], "sac_of_change": linear["error over change"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "mt10.png")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", whence.DataWarning)
    truth, joint, splits = Truth(given.runs), dict(np.load(given.runs / "joint.npz")), 2 if given.quick else 24
    sac = SacTruth.read(given.runs / SAC)
    draw(truth, sac, given.picture)
    error, of_change = (np.mean(joint[f"error_of_{kind}"]) for kind in ("outputs", "change"))
    tables = {
        "returns": of_fidelity(truth, truth.return_[: truth.seeds], splits),
        "success": of_fidelity(truth, truth.success[: truth.seeds], splits),
        "cotraining": cotraining(truth, sac, joint["cosines"], joint["expert"]),
        "estimates": estimates(truth, given.runs, max(2, splits // 6)),
        "played": played(truth, given.runs),
    }
    of_rewards, facts_of_rewards = of_sac(truth, given.runs, splits)
    tables |= of_rewards
    facts = {
        "seeds": truth.seeds,
        "splits": splits,
        "few": max(2, splits // 6),
        "n": len(joint["subsets"]),
        "error": error,
        "of_change": of_change,
    }
    facts |= facts_of_rewards | {"agreement": agreement(truth)}
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    today = f"{datetime.date.today():%-d %B %Y}"
    print(page.format(date=today, **facts, **{name: "\n".join(lines) for name, lines in tables.items()}), end="")


if __name__ == "__main__":
    main()
