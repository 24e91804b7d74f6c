"""Projected gradients from the inputs and output gradients of layers, without any gradient of a weight.

The gradient of one example by the weights of a linear layer is Σₜ δₜ aₜᵀ, over positions t, with a the input of the
layer and δ the gradient by its output. Along Kronecker directions B ⊗ A it is Σₜ (B δₜ)(A aₜ)ᵀ, so a forward and
a backward pass over a whole batch give every example's features, where the gradient itself would take d numbers for
each. A bias is the weight of one more input that is always 1, embeddings are linear layers with one-hot inputs,
convolutions are linear layers on patches; the short gradients of norms, and of biases without their weights, go to one
feature per entry with a random sign. All layers share the same ``rank`` features, which are summed: P = [P₁ … P_L].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, group_norm, layer_norm, linear, unfold
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from whence.errors import InputError, brief, some_of
from whence.models.examples import Inputs
from whence.models.functional import ModelFn, Params

LINEAR = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (nn.LayerNorm, nn.GroupNorm, *BATCH_NORMS)
Readout = Callable[[Tensor], Tensor]  # outputs of the model (n, C) → the outputs to differentiate (n, C')


# Uses that all examples share, of models that were tried, by parameters and kind of inputs.
_TRIED: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], set[int]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Kronecker:
    """Directions that are Kronecker products within each layer; E[PᵀP] = I, as for any projection.

    >>> Kronecker(rank=512).sides(200, 100), Kronecker(rank=512).sides(65, 10)
    ((16, 32), (51, 10))
    """

    rank: int = 512
    seed: int = 0

    def sides(self, longer: int, shorter: int) -> tuple[int, int]:
        """Numbers of directions for the longer and for the shorter side of a weight, whose product is about the rank.

        A side that has fewer entries than its share gets one direction for each, and leaves the rest to the other.
        """
        few = next(i for i in range(int(self.rank**0.5), 0, -1) if self.rank % i == 0)
        for_shorter = min(self.rank // few, shorter)
        return self.rank // for_shorter, for_shorter

    def factors(self, index: int, weight: Tensor, n_biases: int = 0) -> tuple[Tensor, Tensor]:
        """A (in, ·) and B (out, ·) of the weight number ``index``; each of its biases is one more input."""
        generator = self._generator(index)
        n_out, n_in = len(weight), weight[0].numel() + n_biases
        for_in, for_out = self.sides(n_out, n_in)[::-1] if tall(weight) else self.sides(n_in, n_out)
        a, b = _directions(n_in, for_in, generator), _directions(n_out, for_out, generator)
        return a.to(weight), b.to(weight)

    def signs(self, index: int, length: int, like: Tensor) -> tuple[int, Tensor]:
        """Feature that the first entry of the vector number ``index`` goes to, the next to the next; their signs."""
        generator = self._generator(index)
        first = int(torch.randint(self.rank, (1,), generator=generator))
        return first, (torch.randint(2, (length,), generator=generator) * 2 - 1).to(like)

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0]))


def _directions(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Random directions for one side of a weight, (n, count): one for each entry where there are as many."""
    if count == n:
        return torch.diag(2.0 * torch.randint(2, (n,), generator=generator) - 1)
    drawn: Tensor = torch.randn(n, count, generator=generator) * count**-0.5
    return drawn


def tall(weight: Tensor) -> bool:
    """Whether a weight has more outputs than inputs, (out, in, …)."""
    return len(weight) > weight[0].numel()


@dataclass(frozen=True, eq=False)
class _Use:
    """One use of a layer in a forward pass: what its weights were multiplied with, and what came out."""

    layer: nn.Module
    inputs: Tensor
    output: Tensor


class Layers:
    """The layers of a module that hold the chosen parameters, and what each contributes to the features.

    All parameters must belong to linear, embedding, convolution or norm layers, which get hooks during a block.
    """

    def __init__(self, output_fn: ModelFn, params: Params, projection: Kronecker) -> None:
        self.output_fn, self.params, self.projection = output_fn, params, projection
        self.uses = _uses(output_fn.module, params)  # layer → the parameters of it that are chosen
        self.matrices = {
            used["weight"] for layer, used in self.uses.items() if isinstance(layer, LINEAR) and "weight" in used
        }
        self.weights = {  # of the biases that have a chosen one
            used["bias"]: used["weight"]
            for used in self.uses.values()
            if "bias" in used and used.get("weight") in self.matrices
        }
        for module in output_fn.module.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]  # outputs of layers are kept, not overwritten
        self.shared: set[int] = set()  # uses whose input is the same for all examples, such as positions

    @cached_property
    def _drawn(self) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        index = {name: i for i, name in enumerate(self.params)}
        factors: dict[str, tuple[Tensor, Tensor]] = {}
        constants: dict[str, Tensor] = {}
        for name in self.matrices:
            biases = [bias for bias, weight in self.weights.items() if weight == name]
            a, b = self.projection.factors(index[name], self.params[name], len(biases))
            n_in = len(a) - len(biases)
            factors[name] = a[:n_in], b
            constants |= dict(zip(biases, a[n_in:], strict=True))
        return factors, constants

    @property
    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Both sides of the directions of each matrix, A (in, ·) and B (out, ·)."""
        return self._drawn[0]

    @property
    def constants(self) -> dict[str, Tensor]:
        """Rows of A for inputs that are always 1, whose weights are biases."""
        return self._drawn[1]

    @cached_property
    def signs(self) -> dict[str, tuple[int, Tensor]]:
        """Where the entries of each vector go, and their signs."""
        return {
            name: self.projection.signs(at, value.numel(), value)
            for at, (name, value) in enumerate(self.params.items())
            if name not in self.matrices and name not in self.weights
        }

    def block(self, inputs: Inputs, readout: Readout) -> tuple[Tensor, Tensor]:
        """Outputs (b, C) and features (b, C, rank) of a batch."""
        outputs, seen, gradients = self.differentiated(inputs, readout)
        n, width = outputs.shape
        inputs_projected = [self._inputs(use, n) for use in seen]
        features = torch.zeros(n, width, self.projection.rank, device=outputs.device)
        for c in range(width):
            pairs: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for use, held, delta in zip(seen, inputs_projected, gradients[c], strict=True):
                if held is not None:
                    few, many = self._pair(use, held, delta, n)
                    pairs[few.shape[2], many.shape[2]].append((few, many))
            for sides, alike in pairs.items():
                # Every layer adds Σₜ few ⊗ many: one product over the positions of all layers with the same sides.
                few, many = (torch.cat(side, dim=1).float() for side in zip(*alike, strict=True))
                features[:, c, : sides[0] * sides[1]].view(n, *sides).baddbmm_(few.transpose(1, 2), many)
            for use, delta in zip(seen, gradients[c], strict=True):
                self._add_vectors(features[:, c], use, delta)
        return outputs, features

    def differentiated(self, inputs: Inputs, readout: Readout) -> tuple[Tensor, list[_Use], list[tuple[Tensor, ...]]]:
        """Outputs (b, C), what the layers did, and for each output the gradient by what came out of each layer."""
        with torch.enable_grad():
            outputs, seen = self.forward(inputs, readout)
            totals, points = outputs.sum(dim=0), [use.output for use in seen]
            gradients = [
                torch.autograd.grad(total, points, retain_graph=c + 1 < len(totals), materialize_grads=True)
                for c, total in enumerate(totals)
            ]
        return outputs.detach(), seen, gradients

    def forward(self, inputs: Inputs, readout: Readout) -> tuple[Tensor, list[_Use]]:
        """Run the model on a batch; return its outputs and what its layers did."""
        seen: list[_Use] = []
        n = len(tree_leaves(inputs)[0])

        def record(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            given = args[0].detach()
            if len(seen) in self.shared:  # one copy per example, so that each has a gradient of its own
                given, output = (
                    x.expand(n, *x.shape[1:]) if len(x) == 1 else x.expand(n, *x.shape) for x in (given, output)
                )
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            # The statistics of a norm are known only now.
            seen.append(_Use(layer, given if isinstance(layer, LINEAR) else _normed(layer, given), output))
            return output

        hooks = [layer.register_forward_hook(record) for layer in self.uses]
        try:
            outputs = readout(self.output_fn(self.params, inputs))
        finally:
            for hook in hooks:
                hook.remove()
        if not seen:
            raise InputError("None of the layers with the chosen parameters is used by the model.")
        return outputs, seen

    def _inputs(self, use: _Use, n: int) -> Tensor | None:
        """Return what a use brings in before any gradient, (n, t, ·); None if its weight is not a chosen matrix."""
        name = self.uses[use.layer].get("weight", "")
        if name not in self.factors:
            return None
        a, b = self.factors[name]
        if not isinstance(use.layer, nn.Embedding):
            constant = self.constants.get(self.uses[use.layer].get("bias", ""))
            constant = None if constant is None else constant.to(use.inputs)
            return linear(patches(use.layer, use.inputs, n), a.T.to(use.inputs), constant)
        picked = b[use.inputs]  # a one-hot input picks a row
        if use.layer.padding_idx is not None:
            picked = picked * (use.inputs != use.layer.padding_idx)[..., None]
        return picked.reshape(n, -1, b.shape[1])

    def _pair(self, use: _Use, held: Tensor, delta: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return both sides of a weight's features, (n, t, few) and (n, t, many)."""
        name = self.uses[use.layer]["weight"]
        a, b = self.factors[name]
        positions, held = positions_of(use.layer, delta, n), held.to(delta)
        # An embedding's weight has its inputs, the tokens, first.
        along = (
            (positions @ a.to(delta), held) if isinstance(use.layer, nn.Embedding) else (held, positions @ b.to(delta))
        )
        return along[::-1] if tall(self.params[name]) else along

    def _add_vectors(self, features: Tensor, use: _Use, delta: Tensor) -> None:
        """Add the gradients of a use's vectors to the features (n, rank)."""
        for own, name in self.uses[use.layer].items():
            if name not in self.signs:
                continue
            if isinstance(use.layer, LINEAR):
                gradient = positions_of(use.layer, delta, len(features)).sum(dim=1)
            else:
                gradient = by_feature(use.layer, delta * use.inputs if own == "weight" else delta)
            first, signs = self.signs[name]
            entry = 0
            while entry < len(signs):  # to the last feature, and then on from the first
                some = slice(entry, entry + features.shape[1] - first)
                part = gradient[:, some].float() * signs[some].float()
                features[:, first : first + part.shape[1]] += part
                entry, first = some.stop, 0

    def project(self, gradients: Params) -> Tensor:
        """P applied to given gradients, (b, rank): for tests, and for checking a model's layers."""
        found = torch.zeros(
            len(next(iter(gradients.values()))), self.projection.rank, device=next(iter(gradients.values())).device
        )
        for name, value in gradients.items():
            if name in self.signs:
                first, signs = self.signs[name]
                places = (first + torch.arange(len(signs), device=signs.device)) % self.projection.rank
                found.index_add_(1, places, (value.flatten(1) * signs).to(found))
                continue
            weight = self.weights.get(name, name)
            a, b = self.factors[weight]
            rows = self.constants[name][None] if name in self.weights else a
            both = torch.einsum("noi,ir,os->nrs", value.reshape(len(value), -1, len(rows)), rows, b)
            along = (both.transpose(1, 2) if tall(self.params[weight]) else both).flatten(1)
            found[:, : along.shape[1]] += along
        return found

    @property
    def spanned(self) -> int:
        """Number of directions that are linearly independent: no more than there are parameters or used features."""
        reached, n = np.zeros(self.projection.rank, dtype=bool), 0
        for name, (a, b) in self.factors.items():
            n_in = len(a) + sum(weight == name for weight in self.weights.values())
            reached[: a.shape[1] * b.shape[1]] = True
            n += min(n_in, a.shape[1]) * min(len(b), b.shape[1])
        for first, signs in self.signs.values():
            reached[(first + np.arange(len(signs))) % len(reached)] = True
            n += min(len(signs), len(reached))
        return min(n, int(reached.sum()))

    @classmethod
    def checked(cls, output_fn: ModelFn, params: Params, projection: Kronecker, probe: Inputs) -> Layers:
        """Layers whose features are known to be the projected gradients, from trying them on a few examples.

        Layers whose weights are used in a way that hooks do not see are refused and not miscounted. A model is tried
        once for the same parameters and kind of inputs, whatever their values.
        """
        leaves, form = tree_flatten(probe)
        kind = tuple(params), form, tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        known = _TRIED.setdefault(output_fn.module, {})
        if kind not in known:
            small = cls(output_fn, params, Kronecker(32, projection.seed))
            try:
                small._check(probe)
            except (RuntimeError, IndexError) as error:
                raise InputError(f"The factored route cannot follow it ({brief(error)}): use another route.") from error
            known[kind] = small.shared
        layers = cls(output_fn, params, projection)
        layers.shared = known[kind]
        return layers

    def _check(self, inputs: Inputs) -> None:
        """Find the uses that all examples share, then compare a few features with projected gradients."""
        few = [tree_map(lambda leaf, k=k: leaf[torch.arange(k) % len(leaf)], inputs) for k in (2, 3)]
        two, three = (self.forward(batch, lambda outputs: outputs)[1] for batch in few)
        if len(two) != len(three):
            raise InputError("Which layers the model uses depends on the examples of a batch: use another route.")
        self.shared = {i for i, (x, y) in enumerate(zip(two, three, strict=True)) if len(x.inputs) == len(y.inputs)}

        _, features = self.block(few[0], lambda outputs: outputs[:, :1])
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        with torch.enable_grad():
            first = self.output_fn(leaves, few[0])[:, 0]
            each = [
                torch.autograd.grad(one, list(leaves.values()), retain_graph=True, materialize_grads=True)
                for one in first
            ]
        expected = self.project(dict(zip(leaves, map(torch.stack, zip(*each, strict=True)), strict=True)))
        rounding = max(torch.finfo(value.dtype).eps for value in (*self.params.values(), *(use.output for use in two)))
        rtol, atol = max(1e-2, 8 * rounding), max(1e-3, 2 * rounding) * float(expected.abs().max())
        if not torch.allclose(features[:, 0], expected, rtol=rtol, atol=atol):
            raise InputError(
                "The factored route does not see all uses of the chosen parameters in this model "
                "(its features differ from projected gradients on a probe): use another route."
            )


def patches(layer: nn.Module, a: Tensor, n: int) -> Tensor:
    """Return what a linear layer multiplies with its weights at each position, (b, t, in)."""
    if isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str):
        return unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)
    if isinstance(layer, nn.Conv1d) and not isinstance(layer.padding, str):
        size, step = (1, *layer.kernel_size), (1, *layer.stride)
        patches = unfold(a[:, :, None], size, (1, *layer.dilation), (0, *layer.padding), step)
        return patches.transpose(1, 2)
    return a.reshape(n, -1, a.shape[-1])


def positions_of(layer: nn.Module, delta: Tensor, n: int) -> Tensor:
    """Return the gradient by a linear layer's output at each position, (b, t, out)."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return delta.flatten(2).transpose(1, 2)
    return delta.reshape(n, -1, delta.shape[-1])


def _normed(layer: nn.Module, a: Tensor) -> Tensor:
    """Return what a norm layer multiplies with its weight."""
    if isinstance(layer, nn.LayerNorm):
        return layer_norm(a, layer.normalized_shape, eps=layer.eps)
    if isinstance(layer, nn.GroupNorm):
        return group_norm(a, layer.num_groups, eps=layer.eps)
    if isinstance(layer, BATCH_NORMS):
        return batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)
    eps = getattr(layer, "eps", None) or getattr(layer, "variance_epsilon", None) or torch.finfo(a.dtype).eps
    return a * (a.square().mean(dim=-1, keepdim=True) + eps).rsqrt()


def by_feature(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Sum a gradient over everything but the example and the norm's own features, (b, features)."""
    if isinstance(layer, (nn.GroupNorm, *BATCH_NORMS)):
        return gradient.flatten(2).sum(dim=2) if gradient.ndim > 2 else gradient
    width = next(layer.parameters(recurse=False)).numel()
    return gradient.reshape(len(gradient), -1, width).sum(dim=1)


def _uses(module: nn.Module, params: Params) -> dict[nn.Module, dict[str, str]]:
    """Return, for each layer that holds chosen parameters, their names by what they are in it."""
    names = {id(value): name for name, value in module.named_parameters()}
    uses: dict[nn.Module, dict[str, str]] = {}
    unsupported = []
    for layer in module.modules():
        chosen = {own: names[id(value)] for own, value in layer.named_parameters(recurse=False)}
        chosen = {own: name for own, name in chosen.items() if name in params}
        if not chosen:
            continue
        known = isinstance(layer, (*LINEAR, *NORMS)) or type(layer).__name__.endswith("RMSNorm")  # there are many
        if not known or not set(chosen) <= {"weight", "bias"} or _odd(layer):
            unsupported += [f"{name} (in {type(layer).__name__})" for name in chosen.values()]
        uses[layer] = chosen
    if unsupported:
        raise InputError(
            "The factored route knows linear, embedding, convolution and norm layers. "
            f"It cannot take {some_of(unsupported, 3)}: use another route, or leave these out with params=."
        )
    return uses


def _odd(layer: nn.Module) -> bool:
    """Whether a layer of a known type has a setting that the formulas here do not cover."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is not None or layer.scale_grad_by_freq
    return False
