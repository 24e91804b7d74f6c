"""GradEx: the outcome of any subset from gradients, without training on it (the paper's Algorithm 2).

The model is linearised once. Training on a subset is then a small convex problem in the coordinates of a projection,
and thousands of these are solved together and evaluated on the targets with the same linear model. `GradEx` is an
outcome function: `whence.measure` fills a table with it and `whence.fit` learns from that table.

It is exact if the model is linear in its parameters. Otherwise it is as good as the linear model, which depends on two
choices. The paper linearises at W₀ along random directions. `GradEx.along` makes one true run on all tasks and
linearises at points of that run, along the gradients of the tasks there: this is much closer to the truth if training
moves far.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from whence.arrays import Floats
from whence.errors import InputError, check_choice, did_you_mean
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import SubsetLike, as_subset, as_subsets
from whence.estimators.trajectory import Trajectory, passed, trace
from whence.estimators.truth import agreement, aligned
from whence.gradients.factored import Kronecker, Layers
from whence.gradients.linearize import Features, Linearization, linearize_together, n_outputs
from whence.gradients.penalty import matching_share, mean_square, warn_if_learned
from whence.gradients.projections import PROJECTIONS, Identity, Projection, Subspace, check_rank, flatten, n_params
from whence.gradients.routes import cheapest_projection, margin_loss, passes, taken_together
from whence.gradients.solve import Solution, solve
from whence.measuring import measure
from whence.measuring.plan import Designed
from whence.models.points import Checkpoint, points_of
from whence.models.problem import Problem, as_problem
from whence.models.recipe import CHOICES, Recipe
from whence.models.sampling import task_shares
from whence.models.targets import single
from whence.outcomes import Outcomes
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.model import Model

OF_MATCHING = 0.3  # of the penalty that matches a joint run; less than all of it is nearer to subsets of its tasks
SHARE = 1e-3  # penalty by default, as a share of the mean square of the features
PAPER_L2 = 0.1  # of the paper's kernel ridge regression; it has none for GradEx
USUAL = Features()


@dataclass(frozen=True, eq=False)
class Member:
    """The tasks and targets linearised at one point along one projection, and the penalty there."""

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
    problem : Problem
        With the model at W₀: a pretrained or early point, not one that has learned the tasks already.
    rank : int
        Number of directions in which the parameters may move. More are better and more expensive. If there are at most
        four times as many parameters, projection "auto" uses all of them, and nothing is lost.
    l2 : float or "auto"
        Penalty λ on the update, ½ λ ‖z‖², relative to a loss whose weights add up to one. "auto": a thousandth of the
        mean square of the features, which does not depend on the scale of the model.
    of : {"outputs", "margin"}
        What is linearised: every output, or only the log-odds of each example's label.
    projection : {"auto", "gaussian", "rademacher", "sparse", "kronecker"} or Projection
        "auto": all parameters as directions if there are few (see ``rank``); else Kronecker directions if the
        model's layers allow them and they are cheaper; else Gaussian.
    weighting : {"sample", "task"}
        Whether all examples of a subset count equally, the default of `Recipe`, or all its tasks do, as in the paper's
        weighted loss.
    settings : {"usual", "paper"}
        "paper": its algorithm as written. The losses of a subset are summed, not averaged, so ``l2`` (by default 0.1)
        holds back the update of a small subset more. Directions are Gaussian by default.
    checkpoints : sequence of modules or state dicts
        Points to linearise at, instead of the model's weights; estimates are averaged.
    n_projections : int
        Projections per point, averaged too.
    features : Features
        How the features are computed and kept.
    seed : int
    tol : float
        Tolerance of the solver; see `whence.gradients.solve.solve`.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> problem = Problem(torch.nn.Linear(4, 2), tasks, (inputs, labels), metrics="accuracy")
    >>> gradex = GradEx(problem, rank=10, projection="gaussian")
    >>> gradex.batch([[1, 1]], [0])["accuracy"]
    array([1.])
    """

    batch_size = 256

    def __init__(
        self,
        problem: Problem,
        rank: int = 512,
        *,
        l2: float | Literal["auto"] = "auto",
        of: str = "outputs",
        projection: str | Projection | Kronecker = "auto",
        weighting: str = "sample",
        settings: Literal["usual", "paper"] = "usual",
        checkpoints: Sequence[Checkpoint] = (),
        n_projections: int = 1,
        features: Features = USUAL,
        seed: int = 0,
        tol: float = 1e-7,
    ) -> None:
        check_choice(weighting, CHOICES["weighting"], "weighting")
        check_choice(settings, ("usual", "paper"), "settings", of="GradEx")
        if settings == "paper":
            if weighting == "task":
                raise InputError("With settings='paper' losses of all examples are added up: leave out 'weighting'.")
            l2 = PAPER_L2 if l2 == "auto" else l2
            projection = "gaussian" if projection == "auto" else projection
        self.settings = settings
        self.points = points_of(problem, checkpoints)
        some = features.examples
        self.examples = problem.tasks if some is None else problem.tasks.sample(some, seed)
        self.problem, self.rank, self.l2, self.of, self.weighting = problem, rank, l2, of, weighting
        self.n_projections, self.features, self.seed, self.tol = n_projections, features, seed, tol
        self.loss, self.metrics = self.problem.loss, self.problem.metrics
        if of == "margin":
            self.loss, self.metrics = margin_loss(self.problem)
        self.projection = self._projection(projection)
        self.task_names, self.maximize = self.problem.task_names, self.problem.maximize
        self.tried: tuple[Setting, ...] = ()
        self._run: Trajectory | None = None

    @classmethod
    def along(
        cls,
        problem: Problem,
        recipe: Recipe,
        *,
        rank: int = 512,
        at: Sequence[float] = (0.25, 0.5, 0.75),
        projection: str | Projection | Kronecker = "gradients",
        l2: float | Literal["auto"] = "auto",
        of: str = "outputs",
        features: Features = USUAL,
        seed: int = 0,
        tol: float = 1e-7,
    ) -> GradEx:
        """The estimator that linearises along one true run on all tasks.

        Training on a large subset takes a similar path to training on all tasks, so points on that path are near its
        end, and the gradients of the tasks there span the directions it moves in. Updates are measured and penalised
        from W₀. The penalty is a share of the one for which the linear model, solved for all tasks, reaches the
        training loss of the run; this accounts for the length of training. It costs the run, a gradient of every
        example (or of as many as ``features`` says) at about ``rank / 2K`` points, and the features.

        With any other ``projection``, updates are measured and penalised from the points themselves, as for
        ``checkpoints``. It then costs the run up to the last point, and the features.

        Parameters
        ----------
        problem, l2, of, features, tol
            As for `GradEx`.
        recipe : Recipe
            How the runs to be estimated are trained; tasks are weighted as in it.
        rank : int
            About the largest number of directions: gradients of K tasks, plain and as the optimizer scales them, at as
            many points as fit.
        projection : "gradients", or as for `GradEx`
            Directions. For adapters, random ones ("auto") of all examples were far better and cheaper.
        at : sequence of float
            Where to linearise, as shares of the run; estimates are averaged.
        seed : int
            Of the run, and of the examples that features are made of.

        Examples
        --------
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
        >>> problem = Problem(torch.nn.Linear(4, 2), tasks, (inputs, labels), metrics="accuracy")
        >>> gradex = GradEx.along(problem, Recipe(steps=20, lr=0.1))
        >>> gradex.batch([[1, 1]], [0])["accuracy"]
        array([1.])
        """
        if projection != "gradients":
            steps = {max(1, round(share * recipe.steps)) for share in at}
            states = list(passed(problem, recipe, steps, seed=seed).values())
            return cls(
                problem, rank, l2=l2, of=of, projection=projection, weighting=recipe.weighting, checkpoints=states,
                features=features, seed=seed, tol=tol,
            )  # fmt: skip
        per_point = len(as_problem(problem).task_names) * recipe.update.directions_per_point
        n_points = max(1, min(recipe.steps, rank // per_point))
        run = trace(problem, recipe, n_points=n_points, examples=features.examples, seed=seed)
        near = {int(np.abs(np.array(run.steps) - share * recipe.steps).argmin()) for share in at}
        points = [run.points[i] for i in sorted(near)]
        made = cls(
            problem, rank, l2=l2, of=of, projection=run.directions, weighting=recipe.weighting, checkpoints=points,
            features=features, seed=seed, tol=tol,
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
        (output_fn, params), *_ = self.points
        spanned = Layers(output_fn, params, first).spanned if isinstance(first, Kronecker) else first.rank
        kind = f"{spanned} of {n_params(params)} directions ("
        kind += "of a joint run)" if isinstance(first, Subspace) else f"{first})"
        points = f"{len(self.points)} points × {self.n_projections} projections"
        added = " of summed losses" if self.settings == "paper" else ""
        return {"outcomes": "GradEx", "gradex": f"{kind}, l2 {self.l2}{added}, of {self.of}, {points}"}

    def __call__(self, subset: SubsetLike, seed: int = 0) -> dict[str, float | Floats]:
        """Estimated outcomes of one subset: weights (K,), or the names of its tasks. There is no noise to seed."""
        return single(self.batch(as_subset(subset, self.task_names)))

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q): the mean over points and projections."""
        total: dict[str, Tensor] = {}
        for member, solution in zip(self.members, self.solutions(subsets), strict=True):
            for name, value in member.targets.values(solution.delta, self.metrics).items():
                total[name] = total.get(name, 0) + value / len(self.members)
        return self.problem.outcomes(total)

    def surrogate(self, design: Designed, n: int | None = None, *, seed: int = 0) -> Model:
        """The paper's kernel surrogate of this problem, fitted to estimates of n subsets of a design, without training.

        Kernel ridge regression with a Gaussian kernel, α = 0.1 and γ = 1/K. With ``settings="paper"``, the estimates
        are the paper's too.
        """
        return fit(measure(self, design, n, seed=seed), surrogate=KernelSurrogate(settings="paper"))

    def solutions(self, subsets: ArrayLike) -> list[Solution]:
        """Updates and certificates of the subsets, for each member."""
        shares = self._shares(as_subsets(subsets, self.task_names))
        return [solve(member.tasks, shares, self.loss, l2=member.l2, tol=self.tol) for member in self.members]

    @cached_property
    def members(self) -> list[Member]:
        """The linear models, made on first use."""
        linear = self._linear()
        if self.l2 != "auto":
            l2 = float(self.l2) / (len(self.problem.tasks) if self.settings == "paper" else 1)
            return [Member(tasks, targets, l2) for tasks, targets in linear]
        share = self._share([tasks for tasks, _ in linear])
        return [Member(tasks, targets, share * mean_square(tasks)) for tasks, targets in linear]

    def tuned(self, truth: Outcomes, *, factors: Iterable[float] = (10, 1, 0.1, 0.01)) -> GradEx:
        """The same estimator with the penalty, rank and points that agree best with a few true runs.

        No gradient is computed again: a quarter of the rank uses the first of random directions, and the existing
        points are tried one by one and all together. ``tried`` of the result lists all settings.

        Parameters
        ----------
        truth : Outcomes
            True outcomes of a handful of subsets, with the names that this estimator gives.
        factors : iterable of float
            Factors for the penalty.
        """
        full = self.members[0].tasks.rank
        ranks = {full} if isinstance(self.projection(0), Identity) else {max(1, full // 4), full}
        choices = [tuple(range(len(self.points)))]
        choices += [(i,) for i in range(len(self.points))] if len(self.points) > 1 else []
        tried: list[tuple[Setting, GradEx]] = []
        for rank, factor, points in product(sorted(ranks), factors, choices):
            other = self._with(rank, factor, points)
            found = agreement(aligned(other.batch(truth.subsets), truth), truth.values)
            tried.append((Setting(factor, rank, points, found), other))
        best = max(tried, key=lambda pair: pair[0].agreement)[1]
        best.tried = tuple(setting for setting, _ in tried)
        return best

    def _shares(self, subsets: Floats) -> Floats:
        """Shares of the tasks, by the sizes they really have where examples count equally; of all where they add up."""
        if self.settings == "paper":
            return subsets * self.problem.tasks.sizes / len(self.problem.tasks)
        return task_shares(subsets, self.problem.tasks.sizes, self.weighting)

    def _linear(self) -> list[tuple[Linearization, Linearization]]:
        """Tasks and targets linearised at every point along every projection, point after point."""
        (output_fn, params), *_ = self.points
        alone = self.features.store is not None or not taken_together(
            output_fn, params, self.examples, self.projection(0), self.features.route
        )
        every = range(len(self.points))
        groups = [[point] for point in every] if alone else [list(every)]
        found = []
        for group, number in product(groups, range(self.n_projections)):
            tasks, targets = (self._linearized(group, number, what) for what in ("tasks", "target"))
            found += list(zip(group, tasks, targets, strict=True))
        if self._run is not None:
            return [(self._from_start(point, tasks), self._from_start(point, own)) for point, tasks, own in found]
        for point, linear, _ in found:
            where = "The model" if len(self.points) == 1 else f"Checkpoint {point}"
            warn_if_learned(linear, self.loss, where)
        return [(tasks, targets) for _, tasks, targets in found]

    def _linearized(self, group: list[int], number: int, what: str) -> list[Linearization]:
        """Examples of the tasks or of the targets at some points along one projection."""
        (output_fn, _), *_ = at = [self.points[point] for point in group]
        store = self.features.store
        return linearize_together(
            output_fn, [params for _, params in at], self.examples if what == "tasks" else self.problem.targets,
            self.projection(number), route=self.features.route, of=self.of, precision=self.features.precision,
            store=None if store is None else str(Path(store) / f"point{group[0]}_projection{number}_{what}"), what=what,
        )  # fmt: skip

    def _from_start(self, point: int, linear: Linearization) -> Linearization:
        """The same linear model with updates measured from the start of the joint run."""
        assert self._run is not None
        params = self.points[point][1]
        back = {name: (self._run.points[0][name] - value)[None] for name, value in params.items()}
        return linear.measured_from(self._run.directions.project(flatten(back), params)[0])

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
        random = not isinstance(self.projection(0), (Subspace, Identity))
        other.members = [
            Member(m.tasks.leading(rank, rescale=random), m.targets.leading(rank, rescale=random), factor * m.l2)
            for m in kept
        ]
        return other

    def _projection(self, given: str | Projection | Kronecker) -> Callable[[int], Projection | Kronecker]:
        """Return the function from a number to the projection of that number."""
        output_fn, params = self.points[0]
        kinds: dict[str, Callable[[int, int], Projection | Kronecker]] = {**PROJECTIONS, "kronecker": Kronecker}
        if not isinstance(given, str):
            if self.n_projections > 1:
                raise InputError("For several projections, name their kind, such as 'gaussian', instead of giving one.")
            check_rank(given.rank, params)
            return lambda number: given
        if given not in ("auto", *kinds):
            raise InputError(f"There is no projection {given!r}. {did_you_mean(given, ['auto', *kinds])}")
        if given != "auto":
            check_rank(self.rank, params)
            return lambda number: kinds[given](self.rank, self.seed + number)
        check_rank(min(self.rank, n_params(params)), params)
        with passes(params, self.features.precision):
            width = n_outputs(output_fn, params, self.problem.tasks, self.of, "tasks")
            found = cheapest_projection(output_fn, params, self.problem.tasks, self.rank, self.seed, width)
        if isinstance(found, Identity):
            self.n_projections = 1  # there is only one
            return lambda number: found
        return lambda number: replace(found, seed=self.seed + number)  # type: ignore[type-var]
