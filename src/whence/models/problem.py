"""A model with the tasks to train on and the targets to evaluate on: what every estimator and baseline takes.

`Problem` checks once that the parts fit together. A `Recipe` says how to train, a `Stack` runs many models at once, and
each method decides what to estimate and how.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from whence.arrays import Floats
from whence.errors import DataWarning, InputError, brief, counted, did_you_mean, some_of
from whence.models.callables import TRIED, GivenLoss, OwnMetric, as_loss
from whence.models.examples import Collate, Examples, Given, Inputs, names_alone
from whence.models.functional import Filter, ModelFn, functional, plain_attention
from whence.models.losses import CrossEntropy, NextToken
from whence.models.memory import bytes_per_row, peak_bytes
from whence.models.metrics import METRICS, GivenMetrics, metrics_named
from whence.models.targets import outcome_names

LIKE = 0.05  # relative difference of outputs that precision and kernels may make
State = dict[str, Tensor]  # parameters, and buffers that change in training: of one model, or of m with shape (m, ...)


class Problem:
    """Model, tasks and targets, checked against each other.

    Parameters
    ----------
    model : nn.Module
        At W₀, where runs start; for influence functions and similar methods, trained on all tasks. It returns a row of
        outputs per input of a batch (see `whence.models.functional.functional`). It is copied, never changed. If some
        of its parameters require no gradient, as with adapters, only the others are trained.
    tasks : mapping of str to (inputs, labels) or Dataset, or list of str
        The groups of examples that subsets choose from. For existing checkpoints, names are enough; see
        `TaskVectors.from_checkpoints`.
    targets : (inputs, labels), Dataset, or mapping of str to those
        The queries to evaluate on.
    loss : {"cross_entropy", "next_token", "logistic", "squared"}, callable or Loss
        What training minimises. "next_token" is for causal language models, whose labels are their tokens; "logistic"
        also takes several labels per example. A function of (outputs, labels) such as ``nn.MSELoss()`` is called with
        each example as a batch of one; the loss of a batch is the mean over its examples.
    metrics : str, callable, list of those, or mapping of str to callable
        What to measure on the targets: "loss", "accuracy", "margin", or functions of (outputs, labels) that return a
        number for each query, or one for all queries of a target. Influence functions and similar methods always use
        the loss.
    maximize : sequence of str, optional
        Metrics for which higher is better; by default "accuracy" and "margin".
    collate : callable, optional
        Makes a batch from a list of examples of a Dataset, as in a ``DataLoader``: a pair (inputs, labels), or a dict
        with "labels", as the collators of Hugging Face return it. All tasks are collated together, so they are padded
        to one length.
    per_query : bool
        Whether every query is a separate outcome, instead of their mean.
    params : str, iterable of str or callable, optional
        Which parameters are trained: names or patterns such as ``"head.*"``, or a test of the name. By default those
        that require a gradient.
    device : str or device, optional
        Where to work; by default where the model is.

    Attributes
    ----------
    start : State
        W₀: the trained parameters and the buffers that change with them, with their values in the model.
    trained : tuple of str
        Names of the parameters among them.
    bytes_per_row : int
        Memory per example in the training of one model.

    Examples
    --------
    >>> group = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> Problem(nn.Linear(2, 2), {"a": group, "b": group}, group)
    Problem: Linear with 6 of 6 parameters trained; 2 tasks (a, b), 6 examples; 3 queries; loss
    """

    def __init__(
        self,
        model: nn.Module,
        tasks: Given,
        targets: Given,
        *,
        loss: GivenLoss = "cross_entropy",
        metrics: GivenMetrics = "loss",
        maximize: Sequence[str] | None = None,
        collate: Collate | None = None,
        per_query: bool = False,
        params: Filter = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"The model must be a torch.nn.Module. Got {type(model).__name__}.")
        self.per_query = per_query
        self.device = torch.device(device) if device is not None else next(iter(model.parameters())).device
        self.targets = Examples.of(targets, "target", collate).to(self.device)
        self.has_examples = not names_alone(tasks)
        stand_in = self.targets.standing_for(tasks) if names_alone(tasks) else tasks
        self.tasks = Examples.of(stand_in, "tasks", collate).to(self.device)
        self.output_fn, chosen = self._function(model, params, training=False)
        self.train_fn, _ = self._function(model, params, training=True)
        self.trained = tuple(chosen)
        self.start = {name: value.to(self.device, copy=True) for name, value in chosen.items()}
        with self.own_randomness():
            outputs = {what: self._tried(what) for what in ("tasks", "target")}
            self.shape = tuple(outputs["tasks"].shape[1:])
            self.loss = as_loss(loss, self.shape, self.tasks.labels)
            for what, examples in (("tasks", self.tasks), ("target", self.targets)):
                self.loss.check(outputs[what], examples.labels, what)
                if isinstance(self.loss, CrossEntropy) and not isinstance(self.loss, NextToken):
                    _refuse_inputs_as_labels(examples, self.loss.ignored)
            self.metrics = metrics_named(metrics, self.loss, self.targets.labels, self.shape)
            self.up = self._checked_directions(maximize)
            for own in self.metrics.values():
                if isinstance(own, OwnMetric):
                    self._check_metric(own, outputs["target"])
            self._warn_of_outputs(outputs["target"])
            self.start.update(self._buffers_that_change(model))
            self.bytes_per_row = self._bytes_per_row()

    def __repr__(self) -> str:
        tasks = f"{counted(len(self.task_names), 'task')} ({some_of(self.task_names)})"
        return (
            f"Problem: {type(self.output_fn.module).__name__} with {self.n_trained:,} of {self.n_params:,} parameters "
            f"trained; {tasks}, {counted(len(self.tasks), 'example')}; {len(self.targets)} "
            f"{'query' if len(self.targets) == 1 else 'queries'}; {', '.join(self.metrics)}"
        )

    @property
    def n_params(self) -> int:
        """Number of parameters of the model."""
        return sum(value.numel() for value in self.output_fn.module.parameters())

    @property
    def n_trained(self) -> int:
        """Number of parameters that are trained."""
        return sum(self.start[name].numel() for name in self.trained)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the columns of subsets."""
        return self.tasks.names

    @property
    def query_owner(self) -> Tensor:
        """Number of the outcome of each query, (q,): that of its target, or its own with ``per_query``."""
        return torch.arange(len(self.targets), device=self.device) if self.per_query else self.targets.owner

    @property
    def precision(self) -> torch.dtype:
        """That of sums: of the trained parameters, and single precision at least."""
        return torch.promote_types(self.start[self.trained[0]].dtype, torch.float32)

    @property
    def maximize(self) -> tuple[str, ...]:
        """Names of the outcomes for which higher is better."""
        sizes = self.targets.sizes if self.per_query else [0] * len(self.targets.names)
        return tuple(
            f"{name}{column}"
            for metric in self.up
            for name, size in zip(outcome_names(metric, self.targets.names), sizes, strict=True)
            for column in ([f"[{query}]" for query in range(size)] or [""])
        )

    def outcomes(self, values: Mapping[str, Tensor]) -> dict[str, Floats]:
        """Outcomes of m subsets by name, (m,) or (m, q_t) per query, from metrics of every query, (m, q).

        Values of a user's metric that judges all queries together are outputs, (m, q, C). What is not finite, as
        after a training that diverged, is NaN.
        """
        sizes = self.targets.sizes.tolist()
        labels = torch.split(self.targets.labels, sizes)
        found: dict[str, Floats] = {}
        for metric, value in values.items():
            judge = self.metrics[metric] if value.ndim > 2 else None
            parts = torch.split(value.detach(), sizes, dim=1)
            for name, part, own in zip(outcome_names(metric, self.targets.names), parts, labels, strict=True):
                judged = (judge.of_all(part, own) if isinstance(judge, OwnMetric) else part).double().cpu().numpy()
                array = np.where(np.isfinite(judged), judged, np.nan)
                found[name] = array if self.per_query or array.ndim == 1 else array.mean(1)
        return found

    def losses(self, state: State, inputs: Inputs, labels: Tensor) -> Tensor:
        """Loss of each example in training, (n,), of one model."""
        outputs = self.train_fn(state, inputs)
        return self.loss(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), labels)

    def on_loss(self) -> Problem:
        """The same problem with the loss as its only metric."""
        other = copy.copy(self)
        other.metrics, other.up = {"loss": self.loss}, ()
        return other

    def at(self, state: State) -> Problem:
        """The same problem with other weights of the model, which must include the trained ones."""
        other = copy.copy(self)
        other.start = {**self.start, **{name: state[name] for name in self.start if name in state}}
        return other

    def with_examples(self, tasks: Examples, targets: Examples) -> Problem:
        """The same model with other examples of the same kind, which are not checked again."""
        other = copy.copy(self)
        other.tasks, other.targets = tasks.to(self.device), targets.to(self.device)
        return other

    @contextmanager
    def own_randomness(self, seed: int = 0) -> Iterator[None]:
        """Use separate random numbers, and restore the global generators afterwards."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _function(self, model: nn.Module, params: Filter, *, training: bool) -> tuple[ModelFn, State]:
        output_fn, chosen = functional(model, params, training=training)
        return ModelFn(output_fn.module, {k: v.to(self.device) for k, v in output_fn.fixed.items()}), chosen

    def _tried(self, what: str) -> Tensor:
        """Outputs of some examples, as the model gives them."""
        examples = self.tasks if what == "tasks" else self.targets
        inputs, _ = self.some_rows(examples, min(len(examples), TRIED))
        try:
            with torch.no_grad():
                outputs = self.output_fn.as_given(self.start, inputs)
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The model cannot take the inputs of the {what} ({brief(error)}).{_dtype_hint(self.start, inputs)}"
            ) from error
        if len(outputs) != min(len(examples), TRIED):
            raise InputError(
                f"The model must return one row of outputs per example. Got shape {tuple(outputs.shape)} for "
                f"{counted(min(len(examples), TRIED), 'example')} of the {what}."
            )
        return outputs if outputs.ndim > 1 else outputs[:, None]

    def _check_metric(self, own: OwnMetric, outputs: Tensor) -> None:
        """Try a user's metric on some queries, and on all if it fails: it may need several classes."""
        labels = self.targets.labels
        try:
            own.check(outputs, labels[: len(outputs)], per_query=self.per_query)
        except InputError:
            if len(labels) <= len(outputs):
                raise
            with torch.no_grad():
                parts = [self.output_fn(self.start, self.targets.rows(rows)[0]) for rows in self.targets.blocks(256)]
            own.check(torch.cat(parts), labels, per_query=self.per_query)

    def _warn_of_outputs(self, outputs: Tensor) -> None:
        """Warn if the model answers the same targets differently, in evaluation: again, or beside fewer others."""
        few = min(len(outputs), 2)
        size = LIKE * float(outputs.abs().nan_to_num(posinf=0.0).max())

        def differs(n: int) -> bool:
            inputs, _ = self.some_rows(self.targets, n)
            with torch.no_grad():
                found = self.output_fn.as_given(self.start, inputs)
            alike = found.numel() == outputs[:n].numel()  # sequences may be cut to the longest of a batch
            return alike and not torch.allclose(
                found.view_as(outputs[:n]), outputs[:n], rtol=LIKE, atol=size, equal_nan=True
            )

        if differs(len(outputs)):
            what, cause = "two passes over the same target differ", "dropout called as a function, sampling"
        elif len(outputs) > few and differs(few):
            what, cause = "outputs for an example depend on the others in its batch", "statistics of the batch"
        else:
            return
        warnings.warn(
            f"In evaluation mode, {what} ({cause}?), so that outcomes do too. Make the model's outputs a function of "
            "each example alone.",
            DataWarning,
            stacklevel=3,
        )

    def _checked_directions(self, maximize: Sequence[str] | None) -> tuple[str, ...]:
        """Names of the metrics for which higher is better."""
        if maximize is None:
            return tuple(name for name in self.metrics if name in METRICS)
        given = [maximize] if isinstance(maximize, str) else list(maximize)
        for name in given:
            if name not in self.metrics:
                raise InputError(f"There is no metric {name!r} to maximize. {did_you_mean(name, self.metrics)}")
        return tuple(given)

    def some_inputs(self, examples: Examples) -> Inputs:
        """Inputs of two examples, to try things with."""
        return self.some_rows(examples)[0]

    def some_rows(self, examples: Examples, n: int = 2) -> tuple[Inputs, Tensor]:
        """Some rows to try things with; two or more, if need be the same twice, for batch statistics to exist."""
        return examples.rows(torch.arange(n, device=self.device) % len(examples))

    def _buffers_that_change(self, model: nn.Module) -> State:
        """Buffers that a forward pass in training writes to, such as running statistics."""
        buffers = {name: value.detach() for name, value in model.named_buffers()}
        copies = {name: value.to(self.device, copy=True) for name, value in buffers.items()}
        with torch.no_grad():
            self.train_fn({**self.start, **copies}, self.some_inputs(self.tasks))
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

        def loss(n: int) -> Tensor:
            return self.losses(state, *self.some_rows(self.tasks, n)).sum()

        if not getattr(self.train_fn.module, "takes_stacks", False):
            with plain_attention():  # which takes the most, and is what vmap needs
                return bytes_per_row(loss)
        if self.device.type != "cuda":
            return bytes_per_row(loss)
        leaves = [state[name] for name in self.trained]

        def gradients(n: int) -> None:
            torch.autograd.grad(loss(n), leaves, materialize_grads=True)

        gradients(2)  # what is allocated only once
        few, more = (peak_bytes(partial(gradients, n), self.device) for n in (2, 4))
        return max(more - few, 512) // 2


def as_problem(given: object, *, examples: bool = True) -> Problem:
    """Return the given problem; anything else is refused.

    With ``examples``, its tasks must have examples; only merging checkpoints works without.
    """
    if not isinstance(given, Problem):
        raise InputError(
            f"The 'problem' parameter must be a whence.Problem(model, tasks, targets). Got {type(given).__name__} "
            "instead."
        )
    if examples and not given.has_examples:
        raise InputError(
            "The tasks of this problem are names without examples, which work only with TaskVectors.from_checkpoints. "
            "Give {name: (inputs, labels)} as tasks."
        )
    return given


def _refuse_inputs_as_labels(examples: Examples, ignored: int) -> None:
    """Refuse labels of a sequence that are its own inputs: a model that copies would be the best."""
    counts = examples.labels != ignored
    for leaf in tree_leaves(examples.inputs):
        same = leaf.shape == examples.labels.shape and examples.labels.ndim > 1
        if same and bool((leaf[counts] == examples.labels[counts]).all()):
            raise InputError(
                "The labels are the tokens that the model is given, each at its own place. For a causal language model "
                "give loss='next_token', which compares each place with the label of the next one."
            )


def _dtype_hint(start: Mapping[str, Tensor], inputs: Inputs) -> str:
    """What to do where inputs and parameters are of different types, as numpy's and torch's usually are."""
    params = {value.dtype for value in start.values() if value.is_floating_point()}
    for leaf in tree_leaves(inputs):
        if leaf.is_floating_point() and leaf.dtype not in params:
            (own, *_) = params or {leaf.dtype}
            return f" The inputs are {leaf.dtype} and the parameters {own}: convert them, as with inputs.to({own})."
    return ""
