"""What goes into a table, through its constructor: every bad input by its sentence."""

import numpy as np
import pandas as pd
import pytest

from whence.errors import InputError
from whence.outcomes import Outcomes


@pytest.mark.parametrize(
    ("maximize", "expected"),
    [
        (None, (False, False)),
        (True, (True, True)),
        ((), (False, False)),
        ("acc", (False, True)),
        (["acc"], (False, True)),
        ([True, False], (True, False)),
        (np.array([False, True]), (False, True)),
    ],
)
def test_maximize(maximize, expected):
    runs = Outcomes([[1]], [[1, 2]], target_names=["loss", "acc"], maximize=maximize)
    assert runs.maximize == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subsets": [1, 0]}, r"'subsets' of Outcomes must be a 2-D array .* Got shape \(2,\)"),
        ({"subsets": np.zeros((2, 0))}, r"at least one column. Got shape \(2, 0\)"),
        ({"values": np.zeros((2, 0))}, r"'values' of Outcomes .* Got shape \(2, 0\)"),
        ({"values": np.zeros((2, 1, 1))}, r"'values' of Outcomes .* Got shape \(2, 1, 1\)"),
        ({"values": [1, 2, 3]}, "same number of rows, one per run. Got 2 and 3"),
        ({"subsets": [[1, 0], [1]]}, "'subsets' must be a regular array of numbers"),
        ({"subsets": [["1", "0"], ["0", "1"]]}, "'subsets' must be an array of numbers. Got dtype <U1"),
        ({"values": [1, None]}, "'values' must be an array of numbers. Got dtype object"),
        ({"values": [1, 2j]}, "Got dtype complex128"),
        ({"subsets": pd.DataFrame({"a": ["x", "y"]})}, "Column 'a' of 'subsets' must hold numbers"),
        (
            {"subsets": [[1, 0], [np.nan, 0]]},
            r"row 1 \(counted from 0\), column 'task_0': a task column cannot",
        ),
        (
            {"subsets": [[1, 0], [0, np.inf]]},
            "row 1 .* column 'task_1': a weight must be finite. Got inf",
        ),
        (
            {"subsets": [[1, -0.5], [0, 1]]},
            "row 0 .* column 'task_1': a weight must be at least 0. Got -0.5",
        ),
        ({"values": [1, -np.inf]}, "column 'outcome_0': an outcome must be finite.*Got -inf"),
        ({"task_names": ["a"]}, "one name per task column, 2 in all. Got 1 names"),
        (
            {"task_names": ["a", " a "]},
            "name of each task must be unique. These come more than once: 'a'",
        ),
        ({"task_names": ["a", " "]}, "name of each task must be non-empty text"),
        ({"task_names": ["a", "b\nc"]}, "without control characters"),
        ({"task_names": ["a", "\ud800"]}, "without control characters"),
        ({"target_names": ["x", "y"]}, "one name per outcome column, 1 in all. Got 2 names"),
        ({"task_names": ["a", "loss"], "target_names": ["loss"]}, "cannot share a name. Both have: loss"),
        ({"maximize": ["outcome_1"]}, "There is no target 'outcome_1'. Did you mean 'outcome_0'?"),
        ({"maximize": [True, False]}, "one bool per target, 1 in all. Got 2"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Outcomes(**({"subsets": [[1, 0], [0, 1]], "values": [1, 2]} | arguments))
