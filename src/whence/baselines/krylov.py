"""Linear algebra with a symmetric matrix that is known by its products only: many right-hand sides at a time.

Everything takes ``product``, a function from vectors (r, d) to their products with the matrix, (r, d).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import InputError

Product = Callable[[Tensor], Tensor]
Spectral = Callable[[Tensor], Tensor]  # a function of eigenvalues


@dataclass(frozen=True)
class Solved:
    """Solutions of linear systems."""

    vectors: Tensor  # (r, d)
    residual: float  # largest norm of a residual, relative to its right-hand side
    steps: int
    indefinite: bool = False  # whether the iteration stopped at a direction of zero or negative curvature


def conjugate_gradients(product: Product, right: Tensor, *, tol: float, max_steps: int) -> Solved:
    """Solve A x = b for each row b of ``right`` (r, d), all together.

    Examples
    --------
    >>> found = conjugate_gradients(lambda v: 2 * v, torch.ones(1, 3), tol=1e-8, max_steps=10)
    >>> found.vectors, found.steps
    (tensor([[0.5000, 0.5000, 0.5000]]), 1)
    """
    x, rest = torch.zeros_like(right), right.clone()
    direction, squared = rest.clone(), rest.square().sum(1)
    goal = (tol**2) * squared
    going, indefinite, steps = squared > 0, False, 0
    while steps < max_steps and bool(going.any()):
        moved = product(direction)
        curvature = (direction * moved).sum(1)
        flat = going & (curvature <= 0)
        if bool(flat.any()):
            indefinite, going = True, going & ~flat
        length = torch.where(going, squared / torch.where(going, curvature, 1.0), 0.0)
        x += length[:, None] * direction
        rest -= length[:, None] * moved
        new = rest.square().sum(1)
        turn = torch.where(going, new / squared.clamp_min(torch.finfo(new.dtype).tiny), 0.0)
        direction = rest + turn[:, None] * direction
        squared = torch.where(going, new, squared)
        going = going & (squared > goal)
        steps += 1
    norms = right.square().sum(1).clamp_min(torch.finfo(right.dtype).tiny)
    return Solved(x, float((squared / norms).max().sqrt()), steps, indefinite)


def neumann(product: Product, right: Tensor, *, scale: float, depth: int, slack: float = 1.0) -> Solved:
    """Solve A x = b by x ← b + (I − A/scale) x, divided by the scale at the end (LiSSA; Agarwal et al., 2017).

    Where all eigenvalues of A are from 0 to twice the scale, no step makes x longer by more than the length of b. If
    one does, by more than ``slack`` allows, the series diverges.

    Examples
    --------
    >>> neumann(lambda v: 2 * v, torch.ones(1, 1), scale=4.0, depth=50).vectors
    tensor([[0.5000]])
    """
    x, length = right.clone(), right.norm(dim=1)
    for step in range(1, depth + 1):
        x = right + x - product(x) / scale
        if not bool((x.norm(dim=1) <= slack * (step + 1.01) * length + 1e-30).all()):
            raise DivergenceError(step)
    found = x / scale
    rest = (right - product(found)).norm(dim=1) / length.clamp_min(1e-30)
    return Solved(found, float(rest.max()), depth)


class DivergenceError(InputError):
    """A series or a chain that grows without bounds, and the step at which that was seen."""

    def __init__(self, step: int) -> None:
        super().__init__(f"diverged at step {step}")
        self.step = step


@dataclass(frozen=True)
class Lanczos:
    """What a Krylov space says about a matrix: Ritz values (r, m), vectors (r, m, m), and the basis (m, r, d)."""

    values: Tensor
    vectors: Tensor
    basis: Tensor
    lengths: Tensor

    def apply(self, function: Spectral) -> Tensor:
        """f(A) v for each of the vectors that it started from, (r, d)."""
        first = self.vectors[:, 0, :]
        coordinates = (self.vectors * (function(self.values) * first)[:, None, :]).sum(2) * self.lengths[:, None]
        return torch.einsum("rm,mrd->rd", coordinates.to(self.basis), self.basis)


def lanczos(product: Product, start: Tensor, steps: int) -> Lanczos:
    """Krylov spaces of each row of ``start`` (r, d), orthogonalised twice.

    Examples
    --------
    >>> space = lanczos(lambda v: v * torch.tensor([1.0, 4.0]), torch.ones(1, 2), 2)
    >>> space.apply(torch.sqrt).round(decimals=4)
    tensor([[1., 2.]])
    """
    steps = min(steps, start.shape[1])
    lengths = start.norm(dim=1)
    basis = [start / lengths.clamp_min(torch.finfo(start.dtype).tiny)[:, None]]
    small = torch.finfo(start.dtype).eps
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    largest = torch.zeros_like(lengths)
    for step in range(steps):
        moved = product(basis[-1])
        diagonal.append((moved * basis[-1]).sum(1))
        largest = torch.maximum(largest, moved.norm(dim=1))
        if step + 1 == steps:
            break
        spanned = torch.stack(basis)
        for _ in range(2):
            moved = moved - torch.einsum("mrd,mr->rd", spanned, torch.einsum("mrd,rd->mr", spanned, moved))
        length = moved.norm(dim=1)
        # A space that is complete is left, not continued along rounding errors.
        alive = length > 100 * small * largest
        beside.append(torch.where(alive, length, 0.0))
        basis.append(torch.where(alive, 1 / length, 0.0)[:, None] * moved)
    tridiagonal = torch.diag_embed(torch.stack(diagonal, 1).double())
    if beside:
        off = torch.stack(beside, 1).double()
        tridiagonal += torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return Lanczos(values, vectors, torch.stack(basis), lengths.double())


def extremes(product: Product, like: Tensor, *, seed: int, steps: int = 40) -> tuple[float, float]:
    """Smallest and largest eigenvalue, about, from a random start shaped like a vector (d,).

    Examples
    --------
    >>> low, high = extremes(lambda v: v * torch.tensor([-1.0, 2.0, 5.0]), torch.zeros(3), seed=0)
    >>> round(low, 4), round(high, 4)
    (-1.0, 5.0)
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, len(like), generator=generator).to(like)
    values = lanczos(product, start, steps).values
    return float(values.min()), float(values.max())
