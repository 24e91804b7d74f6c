"""Outcomes of merged weights: any subset of tasks from one vector per task, and a real forward pass.

What the estimators of merge.py and onestep.py have in common. They differ in how they come by the vectors Δ_k; the
weights of a subset s are W₀ + scale · Σ_k w_k Δ_k with w_k = s_k / Σ s ("task"), or s_k n_k / Σ s n for tasks of n_k
examples ("sample"); where runs saw other tasks too, w is what makes up these shares (merge.py). Adapters of whole runs
are merged as products, and their batch normalisation gets the statistics of the merged model on the
examples of the subset.
"""

from __future__ import annotations

import copy
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from whence.arrays import Floats
from whence.errors import DataWarning, InputError, check_choice, some_of
from whence.estimators.deltas import Vectors
from whence.estimators.diagnosis import concerns, useless
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import SubsetLike, as_subset, as_subsets
from whence.estimators.truth import Trust, agreement, aligned, trust
from whence.models.examples import Examples
from whence.models.functional import ModelFn
from whence.models.memory import MOST_AT_ONCE, Chunks, free_bytes
from whence.models.metrics import Metric
from whence.models.problem import State
from whence.models.recipe import CHOICES, Recipe, Weighting
from whence.models.sampling import draw_batches, task_shares
from whence.models.stack import Stack, side_by_side, unstacked
from whence.models.targets import joined, single
from whence.outcomes import Outcomes

if TYPE_CHECKING:
    from typing_extensions import Self


Scale = float | Mapping[str, float]
STATISTICS_ROWS = 512  # examples for the statistics of batch normalisation
SOME_EXAMPLES = 256  # of all tasks, that a merge is tried on: by outputs, each run takes a pass over them


@dataclass(frozen=True)
class Trial:
    """A scale that was tried against true runs, and how well its estimates agree with them."""

    scale: float
    agreement: float


class Merged(ABC):
    """Outcome function of one vector per task.

    Subclasses say what the ``vectors`` are, and which scales they go with; see `TaskVectors` and `OneStep`.
    """

    merge: str = "weights"  # what is merged
    whole_runs: bool  # whether vectors are of whole runs: adapters are merged as products, statistics renewed

    def __init__(self, stack: Stack, *, weighting: Weighting, scale: Scale | None, seed: int) -> None:
        check_choice(weighting, CHOICES["weighting"], "weighting")
        self.stack, self.problem, self.weighting, self.seed = stack, stack.problem, weighting, seed
        self._scale = None if scale is None else self._checked(scale)
        problem = self.problem
        self.task_names, self.maximize = problem.task_names, problem.maximize
        self.trials: tuple[Trial, ...] = ()
        weights = sum(value.nbytes for value in problem.start.values())
        fits = free_bytes(problem.device) // (3 * weights + min(len(problem.targets), 256) * problem.bytes_per_row)
        self._chunks = Chunks(min(fits, MOST_AT_ONCE) if stack.batched else 1)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the outcomes depend on, apart from the method: the model, the tasks, the targets."""
        return problem_digests(self.problem)

    @property
    @abstractmethod
    def vectors(self) -> Vectors:
        """Δ_k of every task."""

    @property
    @abstractmethod
    def scales(self) -> tuple[float, ...]:
        """Scales worth trying."""

    @abstractmethod
    def default_scale(self) -> float:
        """Default scale, without true runs."""

    @cached_property
    def scale(self) -> Scale:
        """Factor of the merged vectors."""
        return self.default_scale() if self._scale is None else self._scale

    @property
    def batch_size(self) -> int:
        """Number of subsets that are evaluated side by side."""
        return self._chunks.size

    def __call__(self, subset: SubsetLike, seed: int = 0) -> dict[str, float | Floats]:
        """Estimated outcomes of one subset: weights (K,), or the names of its tasks. There is no noise to seed."""
        return single(self.batch(as_subset(subset, self.task_names)))

    def batch(self, subsets: ArrayLike, seeds: ArrayLike | None = None) -> dict[str, Floats]:
        """Estimated outcomes of subsets (m, K) by name, (m,) or (m, q)."""
        rows = as_subsets(subsets, self.task_names)
        now, was = self._losses
        if not now <= was:
            warnings.warn(useless(now, was), DataWarning, stacklevel=2)
        return self._outcomes(rows, self.scale)

    def coefs(self, shares: Floats) -> Floats:
        """Coefficients of the vectors (m, K) that stand for shares of the tasks (m, K)."""
        return shares

    def states(self, subsets: Floats, scale: Scale) -> State:
        """Merged weights of subsets, stacked (m, ...); those of the empty subset are W₀."""
        state = self.moved(self.coefs(self.shares(subsets)), scale)
        return self._with_statistics(state, subsets) if self.whole_runs else state

    def shares(self, subsets: Floats) -> Floats:
        """Shares of the tasks in subsets, (m, K)."""
        return task_shares(subsets, self.problem.tasks.sizes, self.weighting)

    def moved(self, coefs: Floats, scale: Scale) -> State:
        """Weights W₀ + scale · Σ_k c_k Δ_k, stacked (m, ...), by coefficients (m, K)."""
        problem, vectors = self.problem, self.vectors
        weights = torch.from_numpy(coefs).to(problem.precision).to(problem.device)
        state = self.stack.start(len(coefs))
        merged_as_products: set[str] = set()
        for first, second in adapter_pairs(problem.trained) if self.whole_runs else ():
            state[first], state[second] = self._products(first, second, weights * _factor(scale, second))
            merged_as_products |= {first, second}
        for name in problem.trained:
            if name not in merged_as_products:
                state[name] += vectors.combine(name, weights * _factor(scale, name)).to(state[name])
        return state

    def evaluate(
        self, subsets: Floats, scale: Scale, examples: Examples, metrics: Mapping[str, Metric]
    ) -> dict[str, Tensor]:
        """Metrics of subsets on every one of the examples, {metric: (m, n)}."""
        return self.stack.evaluate(self.states(subsets, scale), examples, metrics)

    def tuned(self, truth: Outcomes, scales: Iterable[float] | None = None) -> Self:
        """The same estimator with the scale that agrees best with a few true runs.

        It takes the outcomes of three or more subsets, with the names that this estimator gives. Agreement is the mean
        correlation over targets; ``trials`` of the result lists all that was tried. A few runs can be misleading: the
        current scale stays unless another one is better by more than the jackknife's standard error of the difference,
        each run being left out in turn.
        """
        rows = as_subsets(truth.subsets, self.task_names)
        grid = [self.scale, *(self._checked(scale) for scale in (self.scales if scales is None else scales))]
        found = [aligned(self._outcomes(rows, scale), truth) for scale in grid]
        scores = np.array([agreement(estimates, truth.values) for estimates in found])
        if truth.n_runs < 3 or np.isnan(scores).all():
            raise InputError(
                "The scale cannot be tuned: it takes three or more true runs of different subsets, and a target that "
                f"varies between them. Got {truth!r}."
            )
        best = int(np.nanargmax(scores))
        others = [np.delete(np.arange(truth.n_runs), run) for run in range(truth.n_runs)]
        gains = [agreement(found[best][k], truth.values[k]) - agreement(found[0][k], truth.values[k]) for k in others]
        error = np.sqrt((len(gains) - 1) * np.var(gains))
        other = copy.copy(self)
        for cached in ("scale", "_losses"):
            other.__dict__.pop(cached, None)
        other._scale = grid[best] if scores[best] - scores[0] > error else grid[0]
        other.trials = tuple(
            Trial(scale, float(score)) for scale, score in zip(grid, scores, strict=True) if isinstance(scale, float)
        )
        return other

    def concerns(self) -> list[str]:
        """Reasons against merging these vectors, from the tasks' own examples, as sentences."""
        return concerns(self)

    def check(self, truth: Outcomes) -> Trust:
        """How far to trust the estimates, from two or three true runs."""
        rows = as_subsets(truth.subsets, self.task_names)
        untrained = aligned(self._outcomes(np.zeros_like(rows[:1]), 1.0), truth)
        return trust(aligned(self._outcomes(rows, self.scale), truth), truth, untrained)

    @cached_property
    def _losses(self) -> tuple[float, float]:
        """Mean losses on the tasks' own examples, merged and untrained."""
        now, was = (float(self.losses_on_tasks(scale).double().mean()) for scale in (self.scale, 0.0))
        return now, was

    def losses_on_tasks(self, scale: Scale) -> Tensor:
        """Losses of the merge of all tasks, or of the untrained model at scale 0, on `some_examples`, (n,)."""
        everything = np.full((1, len(self.task_names)), float(scale != 0))
        return self.evaluate(everything, scale, self.some_examples, {"loss": self.problem.loss})["loss"][0]

    def loss_of_runs(self) -> float | None:
        """Mean loss of runs that saw all tasks, on `some_examples`; None if vectors are of single tasks."""
        return None

    @cached_property
    def some_examples(self) -> Examples:
        """Examples of the tasks that merged weights are tried on."""
        tasks = self.problem.tasks
        n = min(len(tasks), SOME_EXAMPLES)
        rows = np.sort(np.random.default_rng(self.seed).choice(len(tasks), n, replace=False))
        index = torch.from_numpy(rows).to(self.problem.device)
        return Examples(*tasks.rows(index), tasks.owner[index], tasks.names)

    def _outcomes(self, rows: Floats, scale: Scale) -> dict[str, Floats]:
        def some(part: slice) -> dict[str, Floats]:
            return self.problem.outcomes(self.evaluate(rows[part], scale, self.problem.targets, self.problem.metrics))

        return joined(self._chunks.run(len(rows), some))

    def _checked(self, scale: object) -> Scale:
        if isinstance(scale, Mapping):
            for pattern, value in scale.items():
                if not any(fnmatch(name, pattern) for name in self.problem.trained):
                    known = some_of(self.problem.trained)
                    raise InputError(f"No trained parameter is named {pattern!r}, as in the scale. There are: {known}.")
                self._checked(value)
            return dict(scale)
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not np.isfinite(scale):
            raise InputError(f"A scale must be a finite number, or numbers by parameter name. Got {scale!r}.")
        return float(scale)

    def _products(self, first: str, second: str, coefs: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of an adapter that adds (1 − Σc) B₀A₀ + Σ_k c_k B_k A_k."""
        A0, B0 = self.problem.start[first], self.problem.start[second]
        A = torch.cat([A0[None], A0 + self.vectors.stack(first).to(A0)])
        B = torch.cat([B0[None], B0 + self.vectors.stack(second).to(B0)])
        return merge_products(A, B, torch.cat([1 - coefs.sum(1, keepdim=True), coefs], dim=1).to(B0))

    def _with_statistics(self, state: State, subsets: Floats) -> State:
        """The states with running statistics of the merged models on the examples of their subsets."""
        problem = self.problem
        rows = np.flatnonzero(subsets.sum(1) > 0)
        if self._statistics_fn is None or not len(rows):
            return state
        sampling = Recipe(steps=1, batch_size=STATISTICS_ROWS, weighting=self.weighting)
        (drawn,) = draw_batches(subsets[rows], np.full(len(rows), self.seed), problem.tasks.sizes, sampling, 1)
        inputs, _ = problem.tasks.rows(torch.from_numpy(drawn).to(problem.device))
        place = torch.from_numpy(rows).to(problem.device)
        part = {name: value[place] for name, value in state.items()}
        with torch.no_grad(), problem.own_randomness(self.seed):
            if self.stack.batched:
                side_by_side(self._statistics_fn, (0, 0), part, inputs)
            else:
                for row, one in enumerate(unstacked(part)):
                    self._statistics_fn(one, tree_map(lambda leaf, row=row: leaf[row], inputs))
        for name in set(state) - set(problem.trained):
            state[name][place] = part[name]
        return state

    @cached_property
    def _statistics_fn(self) -> ModelFn | None:
        """The model in training, where one batch replaces all running statistics; None without any."""
        module = copy.deepcopy(self.problem.train_fn.module)
        norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
        for norm in norms:
            norm.momentum = 1.0
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
        return ModelFn(module, self.problem.train_fn.fixed) if norms else None


def _factor(scale: Scale, name: str) -> float:
    """Scale of one parameter: that of the first pattern that it fits, else 1."""
    if isinstance(scale, Mapping):
        return next((value for pattern, value in scale.items() if fnmatch(name, pattern)), 1.0)
    return scale


# ---- adapters --------------------------------------------------------------------------------------------


def adapter_pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Names of the two factors of each adapter, as peft calls them, of which both are there.

    >>> adapter_pairs(["q.lora_A.default.weight", "q.lora_B.default.weight", "head.weight"])
    [('q.lora_A.default.weight', 'q.lora_B.default.weight')]
    """
    known = list(names)
    pairs = [(name, re.sub(r"\b(lora_(?:embedding_)?)A\b", r"\1B", name)) for name in known]
    return [(first, second) for first, second in pairs if second != first and second in known]


def merge_products(first: Tensor, second: Tensor, coefs: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (m, K·r, ...) and (m, out, K·r, ...) of Σ_k c_k B_k A_k, from A (K, r, ...), B (K, out, r, ...), c.

    Averaging factors gives (mean B)·(mean A), which is not what the runs have learned; the mean of the products is. It
    is a product again, of a higher rank: ``[c₁B₁ … c_K B_K]·[A₁; …; A_K]``. So merging makes no matrix of the size of
    the weight. The first factor is the same for all rows, and takes the memory of one.

    >>> import torch
    >>> A, B = torch.randn(3, 2, 5), torch.randn(3, 4, 2)
    >>> a, b = merge_products(A, B, torch.tensor([[0.5, 0.5, 0.0]]))
    >>> torch.allclose(b[0] @ a[0], (B[0] @ A[0] + B[1] @ A[1]) / 2, atol=1e-6)
    True
    """
    m, k = coefs.shape
    scaled = coefs.view(m, k, *[1] * (second.ndim - 1)) * second
    sides = scaled.movedim(1, 2).flatten(2, 3)
    return first.flatten(0, 1).expand(m, -1, *first.shape[2:]), sides
