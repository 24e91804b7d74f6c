"""Runs that are unlike the others: they did not finish, or were made in another way, such as with a larger model.

What the columns that are no tasks say of them. A value of a run that failed or was stopped early is no outcome, and
settings that move the outcome would be taken for noise, or for the effect of a task.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from whence.errors import DataWarning, some_of
from whence.outcomes.bookkeeping import NO_TASK, words_of
from whence.outcomes.checks import Floats
from whence.outcomes.values import MISSING, cell_text

_STATE = re.compile(r"([a-z]+_)*(status|state)")
_UNFINISHED = re.compile(
    r"fail(ed|ure)?|error(ed)?|crash(ed)?|killed|cancell?ed|aborted|oom|out_of_memory|time(d_)?out|preempted|diverged|"
    r"node_fail|stopped|pruned|incomplete|interrupted|running|pending|queued|scheduled|waiting"
)
# A column that is no task is named where it has at most so many values, and explains at least this share of what the
# tasks leave unexplained, less likely by chance than this.
MOST_VALUES, LEAST_SHARE, BY_CHANCE = 10, 0.2, 1e-4
MOST_RUNS, MOST_TARGETS = 2000, 20  # that are looked at
_TOLD_APART = ("a setting", "text", "an identifier", "a count of steps", "not 0/1, as the others are", NO_TASK)


def unfinished(cells: Mapping[str, Sequence[Any]]) -> tuple[str, NDArray[np.bool_]] | None:
    """The column that says of some runs, but not of all, that they did not finish, and of which.

    >>> unfinished({"State": ["finished", "crashed"], "loss": ["1.2", "3.4"]})
    ('State', array([False,  True]))
    """
    for name, column in cells.items():
        if _STATE.fullmatch("_".join(words_of(name))):
            states = ["_".join(words_of(cell_text(cell))) for cell in column]
            found = np.array([any(map(_UNFINISHED.fullmatch, (state, state.split("_")[-1]))) for state in states])
            if found.any() and not found.all():
                return name, found
    return None


def without_unfinished(cells: Mapping[str, Sequence[Any]], Y: Floats) -> Floats:
    """Outcomes (m, T) of runs that finished, NaN for the others; a note says which column tells them apart."""
    if (found := unfinished(cells)) is None or np.isnan(Y[found[1]]).all():
        return Y
    name, rows = found
    states = Counter(cell_text(cell) for cell, out in zip(cells[name], rows, strict=True) if out)
    said = some_of([f"{state}: {count}" for state, count in states.items()])
    note = f"Runs that did not finish, as '{name}' says ({said}), count as not measured. To use them, add {{ignore}}."
    warnings.warn(DataWarning(note, ignore=[name]), stacklevel=5)
    return np.where(rows[:, None], np.nan, Y)


def note_pooled(cells: Mapping[str, Sequence[Any]], aside: Mapping[str, str], S: Floats, Y: Floats) -> None:
    """Warn of a column that was set aside although outcomes (m, T) of the same tasks differ with its values."""
    said = []
    S, Y = S[:MOST_RUNS], Y[:MOST_RUNS, :MOST_TARGETS]
    for name in (name for name, kind in aside.items() if kind in _TOLD_APART):
        groups = ["" if (text := cell_text(cell)).lower() in MISSING else text for cell in cells[name][:MOST_RUNS]]
        values = list(dict.fromkeys(groups))
        if 2 <= len(values) <= min(MOST_VALUES, len(groups) / 4):
            which = np.array([values.index(group) for group in groups])
            share = max((_explained(which, S, y) for y in Y.T), default=0.0)
            if share:
                said.append(f"'{name}' ({some_of([value or 'empty' for value in values], 3)}: {share:.0%})")
    if said:
        warnings.warn(
            DataWarning(
                f"Outcomes of the same tasks differ by {some_of(said)} of what the tasks leave unexplained. The fit "
                "takes all runs as of one kind: give only runs that are."
            ),
            stacklevel=5,
        )


def _explained(which: NDArray[np.intp], S: Floats, y: Floats) -> float:
    """Share of what tasks leave unexplained of an outcome that groups of runs explain; 0 where it may be chance."""
    known = ~np.isnan(y)
    which, y = which[known], y[known]
    if len(set(which)) < 2 or np.ptp(y) == 0 or len(y) < S.shape[1] + MOST_VALUES:
        return 0.0
    tasks = np.column_stack([np.ones(len(y)), S[known]])
    groups = np.column_stack([tasks, *(which == group for group in sorted(set(which))[1:])])
    (alone, rank), (both, full) = _left(tasks, y), _left(groups, y)
    free = len(y) - full
    if full == rank or free < 3 or alone <= 1e-12 * np.square(y - y.mean()).sum():
        return 0.0
    share = 1 - both / alone
    ratio = (alone - both) / (full - rank) / max(both / free, np.finfo(float).tiny)
    by_chance = f_distribution.sf(ratio, full - rank, free)
    return float(share) if share >= LEAST_SHARE and by_chance <= BY_CHANCE else 0.0


def _left(X: Floats, y: Floats) -> tuple[float, int]:
    """Sum of squares that a linear fit leaves, and the rank of its columns."""
    found, _, rank, _ = np.linalg.lstsq(X, y, rcond=None)
    return float(np.square(y - X @ found).sum()), int(rank)
