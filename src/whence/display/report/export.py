"""Surrogates for the page, which predicts in the browser what Python predicts.

Every surrogate exports plain data (``Surrogate.export``), which is packed here for as many targets as fit in a page. A
posterior is sent as its kernel, its runs and its dual coefficients: the prediction is a sum over runs. The interval
needs the Cholesky factor of the kernel matrix, m² / 2 numbers. To keep the page small, the browser computes it from the
runs, and for a few hundred measured runs also the dual coefficients.
``surrogate.js`` is the other half, formula by formula.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from whence.display.report.packing import Document, pack
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model, Part
from whence.surrogates.protocol import Places, as_surrogate

# A browser factors this many runs in about a second. Beyond, a sample of them gives the interval: on fewer runs the
# process is less certain, so the interval can only come out too wide.
FACTORED_RUNS = 1500
# Up to this many runs, solving for dual coefficients takes no noticeable time.
SOLVED_RUNS = 400
# What the surrogates of all targets may take of a page; targets beyond it are shown but cannot be explored.
EXPORT_BYTES = 3 << 20


def exported(model: Model, *, seed: int = 0) -> list[Document]:
    """Return the surrogates of a model for the browser, one for each part that can be sent there.

    Parts that the page's script does not support are left out, and so are targets that do not fit in a page. With very
    many runs, a random sample of them gives the interval.
    """
    found: list[Document] = []
    left = float(EXPORT_BYTES)
    for part in model.parts:

        def packed(n: int, part: Part = part) -> Document | None:
            places: Places = np.arange(n)
            own = as_surrogate(part.surrogate).export(model.outcomes.subsets, places)
            common = {"targets": part.targets[places].tolist(), "factor": part.factor[places]}
            return own and _models_once(_packed(common | _solvable(own), seed))

        n_targets = len(part.targets)
        one, two = packed(1), packed(min(2, n_targets))
        sent = {target for each in found for target in each["targets"]}
        if one is None or two is None or not sent.issuperset(one.get("columns", ())):
            continue
        first = len(json.dumps(one))
        each = max(len(json.dumps(two)) - first, 1)
        fitting = 0 if first > left else 1 + min(n_targets - 1, int((left - first) // each))
        if fitting:
            left -= first + (fitting - 1) * each
            found.append(packed(fitting) or {})
    return found


def _models_once(packed: Document) -> Document:
    """A packed surrogate whose models of estimates, which several of its members may share, are listed in "models"."""
    models: dict[str, int] = {}

    def listed(value: Any) -> Any:
        if isinstance(value, list):
            return [listed(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: models.setdefault(json.dumps(each), len(models)) if key == "model" else listed(each)
            for key, each in value.items()
        }

    found: Document = listed(packed)
    return found | {"models": [json.loads(model) for model in models]}


def _packed(plain: Any, seed: int) -> Any:
    """Plain data with its arrays as text, and for every posterior the runs that give its interval."""
    if isinstance(plain, np.ndarray):
        return pack(plain, {"b": "bits", "i": "u32"}.get(plain.dtype.kind, "f64"))
    if isinstance(plain, list):
        return [_packed(each, seed) for each in plain]
    if not isinstance(plain, dict):
        return plain
    found = {key: _packed(_weights_once(value) if key == "kernel" else value, seed) for key, value in plain.items()}
    if "rows" in plain:
        n_runs = len(plain["rows"])
        factored = np.arange(n_runs)
        if n_runs > FACTORED_RUNS:
            factored = np.sort(np.random.default_rng(seed).choice(n_runs, FACTORED_RUNS, replace=False))
        found["factored"] = pack(factored, "u32")
    return found


def _solvable(plain: Document) -> Document:
    """A posterior of measured outcomes without what the browser can work out from them, where they are few."""
    if "members" in plain:
        return plain | {"members": [_solvable(member) for member in plain["members"]]}
    if "groups" not in plain or len(plain["rows"]) > min(SOLVED_RUNS, FACTORED_RUNS):
        return plain
    groups = [{key: value for key, value in group.items() if key != "dual"} for group in plain["groups"]]
    return {key: value for key, value in plain.items() if key != "outcomes"} | {"groups": groups}


def _weights_once(parts: list[Document]) -> list[Document]:
    """Parts of a kernel, each with its weights or as a multiple ("times") of those of an earlier part ("like")."""
    found = []
    for count, part in enumerate(parts):
        own = dict(part)
        for place, earlier in enumerate(parts[:count]):
            times = _multiple(part.get("weights"), earlier.get("weights"))
            if times is not None:
                own |= {"weights": None, "like": place, "times": times}
                break
        found.append(own)
    return found


def _multiple(weights: Array | None, others: Array | None) -> float | None:
    """What others have to be multiplied with to give the weights; None if no number does."""
    if weights is None or others is None or not others.any():
        return None
    times = float(weights[np.abs(others).argmax()] / np.abs(others).max())
    return times if np.allclose(weights, times * others, rtol=1e-13, atol=0) else None
