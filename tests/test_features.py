"""What is known of the tasks: read from a table, and used where runs agree that it matters."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from whence import AdditiveSurrogate, Outcomes, attribute, fit, lds
from whence.cli import app
from whence.errors import InputError
from whence.surrogates.features import task_features

# Fewer runs than tasks is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:There are 80 distinct subsets")
NAMES = tuple(f"t{k}" for k in range(120))


def runs_of_labels(seed=0, *, useful=True):
    """Eighty runs of 12 of 120 tasks, whose effects are those of their labels but for a little; new runs; labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, len(NAMES))
    S = np.array([rng.permutation(len(NAMES)) < 12 for _ in range(280)], float)
    effects = rng.normal(size=6)[labels] + 0.3 * rng.normal(size=len(NAMES))
    y = S @ effects
    y += 0.3 * y.std() * rng.normal(size=len(y))
    shown = labels if useful else rng.permutation(labels)
    frame = pd.DataFrame({"domain": [f"domain {label}" for label in shown]}, index=NAMES)
    train, new = (Outcomes(S[rows], y[rows], task_names=NAMES) for rows in (slice(80), slice(80, None)))
    return train, new, frame, effects


def uses_of_features(weight):
    """In how many of 60 small tables a ridge uses features that effects rest on with this weight."""
    uses = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(20, 3))
        S = rng.integers(0, 2, (20, 20)).astype(float)
        y = S @ (rng.normal(size=20) + weight * features[:, 0])
        y += 0.5 * y.std() * rng.normal(size=20)
        given, blind = AdditiveSurrogate(features=features).fit(S, y), AdditiveSurrogate().fit(S, y)
        uses += not np.allclose(given.coef_, blind.coef_)
    return uses


def test_useless_features_are_left_alone_and_useful_ones_are_used():
    assert uses_of_features(0.0) <= 6
    assert uses_of_features(3.0) >= 55


def test_labels_tell_more_tasks_apart_than_there_are_runs():
    train, new, frame, effects = runs_of_labels()
    blind, told = fit(train, surrogate="additive", n_folds=None), fit(train, features=frame)
    assert lds(told, new).mean > lds(blind, new).mean + 0.1
    assert np.corrcoef(attribute(told, rule="inclusion").scores[:, 0], effects)[0, 1] > 0.85


def test_useless_labels_cost_nothing():
    gaps = []
    for seed in range(6):
        train, new, frame, _ = runs_of_labels(seed, useful=False)
        model = {"surrogate": "additive", "n_folds": None}
        gaps.append(lds(fit(train, features=frame, **model), new).mean - lds(fit(train, **model), new).mean)
    assert np.mean(gaps) > -0.005


def test_features_are_a_prior_covariance_of_effects():
    """Ridge with effects of covariance (1 − share)·I + share·FFᵀ, written out as a Gaussian posterior."""
    train, _, frame, _ = runs_of_labels()
    F = task_features(frame, NAMES)
    surrogate = AdditiveSurrogate(features=F).fit(train.subsets, train.values)
    assert surrogate._unit.ndim == 2
    prior = surrogate._unit @ surrogate._unit.T
    X = train.subsets - train.subsets.mean(0)
    y = train.values - train.values.mean(0)
    each = [prior @ X.T @ np.linalg.solve(X @ prior @ X.T + a * np.eye(len(X)), y) for a in surrogate._alphas]
    expected = (surrogate._beliefs[:, None, :] * each).sum(0)
    np.testing.assert_allclose(surrogate.coef_, expected, atol=1e-8)
    same = frame["domain"].to_numpy() == frame["domain"].iloc[0]
    assert prior[0, same][1:] == pytest.approx(prior[0, same][1])
    np.testing.assert_allclose(prior[0, ~same], 0.0, atol=1e-12)


def test_features_are_read_by_name_in_any_order():
    frame = pd.DataFrame({"task": ["c", "a", "b", "other"], "size": [3.0, 1.0, 2.0, 9.0], "kind": list("xyxz")})
    found = task_features(frame, ("a", "b", "c"))
    np.testing.assert_allclose(found[:, 0], np.array([-1, 0, 1]) * np.sqrt(1.5))
    np.testing.assert_array_equal(found[:, 1:], [[0, 1], [1, 0], [1, 0]])


def test_a_number_that_is_missing_says_nothing():
    frame = pd.DataFrame({"size": [1.0, 3.0, np.nan]}, index=["a", "b", "c"])
    np.testing.assert_allclose(task_features(frame, ("a", "b", "c")).ravel(), [-1, 1, 0])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"size": [1.0]}, index=["a"]), "a row for every task. Got none for b"),
        (pd.DataFrame({"size": [1.0, 2.0, 3.0]}, index=["a", "b", "a"]), "one row per task. Got several for a"),
        (pd.DataFrame({"size": [1.0, 1.0]}, index=["a", "b"]), "must tell tasks apart"),
        (pd.DataFrame({"size": [1.0, np.inf]}, index=["a", "b"]), "finite numbers"),
    ],
)
def test_wrong_features_are_named(frame, message):
    with pytest.raises(InputError, match=message):
        task_features(frame, ("a", "b"))


def test_features_go_with_surrogates_that_take_them():
    train, _, frame, _ = runs_of_labels()
    with pytest.raises(InputError, match="The 'features' of fit go with"):
        fit(train, features=frame, surrogate="kernel")


def test_the_command_line_reads_features(tmp_path):
    train, _, frame, _ = runs_of_labels()
    train.write(tmp_path / "runs.csv")
    frame.rename_axis("task").reset_index().to_csv(tmp_path / "tasks.csv", index=False)
    command = ["attribute", "--rule", "inclusion", tmp_path / "runs.csv", "--outcome", *train.target_names, "--json"]
    told = CliRunner().invoke(app, [str(part) for part in (*command, "--features", tmp_path / "tasks.csv")])
    assert told.exit_code == 0, told.output
    scores = {row["task"]: row["score"] for row in json.loads(told.stdout)["scores"]}
    expected = attribute(fit(train, features=frame), rule="inclusion").scores[:, 0]
    np.testing.assert_allclose([scores[name] for name in NAMES], expected, rtol=1e-6, atol=1e-9)
    (tmp_path / "tasks.csv").write_text("name,domain\nt0,law\n")
    refused = CliRunner().invoke(app, [str(part) for part in (*command, "--features", tmp_path / "tasks.csv")])
    assert refused.exit_code == 2
    assert "there is no column task" in refused.stderr
