"""Derivatives of any model: side by side and in forward mode where torch can, else one by one and in reverse.

``torch.func.vmap`` cannot run a model that looks at its numbers (``if mask.any():``), nor some recurrent layers, and
some operations have no derivative in forward mode. The results are the same, and take longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from whence.models.memory import out_of_memory

Tree = Any  # a tensor, or tensors in dicts and tuples


def mapped(function: Callable[..., Tree], *args: Tree, in_dims: tuple[int | None, ...] | int = 0) -> Tree:
    """Results of a function for each row of its arguments, stacked; arguments with ``in_dims`` None are shared.

    >>> mapped(lambda x, y: x if x > 0 else y, torch.tensor([1.0, -1.0]), torch.tensor(5.0), in_dims=(0, None))
    tensor([1., 5.])
    """
    try:
        return torch.func.vmap(function, in_dims=in_dims)(*args)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
    n = next(len(tree_flatten(arg)[0][0]) for arg, dim in zip(args, dims, strict=True) if dim is not None)

    def given(row: int) -> list[Tree]:
        pairs = zip(args, dims, strict=True)
        return [arg if dim is None else tree_map(lambda leaf: leaf[row], arg) for arg, dim in pairs]

    each = [function(*given(row)) for row in range(n)]
    form = tree_flatten(each[0])[1]
    leaves = zip(*(tree_flatten(one)[0] for one in each), strict=True)
    return tree_unflatten([torch.stack(rows) for rows in leaves], form)


def pushed(function: Callable[[Tree], Tree], at: Tree, along: Tree) -> tuple[Tree, Tree]:
    """Value of a function, and its derivative in a direction: Jv.

    >>> pushed(lambda x: x**2, torch.tensor(3.0), torch.tensor(1.0))
    (tensor(9.), tensor(6.))
    """
    try:
        value, moved, *_ = torch.func.jvp(function, (at,), (along,))
    except NotImplementedError:  # Jᵀu is linear in u, and its own transpose is J
        value, pull, *_ = torch.func.vjp(function, at)
        back = torch.func.vjp(lambda u: pull(u)[0], tree_map(torch.zeros_like, value))[1]
        (moved,) = back(along)
    return value, moved
