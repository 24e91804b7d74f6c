"""Flatness: the trace of the Hessian of a loss by the parameters, from products of the Hessian with random vectors.

With z of independent signs, E zᵀHz = tr H (Hutchinson, 1990); a product Hz costs about two backward passes and no
matrix. Hutch++ (Meyer, Musco, Musco & Woodruff, 2021) spends a third of its products on the directions in which H is
large, whose part of the trace it then has exactly, and estimates what is left: far better where a few eigenvalues
dominate, as they do after training. `SAM` and `NSO` in optimizers.py look for minima where the trace is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import InputError, did_you_mean
from whence.models.derivatives import mapped
from whence.models.examples import Examples
from whence.models.functional import Params, plain_attention
from whence.models.memory import free_bytes
from whence.models.problem import Problem, State

Product = Callable[[Tensor], Tensor]  # vectors (r, d) → the matrix times each, (r, d)
METHODS = ("hutchinson", "hutch++")
AT_ONCE = 2**22  # numbers in the vectors whose products are made side by side


@dataclass(frozen=True)
class HessianTrace:
    """An estimate of the trace of a Hessian.

    Attributes
    ----------
    trace : float
    std_error : float
        Standard error of the estimate, over its random vectors; 0 if it is exact.
    n_products : int
        Products of the Hessian with a vector that it took.
    """

    trace: float
    std_error: float
    n_products: int

    def __str__(self) -> str:
        return f"{self.trace:.4g} ± {self.std_error:.2g} ({self.n_products} products)"


def hessian_trace(
    problem: Problem,
    state: State | None = None,
    *,
    examples: Examples | None = None,
    method: str = "hutchinson",
    n_products: int = 60,
    seed: int = 0,
) -> HessianTrace:
    """Return the trace of the Hessian of the mean loss by the trained parameters.

    Parameters
    ----------
    problem : Problem
    state : State, optional
        The point: tensors by name, as training returns them; by default W₀.
    examples : Examples, optional
        Examples of the mean loss; by default all examples of the tasks.
    method : {"hutchinson", "hutch++"}
    n_products : int
        Products of the Hessian with a vector. With fewer parameters than that, the trace is exact.
    seed : int
        Of the random vectors.

    Examples
    --------
    >>> inputs = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> problem = Problem(torch.nn.Linear(2, 1, bias=False), {"a": (inputs, torch.zeros(2))}, (inputs, torch.zeros(2)),
    ...                   loss="squared")
    >>> print(hessian_trace(problem))  # the mean of ‖x‖²
    7 ± 0 (2 products)
    """
    data = problem.tasks if examples is None else examples
    at = {**problem.start, **(state or {})}
    params = {name: at.pop(name).detach() for name in problem.trained}
    size = sum(value.numel() for value in params.values())
    return trace_of(_hessian(problem, params, at, data), size, like=next(iter(params.values())), method=method,
                    n_products=n_products, seed=seed)  # fmt: skip


def trace_of(
    product: Product, size: int, *, like: Tensor | None = None, method: str = "hutchinson", n_products: int = 60,
    seed: int = 0,
) -> HessianTrace:  # fmt: skip
    """Return the trace of a symmetric matrix (d, d), given only its products with vectors.

    Parameters
    ----------
    product : callable
        From vectors (r, d) to the matrix times each of them, (r, d).
    size : int
        d.
    like : tensor, optional
        With the type and device of the vectors.
    method, n_products, seed
        As for `hessian_trace`.

    Examples
    --------
    >>> matrix = torch.diag(torch.tensor([100.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    >>> found = trace_of(lambda vectors: vectors @ matrix, 8, method="hutch++", n_products=6)
    >>> abs(found.trace - 107) <= 3 * found.std_error + 1e-3
    True
    """
    if method not in METHODS:
        raise InputError(f"There is no method {method!r} for a trace. {did_you_mean(method, METHODS)}")
    if n_products < 6:
        raise InputError(f"The 'n_products' parameter of a trace must be 6 or more. Got {n_products!r} instead.")
    place = torch.zeros(1) if like is None else like
    if size <= n_products:
        everything = torch.eye(size, dtype=place.dtype, device=place.device)
        return HessianTrace(float(product(everything).diagonal().double().sum()), 0.0, size)
    generator = torch.Generator().manual_seed(seed)

    def signs(n: int) -> Tensor:
        return (2 * torch.randint(2, (n, size), generator=generator) - 1).to(place)

    if method == "hutchinson":
        vectors = signs(n_products)
        return _averaged(0.0, _forms(vectors, product(vectors)), n_products)
    third = n_products // 3
    basis, _ = torch.linalg.qr(product(signs(third)).T)  # (d, k): where the matrix is large
    known = float(_forms(basis.T, product(basis.T)).sum())
    vectors = signs(n_products - 2 * third)
    vectors = vectors - vectors @ basis @ basis.T
    return _averaged(known, _forms(vectors, product(vectors)), n_products)


def _forms(vectors: Tensor, products: Tensor) -> Tensor:
    """zᵀHz of each vector."""
    return (vectors.double() * products.double()).sum(1)


def _averaged(known: float, forms: Tensor, n_products: int) -> HessianTrace:
    error = float(forms.std() / len(forms) ** 0.5)
    return HessianTrace(known + float(forms.mean()), error, n_products)


def _hessian(problem: Problem, params: Params, fixed: Params, data: Examples) -> Product:
    """Return the products with the Hessian of the mean loss, forward over reverse, some examples at a time."""
    names, shapes = list(params), [value.shape for value in params.values()]
    sizes = [value.numel() for value in params.values()]

    def of_block(block: slice) -> Callable[[Tensor], Tensor]:
        inputs, labels = data.rows(block)

        def value(at: Params) -> Tensor:
            return problem.loss(problem.output_fn({**fixed, **at}, inputs), labels).sum() / len(data)

        def product(vector: Tensor) -> Tensor:
            parts = torch.split(vector, sizes)
            along = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
            moved = torch.func.jvp(torch.func.grad(value), (params,), (along,))[1]
            return torch.cat([moved[name].flatten() for name in names])

        return product

    def product(vectors: Tensor) -> Tensor:
        total = torch.zeros_like(vectors, dtype=torch.promote_types(vectors.dtype, torch.float32))
        rows = max(1, free_bytes(problem.device) // (4 * problem.bytes_per_row))
        together = max(1, AT_ONCE // vectors.shape[1])
        with plain_attention():
            for block in data.blocks(min(rows, len(data))):
                one = of_block(block)
                for some in torch.split(torch.arange(len(vectors)), together):
                    total[some] += one(vectors[some][0])[None] if together == 1 else mapped(one, vectors[some])
        return total

    return product
