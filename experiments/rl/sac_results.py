"""What the runs of sac_subsets.py tell: the lines of the page of mt10_results.py about learning from rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sac_companions import done
from scoring import ITSELF, MEMORY, PAPER, around, correlations, interval

import whence
from whence.surrogates.peers import peers

METHODS = ("tuned kernel", "paper kernel", "tuned linear")
JUDGED_BY = 10  # subsets, as in the paper
OUTCOMES = ("return", "success")


@dataclass(frozen=True)
class SacTruth:
    """Episodes of agents with seven tasks each: those of a first seed come first, then more seeds of some subsets.

    Attributes
    ----------
    subsets : ndarray (agents, 10)
    seeds, steps : ndarray (agents,)
    outcomes : dict of str to ndarray (agents, 10)
        Mean return and success of each agent in each task.
    names : list of str
    facts : dict
        What sac_subsets.py said of its first run.
    """

    subsets: np.ndarray
    seeds: np.ndarray
    steps: np.ndarray
    outcomes: dict[str, np.ndarray]
    names: list[str]
    facts: dict[str, object]

    @classmethod
    def read(cls, folder: Path, *more: Path) -> SacTruth:
        """What folders have of sac_truth.npz, of agents that made all their steps, and of sac_subsets.json."""
        files = [dict(np.load(one / "sac_truth.npz")) for one in (folder, *more)]
        kept = [of_sevens(file) for file in files]
        steps = [np.broadcast_to(file["steps"], file["seeds"].shape) for file in files]

        def whole(parts: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([part[rows] for part, rows in zip(parts, kept, strict=True)])

        outcomes = {
            "return": whole([file["returns"].mean(2) for file in files]).astype(float),
            "success": whole([file["success"].mean(2) for file in files]).astype(float),
        }
        facts = json.loads((folder / "sac_subsets.json").read_text(encoding="utf-8"))
        subsets, seeds = (whole([file[key] for file in files]) for key in ("subsets", "seeds"))
        return cls(subsets.astype(float), seeds, whole(steps), outcomes, files[0]["task_names"].tolist(), facts)

    @property
    def all(self) -> np.ndarray:
        """Numbers of all agents."""
        return np.arange(len(self.seeds))

    @property
    def first(self) -> np.ndarray:
        """Numbers of the agents of the first seed."""
        return np.flatnonzero(self.seeds == 0)

    def of(self, rows: np.ndarray) -> SacTruth:
        """What is known of some agents."""
        outcomes = {name: values[rows] for name, values in self.outcomes.items()}
        return replace(
            self, subsets=self.subsets[rows], seeds=self.seeds[rows], steps=self.steps[rows], outcomes=outcomes
        )

    def runs(self, outcome: str, rows: np.ndarray) -> whence.Outcomes:
        """Table of some agents; the mean over tasks is the last target."""
        values = self.outcomes[outcome][rows]
        return table(self.subsets[rows], values, self.names, outcome)


def of_sevens(file: dict[str, np.ndarray]) -> np.ndarray:
    """Numbers of the agents of a file that learned seven tasks, with demonstrations and to the end."""
    shown = file.get("shown", np.ones(len(file["seeds"]), bool))
    return np.flatnonzero((file["subsets"].sum(1) == 7) & shown & done(file))


def table(subsets: np.ndarray, values: np.ndarray, names: list[str], outcome: str) -> whence.Outcomes:
    """Outcomes of all tasks, and their mean as the last target."""
    targets = [f"{outcome}[{name}]" for name in (*names, "mean")]
    whole = np.hstack([values, values.mean(1, keepdims=True)])
    return whence.Outcomes(subsets, whole, task_names=names, target_names=targets, maximize=targets)


# ---- how well surrogates predict --------------------------------------------------------------------------


@MEMORY.cache
def fidelity(truth: SacTruth, outcome: str, splits: int) -> dict[str, dict[str, np.ndarray]]:
    """Scores of methods over splits of the subsets, the same splits for all: {method: {score: (splits, targets)}}.

    One run of each subset, of the first seed: ten are judged, the others learned from. ``inside``: judged by those that
    contain the target. ``gain``: what the best predicted of these has beyond their mean.
    """
    methods = {"whence.fit": whence.fit} | peers(METHODS)
    scores: dict[str, dict[str, list[np.ndarray]]] = {}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(truth.first)
        held = order[:JUDGED_BY]
        judge, train = truth.runs(outcome, held), truth.runs(outcome, order[JUDGED_BY:])
        guesses = {name: method(train).predict(judge.subsets) for name, method in methods.items()}
        guesses[ITSELF] = np.hstack([judge.subsets, np.zeros((len(held), 1))])
        inside = np.where(np.hstack([judge.subsets, np.ones((len(held), 1))]) > 0, judge.values, np.nan)
        for name, guess in guesses.items():
            best = np.where(np.isnan(inside), -np.inf, guess).argmax(0)
            reached = inside[best, np.arange(inside.shape[1])] - np.nanmean(inside, axis=0)
            found = {"lds": correlations(guess, judge.values), "inside": correlations(guess, inside), "gain": reached}
            for key, value in found.items():
                scores.setdefault(name, {}).setdefault(key, []).append(value)
    return {name: {key: np.array(rows) for key, rows in found.items()} for name, found in scores.items()}


def of_fidelity(truth: SacTruth, outcome: str, title: str, splits: int) -> Iterator[str]:
    """Lines of the page about one outcome, under a title."""
    found = fidelity(truth, outcome, splits)
    unit = " (of the mean return)" if outcome == "return" else ""
    scale = truth.outcomes[outcome][truth.subsets > 0].mean() if outcome == "return" else 1.0
    judged = f"10 to judge | … with the target in them | best companions gain{unit}"
    yield f"\n| {title} | {judged} | mean over tasks | paper |"
    yield "|" + "---|" * 6
    for method, scores in found.items():
        parts = [around(np.nanmean(scores[key][:, :-1], axis=1)) for key in ("lds", "inside")]
        parts.append("–" if method == ITSELF else interval(scores["gain"][:, :-1].mean(0) / scale))
        parts.append("–" if method == ITSELF else around(scores["lds"][:, -1]))
        yield f"| {method} | {' | '.join(parts)} | {PAPER.get(method, '')} |"
    later = np.flatnonzero(truth.seeds > 0)
    for title, rows in (("ceiling, three seeds", truth.all), ("ceiling, the two of the third call", later)):
        *each, of_mean = whence.evaluation.noise_ceiling(truth.runs(outcome, rows)).per_target
        shown = f"{np.nanmean(each):.2f} ({np.nanmin(each):.2f} to {np.nanmax(each):.2f})"
        yield f"| {title} | {shown} | | | {of_mean:.2f} | |"


# ---- what was reached -------------------------------------------------------------------------------------


def reached(truths: dict[str, SacTruth]) -> Iterator[str]:
    """Lines of the page: return and success by task, where it is in the subset and where not."""
    names = next(iter(truths.values())).names
    yield "\n| | " + " | ".join(names) + " | mean |\n|" + "---|" * (len(names) + 2)
    for title, truth in truths.items():
        for words, inside in (("in the subset", truth.subsets > 0), ("not in it", truth.subsets == 0)):
            for outcome, digits in (("success", 2), ("return", 0)):
                values = np.nanmean(np.where(inside, truth.outcomes[outcome], np.nan), axis=0)
                cells = " | ".join(f"{value:.{digits}f}" for value in (*values, values.mean()))
                yield f"| {title}: {outcome}, {words} | {cells} |"


def speed(truth: SacTruth, peer: Path) -> dict[str, object]:
    """Facts of the page: rates of all agents together, and of one of Stable-Baselines3 in the same call."""
    theirs, ours = json.loads(peer.read_text(encoding="utf-8")), truth.facts
    steps = [facts["environment steps a second"] for facts in (ours, theirs)]
    updates = ours["updates of single agents a second"], theirs["updates a second"]
    return {
        "steps_a_second": f"{steps[0]:,}", "updates_a_second": f"{updates[0]:,.0f}", "their_steps": steps[1],
        "their_updates": f"{updates[1]:.0f}", "steps_ratio": f"{steps[0] / steps[1]:.0f}",
        "updates_ratio": f"{updates[0] / updates[1]:.0f}",
    }  # fmt: skip


def levels(truth: SacTruth) -> dict[str, object]:
    """Facts of the page: what the first seed of the repeated subsets reaches in their tasks, beside the others."""
    found: dict[str, object] = {}
    subsets = np.unique(truth.subsets[truth.seeds > 0], axis=0)
    for outcome, digits in (("return", 0), ("success", 2)):
        first, later = [], []
        for subset in subsets:
            same = (truth.subsets == subset).all(1)
            for values, those in ((first, same & (truth.seeds == 0)), (later, same & (truth.seeds > 0))):
                values.append(truth.outcomes[outcome][those][:, subset > 0].mean())
        gap = np.array(first) - np.array(later)
        found |= {
            f"first_{outcome}": f"{np.mean(first):.{digits}f}",
            f"later_{outcome}": f"{np.mean(later):.{digits}f}",
        }
        found[f"gap_{outcome}"] = interval(gap, digits)
    return found
