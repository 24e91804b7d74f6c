"""Scores of one joint run as an outcome function, so that any baseline is a rung to be fused with a few true runs.

A run on all tasks is made (or given), scores c_k are found at points along it, and a subset s is worth

    F(s) = F(1) + Σ_k (w_k(s) / w_k(1) − 1) c_k,

with w_k(s) the share of task k in training on s. Near all tasks this is the derivative that scores are; for a loss with
one curvature it is the whole way to any subset, since a task that leaves also leaves its share to the others. Where all
subsets have one size, and all tasks, it is a sum of one number per task.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.arrays import Floats
from whence.baselines.bif import bif_scores
from whence.baselines.influence import influence_scores
from whence.baselines.scores import Scores
from whence.baselines.solvers import EKFAC
from whence.baselines.source import source_scores
from whence.baselines.tracin import tracin_scores
from whence.baselines.trak import trak_scores
from whence.errors import DataWarning, InputError, did_you_mean
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import SubsetLike, as_subset, as_subsets
from whence.estimators.trajectory import passed
from whence.estimators.truth import Trust, aligned, trust
from whence.measuring.outcome_fn import OutcomeFn
from whence.models.points import Checkpoint, state_of
from whence.models.problem import Problem, State, as_problem
from whence.models.recipe import Recipe
from whence.models.sampling import task_shares
from whence.models.stack import Stack
from whence.models.targets import single
from whence.outcomes import Outcomes

QUARTERS = (0.25, 0.5, 0.75, 1.0)
LEARNED = 0.995  # of the loss at the start, above which a run has learned nothing
JUDGED = 1024  # examples of all tasks that tell whether it has
ROUNDING = 1e-9  # of the largest score, below which differences between tasks are nothing
CURVED = 1024  # examples of all tasks that the curvature of influence functions is taken from


@dataclass(frozen=True, eq=False)
class Point:
    """A place along a joint run: after how many steps, the weights there, and the mean loss on the tasks."""

    step: int
    state: State
    loss: float


def _averaged(score: Callable[..., Scores]) -> Callable[..., Scores]:
    """Scores of each point, averaged."""

    def found(problem: Problem, recipe: Recipe, points: Sequence[Point], **options: Any) -> Scores:
        every = [score(problem.at(point.state), weighting=recipe.weighting, **options) for point in points]
        return mean_scores(every)

    return found


def _influence(problem: Problem, **options: Any) -> Scores:
    """Influence of the tasks by all their examples, with the curvature of some."""
    damped = getattr(options["solver"], "relative_damping", 0.0) > 0
    usual = {"examples": _each(problem, CURVED), **({"damping": 0.0} if damped else {})}
    return influence_scores(problem, **{**usual, **options})


def _tracin(problem: Problem, recipe: Recipe, points: Sequence[Point], **options: Any) -> Scores:
    spans = _spans(points, recipe.steps)
    rates = [sum(recipe.rate(step) for step in span) for span in spans]
    states = [point.state for point in points]
    return tracin_scores(
        problem.at(states[-1]), checkpoints=states, learning_rates=rates, weighting=recipe.weighting, **options
    )


def _source(problem: Problem, recipe: Recipe, points: Sequence[Point], **options: Any) -> Scores:
    spans = _spans(points, recipe.steps)
    rates = [float(np.mean([recipe.rate(step) for step in span])) for span in spans]
    states = [point.state for point in points]
    return source_scores(
        problem.at(states[-1]), segments=[[state] for state in states], learning_rates=rates,
        steps=[len(span) for span in spans], weighting=recipe.weighting, **options,
    )  # fmt: skip


def _spans(points: Sequence[Point], steps: int) -> list[range]:
    """The steps of a run that each point stands for: those nearest to it."""
    middles = [(a.step + b.step + 1) // 2 for a, b in pairwise(points)]
    return [range(a, max(b, a + 1)) for a, b in zip([0, *middles], [*middles, steps], strict=True)]


@dataclass(frozen=True)
class Kind:
    """A baseline as a rung: how scores are found at points of a run, where these are, and its usual options."""

    find: Callable[..., Scores]
    at: tuple[float, ...]
    usual: Mapping[str, object]


KINDS = {
    "influence": Kind(_averaged(_influence), (0.5,), {"solver": EKFAC(relative_damping=0.3)}),
    "trak": Kind(_averaged(trak_scores), (0.5,), {"l2": 1.0}),
    "tracin": Kind(_tracin, QUARTERS, {}),
    "source": Kind(_source, (0.25, 0.75), {}),
    "bif": Kind(_averaged(bif_scores), (1.0,), {}),
}


class JointScores(OutcomeFn):
    """Outcome function that adds up scores of the tasks, found along one run on all of them.

    Parameters
    ----------
    problem : Problem
        Scores and outcomes are about its loss, even if it has other metrics.
    recipe : Recipe
        Recipe of the runs to be estimated.
    method : {"influence", "trak", "tracin", "source", "bif"}
        Which baseline; see `whence.baselines`.
    at : float or sequence of float, optional
        Where along the run, as shares of its steps. Influence functions, TRAK and BIF are averaged over these points;
        TracIn and SOURCE take each for the steps around it. By default halfway for influence functions and TRAK, which
        are better, and cost more, at every quarter of the run: ``at=QUARTERS``.
    runs : int
        Number of joint runs, of other seeds, that scores are averaged over.
    checkpoints : sequence of modules or state dicts, optional
        Points of a joint run that was made already, one for each of ``at``; then nothing is trained.
    examples : int, optional
        Number of examples of each task to use, drawn at random; by default all.
    seed : int
        Of the run, and of what is random in the scores.
    **options
        Of the baseline, such as ``damping=0.1`` or ``rank=2048``. By default influence functions are those of EK-FAC,
        damped by 0.3 of its mean eigenvalue, with the curvature of about a thousand examples; TRAK has an l2 of 1.
        On models with more than about ten thousand parameters TRAK gains from ``rank=2048``, which takes longer.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> inputs, labels = torch.randn(40, 3), torch.arange(40) % 2
    >>> inputs[:, 0] += 2.0 * labels
    >>> tasks = {"right": (inputs[:20], labels[:20]), "wrong": (inputs[:20], 1 - labels[:20])}
    >>> problem = Problem(torch.nn.Linear(3, 2), tasks, (inputs[20:], labels[20:]))
    >>> found = JointScores(problem, Recipe(steps=20, lr=0.01)).batch([[1, 0], [0, 1]])["loss"]
    >>> bool(found[0] < found[1])
    True
    """

    batch_size = 256
    task_names: tuple[str, ...]

    def __init__(
        self,
        problem: Problem,
        recipe: Recipe,
        method: str = "influence",
        *,
        at: float | Sequence[float] | None = None,
        runs: int = 1,
        checkpoints: Sequence[Checkpoint] = (),
        examples: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if method not in KINDS:
            raise InputError(f"There are no scores {method!r}. {did_you_mean(str(method), KINDS)}")
        if "loss" not in as_problem(problem).metrics:
            raise InputError(
                f"Scores are of the loss, which must be among the problem's metrics. Got {', '.join(problem.metrics)}."
            )
        for name, value in (("runs", runs), ("examples", examples)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"must be 1 or more. Got {value!r} instead.", parameter=name, of="JointScores")
        places = KINDS[method].at if at is None else (at,) if isinstance(at, (int, float)) else tuple(at)
        if not places or not all(isinstance(share, (int, float)) and 0 < share <= 1 for share in places):
            raise InputError(f"must be above 0 and at most 1. Got {at!r} instead.", parameter="at", of="JointScores")
        if checkpoints and len(checkpoints) != len(places):
            raise InputError(
                f"There must be a checkpoint for each share of the run, {len(places)} in all: give at=[…] too. "
                f"Got {len(checkpoints)}."
            )
        self.problem, self.recipe, self.method, self.at = problem.on_loss(), recipe, method, tuple(sorted(places))
        self.runs, self.checkpoints, self.examples, self.seed = runs, tuple(checkpoints), examples, seed
        self.options = {**KINDS[method].usual, **options}
        self.task_names: tuple[str, ...] = problem.task_names
        self._made: dict[int, list[Point] | InputError] = {}  # points of the run of each seed, or why it has none

    def by(self, method: str, **options: Any) -> JointScores:
        """Return other scores at the same points of the same joint runs, which are trained once for both.

        Parameters
        ----------
        method, options
            As for `JointScores`.
        """
        other = JointScores(
            self.problem, self.recipe, method, at=self.at, runs=self.runs, checkpoints=self.checkpoints,
            examples=self.examples, seed=self.seed, **options,
        )  # fmt: skip
        other._made = self._made
        return other

    @property
    def fingerprint(self) -> dict[str, str]:  # type: ignore[override]
        """What the outcomes depend on, apart from the method: the model, the tasks, the targets."""
        return problem_digests(self.problem)

    @property
    def provenance(self) -> dict[str, str]:  # type: ignore[override]
        """How the outcomes were made."""
        of = "a given run" if self.checkpoints else f"{self.runs} run{'s' * (self.runs > 1)} (seed {self.seed})"
        words = [f"after {', '.join(f'{share:g}' for share in self.at)} of {of} on all tasks"]
        words += [f"{name} {value}" for name, value in self.options.items()]
        words += [] if self.examples is None else [f"{self.examples} examples a task"]
        return {"outcomes": f"{self.method} scores", "scores": ", ".join(words), "recipe": str(self.recipe)}

    @property
    def weighting(self) -> str:
        """How tasks are weighted: as in the recipe."""
        return self.recipe.weighting

    @cached_property
    def scores(self) -> Scores:
        """The score of every task; computed on first use."""
        kind, problem = KINDS[self.method], self.problem
        if self.examples is not None:
            problem = problem.with_examples(problem.tasks.sample(self.examples, self.seed), problem.targets)
        found = []
        for number in range(self.runs):
            points = self._made.get(self.seed + number)
            if points is None:
                try:
                    points = self._points(self.seed + number)
                except InputError as error:  # told again for every subset, without another run
                    points = error
                self._made[self.seed + number] = points
            if isinstance(points, InputError):
                raise points
            found.append(kind.find(problem, self.recipe, points, seed=self.seed + number, **self.options))
        return mean_scores(found)

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q)."""
        rows, sizes = as_subsets(subsets, self.task_names), self.problem.tasks.sizes
        shares, whole = (task_shares(some, sizes, self.recipe.weighting) for some in (rows, np.ones_like(rows[:1])))
        values = self.scores.predict(shares / whole).reshape(len(rows), -1)
        if not self.problem.per_query:
            return dict(zip(self.scores.target_names, values.T, strict=True))
        names = list(dict.fromkeys(name.rpartition("[")[0] for name in self.scores.target_names))
        return dict(zip(names, np.split(values, np.cumsum(self.problem.targets.sizes)[:-1], axis=1), strict=True))

    def __call__(self, subset: SubsetLike, seed: int = 0) -> dict[str, float | Floats]:
        """Estimated outcomes of one subset: weights (K,), or the names of its tasks. There is no noise to seed."""
        return single(self.batch(as_subset(subset, self.task_names)))

    def check(self, truth: Outcomes) -> Trust:
        """What true runs say about the scores."""
        return trust(aligned(self.batch(truth.subsets), truth), truth)

    def _points(self, seed: int) -> list[Point]:
        """The wanted points of a joint run; where it has diverged or learned nothing there, its best one instead."""
        steps, fixed = self.recipe.steps, {**self.problem.output_fn.fixed, **self.problem.start}
        wanted, start = [_step(share, steps) for share in self.at], self._loss(self.problem.start)
        if self.checkpoints:
            states = [state_of(given, fixed, self.problem.trained) for given in self.checkpoints]
            given = [Point(step, state, self._loss(state)) for step, state in zip(wanted, states, strict=True)]
            if odd := [point.step for point in given if not np.isfinite(point.loss)]:
                raise InputError(f"The checkpoint after {odd[0]} steps has no finite loss on the tasks. Give another.")
            for point in (point for point in given if point.loss > start / LEARNED):
                warnings.warn(
                    f"The checkpoint after {point.step} steps is worse on the tasks than the model itself (loss "
                    f"{point.loss:.3g} and {start:.3g}): is it from a run of this model on these tasks?",
                    DataWarning,
                    stacklevel=2,
                )
            return given
        points = self._passed([*self.at, *(share for share in QUARTERS if share < max(self.at))], seed)
        sound = [point for point in points if point.loss < LEARNED * start]
        if not sound and max(self.at) < 1:
            points = self._passed([*self.at, *QUARTERS], seed)
            sound = [point for point in points if point.loss < LEARNED * start]
        kept = [point for point in sound if point.step in wanted]
        if len(kept) == len(set(wanted)):
            return kept
        bad = next(point for point in points if point.step in wanted and point not in kept)
        learned = "has learned nothing" if np.isfinite(bad.loss) and bad.loss < 2 * start else "has diverged"
        what = (
            f"The run on all tasks {learned} after {bad.step} of {steps} steps (loss {bad.loss:.3g} on the tasks, "
            f"{start:.3g} before it)"
        )
        if not sound:
            raise InputError(
                f"{what}, and at every other quarter: it has no scores to give. Change the learning rate, or take more "
                "steps."
            )
        kept = kept or [min(sound, key=lambda point: point.loss)]
        where = ", ".join(str(point.step) for point in kept)
        warnings.warn(f"{what}: scores are those after {where} steps instead.", DataWarning, stacklevel=2)
        return kept

    def _passed(self, at: Sequence[float], seed: int) -> list[Point]:
        """Points of a joint run after shares of its steps."""
        states = passed(self.problem, self.recipe, at, seed=seed)
        return [Point(step, state, self._loss(state)) for step, state in states.items()]

    def _loss(self, state: State) -> float:
        """Mean loss on some examples of the tasks."""
        stack, some = Stack(self.problem, batched=False), self.problem.tasks.sample(_each(self.problem, JUDGED))
        one = {name: state[name][None] for name in self.problem.start}
        return float(stack.evaluate(one, some, {"loss": self.problem.loss})["loss"].double().mean())


def _each(problem: Problem, number: int) -> int:
    """Examples of each task, for so many in all."""
    return -(-number // len(problem.task_names))


def _step(share: float, steps: int) -> int:
    return max(1, round(share * steps))


def mean_scores(found: Sequence[Scores]) -> Scores:
    """The mean of scores of the same tasks and targets, in units of their size and by their agreement with the others.

    The weights are the first principal component of the scores. So neither a point with large gradients nor one at
    which the run has not learned yet spoils the mean.
    """
    if len(found) == 1:
        return found[0]
    coefs = np.stack([one.coef_ for one in found])
    apart = coefs - coefs.mean(1, keepdims=True)
    sizes = np.sqrt((apart**2).mean((1, 2)))
    told = sizes > ROUNDING * np.abs(coefs).max()
    if not told.all():  # scores that are the same for all tasks
        return mean_scores([one for one, tells in zip(found, told, strict=True) if tells] or found[:1])
    alike = np.einsum("ikt,jkt->ij", apart, apart) / apart[0].size / np.outer(sizes, sizes)
    weights = np.abs(np.linalg.eigh(alike)[1][:, -1])
    weights *= np.exp(np.log(sizes).mean()) / weights.sum() / sizes
    mean = copy.copy(found[0])
    mean.coef_ = np.tensordot(weights, coefs, 1)
    level = np.mean([one.intercept_ + one.coef_.sum(0) for one in found], axis=0)
    mean.intercept_ = level - mean.coef_.sum(0)
    return mean
