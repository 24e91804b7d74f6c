"""The mean of targets in a page: what select optimises, beside what Python says of the targets it is made of."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from browser import launched, opened
from test_report import unpacked
from test_report_browser import PREDICT, TASKS, table
from whence.cli import app
from whence.display.report import collect, write_page
from whence.display.report.goal import goal_of, with_goal

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")

WEIGHTS = {"loss 0": 3.0, "loss 2": 1.0}


def fitted(**options):
    runs = table(8, 60, 6, 3, names=TASKS, **options)
    runs = whence.Outcomes(runs.subsets, runs.values, TASKS, runs.target_names)
    return whence.fit(runs, surrogate=whence.CombinedSurrogate(), n_folds=4)


@pytest.fixture(scope="module", params=["whole", "gaps", "mixtures"])
def model(request):
    return fitted(gaps=request.param == "gaps", weights=request.param == "mixtures")


@pytest.fixture(scope="module")
def document(model):
    return collect(model)


def test_the_mean_is_the_last_target_and_has_the_answer_of_select(model, document):
    assert [(one["name"], one["measured"]) for one in document["targets"][2:]] == [("loss 2", True), ("mean", False)]
    found, said = whence.select(model, target="mean"), document["targets"][-1]["answer"]
    np.testing.assert_array_equal(said["selected"], found.subset)
    assert said["predicted"] == pytest.approx(model.predict(found.subset[None]).mean())
    assert said["best_run"] == pytest.approx(found.best_run)
    assert said["expected"]["low"] < said["expected"]["mean"] < said["expected"]["high"]
    values = model.outcomes.values.mean(1)
    assert said["runs"] == np.isfinite(values).sum()
    np.testing.assert_allclose(unpacked(document["runs"]["values"])[-1], values)


def test_effects_on_the_mean_are_means_of_effects(model, document):
    scores = whence.attribute(model)
    np.testing.assert_allclose(unpacked(document["attribution"]["score"])[-1], scores.scores.mean(1), atol=1e-6)
    pairs, last = whence.interactions(model), document["pairs"]["targets"][-1]
    at = np.triu_indices(6, 1)
    np.testing.assert_allclose(unpacked(last["middle"]), pairs.scores[at].mean(1).round(last["places"]), atol=1e-9)


def test_held_out_runs_say_how_wide_its_intervals_are(model, document):
    predicted, std = model.held_out()
    shown, own_std = (array[:, -1] for array in with_goal(model, goal_of(model)).held_out())
    known = np.isfinite(predicted).all(1)
    np.testing.assert_allclose(shown[known], predicted[known].mean(1))
    assert np.isnan(shown[~known]).all()
    wide = own_std[known] / std[known].mean(1)
    np.testing.assert_allclose(wide, wide[0])  # one factor
    error = np.abs(model.outcomes.values.mean(1) - shown)[known]
    assert 0.8 <= (error <= 1.645 * own_std[known]).mean() <= 1
    assert document["targets"][-1]["answer"]["correlation"] > 0.5


def test_there_is_no_mean_where_select_has_none():
    runs = table(8, 30, 4, 2)  # of two directions
    one = whence.fit(runs.targets("loss 1"), surrogate=whence.AdditiveSurrogate(), n_folds=None)
    two = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    assert goal_of(one) is None
    assert goal_of(two) is None
    for names in (["mean", "loss"], ["val/loss", "mean/loss"]):
        named = whence.Outcomes(runs.subsets, runs.values, None, names)
        assert goal_of(whence.fit(named, surrogate=whence.AdditiveSurrogate(), n_folds=None)) is None


def test_there_is_no_mean_of_targets_that_hardly_any_run_has_all_of():
    runs = table(8, 30, 4, 2)
    values = np.where(np.eye(2)[np.arange(30) % 2] == 1, runs.values, np.nan)
    apart = whence.Outcomes(runs.subsets, values, None, ["loss 0", "loss 1"])
    model = whence.fit(apart, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    assert goal_of(model) is None
    with pytest.raises(whence.InputError, match=r"needs runs with all of its outcomes\. Got 0"):
        goal_of(model, {"loss 0": 1.0, "loss 1": 2.0})


def test_the_weighted_mean_is_in_standard_deviations():
    runs = table(8, 60, 6, 3, names=TASKS)  # loss 0 is to be maximised
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=4)
    said = collect(model, weights=WEIGHTS)["targets"][-1]
    assert (said["name"], said["up"]) == ("weighted mean", True)
    found = whence.select(model, weights=WEIGHTS)
    np.testing.assert_array_equal(said["answer"]["selected"], found.subset)
    assert said["answer"]["predicted"] == pytest.approx(found.value)
    level, spread = runs.values.mean(0), runs.values.std(0)
    at = (model.predict(found.subset[None])[0] - level) / spread
    assert said["answer"]["predicted"] == pytest.approx((3 * at[0] - at[2]) / 4)


def test_report_takes_weights_and_knows_its_targets(tmp_path):
    table(8, 20, 3, 2).write(tmp_path / "runs.csv")
    asked = ["report", str(tmp_path / "runs.csv"), "--outcome", "loss*", "-o", str(tmp_path / "page.html")]
    wrong = CliRunner().invoke(app, [*asked, "--weights", "los=2"], prog_name="whence")
    assert wrong.exit_code == 2
    assert "los" in wrong.stderr
    found = CliRunner().invoke(app, [*asked, "--weights", "loss 0=2", "--json"], prog_name="whence")
    assert '"weighted mean"' in found.stdout
    assert re.search("What 3 tasks do to 2 targets", (tmp_path / "page.html").read_text())


@pytest.mark.slow
def test_the_browser_predicts_the_mean_as_python_does(model, document, tmp_path):
    write_page(document, tmp_path / "page.html")
    asked = model.outcomes.subsets[::5]
    mean, std = with_goal(model, goal_of(model)).predict(asked, return_std=True)
    with launched() as browser, opened(browser, tmp_path / "page.html") as page:
        page.select_option("#target", label="mean")
        found = np.array(page.evaluate(PREDICT, [3, asked.tolist()]))
        assert len(page.query_selector_all("#task-table tbody tr")) == 6
        if model.outcomes.is_binary:
            page.click("#best")
    np.testing.assert_allclose(found[0], mean[:, 3], rtol=1e-9)
    np.testing.assert_allclose(found[1], std[:, 3], rtol=1e-9)
