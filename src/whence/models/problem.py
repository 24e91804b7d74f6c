"""A model with the tasks it learns from and the targets it is judged on: what all estimators with a model start from.

`Problem` checks that the parts go together, and gives the outcomes of stacked states: m models side by side, their
parameters (and the buffers that change in training) in tensors of shape (m, ...), run at once under
``torch.func.vmap``. A model that cannot be run like that is run once per state, with the same results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whence.errors import DataWarning, InputError
from whence.models.examples import Examples, Given, Inputs
from whence.models.functional import Filter, ModelFn, functional, plain_attention
from whence.models.losses import Loss, Metric, loss_named, metrics_named
from whence.models.memory import bytes_per_row, free_bytes
from whence.models.targets import Floats, by_target, higher_is_better

State = dict[str, Tensor]  # parameters, and buffers that change in training: of one model, or of m with shape (m, ...)
Batched = bool | Literal["auto"]
# Above this many trained parameters, a processor is faster with one model at a time, which stays in its cache.
MOST_TRAINED_ON_CPU = 150_000


class Problem:
    """Model, tasks and targets, checked against each other.

    Parameters
    ----------
    model : nn.Module
        As `functional` takes it. Its weights are copied where they are trained, and it is never changed.
    tasks, targets : Examples, mapping of str to group, or group
        What to learn from, and the queries. See `Examples.of`.
    loss : str or Loss
        What training minimises: "cross_entropy", "logistic" or "squared".
    metrics : str or list of str
        What is measured on the targets: "loss", "accuracy", "margin".
    per_query : bool
        Whether every query is an outcome of its own, instead of their mean.
    params : filter
        Which parameters are trained; see `functional`.
    device : str or device, optional
        Where to work; that of the model where not given.
    batched : bool or "auto"
        Whether models run side by side under vmap; "auto": where the model allows it and, on a processor, is small.
    full_batches : bool
        Whether models side by side are trained on batches of all tasks, where those outside a subset count nothing.

    Attributes
    ----------
    start : State
        W₀: the parameters that are trained and the buffers that change with them, as they are in the model.
    trained : tuple of str
        Names of the parameters among them.
    batched : bool
        Whether models run side by side.
    bytes_per_row : int
        Memory that an example takes in the training of one model.

    Examples
    --------
    >>> group = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> problem = Problem(nn.Linear(2, 2), {"a": group, "b": group}, group)
    >>> problem.outcomes({name: value[None] for name, value in problem.start.items()})["loss"].shape
    (1,)
    """

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
        device: torch.device | str | None = None,
        batched: Batched = "auto",
        full_batches: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"The model must be a torch.nn.Module. Got {type(model).__name__}.")
        self.loss = loss_named(loss)
        self.metrics = metrics_named(metrics, self.loss)
        self.per_query = per_query
        self.device = torch.device(device) if device is not None else next(iter(model.parameters())).device
        self.tasks = Examples.of(tasks, "tasks").to(self.device)
        self.targets = Examples.of(targets, "target").to(self.device)
        self.output_fn, chosen = self._function(model, params, training=False)
        self.train_fn, _ = self._function(model, params, training=True)
        self.trained = tuple(chosen)
        self.start = {name: value.to(self.device, copy=True) for name, value in chosen.items()}
        with self.own_randomness():
            self._check_labels()
            self.start.update(self._buffers_that_change(model))
            self.bytes_per_row = self._bytes_per_row()
            n_trained = sum(self.start[name].numel() for name in self.trained)
            small = self.device.type != "cpu" or n_trained <= MOST_TRAINED_ON_CPU
            wanted = small if batched == "auto" else batched
            normalizes = any(isinstance(module, _BatchNorm) for module in model.modules())
            obstacle = self._obstacle(normalizes and full_batches) if wanted else ""
        if obstacle and batched is True:
            raise InputError(f"Models cannot be run side by side: {obstacle}. Give batched=False.")
        if obstacle:
            warnings.warn(
                f"Models are run one at a time: {obstacle}. (With batched=False this goes without saying.)",
                DataWarning,
                stacklevel=3,
            )
        self.batched = wanted and not obstacle

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the columns of subsets."""
        return self.tasks.names

    @property
    def precision(self) -> torch.dtype:
        """That of sums: of the trained parameters, and single precision at least."""
        return torch.promote_types(self.start[self.trained[0]].dtype, torch.float32)

    @property
    def maximize(self) -> tuple[str, ...]:
        """Names of the outcomes for which higher is better."""
        return higher_is_better(self.metrics, self.targets, per_query=self.per_query)

    def started(self, m: int) -> State:
        """W₀ of m models, stacked."""
        return {name: value.repeat(m, *[1] * value.ndim) for name, value in self.start.items()}

    def losses(self, state: State, inputs: Inputs, labels: Tensor) -> Tensor:
        """Loss of each example in training, (n,), of one model."""
        return self.loss(self.train_fn(state, inputs), labels)

    def values(self, state: State) -> dict[str, Tensor]:
        """Metrics of stacked states on every query, {metric: (m, q)}."""
        return self.evaluate(state, self.targets, self.metrics)

    @torch.no_grad()
    def evaluate(self, state: State, examples: Examples, metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
        """Metrics of stacked states on every one of the examples, {metric: (m, n)}."""
        m = len(next(iter(state.values())))
        fits = free_bytes(self.device) // (m * self.bytes_per_row)
        parts: dict[str, list[Tensor]] = {name: [] for name in metrics}
        for block in examples.blocks(max(1, min(fits, len(examples)))):
            inputs, labels = examples.rows(block)
            outputs = self.outputs(state, inputs)
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            for name, metric in metrics.items():
                parts[name].append(metric(outputs, labels))
        return {name: torch.cat(part, dim=1) for name, part in parts.items()}

    def outputs(self, state: State, inputs: Inputs) -> Tensor:
        """Outputs of stacked states on the same inputs, (m, n, C), as when the model is used."""
        if self.batched:
            return side_by_side(self.output_fn, (0, None), state, inputs)
        return torch.stack([self.output_fn(one, inputs) for one in unstacked(state)])

    def outcomes(self, state: State) -> dict[str, Floats]:
        """Outcomes of stacked states by name, (m,) or (m, q_t)."""
        return by_target(self.values(state), self.targets, per_query=self.per_query)

    @contextmanager
    def own_randomness(self, seed: int = 0) -> Iterator[None]:
        """Random numbers of their own, and those of everybody else as they were afterwards."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _function(self, model: nn.Module, params: Filter, *, training: bool) -> tuple[ModelFn, State]:
        output_fn, chosen = functional(model, params, training=training)
        return ModelFn(output_fn.module, {k: v.to(self.device) for k, v in output_fn.fixed.items()}), chosen

    def _check_labels(self) -> None:
        for what, examples in (("tasks", self.tasks), ("target", self.targets)):
            with torch.no_grad():
                outputs = self.output_fn(self.start, self._rows(examples)[0])
            self.loss.check(outputs, examples.labels, what)

    def _rows(self, examples: Examples, n: int = 2) -> tuple[Inputs, Tensor]:
        """Some rows to try things with; two or more, if need be the same twice, for batch statistics to exist."""
        return examples.rows(torch.arange(n, device=self.device) % len(examples))

    def _buffers_that_change(self, model: nn.Module) -> State:
        """Buffers that a forward pass in training writes to, such as running statistics."""
        buffers = {name: value.detach() for name, value in model.named_buffers()}
        copies = {name: value.to(self.device, copy=True) for name, value in buffers.items()}
        with torch.no_grad():
            self.train_fn({**self.start, **copies}, self._rows(self.tasks)[0])
        # Statistics may happen to stay what they are in two rows.
        known = {
            f"{place}.{name}" if place else name
            for place, module in model.named_modules()
            if isinstance(module, _BatchNorm)
            for name, _ in module.named_buffers()
        }
        start = {name: value.to(self.device, copy=True) for name, value in buffers.items()}
        return {name: value for name, value in start.items() if name in known or not torch.equal(value, copies[name])}

    def _bytes_per_row(self) -> int:
        """Bytes that a forward pass of one model keeps for the backward pass, for each example."""
        state = {name: value.clone().requires_grad_(name in self.trained) for name, value in self.start.items()}
        return bytes_per_row(lambda n: self.losses(state, *self._rows(self.tasks, n)).sum())

    def _obstacle(self, mixes_subsets: bool) -> str:
        """Why models cannot run side by side, in training and in use; empty where they can."""
        if mixes_subsets:
            return "with batch normalisation, full batches must hold the examples of one subset only"
        two: Any = {name: torch.stack([value, value]) for name, value in self.start.items()}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("error", message="There is a performance drop")
                for output_fn, examples in ((self.train_fn, self.tasks), (self.output_fn, self.targets)):
                    side_by_side(output_fn, (0, None), two, self._rows(examples)[0])
        except Exception as error:
            text = " ".join(str(error).split())
            if "randomness" in text:
                return "the model draws random numbers in training (dropout)"
            return f"torch.func.vmap cannot run the model ({text[:200]})"
        return ""


def side_by_side(function: Callable[..., Tensor], in_dims: tuple[int | None, ...], *args: Any) -> Tensor:
    """Results of a function of one model for all models of a stack; an ``in_dims`` of None is for what they share."""
    with plain_attention():
        found: Tensor = torch.func.vmap(function, in_dims=in_dims)(*args)
    return found


def unstacked(state: State) -> list[State]:
    """States of single models, as views.

    Examples
    --------
    >>> unstacked({"weight": torch.tensor([1.0, 2.0])})
    [{'weight': tensor(1.)}, {'weight': tensor(2.)}]
    """
    m = len(next(iter(state.values())))
    return [{name: value[row] for name, value in state.items()} for row in range(m)]
