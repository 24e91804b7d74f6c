"""Roles of the columns of a file, by what was asked for and by every sentence of refusal."""

import numpy as np
import pandas as pd
import pytest

from whence.errors import DataWarning, InputError
from whence.outcomes.files import read_outcomes


def test_roles(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("run,b,a,loss,acc\nx,1,0,2.5,0.1\ny,0,1,3.5,0.2\n")
    runs = read_outcomes(path, ["acc", "loss"], ignore="run", maximize="acc")
    assert (runs.task_names, runs.target_names, runs.maximize) == (
        ("b", "a"),
        ("acc", "loss"),
        (True, False),
    )
    np.testing.assert_array_equal(runs.subsets, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(runs.values, [[0.1, 2.5], [0.2, 3.5]])
    assert read_outcomes(path, "loss", tasks=["a"]).task_names == ("a",)
    assert read_outcomes(path, "loss", tasks=["a", "b"]).task_names == ("a", "b")


def test_row_index_can_be_ignored(tmp_path):
    pd.DataFrame({"a": [1, 0], "loss": [1.0, 2.0]}).to_csv(tmp_path / "runs.csv")
    assert read_outcomes(tmp_path / "runs.csv", ["loss"], ignore=["Unnamed: 0"]).task_names == ("a",)
    assert read_outcomes(tmp_path / "runs.csv", ["loss"], tasks=["a"]).task_names == ("a",)


@pytest.mark.parametrize("text", [",a,loss\n0,1,2\n", "a,Unnamed: 0,loss\n1,0,2\n", "a,loss,\n1,2,0\n"])
def test_a_row_index_is_set_aside_with_a_note(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.warns(DataWarning, match=r"not tasks: Unnamed: [02] \(a row index\)\. .* tasks=\['NAME'\]"):
        assert read_outcomes(path, ["loss"]).task_names == ("a",)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "a,loss\n1,2\n",
            {"outcomes": None},
            r"named, with outcomes=\['NAME'\]. The columns are: a, loss",
        ),
        ("a,losses\n1,2\n", {}, "column 'loss' of 'outcomes' does not exist. Did you mean 'losses'?"),
        ("a,x\n1,2\n", {}, "column 'loss' of 'outcomes' does not exist. There are: a, x."),
        ("a,loss\n1,2\n", {"ignore": ["b"]}, "column 'b' of 'ignore' does not exist"),
        ("a,loss\n1,2\n", {"tasks": ["b"]}, "column 'b' of 'tasks' does not exist"),
        (
            "a,loss\n1,2\n",
            {"tasks": ["a", "loss"]},
            "'loss' is in 'outcomes' and again in 'tasks'; name it once",
        ),
        ("a,loss\n1,2\n", {"ignore": ["loss"]}, "'loss' is in 'outcomes' and again in 'ignore'"),
        (
            "a,loss\n1,2\n",
            {"outcomes": ["loss", "loss"]},
            "'loss' is in 'outcomes' and again in 'outcomes'",
        ),
        ("a,loss\n1,2\n", {"outcomes": []}, "no outcome column is left"),
        ("a,loss\n1,2\n", {"ignore": ["a"]}, "no task column is left. The columns are: a, loss"),
        ("a:b:loss\n1:0:2\n", {}, "there is one column, 'a:b:loss'.* separated by commas in .csv"),
    ],
)
def test_bad_roles_are_refused(tmp_path, text, arguments, message):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"runs\.csv: (?s:.)*{message}"):
        read_outcomes(path, **({"outcomes": ["loss"]} | arguments))


def test_the_column_that_a_misspelled_outcome_meant_is_not_checked_as_a_task(tmp_path):
    (tmp_path / "runs.csv").write_text("a,losses\n1,-2\n", encoding="utf-8")
    with pytest.raises(InputError, match="Did you mean 'losses'") as caught:
        read_outcomes(tmp_path / "runs.csv", ["loss"])
    assert "weight" not in str(caught.value)
    assert caught.value.fix == {"instead": {"loss": "losses"}}
