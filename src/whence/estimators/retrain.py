"""True outcomes by training: a fresh copy of a model on the tasks of a subset, and what it does on the targets.

The slow and true outcome function, which estimates are held against. Small models are trained many at a time (see
training.py); `whence.measure` makes the loop over subsets durable.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from numpy.typing import ArrayLike

from whence.arrays import Floats, Integers
from whence.estimators.digests import problem_digests
from whence.estimators.subsets import SubsetLike, as_seeds, as_subset, as_subsets
from whence.measuring.fingerprint import parts_of
from whence.models.memory import MOST_AT_ONCE, Chunks, free_bytes
from whence.models.points import Checkpoint, state_of
from whence.models.problem import Problem, State
from whence.models.recipe import Recipe
from whence.models.stack import Batched, Stack
from whence.models.targets import joined, single
from whence.models.training import bytes_per_model, train

Init = Callable[[int], Checkpoint]


class Retrain:
    """Outcome function that trains a fresh copy of the model on each subset, and evaluates it on the targets.

    The empty subset leaves the model unchanged. If training diverges, the outcome is NaN. Runs equal a plain loop over
    batches with ``torch.optim``, to floating-point tolerance, whether made one at a time or side by side.

    Parameters
    ----------
    problem : Problem
        The model, the tasks to train on, and the targets to evaluate on.
    recipe : Recipe
        How to train.
    init : callable, optional
        ``init(seed)`` returns the start of a run: a module like the problem's, or a mapping of names to tensors that
        contains the trained parameters. By default runs start from the weights of the problem's model.
    batched : bool or "auto"
        Whether runs are made side by side. "auto": if the model allows it and, on a processor, is small.
    batch_size : int, optional
        How many runs side by side; by default as many as memory allows, up to 256.

    Examples
    --------
    >>> inputs = torch.eye(4)
    >>> tasks = {"zeros": (inputs[:2], torch.tensor([0, 0])), "ones": (inputs[2:], torch.tensor([1, 1]))}
    >>> model = torch.nn.Linear(4, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> target = (inputs, torch.tensor([0, 0, 1, 1]))
    >>> outcome = Retrain(Problem(model, tasks, target, metrics="accuracy"), Recipe(steps=20, lr=0.1))
    >>> outcome([1, 1], seed=0)["accuracy"]
    1.0
    >>> outcome.batch([[0, 0], [1, 0], [1, 1]], [0, 0, 0])["accuracy"]
    array([0.5, 0.5, 1. ])
    """

    batch: Callable[[ArrayLike, ArrayLike], dict[str, Floats]]

    def __init__(
        self,
        problem: Problem,
        recipe: Recipe,
        *,
        init: Init | None = None,
        batched: Batched = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.problem, self.recipe, self.init = problem, recipe, init
        self.stack = Stack(problem, batched, full_batches=recipe.batch_size is None)
        self.task_names, self.maximize = problem.task_names, problem.maximize
        if init is not None:
            self._drawn(0)
        if self.stack.batched:
            fits = free_bytes(self.problem.device) // bytes_per_model(self.problem, recipe)
            self._chunks = Chunks(min(fits, MOST_AT_ONCE) if batch_size is None else batch_size)
            # Only an outcome function that gains from it offers batches; others can be spread over processes.
            if self.batch_size > 1:
                self.batch = self._batch

    @property
    def batch_size(self) -> int:
        """Number of runs that are made side by side."""
        return self._chunks.size if self.stack.batched else 1

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the outcomes depend on, apart from the recipe: the model, the tasks, the targets."""
        start = {} if self.init is None else {f"init: {name}": found for name, found in parts_of(self.init)}
        return problem_digests(self.problem) | start

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        return {"outcomes": "retraining", "recipe": str(self.recipe)}

    def __call__(self, subset: SubsetLike, seed: int) -> dict[str, float | Floats]:
        """Outcomes of one subset: weights (K,), or the names of its tasks."""
        return single(self._outcomes(as_subset(subset, self.task_names), as_seeds([seed], 1)))

    def _batch(self, subsets: ArrayLike, seeds: ArrayLike) -> dict[str, Floats]:
        """Outcomes of subsets (m, K), each trained with its own seed."""
        rows = as_subsets(subsets, self.task_names)
        each = as_seeds(seeds, len(rows))
        return joined(self._chunks.run(len(rows), lambda part: self._outcomes(rows[part], each[part])))

    def _outcomes(self, subsets: Floats, seeds: Integers) -> dict[str, Floats]:
        return self.stack.outcomes(train(self.stack, self.recipe, self._start(seeds), subsets, seeds))

    def _start(self, seeds: Integers) -> State:
        """Where runs start, stacked."""
        if self.init is None:
            return self.stack.start(len(seeds))
        drawn = [self._drawn(int(seed)) for seed in seeds]
        return {name: torch.stack([state[name] for state in drawn]) for name in self.problem.start}

    def _drawn(self, seed: int) -> State:
        """Where one run starts, as the user's function has it."""
        assert self.init is not None
        with self.problem.own_randomness(seed):
            given = self.init(seed)
        start = self.problem.start
        return start | state_of(given, start, self.problem.trained, f"what init({seed}) returned")
