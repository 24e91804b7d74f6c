"""The inverse of an eigenvalue-corrected Kronecker factorisation (EK-FAC) of the Gauss–Newton matrix.

George et al. (2018); for influence functions Grosse et al. (2023). The gradient of an example by the weights of a layer
is Σₜ δₜ aₜᵀ, over positions t, with a the input of the layer and δ the gradient by its output. The curvature of the
layer is taken as diagonal in the basis U ⊗ V of eigenvectors of Σ δδᵀ and Σ aaᵀ, where second moments of gradients are
its eigenvalues, and layers as independent of each other. That takes two passes over the data, whatever the number of
right-hand sides. Embeddings are layers with one-hot inputs, for which V is the identity; parameters that are no matrix
(norms, lone biases) have a block of their own, which is exact.

The gradients are those of the outputs along the columns of R, with R Rᵀ = ∇²ℓ the curvature of the loss by the outputs:
their second moment is the Gauss–Newton matrix itself. Of more than two outputs, or many if there are few examples, one
random combination of the columns stands for them, which is right on average and costs as much as the sampled labels of
the publications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from whence.baselines.curvature import Curvature
from whence.errors import InputError
from whence.gradients.factored import LINEAR, Kronecker, Layers, by_feature, patches, positions_of
from whence.gradients.groups import ROWS, differentiable
from whence.gradients.projections import flatten, split
from whence.models.examples import Inputs
from whence.models.functional import Params
from whence.models.losses import CrossEntropy, Loss
from whence.progress import track

COPIES = 6  # of what a forward pass keeps, that the sides of all layers and their gradients take
COLUMNS, MOST_COLUMNS = 2, 16  # outputs up to which every column of R is gone through; of few examples
FEW_EXAMPLES = 256
FEW_PLACES = 8  # up to which pairs of them are gone through
NUMBERS = 2**24  # in the gradients that are squared at a time
Block = tuple[str, ...]  # parameters with one curvature: a weight and its bias, a weight, or a vector
Basis = tuple[Tensor, Tensor | None]  # U (p, p) and V (q, q), of which None is the identity


@dataclass(frozen=True, eq=False)
class Sides:
    """Factors of the gradients (p, q) of a block, Σₜ movingₜ fixedₜᵀ, for b examples and c columns of R."""

    moving: Tensor  # (c, b, t, p): gradients by the output of the layer
    fixed: Tensor  # (b, t, q): inputs of the layer; or (b, t), integers: the places of ones


Batches = Iterator[tuple[dict[Block, Sides], Tensor]]  # sides of every block, and the weights (b,) of the examples


def ekfac_solve(curvature: Curvature, right: Tensor, *, relative: float = 0.0, seed: int = 0) -> Tensor:
    """Inverse of the factorisation of a curvature, with its shift, applied to each row of ``right`` (r, d).

    Parameters
    ----------
    curvature : Curvature
        Of either kind; it is the Gauss–Newton matrix that is factorised.
    right : tensor of shape (r, d)
    relative : float
        What is added to every eigenvalue beside the shift, as a share of their mean.
    seed : int
        Of the random combinations, where there are many outputs.

    Examples
    --------
    >>> from whence.models.examples import Examples
    >>> from whence.models.functional import functional
    >>> from whence.models.losses import Squared
    >>> data = Examples.of((torch.tensor([[1.0], [3.0]]), torch.zeros(2)))
    >>> point = functional(nn.Linear(1, 1, bias=False))  # the mean of 1² and 3² is 5
    >>> curvature = Curvature(point, Squared(), data, torch.full((2,), 0.5), shift=5.0)
    >>> ekfac_solve(curvature, torch.ones(1, 1))
    tensor([[0.1000]])
    """
    examples, params = curvature.examples, curvature.params
    every = MOST_COLUMNS if len(examples) <= FEW_EXAMPLES else COLUMNS
    generator = torch.Generator().manual_seed(seed)
    with differentiable():
        try:
            layers = Layers.checked(curvature.output_fn, params, Kronecker(4, 0), examples.rows(slice(0, 3))[0])
            blocks = _blocks(layers)
        except InputError as error:
            raise InputError(
                f'There is no EK-FAC of this model: use solver=CG() with curvature="gauss_newton". ({error})'
            ) from None

        size = min(ROWS, curvature.fits(COPIES))

        def batches(what: str) -> Batches:
            for rows in track(list(examples.blocks(size)), f"{what} of EK-FAC"):
                inputs, labels = examples.rows(rows)
                root = partial(_columns, curvature.loss, labels=labels, every=every, generator=generator)
                yield _sides(layers, blocks, inputs, root), curvature.weights[rows]

        bases = _bases(batches("factors"))
        values = _eigenvalues(batches("eigenvalues"), bases, params)
    given, shift = split(right, params), curvature.shift
    if relative:
        shift += relative * sum(float(found.sum()) for found in values.values()) / curvature.size
    # Layers that the model never comes to have no curvature of their own.
    solved = {name: part * (1 / shift if shift else 0.0) for name, part in given.items()}
    for block, found in values.items():
        total = found + shift
        # What rounding leaves of a zero is no curvature to divide by: such directions are left alone.
        least = float(total.max()) * torch.finfo(total.dtype).eps
        inverse = torch.where(total > least, 1 / total, 0.0)
        solved |= _solved(block, given, bases[block], inverse)
    return flatten({name: solved[name] for name in params})


def _blocks(layers: Layers) -> dict[Block, nn.Module]:
    """The blocks of parameters, and the layer of each."""
    names = [name for used in layers.uses.values() for name in used.values()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]!r} is shared by two layers.")
    blocks: dict[Block, nn.Module] = {}
    for layer, used in layers.uses.items():
        joined = isinstance(layer, LINEAR) and len(used) == 2
        blocks |= dict.fromkeys(
            [(used["weight"], used["bias"])] if joined else [(name,) for name in used.values()], layer
        )
    return blocks


def _sides(
    layers: Layers, blocks: dict[Block, nn.Module], inputs: Inputs, root_of: Callable[[Tensor], Tensor]
) -> dict[Block, Sides]:
    """The sides of every block for a batch, from a forward pass and a backward pass for each column of R."""
    with torch.enable_grad():
        outputs, seen = layers.forward(inputs, lambda outputs: outputs)
        points, columns = [use.output for use in seen], root_of(outputs.detach()).unbind(-1)
        gradients = [
            torch.autograd.grad(outputs, points, column, retain_graph=c + 1 < len(columns), materialize_grads=True)
            for c, column in enumerate(columns)
        ]
    found: dict[Block, Sides] = {}
    for block, layer in blocks.items():
        uses = [i for i, use in enumerate(seen) if use.layer is layer]
        parts = [_side(layers, block, layer, seen[i].inputs, [g[i] for g in gradients]) for i in uses]
        if parts:  # a layer that is used again has more positions
            found[block] = Sides(torch.cat([p.moving for p in parts], 2), torch.cat([p.fixed for p in parts], 1))
    return found


def _columns(loss: Loss, outputs: Tensor, labels: Tensor, every: int, generator: torch.Generator) -> Tensor:
    """Columns (b, C, c) of R of up to so many outputs, or one random combination, for which R need not be made."""
    if outputs.shape[-1] <= every:
        return loss.root(outputs, labels)
    signs = (2.0 * torch.randint(2, outputs.shape, generator=generator) - 1).to(outputs)
    if type(loss) is not CrossEntropy or labels.ndim > 1 or bool((labels == loss.ignored).any()):
        return loss.root(outputs, labels) @ signs[..., None]
    p = outputs.softmax(-1)
    return (p.sqrt() * signs - p * (p.sqrt() * signs).sum(-1, keepdim=True))[..., None]


def _side(layers: Layers, block: Block, layer: nn.Module, inputs: Tensor, deltas: list[Tensor]) -> Sides:
    """What one use of a layer has for a block, from its inputs and the gradients by its outputs."""
    n = len(deltas[0])
    own = {name: own for own, name in layers.uses[layer].items()}[block[0]]
    if own == "bias" or not isinstance(layer, LINEAR):
        if isinstance(layer, LINEAR):
            vectors = [positions_of(layer, delta, n).sum(1) for delta in deltas]
        else:
            vectors = [by_feature(layer, delta * inputs if own == "weight" else delta) for delta in deltas]
        moving = _wide(torch.stack(vectors)[:, :, None])
        return Sides(moving, moving.new_ones(n, 1, 1))
    moving = _wide(torch.stack([positions_of(layer, delta, n) for delta in deltas]))
    if isinstance(layer, nn.Embedding):
        tokens = inputs.reshape(n, -1)
        return Sides(moving if layer.padding_idx is None else moving * (tokens != layer.padding_idx)[..., None], tokens)
    return Sides(moving, pad(_wide(patches(layer, inputs, n)), (0, len(block) - 1), value=1.0))


def _wide(sides: Tensor) -> Tensor:
    """In single precision at least, as second moments need it."""
    return sides.to(torch.promote_types(sides.dtype, torch.float32))


def _bases(batches: Batches) -> dict[Block, Basis]:
    """Eigenvectors of the second moments of both sides of each block."""
    moments: dict[tuple[Block, int], Tensor] = {}
    for found, weights in batches:
        for block, sides in found.items():
            for i, side in enumerate((sides.moving, sides.fixed)):
                if side.is_floating_point():
                    flat = (side * weights.sqrt()[:, None, None]).flatten(0, -2)
                    moments[block, i] = moments.get((block, i), 0.0) + flat.T @ flat
    vectors = {key: torch.linalg.eigh(moment.double())[1].to(moment) for key, moment in moments.items()}
    return {block: (basis, vectors.get((block, 1))) for (block, i), basis in vectors.items() if i == 0}


def _eigenvalues(batches: Batches, bases: dict[Block, Basis], params: Params) -> dict[Block, Tensor]:
    """Second moments of the gradients of each block in its basis, (p, q)."""
    total: dict[Block, Tensor] = {}
    for found, weights in batches:
        for block, sides in found.items():
            u, v = bases[block]
            moving = sides.moving @ u
            if v is None:
                new = _one_hot_squares(moving, sides.fixed, weights, len(params[block[0]]))
            else:
                new = _squares(moving, sides.fixed @ v, weights)
            total[block] = total[block] + new if block in total else new
    return total


def _squares(moving: Tensor, fixed: Tensor, weights: Tensor) -> Tensor:
    """Σ over examples and columns of w (Σₜ movingₜ fixedₜᵀ)², (p, q)."""
    places = fixed.shape[1]
    if places <= FEW_PLACES:
        # The square of a sum over few places is a sum over pairs of them, each of which is one large matrix product.
        total = moving.new_zeros(moving.shape[-1], fixed.shape[-1])
        for i, j in combinations_with_replacement(range(places), 2):
            left = (moving[:, :, i] * moving[:, :, j]).sum(0) * weights[:, None]
            total += (1 + (i < j)) * (left.T @ (fixed[:, i] * fixed[:, j]))
        return total.clamp_min_(0)
    shape = moving.shape[-1], fixed.shape[-1]
    total = moving.new_zeros(shape[0] * shape[1])
    for rows in torch.split(torch.arange(len(fixed), device=fixed.device), max(1, NUMBERS // len(total))):
        for column in moving:
            total += weights[rows] @ (column[rows].mT @ fixed[rows]).square_().flatten(1)
    return total.view(shape)


def _one_hot_squares(moving: Tensor, tokens: Tensor, weights: Tensor, n_tokens: int) -> Tensor:
    """The same where what goes in is one-hot, (p, n_tokens)."""
    # An example that has a token twice has the sum of both in one row, and it is the sum that is squared.
    same = (tokens[:, :, None] == tokens[:, None, :]).to(moving)
    found = (moving * (same @ moving)).sum(0) * weights[:, None, None]
    total = moving.new_zeros(n_tokens, moving.shape[-1])
    return total.index_add_(0, tokens.flatten(), found.flatten(0, 1)).T


def _solved(block: Block, given: Params, basis: Basis, inverse: Tensor) -> Params:
    """The parts (r, ...) of vectors that belong to a block, divided by its eigenvalues in its basis."""
    u, v = basis
    parts = [given[name] for name in block]
    if v is None:
        return {block[0]: ((parts[0] @ u) * inverse.T) @ u.T}
    matrix = torch.cat([part.reshape(len(part), u.shape[0], -1) for part in parts], 2)
    solved = u @ ((u.T @ matrix @ v) * inverse) @ v.T
    widths = [part[0].numel() // len(u) for part in parts]
    return {
        name: found.reshape(part.shape)
        for name, part, found in zip(block, parts, torch.split(solved, widths, 2), strict=True)
    }
