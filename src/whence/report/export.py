"""Surrogates as plain arrays, from which the page predicts in the browser what Python predicts.

A posterior travels as its kernel, its runs and its dual coefficients: the prediction is a sum over runs. The interval
needs the Cholesky factor of the kernel matrix, m² / 2 numbers; the browser computes it anew from the runs instead of
being sent it, so that a page stays small. ``surrogate.js`` is the other half of this module, formula by formula.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.report.packing import Packed, pack
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.choose import Model, Part
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.kernel import PosteriorSurrogate
from whence.surrogates.kernels import RBF, Constant, Kernel, Polynomial, Size
from whence.surrogates.posterior import Posterior

# A browser factors so many runs in about a second. Beyond, a sample of them gives the interval: on fewer runs the
# process is less certain, so that the interval can only come out too wide.
FACTORED_RUNS = 1500
# What the surrogates of all targets may take of a page; targets beyond it are shown but cannot be explored.
EXPORT_BYTES = 3 << 20


def exported(model: Model, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return the surrogates of a model for the browser, one for each part that can be sent there.

    Parameters
    ----------
    model : Model
        Parts with a surrogate of another library are left out, and so are targets beyond what a page may hold.
    seed : int
        Of the sample of runs that gives the interval where there are too many.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(3)
    >>> model = whence.fit(whence.Outcomes(S, S[:, 0]), surrogate=whence.AdditiveSurrogate("ols"))
    >>> exported(model)[0]["kind"]
    'additive'
    """
    found, left = [], float(EXPORT_BYTES)
    for part in model.parts:
        each = _bytes_per_target(part, model)
        targets = part.targets[: int(left // each)]
        left -= len(targets) * each
        if len(targets) and (surrogate := _exported(part, len(targets), model, seed)):
            found.append({"targets": targets.tolist(), **surrogate})
    return found


def _bytes_per_target(part: Part, model: Model) -> float:
    if isinstance(part.surrogate, AdditiveSurrogate):
        return 4 / 3 * 8 * model.outcomes.n_tasks * (model.outcomes.n_tasks + 3) / 2
    arrays = 3 if _on_ranks(part.surrogate) else 1
    return 4 / 3 * 8 * arrays * model.outcomes.n_runs


def _exported(part: Part, n_targets: int, model: Model, seed: int) -> dict[str, Any] | None:
    if isinstance(part.surrogate, AdditiveSurrogate):
        return _additive(part, n_targets)
    if isinstance(part.surrogate, PosteriorSurrogate):
        return _posterior(part, n_targets, model, seed)
    return None


def _additive(part: Part, n_targets: int) -> dict[str, Any]:
    """The mean is intercept + coef · s, the variance of a run (s − center)ᵀ Q (s − center) + constant."""
    surrogate: AdditiveSurrogate = part.surrogate
    lower = np.tril_indices(len(surrogate.coef_))
    forms = [surrogate.run_variance(t) for t in range(n_targets)]
    return {
        "kind": "additive",
        "coef": pack(surrogate.coef_[:, :n_targets].T),
        "intercept": pack(surrogate.intercept_[:n_targets]),
        "center": pack(forms[0][0]),
        "quadratic": pack([form[lower] for _, form, _ in forms]),
        "constant": pack([constant for _, _, constant in forms]),
        "factor": pack(part.factor[:n_targets]),
    }


def _posterior(part: Part, n_targets: int, model: Model, seed: int) -> dict[str, Any] | None:
    surrogate: PosteriorSurrogate = part.surrogate
    coordinates: Coordinates = surrogate.coordinates_
    rows = _support(part, model)
    if not np.array_equal(coordinates(model.outcomes.subsets[rows]), surrogate.groups_[0].posterior.X):
        return None  # fitted to other runs than the table shows
    ranked = _on_ranks(surrogate)
    groups = surrogate.score_groups_ if ranked else surrogate.groups_
    factored = np.arange(len(rows))
    if len(rows) > FACTORED_RUNS:
        factored = np.sort(np.random.default_rng(seed).choice(len(rows), FACTORED_RUNS, replace=False))
    found: dict[str, Any] = {
        "kind": "ranks" if ranked else "posterior",
        "rows": pack(rows, "u32"),
        "factored": pack(factored, "u32"),
        "coordinates": {
            "transform": coordinates.transform,
            "floor": coordinates.floor,
            "center": pack(coordinates.center),
            "scale": pack(coordinates.scale),
        },
        "groups": [],
        "factor": pack(part.factor[:n_targets]),
    }
    for group in groups:
        kept = group.targets < n_targets
        if kept.any():
            found["groups"].append({"targets": group.targets[kept].tolist(), **_process(group.posterior, kept)})
    if ranked:
        found["scores"] = pack(surrogate.scale_.scores[:, :n_targets].T)
        found["outcomes"] = pack(surrogate.scale_.outcomes[:, :n_targets].T)
        found["least_std"] = pack(surrogate.least_std_[:n_targets])
    return found


def _process(posterior: Posterior, kept: Any) -> dict[str, Any]:
    return {
        "kernel": _kernel(posterior.kernel),
        "alpha": posterior.alpha,
        # Of the matrix as it was factored: noise of replicates and jitter included.
        "diagonal": pack(np.einsum("ij,ij->i", posterior.factor, posterior.factor)),
        "dual": pack(posterior.dual[:, kept].T),
        "level": pack(posterior.level[kept]),
        "scale": pack(posterior.scale[kept]),
    }


def _kernel(kernel: Kernel) -> list[dict[str, Any]]:
    found = []
    for variance, part in zip(kernel.variances, kernel.parts, strict=True):
        if variance <= 0:
            continue
        numbers: dict[str, float | int | Packed]
        if isinstance(part, Constant):
            kind, numbers = "constant", {}
        elif isinstance(part, Polynomial):
            numbers = {"degree": part.degree, "offset": part.offset, "weights": pack(part.weights)}
            kind = "polynomial"
        elif isinstance(part, RBF):
            kind, numbers = "rbf", {"rates": pack(part.rates)}
        elif isinstance(part, Size):
            kind, numbers = "size", {"rate": part.rate, "offset": part.offset, "direction": pack(part.direction)}
        else:
            raise TypeError(f"No page knows the kernel part {type(part).__name__}.")
        found.append({"part": kind, "variance": variance, **numbers})
    return found


def _support(part: Part, model: Model) -> Any:
    """Which runs the surrogate rests on: the first of every distinct subset, in the order it was fitted in."""
    measured = np.flatnonzero(~np.isnan(model.outcomes.values[:, part.targets[0]]))
    subsets = model.outcomes.subsets[measured]
    places = {row.tobytes(): place for place, row in zip(measured[::-1], subsets[::-1], strict=True)}
    distinct, _, _ = merge_replicates(subsets, np.zeros((len(subsets), 1)))
    return np.array([places[row.tobytes()] for row in distinct], dtype=np.int64)


def _on_ranks(surrogate: Any) -> bool:
    return isinstance(surrogate, CombinedSurrogate) and surrogate.outcome_scale == "rank"
