"""Products of the curvature of the training loss with vectors, without the matrix: Hessian, or Gauss–Newton.

With weights w_i of the examples, the Hessian of Σ_i w_i ℓ(f(x_i), y_i) by the parameters is what forward mode over
reverse mode multiplies with. The Gauss–Newton matrix Σ_i w_i J_iᵀ ∇²ℓ_i J_i leaves out the curvature of the model
itself: it is never indefinite, and equal to the Hessian where the model is linear in its parameters. Where the
Jacobian is small enough to be held, its products are plain matrix products.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from whence.errors import InputError, brief, did_you_mean
from whence.gradients.groups import ROWS, differentiable
from whence.gradients.projections import flatten, n_params, split
from whence.models.derivatives import mapped, pushed
from whence.models.examples import Examples, Inputs
from whence.models.functional import Params, plain_attention
from whence.models.losses import Loss
from whence.models.memory import bytes_per_row, free_bytes
from whence.models.points import Point

KINDS = ("hessian", "gauss_newton")
HELD = 2**25  # numbers in a Jacobian that is held
COPIES = 4  # of what a forward pass keeps, that its second derivative does
AT_ONCE = 2**26  # numbers in the products with several vectors that are made side by side


class Curvature:
    """(curvature + shift · I), as a function on vectors.

    Parameters
    ----------
    point : (output_fn, params)
    loss : Loss
    examples : Examples
    weights : tensor of shape (n,)
        Of the examples in the training loss.
    kind : {"hessian", "gauss_newton"}
    shift : float
        What is added to every eigenvalue: weight decay and damping.

    Examples
    --------
    >>> from torch import nn
    >>> from whence.models.functional import functional
    >>> from whence.models.losses import Squared
    >>> data = Examples.of((torch.tensor([[1.0, 2.0]]), torch.tensor([0.0])))
    >>> point = functional(nn.Linear(2, 1, bias=False))
    >>> Curvature(point, Squared(), data, torch.ones(1), "hessian", 0.5)(torch.eye(2))
    tensor([[1.5000, 2.0000],
            [2.0000, 4.5000]])
    """

    def __init__(
        self, point: Point, loss: Loss, examples: Examples, weights: Tensor, kind: str = "hessian", shift: float = 0.0
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"There is no curvature {kind!r}. {did_you_mean(kind, KINDS)}")
        self.output_fn, self.params = point
        self.loss, self.examples, self.kind, self.shift = loss, examples, kind, shift
        self.weights = weights.to(torch.promote_types(next(iter(self.params.values())).dtype, torch.float32))
        self.size = n_params(self.params)

    def __call__(self, vectors: Tensor, rows: Tensor | None = None) -> Tensor:
        """Products with vectors (r, d); of a sample of the examples, scaled up to all, where their rows are given."""
        scale = 1.0 if rows is None else len(self.examples) / len(rows)
        if self._root is not None:
            root = self._root if rows is None else self._root[rows]
            root = root.reshape(-1, self.size)
            return (vectors @ root.T) @ root * scale + self.shift * vectors
        total = self.shift * vectors
        everything = torch.arange(len(self.examples), device=vectors.device) if rows is None else rows
        block, portion = self._at_once()
        with differentiable():
            for index in torch.split(everything, block):
                inputs, labels = self.examples.rows(index)
                weights = self.weights[index] * scale
                for start in range(0, len(vectors), portion):
                    some = split(vectors[start : start + portion], self.params)
                    total[start : start + portion] += flatten(self._product(some, inputs, labels, weights))
        return total

    def fits(self, copies: int) -> int:
        """Examples that fit into a pass, if each takes ``copies`` times the memory of a forward pass."""
        return max(1, free_bytes(self.weights.device) // (copies * self._bytes_per_row))

    @cached_property
    def _bytes_per_row(self) -> int:
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}

        def forward(n: int) -> Tensor:
            inputs, labels = self.examples.rows(torch.arange(n, device=self.weights.device) % len(self.examples))
            return self.loss(self.output_fn(leaves, inputs), labels).sum()

        with plain_attention(), torch.enable_grad():
            return bytes_per_row(forward)

    def _at_once(self) -> tuple[int, int]:
        """How many examples, and how many vectors, products are made for side by side."""
        several = self.fits(COPIES)
        rows = min(ROWS, len(self.examples), several)
        return rows, max(1, min(AT_ONCE // self.size, several // rows))

    def matrix(self) -> Tensor:
        """The whole matrix, (d, d), in double precision."""
        first = next(iter(self.params.values()))
        found = self(torch.eye(self.size, dtype=first.dtype, device=first.device)).double()
        return (found + found.T) / 2

    def _product(self, vectors: Params, inputs: Inputs, labels: Tensor, weights: Tensor) -> Params:
        def value(at: Params) -> Tensor:
            return (weights * self.loss(self.output_fn(at, inputs), labels)).sum()

        def total(outputs: Tensor) -> Tensor:
            return self.loss(outputs, labels).sum()

        def outputs(at: Params) -> Tensor:
            return self.output_fn(at, inputs)

        def hessian(vector: Params) -> Params:
            try:  # in reverse mode twice, torch has some second derivatives wrong, such as that of weight_norm
                found: Params = torch.func.jvp(torch.func.grad(value), (self.params,), (vector,))[1]
            except NotImplementedError as error:
                raise InputError(
                    "The Hessian of this model cannot be computed, for torch does not know the second derivative of "
                    f"some operation in it ({brief(error).partition('. ')[0]}): give curvature='gauss_newton'."
                ) from error
            return found

        def gauss_newton(vector: Params) -> Params:
            at, moved = pushed(outputs, self.params, vector)
            curved = pushed(torch.func.grad(total), at, moved)[1]
            back: Params = torch.func.vjp(outputs, self.params)[1](weights[:, None] * curved)[0]
            return back

        products: Params = mapped(hessian if self.kind == "hessian" else gauss_newton, vectors)
        return products

    @cached_property
    def _root(self) -> Tensor | None:
        """B (n, C, d) with BᵀB the Gauss–Newton matrix, where it is small enough to be held; else None."""
        if self.kind == "hessian":
            return None
        with differentiable():
            width = self.output_fn(self.params, self.examples.rows(slice(0, 1))[0]).shape[1]
            if len(self.examples) * width * self.size > HELD:
                return None
            parts = []
            for rows in self.examples.blocks(min(ROWS, self.fits(COPIES + width))):
                inputs, labels = self.examples.rows(rows)
                parts.append(self._rooted(inputs, labels) * self.weights[rows, None, None].sqrt())
        return torch.cat(parts)

    def _rooted(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Rᵀ J of some examples, (b, C, d), with one backward pass for each output."""

        def single(at: Params, x: Inputs) -> Tensor:
            return self.output_fn(at, tree_map(lambda leaf: leaf[None], x))[0]

        jacobian = mapped(torch.func.jacrev(single), self.params, inputs, in_dims=(None, 0))
        root = self.loss.root(self.output_fn(self.params, inputs), labels)
        return root.mT @ flatten(jacobian, 2)
