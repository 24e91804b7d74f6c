"""How a model is trained: the recipe that retraining and merging share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from whence.errors import InputError, counted, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

Choices = dict[str, tuple[str, ...]]
CHOICES: Choices = {
    "optimizer": ("adamw", "sgd"),
    "schedule": ("constant", "linear", "cosine"),
    "weighting": ("sample", "task"),
}


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
    optimizer : {"adamw", "sgd"}
        As in ``torch.optim``.
    batch_size : int or None
        Examples per update. None: every update takes the mean over all examples of the subset.
    weight_decay : float
    betas, eps
        Of AdamW.
    momentum, nesterov
        Of SGD.
    schedule : {"constant", "linear", "cosine"}
        How the rate goes on after the warm-up; linear and cosine fall to 0 at the end of the training.
    warmup : int
        Number of first updates over which the rate rises in equal parts to ``lr``.
    clip : float or None
        Longest gradient; longer ones are shortened to it.
    weighting : {"sample", "task"}
        "sample": all examples of the subset are equally likely, so that a task counts by its size. "task": all tasks
        are, whatever their size. Where the subset has weights, a task (or each of its examples) is likely in
        proportion to its weight.

    Examples
    --------
    >>> recipe = Recipe(steps=4, lr=0.1, schedule="linear", warmup=2)
    >>> [round(recipe.rate(step), 3) for step in range(4)]
    [0.05, 0.1, 0.1, 0.05]
    """

    steps: int
    lr: float = 1e-3
    optimizer: Literal["adamw", "sgd"] = "adamw"
    batch_size: int | None = 32
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    clip: float | None = None
    weighting: Literal["sample", "task"] = "sample"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"There is no {name} {value!r} for a recipe. {did_you_mean(str(value), known)}")
        self._check_whole("steps", 1)
        self._check_whole("warmup", 0)
        if self.batch_size is not None:
            self._check_whole("batch_size", 1)
        for name, least in {"lr": 0.0, "weight_decay": 0.0, "momentum": 0.0, "eps": 0.0, "clip": 0.0}.items():
            value = getattr(self, name)
            positive = name in ("lr", "clip")
            if value is not None and not (math.isfinite(value) and (value > least if positive else value >= least)):
                wanted = "a finite number above 0" if positive else "a finite number, 0 or more"
                raise InputError(f"The '{name}' of a recipe must be {wanted}. Got {value!r}.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"The 'betas' of a recipe must be two numbers from 0 to below 1. Got {self.betas!r}.")
        if self.warmup > self.steps:
            raise InputError(
                f"The warm-up must not be longer than the training, {self.steps} steps. Got {self.warmup}."
            )
        if self.nesterov and not self.momentum:
            raise InputError("Nesterov's update needs momentum: give 'momentum' above 0, or nesterov=False.")

    def _check_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"The '{name}' of a recipe must be a whole number, {least} or more. Got {value!r}.")

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

    def make_optimizer(self, params: list[Tensor]) -> Optimizer:
        """Optimizer of these parameters.

        AdamW and SGD treat every number by itself, so that the optimizer of stacked parameters (m, ...) is the
        optimizer of each of the m models.
        """
        import torch

        # One pass over the memory of a parameter, where torch has it, instead of one per operation.
        fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in params)
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused}
        if self.optimizer == "adamw":
            return torch.optim.AdamW(params, betas=self.betas, eps=self.eps, **options)
        return torch.optim.SGD(params, momentum=self.momentum, nesterov=self.nesterov, **options)

    def __str__(self) -> str:
        """Steps, optimizer and rate, and whatever else is not the default."""
        told = ("steps", "optimizer", "lr", "batch_size")
        usual = {field.name: field.default for field in fields(self)}
        others = [name for name in usual if name not in told and getattr(self, name) != usual[name]]
        size = f"batches of {self.batch_size}" if self.batch_size else "full batches"
        extra = "".join(f", {name} {getattr(self, name)}" for name in others)
        return f"{counted(self.steps, 'step')} of {self.optimizer}, lr {self.lr:g}, {size}{extra}"
