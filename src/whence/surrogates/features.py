"""What is known of the tasks: labels, sizes, domains, embeddings, as columns of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.errors import InputError, some_of
from whence.surrogates.mixture import Array

NAME_COLUMN = "task"


def task_features(features: Any, task_names: tuple[str, ...]) -> Array:
    """Return one row of numbers per task (K, p), in the order of the tasks.

    Numbers are standardised and count together as much as one column of labels, which becomes an indicator per label.
    A number that is missing says nothing.

    Parameters
    ----------
    features : DataFrame, or what makes one
        A row per task, named by its index or by a column "task"; others than the tasks are left out.
    task_names : tuple of str

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"task": ["b", "a"], "domain": ["law", "code"], "size": [3.0, 1.0]})
    >>> task_features(frame, ("a", "b"))
    array([[-1.,  1.,  0.],
           [ 1.,  0.,  1.]])
    """
    import pandas as pd

    frame = pd.DataFrame(features)
    if NAME_COLUMN in frame:
        frame = frame.set_index(NAME_COLUMN)
    frame.index = frame.index.map(str)
    if repeated := sorted(set(frame.index[frame.index.duplicated()])):
        raise InputError(f"The features must have one row per task. Got several for {some_of(repeated)}.")
    if missing := [name for name in task_names if name not in frame.index]:
        raise InputError(f"The features must have a row for every task. Got none for {some_of(missing)}.")
    frame = frame.loc[list(task_names)]
    numbers = frame.select_dtypes("number").to_numpy(np.float64)
    if np.isinf(numbers).any():
        raise InputError("The features must be finite numbers, or labels. Got an infinite one.")
    labels = [
        pd.get_dummies(column).to_numpy(np.float64) for _, column in frame.select_dtypes(exclude="number").items()
    ]
    known = np.where(np.isnan(numbers), 0.0, numbers)
    count = np.maximum((~np.isnan(numbers)).sum(0), 1)
    away = np.where(np.isnan(numbers), 0.0, numbers - known.sum(0) / count)
    spread = np.sqrt((away**2).sum(0) / count)
    varying = spread > 1e-12 * (1 + np.abs(known).max(0, initial=0.0))
    standard = away[:, varying] / spread[varying] / np.sqrt(max(int(varying.sum()), 1))
    columns = np.hstack([standard, *(each for each in labels if each.shape[1] > 1)])
    if not columns.shape[1]:
        raise InputError("The features must tell tasks apart. Got no column that differs between them.")
    return columns
