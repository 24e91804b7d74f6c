"""Predictions and tables of quality: the numbers of the model, with the runs they can be compared with."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import whence
from whence.answers.quality import target_scores, trials

TASKS = ["code", "math", "law", "news"]


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    some = np.array([row for row in whence.Exhaustive().draw(4) if 0 < row.sum() < 4])
    S = np.concatenate([some, some[:3]])
    Y = np.column_stack([S[:, 0] - S[:, 1], S[:, 2] * S[:, 3]]) + 0.05 * rng.normal(size=(len(S), 2))
    return whence.Outcomes(S, Y, TASKS, ["loss", "acc"], ["acc"])


@pytest.fixture(scope="module")
def model(runs):
    return whence.fit(runs)


def test_printed_predictions_are_a_row_per_subset_and_target(runs, model):
    found = whence.predictions(model, [["code", "law"], ["math"]])
    header, *rows = str(found).splitlines()
    assert header.split() == ["name", "target", "predicted", "std", "low", "high", "measured"]
    assert [row.split()[-6] for row in rows] == ["loss", "acc"] * 2
    assert ["code, law" in row for row in rows] == [True, True, False, False]
    np.testing.assert_allclose([float(row.split()[-5]) for row in rows], found.predicted.ravel(), rtol=1e-4)


def test_predictions_are_those_of_the_model_beside_the_mean_of_measured_runs(runs, model):
    subsets = np.vstack([runs.subsets[0], np.ones(4)])
    found = whence.predictions(model, subsets)
    mean, std = model.predict(subsets, return_std=True)
    np.testing.assert_array_equal(found.predicted, mean)
    np.testing.assert_array_equal(found.std, std)
    same = (runs.subsets == subsets[0]).all(1)
    assert same.sum() == 2
    np.testing.assert_allclose(found.measured[0], runs.values[same].mean(0))
    assert np.isnan(found.measured[1]).all()


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_share_of_a_normal_distribution(model, level):
    found = whence.predictions(model, [["code"], ["math", "law"]])
    low, high = found.interval(level)
    share = norm.cdf(high, found.predicted, found.std) - norm.cdf(low, found.predicted, found.std)
    np.testing.assert_allclose(share, level)
    np.testing.assert_allclose((low + high) / 2, found.predicted)


@pytest.mark.parametrize(("unit", "name"), [(1.0, "accuracy"), (100.0, "success_rate")])
def test_intervals_of_rates_end_where_rates_do(unit, name):
    S = whence.Exhaustive().draw(4)
    rates = unit / (1 + np.exp(4 * (S[:, 1] - S[:, 0]) + np.sin(20 * S @ np.arange(4.0))))
    named, unnamed = (whence.fit(whence.Outcomes(S, rates, TASKS, [each], [each])) for each in (name, "gain"))
    (low, high), (lowest, highest) = (whence.predictions(each, S).interval() for each in (named, unnamed))
    assert lowest.min() < 0, "which would be nonsense of a rate"
    assert highest.max() > unit
    np.testing.assert_allclose(low, np.clip(lowest, 0, unit))
    np.testing.assert_allclose(high, np.clip(highest, 0, unit))
    best = whence.select(named, size=2)
    for value in (best.expected, best.low, best.high):
        assert 0 <= value[0] <= unit


def test_intervals_of_losses_end_at_zero():
    S = whence.Exhaustive().draw(4)
    losses = np.exp(3 * (S[:, 1] - S[:, 0]) + np.sin(20 * S @ np.arange(4.0)))
    named, unnamed = (whence.fit(whence.Outcomes(S, losses, TASKS, [each])) for each in ("val/loss", "cost"))
    (low, high), (lowest, highest) = (whence.predictions(each, S).interval() for each in (named, unnamed))
    assert lowest.min() < 0, "which would be nonsense of a loss"
    np.testing.assert_allclose(low, np.maximum(lowest, 0))
    np.testing.assert_allclose(high, np.maximum(highest, 0))
    best = whence.select(named, size=2)
    assert min(best.expected[0], best.low[0], best.high[0]) >= 0


def test_only_what_is_called_a_rate_and_is_one_has_bounds():
    S = np.eye(3)
    values = np.column_stack([[0.1, 0.5, 1.0], [0.1, 0.5, 1.2], [10.0, 50.0, 90.0], [-0.1, 0.5, 0.9], [0.1, 0.5, 0.9]])
    names = ["acc", "success", "f1", "accuracy", "reward"]
    bounds = whence.Outcomes(S, values, target_names=names).bounds
    free = [-np.inf, np.inf]
    np.testing.assert_array_equal(bounds, [[0, 1], [0, 100], [0, 100], free, free])
    losses = whence.Outcomes(S, values[:, [0, 2, 3]], target_names=["loss", "nll", "error"]).bounds
    np.testing.assert_array_equal(losses, [[0, np.inf], [0, np.inf], free])
    empty = whence.Outcomes(np.empty((0, 3)), np.empty((0, 1)), target_names=["acc"]).bounds
    np.testing.assert_array_equal(empty, [free])


def test_the_frame_has_a_row_per_subset_and_target_with_the_subset_in_words(model):
    found = whence.predictions(model, [["code"], ["code", "math", "law", "news"], []])
    frame = found.to_frame()
    assert frame["target"].tolist() == ["loss", "acc"] * 3
    assert frame["name"].tolist()[::2] == ["code", "all tasks", "(no task)"]
    assert frame["subset"].tolist()[::2] == [["code"], TASKS, []]
    np.testing.assert_array_equal(frame["predicted"], found.predicted.ravel())
    assert "(no task)" in found._repr_html_()


def test_mixtures_are_described_by_their_weights():
    S = np.random.default_rng(1).dirichlet(np.ones(3), 12)
    runs = whence.Outcomes(S, S[:, 0], ["a", "b", "c"])
    frame = whence.predictions(
        whence.fit(runs, surrogate=whence.AdditiveSurrogate()), {"a": 0.25, "c": 0.75}
    ).to_frame()
    assert frame["name"].tolist() == ["c 0.75, a 0.25"]
    assert frame["subset"].tolist() == [{"a": 0.25, "c": 0.75}]


def test_scores_of_targets_are_those_of_the_surrogate_chosen_for_each(runs):
    """Targets measured in different runs are different parts of a model, in an order of their own."""
    values = runs.values.copy()
    values[0, 0] = np.nan
    with pytest.warns(whence.DataWarning, match="not measured in every run"):
        model = whence.fit(whence.Outcomes(runs.subsets, values, TASKS, ["loss", "acc"]))
    assert len(model.parts) == 2
    frame = target_scores(model)
    assert frame["target"].tolist() == ["loss", "acc"]
    for part in model.parts:
        (t,) = part.targets
        assert frame.loc[t, "surrogate"] == part.name
        assert frame.loc[t, "lds"] == pytest.approx(part.chosen.lds[0])
        assert frame.loc[t, "coverage"] == pytest.approx(part.chosen.coverage[0])


def test_every_trial_is_listed_and_weights_add_up_to_one(runs, model):
    frame = trials(model)
    assert {"size only", "additive", "kernel"} <= set(frame["name"])
    assert frame["weight"].sum() == pytest.approx(1.0)
    for _, row in frame.iterrows():
        own = np.concatenate([trial.lds for part in model.parts for trial in part.trials if trial.name == row["name"]])
        assert row["lds"] == pytest.approx(np.nanmean(own))
    assert trials(whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)).empty
