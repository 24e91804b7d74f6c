"""The range of the runs: which questions lie outside of what was measured, and why.

A surrogate answers any question, and far from the runs its answer is a guess: :meth:`whence.Model.predict` says so,
and :func:`whence.select` stays inside.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist, pdist

from whence.errors import DataWarning, counted
from whence.outcomes.table import distinct_rows
from whence.surrogates.coordinates import is_binary
from whence.surrogates.kernels import Array

if TYPE_CHECKING:
    from whence.surrogates.model import Model

# A subset is far if its nearest run is this many times as far as runs typically are from each other.
FAR = 1.5
# A subset mixes tasks that the runs keep apart if chance would have brought its pairs that no run had together so much
# more often than those of any run that no other run had.
APART = 4.0
# A prediction is a guess if its std is this many times the largest one of held-out runs.
UNCERTAIN = 2.0
MOST_TASKS = 2000  # whose pairs are looked at
SAMPLE = 500  # runs whose distances from each other are looked at
NAMED = 3  # rows that a warning explains


@dataclass(frozen=True, eq=False)
class Range:
    """What the runs span: how many tasks (or how much weight in all), how much of each, how close to each other."""

    runs: Array  # (d, K) distinct
    smallest: float
    largest: float
    slack: float  # by how much sizes may differ and still be like those of the runs
    least: Array  # (K,)
    most: Array  # (K,)
    spacing: float  # the typical distance between two runs
    apart: Array  # (K, K) how often chance would have brought two tasks together that no run of tasks in or out has
    usual: float  # the most of that in any run, were it not for that run itself

    @classmethod
    def of(cls, subsets: Array) -> Range | None:
        """Return the range of the runs, or None where there are not two to span one."""
        runs = subsets[distinct_rows(subsets)[0]]
        if len(runs) < 2:
            return None
        sizes = runs.sum(1)
        sample = runs[np.random.default_rng(0).permutation(len(runs))[:SAMPLE]]
        spacing = np.median(pdist(sample, "cityblock"))
        slack = float(sizes.std() + 1e-6 * sizes.max())
        if is_binary(runs) and np.ptp(sizes) > 0:
            slack = max(slack, 1.0)
        apart, usual = _apart(runs)
        return cls(runs, sizes.min(), sizes.max(), slack, runs.min(0), runs.max(0), float(spacing), apart, usual)

    @property
    def binary(self) -> bool:
        return is_binary(self.runs)

    def reasons(self, S: Array, task_names: tuple[str, ...]) -> list[str]:
        """Return for each subset why it is outside the range, "" where it is inside.

        Outside are: a task that no run had or lacking one that every run had, more or fewer tasks (or total weight)
        than in the runs by more than a standard deviation (and one task) or half of the least total weight, a weight
        beyond the runs' by half their span, a subset that is much farther from every run than runs typically are from
        each other, and one that mixes tasks which the runs keep apart.
        """
        sizes, half = S.sum(1), 0.5 * (self.most - self.least) + 1e-9
        beyond = np.maximum(S - self.most - half, self.least - half - S)
        # Amounts of data may spread by more than the smallest of them, and shares of 1 are no such amounts.
        least = self.smallest - self.slack if self.binary else max(self.smallest - self.slack, 0.5 * self.smallest)
        far = _nearest(S, self.runs) > FAR * self.spacing + 1e-9
        mixed = _together(S, self.apart) > self.usual + APART
        reasons = []
        for size, row, over, distant, mixes in zip(sizes, S, beyond, far, mixed, strict=True):
            worst = int(over.argmax())
            if over[worst] > 0:
                reasons.append(self._of_task(task_names[worst], row[worst], self.least[worst], self.most[worst]))
            elif not least <= size <= self.largest + self.slack:
                reasons.append(self._of_size(size))
            elif distant:
                reasons.append("it is far from every run")
            else:
                reasons.append(self._of_pair(row, task_names) if mixes else "")
        return reasons

    def _of_pair(self, row: Array, task_names: tuple[str, ...]) -> str:
        """Name the two of its tasks that chance would most have brought together."""
        first, second = np.unravel_index(np.argmax(self.apart * np.outer(row, row)), self.apart.shape)
        return f"no run had {task_names[first]} together with {task_names[second]}"

    def _of_task(self, name: str, weight: float, least: float, most: float) -> str:
        if most == 0:
            return f"no run had {name}"
        if self.binary:
            return f"every run had {name}"
        return f"it has {weight:.3g} of {name}, and the runs {from_to(least, most)}"

    def _of_size(self, size: float) -> str:
        if self.binary:
            return f"it has {counted(round(size), 'task')}, and the runs {from_to(self.smallest, self.largest)}"
        return f"its weights sum to {size:.3g}, and those of the runs to {from_to(self.smallest, self.largest)}"


def outside(model: Model, S: Array, std: Array | None = None) -> list[str]:
    """Return for each subset why it is outside the range of the runs, "" where it is inside.

    Beside :meth:`Range.reasons`, the ``std`` (n, T) of predictions is judged where it is given: runs that do not
    determine the outcome leave it far more uncertain than the runs that were held out in cross-validation.
    """
    if model.range is None:
        return [""] * len(S)
    reasons = model.range.reasons(S, model.task_names)
    if std is None:
        return reasons
    greatest = np.fmax.reduce(model.held_out()[1], axis=0, initial=np.nan)
    uncertain = (std > UNCERTAIN * greatest).mean(1) > 0.5
    return [
        reason or ("the runs do not determine it" if u else "") for reason, u in zip(reasons, uncertain, strict=True)
    ]


def warn_outside(reasons: list[str], *, stacklevel: int = 3) -> None:
    """Warn once of all subsets that have a reason, naming the first few."""
    rows = [row for row, reason in enumerate(reasons) if reason]
    if not rows:
        return
    named = "; ".join((f"row {row}: " if len(reasons) > 1 else "") + reasons[row] for row in rows[:NAMED])
    more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    which = "The subset is" if len(reasons) == 1 else f"{len(rows)} of {len(reasons)} subsets are"
    warnings.warn(
        f"{which} outside the range of the runs ({named}{more}). This is extrapolation: measure before you rely on it.",
        DataWarning,
        stacklevel=stacklevel,
    )


def from_to(low: float, high: float) -> str:
    """Return "low to high", or one number where both are equal."""
    return f"{low:.4g}" if np.isclose(low, high) else f"{low:.4g} to {high:.4g}"


def _apart(runs: Array) -> tuple[Array, float]:
    """Return how often chance would have brought together (K, K) each two tasks that no run has, and what is usual.

    Usual is the most that one of the runs would have of it, were it not for that run itself: where runs are few or
    small, any subset has pairs that no other run has.
    """
    if not is_binary(runs) or runs.shape[1] > MOST_TASKS:
        return np.zeros((1, 1)), 0.0
    together, by_chance = runs.T @ runs, np.outer(runs.sum(0), runs.sum(0)) / len(runs)
    return by_chance * (together == 0), float(_together(runs, by_chance * (together == 1)).max())


def _together(S: Array, pairs: Array) -> Array:
    """Return the sum (n,) of ``pairs`` (K, K) over each two different tasks of each subset; 0 where none is known."""
    if not pairs.any():
        return np.zeros(len(S))
    return np.asarray(((S @ pairs) * S).sum(1) - (S * S) @ np.diag(pairs)) / 2


def _nearest(S: Array, runs: Array) -> Array:
    """Return the distance of each subset to the nearest run (n,): how much weight has to be added or taken away."""
    rows = max(1, 2_000_000 // len(runs))
    blocks = [cdist(S[start : start + rows], runs, "cityblock").min(1) for start in range(0, len(S), rows)]
    return np.concatenate(blocks) if blocks else np.empty(0)
