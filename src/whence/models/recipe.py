"""How a model is trained: the recipe that retraining and merging share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from whence.errors import InputError, counted, did_you_mean, whole_number
from whence.models.optimizers import Optimizer, optimizer_named

Weighting = Literal["sample", "task"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]
CHOICES = {"schedule": get_args(Schedule), "weighting": get_args(Weighting), "precision": get_args(Precision)}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Optimizer, schedule and sampling of a training.

    Every step draws ``batch_size`` examples at random, with replacement, from the tasks of the subset.

    Parameters
    ----------
    steps : int
        Number of updates.
    lr : float
        Learning rate after the warm-up.
    optimizer : {"adamw", "sgd", "sam", "nso"} or Optimizer
        As in ``torch.optim``, or one that finds flat minima ("sam", "nso"). To set options, give an object of
        `whence.models.optimizers`, such as ``SGD(momentum=0.9)`` or ``SAM(base="adamw", rho=0.1)``.
    batch_size : int or None
        Examples per update. None: every update takes the mean over all examples of the subset.
    accumulate : int
        Number of passes that each batch is split into, to save memory. Their gradients are added up, and the update is
        the same (except for batch normalisation, which sees one pass at a time).
    precision : {"float32", "bfloat16"}
        Precision of the forward pass: "bfloat16" uses ``torch.autocast``. Parameters, losses and updates do not change.
    weight_decay : float
    schedule : {"constant", "linear", "cosine"}
        Learning rate after the warm-up; linear and cosine fall to 0 at the end of the training.
    warmup : int
        Number of updates over which the rate rises linearly to ``lr``.
    clip : float or None
        Largest norm of the gradient; larger ones are scaled down to it.
    weighting : {"sample", "task"}
        "sample": all examples of the subset are equally likely, so a task counts by its size. "task": all tasks are
        equally likely, whatever their size. If the subset has weights, the probability of a task (or of each of its
        examples) is proportional to its weight. "sample" is the default everywhere in whence.

    Examples
    --------
    >>> recipe = Recipe(steps=4, lr=0.1, schedule="linear", warmup=2)
    >>> [round(recipe.rate(step), 3) for step in range(4)]
    [0.05, 0.1, 0.1, 0.05]
    """

    steps: int
    lr: float = 1e-3
    optimizer: str | Optimizer = "adamw"
    batch_size: int | None = 32
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup: int = 0
    clip: float | None = None
    weighting: Weighting = "sample"
    accumulate: int = 1
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        optimizer_named(self.optimizer)
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"There is no {name} {value!r} for a recipe. {did_you_mean(str(value), known)}")
        whole_number(self.steps, "steps", of="Recipe")
        whole_number(self.warmup, "warmup", 0, of="Recipe")
        whole_number(self.accumulate, "accumulate", of="Recipe")
        if self.batch_size is not None:
            whole_number(self.batch_size, "batch_size", of="Recipe")
            if self.accumulate > self.batch_size:
                raise InputError(
                    f"A batch of {counted(self.batch_size, 'example')} cannot be made in {self.accumulate} passes: "
                    "lower 'accumulate'."
                )
        for name in ("lr", "weight_decay", "clip"):
            value, positive = getattr(self, name), name != "weight_decay"
            if value is not None and not (math.isfinite(value) and (value > 0 if positive else value >= 0)):
                wanted = "a finite number above 0" if positive else "a finite number, 0 or more"
                raise InputError(f"must be {wanted}. Got {value!r} instead.", parameter=name, of="Recipe")
        if self.warmup > self.steps:
            raise InputError(
                f"The warm-up must not be longer than the training, {self.steps} steps. Got {self.warmup}."
            )

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        if self.schedule == "linear":
            return self.lr * (1 - done)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        return self.lr

    @property
    def settings(self) -> dict[str, object]:
        """What the result of training depends on, by name, as JSON values."""
        usual = {field.name: field.default for field in fields(self)}
        found = {**asdict(self), "optimizer": str(self.update)}
        later = [name for name in ("accumulate", "precision") if name == "accumulate" or found[name] == usual[name]]
        return {name: value for name, value in found.items() if name not in later}

    @property
    def update(self) -> Optimizer:
        """The optimizer, with its options."""
        return optimizer_named(self.optimizer)

    def __str__(self) -> str:
        """Steps, optimizer and rate, and everything else that is not the default."""
        told = ("steps", "optimizer", "lr", "batch_size")
        usual = {field.name: field.default for field in fields(self)}
        others = [name for name in usual if name not in told and getattr(self, name) != usual[name]]
        size = f"batches of {self.batch_size}" if self.batch_size else "full batches"
        extra = "".join(f", {name} {getattr(self, name)}" for name in others)
        return f"{counted(self.steps, 'step')} of {self.update}, lr {self.lr:g}, {size}{extra}"
