"""Optimizers: all that is specific to one of them, in one place.

A recipe names an optimizer (``"adamw"``) or holds one with its options (``SGD(momentum=0.9)``). To add one, write a
class with the methods of `Optimizer` and list it in `OPTIMIZERS`; a recipe refuses anything else, so nothing is
treated as an optimizer that it is not. `SAM` and `NSO` look for flat minima: they take the gradient elsewhere than
where the model stands, and leave the step to another optimizer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from whence.errors import InputError, did_you_mean, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from whence.models.recipe import Recipe

    Backward = Callable[[], None]
    Normal = Callable[[], list[Tensor]]


class Optimizer(ABC):
    """What training and the estimators need of an optimizer."""

    name: ClassVar[str]  # in recipes and tables
    copies: int  # largest number of values that it keeps per parameter
    directions_per_point: int  # that a task's gradient gives at a point of a run: 1, or 2 if it is rescaled too
    passes: int = 1  # backward passes of a step

    def gradients(
        self, backward: Backward, params: list[Tensor], *, stacked: bool = False, normal: Normal | None = None
    ) -> None:
        """Put the gradient that the step takes into ``.grad`` of the parameters, which have none.

        ``backward()`` adds the gradient of the loss, where the parameters are, to their ``.grad``. With ``stacked``,
        parameters are those of several models, (m, ...). ``normal()`` draws standard normal numbers like them.
        """
        backward()

    @abstractmethod
    def make(self, recipe: Recipe, params: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of torch for these parameters.

        It must treat every number by itself, so that the optimizer of stacked parameters (m, ...) is the optimizer of
        each of the m models.
        """

    @abstractmethod
    def divisor(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """What it divides a gradient by at the current step of a run, (d,); None if it does not rescale gradients."""

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
    copies: ClassVar[int] = 2  # type: ignore[misc]
    directions_per_point: ClassVar[int] = 2  # type: ignore[misc]
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
    copies: ClassVar[int] = 1  # type: ignore[misc]
    directions_per_point: ClassVar[int] = 1  # type: ignore[misc]
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


@dataclass(frozen=True, kw_only=True)
class _Elsewhere(Optimizer):
    """Optimizer that takes the gradient elsewhere, and leaves the step to another.

    What it scales a gradient by, as estimators ask, is what that one does: to first order in the distance.
    """

    base: str | Optimizer = "sgd"

    def __post_init__(self) -> None:
        if isinstance(optimizer_named(self.base), _Elsewhere):
            raise InputError(f"The 'base' of {type(self).__name__} must be an optimizer such as 'sgd' or 'adamw'.")

    @property
    def stepper(self) -> Optimizer:
        """The optimizer that takes the step."""
        return optimizer_named(self.base)

    @property
    def copies(self) -> int:  # type: ignore[override]
        return self.stepper.copies + 2  # and where the model stands

    @property
    def directions_per_point(self) -> int:  # type: ignore[override]
        return self.stepper.directions_per_point

    def make(self, recipe: Recipe, params: list[Tensor]) -> torch.optim.Optimizer:
        return self.stepper.make(recipe, params)

    def divisor(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        return self.stepper.divisor(optimizer)

    def first_steps(self, gradients: Tensor) -> Tensor:
        return self.stepper.first_steps(gradients)


@dataclass(frozen=True, kw_only=True)
class SAM(_Elsewhere):
    """Sharpness-aware minimisation (Foret et al., 2021): the gradient at W + ρ g / ‖g‖, with g the gradient at W.

    Parameters
    ----------
    base : {"sgd", "adamw"} or Optimizer
        Which takes the step.
    rho : float
        Distance ρ.

    Examples
    --------
    With plain torch, in the place of ``loss.backward()``:

    >>> import torch
    >>> model, x, y = torch.nn.Linear(2, 1), torch.ones(3, 2), torch.zeros(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sam = SAM(rho=0.1)
    >>> for _ in range(100):
    ...     sam.gradients(lambda: (model(x) - y).square().mean().backward(), list(model.parameters()))
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    """

    name = "sam"
    passes = 2
    rho: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_negative("rho", "SAM", self.rho)

    def gradients(
        self, backward: Backward, params: list[Tensor], *, stacked: bool = False, normal: Normal | None = None
    ) -> None:
        """Put the gradient at W + ρ g / ‖g‖ into ``.grad``."""
        backward()
        gradients = [_taken(param) for param in params]
        factor = self.rho / (lengths(gradients, stacked=stacked) + 1e-12)
        _moved(backward, params, [gradient * like(factor, gradient, stacked=stacked) for gradient in gradients])


@dataclass(frozen=True, kw_only=True)
class NSO(_Elsewhere):
    """Noise stability optimisation (Zhang et al., 2024): the mean of the gradients at W + U and W − U, U normal.

    To second order it minimises the loss plus σ²/2 times the trace of its Hessian.

    Parameters
    ----------
    base : {"sgd", "adamw"} or Optimizer
        Which takes the step.
    sigma : float
        Standard deviation σ of the noise.
    pairs : int
        Draws of U that a step averages over, each with its opposite.
    """

    name = "nso"
    sigma: float = 0.01
    pairs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_negative("sigma", "NSO", self.sigma)
        whole_number(self.pairs, "pairs", of="NSO")

    @property
    def passes(self) -> int:  # type: ignore[override]
        return 2 * self.pairs

    def gradients(
        self, backward: Backward, params: list[Tensor], *, stacked: bool = False, normal: Normal | None = None
    ) -> None:
        """Put the mean of the gradients at W ± U into ``.grad``."""
        import torch

        for _ in range(self.pairs):
            drawn = [torch.randn_like(param) for param in params] if normal is None else normal()
            for sign in (1.0, -1.0):
                _moved(backward, params, [sign * self.sigma * noise for noise in drawn])
        for param in params:
            if param.grad is not None:
                param.grad /= self.passes


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, SGD, SAM, NSO)}


def optimizer_named(given: str | Optimizer) -> Optimizer:
    """Return the optimizer of that name with its default options, or the optimizer itself.

    >>> optimizer_named("sgd")
    SGD(momentum=0.0, nesterov=False)
    """
    if isinstance(given, Optimizer):
        return given
    if given not in OPTIMIZERS:
        raise InputError(f"There is no optimizer {given!r} for a recipe. {did_you_mean(str(given), OPTIMIZERS)}")
    return OPTIMIZERS[given]()


def lengths(gradients: list[Tensor], *, stacked: bool) -> Tensor:
    """Length of all gradients together: of the only model, or of each of m, (m,)."""
    import torch

    flat = [gradient.flatten(1) if stacked else gradient.flatten() for gradient in gradients]
    found: Tensor = torch.cat([part.norm(dim=-1, keepdim=True) for part in flat], dim=-1).norm(dim=-1)
    return found


def like(factor: Tensor, gradient: Tensor, *, stacked: bool) -> Tensor:
    """A factor of each model in the form of a gradient."""
    return factor.view(-1, *[1] * (gradient.ndim - 1)) if stacked else factor


def _taken(param: Tensor) -> Tensor:
    """The gradient of a parameter, which is then cleared."""
    import torch

    gradient, param.grad = param.grad, None
    return torch.zeros_like(param) if gradient is None else gradient


def _moved(backward: Backward, params: list[Tensor], moves: list[Tensor]) -> None:
    """Take the gradient at the moved parameters, and restore the parameters."""
    import torch

    with torch.no_grad():
        places = [param.clone() for param in params]
        for param, move in zip(params, moves, strict=True):
            param.add_(move.to(param))
    try:
        backward()
    finally:
        with torch.no_grad():
            for param, place in zip(params, places, strict=True):
                param.copy_(place)


def _shared(recipe: Recipe, params: list[Tensor]) -> dict[str, Any]:
    """Options that torch's optimizers have in common."""
    import torch

    # One pass over the memory of a parameter, where torch has it, instead of one per operation. On a processor, SGD's
    # is wrong in half precision: it loses most of each update.
    right = {
        "cpu": (torch.float32, torch.float64),
        "cuda": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    }
    fused = all(p.dtype in right.get(p.device.type, ()) for p in params)
    return {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": fused}


def _check_not_negative(name: str, of: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"The '{name}' of {of} must be a finite number, 0 or more. Got {value!r}.")
