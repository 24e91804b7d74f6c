"""Evaluation against scipy loops, formulas written out, and simulations whose truth is known."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor

from whence.errors import InputError
from whence.evaluation import (
    Comparison,
    SizeOnly,
    coverage,
    lds,
    lds_interval,
    loo_correlation,
    noise_ceiling,
    repeated_splits,
    residual_error,
    size_only,
    spearman_per_target,
    within_size_lds,
)
from whence.evaluation.ceiling import _resampled
from whence.evaluation.scores import coverage_of
from whence.evaluation.statistics import ranks
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate


def subsets_of(n, n_tasks=12, seed=0):
    codes = np.random.default_rng(seed).choice(2**n_tasks, n, replace=False)
    return (codes[:, None] >> np.arange(n_tasks) & 1).astype(float)


def noisy_pair(m=60, T=7, seed=0, *, levels=None, missing=0.0):
    """Predictions and measured outcomes of shape (m, T); few levels make ties."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(m, T))
    predicted = truth + rng.normal(size=(m, T))
    if levels:
        truth, predicted = np.round(truth * levels), np.round(predicted * levels)
    truth[rng.random((m, T)) < missing] = np.nan
    return predicted, truth


def by_loop(predicted, truth, correlation=scipy.stats.spearmanr):
    kept = [~np.isnan(column) for column in truth.T]
    columns = zip(predicted.T, truth.T, kept, strict=True)
    return np.array([correlation(guess[rows], true[rows])[0] for guess, true, rows in columns])


# ---- rank correlation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_spearman_is_that_of_scipy_with_ties_and_missing_values(levels, missing):
    predicted, truth = noisy_pair(levels=levels, missing=missing)
    expected = by_loop(predicted, truth)
    np.testing.assert_allclose(spearman_per_target(predicted, truth), expected, atol=1e-12)
    score = lds(predicted, Outcomes(subsets_of(60), truth))
    np.testing.assert_allclose(score.per_target, expected, atol=1e-12)
    assert score.mean == pytest.approx(expected.mean())
    assert score.n_undefined == 0


def test_predictions_that_differ_by_rounding_are_tied():
    rng = np.random.default_rng(0)
    predicted, truth = rng.normal(size=(7, 3)).repeat(2, axis=0), rng.normal(size=(14, 3))
    rounded = predicted * (1 + 1e-15 * rng.integers(-2, 3, predicted.shape))
    assert (ranks(rounded) != ranks(predicted)).any()
    np.testing.assert_array_equal(spearman_per_target(rounded, truth), spearman_per_target(predicted, truth))
    apart = predicted * (1 + 1e-9 * rng.integers(1, 9, predicted.shape))
    assert (spearman_per_target(apart, truth) != spearman_per_target(predicted, truth)).any()


def test_an_exact_prediction_lies_in_an_interval_without_width():
    held_out = Outcomes([[1, 0], [0, 1], [1, 1]], [0.1, 0.2, 0.3])
    predicted = held_out.values + np.array([[0.0], [1e-17], [-1e-16]])
    assert coverage_of(predicted, np.zeros((3, 1)), held_out, 0.9).mean == 1
    assert coverage_of(predicted + 1e-6, np.zeros((3, 1)), held_out, 0.9).mean == 0


def test_spearman_is_undefined_without_variation():
    nan = np.nan
    truth = np.array([[1.0, 5, 1, nan, 2], [2.0, 5, 2, nan, 2], [3.0, 5, nan, 4, 9]])
    predicted = np.array([[1.0, 1, 7, 1, 1], [1.0, 2, 7, 2, 1], [1.0, 3, 9, 3, 1]])
    # Constant prediction; constant outcome; prediction constant where measured; one row; constant prediction.
    assert np.isnan(spearman_per_target(predicted, truth)).all()
    score = lds(predicted, Outcomes(np.eye(3), truth))
    np.testing.assert_array_equal(score.per_target, [0, nan, 0, nan, 0])
    assert (score.mean, score.n_undefined) == (0.0, 2)
    assert score.target_names == tuple(f"outcome_{t}" for t in range(5))
    assert repr(score) == "Score: 0 over 3 of 5 targets; 2 undefined"


def test_mean_is_over_defined_targets_and_nan_without_any():
    truth = np.array([[1.0, 5], [2.0, 5], [3.0, 5]])
    assert lds(np.array([[1.0, 1], [2.0, 2], [3.0, 3]]), Outcomes(np.eye(3), truth)).mean == 1.0
    nothing = lds(np.zeros((3, 1)), Outcomes(np.eye(3), [1.0, 1, 1]))
    assert np.isnan(nothing.mean)
    assert nothing.n_undefined == 1
    no_rows = lds(np.zeros((0, 2)), Outcomes(np.zeros((0, 3)), np.zeros((0, 2))))
    assert no_rows.n_undefined == 2


def test_lds_takes_models_of_one_and_of_many_targets():
    S = subsets_of(40)
    runs = Outcomes(S, S @ np.random.default_rng(0).normal(size=(12, 2)))
    assert lds(LinearRegression().fit(S, runs.values), runs).mean == pytest.approx(1)
    one = runs.targets("outcome_1")
    assert lds(LinearRegression().fit(S, one.values[:, 0]), one).mean == pytest.approx(1)
    assert lds(-one.values[:, 0], one).mean == pytest.approx(-1)
    assert lds(AdditiveSurrogate.from_coefficients(np.ones(12)), one).per_target.shape == (1,)


def test_lds_takes_a_hundredth_of_the_calls_of_a_loop_over_spearmanr():
    """Which makes it more than ten times faster."""
    predicted, truth = noisy_pair(200, 450)
    runs = Outcomes(subsets_of(200), truth)

    def calls(work):
        found = Counter()
        sys.setprofile(lambda frame, event, argument: found.update([event]))
        work()
        sys.setprofile(None)
        return found["call"] + found["c_call"]

    assert 100 * calls(lambda: lds(predicted, runs)) < calls(lambda: by_loop(predicted, truth))


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        (np.zeros((3, 1)), r"predictions must have shape \(3, 2\), one row per run .* Got shape \(3, 1\)"),
        (np.zeros(3), r"Got shape \(3,\)"),
        (
            [[0, 1], [np.nan, 1], [0, np.inf]],
            r"must be finite numbers\. Got 2 that are not, the first in row 1 of",
        ),
        (None, r"must have shape \(3, 2\)"),
    ],
)
@pytest.mark.parametrize("metric", [lds, residual_error, within_size_lds])
def test_wrong_predictions_are_named(metric, predicted, message):
    runs = Outcomes(np.eye(3), np.arange(6.0).reshape(3, 2))
    with pytest.raises(InputError, match=message):
        metric(predicted, runs)


# ---- sizes -----------------------------------------------------------------------------------------------


def test_within_size_lds_is_the_mean_of_the_sizes_weighted_by_pairs():
    S = subsets_of(80, 5 + 3, seed=3)
    predicted, truth = noisy_pair(80, 3, missing=0.1)
    sizes = S.sum(axis=1)
    expected = np.zeros(3)
    for t in range(3):
        total = 0
        for size in np.unique(sizes):
            rows = (sizes == size) & ~np.isnan(truth[:, t])
            if rows.sum() > 1:
                rho = scipy.stats.spearmanr(predicted[rows, t], truth[rows, t])[0]
                expected[t] += math.comb(int(rows.sum()), 2) * rho
                total += math.comb(int(rows.sum()), 2)
        expected[t] /= total
    score = within_size_lds(predicted, Outcomes(S, truth))
    np.testing.assert_allclose(score.per_target, expected, atol=1e-12)


def test_within_size_lds_gives_no_credit_for_size():
    S = subsets_of(200)
    y = -S.sum(axis=1) + 0.3 * np.random.default_rng(0).normal(size=200)
    runs = Outcomes(S, y)
    assert lds(-S.sum(axis=1), runs).mean > 0.9
    assert within_size_lds(-S.sum(axis=1), runs).mean == 0.0


def test_within_size_lds_is_undefined_where_nothing_varies_within_a_size():
    S = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1]])
    score = within_size_lds(np.arange(8.0).reshape(4, 2), Outcomes(S, [[1, 1], [1, 1], [2, 2], [2, 3]]))
    np.testing.assert_array_equal(score.per_target, [np.nan, 1.0])


@pytest.mark.parametrize("digits", [16, 3])
def test_sizes_of_mixtures_are_equal_but_for_rounding(digits):
    weights = np.round(np.random.default_rng(0).dirichlet(np.ones(6), size=40), digits)
    assert len(np.unique(weights.sum(axis=1))) > 1
    y = weights @ np.arange(6.0)
    assert within_size_lds(y, Outcomes(weights, y)).mean == pytest.approx(1)
    predicted = size_only(Outcomes(weights, y), Outcomes(weights, y))
    np.testing.assert_allclose(predicted, y.mean())


def test_numbers_of_tasks_are_told_apart_however_many_there_are():
    S = np.repeat(np.tril(np.ones((300, 300)))[-3:], 2, axis=0)  # 298, 299 and 300 tasks
    S[::2] = S[::2][:, ::-1]
    y = np.array([1.0, 2, 3, 4, 5, 6])
    assert within_size_lds([1.0, 2, 1, 2, 2, 1], Outcomes(S, y)).mean == pytest.approx(1 / 3)


def test_fractions_are_sizes_of_their_own():
    weights = np.array([[0.1, 0], [0, 0.1], [0.4, 0], [0, 0.4]])
    y = np.array([1.0, 2, 3, 4])
    assert within_size_lds([1.0, 2, 2, 1], Outcomes(weights, y)).mean == pytest.approx(0)
    assert within_size_lds([1.0, 2, 2, 1], Outcomes(0.001 * weights, y)).mean == pytest.approx(0)
    np.testing.assert_allclose(size_only(Outcomes(weights, y), Outcomes(weights, y)).ravel(), [1.5, 1.5, 3.5, 3.5])


@pytest.mark.parametrize(("sizes", "degree"), [([3], 0), ([2, 5], 1), ([2, 3, 5], 1), ([1, 2, 4, 6], 2)])
def test_size_only_is_a_polynomial_fit(sizes, degree):
    rng = np.random.default_rng(0)
    S = np.array([np.arange(8) < size for size in np.repeat(sizes, 4)], dtype=float)
    S = rng.permuted(S, axis=1)
    Y = rng.normal(size=(len(S), 3)) + S.sum(axis=1)[:, None]
    Y[rng.random(Y.shape) < 0.2] = np.nan
    train = Outcomes(S, Y)
    inside = S[rng.permutation(len(S))]
    predicted = SizeOnly.fit(train).predict(inside)
    for t in range(3):
        rows = ~np.isnan(Y[:, t])
        assert len(np.unique(S[rows].sum(axis=1))) == len(sizes)
        polynomial = np.polyfit(S[rows].sum(axis=1), Y[rows, t], degree)
        np.testing.assert_allclose(predicted[:, t], np.polyval(polynomial, inside.sum(axis=1)), atol=1e-9)


def test_size_only_has_a_degree_for_each_target():
    S = np.tril(np.ones((6, 6)))  # sizes 1 to 6
    Y = np.column_stack([np.arange(6.0) ** 2] * 3)
    Y[3:, 1], Y[1:, 2] = np.nan, np.nan
    predicted = size_only(Outcomes(S, Y), Outcomes(S, Y))
    np.testing.assert_allclose(predicted[:, 0], np.arange(6.0) ** 2, atol=1e-9)
    np.testing.assert_allclose(predicted[:3, 1], np.polyval(np.polyfit([0, 1, 2], [0, 1, 4], 1), [0, 1, 2]))
    np.testing.assert_allclose(predicted[:, 2], 0, atol=1e-12)


def test_size_only_goes_on_along_its_tangent():
    S = np.tril(np.ones((4, 8)))
    model = SizeOnly.fit(Outcomes(S, np.arange(1.0, 5) ** 2))
    full, empty = model.predict(np.vstack([np.ones(8), np.zeros(8)])).ravel()
    assert full == pytest.approx(16 + 8 * (8 - 4))
    assert empty == pytest.approx(1 - 2)


def test_size_only_needs_a_run_of_each_target():
    with pytest.raises(InputError, match=r"at least one measured run of each target .* Got none for: b"):
        SizeOnly.fit(Outcomes(np.eye(2), [[1, np.nan], [2, np.nan]], target_names=["a", "b"]))


# ---- errors and intervals --------------------------------------------------------------------------------


def test_residual_error_is_mse_over_variance_on_measured_rows():
    predicted, truth = noisy_pair(missing=0.2)
    truth[:, 6] = 0.1
    score = residual_error(predicted, Outcomes(subsets_of(60), truth))
    for t in range(6):
        rows = ~np.isnan(truth[:, t])
        expected = np.mean((predicted[rows, t] - truth[rows, t]) ** 2) / np.var(truth[rows, t])
        assert score.per_target[t] == pytest.approx(expected)
    assert np.isnan(score.per_target[6])
    assert score.n_undefined == 1
    assert score.mean == pytest.approx(score.per_target[:6].mean())


class Given:
    """Model that predicts what it was told."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def predict(self, subsets, return_std=False):
        return (self.mean, self.std) if return_std else self.mean


def test_coverage_is_the_share_inside():
    rng = np.random.default_rng(0)
    std = np.tile([1.0, 2.0, 0.5], (500, 1))
    truth = rng.normal(size=(500, 3))
    truth[:400, 2] = np.nan
    held_out = Outcomes(subsets_of(500), truth)
    for level, z in ((0.9, 1.6448536), (0.5, 0.6744898)):
        score = coverage(Given(np.zeros((500, 3)), std), held_out, level)
        expected = [np.mean(np.abs(truth[:, t][~np.isnan(truth[:, t])]) <= z * std[0, t]) for t in range(3)]
        np.testing.assert_allclose(score.per_target, expected)
        hits = expected[0] * 500 + expected[1] * 500 + expected[2] * 100
        assert score.mean == pytest.approx(hits / 1100)
    assert coverage(Given(np.zeros((500, 3)), std), held_out).per_target[0] == pytest.approx(0.9, abs=0.03)


def test_coverage_is_undefined_without_a_std_on_a_measured_row():
    truth = np.array([[0.0, 0.0, np.nan], [0.0, np.nan, np.nan]])
    std = np.array([[1.0, 1.0, 1.0], [np.nan, np.nan, 1.0]])
    score = coverage(Given(np.zeros((2, 3)), std), Outcomes(np.eye(2), truth))
    np.testing.assert_array_equal(score.per_target, [np.nan, 1.0, np.nan])
    assert (score.mean, score.n_undefined) == (1.0, 2)
    assert np.isnan(coverage(AdditiveSurrogate.from_coefficients(np.ones(2)), Outcomes(np.eye(2), [1, 2])).mean)


def test_coverage_needs_a_std_and_a_level():
    runs = Outcomes(np.eye(2), [1.0, 2.0])
    with pytest.raises(InputError, match=r"must predict a standard deviation: .* LinearRegression does not"):
        coverage(LinearRegression().fit(np.eye(2), [1, 2]), runs)
    with pytest.raises(InputError, match=r"'level' of coverage must lie between 0 and 1. Got 90 instead"):
        coverage(Given(np.zeros(2), np.ones(2)), runs, 90)
    with pytest.raises(InputError, match=r"standard deviations must have shape \(2, 1\).* Got shape \(3,\)"):
        coverage(Given(np.zeros(2), np.ones(3)), runs)


# ---- leave-one-out ---------------------------------------------------------------------------------------


def leave_one_out_table(K=6, T=2, seed=0):
    rng = np.random.default_rng(seed)
    S = np.vstack([1 - np.eye(K), np.ones(K), np.ones(K), (np.arange(K) < 2)[None]])
    Y = rng.normal(size=(len(S), T))
    changes = Y[K : K + 2].mean(axis=0) - Y[:K]
    return S, Y, changes


@pytest.mark.parametrize(("kind", "oracle"), [("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)])
def test_loo_correlation_is_that_of_scipy_with_replicates_averaged(kind, oracle):
    S, Y, changes = leave_one_out_table()
    scores = changes + np.random.default_rng(1).normal(size=changes.shape)
    score = loo_correlation(scores, Outcomes(S, Y), kind=kind)
    np.testing.assert_allclose(score.per_target, by_loop(scores, changes, oracle), atol=1e-12)
    assert loo_correlation(3 * changes - 1, Outcomes(S, Y), kind=kind).mean == pytest.approx(1)


def test_loo_correlation_on_measured_rows():
    S, Y, changes = leave_one_out_table(T=4)
    Y[2, 1], Y[6:8, 2], Y[:, 3] = np.nan, np.nan, 0.3
    scores = np.random.default_rng(1).normal(size=changes.shape)
    score = loo_correlation(scores, Outcomes(S, Y))
    rows = np.arange(6) != 2
    assert score.per_target[1] == pytest.approx(np.corrcoef(scores[rows, 1], changes[rows, 1])[0, 1])
    assert np.isnan(score.per_target[2:]).all()
    constant = loo_correlation(np.ones((6, 4)), Outcomes(S, Y))
    np.testing.assert_array_equal(constant.per_target, [0, 0, np.nan, np.nan])


def test_loo_correlation_names_what_is_missing():
    S, Y, _ = leave_one_out_table(K=3, T=1)
    names = ["code", "math", "law"]
    with pytest.raises(InputError, match=r"2 of 4 are missing: all tasks but math, all tasks but law\. Measure"):
        loo_correlation(np.ones(3), Outcomes(S[[0, 3]], Y[[0, 3]], task_names=names))
    with pytest.raises(InputError, match=r"1 of 4 are missing: the full set"):
        loo_correlation(np.ones(3), Outcomes(S[:3], Y[:3], task_names=names))
    runs = Outcomes(S, Y, task_names=names)
    with pytest.raises(InputError, match=r"scores must have shape \(3, 1\), one row per task .* Got shape \(4,\)"):
        loo_correlation(np.ones(4), runs)
    with pytest.raises(InputError, match="'kind' of loo_correlation must be 'pearson' or 'spearman'"):
        loo_correlation(np.ones(3), runs, kind="kendall")


# ---- noise ceiling ---------------------------------------------------------------------------------------


def replicated(d, T, noise, *, seed=0, repeats=2, n_replicated=None, shape=lambda y: y):
    """Runs with known expected outcomes, and a fresh run of each subset to score those against."""
    rng = np.random.default_rng(seed)
    S = subsets_of(d, 12, seed)
    truth = rng.normal(size=(d, T))
    again = np.arange(d if n_replicated is None else n_replicated)
    rows = np.concatenate([np.arange(d), *[again] * (repeats - 1)])
    runs = Outcomes(S[rows], shape(truth[rows] + noise * rng.normal(size=(len(rows), T))))
    fresh = shape(truth + noise * rng.normal(size=(d, T)))
    return runs, truth, fresh


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(
    ("layout", "slack"),
    [
        ({}, 0.03),
        ({"repeats": 4}, 0.03),
        ({"n_replicated": 25}, 0.05),
        ({"shape": np.exp}, 0.03),
        ({"shape": lambda y: (y > 0).astype(float)}, 0.06),
    ],
)
def test_ceiling_is_what_the_expected_outcome_reaches_on_fresh_runs(noise, layout, slack):
    runs, truth, fresh = replicated(100, 300, noise, **layout)
    reached = spearman_per_target(truth, fresh).mean()
    ceiling = noise_ceiling(runs)
    assert reached - 0.02 < ceiling.mean < reached + slack
    assert ceiling.mean_low < ceiling.mean < ceiling.mean_high
    assert ceiling.n_undefined == 0
    assert ceiling.reason == ""


@pytest.mark.parametrize("shape", [lambda y: y, lambda y: -np.exp(-y)])
def test_ceiling_where_only_the_best_subsets_were_repeated(shape):
    """Runs of the best change places among themselves, although noise hardly matters to all the others."""
    S, rng, off = subsets_of(25, 12, 0), np.random.default_rng(1), []
    for _ in range(20):
        truth = shape(rng.normal(size=25))
        noise = 0.2 * truth.std()
        rows = np.concatenate([np.arange(25), np.repeat(np.argsort(-truth)[:6], 4)])
        runs = Outcomes(S[rows], truth[rows] + noise * rng.normal(size=len(rows)))
        reached = [scipy.stats.spearmanr(truth, truth + noise * rng.normal(size=25))[0] for _ in range(20)]
        off.append(noise_ceiling(runs).mean - np.mean(reached))
    assert abs(np.mean(off)) < 0.03


def test_mean_ceiling_of_targets_that_are_all_signal_or_all_noise():
    runs, _, _ = replicated(60, 200, 0.0)
    values = runs.values.copy()
    values[:, :100] = np.random.default_rng(1).normal(size=(120, 100))
    ceiling = noise_ceiling(Outcomes(runs.subsets, values))
    assert ceiling.mean == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(ceiling.per_target[100:], 1.0)
    assert (ceiling.per_target[:100] == 0).sum() > 30


def test_ceiling_intervals_hold_roughly_what_they_promise():
    z = np.random.default_rng(9).normal(size=(2, 100_000))
    truth = scipy.stats.spearmanr(z[0], z[0] + z[1])[0]
    inside = []
    for seed in range(10):
        ceiling = noise_ceiling(replicated(60, 40, 1.0, seed=seed)[0], seed=seed)
        inside.append(np.mean((ceiling.low <= truth) & (truth <= ceiling.high)))
    assert 0.88 < np.mean(inside) < 0.99


def test_ceiling_resamples_subsets_with_and_without_replicates_apart():
    twice = np.array([[True, False], [False, False], [False, True], [False, False], [False, False]])
    draws = _resampled(twice, 50, 0)
    assert draws.shape == (50, 5)
    assert (draws[:, [0, 2]].sum(axis=1) == 2).all()
    assert (draws[:, [1, 3, 4]].sum(axis=1) == 3).all()
    assert len(np.unique(draws, axis=0)) > 10


def test_ceiling_follows_from_the_correlation_of_two_seeds():
    runs, _, _ = replicated(400, 30, 1.0)
    first, second = runs.values[:400], runs.values[400:]
    expected = np.sqrt(by_loop(first, second))
    np.testing.assert_allclose(noise_ceiling(runs).per_target, expected, atol=0.02)


def test_ceiling_is_the_same_for_any_monotone_scale_and_seed_by_seed():
    runs, _, _ = replicated(40, 3, 1.0)
    plain, scaled = noise_ceiling(runs), noise_ceiling(Outcomes(runs.subsets, np.exp(3 * runs.values)))
    np.testing.assert_allclose(plain.per_target, scaled.per_target)
    again, other = noise_ceiling(runs), noise_ceiling(runs, seed=1)
    np.testing.assert_array_equal(plain.low, again.low)
    assert not np.array_equal(plain.low, other.low)


def test_ceiling_with_missing_values_is_that_of_the_measured_runs():
    runs, _, _ = replicated(50, 4, 1.0, repeats=3)
    values = runs.values.copy()
    gone = np.random.default_rng(0).random(values.shape) < 0.3
    values[gone] = np.nan
    values[:, 3], values[50:, 2] = np.nan, np.nan
    ceiling = noise_ceiling(Outcomes(runs.subsets, values))
    for t in (0, 1):
        rows = ~np.isnan(values[:, t])
        alone = noise_ceiling(Outcomes(runs.subsets[rows], values[rows, t]))
        assert ceiling.per_target[t] == pytest.approx(alone.per_target[0])
    assert np.isnan(ceiling.per_target[2:]).all()
    assert np.isnan(ceiling.low[2:]).all()
    assert ceiling.n_undefined == 2
    assert "over 2 of 4 targets; 2 undefined" in repr(ceiling)


@pytest.mark.parametrize(
    ("rows", "values", "reason"),
    [
        ([0, 1, 2], [1.0, 2, 3], "No subset was measured more than once, so that training noise"),
        ([0, 1, 2, 2], [1.0, 2, 3, 4], "Only one subset was measured more than once"),
        ([0, 1, 0, 1], [1.0, 1, 1, 1], "No target varies"),
        ([0, 1, 0, 1], [1.0, 2, np.nan, np.nan], "No subset was measured more than once"),
        ([], [], "No subset was measured more than once"),
    ],
)
def test_no_ceiling_comes_with_a_reason(rows, values, reason):
    ceiling = noise_ceiling(Outcomes(np.eye(3)[rows], np.array(values, dtype=float).reshape(-1, 1)))
    assert ceiling.reason.startswith(reason)
    assert np.isnan([ceiling.mean, ceiling.mean_low, ceiling.mean_high, *ceiling.per_target, *ceiling.low]).all()
    assert reason in repr(ceiling)


def test_ceiling_of_few_subsets_without_noise():
    ceiling = noise_ceiling(Outcomes(np.eye(3)[[0, 1, 0, 1]], [1.0, 2, 1, 2]))
    np.testing.assert_allclose([ceiling.mean, ceiling.mean_low, ceiling.mean_high], 1.0)
    with pytest.raises(InputError, match="'n_boot' of noise_ceiling must be at least 2"):
        noise_ceiling(Outcomes(np.eye(2), [1.0, 2.0]), n_boot=1)


# ---- repeated splits -------------------------------------------------------------------------------------


def additive_runs(n=60, T=3, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    S = subsets_of(n, 8, seed)
    rows = np.concatenate([np.arange(n), np.arange(0, n, 3)])
    Y = S[rows] @ rng.normal(size=(8, T)) + noise * rng.normal(size=(len(rows), T))
    return Outcomes(S[rows], Y)


def ridge(train):
    return AdditiveSurrogate().fit(train.subsets, train.values)


def neighbours(train):
    return KNeighborsRegressor(3).fit(train.subsets, train.values)


def test_every_method_sees_the_same_splits_and_no_subset_straddles_them():
    runs = additive_runs()
    seen = {"a": [], "b": []}

    class Spy:
        def __init__(self, train):
            self.train = train

        def predict(self, subsets):
            seen[self.name].append((self.train.subsets.copy(), np.array(subsets)))
            return np.zeros((len(subsets), 3))

    def method(name):
        return type(name, (Spy,), {"name": name})

    result = repeated_splits(runs, {name: method(name) for name in seen}, n_splits=4, train_fraction=0.6)
    assert (result.n_train, result.n_test) == (36, 24)
    for a, b in zip(seen["a"], seen["b"], strict=True):
        for side in (0, 1):
            np.testing.assert_array_equal(a[side], b[side])
        train, test = ({row.tobytes() for row in side} for side in a)
        assert not train & test
        assert (len(train), len(test)) == (36, 24)
        assert len(a[0]) + len(a[1]) == runs.n_runs
    assert len({side[0].tobytes() for side in seen["a"]}) == 4, "splits should differ"


def test_scores_are_those_of_the_metrics_on_each_split():
    runs = additive_runs()
    sides = []

    def kept(train):
        sides.append(train)
        return ridge(train)

    result = repeated_splits(runs, {"ridge": kept, "neighbours": neighbours}, n_splits=3, seed=5)
    for split, train in enumerate(sides):
        inside = {row.tobytes() for row in train.subsets}
        held_out = runs.rows([row.tobytes() not in inside for row in runs.subsets])
        model = ridge(train)
        assert result.lds[0, split] == pytest.approx(lds(model, held_out).mean)
        assert result.residual_error[0, split] == pytest.approx(residual_error(model, held_out).mean)
        assert result.coverage[0, split] == pytest.approx(coverage(model, held_out, 0.9).mean)
        assert result.lds[1, split] == pytest.approx(lds(neighbours(train), held_out).mean)
    assert np.isnan(result.coverage[1]).all()
    assert (result.seconds > 0).all()
    frame = result.to_frame()
    assert list(frame.index) == ["ridge", "neighbours"]
    assert list(frame.columns) == ["lds", "residual_error", "coverage", "seconds", "failed", "message"]
    assert frame.loc["ridge", "lds"] == pytest.approx(result.lds[0].mean())
    assert np.isnan(frame.loc["neighbours", "coverage"])


def test_same_seed_same_splits():
    runs = additive_runs()
    a, b, c = (repeated_splits(runs, {"ridge": ridge}, n_splits=2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.lds, b.lds)
    assert not np.array_equal(a.lds, c.lds)


def test_failures_are_reported_and_counted():
    calls = []

    def fragile(train):
        calls.append(train)
        if len(calls) % 2:
            raise RuntimeError(f"out of luck {len(calls)}")
        return ridge(train)

    done = []
    result = repeated_splits(
        additive_runs(),
        {"fragile": fragile, "ridge": ridge, "wrong": lambda train: np.zeros((1, 1))},
        n_splits=4,
        progress=lambda *at: done.append(at),
    )
    assert [failure[:2] for failure in result.failures if failure[0] == "fragile"] == [
        ("fragile", 0),
        ("fragile", 2),
    ]
    np.testing.assert_array_equal(np.isnan(result.lds[0]), [True, False, True, False])
    np.testing.assert_allclose(result.lds[0, [1, 3]], result.lds[1, [1, 3]])
    frame = result.to_frame()
    assert frame["failed"].to_dict() == {"fragile": 2, "ridge": 0, "wrong": 4}
    assert frame.loc["fragile", "message"] == "RuntimeError: out of luck 1"
    assert frame.loc["fragile", "lds"] == pytest.approx(np.mean(result.lds[0, [1, 3]]))
    assert "must have shape" in frame.loc["wrong", "message"]
    assert np.isnan(frame.loc["wrong", "lds"])
    mean, low, high = result.difference("fragile", "ridge")
    assert (mean, low, high) == (0, 0, 0)
    assert np.isnan(result.difference("wrong", "ridge")).all()
    assert done == [(i, 12) for i in range(1, 13)]


def test_targets_that_do_not_vary_are_counted():
    runs = additive_runs()
    constant = Outcomes(runs.subsets, np.column_stack([runs.values, np.zeros((runs.n_runs, 2))]))
    result = repeated_splits(constant, {"ridge": ridge}, n_splits=2)
    np.testing.assert_array_equal(result.n_undefined, [2, 2])


def comparison(lds_scores, n_train=70, n_test=30):
    scores = np.array(lds_scores)
    return Comparison(("a", "b"), scores, -scores, scores, scores, np.zeros(scores.shape[1]), (), n_train, n_test)


def test_difference_is_the_corrected_interval_of_nadeau_and_bengio():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 8))
    gaps = scores[0] - scores[1]
    error = gaps.std(ddof=1) * np.sqrt(1 / 8 + 30 / 70)
    half = scipy.stats.t(7).ppf(0.975) * error
    expected = (gaps.mean(), gaps.mean() - half, gaps.mean() + half)
    np.testing.assert_allclose(comparison(scores).difference("a", "b"), expected)
    flipped = comparison(scores).difference("b", "a", metric="residual_error")
    np.testing.assert_allclose(flipped, expected)
    narrow = comparison(scores).difference("a", "b", level=0.5)
    assert expected[1] < narrow[1] < narrow[0] < narrow[2] < expected[2]
    one = comparison(scores[:, :1]).difference("a", "b")
    assert one[0] == pytest.approx(gaps[0])
    assert np.isnan(one[1:]).all()


def test_difference_sees_a_better_method_and_no_difference_where_there_is_none():
    runs = additive_runs(120, noise=1.0)
    methods = {"ridge": ridge, "size only": SizeOnly.fit, "neighbours": neighbours}
    result = repeated_splits(runs, methods, n_splits=10)
    _, low, _ = result.difference("ridge", "size only")
    assert low > 0
    _, _, high = result.difference("ridge", "size only", metric="residual_error")
    assert high < 0
    _, low, high = result.difference("ridge", "ridge")
    assert low == high == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": {}}, "'methods' of repeated_splits must name at least one method"),
        ({"n_splits": 0}, "'n_splits' of repeated_splits must be at least 1. Got 0"),
        ({"train_fraction": 70}, "'train_fraction' parameter of repeated_splits must lie between 0 and 1. Got 70"),
        ({"train_size": 59}, r"two to judge by\. Got 59 to learn from, of 60 in the table"),
        ({"train_size": 0}, r"at least one distinct subset to learn from .* Got 0"),
    ],
)
def test_wrong_splits_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        repeated_splits(additive_runs(), **{"methods": {"ridge": ridge}, **arguments})


def test_wrong_names_are_named():
    result = comparison(np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"No method is called 'c'\. There are: a, b"):
        result.difference("a", "c")
    with pytest.raises(InputError, match=r"'metric' of difference must be 'lds' or 'residual_error'. Got 'mse'"):
        result.difference("a", "b", metric="mse")


def test_train_size_is_a_number_of_distinct_subsets():
    result = repeated_splits(additive_runs(), {"ridge": ridge}, n_splits=1, train_size=20)
    assert (result.n_train, result.n_test) == (20, 40)


# ---- many targets ----------------------------------------------------------------------------------------


def test_many_targets_with_missing_values_take_seconds():
    runs, truth, _ = replicated(100, 5000, 1.0)
    values = runs.values.copy()
    values[np.random.default_rng(0).random(values.shape) < 0.2] = np.nan
    table = Outcomes(runs.subsets, values)
    predicted = np.vstack([truth, truth])
    start = time.process_time()
    lds(predicted, table)
    within_size_lds(predicted, table)
    residual_error(predicted, table)
    coverage(Given(predicted, np.ones_like(predicted)), table)
    size_only(table, table)
    noise_ceiling(table)
    assert time.process_time() - start < 10


# ---- how certain a rank correlation is -------------------------------------------------------------------


def test_lds_interval_has_the_spread_of_the_rank_correlation_over_tables():
    """Its half width over 1.28 is above the std of rank correlations of other draws of runs, on Fisher's scale."""
    rng = np.random.default_rng(0)
    S = subsets_of(60)
    scores, stds = [], []
    for _ in range(200):
        truth = rng.normal(size=(60, 3))
        predicted = truth + rng.normal(size=truth.shape)
        low, high = lds_interval(predicted, Outcomes(S, truth)).mean
        scores.append(np.arctanh(lds(predicted, Outcomes(S, truth)).mean))
        stds.append((np.arctanh(high) - np.arctanh(low)) / 2 / scipy.stats.norm.ppf(0.9))
    assert 1.2 < np.mean(stds) / np.std(scores) < 1.9, "wider: surrogates change with their runs, too"


def test_lds_interval_knows_targets_that_say_the_same():
    rng = np.random.default_rng(1)
    S, truth = subsets_of(40), rng.normal(size=(40, 1))
    predicted = truth + rng.normal(size=truth.shape)
    one = lds_interval(predicted, Outcomes(S, truth))
    copies = lds_interval(np.repeat(predicted, 10, axis=1), Outcomes(S, np.repeat(truth, 10, axis=1)))
    np.testing.assert_allclose(copies.mean, one.mean)
    np.testing.assert_allclose(copies.low, np.repeat(one.low, 10))
    many = rng.normal(size=(40, 10))
    apart = lds_interval(many + rng.normal(size=many.shape), Outcomes(S, many))
    assert np.diff(apart.mean) < 0.9 * np.diff(one.mean), "ten targets that differ tell more than one"


def test_lds_interval_is_narrower_with_more_runs_and_not_with_replicates():
    def width(predicted, runs):
        low, high = lds_interval(predicted, runs).mean
        return np.arctanh(high) - np.arctanh(low)

    rng = np.random.default_rng(2)
    S, truth = subsets_of(80), rng.normal(size=(80, 1))
    predicted = truth + rng.normal(size=truth.shape)
    few, more, many = (width(predicted[:n], Outcomes(S[:n], truth[:n])) for n in (10, 20, 80))
    assert few > more > many
    twice = Outcomes(np.repeat(S[:20], 2, axis=0), np.repeat(truth[:20], 2, axis=0))
    assert width(np.repeat(predicted[:20], 2, axis=0), twice) == pytest.approx(more, rel=0.1)


def test_lds_interval_of_what_is_undefined_is_nan():
    found = lds_interval(np.arange(6.0), Outcomes(subsets_of(6), np.ones(6)))
    assert np.isnan([*found.mean, *found.low, *found.high]).all()
