"""Solvers of influence functions: ways to apply the inverse of the curvature of the training loss.

Each is a small object with its own options, and gives the same answer up to its accuracy: ``CG(tol=1e-8)``.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.baselines.curvature import Curvature
from whence.baselines.ekfac import ekfac_solve
from whence.baselines.krylov import DivergenceError, Solved, conjugate_gradients, extremes, neumann
from whence.errors import DataWarning, InputError


class Solver(ABC):
    """How the inverse of a curvature is applied to vectors."""

    name: ClassVar[str]

    @abstractmethod
    def solve(self, curvature: Curvature, right: Tensor, *, damping: float, seed: int) -> Solved:
        """Solutions for each row of ``right`` (r, d).

        Parameters
        ----------
        curvature : Curvature
            With its damping.
        right : tensor of shape (r, d)
        damping : float
            What of the curvature is damping, for messages.
        seed : int
            Of what is random.
        """


@dataclass(frozen=True)
class Exact(Solver):
    """Factorise the matrix itself, in double precision; directions without any curvature are left alone."""

    name = "exact"

    def solve(self, curvature: Curvature, right: Tensor, *, damping: float, seed: int) -> Solved:
        values, vectors = torch.linalg.eigh(curvature.matrix())
        rounding = float(values.abs().max()) * len(values) * torch.finfo(right.dtype).eps
        if float(values[0]) < -rounding:
            _warn_indefinite(float(values[0]), damping)
        # What rounding leaves of a zero is no curvature to divide by: such directions are left alone.
        inverse = torch.where(values.abs() > rounding, 1 / values, 0.0)
        return Solved((((right.double() @ vectors) * inverse) @ vectors.T).to(right), 0.0, 1)


@dataclass(frozen=True, kw_only=True)
class CG(Solver):
    """Conjugate gradients.

    Parameters
    ----------
    tol : float
        Residual, relative to the right-hand side, at which to stop.
    max_steps : int
    """

    name = "cg"
    tol: float = 1e-5
    max_steps: int = 500

    def solve(self, curvature: Curvature, right: Tensor, *, damping: float, seed: int) -> Solved:
        found = conjugate_gradients(curvature, right, tol=self.tol, max_steps=self.max_steps)
        if found.indefinite:
            _warn_indefinite(extremes(curvature, right[0], seed=seed)[0], damping)
        elif found.residual > self.tol:
            warnings.warn(
                f"Conjugate gradients stopped after {found.steps} steps with a residual of {found.residual:.1g} (tol "
                f"{self.tol:.1g}): raise max_steps, or damping ({damping:g}).",
                DataWarning,
                stacklevel=3,
            )
        return found


@dataclass(frozen=True, kw_only=True)
class LiSSA(Solver):
    """The series of LiSSA (Agarwal et al., 2017).

    Parameters
    ----------
    max_steps : int
        Terms of the series.
    scale : float, optional
        What the matrix is divided by; by default a little more than its largest eigenvalue.
    batch_size : int, optional
        Examples in each term, drawn at random; by default all.
    """

    name = "lissa"
    max_steps: int = 500
    scale: float | None = None
    batch_size: int | None = None

    def solve(self, curvature: Curvature, right: Tensor, *, damping: float, seed: int) -> Solved:
        low, high = extremes(curvature, right[0], seed=seed)
        scale, batch_size = 1.1 * high if self.scale is None else self.scale, self.batch_size
        n = len(curvature.examples)
        generator = torch.Generator().manual_seed(seed)

        def product(vectors: Tensor) -> Tensor:
            if batch_size is None or batch_size >= n:
                return curvature(vectors)
            return curvature(vectors, torch.randint(n, (batch_size,), generator=generator).to(vectors.device))

        # A sample of the examples may have more curvature than all of them do, now and then.
        slack = 1.0 if batch_size is None else 10.0
        try:
            found = neumann(product, right, scale=scale, depth=self.max_steps, slack=slack)
        except DivergenceError as error:
            if low < 0:
                advice = f"the curvature is indefinite: raise damping ({damping:g}) by {-low:.2g} or more"
            else:
                advice = f"raise scale ({scale:.3g}) above the largest eigenvalue, about {high:.3g}"
            also = ", or use larger batches" if batch_size is not None else ""
            raise InputError(f"LiSSA diverged at step {error.step}: {advice}{also}.") from None
        if low < 0:
            _warn_indefinite(low, damping)
        elif found.residual > 0.1 and batch_size is None:
            warnings.warn(
                f"LiSSA has not converged after {self.max_steps} terms (residual {found.residual:.1g}): "
                f"raise max_steps, or damping ({damping:g}).",
                DataWarning,
                stacklevel=3,
            )
        return found


@dataclass(frozen=True)
class EKFAC(Solver):
    """Eigenvalue-corrected Kronecker factorisation of the Gauss–Newton matrix.

    For linear, embedding, convolution and norm layers; see `whence.baselines.ekfac`.

    Parameters
    ----------
    relative_damping : float
        Damping as a share of the mean eigenvalue, added to what ``damping`` gives. It means the same for losses of any
        scale and models of any size.
    """

    name = "ekfac"
    relative_damping: float = 0.0

    def __post_init__(self) -> None:
        given = self.relative_damping
        if not (isinstance(given, (int, float)) and math.isfinite(given) and given >= 0):
            message = f"must be a finite number, 0 or more. Got {given!r} instead."
            raise InputError(message, parameter="relative_damping", of="EKFAC")

    def solve(self, curvature: Curvature, right: Tensor, *, damping: float, seed: int) -> Solved:
        return Solved(ekfac_solve(curvature, right, relative=self.relative_damping, seed=seed), math.nan, 0)


def _warn_indefinite(low: float, damping: float) -> None:
    least = damping - low
    warnings.warn(
        f"The curvature has an eigenvalue of about {low:.2g} with damping {damping:g}, so the model is not at a "
        f"minimum of its loss, and scores are unreliable: give damping above {least:.2g}, or curvature='gauss_newton'.",
        DataWarning,
        stacklevel=4,
    )
