"""The subset that an outcome function is called with: a row of numbers that knows the names of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.errors import amount, some_of
from whence.outcomes.checks import as_names, places


class Subset(np.ndarray[Any, np.dtype[np.float64]]):
    """Read-only row of shape (K,): 1 where a task is in and 0 where it is not, or weights.

    It is an array wherever one is expected; what is computed from it is a plain array. Asking for a name that is not
    that of a task is an error, ``in`` included: a misspelled name must not read as a task that is absent.

    Parameters
    ----------
    weights : array-like of shape (K,)
    task_names : sequence of str
        One per weight.

    Examples
    --------
    >>> subset = Subset([1, 0, 1], ["code", "math", "law"])
    >>> subset.tasks, "math" in subset, subset["law"], float(subset.sum())
    (('code', 'law'), False, 1.0, 2.0)
    """

    task_names: tuple[str, ...]

    def __new__(cls, weights: ArrayLike, task_names: Iterable[str]) -> Subset:
        row = np.array(weights, dtype=np.float64).view(cls)
        row.task_names = as_names(task_names, "task", len(row))
        row.setflags(write=False)
        return row

    def __array_finalize__(self, source: Any) -> None:
        names = getattr(source, "task_names", ())
        self.task_names = names if self.shape == (len(names),) else ()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that are in, in the order of the table."""
        return tuple(name for name, weight in zip(self.task_names, self.tolist(), strict=True) if weight)

    def __contains__(self, item: Any) -> bool:
        return self[item] > 0 if isinstance(item, str) else bool(np.asarray(self).__contains__(item))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return float(np.asarray(self)[places([key], self.task_names, "task")[0]])
        return np.asarray(self)[key]

    def __reduce__(self) -> Any:
        return Subset, (np.asarray(self), self.task_names)

    def __repr__(self) -> str:
        inside = {name: weight for name, weight in zip(self.task_names, self.tolist(), strict=True) if weight}
        listed = ", ".join(name if weight == 1 else f"{name}={weight:g}" for name, weight in inside.items())
        return f"Subset({listed})"


def in_words(row: ArrayLike, names: Sequence[str], *, binary: bool, limit: int | None = None) -> str:
    """Subset in words: its tasks, those it lacks where these are few, or the weights of a mixture, largest first.

    >>> in_words([1, 0, 1, 1], ["code", "math", "law", "news"], binary=True)
    'all but math'
    >>> in_words([0.25, 0, 0.7, 0.05], ["code", "math", "law", "news"], binary=False, limit=2)
    'law 0.7, code 0.25 and 1 more'
    """
    weights = np.asarray(row, np.float64)
    limit = len(weights) if limit is None else limit
    if not binary:
        order = [k for k in np.argsort(-weights, kind="stable") if weights[k]]
        return some_of([f"{names[k]} {weight_text(weights[k])}" for k in order], limit)
    inside, outside = ([name for name, weight in zip(names, weights, strict=True) if (weight > 0) == is_in]
                       for is_in in (True, False))  # fmt: skip
    if outside and len(outside) * 3 <= len(inside):
        return f"all but {some_of(outside, limit)}"
    if not outside:
        return "all tasks"
    return some_of(inside, limit) if inside else "(no task)"


def weight_text(weight: float) -> str:
    """A weight with three digits, but no more than three decimals where they show it; large ones as an amount.

    >>> weight_text(0.3634), weight_text(0.00565), weight_text(0.00012), weight_text(2.553e9)
    ('0.363', '0.006', '0.00012', '2.55B')
    """
    if weight >= 1000:
        return amount(weight)
    return f"{round(weight, 3):g}" if 0.0005 <= weight < 0.1 else f"{weight:.3g}"
