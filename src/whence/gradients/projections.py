"""Random directions in parameter space, which shrink gradients of d parameters to ``rank`` features.

A projection P has ``rank`` rows and keeps inner products on average, E[PᵀP] = I (Johnson–Lindenstrauss; the paper's
appendix on gradient estimation). It is used in two ways: its rows as directions to move the parameters along (forward
mode), or applied to gradients (reverse mode). Rows are made when needed, from the seed and their number, so P is
never held whole and does not depend on how the work is cut. Seeds mean the same on every machine, but not on every
kind of device: a GPU draws other numbers than a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from whence.errors import InputError
from whence.models.functional import Params


class Projection(Protocol):
    """Rows of P, made in any portions."""

    @property
    def rank(self) -> int:
        """Number of rows."""
        ...

    def rows(self, like: Params, start: int, stop: int) -> Tensor:
        """Rows from ``start`` to before ``stop``, (stop − start, d), over the parameters one after another."""
        ...

    def project(self, gradients: Tensor, like: Params) -> Tensor:
        """P applied to each gradient: (b, d) → (b, rank)."""
        ...


def n_params(params: Params) -> int:
    """Number of parameters d."""
    return sum(tensor.numel() for tensor in params.values())


def split(flat: Tensor, like: Params) -> Params:
    """Parameters of flat vectors: (r, d) → tensors of shape (r, ...)."""
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()], dim=1)
    return {name: part.reshape(-1, *like[name].shape) for (name, part) in zip(like, parts, strict=True)}


def flatten(params: Params, batch_dims: int = 1) -> Tensor:
    """Flat vectors of parameters with leading batch axes: tensors (b, ...) → (b, d)."""
    return torch.cat([tensor.flatten(batch_dims) for tensor in params.values()], dim=batch_dims)


class _Dense(ABC):
    """P with independent entries, made a row at a time."""

    rank: int
    seed: int

    @abstractmethod
    def _fill(self, row: Tensor, generator: torch.Generator) -> None:
        """Draw the entries of a row, with variance one."""

    def rows(self, like: Params, start: int, stop: int) -> Tensor:
        first = next(iter(like.values()))
        made = torch.empty(stop - start, n_params(like), dtype=torch.float32, device=first.device)
        self._draw(made, start)
        return made.mul_(self.rank**-0.5).to(torch.float64 if first.dtype == torch.float64 else torch.float32)

    def _draw(self, rows: Tensor, start: int) -> None:
        """Draw rows from ``start`` on into a tensor (·, d), not scaled."""
        generator = torch.Generator(rows.device)
        base = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
        for i, row in enumerate(rows):
            generator.manual_seed((base + start + i) % 2**32)  # the CPU generator reads 32 bits
            self._fill(row, generator)

    def project(self, gradients: Tensor, like: Params) -> Tensor:
        b, d = gradients.shape
        portion = min(self.rank, max(1, 2**26 // d))
        rows = torch.empty(portion, d, dtype=torch.float32, device=gradients.device)  # new memory would cost a fifth
        projected = gradients.new_empty(b, self.rank)
        for start in range(0, self.rank, portion):
            some = rows[: self.rank - start]
            self._draw(some, start)
            projected[:, start : start + portion] = gradients @ some.T.to(gradients)
        return projected.mul_(self.rank**-0.5)  # scaled here, where there are fewer numbers


@dataclass(frozen=True)
class Gaussian(_Dense):
    """P with entries from N(0, 1/rank), as in the paper.

    >>> Gaussian(rank=8, seed=0).rows({"w": torch.zeros(3, 2)}, 2, 5).shape
    torch.Size([3, 6])
    """

    rank: int = 512
    seed: int = 0

    def _fill(self, row: Tensor, generator: torch.Generator) -> None:
        row.normal_(generator=generator)


@cache
def _signs(device: torch.device) -> Tensor:
    """Return the eight signs of every byte, (256, 8)."""
    byte = torch.arange(256, device=device)[:, None]
    return 2.0 * ((byte >> torch.arange(8, device=device)) & 1) - 1


@dataclass(frozen=True)
class Rademacher(_Dense):
    """P with entries ±1/√rank, equally likely.

    >>> Rademacher(rank=4, seed=0).rows({"w": torch.zeros(3)}, 0, 4).abs().unique()
    tensor([0.5000])
    """

    rank: int = 512
    seed: int = 0

    def _fill(self, row: Tensor, generator: torch.Generator) -> None:
        # A random word is 64 signs: several times as fast as a draw for each.
        words = torch.empty(-(-len(row) // 64), dtype=torch.int64, device=row.device)
        bits = words.random_(-(2**63), None, generator=generator).view(torch.uint8)
        row.copy_(_signs(row.device)[bits.long()].flatten()[: len(row)])


@dataclass(frozen=True)
class CountSketch:
    """P with a few entries ±1/√nonzeros in each column and zeros elsewhere: applied in one pass over the gradient.

    >>> P = CountSketch(rank=4, seed=0).rows({"w": torch.zeros(6)}, 0, 4)
    >>> P.abs().sum(dim=0)
    tensor([1., 1., 1., 1., 1., 1.])
    """

    rank: int = 512
    seed: int = 0
    nonzeros: int = 1

    def _places(self, like: Params) -> tuple[Tensor, Tensor]:
        """Return the row and the sign of each entry, (nonzeros, d) both; made on the CPU, alike on every device."""
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence(self.seed).generate_state(1)[0]))
        shape = (self.nonzeros, n_params(like))
        rows = torch.randint(self.rank, shape, generator=generator)
        signs = torch.randint(2, shape, generator=generator, dtype=torch.int8) * 2 - 1
        device = next(iter(like.values())).device
        return rows.to(device), signs.to(device)

    def rows(self, like: Params, start: int, stop: int) -> Tensor:
        places, signs = self._places(like)
        first = next(iter(like.values()))
        made = torch.zeros(stop - start, n_params(like), dtype=first.dtype, device=first.device)
        for row, sign in zip(places, signs, strict=True):
            here = ((row >= start) & (row < stop)).nonzero()[:, 0]
            made[row[here] - start, here] += sign[here] * self.nonzeros**-0.5
        return made

    def project(self, gradients: Tensor, like: Params) -> Tensor:
        projected = gradients.new_zeros(len(gradients), self.rank)
        for row, sign in zip(*self._places(like), strict=True):
            projected.scatter_add_(1, row.expand(len(gradients), -1), gradients * sign.to(gradients))
        return projected.mul_(self.nonzeros**-0.5)


@dataclass(frozen=True, eq=False)
class Subspace:
    """P with given rows, such as the gradients or the trained differences of the tasks.

    >>> Subspace({"w": torch.eye(3)}).rank
    3
    """

    directions: Params  # (rank, ...) of each parameter

    @property
    def rank(self) -> int:
        return len(next(iter(self.directions.values())))

    def rows(self, like: Params, start: int, stop: int) -> Tensor:
        if {name: tuple(d.shape[1:]) for name, d in self.directions.items()} != {
            n: tuple(p.shape) for n, p in like.items()
        }:
            raise InputError(
                "The directions of the Subspace must be of the parameters that are linearised, with shapes (rank, ...)."
            )
        first = next(iter(like.values()))
        return flatten({name: self.directions[name][start:stop] for name in like}).to(first)

    def project(self, gradients: Tensor, like: Params) -> Tensor:
        return gradients @ self.rows(like, 0, self.rank).T.to(gradients)


@dataclass(frozen=True)
class Identity:
    """P = I, every parameter a direction of its own: nothing is lost, and GradEx is exact where the model is linear.

    >>> Identity(rank=3).rows({"w": torch.zeros(3)}, 1, 3)
    tensor([[0., 1., 0.],
            [0., 0., 1.]])
    """

    rank: int

    def rows(self, like: Params, start: int, stop: int) -> Tensor:
        first = next(iter(like.values()))
        made = torch.zeros(stop - start, n_params(like), dtype=first.dtype, device=first.device)
        made[torch.arange(stop - start), torch.arange(start, stop)] = 1
        return made

    def project(self, gradients: Tensor, like: Params) -> Tensor:
        return gradients


PROJECTIONS = {"gaussian": Gaussian, "rademacher": Rademacher, "sparse": CountSketch}


def check_rank(rank: int, params: Params) -> None:
    """Refuse a rank that is no number of directions in the space of the parameters."""
    if rank < 1 or rank > n_params(params):
        shapes = ", ".join(f"{name} {tuple(p.shape)}" for name, p in list(params.items())[:4])
        raise InputError(
            f"The rank must be from 1 to the number of parameters, {n_params(params):,} ({shapes}"
            f"{', …' if len(params) > 4 else ''}). Got {rank:,}."
        )
