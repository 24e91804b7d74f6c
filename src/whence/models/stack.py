"""Many models of one problem at once: m states, their parameters in tensors of shape (m, ...).

A stack is run side by side under ``torch.func.vmap``, so a graphics card runs as many kernels as for one model. A
model that does not allow it is run once per state, with the same results. A module with ``takes_stacks`` needs no vmap:
it takes parameters (m, ...) and m · n rows of inputs, model after model, and gives m · n rows of outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from whence.arrays import Floats
from whence.errors import DataWarning, InputError
from whence.models.examples import Examples, Inputs
from whence.models.functional import plain_attention
from whence.models.memory import Chunks, free_bytes
from whence.models.metrics import Metric
from whence.models.problem import Problem, State, as_problem

Batched = bool | Literal["auto"]
# Above this many trained parameters, a processor is faster with one model at a time, which stays in its cache.
MOST_TRAINED_ON_CPU = 150_000
DRAWS = "the model draws random numbers in training (dropout)"


class Stack:
    """How stacked states of a problem are run: side by side if ``batched``, or one at a time.

    "auto": side by side if the model allows it and, on a processor, is small. With ``full_batches``, models are trained
    on batches of all tasks, in which those outside a subset do not count.

    >>> group = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> stack = Stack(Problem(torch.nn.Linear(2, 2), {"a": group, "b": group}, group))
    >>> stack.outcomes(stack.start(5))["loss"].shape
    (5,)
    """

    def __init__(self, problem: Problem, batched: Batched = "auto", *, full_batches: bool = False) -> None:
        self.problem = as_problem(problem, examples=False)
        self.takes_stacks = bool(getattr(self.problem.output_fn.module, "takes_stacks", False))
        # Whether a single model is trained by the same kernels in every step, as stacked ones always are.
        self.steady = self.takes_stacks and not self._draws()
        small = problem.device.type != "cpu" or problem.n_trained <= MOST_TRAINED_ON_CPU
        wanted = small if batched == "auto" else batched
        obstacle = self._obstacle(full_batches=full_batches) if wanted else ""
        if obstacle and batched is True:
            raise InputError(f"Models cannot be run side by side: {obstacle}. Give batched=False.")
        if obstacle:
            warnings.warn(
                f"Models are run one at a time: {obstacle}. (Give batched=False to silence this warning.)",
                DataWarning,
                stacklevel=3,
            )
        self.batched = wanted and not obstacle

    def start(self, m: int) -> State:
        """W₀ of m models, stacked."""
        return {name: value.repeat(m, *[1] * value.ndim) for name, value in self.problem.start.items()}

    def outputs(self, state: State, inputs: Inputs) -> Tensor:
        """Outputs of stacked states on the same inputs, (m, n, C), in evaluation mode."""
        output_fn = self.problem.output_fn
        if self.batched:
            return self.side_by_side(output_fn, (0, None), state, inputs)
        return torch.stack([output_fn(one, inputs) for one in unstacked(state)])

    @torch.no_grad()
    def evaluate(self, state: State, examples: Examples, metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
        """Metrics of stacked states on every example, {metric: (m, n)}."""
        m = len(next(iter(state.values())))
        fits = free_bytes(self.problem.device) // (m * self.problem.bytes_per_row)
        most = getattr(self.problem.output_fn.module, "most_rows", len(examples) * m) // m

        def some(block: slice) -> dict[str, Tensor]:
            inputs, labels = examples.rows(block)
            outputs = self.outputs(state, inputs)
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            return {name: metric(outputs, labels) for name, metric in metrics.items()}

        parts = Chunks(min(fits, most)).run(len(examples), some)
        return {name: torch.cat([part[name] for part in parts], dim=1) for name in metrics}

    def side_by_side(
        self, function: Callable[..., Tensor], in_dims: tuple[int | None, ...], state: State, *rest: Inputs
    ) -> Tensor:
        """Results (m, n, …) of a function of one model and n examples, for all models; see `side_by_side`."""
        if not self.takes_stacks:
            return side_by_side(function, in_dims, state, *rest)
        m = len(next(iter(state.values())))

        def flat(leaf: Tensor, dim: int | None) -> Tensor:
            return leaf.repeat(m, *[1] * (leaf.ndim - 1)) if dim is None else leaf.flatten(0, 1)

        given = [tree_map(partial(flat, dim=dim), arg) for arg, dim in zip(rest, in_dims[1:], strict=True)]
        found = function(state, *given)
        return found.reshape(m, -1, *found.shape[1:])

    def outcomes(self, state: State) -> dict[str, Floats]:
        """Outcomes of stacked states by name, (m,) or (m, q_t)."""
        return self.problem.outcomes(self.evaluate(state, self.problem.targets, self.problem.metrics))

    def _obstacle(self, *, full_batches: bool) -> str:
        """Why models cannot run side by side, in training and in use; empty if they can."""
        problem = self.problem
        if full_batches and any(isinstance(module, _BatchNorm) for module in problem.train_fn.module.modules()):
            return "with batch normalisation, full batches must hold the examples of one subset only"
        if self.takes_stacks and not self.steady:
            return DRAWS
        two = {name: torch.stack([value, value]) for name, value in problem.start.items()}
        rows: tuple[Inputs, ...] = problem.some_rows(problem.tasks)
        # Where models train on examples of their own, a model may look at these: vmap must not have to.
        dims = (0, None, None) if full_batches else (0, 0, 0)
        given = rows if full_batches else tree_map(lambda leaf: torch.stack([leaf, leaf]), rows)
        try:
            with problem.own_randomness(), torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("error", message="There is a performance drop")
                self.side_by_side(problem.losses, dims, two, *given)
                self.side_by_side(problem.output_fn, (0, None), two, problem.some_rows(problem.targets)[0])
        except Exception as error:
            text = " ".join(str(error).split())
            if "randomness" in text:
                return DRAWS
            return f"torch.func.vmap cannot run the model ({text[:200]})"
        return ""

    def _draws(self) -> bool:
        """Whether losses in training depend on random numbers that the model draws."""

        def losses(seed: int) -> Tensor:
            with self.problem.own_randomness(seed), torch.no_grad():
                return self.problem.losses(self.problem.start, *self.problem.some_rows(self.problem.tasks))

        return not torch.allclose(losses(0), losses(1), rtol=1e-3)


def side_by_side(function: Callable[..., Tensor], in_dims: tuple[int | None, ...], *args: State | Inputs) -> Tensor:
    """Results of a function of one model for all models of a stack; arguments with ``in_dims`` None are shared."""
    with plain_attention():
        found: Tensor = torch.func.vmap(function, in_dims=in_dims)(*args)
    return found


def unstacked(state: State) -> list[State]:
    """States of single models, as views.

    >>> unstacked({"weight": torch.tensor([1.0, 2.0])})
    [{'weight': tensor(1.)}, {'weight': tensor(2.)}]
    """
    m = len(next(iter(state.values())))
    return [{name: value[row] for name, value in state.items()} for row in range(m)]
