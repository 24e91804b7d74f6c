"""The demo: its set function is really trained, its truths are true, and its own checks are passed."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import oracles
import whence
from whence import demo
from whence.cli import app
from whence.errors import InputError

pytestmark = pytest.mark.slow

FEW = ["evens", "odds", "odds_copy", "mixed_1", "mislabelled_1"]


@pytest.fixture(scope="module")
def few():
    """Every subset of five of the groups."""
    return demo.digits_set_function(seed=1, tasks=FEW)


def value_of(truth, *tasks):
    (row,) = np.flatnonzero((truth.subsets == truth.subset(list(tasks))).all(axis=1))
    return truth.values[row, 0]


# ---- the set function ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [("evens", "odds"), ("mixed_1", "mislabelled_1"), FEW])
def test_outcomes_are_those_of_a_model_trained_on_the_pooled_images(few, tasks):
    groups, (images, odd) = demo._groups(seed=1)
    pooled = [np.concatenate(parts) for parts in zip(*(groups[task] for task in tasks), strict=True)]
    trained = LogisticRegression(solver="liblinear").fit(*pooled)
    assert value_of(few, *tasks) == np.mean(trained.predict(images) == odd)


def test_every_subset_has_its_outcome_and_seeds_matter(few):
    assert few.n_runs == 2**5
    assert len(np.unique(few.subsets, axis=0)) == 2**5
    assert few.maximize == (True,)
    again = demo.digits_set_function(seed=1, tasks=FEW)
    assert np.array_equal(again.values, few.values)
    other = demo.digits_set_function(seed=2, tasks=FEW)
    assert np.mean(other.values != few.values) > 0.5


def test_what_is_known_without_training_is_so(few):
    """Nothing seen is a coin; one answer seen is that answer; a copy is worth what the original is."""
    _, (_, odd) = demo._groups(seed=1)
    assert value_of(few) == 0.5
    assert value_of(few, "evens") == np.mean(~odd)
    assert value_of(few, "odds") == value_of(few, "odds_copy") == np.mean(odd)
    assert value_of(few, "evens", "odds") == value_of(few, "evens", "odds_copy") > 0.8
    assert value_of(few, "mislabelled_1") < 0.4


def test_no_image_is_in_two_places():
    groups, test = demo._groups(seed=0)
    originals = {name: group for name, group in groups.items() if name not in demo.COPIED}
    seen = [{image.tobytes() for image in images} for images, _ in [*originals.values(), test]]
    assert not any(one & other for one, other in combinations(seen, 2))
    assert {name: len(odd) for name, (_, odd) in groups.items()} == {name: n for name, (_, n, _) in demo.GROUPS.items()}


def test_unknown_groups_are_named():
    with pytest.raises(InputError, match=r"There is no group 'even'\. Did you mean 'evens'"):
        demo.digits_set_function(tasks=["even"])


def test_true_values_are_those_of_the_definition(few):
    table = {tuple(row.astype(int)): value for row, value in zip(few.subsets, few.values, strict=True)}
    found = [demo.true_index(few, [task]) for task in FEW]
    np.testing.assert_allclose(found, oracles.shapley(table)[:, 0], atol=1e-12)
    assert sum(found) == pytest.approx(value_of(few, *FEW) - 0.5)
    pairs = oracles.interaction(table, "shapley")
    for first, second in combinations(range(5), 2):
        assert demo.true_index(few, [FEW[first], FEW[second]]) == pytest.approx(pairs[first, second, 0])


# ---- the story -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth():
    return demo.digits_set_function(seed=0)


@pytest.fixture
def trained_before(monkeypatch, truth):
    """Spares the demo its trainings."""
    monkeypatch.setattr(demo, "digits_set_function", lambda seed: truth)


def test_the_demo_passes_its_own_checks(tmp_path):
    path = tmp_path / "runs.csv"
    result = CliRunner().invoke(app, ["demo", "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("PASS: ")
    assert "FAIL" not in result.stdout
    assert "1023 models were trained" in result.stdout
    assert f"whence attribute {path} -O accuracy --maximize accuracy" in result.stdout
    assert whence.read_outcomes(path, "accuracy").n_runs == demo.N_RUNS + 1


def test_its_document_holds_what_the_truth_says(trained_before, truth):
    result = CliRunner().invoke(app, ["demo", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["passed"] is True
    assert document["runs"] + document["unseen"] == truth.n_runs
    picked = document["selected"]["whence"]
    of_size = truth.values[truth.subsets.sum(1) == len(picked["tasks"]), 0]
    assert picked["accuracy"] == value_of(truth, *picked["tasks"])
    assert picked["rank"] == 1 + np.sum(of_size > picked["accuracy"])
    assert document["true_shapley"]["evens"] == pytest.approx(demo.true_index(truth, ["evens"]))
    errors = {name: row["residual_error"] for name, row in document["unseen_runs"].items()}
    assert errors["whence"] < errors["tuned linear"] < errors["size only"]


def test_it_is_only_shown_what_a_user_could_afford(truth):
    runs, unseen = demo.seen_and_unseen(truth, seed=0)
    rows = [row.tobytes() for row in (*runs.subsets, *unseen.subsets)]
    assert len(set(rows)) == len(rows) == truth.n_runs
    assert runs.n_runs == demo.N_RUNS + 1
    for part in (runs, unseen):
        for row, value in zip(part.subsets[::40], part.values[::40, 0], strict=True):
            assert value == value_of(truth, *part.names_of(row))


def test_a_failed_check_is_exit_status_1(monkeypatch):
    """Against a set function in which nothing is hidden, there is nothing to find."""
    S = whence.Exhaustive(allow_empty=True).draw(10)
    noise = 0.05 * np.random.default_rng(0).normal(size=len(S))
    plain = whence.Outcomes(S, S.sum(1) / 20 + noise, list(demo.GROUPS), ["accuracy"], True)
    monkeypatch.setattr(demo, "digits_set_function", lambda seed: plain)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[-1].startswith("FAIL: ")
    assert "PASS  mislabelled" not in result.stdout


def test_nothing_is_written_where_nothing_can_be(trained_before, tmp_path):
    result = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "none" / "runs.csv")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []
