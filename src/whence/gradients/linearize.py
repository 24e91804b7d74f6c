"""Linearise a model at W₀ along the rows of a projection P: outputs f and features P∇f for every example, in one pass.

With the update restricted to W₀ + Pᵀz, the first-order model of the paper is f(x) + ⟨P∇f(x), z⟩. GradEx, TRAK and
TracIn all start from here; routes.py has the ways to P∇f, of which the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from whence.errors import InputError, check_choice, whole_number
from whence.gradients.factored import Kronecker
from whence.gradients.projections import Projection, Subspace, check_rank
from whence.gradients.routes import block_fn, choose_route, passes, prices, readout
from whence.gradients.store import Store, fingerprint
from whence.models.examples import Examples
from whence.models.functional import ModelFn, OutputFn, Params
from whence.models.memory import Chunks, bytes_per_row, free_bytes
from whence.models.metrics import Metric
from whence.outcomes.sizes import size_in_words
from whence.progress import track


@dataclass(frozen=True, eq=False, repr=False)
class Linearization:
    """Outputs at W₀ and projected gradients of every example."""

    outputs: Tensor  # (n, C), float32
    features: Tensor  # (n, C, rank), float32: in memory, or mapped from the files of a store
    examples: Examples  # with of="margin", every label is 1
    route: str  # which route was taken, with the price of each in forward passes

    @property
    def rank(self) -> int:
        """Number of features per output."""
        return self.features.shape[2]

    def __repr__(self) -> str:
        n, width, rank = self.features.shape
        return f"Linearization: {n} examples × {width} outputs × rank {rank} ({self.route})"

    def blocks(self, n_subsets: int) -> Iterator[tuple[slice, Tensor]]:
        """Rows and features of blocks that leave room for ``n_subsets`` sets of outputs."""
        for rows in self.examples.blocks(self.block_size(n_subsets)):
            yield rows, self.features[rows].to(self.outputs.device)

    def block_size(self, n_subsets: int) -> int:
        """Number of examples in a block."""
        n, width, rank = self.features.shape
        return min(n, max(1, _BLOCK_NUMBERS // (width * max(rank, n_subsets))))

    def values(self, delta: Tensor, metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
        """Metrics of every example, (m, n), after the updates (m, rank) of m subsets."""
        parts: dict[str, list[Tensor]] = {name: [] for name in metrics}
        for rows, features in self.blocks(len(delta)):
            moved = (delta @ features.reshape(-1, self.rank).T).view(len(delta), features.shape[0], -1)
            for name, metric in metrics.items():
                parts[name].append(metric(self.outputs[rows] + moved, self.examples.labels[rows]))
        return {name: torch.cat(found, dim=1) for name, found in parts.items()}

    def measured_from(self, place: Tensor) -> Linearization:
        """The same linear model with updates measured from another point, given as (rank,) coordinates."""
        outputs = self.outputs.clone()
        for rows, features in self.blocks(1):
            outputs[rows] += features @ place.to(features)
        return Linearization(outputs, self.features, self.examples, self.route)

    def leading(self, rank: int, *, rescale: bool = True) -> Linearization:
        """The same with the first ``rank`` directions only: a projection of lower rank, at no cost.

        Rescaling keeps inner products as they are on average, for random directions.
        """
        if not 1 <= rank <= self.rank:
            raise InputError(f"The rank must be from 1 to {self.rank}, as linearised. Got {rank}.")
        features = self.features[:, :, :rank] * ((self.rank / rank) ** 0.5 if rescale else 1.0)
        return Linearization(self.outputs, features, self.examples, self.route)


@dataclass(frozen=True, kw_only=True)
class Features:
    """How the features of GradEx and TRAK are computed and kept: for speed and memory.

    Parameters
    ----------
    route : {"auto", "forward", "reverse", "factored"}
        Which way to the projected gradients; see `whence.gradients.routes`.
    examples : int or None
        Examples of each task that features are made of, drawn at random; all if None. Features take most of the time.
        A few examples per task may do where they are alike; for adapters of language models all were clearly better.
    precision : {"float32", "bfloat16"}
        Of the forward passes.
    store : path, optional
        Folder to keep the features in, if they are larger than memory or are needed again.

    Examples
    --------
    >>> Features(examples=16, store="features/")
    Features(route='auto', examples=16, precision='float32', store='features/')
    """

    route: str = "auto"
    examples: int | None = None
    precision: str = "float32"
    store: str | Path | None = None

    def __post_init__(self) -> None:
        if self.examples is not None:
            whole_number(self.examples, "examples", of="Features")


ROWS = 256  # examples per pass, and in a block of a store
ROWS_BY_LAYERS = 2048  # … from what layers see, whose many small products are worth their calls for many examples
_BLOCK_NUMBERS = 2**26  # numbers in a block of features, and in the outputs of all subsets for it: 256 MB


def linearize(
    output_fn: OutputFn, params: Params, examples: Examples, projection: Projection | Kronecker, **how: Any
) -> Linearization:
    """Return outputs and projected gradients of all examples at W₀, the ``params`` that may move.

    ``output_fn(params, inputs)`` gives outputs (n, C). For the options see `linearize_together`.
    """
    return linearize_together(output_fn, [params], examples, projection, **how)[0]


def linearize_together(
    output_fn: OutputFn,
    points: Sequence[Params],
    examples: Examples,
    projection: Projection | Kronecker,
    *,
    route: str = "auto",
    of: str = "outputs",
    precision: str = "float32",
    store: str | None = None,
    batch_size: int | None = None,
    what: str = "examples",
) -> list[Linearization]:
    """Return outputs and projected gradients at a point, or at several in the same passes, where `routes` can.

    With ``of`` "margin", log p/(1 − p) of each example's label is linearised, a single output whose logistic loss is
    the cross-entropy. For ``route``, ``precision`` and ``store`` see `Features`; Kronecker directions need the factored
    route, and it needs them. ``what`` names the examples.
    """
    params = points[0]
    check_choice(of, ("outputs", "margin"), "of")
    check_rank(projection.rank, params)
    with passes(params, precision):
        width = len(points) * n_outputs(output_fn, params, examples, of, what)
        route, told = choose_route(prices(output_fn, params, examples, projection, width), route, projection)
        work = block_fn(output_fn, points, examples, projection, route, of)
        if batch_size is None:
            many = min(ROWS_BY_LAYERS, _BLOCK_NUMBERS // (width * projection.rank))
            by_layers = route == "factored" or (route == "reverse" and isinstance(projection, Subspace))
            batch_size = max(ROWS, many) if by_layers and store is None else ROWS
        chunks = Chunks(min(batch_size, _rows_that_fit(output_fn, params, examples) // len(points)))

        def block(rows: slice) -> tuple[Tensor, Tensor]:
            parts = chunks.run(
                rows.stop - rows.start,
                lambda part: work(*examples.rows(slice(rows.start + part.start, rows.start + part.stop))),
            )
            outputs, features = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
            return _finite((outputs, features), rows, examples, what)

        shape = (len(examples), width, projection.rank)
        label = f"gradients of {what}: {size_in_words(4 * np.prod(shape, dtype=float))}, {route}"
        if store is None:
            outputs, features = (torch.empty(size, device=_device(examples)) for size in (shape[:2], shape))
            own = own_rows(len(examples))
            for start in track(range(own.start, own.stop, chunks.size), label):
                rows = slice(start, min(start + chunks.size, own.stop))
                outputs[rows], features[rows] = block(rows)
            gather(outputs), gather(features)
        elif n_processes() > 1:
            raise InputError("A store of features is written by one process: under torchrun, leave store= out.")
        else:
            about: dict[str, object] = {"route": route, "of": of, "precision": precision}
            kept = Store(store, shape, batch_size, _identity(output_fn, params, examples, projection) | about)
            missing = [rows for rows in kept.blocks() if rows.start not in kept.done]
            for rows in track(missing, label):
                kept.write(rows, *(part.cpu().numpy() for part in block(rows)))
            outputs, features = torch.from_numpy(kept.outputs).to(_device(examples)), torch.from_numpy(kept.features)
    if not bool(features[: min(len(features), 64)].any()) and not bool(features.any()):
        raise InputError(
            f"The outputs for the {what} do not depend on any of the chosen parameters, so nothing can be "
            "estimated: choose others with params=."
        )
    if of == "margin":
        ones = torch.ones(len(examples), device=_device(examples))
        examples = Examples(examples.inputs, ones, examples.owner, examples.names)
    at_points = zip(torch.chunk(outputs, len(points), dim=1), torch.chunk(features, len(points), dim=1), strict=True)
    return [Linearization(own.contiguous(), seen.contiguous(), examples, told) for own, seen in at_points]


def _device(examples: Examples) -> torch.device:
    found: torch.device = tree_leaves(examples.inputs)[0].device
    return found


def _rows_that_fit(output_fn: OutputFn, params: Params, examples: Examples) -> int:
    """How many examples fit in memory, with their activations and gradients."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}

    def forward(n: int) -> Tensor:
        with torch.enable_grad():
            return output_fn(leaves, examples.rows(torch.arange(n, device=_device(examples)) % len(examples))[0])

    return free_bytes(_device(examples)) // (3 * bytes_per_row(forward))


def n_outputs(output_fn: OutputFn, params: Params, examples: Examples, of: str, what: str) -> int:
    """Number of outputs per example, from running a few twice; an error if the model cannot be linearised."""
    inputs, labels = examples.rows(slice(0, 4))
    first, again = (readout(of, labels)(output_fn(params, inputs)) for _ in range(2))
    if first.ndim != 2 or len(first) != len(labels):
        shape = tuple(first.shape)
        raise InputError(f"The model must return a row of outputs per example, ({len(labels)}, C). Got {shape}.")
    if not torch.equal(first.isnan(), again.isnan()) or not torch.allclose(
        first, again, rtol=1e-3, atol=1e-5, equal_nan=True
    ):
        raise InputError(
            f"The model is not deterministic: two passes over the same {what} differ. Switch off what is random in it "
            "(dropout called as a function, sampling, noise)."
        )
    return first.shape[1]


def _finite(found: tuple[Tensor, Tensor], rows: slice, examples: Examples, what: str) -> tuple[Tensor, Tensor]:
    """Return outputs and features if they are finite, else name the first example with others."""
    for part, tensor in zip(("outputs", "gradients"), found, strict=True):
        # A sum is one pass over memory, where isfinite takes several; it may overflow where no entry has.
        if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).flatten(1).any(dim=1).nonzero()[0, 0]) + rows.start
            owner = int(examples.owner[bad])
            place = bad - int((examples.owner < owner).sum())
            raise InputError(
                f"The model's {part} for the {what} are not finite, first for example {place} of "
                f"{examples.names[owner]!r}: check it, and the model at these parameters."
            )
    return found


def _identity(
    output_fn: OutputFn, params: Params, examples: Examples, projection: Projection | Kronecker
) -> dict[str, object]:
    """Return what identifies features, apart from settings, for the manifest of a store."""
    fixed = output_fn.fixed if isinstance(output_fn, ModelFn) else {}
    directions = getattr(projection, "directions", None)
    return {
        "model": fingerprint([*params.values(), *fixed.values()]),
        "parameters": sorted(params),
        "data": fingerprint([*tree_leaves(examples.inputs), examples.labels, examples.owner]),
        "groups": list(examples.names),
        "projection": f"Subspace {fingerprint(directions.values())}" if directions else str(projection),
        "device": next(iter(params.values())).device.type,
    }


def n_processes() -> int:
    """Number of processes of ``torchrun`` that share work: 1 unless ``torch.distributed`` was initialised."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def own_rows(n: int) -> slice:
    """Which of n rows are this process's; `gather` fetches the others."""
    return _share(n, torch.distributed.get_rank() if n_processes() > 1 else 0)


def gather(rows: Tensor) -> Tensor:
    """Fill in the rows (n, ...) of the other processes, in place."""
    for process in range(n_processes() if n_processes() > 1 else 0):
        part = rows[_share(len(rows), process)]
        if len(part):
            torch.distributed.broadcast(part, src=process)
    return rows


def _share(n: int, process: int) -> slice:
    return slice(n * process // n_processes(), n * (process + 1) // n_processes())
