"""Three routes to the projected gradients of a batch, and what each costs.

- *forward*: the Jacobian-vector product along each row of P gives all C outputs at once: ``rank`` passes for any C;
- *reverse*: the gradient of each output of each example, then P applied to it: C passes, and d × rank products. Where
  P is a subspace and the layers allow it, gradients are made layer by layer from what these see, without vmap;
- *factored*: `whence.gradients.factored`, from what layers see, with Kronecker directions: C backward passes, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from whence.errors import InputError, check_choice, did_you_mean
from whence.gradients.factored import LINEAR, Kronecker, Layers, by_feature, patches, positions_of
from whence.gradients.projections import CountSketch, Gaussian, Identity, Projection, Subspace, flatten, n_params, split
from whence.models.derivatives import mapped, pushed
from whence.models.examples import Examples, Inputs
from whence.models.functional import ModelFn, OutputFn, Params, plain_attention
from whence.models.losses import Logistic, Loss, one_label_each
from whence.models.memory import Chunks
from whence.models.metrics import Metric, margin, metrics_named
from whence.models.problem import Problem
from whence.models.recipe import CHOICES

ROUTES = ("forward", "reverse", "factored")
Block = Callable[[Inputs, Tensor], tuple[Tensor, Tensor]]  # inputs, labels → outputs (b, C), features (b, C, rank)
# Times the rank up to which all parameters are directions: the features are then at most four times as large and the
# Hessian takes at most sixteen times as long, which for so few numbers is seconds, and nothing is lost to chance.
EXACT_UP_TO = 4
_AT_ONCE = 32  # directions whose Jacobian-vector products are made together


def prices(
    output_fn: OutputFn, params: Params, examples: Examples, projection: Projection | Kronecker, width: int
) -> dict[str, float]:
    """Cost of each route that is open to a projection, in forward passes over the data.

    A Jacobian-vector product moves weights and activations and costs two; a gradient by activations alone costs one; a
    gradient per example costs three, and its product with P what the flops say.
    """
    if isinstance(projection, Kronecker):
        return {"factored": 1.0 + width}
    inputs, labels = examples.rows(slice(0, 4))
    with FlopCounterMode(display=False) as counter:
        output_fn(params, inputs)
    per_example = max(1.0, counter.get_total_flops() / len(labels))
    # A sketch touches each number once, at the speed of memory and not of products; the identity leaves them alone.
    each = 20 * projection.nonzeros if isinstance(projection, CountSketch) else projection.rank
    touched = 0 if isinstance(projection, Identity) else n_params(params) * each
    return {"forward": 1.0 + 2 * projection.rank, "reverse": 1 + width * (3 + 2 * touched / per_example)}


def choose_route(open_routes: dict[str, float], route: str, projection: Projection | Kronecker) -> tuple[str, str]:
    """Return the given route or the cheapest one, and its cost compared with the others in words."""
    if route not in ("auto", *ROUTES):
        raise InputError(f"There is no route {route!r}. {did_you_mean(route, ['auto', *ROUTES])}")
    if route not in ("auto", *open_routes):
        raise InputError(f"The {route} route does not go with {projection}: it has {' or '.join(open_routes)} mode.")
    best = min(open_routes, key=lambda name: open_routes[name]) if route == "auto" else route
    others = [f"{name} mode: {price:,.0f}" for name, price in open_routes.items() if name != best]
    told = f"{best} mode, about {open_routes[best]:,.0f} forward passes"
    return best, f"{told} ({', '.join(others)})" if others else told


def cheapest_projection(
    output_fn: OutputFn, params: Params, examples: Examples, rank: int, seed: int, width: int
) -> Projection | Kronecker:
    """Return the directions with the best value for their cost.

    All parameters where these are few; else Kronecker directions, where the layers of the model allow them and they are
    cheaper, or Gaussian ones.
    """
    if n_params(params) <= EXACT_UP_TO * rank:
        return Identity(n_params(params))
    dense, structured = Gaussian(rank, seed), Kronecker(rank, seed)
    if not isinstance(output_fn, ModelFn):
        return dense
    if 1.0 + width >= min(prices(output_fn, params, examples, dense, width).values()):
        return dense
    try:
        Layers.checked(output_fn, params, structured, examples.rows(slice(0, 3))[0])
    except InputError:
        return dense
    return structured


@contextmanager
def passes(params: Params, precision: str) -> Iterator[None]:
    """Set up forward passes: no autograd graph, attention that can be differentiated forward, and the precision."""
    check_choice(precision, CHOICES["precision"], "precision")
    device = next(iter(params.values())).device.type
    lower: AbstractContextManager[object] = nullcontext()
    if precision == "bfloat16":
        lower = torch.autocast(device, torch.bfloat16)
    with torch.no_grad(), plain_attention(), lower:
        yield


def readout(of: str, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function from the model's outputs to what is linearised."""
    return (lambda outputs: margin(outputs, labels)[:, None]) if of == "margin" else (lambda outputs: outputs)


def margin_loss(problem: Problem) -> tuple[Loss, dict[str, Metric]]:
    """Return the loss and metrics of a margin: its logistic loss is the cross-entropy."""
    if not one_label_each(problem.loss, problem.tasks.labels):
        raise InputError(
            "Only classes have margins: of='margin' goes with 'cross_entropy' or 'logistic' and one label per example."
        )
    if "accuracy" in problem.metrics:
        raise InputError("The most likely class is not known from the margin: use of='outputs' for the accuracy.")
    return Logistic(), metrics_named(list(problem.metrics), Logistic())


def block_fn(
    output_fn: OutputFn, points: Sequence[Params], examples: Examples, projection: Any, route: str, of: str
) -> Block:
    """Return the function that works on a batch at a point, or at all of several that `taken_together` allows."""
    params = points[0]
    if route == "factored":
        layers = Layers.checked(output_fn, params, projection, examples.rows(slice(0, 3))[0])  # type: ignore[arg-type]
        return lambda inputs, labels: layers.block(inputs, readout(of, labels))
    if route == "reverse" and isinstance(projection, Subspace) and (seen := layers_of(output_fn, params, examples)):
        return lambda inputs, labels: block_along(seen, points, projection.directions, inputs, labels, of)

    def along(inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        read = readout(of, labels)

        def outputs_at(at: Params) -> Tensor:
            return read(output_fn(at, inputs)).float()

        def product(direction: Params) -> Tensor:
            moved: Tensor = pushed(outputs_at, params, direction)[1]
            return moved

        outputs = outputs_at(params)
        features = outputs.new_empty(*outputs.shape, projection.rank)

        def some(rows: slice) -> None:
            directions = split(projection.rows(params, rows.start, rows.stop), params)
            features[:, :, rows] = mapped(product, directions).permute(1, 2, 0)

        Chunks(min(_AT_ONCE, 2**28 // n_params(params))).run(projection.rank, some)
        return outputs, features

    def backward(inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = readout(of, labels)(output_fn(params, inputs)).float()
        features = outputs.new_empty(*outputs.shape, projection.rank)

        def one(at: Params, x: Inputs, y: Tensor, c: int) -> Tensor:
            return readout(of, y[None])(output_fn(at, tree_map(lambda leaf: leaf[None], x)))[0, c]

        portion = max(1, 2**27 // n_params(params))
        for start in range(0, len(outputs), portion):
            rows = slice(start, start + portion)
            some = tree_map(lambda leaf, rows=rows: leaf[rows], inputs)
            for c in range(outputs.shape[1]):
                gradients = mapped(torch.func.grad(one), params, some, labels[rows], c, in_dims=(None, 0, 0, None))
                features[rows, c] = projection.project(flatten(gradients).float(), params)
        return outputs, features

    return along if route == "forward" else backward


def taken_together(output_fn: OutputFn, params: Params, examples: Examples, projection: Any, route: str) -> bool:
    """Whether a batch passes through the model at several points at once: as models of stacked parameters."""
    stacks = isinstance(output_fn, ModelFn) and getattr(output_fn.module, "takes_stacks", False)
    return (
        stacks
        and route in ("auto", "reverse")
        and isinstance(projection, Subspace)
        and layers_of(output_fn, params, examples) is not None
    )


def layers_of(output_fn: OutputFn, params: Params, examples: Examples) -> Layers | None:
    """The layers that hold the parameters; None if they do not tell each example's gradient, or it is too large."""
    if not isinstance(output_fn, ModelFn):
        return None
    try:
        found = Layers.checked(output_fn, params, Kronecker(32), examples.rows(slice(0, 3))[0])
    except InputError:
        return None
    return None if any(isinstance(layer, nn.Embedding) for layer in found.uses) else found


def block_along(
    layers: Layers, points: Sequence[Params], directions: Params, inputs: Inputs, labels: Tensor, of: str
) -> tuple[Tensor, Tensor]:
    """Outputs and products of each example's gradient with directions, tensors (r, ...), at p points.

    They have the shapes (b, p · C) and (b, p · C, r).
    """
    p = len(points)
    layers.params = points[0] if p == 1 else {name: torch.stack([at[name] for at in points]) for name in points[0]}
    repeated, again = tree_map(lambda leaf: leaf.repeat(p, *[1] * (leaf.ndim - 1)), (inputs, labels))
    outputs, seen, gradients = layers.differentiated(repeated, readout(of, again))
    n, rank = len(outputs), len(next(iter(directions.values())))
    features = torch.zeros(*outputs.shape, rank, device=outputs.device)
    for c, deltas in enumerate(gradients):
        for use, delta in zip(seen, deltas, strict=True):
            for own, name in layers.uses[use.layer].items():
                found = _by_example(use.layer, own, use.inputs, delta, n)
                features[:, c] += found.flatten(1).float() @ directions[name].flatten(1).to(features).T
    return _side_by_side(outputs, p), _side_by_side(features, p)


def _side_by_side(part: Tensor, p: int) -> Tensor:
    """What was found at p points, (p · b, C, …), as (b, p · C, …)."""
    return part.unflatten(0, (p, -1)).transpose(0, 1).flatten(1, 2)  # type: ignore[no-untyped-call,no-any-return]


def _by_example(layer: nn.Module, own: str, inputs: Tensor, delta: Tensor, n: int) -> Tensor:
    """Gradient of each example by the weight or the bias of a layer, (n, ...)."""
    if not isinstance(layer, LINEAR):
        return by_feature(layer, delta * inputs if own == "weight" else delta)
    places = positions_of(layer, delta, n)
    return places.sum(dim=1) if own == "bias" else places.transpose(1, 2) @ patches(layer, inputs, n).to(delta)
