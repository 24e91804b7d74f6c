"""Which sources to fine-tune on, from a budget of runs: estimates and true runs, fused, and what follows from them.

Part of the budget goes to estimates of many subsets (spending.py says which), the rest to true runs. All results are
saved in a folder at once; after any interruption, the same call continues.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.answers.attribution import Attribution, attribute
from whence.answers.interactions import interactions
from whence.answers.optimism import expected_of_chosen
from whence.answers.prediction import predictions
from whence.answers.selection import Selection, select
from whence.arrays import Floats
from whence.baselines.joint import JointScores
from whence.baselines.run import JointRun
from whence.designs import Bernoulli
from whence.errors import DataWarning, InputError, counted
from whence.estimators.gradex import GradEx
from whence.estimators.merge import TaskVectors
from whence.estimators.retrain import Retrain
from whence.gradients.linearize import Features
from whence.hf.adapters import Prepared
from whence.hf.folders import refuse_other_runs, with_earlier
from whence.hf.spending import (
    EARLY,
    EXAMPLES,
    GRADEX,
    HALFWAY,
    MANY,
    MERGED,
    POINTS,
    RANK,
    SCORES,
    Plan,
    n_estimated,
    plan_of,
)
from whence.measuring import measure
from whence.models.problem import Problem
from whence.models.recipe import Recipe
from whence.models.stack import Stack
from whence.models.targets import outcome_names
from whence.outcomes import Outcomes
from whence.surrogates.fit import fit
from whence.surrogates.model import Model

if TYPE_CHECKING:
    import pandas as pd

MEAN = "mean/loss"


@dataclass(frozen=True, eq=False)
class Finetuned:
    """Which sources to use, and the evidence for it.

    Attributes
    ----------
    plan : Plan
    model : Model
        The surrogate of the loss of each target, fitted to true runs and estimates; of several targets, of their mean
        as well.
    goal : str
        The outcome that sources are chosen by.
    attribution : Attribution
        What each source does to each target.
    pairs : Attribution or None
        What pairs of sources do beyond the sum of each; None for weights.
    chosen : Selection
        The sources to use.
    ways : dict of str to ndarray (K,)
        The chosen sources, and what they are compared with: all sources, the best run, the best single source. Those
        that are the same sources are one, such as "chosen, best run".
    runs : Outcomes
        The true runs, with all their outcomes.
    before : float
        The goal before any training.
    """

    plan: Plan
    model: Model
    goal: str
    attribution: Attribution
    pairs: Attribution | None
    chosen: Selection
    ways: dict[str, Floats]
    runs: Outcomes
    before: float

    def __repr__(self) -> str:
        at = self.chosen.target_names.index(self.goal)
        expected, low, high = (float(part[at]) for part in (self.chosen.expected, self.chosen.low, self.chosen.high))
        asked = f"expected {self.goal} {expected:.4g} (90% interval {low:.4g} to {high:.4g})"
        return f"Sources: {self.chosen.in_words}; {asked}; from {counted(self.runs.n_runs, 'true run')}"

    def compared(self) -> pd.DataFrame:
        """Return one row per way to train: what to expect of the goal, its 90% interval, and what was measured.

        Of those that were picked as the best of many, what is expected is corrected for that.
        """
        import pandas as pd

        at = self.model.target_names.index(self.goal)
        names = list(self.ways)
        asked = predictions(self.model, np.array([self.ways[name] for name in names]))
        low, high = asked.interval()
        rows = []
        for i, name in enumerate(names):
            expected = (asked.predicted[i], low[i], high[i])
            if not {*name.split(AND)}.isdisjoint(PICKED):
                expected = expected_of_chosen(self.model, self.ways[name])
            value, lower, upper = (float(part[at]) for part in expected)
            tasks = self.model.outcomes.describe(self.ways[name])
            rows.append(
                {"way": name, "sources": tasks, "expected": value, "low": lower, "high": upper,
                 "measured": float(asked.measured[i, at])}
            )  # fmt: skip
        return pd.DataFrame(rows)


CHOSEN, EVERYTHING, BEST_RUN, BEST_SINGLE = "chosen", "all sources", "best run", "best single source"
PICKED, AND = (CHOSEN, BEST_RUN, BEST_SINGLE), ", "


def finetune(
    prepared: Prepared,
    recipe: Recipe,
    *,
    budget: float = 20,
    path: str | os.PathLike[str] | None = None,
    tokens: float | None = None,
    weights: bool = False,
    accuracy: bool = True,
    seed: int = 0,
    **how: Any,
) -> Finetuned:
    """Return the sources to fine-tune on, and the evidence for it.

    Parameters
    ----------
    prepared : Prepared
        From `prepare`: the model, the sources and the targets.
    recipe : Recipe
        How runs are trained.
    budget : float
        Budget, in true runs.
    path : path, optional
        Folder for runs and estimates; created, or resumed if it exists.
    tokens : float, optional
        Largest number of tokens of the chosen sources.
    weights : bool
        Whether sources are mixed with weights, instead of being in or out.
    accuracy : bool
        Whether to measure the accuracy beside the loss.
    seed : int
    **how
        As for `whence.measure`: jobs, engine, threads, timeout, address, gpus_per_task, progress.
    """
    check_limit(prepared.tokens, tokens, weights=weights)
    problem, on_loss = prepared.problem(accuracy=accuracy), prepared.problem()
    plan = plan_of(on_loss, recipe, budget, weights=weights)
    folder = None if path is None else Path(path)

    def kept(name: str) -> Path | None:
        return None if folder is None else folder / name

    subsets = _subsets(len(problem.task_names), plan.n_true, weights=weights, seed=seed)
    estimated = {
        name: _subsets(len(problem.task_names), n, weights=weights, seed=seed + 1)
        for name, n in n_estimated(len(problem.task_names), weights=weights).items()
    }
    if folder is not None:
        refuse_other_runs(folder / "true_runs", Retrain(problem, recipe, batched=False), subsets, seed)
    joint = JointRun(on_loss, recipe, kept("joint_run"))

    def gradex() -> GradEx:
        states = [point.state for point in joint.points(POINTS, seed)]
        return GradEx(
            on_loss, RANK, weighting=recipe.weighting, checkpoints=states, features=Features(examples=MANY), seed=seed
        )

    def joint_scores() -> JointScores:
        size = min(RANK, problem.n_trained)
        made = JointScores(on_loss, recipe, "trak", at=HALFWAY, run=joint, examples=EXAMPLES, rank=size, seed=seed)
        place = kept(_folder(SCORES))
        if place is None or not place.exists():
            _ = made.scores  # a run on all sources that learns nothing ends it here, before anything else is trained
        return made

    makers: dict[str, Callable[[], GradEx | JointScores | TaskVectors]] = {
        GRADEX: gradex,
        SCORES: joint_scores,
        MERGED: lambda: TaskVectors(on_loss, recipe, early=EARLY, path=kept("vectors"), seed=seed),
    }
    estimators = {name: makers[name]() for name in plan.prices}
    estimates = {
        name: _decided(measure(estimator, estimated[name], tasks=problem.task_names, path=kept(_folder(name)),
                               engine="inline", seed=seed), problem)
        for name, estimator in estimators.items()
    }  # fmt: skip
    runs = _true_runs(problem, recipe, subsets, path=kept("true_runs"), seed=seed, **how)
    truth = _decided(runs, problem)
    model = fit(truth, estimates=estimates or None, seed=seed)
    goal = truth.target_names[0]
    costs = None if tokens is None else prepared.tokens
    chosen = _chosen(model, goal, costs, tokens, seed)
    before, expected = _before(on_loss), float(chosen.expected[truth.target_names.index(goal)])
    if expected > before:
        warnings.warn(
            DataWarning(
                f"What the chosen sources are expected to give ({goal} {expected:.4g}) is no better than the model "
                f"before any training ({before:.4g}). Lower the learning rate, or look for other sources."
            ),
            stacklevel=2,
        )
    return Finetuned(
        plan=plan,
        model=model,
        goal=goal,
        attribution=attribute(model, seed=seed),
        pairs=None if weights or len(problem.task_names) < 2 else interactions(model, seed=seed),
        chosen=chosen,
        ways=_ways(model, chosen, goal),
        runs=runs,
        before=before,
    )


def _before(problem: Problem) -> float:
    """The loss of the model as it is, as a mean over targets."""
    stack = Stack(problem, batched=False)
    return float(np.mean([np.mean(values) for values in stack.outcomes(stack.start(1)).values()]))


def _chosen(model: Model, goal: str, costs: Mapping[str, float] | None, tokens: float | None, seed: int) -> Selection:
    """The best subset by its prediction, or the best run where more is to be expected of that."""
    chosen, runs = select(model, target=goal, costs=costs, budget=tokens, seed=seed), model.outcomes
    if not runs.is_binary:
        return chosen
    at = model.target_names.index(goal)
    sizes = np.array([(costs or {}).get(name, 0.0) for name in runs.task_names])
    allowed = np.flatnonzero(runs.subsets @ sizes <= (np.inf if tokens is None else tokens))
    if not len(allowed):
        return chosen
    best = runs.subsets[allowed[np.nanargmin(runs.values[allowed, at])]]
    names = np.array(runs.task_names)
    run = select(model, target=goal, include=names[best > 0], exclude=names[best == 0], seed=seed)
    if not run.expected[at] < chosen.expected[at]:
        return chosen
    return replace(run, how="the best run, which promises more than the best prediction")


def check_limit(sizes: Mapping[str, int], tokens: float | None, *, weights: bool) -> None:
    """Refuse, before anything is trained, a limit of tokens that is below every source."""
    if tokens is None:
        return
    if weights:
        raise InputError("A limit of tokens is for sources that are in or out: give {tokens} or {weights}, not both.",
                         tokens=tokens, weights=True)  # fmt: skip
    least = min(sizes, key=lambda name: sizes[name])
    if sizes[least] > tokens:
        raise InputError(
            f"must be at least {sizes[least]:,}, the tokens of the smallest source ({least}). Got {tokens:,.0f} "
            "instead.",
            parameter="tokens",
            of="finetune",
        )


def _folder(name: str) -> str:
    return name.replace(" ", "_")


def verify(
    found: Finetuned,
    prepared: Prepared,
    recipe: Recipe,
    *,
    seeds: int = 3,
    path: str | os.PathLike[str] | None = None,
    accuracy: bool = True,
    seed: int = 0,
    **how: Any,
) -> pd.DataFrame:
    """Train on the chosen subset and on its rivals; return expected and measured outcomes.

    Parameters
    ----------
    found : Finetuned
    prepared, recipe, accuracy, how
        As for `finetune`.
    seeds : int
        Runs of each.
    path : path, optional
        Folder for the runs; created, or resumed if it exists.
    seed : int
        The seed of `finetune`; the runs here use other seeds.
    """
    problem = prepared.problem(accuracy=accuracy)
    ways = np.array(list(found.ways.values()))
    every, most = with_earlier(ways, seeds, path, problem.task_names)
    runs = _true_runs(problem, recipe, every, path=path, seed=seed + 1, seeds=most, **how)
    rows = [int(np.flatnonzero((every == way).all(1))[0]) for way in ways]

    def measured(outcomes: Outcomes, name: str) -> Floats:
        """Values (seeds, ways) of an outcome."""
        return outcomes.targets([name]).values[:, 0].reshape(most, -1)[:seeds, rows]

    values = measured(_decided(runs, problem), found.goal)
    frame = found.compared().drop(columns="measured")
    frame["true"], frame["std"] = values.mean(0), values.std(0, ddof=1) if seeds > 1 else np.nan
    for name in [name for name in runs.target_names if name.endswith("accuracy")]:
        frame[name] = measured(runs, name).mean(0)
    return frame


def _true_runs(problem: Problem, recipe: Recipe, subsets: Floats, **how: Any) -> Outcomes:
    """Fine-tuning runs of subsets: by the given workers, or in this process, which has the model already."""
    alone = how.get("jobs", 1) == 1 and "engine" not in how
    retrain = Retrain(problem, recipe, batched="auto" if alone else False)
    where = {"progress": True, **({"engine": "inline"} if alone else {}), **how}
    return measure(retrain, subsets, tasks=problem.task_names, **where)


def _ways(model: Model, chosen: Selection, goal: str) -> dict[str, Floats]:
    """The chosen sources and their rivals; equal subsets are merged into one with all their names."""
    runs, at = model.outcomes, model.target_names.index(goal)
    n_tasks = runs.n_tasks
    everything = np.full(n_tasks, 1.0 if runs.is_binary else 1 / n_tasks)
    singles = np.eye(n_tasks)
    best = singles[int(model.predict_quietly(singles)[:, at].argmin())]
    ways = {
        CHOSEN: chosen.subset,
        EVERYTHING: everything,
        BEST_RUN: runs.subsets[int(np.nanargmin(runs.values[:, at]))],
        BEST_SINGLE: best,
    }
    names: dict[bytes, list[str]] = {}
    for name, subset in ways.items():
        names.setdefault((subset + 0.0).tobytes(), []).append(name)
    return {AND.join(same): ways[same[0]] for same in names.values()}


def _subsets(n_tasks: int, n: int, *, weights: bool, seed: int) -> Floats:
    """Subsets to run: all sources, and others at random."""
    if weights:
        drawn = np.random.default_rng([seed, 1]).dirichlet(np.ones(n_tasks), n - 1)
        return np.vstack([np.full((1, n_tasks), 1 / n_tasks), drawn])
    everything = np.ones((1, n_tasks))
    drawn = np.asarray(Bernoulli(0.5).draw(n_tasks, min(n, 2**n_tasks - 1), seed=seed), np.float64)
    drawn = drawn[(drawn.sum(1) > 0) & (drawn.sum(1) < n_tasks)]
    return np.vstack([everything, drawn])[:n]


def _decided(runs: Outcomes, problem: Problem) -> Outcomes:
    """The loss of each target in every run, and of several their mean, which decides."""
    names = outcome_names("loss", problem.targets.names)
    values = []
    for name in names:
        own = [t for t, each in enumerate(runs.target_names) if each == name or each.startswith(f"{name}[")]
        values.append(runs.values[:, own].mean(1))
    columns = np.column_stack(values)
    if len(names) > 1:
        names, columns = [MEAN, *names], np.column_stack([columns.mean(1), columns])
    return Outcomes(runs.subsets, columns, runs.task_names, names, provenance=runs.provenance)
