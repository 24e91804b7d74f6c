"""Optimizers: all that is specific to one of them, in one place.

A recipe names an optimizer (``"adamw"``) or holds one with its options (``SGD(momentum=0.9)``). To add one, write a
class with the methods of `Optimizer` and list it in `OPTIMIZERS`; a recipe refuses anything else, so that nothing is
treated as an optimizer that it is not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from whence.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from whence.models.recipe import Recipe


class Optimizer(ABC):
    """What training and the estimators ask of an optimizer.

    Attributes
    ----------
    name : str
        As recipes and tables call it.
    copies : int
        Numbers that it remembers per parameter, at most.
    directions_per_point : int
        Directions that it gives a task's gradient at a point of a run: 1 as it is, 2 if it is rescaled too.
    """

    name: ClassVar[str]
    copies: ClassVar[int]
    directions_per_point: ClassVar[int]

    @abstractmethod
    def make(self, recipe: Recipe, params: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of torch for these parameters.

        It must treat every number by itself, so that the optimizer of stacked parameters (m, ...) is the optimizer of
        each of the m models.
        """

    @abstractmethod
    def divisor(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """What it divides a gradient by at the current step of a run, (d,); None if it takes gradients as they are."""

    @abstractmethod
    def first_steps(self, gradients: Tensor) -> Tensor:
        """Gradients of K tasks at the start of a run, (K, d), as its first step would scale them."""

    def __str__(self) -> str:
        """Name, and options that are not the default."""
        options = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        return ", ".join([self.name, *(f"{name} {value}" for name, value, usual in options if value != usual)])


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """AdamW, as ``torch.optim.AdamW``.

    Parameters
    ----------
    betas : tuple of float
    eps : float
    """

    name = "adamw"
    copies = 2
    directions_per_point = 2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"The 'betas' of AdamW must be two numbers from 0 to below 1. Got {self.betas!r}.")
        _check_not_negative("eps", "AdamW", self.eps)

    def make(self, recipe: Recipe, params: list[Tensor]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(params, betas=self.betas, eps=self.eps, **_shared(recipe, params))

    def divisor(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        import torch

        group = optimizer.param_groups[0]
        parts = []
        for leaf in group["params"]:
            memory = optimizer.state.get(leaf)
            if not memory:  # before the first step
                return None
            average = memory["exp_avg_sq"] / (1 - group["betas"][1] ** float(memory["step"]))
            parts.append((average.sqrt() + group["eps"]).flatten())
        return torch.cat(parts)

    def first_steps(self, gradients: Tensor) -> Tensor:
        import torch

        size = gradients.square().mean(0).sqrt()  # over tasks, as AdamW has it over batches
        # A parameter that no task moves stays where it is.
        return torch.where(size > 0, gradients / size.clamp_min(1e-30), 0.0)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, as ``torch.optim.SGD``.

    Parameters
    ----------
    momentum : float
    nesterov : bool
    """

    name = "sgd"
    copies = 1
    directions_per_point = 1
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_not_negative("momentum", "SGD", self.momentum)
        if self.nesterov and not self.momentum:
            raise InputError("Nesterov's update needs momentum: give 'momentum' above 0, or nesterov=False.")

    def make(self, recipe: Recipe, params: list[Tensor]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(params, momentum=self.momentum, nesterov=self.nesterov, **_shared(recipe, params))

    def divisor(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        return None

    def first_steps(self, gradients: Tensor) -> Tensor:
        return gradients


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, SGD)}


def optimizer_named(given: str | Optimizer) -> Optimizer:
    """Return the optimizer of that name with its default options, or the optimizer itself.

    Examples
    --------
    >>> optimizer_named("sgd")
    SGD(momentum=0.0, nesterov=False)
    """
    if isinstance(given, Optimizer):
        return given
    if given not in OPTIMIZERS:
        raise InputError(f"There is no optimizer {given!r} for a recipe. {did_you_mean(str(given), OPTIMIZERS)}")
    return OPTIMIZERS[given]()


def _shared(recipe: Recipe, params: list[Tensor]) -> dict[str, Any]:
    """Options that torch's optimizers have in common."""
    # One pass over the memory of a parameter, where torch has it, instead of one per operation.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in params)
    return {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": fused}


def _check_not_negative(name: str, of: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"The '{name}' of {of} must be a finite number, 0 or more. Got {value!r}.")
