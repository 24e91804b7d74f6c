"""GradEx: the outcome of any subset from gradients, without training on it (the paper's Algorithm 2).

The model is linearised once. Training on a subset then is a small convex problem in the coordinates of a projection,
and thousands of them are solved together. What comes out is judged on the targets with the same linear model. `GradEx`
is an outcome function: `whence.measure` fills a table with it and `whence.fit` learns from that table.

It is exact where the model is linear in its parameters. Elsewhere it is as good as the linear model, which depends on
two choices. The paper linearises at W₀ along random directions. `GradEx.along` makes one true run on all tasks and
linearises at points on its way, along directions that the tasks pulled in: where training really moves, that is much
nearer to the truth.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from whence.errors import DataWarning, InputError, did_you_mean
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import Floats, as_subset, as_subsets
from whence.estimators.trajectory import Trajectory, trace
from whence.estimators.truth import agreement, aligned
from whence.gradients.factored import Kronecker
from whence.gradients.linearize import Linearization, linearize, n_outputs
from whence.gradients.penalty import matching_share, mean_square
from whence.gradients.projections import PROJECTIONS, Projection, Subspace, check_rank, flatten
from whence.gradients.routes import cheapest_projection, passes
from whence.gradients.solve import Solution, solve
from whence.models.examples import Given
from whence.models.functional import Filter, Params
from whence.models.losses import Logistic, Loss, Squared, metrics_named
from whence.models.points import Checkpoint, points_of
from whence.models.problem import Problem
from whence.models.recipe import Recipe
from whence.models.sampling import task_shares
from whence.models.targets import by_target
from whence.outcomes import Outcomes

LEARNED = 0.02  # share of the loss of a model that knows nothing, below which there is nothing left to learn
OF_MATCHING = 0.3  # of the penalty that matches a joint run; less than all of it is nearer to subsets of its tasks
SHARE = 1e-3  # penalty by default, as a share of the mean square of the features


@dataclass(frozen=True, eq=False)
class Member:
    """The tasks and targets, linearised at one point along one projection, and the penalty there."""

    tasks: Linearization
    targets: Linearization
    l2: float


@dataclass(frozen=True)
class Setting:
    """What `GradEx.tuned` tried, and how well it agreed with true runs."""

    factor: float
    rank: int
    points: tuple[int, ...]
    agreement: float


class GradEx:
    """Outcome function that estimates what training on a subset would give, from gradients.

    Parameters
    ----------
    model : nn.Module
        At W₀: a pretrained or early point, not one that has learned the tasks already. It is never changed.
    tasks : mapping of str to (inputs, labels) or Dataset
    targets : (inputs, labels), Dataset, or mapping of str to those
    loss : {"cross_entropy", "logistic", "squared"} or Loss
    metrics : str or list of str
        Of "loss", "accuracy", "margin".
    per_query : bool
        Whether every query is an outcome of its own, instead of their mean.
    params : str, iterable of str or callable, optional
        Which parameters may move; those that require a gradient where not given.
    rank : int
        Directions in which they may. The estimate gets better, and dearer, with it.
    l2 : float or "auto"
        Penalty λ on the update, ½ λ ‖z‖², against a loss whose weights add up to one. "auto": a thousandth of the mean
        square of the features, which makes it independent of the scale of the model.
    of : {"outputs", "margin"}
        What is linearised: every output, or the log-odds of each example's label alone, which is one output however
        many classes there are.
    projection : {"auto", "gaussian", "rademacher", "sparse", "kronecker"} or Projection
        "auto": Kronecker directions where the model's layers allow them and they are cheaper, else Gaussian.
    route : {"auto", "forward", "reverse", "factored"}
        How the features are computed; see `whence.gradients.routes`.
    weighting : {"task", "sample"}
        Whether the tasks of a subset count equally, as in the paper's weighted loss, or their examples do.
    examples : int or None
        Examples of each task that features are made of, drawn at random; all where None. Features are what GradEx
        spends its time on, and a few examples per task often say as much as all.
    checkpoints : sequence of modules or state dicts
        Points to linearise at instead of the model's own; estimates are averaged.
    n_projections : int
        Projections per point, averaged too.
    seed : int
    store : path, optional
        Folder to keep the features in, where they are larger than memory or shall survive.
    precision : {"float32", "bfloat16"}
        Of the forward passes.
    device : str or device, optional
    tol : float
        Of the solver; see `whence.gradients.solve.solve`.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> gradex = GradEx(nn.Linear(4, 2), tasks, (inputs, labels), rank=10, projection="gaussian", metrics="accuracy")
    >>> gradex.batch([[1, 1]], [0])["accuracy"]
    array([1.])
    """

    batch_size = 256

    def __init__(
        self,
        model: nn.Module,
        tasks: Given,
        targets: Given,
        *,
        loss: str | Loss = "cross_entropy",
        metrics: str | list[str] = "loss",
        per_query: bool = False,
        params: Filter = None,
        rank: int = 512,
        l2: float | Literal["auto"] = "auto",
        of: str = "outputs",
        projection: str | Projection | Kronecker = "auto",
        route: str = "auto",
        weighting: str = "task",
        examples: int | None = None,
        checkpoints: Sequence[Checkpoint] = (),
        n_projections: int = 1,
        seed: int = 0,
        store: str | Path | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
        tol: float = 1e-7,
    ) -> None:
        self.problem = Problem(
            model, tasks, targets, loss=loss, metrics=metrics, per_query=per_query, params=params, device=device,
            batched=False,
        )  # fmt: skip
        self.points = points_of(self.problem, checkpoints)
        self.examples = self.problem.tasks if examples is None else self.problem.tasks.sample(examples, seed)
        self.rank, self.l2, self.of, self.route, self.weighting = rank, l2, of, route, weighting
        self.n_projections, self.seed, self.store, self.precision, self.tol = n_projections, seed, store, precision, tol
        self.loss, self.metrics = self.problem.loss, self.problem.metrics
        if of == "margin":
            self.loss, self.metrics = _margin_loss(self.problem)
        self.projection = self._projection(projection)
        self.task_names, self.maximize = self.problem.task_names, self.problem.maximize
        self.settings: tuple[Setting, ...] = ()
        self._run: Trajectory | None = None

    @classmethod
    def along(
        cls,
        model: nn.Module,
        tasks: Given,
        targets: Given,
        recipe: Recipe,
        *,
        rank: int = 512,
        at: Sequence[float] = (0.25, 0.5, 0.75),
        seed: int = 0,
        **settings: Any,
    ) -> GradEx:
        """The estimator that linearises along one true run on all tasks.

        Training on a large subset goes a similar way as training on all tasks, so that points on that way are near to
        where it ends, and the gradients of the tasks there span where it moves. Updates are measured, and penalised,
        from W₀, where training starts; the penalty is a share of the one that makes the linear model, solved for all
        tasks, end at the training loss of the run, so that how long is trained is taken into account. It costs the
        run, a gradient of every example at about ``rank / 2K`` points, and the features.

        Parameters
        ----------
        model, tasks, targets
            As for `GradEx`.
        recipe : Recipe
            How the runs to be estimated are trained.
        rank : int
            Directions, at most about; gradients of K tasks, plain and as AdamW scales them, at as many points as fit.
        at : sequence of float
            Where to linearise, as shares of the run; estimates are averaged.
        seed : int
            Of the run.
        **settings
            Others of `GradEx`: loss, metrics, per_query, params, of, store, precision, device, tol.

        Examples
        --------
        >>> _ = torch.manual_seed(0)
        >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
        >>> recipe = Recipe(steps=20, lr=0.1)
        >>> gradex = GradEx.along(nn.Linear(4, 2), tasks, (inputs, labels), recipe, metrics="accuracy")
        >>> gradex.batch([[1, 1]], [0])["accuracy"]
        array([1.])
        """
        named = {key: settings[key] for key in ("loss", "params", "device") if key in settings}
        problem = Problem(model, tasks, targets, batched=False, **named)
        per_point = len(problem.task_names) * (2 if recipe.optimizer == "adamw" else 1)
        run = trace(problem, recipe, n_points=max(1, min(recipe.steps, rank // per_point)), seed=seed)
        near = {int(np.abs(np.array(run.steps) - share * recipe.steps).argmin()) for share in at}
        points = [run.points[i] for i in sorted(near)]
        made = cls(
            model, tasks, targets, projection=run.directions, weighting=recipe.weighting, checkpoints=points,
            **settings,
        )  # fmt: skip
        made._run = run
        return made

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the outcomes depend on, apart from the method: the model, the tasks, the targets."""
        return problem_digests(self.problem)

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        first = self.projection(0)
        kind = f"{first.rank} directions of a joint run" if isinstance(first, Subspace) else str(first)
        points = f"{len(self.points)} points × {self.n_projections} projections"
        return {"outcomes": "GradEx", "gradex": f"{kind}, l2 {self.l2}, of {self.of}, {points}"}

    def __call__(self, subset: Any, seed: int = 0) -> dict[str, Any]:
        """Estimated outcomes of one subset: weights (K,), or the names of its tasks. There is no noise to seed."""
        found = self.batch(as_subset(subset, self.task_names))
        return {name: value[0] if self.problem.per_query else float(value[0]) for name, value in found.items()}

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q): the mean over points and projections."""
        total: dict[str, Tensor] = {}
        for member, solution in zip(self.members, self.solutions(subsets), strict=True):
            for name, value in member.targets.values(solution.delta, self.metrics).items():
                total[name] = total.get(name, 0) + value / len(self.members)
        return by_target(total, self.problem.targets, per_query=self.problem.per_query)

    def solutions(self, subsets: ArrayLike) -> list[Solution]:
        """Updates and certificates of the subsets, for each member."""
        rows = self._shares(as_subsets(subsets, self.task_names))
        return [solve(member.tasks, rows, self.loss, l2=member.l2, tol=self.tol) for member in self.members]

    @cached_property
    def members(self) -> list[Member]:
        """The linear models, made when first asked for."""
        numbers = list(product(range(len(self.points)), range(self.n_projections)))
        linear = [self._linear(point, projection) for point, projection in numbers]
        if self.l2 != "auto":
            return [Member(tasks, targets, float(self.l2)) for tasks, targets in linear]
        share = self._share([tasks for tasks, _ in linear])
        return [Member(tasks, targets, share * mean_square(tasks)) for tasks, targets in linear]

    def tuned(
        self, truth: Outcomes, *, factors: Iterable[float] = (10, 1, 0.1, 0.01), ranks: Iterable[int] | None = None
    ) -> GradEx:
        """The same estimator with the penalty, rank and points that agree best with a few true runs.

        No gradient is computed again: a lower rank is the first directions of a higher one, and points are those
        there are, each alone and all together. ``settings`` of the result lists all that was tried.

        Parameters
        ----------
        truth : Outcomes
            True outcomes of a handful of subsets, with the names that this estimator gives.
        factors : iterable of float
            To multiply the penalty with.
        ranks : iterable of int, optional
            The rank at hand, and a quarter of it, where not given.
        """
        full = self.members[0].tasks.rank
        wanted = sorted({max(1, full // 4), full}) if ranks is None else list(ranks)
        choices = [tuple(range(len(self.points)))]
        choices += [(i,) for i in range(len(self.points))] if len(self.points) > 1 else []
        tried: list[tuple[Setting, GradEx]] = []
        for rank, factor, points in product(wanted, factors, choices):
            other = self._with(rank, factor, points)
            found = agreement(aligned(other.batch(truth.subsets), truth), truth.values)
            tried.append((Setting(factor, rank, points, found), other))
        best = max(tried, key=lambda pair: pair[0].agreement)[1]
        best.settings = tuple(setting for setting, _ in tried)
        return best

    def _shares(self, subsets: Floats) -> Floats:
        """Weights of the tasks, by the sizes they really have where examples count equally."""
        return task_shares(subsets, self.problem.tasks.sizes, self.weighting)

    def _linear(self, point: int, number: int) -> tuple[Linearization, Linearization]:
        """Linearise tasks and targets at one point along one projection."""
        output_fn, params = self.points[point]
        parts = []
        for examples, what in ((self.examples, "tasks"), (self.problem.targets, "target")):
            folder = None if self.store is None else str(Path(self.store) / f"point{point}_projection{number}_{what}")
            parts.append(
                linearize(
                    output_fn, params, examples, self.projection(number), route=self.route, of=self.of,
                    precision=self.precision, store=folder, what=what,
                )
            )  # fmt: skip
        tasks, targets = parts
        if self._run is None:
            self._warn_if_learned(tasks, point)
            return tasks, targets
        origin = self._run.directions.project(flatten(_differences(self._run.points[0], params)), params)[0]
        return tasks.measured_from(origin), targets.measured_from(origin)

    def _share(self, tasks: list[Linearization]) -> float:
        """Return the penalty as a share of the mean square of the features: what matches the run, if there is one."""
        if self._run is None:
            return SHARE
        everything = self._shares(np.ones((1, len(self.task_names))))
        shares = np.array([matching_share(linear, everything, self.loss, self._run.loss) for linear in tasks])
        known = shares[np.isfinite(shares)]
        return OF_MATCHING * float(np.exp(np.log(known).mean())) if len(known) else SHARE

    def _with(self, rank: int, factor: float, points: tuple[int, ...]) -> GradEx:
        other = copy.copy(self)
        other.points = [self.points[i] for i in points]
        kept = [self.members[i * self.n_projections + j] for i in points for j in range(self.n_projections)]
        random = not isinstance(self.projection(0), Subspace)
        other.members = [
            Member(m.tasks.leading(rank, rescale=random), m.targets.leading(rank, rescale=random), factor * m.l2)
            for m in kept
        ]
        return other

    def _projection(self, given: str | Projection | Kronecker) -> Callable[[int], Projection | Kronecker]:
        """Return the function from a number to the projection of that number."""
        output_fn, params = self.points[0]
        kinds: dict[str, Any] = {**PROJECTIONS, "kronecker": Kronecker}
        if not isinstance(given, str):
            if self.n_projections > 1:
                raise InputError("For several projections, name their kind, such as 'gaussian', instead of giving one.")
            check_rank(given.rank, params)
            return lambda number: given
        if given not in ("auto", *kinds):
            raise InputError(f"There is no projection {given!r}. {did_you_mean(given, ['auto', *kinds])}")
        check_rank(self.rank, params)
        if given == "auto":
            with passes(params, self.precision):
                width = n_outputs(output_fn, params, self.problem.tasks, self.of, "tasks")
                kind: Any = type(
                    cheapest_projection(output_fn, params, self.problem.tasks, self.rank, self.seed, width)
                )
        else:
            kind = kinds[given]
        return lambda number: kind(self.rank, self.seed + number)

    def _warn_if_learned(self, tasks: Linearization, point: int) -> None:
        labels = tasks.examples.labels
        idle = torch.zeros_like(tasks.outputs)
        if isinstance(self.loss, Squared):
            idle += labels.to(idle).reshape(len(labels), -1).mean(dim=0)
        now, before = (float(self.loss(outputs, labels).mean()) for outputs in (tasks.outputs, idle))
        if now < LEARNED * before:
            where = "The model" if len(self.points) == 1 else f"Checkpoint {point}"
            warnings.warn(
                f"{where} has learned the tasks already (loss {now:.2g}, {before:.2g} without any training): its "
                "gradients vanish, and GradEx can estimate next to nothing there. Use an earlier or pretrained point.",
                DataWarning,
                stacklevel=5,
            )


def _differences(origin: Params, params: Params) -> Params:
    """Return the way from the parameters to the origin, with a leading axis of one."""
    return {name: (origin[name] - value)[None] for name, value in params.items()}


def _margin_loss(problem: Problem) -> tuple[Loss, dict[str, Any]]:
    """Return the loss and metrics of a margin: its logistic loss is the cross-entropy."""
    if isinstance(problem.loss, Squared):
        raise InputError("A margin is that of a class: of='margin' does not go with the squared loss.")
    if "accuracy" in problem.metrics:
        raise InputError("Which class is likeliest is not known from the margin: use of='outputs' for the accuracy.")
    return Logistic(), metrics_named(list(problem.metrics), Logistic())
