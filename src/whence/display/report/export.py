"""Surrogates as plain arrays, from which the page predicts in the browser what Python predicts.

A posterior travels as its kernel, its runs and its dual coefficients: the prediction is a sum over runs. The interval
needs the Cholesky factor of the kernel matrix, m² / 2 numbers; the browser computes it anew from the runs instead of
being sent it, so that a page stays small, and with it the dual coefficients of a few hundred measured runs. A fused
surrogate is sent as its parts. ``surrogate.js`` is the other half of
this module, formula by formula.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.display.report.packing import pack
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.choose import Model, Part
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.kernel import Group, PosteriorSurrogate
from whence.surrogates.kernels import RBF, Constant, Kernel, Polynomial, Size
from whence.surrogates.posterior import Posterior
from whence.surrogates.rungs import Rung

Places = NDArray[np.int64]  # of targets within a surrogate, or of runs within a table; in order

# A browser factors so many runs in about a second. Beyond, a sample of them gives the interval: on fewer runs the
# process is less certain, so that the interval can only come out too wide.
FACTORED_RUNS = 1500
# So many runs are solved for their dual coefficients while a person does not notice.
SOLVED_RUNS = 400
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
        each = _bytes_per_target(part.surrogate, model.outcomes)
        places = np.arange(min(len(part.targets), int(left // each)))
        left -= len(places) * each
        if len(places) and (surrogate := _exported(part, places, model.outcomes, seed)):
            found.append({"targets": part.targets[places].tolist(), **_solvable(surrogate)})
    return found


def _bytes_per_target(surrogate: Any, runs: Outcomes) -> float:
    if isinstance(surrogate, FusedSurrogate):
        rungs = sum(
            _bytes_per_target(part.surrogate, rung.model.outcomes)
            for rung in surrogate.rungs
            for part in rung.model.parts[:1]
        )
        return rungs + 4 / 3 * 8 * (1 + len(surrogate.rungs)) * runs.n_runs
    if isinstance(surrogate, AdditiveSurrogate):
        return 4 / 3 * 8 * runs.n_tasks * (runs.n_tasks + 3) / 2
    return 4 / 3 * 8 * (3 if _on_ranks(surrogate) else 1) * runs.n_runs


def _exported(part: Part, places: Places, runs: Outcomes, seed: int) -> dict[str, Any] | None:
    """The surrogate of a part, for the targets in some places of it; None where it cannot be sent."""
    found: dict[str, Any] | None = None
    if isinstance(part.surrogate, FusedSurrogate):
        found = _fused(part, places, runs, seed)
    elif isinstance(part.surrogate, AdditiveSurrogate):
        found = _additive(part.surrogate, places)
    elif isinstance(part.surrogate, PosteriorSurrogate):
        found = _posterior(part.surrogate, places, _support(part, runs), runs, seed)
    return found and {**found, "factor": pack(part.factor[places])}


def _solvable(found: dict[str, Any]) -> dict[str, Any]:
    """A posterior of measured outcomes without what the browser can work out from them, where they are few."""
    n_runs = found["rows"]["shape"][0] if "groups" in found else np.inf
    if n_runs > min(SOLVED_RUNS, FACTORED_RUNS):
        return found
    groups = [{key: value for key, value in group.items() if key != "dual"} for group in found["groups"]]
    return {key: value for key, value in found.items() if key != "outcomes"} | {"groups": groups}


def _additive(surrogate: AdditiveSurrogate, places: Places) -> dict[str, Any]:
    """The mean is intercept + coef · s, the variance of a run (s − center)ᵀ Q (s − center) + constant."""
    variance = surrogate.run_variance_parts(places)
    return {
        "kind": "additive",
        "coef": pack(surrogate.coef_[:, places].T),
        "intercept": pack(surrogate.intercept_[places]),
        "noise": pack(surrogate.noise_std_[places] ** 2),
        **{name: pack(array) for name, array in variance.items()},
    }


def _posterior(
    surrogate: PosteriorSurrogate, places: Places, rows: Places, runs: Outcomes, seed: int
) -> dict[str, Any] | None:
    coordinates: Coordinates = surrogate.coordinates_
    if not np.array_equal(coordinates(runs.subsets[rows]), surrogate.groups_[0].posterior.X):
        return None  # fitted to other runs than the table shows
    factored = np.arange(len(rows))
    if len(rows) > FACTORED_RUNS:
        factored = np.sort(np.random.default_rng(seed).choice(len(rows), FACTORED_RUNS, replace=False))
    found: dict[str, Any] = {
        "kind": "posterior",
        "rows": pack(rows, "u32"),
        "factored": pack(factored, "u32"),
        "coordinates": {
            "transform": coordinates.transform,
            "floor": coordinates.floor,
            "center": pack(coordinates.center),
            "scale": pack(coordinates.scale),
        },
        "groups": _groups(surrogate.groups_, places),
    }
    if _on_ranks(surrogate):
        found |= {
            "kind": "ranks",
            "groups": _groups(surrogate.score_groups_, places),
            "scores": pack(surrogate.scale_.scores[:, places].T),
            "outcomes": pack(surrogate.scale_.outcomes[:, places].T),
            "least_std": pack(surrogate.least_std_[places]),
        }
    return found


def _groups(groups: tuple[Group, ...], places: Places) -> list[dict[str, Any]]:
    found = []
    for group in groups:
        kept = np.isin(group.targets, places)
        if kept.any():
            at = np.searchsorted(places, group.targets[kept]).tolist()
            found.append({"targets": at, **_process(group.posterior, kept)})
    return found


def _fused(part: Part, places: Places, runs: Outcomes, seed: int) -> dict[str, Any] | None:
    """The rungs with their slopes, and what they leave over; see `FusedSurrogate`."""
    surrogate: FusedSurrogate = part.surrogate
    rows = _support(part, runs)
    rest = [_posterior(one, places, rows, runs, seed) for one in (surrogate.residual_, *surrogate.carried_)]
    rungs = [_rung(rung, surrogate.slopes_.mean[r], places, seed) for r, rung in enumerate(surrogate.rungs)]
    if not all(rest) or not all(rungs):
        return None
    one = pack(np.ones(len(places)))
    return {
        "kind": "fused",
        "residual": {**(rest[0] or {}), "factor": one},
        "carried": [{**(each or {}), "factor": one} for each in rest[1:]],
        "rungs": rungs,
        "covariance": pack(surrogate.slopes_.covariance[places]),
    }


def _rung(rung: Rung, slope: Any, places: Places, seed: int) -> dict[str, Any] | None:
    """Estimates as a function of the subset, with the table it was learned from."""
    table, wanted = rung.model.outcomes, rung.columns[places]
    found: dict[str, Any] = {
        "count": table.n_runs,
        "subsets": pack(table.subsets, "bits" if table.is_binary else "f64"),
        "slope": pack(slope[places]),
        "level": pack(rung.level[places]),
        "surrogates": [],
        "spreads": [],  # where another process says how uncertain the estimates are
    }
    for part in rung.model.parts:
        own = np.flatnonzero(np.isin(part.targets, wanted))
        if not len(own):
            continue
        targets = {"targets": [int(np.flatnonzero(wanted == t)[0]) for t in part.targets[own]]}
        surrogate = _exported(part, own, table, seed)
        if surrogate is None:
            return None
        found["surrogates"].append(targets | surrogate)
        if _on_ranks(part.surrogate):
            groups = {"kind": "posterior", "groups": _groups(part.surrogate.groups_, own)}
            found["spreads"].append(targets | surrogate | groups)
    return found


def _process(posterior: Posterior, kept: Any) -> dict[str, Any]:
    return {
        "kernel": _kernel(posterior.kernel),
        "alpha": posterior.alpha,
        "noise": pack(posterior.noise),
        "dual": pack(posterior.dual[:, kept].T),
        "level": pack(posterior.level[kept]),
        "scale": pack(posterior.scale[kept]),
    }


def _kernel(kernel: Kernel) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for variance, part in zip(kernel.variances, kernel.parts, strict=True):
        if variance <= 0:
            continue
        if isinstance(part, Constant):
            own: dict[str, Any] = {"part": "constant"}
        elif isinstance(part, Polynomial):
            own = {"part": "polynomial", "degree": part.degree, "offset": part.offset, "weights": part.weights}
        elif isinstance(part, RBF):
            own = {"part": "rbf", "weights": part.rates}
        elif isinstance(part, Size):
            own = {"part": "size", "rate": part.rate, "offset": part.offset, "weights": part.direction}
        else:
            raise TypeError(f"No page knows the kernel part {type(part).__name__}.")
        found.append(own | {"variance": variance})
    return _weights_once(found)


def _weights_once(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of a kernel with their weights packed, or as a multiple ("times") of those of an earlier part ("like")."""
    found: list[dict[str, Any]] = []
    for part in parts:
        own = dict(part)
        if "weights" in part:
            for place, earlier in enumerate(parts[: len(found)]):
                if (times := _multiple(part["weights"], earlier.get("weights"))) is not None:
                    own |= {"weights": None, "like": place, "times": times}
                    break
            else:
                own["weights"] = pack(part["weights"])
        found.append(own)
    return found


def _multiple(weights: Any, others: Any) -> float | None:
    """What others have to be multiplied with to give the weights; None where no number does."""
    if others is None or not others.any():
        return None
    times = float(weights[np.abs(others).argmax()] / np.abs(others).max())
    return times if np.allclose(weights, times * others, rtol=1e-13, atol=0) else None


def _support(part: Part, runs: Outcomes) -> Places:
    """Which runs the surrogate rests on: the first of every distinct subset, in the order it was fitted in."""
    measured = np.flatnonzero(~np.isnan(runs.values[:, part.targets[0]]))
    subsets = runs.subsets[measured]
    places = {row.tobytes(): place for place, row in zip(measured[::-1], subsets[::-1], strict=True)}
    distinct, _, _ = merge_replicates(subsets, np.zeros((len(subsets), 1)))
    return np.array([places[row.tobytes()] for row in distinct], dtype=np.int64)


def _on_ranks(surrogate: Any) -> bool:
    return isinstance(surrogate, CombinedSurrogate) and surrogate.outcome_scale == "rank"
