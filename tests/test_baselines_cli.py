"""Scores of any method beside the surrogates: ``whence evaluate --scores``, and models in `repeated_splits`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.evaluation import repeated_splits, scored

EFFECTS = np.array([[-1.0, 0.5], [0.5, 0.1], [0.2, -2.0], [0.0, 0.3]])
TASKS = ["a", "b", "c", "d"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


@pytest.fixture(scope="module")
def runs():
    S = whence.Exhaustive().draw(4)
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(S), 2))
    return whence.Outcomes(S, 3 + S @ EFFECTS + noise, TASKS, ["x/loss", "y/loss"])


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("scores") / "runs.csv"
    frame = pd.DataFrame(runs.subsets.astype(int), columns=TASKS)
    frame.assign(**{"x/loss": runs.values[:, 0], "y/loss": runs.values[:, 1]}).to_csv(path, index=False)
    return path


def written(path, scores, tasks=TASKS, targets=("x/loss", "y/loss")):
    pd.DataFrame(scores, pd.Index(tasks, name="task"), targets).to_csv(path)
    return path


@pytest.mark.slow
def test_scores_stand_in_the_table_beside_the_surrogates(file, tmp_path):
    good = written(tmp_path / "influence.csv", EFFECTS[::-1], TASKS[::-1])
    bad = written(tmp_path / "tracin.csv", -EFFECTS)
    options = ["--outcome", "x/loss,y/loss", "--splits", "2", "--scores", good, "--scores", bad]
    result = run("evaluate", file, *options)
    assert result.exit_code == 0, result.output
    assert "influence" in result.stdout
    assert "tracin" in result.stdout
    document = json.loads(run("evaluate", file, *options, "--json").stdout)
    rows = {row["method"]: row for row in document["scores"]}
    assert rows["influence"]["lds"] > 0.95
    assert rows["influence"]["residual_error"] < 0.01
    assert rows["tracin"]["lds"] < -0.95


@pytest.mark.slow
def test_methods_to_stand_beside_can_be_chosen(file, tmp_path):
    good = written(tmp_path / "influence.csv", EFFECTS)
    options = ["-O", "x/loss,y/loss", "--splits", "2", "--scores", good, "--json"]
    chosen = ["--methods", "least squares,lasso", "--methods", "tuned kernel"]
    rows = json.loads(run("evaluate", file, *options, *chosen).stdout)["scores"]
    assert [row["method"] for row in rows] == ["whence", "least squares", "lasso", "tuned kernel", "influence"]
    assert all(row["lds"] > 0.9 for row in rows)
    rows = json.loads(run("evaluate", file, *options).stdout)["scores"]
    assert [row["method"] for row in rows] == ["whence", "tuned linear", "paper kernel", "size only", "influence"]
    result = run("evaluate", file, *options, "--methods", "laso")
    assert result.exit_code == 2
    assert "There is no method 'laso'. Did you mean 'lasso'?" in " ".join(result.stderr.split())


def test_scores_stand_beside_true_leave_one_out_changes(file, runs, tmp_path):
    good = written(tmp_path / "influence.csv", EFFECTS)
    result = run("evaluate", file, "-O", "x/loss,y/loss", "--splits", "2", "--loo", file, "--scores", good, "--json")
    rows = {row["rule"]: row for row in json.loads(result.stdout)["leave_one_out"]}
    assert rows["influence"]["pearson"] > 0.99


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,x/loss\na,1\n", "there is no column y/loss. Scores need the columns task, x/loss, y/loss."),
        ("name,x/loss,y/loss\na,1,1\n", "there is no column task."),
        ("task,x/loss,y/loss\na,1,1\nb,1,1\nc,1,1\n", "there is no row for d."),
        ("task,x/loss,y/loss\na,1,1\na,1,1\n", "there is more than one row for a."),
        ("task,x/loss,y/loss\na,1,\nb,1,1\nc,1,1\nd,1,1\n", "every score must be a finite number."),
        ("task,x/loss,y/loss\na,1,many\nb,1,1\nc,1,1\nd,1,1\n", "line 2, column 'y/loss': 'many' is not a number."),
        ("", "the file is empty"),
    ],
)
def test_bad_scores_are_one_clear_sentence(file, tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = run("evaluate", file, "--outcome", "x/loss,y/loss", "--scores", path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())


def test_scores_that_are_not_there_or_named_like_a_row(file, tmp_path):
    result = run("evaluate", file, "--outcome", "x/loss,y/loss", "--scores", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "none.csv" in result.stderr
    result = run("evaluate", file, "-O", "x/loss,y/loss", "--scores", written(tmp_path / "whence.csv", EFFECTS))
    assert result.exit_code == 2
    assert "cannot be called 'whence'" in " ".join(result.stderr.split())


def test_repeated_splits_take_models_as_they_are(runs):
    fixed = whence.AdditiveSurrogate.from_coefficients(EFFECTS, 3.0)
    found = repeated_splits(runs, {"fixed": fixed, "scored": scored(EFFECTS)}, n_splits=3).to_frame()
    assert (found["lds"] > 0.95).all()
    assert (found["residual_error"] < 0.01).all()
    assert (found["failed"] == 0).all()


def test_given_scores_are_set_to_the_level_of_the_training_runs(runs):
    shifted = scored(EFFECTS)(runs)
    np.testing.assert_allclose(shifted.predict(runs.subsets).mean(0), runs.values.mean(0))
    np.testing.assert_array_equal(shifted.coef_, EFFECTS)
