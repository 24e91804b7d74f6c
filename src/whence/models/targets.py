"""Outcomes by name: what every outcome function of a model returns.

The name is the metric (``loss``) if there is one target, and ``<target>/<metric>`` (``law/loss``) if there are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from whence.arrays import Floats


def outcome_names(metric: str, targets: Iterable[str]) -> list[str]:
    """Name of the outcome of a metric on each target.

    >>> outcome_names("loss", ["val"]), outcome_names("loss", ["law", "code"])
    (['loss'], ['law/loss', 'code/loss'])
    """
    names = list(targets)
    return [metric] if len(names) == 1 else [f"{name}/{metric}" for name in names]


def joined(parts: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Outcomes of all subsets, from those of some at a time.

    >>> joined([{"loss": np.array([1.0])}, {"loss": np.array([2.0, 3.0])}])
    {'loss': array([1., 2., 3.])}
    """
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def single(found: Mapping[str, Floats]) -> dict[str, float | Floats]:
    """Outcomes of the only subset: numbers, or arrays per query.

    >>> single({"loss": np.array([0.5]), "margin": np.array([[1.0, 2.0]])})
    {'loss': 0.5, 'margin': array([1., 2.])}
    """
    return {name: value[0] if value.ndim > 1 else float(value[0]) for name, value in found.items()}
