"""GradEx: the outcome of any subset from one pass of gradients, without training (the paper's Algorithm 2).

The model is linearised at W₀ once. Training on a subset then is a small convex problem in the coordinates of a
projection, and thousands of them are solved together. What comes out is judged on the targets with the same linear
model. `GradEx` is an outcome function: `whence.measure` fills a table with it and `whence.fit` learns from that table.

It is exact where the model is linear in its parameters. Elsewhere it is as good as the linearisation, which
`linearization_error` measures where there is a trained model to compare with, and `GradEx.tuned` makes the most of a
few true runs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from whence.errors import DataWarning, InputError, did_you_mean
from whence.estimators.points import Checkpoint, moved_to, points_of
from whence.estimators.subsets import Floats, as_subset, as_subsets
from whence.estimators.targets import by_target, higher_is_better
from whence.examples import Examples, Given
from whence.functional import Filter, OutputFn, Params, functional
from whence.gradients.factored import Kronecker
from whence.gradients.linearize import Linearization, linearize, n_outputs
from whence.gradients.projections import PROJECTIONS, Projection, check_rank
from whence.gradients.routes import cheapest_projection, passes
from whence.gradients.solve import Solution, solve
from whence.losses import Logistic, Loss, Squared, loss_named, metrics_named
from whence.outcomes import Outcomes
from whence.outcomes.checks import places

_FITTED = 0.02  # share of the loss of an untrained model below which there is nothing left to learn


@dataclass(frozen=True, eq=False)
class Trial:
    """Settings that were tried against true runs, and how well they did."""

    l2: float
    rank: int
    checkpoints: tuple[int, ...]
    lds: float


class GradEx:
    """Outcome function that estimates what training on a subset would give, from gradients at W₀.

    Parameters
    ----------
    model : nn.Module, or callable
        At W₀: a pretrained or early point, not one that has learned the tasks already. Or
        ``output_fn(params, inputs)``, with ``params`` the dict of tensors W₀.
    tasks : mapping of str to (inputs, labels) or Dataset
    targets : (inputs, labels), Dataset, or mapping of str to those
    loss : {"cross_entropy", "logistic", "squared"} or Loss
    metrics : str or list of str
        Of "loss", "accuracy", "margin".
    per_query : bool
        Whether every query is an outcome of its own, instead of their mean.
    params : filter, or dict of tensors
        Which parameters may move; see `whence.functional.functional`.
    rank : int
        Directions in which they may. The estimate gets better, and dearer, with it.
    l2 : float
        Penalty on the update, against a loss that is averaged over examples.
    of : {"outputs", "margin"}
        What is linearised: every output, or the log-odds of each example's label alone, which is one output however
        many classes there are.
    projection : {"auto", "gaussian", "rademacher", "sparse", "kronecker"} or Projection
        "auto" is Kronecker directions where the model's layers allow them and they are cheaper, else Gaussian.
    route : {"auto", "forward", "reverse", "factored"}
    weighting : {"task", "sample"}
        Whether the tasks of a subset count equally, as in the paper's weighted loss, or their examples do.
    checkpoints : sequence of modules or state dicts
        Points to linearise at instead of the model's own; estimates are averaged.
    n_projections : int
        Projections per point, averaged too.
    seed : int
    store : path, optional
        Folder to keep the features in; see `whence.gradients.store`.
    precision : {"float32", "bfloat16"}
    device : str or device, optional
    tol, max_iter
        Of the solver; see `whence.gradients.solve.solve`.

    Examples
    --------
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> gradex = GradEx(nn.Linear(4, 2), tasks, (inputs, labels), rank=8, metrics="accuracy")
    >>> gradex.batch([[1, 1]], [0])["accuracy"]
    array([1.])
    """

    batch_size = 256

    def __init__(
        self,
        model: nn.Module | OutputFn,
        tasks: Given,
        targets: Given,
        *,
        loss: str | Loss = "cross_entropy",
        metrics: str | list[str] = "loss",
        per_query: bool = False,
        params: Filter | Params = None,
        rank: int = 512,
        l2: float = 1e-4,
        of: str = "outputs",
        projection: str | Projection | Kronecker = "auto",
        route: str = "auto",
        weighting: str = "task",
        checkpoints: Sequence[Checkpoint] = (),
        n_projections: int = 1,
        seed: int = 0,
        store: str | Path | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
        tol: float = 1e-4,
        max_iter: int = 100,
    ) -> None:
        self.points = points_of(model, params, checkpoints, device)
        home = next(iter(self.points[0][1].values())).device
        self.tasks = Examples.of(tasks, "tasks").to(home)
        self.targets = Examples.of(targets, "target").to(home)
        self.of, self.l2, self.per_query, self.weighting = of, l2, per_query, weighting
        self.rank, self.n_projections, self.seed, self.route = rank, n_projections, seed, route
        self.store, self.precision = store, precision
        self.solver = {"tol": tol, "max_iter": max_iter}
        given = loss_named(loss)
        with torch.no_grad():
            for examples, what in ((self.tasks, "tasks"), (self.targets, "target")):
                outputs = self.points[0][0](self.points[0][1], examples.rows(slice(0, 2))[0])
                given.check(outputs, examples.labels, what)
        self.loss: Loss = Logistic() if of == "margin" else given
        self.metrics = metrics_named(metrics, self.loss)
        if of == "margin":
            if isinstance(given, Squared):
                raise InputError("A margin is that of a class: of='margin' does not go with the squared loss.")
            if "accuracy" in self.metrics:
                raise InputError(
                    "Which class is the likeliest is not known from the margin: use of='outputs', or metrics='margin'."
                )
        self.projection = self._projection(projection)
        self.task_names, self.target_names = self.tasks.names, self.targets.names
        self.maximize = higher_is_better(self.metrics, self.targets, per_query=per_query)
        self.trials: tuple[Trial, ...] = ()

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        points = f"{len(self.points)} points × {self.n_projections} projections"
        return {"outcomes": "GradEx", "gradex": f"{self.projection(0)}, l2={self.l2:g}, of {self.of}, {points}"}

    def __call__(self, subset: Any, seed: int = 0) -> dict[str, Any]:
        """Estimated outcomes of one subset: weights (K,), or the names of its tasks. There is no noise to seed."""
        found = self.batch(as_subset(subset, self.task_names))
        return {name: value[0] if self.per_query else float(value[0]) for name, value in found.items()}

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q): the mean over points and projections."""
        rows = as_subsets(subsets, self.task_names)
        total: dict[str, Tensor] = {}
        for tasks, targets in self.members:
            delta = solve(tasks, rows, self.loss, l2=self.l2, weighting=self.weighting, **self.solver).delta
            for name, value in evaluate(targets, delta, self.metrics).items():
                total[name] = total.get(name, 0) + value / len(self.members)
        return by_target(total, self.targets, per_query=self.per_query)

    @cached_property
    def members(self) -> list[tuple[Linearization, Linearization]]:
        """The linearised tasks and targets, at each point and along each projection."""
        members = []
        for i, (output_fn, params) in enumerate(self.points):
            for j in range(self.n_projections):
                parts = []
                for examples, what in ((self.tasks, "tasks"), (self.targets, "target")):
                    folder = None if self.store is None else str(Path(self.store) / f"point{i}_projection{j}_{what}")
                    parts.append(
                        linearize(
                            output_fn, params, examples, self.projection(j), route=self.route, of=self.of,
                            precision=self.precision, store=folder, what=what,
                        )
                    )  # fmt: skip
                members.append((parts[0], parts[1]))
                self._warn_if_learned(parts[0], i)
        return members

    def solution(self, subsets: ArrayLike) -> list[Solution]:
        """Updates and certificates of the subsets, for each member."""
        rows = as_subsets(subsets, self.task_names)
        options: dict[str, Any] = {"l2": self.l2, "weighting": self.weighting, **self.solver}
        return [solve(tasks, rows, self.loss, **options) for tasks, _ in self.members]

    def tuned(
        self, truth: Outcomes, *, l2: Iterable[float] = (1e-2, 1e-3, 1e-4, 1e-5), ranks: Iterable[int] | None = None
    ) -> GradEx:
        """The same estimator with the penalty, rank and points that agree best with a few true runs.

        No gradient is computed again: a lower rank is the first directions of a higher one, and points are those
        there are, each alone and all together.

        Parameters
        ----------
        truth : Outcomes
            True outcomes of a handful of subsets, with the names that this estimator gives. Agreement is the mean
            Spearman correlation over targets; ``trials`` of the result lists all that was tried.
        l2 : iterable of float
        ranks : iterable of int, optional
            The rank at hand, a half and a quarter of it, where not given.
        """
        choices = [tuple(range(len(self.points)))]
        choices += [(i,) for i in range(len(self.points))] if len(self.points) > 1 else []
        tried: list[tuple[Trial, GradEx]] = []
        wanted = sorted({self.rank // 4, self.rank // 2, self.rank} - {0}) if ranks is None else list(ranks)
        for rank, penalty, points in product(wanted, l2, choices):
            other = self._with(rank, penalty, points)
            tried.append((Trial(penalty, rank, points, _agreement(other, truth)), other))
        best = max((pair for pair in tried), key=lambda pair: pair[0].lds)[1]
        best.trials = tuple(trial for trial, _ in tried)
        return best

    def _with(self, rank: int, l2: float, points: tuple[int, ...]) -> GradEx:
        other = copy.copy(self)
        other.rank, other.l2, other.points = rank, l2, [self.points[i] for i in points]
        kept = [self.members[i * self.n_projections + j] for i in points for j in range(self.n_projections)]
        other.members = [(tasks.leading(rank), targets.leading(rank)) for tasks, targets in kept]
        return other

    def _projection(self, given: str | Projection | Kronecker) -> Callable[[int], Projection | Kronecker]:
        """Return the function from a number to the projection of that number."""
        output_fn, params = self.points[0]
        kinds: dict[str, Any] = {**PROJECTIONS, "kronecker": Kronecker}
        if not isinstance(given, str):
            if self.n_projections > 1:
                raise InputError("For several projections, name their kind, such as 'gaussian', instead of giving one.")
            self.rank = given.rank
        elif given == "auto":
            with passes(params, self.precision):
                width = n_outputs(output_fn, params, self.tasks, self.of, "tasks")
                kind = type(cheapest_projection(output_fn, params, self.tasks, self.rank, self.seed, width))
        elif given in kinds:
            kind = kinds[given]
        else:
            raise InputError(f"There is no projection {given!r}. {did_you_mean(given, ['auto', *kinds])}")
        check_rank(self.rank, params)
        return (lambda number: kind(self.rank, self.seed + number)) if isinstance(given, str) else lambda number: given

    def _warn_if_learned(self, tasks: Linearization, point: int) -> None:
        labels = tasks.examples.labels
        idle = torch.zeros_like(tasks.outputs)
        if isinstance(self.loss, Squared):
            idle += labels.to(idle).reshape(len(labels), -1).mean(dim=0)
        now, before = (float(self.loss(outputs, labels).mean()) for outputs in (tasks.outputs, idle))
        if now < _FITTED * before:
            where = "The model" if len(self.points) == 1 else f"Checkpoint {point}"
            warnings.warn(
                f"{where} has learned the tasks already (loss {now:.2g}, {before:.2g} without any training): its "
                "gradients vanish, and GradEx can estimate next to nothing there. Use an earlier or pretrained point.",
                DataWarning,
                stacklevel=4,
            )


def evaluate(targets: Linearization, delta: Tensor, metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    """Metrics of the linear model on every query, (m, q), for the updates of m subsets.

    Parameters
    ----------
    targets : Linearization
    delta : tensor of shape (m, rank)
    metrics : mapping of str to metric
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for rows, features in targets.blocks(len(delta)):
        moved = (delta @ features.reshape(-1, targets.rank).T).view(len(delta), features.shape[0], -1)
        for name, metric in metrics.items():
            parts[name].append(metric(targets.outputs[rows] + moved, targets.examples.labels[rows]))
    return {name: torch.cat(found, dim=1) for name, found in parts.items()}


def linearization_error(
    model: nn.Module, trained: Checkpoint, examples: Given, *, params: Filter = None, relative_to: str = "outputs"
) -> Floats:
    """Relative error of the linear model at truly trained weights, ‖f_W − f_W₀ − ∇f·(W − W₀)‖ / ‖f_W‖, per example.

    The paper's ε_W(x), the first-order approximation error. Small where training moved little. Outputs can be large
    where training changed them little, so that the error looks small: ``relative_to="change"`` divides by ‖f_W − f_W₀‖,
    and 1 then means that not to train at all is as good a guess.

    Parameters
    ----------
    model : nn.Module
        At W₀.
    trained : nn.Module or state dict
        W, after training on some subset.
    examples : (inputs, labels), or mapping of str to those
    params : filter
        The parameters that were trained.
    relative_to : {"outputs", "change"}

    Returns
    -------
    ndarray of shape (n,)

    Examples
    --------
    >>> before, after = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> bool(linearization_error(before, after, (torch.randn(5, 3), torch.zeros(5))).max() < 1e-5)
    True
    """
    if relative_to not in ("outputs", "change"):
        raise InputError(f"The error is relative to 'outputs' or to the 'change' of them. Got {relative_to!r}.")
    output_fn, start = functional(model, params)
    end = moved_to(start, trained)
    rows = Examples.of(examples, "examples").to(next(iter(start.values())).device)
    step = {name: end[name] - value for name, value in start.items()}
    found = []
    for block in rows.blocks(256):
        inputs, _ = rows.rows(block)
        with passes(start, "float32"):
            before, slope = torch.func.jvp(lambda at, x=inputs: output_fn(at, x), (start,), (step,))
            after = output_fn(end, inputs)
        size = after if relative_to == "outputs" else after - before
        found.append((after - before - slope).norm(dim=1) / size.norm(dim=1).clamp_min(1e-12))
    return torch.cat(found).double().cpu().numpy()


def _agreement(estimator: GradEx, truth: Outcomes) -> float:
    """Return the mean Spearman correlation with true runs."""
    from whence.evaluation import lds
    from whence.measuring import measure

    found = measure(estimator, truth.subsets)
    columns = places(truth.target_names, found.target_names, "estimated outcome")
    return lds(found.values[:, columns], truth).mean
