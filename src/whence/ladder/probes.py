"""What each method costs on this machine, in seconds, from timing a small part of it.

A few steps of training, the features of a few examples, the solution of a few subsets: each is timed on four times as
much until it takes a moment, and extrapolated to the whole. Unlike a count of passes, these prices know that small
models are trained side by side, and what is slow on this machine.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch

from whence.arrays import Floats
from whence.baselines.bif import Langevin
from whence.baselines.joint import CURVED, JointScores
from whence.errors import DataWarning, InputError
from whence.estimators.gradex import GradEx
from whence.estimators.merge import TaskVectors
from whence.estimators.merged import STATISTICS_ROWS
from whence.estimators.onestep import OneStep
from whence.estimators.retrain import Retrain
from whence.gradients.groups import task_gradients
from whence.gradients.linearize import Features, Linearization, linearize
from whence.gradients.penalty import mean_square
from whence.gradients.projections import Subspace, n_params, split
from whence.gradients.solve import solve
from whence.ladder.methods import METHODS, Setup, make_estimator
from whence.models.examples import Examples
from whence.models.losses import Loss
from whence.models.points import points_of
from whence.models.training import train
from whence.progress import track

Work = Callable[[], object]
Estimator = TypeVar("Estimator", OneStep, GradEx, JointScores, TaskVectors, Retrain)
MOMENT = 0.15  # seconds after which enough has been seen
LONG = 2.0  # seconds after which a single size must do, where two would tell what does not grow with it
GROWTH = 4  # how much more is done while it takes less
SUBSETS = 32  # that are solved, to see what one costs
STACK = 16  # models that are evaluated side by side, to see what one costs
ALONG_POINTS = 3  # that GradEx is linearised at along a run
MATCHING = 11  # solutions at each of these points that the penalty is found by
DIRECTIONS = 2**26  # numbers in the directions that are tried
BIF, BRIEF = Langevin(), Langevin(draws=4, thin=2, burn_in=0)  # as BIF draws, and what is tried of it
SUM = 1e-6  # seconds that a weighted sum of scores takes


@dataclass(frozen=True)
class Price:
    """What a method costs: once, and for each subset, in seconds; and bytes that it keeps.

    ``run`` is what of the first goes to a joint run that scores of other kinds can share.
    """

    method: str
    once: float
    each: float
    bytes: float = 0.0
    run: float = 0.0

    def total(self, n: int) -> float:
        """Return the price of n subsets."""
        return self.once + n * self.each


def probe(setup: Setup, n: int) -> dict[str, Price]:
    """Return the price of every method that works for the problem, for n subsets, from a few seconds of timing.

    Scores that do not work for the model, such as EK-FAC with an unknown layer, are left out with a note.
    """
    probes = _Probes(setup, n)
    methods = [name for name in METHODS if setup.recipe is not None or not METHODS[name].trains]
    found: dict[str, Price] = {}
    refused: dict[str, list[str]] = {}  # methods, by the reason
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about estimates from next to no data
        for name in track(methods, "timing a little of each method"):
            try:
                found[name] = PROBES[name](probes)
            except InputError as error:
                if METHODS[name].kind != "scores":
                    raise
                refused.setdefault(str(error), []).append(name)
    for why, names in refused.items():
        which = " and ".join(names)
        warnings.warn(f"Without a price for {which}, which this model does not allow. {why}", DataWarning, stacklevel=2)
    return found


def price_of_runs(setup: Setup, m: int) -> Price:
    """Return the price of true runs of which m are made: a few side by side take longer for each than many do."""
    return _Probes(setup, m).retrain()


def seconds(work: Work) -> float:
    """Seconds that some work takes; less the time in which a busy machine did something else."""
    began = time.perf_counter(), time.process_time()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter() - began[0]
    return min(time.perf_counter() - began[0], time.process_time() - began[1])


def extrapolated(prepare: Callable[[int], Work], most: int, start: int = 1) -> float:
    """Return the seconds of work of size ``most``, extrapolated linearly from smaller sizes; only the work is timed."""
    size = min(start, most)
    took = min(seconds(prepare(size)) for _ in range(2))  # the first call of anything is slower
    slope, tried = took / size, 1
    while size < most and (took < MOMENT or (tried < 2 and took < LONG)):
        before, size, tried = (size, took), min(most, GROWTH * size), tried + 1
        took = seconds(prepare(size))
        slope = min(max((took - before[1]) / (size - before[0]), 0.0), took / size)
    return took + slope * (most - size)


def _made(kind: type[Estimator], setup: Setup, method: str) -> Estimator:
    made = make_estimator(setup, method)
    assert isinstance(made, kind)
    return made


class _Probes:
    """The methods on one problem, each timed on a small part of it."""

    def __init__(self, setup: Setup, n: int) -> None:
        self.given, self.problem, self.n = setup, setup.problem, n
        self.tasks, self.targets = self.problem.tasks, self.problem.targets
        self.n_tasks, self.n_trained = len(self.tasks.names), self.problem.n_trained
        self.start = _made(OneStep, self._few(2), "one-step")

    def one_step(self) -> Price:
        """Gradients of the tasks and a search for the length of the step; then the queries."""

        def prepare(size: int) -> Work:
            few = _made(OneStep, self._few(size), "one-step")
            return lambda: (few.vectors, few.scale)

        return Price("one-step", extrapolated(prepare, len(self.tasks), self.n_tasks), self._merged(0), self._vectors)

    def gradex(self) -> Price:
        """Features of all examples; then a solution."""
        made: list[GradEx] = []

        def prepare(size: int) -> Work:
            made.append(_made(GradEx, self._few(size, "gradex"), "gradex"))
            return lambda: made[-1].members

        rows = self._used("gradex") + len(self.targets)
        features = extrapolated(prepare, rows, 8)
        members = made[-1].members
        once, each = self._solving(members[0].tasks, made[-1].loss, self._used("gradex"))
        _, width, rank = members[0].tasks.features.shape
        size = 4.0 * rows * width * rank
        return Price("gradex", features + len(members) * once, len(members) * each, len(members) * size)

    def gradex_along(self) -> Price:
        """A run, gradients of the tasks on its way, features at three of its points; then a solution at each."""
        options, recipe = self.given.options.get("gradex-along", {}), self.given.recipe
        assert recipe is not None
        rank = min(options.get("rank", 512), self.n_trained)
        points = len(options.get("at", range(ALONG_POINTS)))
        per_point = self.n_tasks * recipe.update.directions_per_point
        traced = 1 + max(1, min(recipe.steps, rank // per_point))
        gradients = extrapolated(self._task_gradients, len(self.tasks), self.n_tasks)
        like = _made(GradEx, self._few(2, "gradex-along", as_method="gradex"), "gradex")
        output_fn, params = like.points[0]
        tried = min(rank, max(8, DIRECTIONS // self.n_trained))
        directions = Subspace(split(torch.randn(tried, n_params(params)).to(next(iter(params.values()))), params))
        made: list[Linearization] = []

        def prepare(size: int) -> Work:
            few, precision = self._some(self.tasks, size), like.features.precision
            return lambda: made.append(linearize(output_fn, params, few, directions, of=like.of, precision=precision))

        used = self._used("gradex-along")
        rows, share = used + len(self.targets), rank / tried
        features = share * extrapolated(prepare, rows, 8)
        once, each = (share * cost for cost in self._solving(made[-1], like.loss, used))
        whole = self._runs(1, recipe.steps) + traced * gradients + points * (features + MATCHING * once)
        size = 4.0 * points * rows * made[-1].features.shape[1] * rank
        return Price("gradex-along", whole, points * each, size)

    def scores(self, method: str) -> Price:
        """A run on all tasks up to where scores are found, and these; then sums."""
        recipe, whole = self.given.recipe, len(self.tasks) + len(self.targets)
        assert recipe is not None
        made = _made(JointScores, self.given, method)
        if made.examples is not None:
            whole = int(np.minimum(self.tasks.sizes, made.examples).sum()) + len(self.targets)
        given = [dict(self.problem.start)] * len(made.at)
        sampler = {"sampler": replace(BRIEF, chains=made.options.get("sampler", BIF).chains)} if method == "bif" else {}

        def prepare(size: int, kind: str = made.method) -> Work:
            share = size / whole
            some = self._some(self.tasks, max(self.n_tasks, int(share * len(self.tasks))))
            problem = self.problem.with_examples(some, self._some(self.targets, max(2, int(share * len(self.targets)))))
            own = {**made.options, **sampler} if kind == made.method else {}
            few = JointScores(problem, recipe, kind, at=made.at, checkpoints=given, seed=made.seed, **own)
            return lambda: few.scores

        curved = min(whole, CURVED) if made.method == "influence" else whole
        found = extrapolated(prepare, curved, 2 * self.n_tasks)
        if curved < whole:  # further examples take a gradient, as for TracIn, and no curvature
            found += extrapolated(partial(prepare, kind="tracin"), whole - curved, 2 * self.n_tasks)
        if method == "bif":
            long = made.options.get("sampler", BIF)
            found *= (long.draws * long.thin * 1.25) / (BRIEF.draws * BRIEF.thin)
        steps = max(1, round(max(made.at) * recipe.steps))
        size = 8.0 * self.n_tasks * (len(self.targets) if self.problem.per_query else len(self.targets.names))
        run = made.runs * self._runs(1, steps)
        return Price(method, run + made.runs * found, SUM, size, run)

    def merge(self) -> Price:
        """A run for each task; then the queries, or where answers are merged, the queries once and sums."""
        estimator = _made(TaskVectors, self._few(2, "merge"), "merge")
        runs = self._runs(self.n_tasks, estimator.steps)
        if estimator.merge == "weights":
            statistics = STATISTICS_ROWS if len(estimator.problem.start) > len(estimator.problem.trained) else 0
            return Price("merge", runs, self._merged(statistics), self._vectors)
        width = self._width
        answers = torch.randn(self.n_tasks + 1, len(self.targets), width)
        coefs = torch.randn(STACK, self.n_tasks + 1)
        each = seconds(lambda: torch.tensordot(coefs, answers, dims=1)) / STACK
        return Price("merge", runs + (self.n_tasks + 1) * self._evaluation, each, self._vectors + 4.0 * answers.numel())

    def retrain(self) -> Price:
        """A run, and the queries."""
        steps = self._retrain.recipe.steps
        return Price("retrain", 0.0, self._runs(self.n, steps) / self.n + self._evaluation)

    @property
    def _vectors(self) -> float:
        return 4.0 * self.n_tasks * self.n_trained

    @cached_property
    def _width(self) -> int:
        problem = self.problem
        with torch.no_grad():
            return int(problem.output_fn(problem.start, problem.some_inputs(problem.tasks)).shape[1])

    @cached_property
    def _evaluation(self) -> float:
        """Seconds that one model takes for all queries, side by side with others where that is possible."""
        together: int = min(self.n, self.start.batch_size, STACK)
        state = self.start.stack.start(together)

        def prepare(size: int) -> Work:
            few = self._some(self.targets, size)
            return lambda: self.start.stack.evaluate(state, few, self.problem.metrics)

        return extrapolated(prepare, len(self.targets), 16) / together

    @cached_property
    def _retrain(self) -> Retrain:
        problem = self.problem.with_examples(self.tasks, self._some(self.targets, 2))
        return _made(Retrain, replace(self.given, problem=problem), "retrain")

    def _runs(self, m: int, steps: int) -> float:
        """Seconds of m runs of this many steps, as many side by side as memory allows."""
        together, stack = min(m, self._retrain.batch_size), 1
        while stack < together and seconds(self._training(stack, 1)) < MOMENT / GROWTH:
            stack = min(together, GROWTH * stack)
        return float(m / stack * extrapolated(lambda size: self._training(stack, size), steps))

    def _training(self, m: int, steps: int) -> Work:
        """Steps of m runs, each on every other task."""
        stack, recipe, seeds = self._retrain.stack, self._retrain.recipe, np.arange(m)
        subsets = ((np.arange(m)[:, None] + np.arange(self.n_tasks)) % 2 == 0).astype(float)
        subsets[:, 0] += subsets.sum(1) == 0
        state = self._retrain._start(seeds)
        return lambda: train(stack, recipe, state, subsets, seeds, steps)

    def _merged(self, more_rows: int) -> float:
        """Seconds for a subset: the sum of K vectors, which is as much work as K examples, and the queries."""
        return self._evaluation * (1 + (self.n_tasks + more_rows) / len(self.targets))

    def _task_gradients(self, size: int) -> Work:
        problem = self._few(size).problem
        (point,) = points_of(problem, [])
        return lambda: task_gradients(problem, point, side_by_side=False)

    def _solving(self, linear: Linearization, loss: Loss, n_examples: int) -> tuple[float, float]:
        """Seconds of the first solution and of each further one, for this many examples like these."""
        l2, shares = 1e-3 * mean_square(linear), np.random.default_rng(0).dirichlet((1, 1), SUBSETS)

        def of(shares: Floats) -> float:
            def prepare(size: int) -> Work:
                more = _repeated(linear, size)
                return lambda: solve(more, shares, loss, l2=l2)

            return extrapolated(prepare, n_examples, 32)

        one, all_ = of(shares[:1]), of(shares)
        return one, max(all_ - one, 0.0) / (SUBSETS - 1)

    def _used(self, method: str) -> int:
        """Number of the tasks' examples that features are made of."""
        most = self.given.options.get(method, {}).get("features", Features()).examples
        return len(self.tasks) if most is None else int(np.minimum(self.tasks.sizes, most).sum())

    def _few(self, size: int, method: str = "", *, as_method: str = "") -> Setup:
        """The setup with a few of its examples, and nothing kept on disk."""
        options = {name: value for name, value in self.given.options.get(method, {}).items() if name != "path"}
        if "features" in options:
            options["features"] = replace(options["features"], store=None, examples=None)
        if as_method:
            options = {name: value for name, value in options.items() if name in ("of", "features")}
        problem = self.problem.with_examples(self._some(self.tasks, size), self._some(self.targets, 2))
        own = {**self.given.options, **({as_method or method: options} if method else {})}
        return replace(self.given, problem=problem, options=own)

    @staticmethod
    def _some(examples: Examples, size: int) -> Examples:
        """About this many examples, from the first groups."""
        groups = min(len(examples.names), size)
        owner = examples.owner.cpu()
        rows = torch.cat([(owner == k).nonzero()[: -(-size // groups), 0] for k in range(groups)])
        rows = rows[:size] if groups == 1 else rows
        rows = rows.to(examples.labels.device)
        return Examples(*examples.rows(rows), examples.owner[rows], examples.names[:groups])


PROBES: dict[str, Callable[[_Probes], Price]] = {
    "one-step": _Probes.one_step,
    "gradex": _Probes.gradex,
    "gradex-along": _Probes.gradex_along,
    **{name: partial(_Probes.scores, method=name) for name, own in METHODS.items() if own.kind == "scores"},
    "merge": _Probes.merge,
    "retrain": _Probes.retrain,
}


def _repeated(linear: Linearization, size: int) -> Linearization:
    """The features of some examples, if need be over and over, as those of two tasks: as much work as any others."""
    device = linear.outputs.device
    rows = (torch.arange(size) % len(linear.examples)).to(device)
    owner = (torch.arange(size) >= size // 2).long().to(device)
    examples = Examples(*linear.examples.rows(rows), owner, ("first", "second"))
    return Linearization(linear.outputs[rows], linear.features[rows], examples, linear.route)
