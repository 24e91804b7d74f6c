"""From values per query to named outcomes: what every outcome function of a model returns.

A metric has one value per query, that is per row of the targets' `Examples`. Its outcome for a target is the mean over
the target's queries, or the values themselves. Its name is the metric (``loss``) if there is one target, and
``<target>/<metric>`` (``law/loss``) if there are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from whence.models.examples import Examples

LOWER_IS_BETTER = ("loss",)


def outcome_names(metric: str, targets: Iterable[str]) -> list[str]:
    """Name of the outcome of a metric on each target.

    >>> outcome_names("loss", ["val"]), outcome_names("loss", ["law", "code"])
    (['loss'], ['law/loss', 'code/loss'])
    """
    names = list(targets)
    return [metric] if len(names) == 1 else [f"{name}/{metric}" for name in names]


def by_target(
    values: Mapping[str, Tensor],
    targets: Examples,
    metrics: Mapping[str, object] | None = None,
    *,
    per_query: bool = False,
) -> dict[str, Floats]:
    """Outcomes of m subsets by name, from metrics per query.

    Parameters
    ----------
    values : mapping of str to tensor of shape (m, q)
        Metrics of every query of all targets; (m, q, C) of a metric of one's own that judges all outputs together.
    targets : Examples
        The q queries; its groups are the targets.
    metrics : mapping of str to Metric, optional
        What the values are of.
    per_query : bool
        Whether every query is a separate outcome, instead of their mean.

    Returns
    -------
    dict of str to ndarray
        Of shape (m,), or (m, q_t) per query. What is not finite, as after a training that diverged, is NaN.

    >>> import torch
    >>> from whence.models.examples import Examples
    >>> queries = Examples.of({"law": (torch.zeros(2, 1), torch.zeros(2)), "code": (torch.zeros(1, 1), torch.zeros(1))})
    >>> losses = torch.tensor([[1.0, 3.0, 5.0]])
    >>> by_target({"loss": losses}, queries)
    {'law/loss': array([2.]), 'code/loss': array([5.])}
    """
    import torch

    sizes = targets.sizes.tolist()
    labels = torch.split(targets.labels, sizes)
    found: dict[str, Floats] = {}
    for metric, value in values.items():
        together = getattr((metrics or {}).get(metric), "of_all", None) if value.ndim > 2 else None
        parts = torch.split(value.detach(), sizes, dim=1)
        for name, part, of in zip(outcome_names(metric, targets.names), parts, labels, strict=True):
            judged = (part if together is None else together(part, of)).double().cpu().numpy()
            array = np.where(np.isfinite(judged), judged, np.nan)
            found[name] = array if per_query or together is not None else array.mean(1)
    return found


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


def higher_is_better(metrics: Iterable[str], targets: Examples, *, per_query: bool = False) -> tuple[str, ...]:
    """Names of the columns of metrics for which higher is better in a table of outcomes, as `whence.measure` has them.

    >>> import torch
    >>> from whence.models.examples import Examples
    >>> queries = Examples.of((torch.zeros(2, 1), torch.zeros(2)), "target")
    >>> higher_is_better(["accuracy"], queries, per_query=True)
    ('accuracy[0]', 'accuracy[1]')
    """
    columns: list[str] = []
    for metric in metrics:
        for name, size in zip(outcome_names(metric, targets.names), targets.sizes, strict=True):
            columns += [f"{name}[{query}]" for query in range(size)] if per_query else [name]
    return tuple(columns)
