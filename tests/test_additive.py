"""AdditiveSurrogate against np.linalg.solve, textbook formulas, refits without a row, and simulation."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.linear_model import Lasso, LassoCV, LinearRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from whence.errors import InputError
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.mixture import Mixture

PENALTIES = ["ridge", "ols", "lasso"]


def table(m=60, K=8, T=3, *, noise=0.5, seed=0, size=None):
    rng = np.random.default_rng(seed)
    X = (rng.random((m, K)) < 0.5).astype(float)
    if size is not None:
        X = np.zeros((m, K))
        for row in X:
            row[rng.choice(K, size, replace=False)] = 1.0
    X = np.unique(X, axis=0)
    X = X[rng.permutation(len(X))]
    coef = rng.normal(size=(K, T))
    return X, 2.0 + X @ coef + noise * rng.normal(size=(len(X), T)), coef


def ridge_by_solving(X, Y, alpha, weights=None):
    """Coefficients and intercept from the normal equations with an unpenalised column of ones."""
    w = np.ones(len(X)) if weights is None else weights
    A = np.column_stack([np.ones(len(X)), X])
    penalty = alpha * np.diag([0.0] + [1.0] * X.shape[1])
    solution = np.linalg.solve(A.T @ (w[:, None] * A) + penalty, A.T @ (w[:, None] * Y))
    return solution[1:], solution[0]


def left_out_errors(X, Y, alpha, weights=None):
    """What a fit without each row misses it by."""
    w = np.ones(len(X)) if weights is None else weights
    errors = np.empty_like(Y)
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        coef, intercept = ridge_by_solving(X[rest], Y[rest], alpha, w[rest])
        errors[i] = Y[i] - X[i] @ coef - intercept
    return errors


@parametrize_with_checks(
    [
        AdditiveSurrogate(),
        AdditiveSurrogate(alpha=0.5),
        AdditiveSurrogate("ols"),
        AdditiveSurrogate("lasso"),
        AdditiveSurrogate("lasso", alpha=0.01),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)


def test_parameters_after_the_penalty_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        AdditiveSurrogate("ridge", 1.0)


# ---- coefficients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(60, 8), (10, 25)])
def test_ridge_solves_the_normal_equations(shape, weighted):
    X, Y, _ = table(*shape)
    weights = np.random.default_rng(1).uniform(0.5, 3, len(X)) if weighted else None
    surrogate = AdditiveSurrogate(alpha=0.7).fit(X, Y, sample_weight=weights)
    coef, intercept = ridge_by_solving(X, Y, 0.7, weights)
    np.testing.assert_allclose(surrogate.coef_, coef, atol=1e-10)
    np.testing.assert_allclose(surrogate.intercept_, intercept, atol=1e-10)
    np.testing.assert_allclose(surrogate.predict(X), X @ coef + intercept, atol=1e-10)
    assert (surrogate.alpha_ == 0.7).all()


def test_ols_is_least_squares_and_says_no_penalty():
    X, Y, _ = table()
    surrogate = AdditiveSurrogate("ols").fit(X, Y)
    reference = LinearRegression().fit(X, Y)
    np.testing.assert_allclose(surrogate.coef_, reference.coef_.T, atol=1e-10)
    np.testing.assert_allclose(surrogate.intercept_, reference.intercept_, atol=1e-10)
    assert (surrogate.alpha_ == 0).all()


def test_ols_takes_the_smallest_coefficients_on_a_fixed_size_design():
    X, Y, _ = table(80, 7, size=3)
    surrogate = AdditiveSurrogate("ols").fit(X, Y)
    np.testing.assert_allclose(surrogate.coef_.sum(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(surrogate.predict(X), LinearRegression().fit(X, Y).predict(X), atol=1e-10)


def test_lasso_is_that_of_sklearn():
    X, Y, _ = table()
    surrogate = AdditiveSurrogate("lasso", alpha=0.1).fit(X, Y)
    for t in range(3):
        reference = Lasso(alpha=0.1, tol=1e-8).fit(X, Y[:, t])
        np.testing.assert_allclose(surrogate.coef_[:, t], reference.coef_, atol=1e-3)
    assert (surrogate.coef_ == 0).any()
    assert (surrogate.alpha_ == 0.1).all()


# ---- choice of the penalty -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 8), (15, 30)])
def test_ridge_takes_the_penalty_with_the_smallest_leave_one_out_error_of_actual_refits(shape):
    X, Y, _ = table(*shape, T=4, noise=2.0)
    Y[:, 3] = np.random.default_rng(5).normal(size=len(X))
    surrogate = AdditiveSurrogate().fit(X, Y)
    grid = surrogate._alphas
    errors = np.array([(left_out_errors(X, Y, alpha) ** 2).sum(axis=0) for alpha in grid])
    np.testing.assert_allclose(surrogate.alpha_, grid[errors.argmin(axis=0)])
    assert len(np.unique(surrogate.alpha_)) > 1, "targets of different noise should get their own penalty"


def test_ridge_agrees_with_ridgecv():
    X, Y, _ = table(T=5, noise=1.5)
    surrogate = AdditiveSurrogate().fit(X, Y)
    reference = RidgeCV(surrogate._alphas, alpha_per_target=True).fit(X, Y)
    np.testing.assert_allclose(surrogate.alpha_, reference.alpha_)
    apart = np.linalg.norm(surrogate.coef_ - reference.coef_.T) / np.linalg.norm(reference.coef_)
    assert apart < 0.1, "with this many runs, averaging penalties should hardly matter"


@pytest.mark.parametrize("shape", [(60, 8), (15, 30)])
def test_coefficients_are_those_of_all_penalties_weighted_by_their_evidence(shape):
    """Evidence by the density of contrasts between runs, which know nothing of the mean, with a scale unknown."""
    X, Y, _ = table(*shape, T=2, noise=2.0)
    surrogate = AdditiveSurrogate().fit(X, Y)
    contrasts = np.linalg.svd(np.ones((1, len(X))))[2][1:]
    for t in range(2):
        logs, coefs = [], []
        for alpha in surrogate._alphas:
            covariance = contrasts @ (np.eye(len(X)) + X @ X.T / alpha) @ contrasts.T
            seen = contrasts @ Y[:, t]
            square = seen @ np.linalg.solve(covariance, seen)
            logs.append(-np.linalg.slogdet(covariance)[1] / 2 - len(seen) / 2 * np.log(square))
            coefs.append(ridge_by_solving(X, Y[:, [t]], alpha)[0][:, 0])
        weights = np.exp(np.array(logs) - max(logs))
        np.testing.assert_allclose(surrogate.coef_[:, t], weights @ coefs / weights.sum(), rtol=1e-6, atol=1e-9)


def test_leave_one_out_leaves_out_a_whole_subset():
    X, Y, _ = table(25, 8, T=1, noise=3.0)
    rng = np.random.default_rng(2)
    replicas = np.repeat(np.arange(len(X)), 6)  # noise-free replicates: leaving out one would reveal the answer
    surrogate = AdditiveSurrogate().fit(X[replicas], Y[replicas][:, 0])
    grid = surrogate._alphas
    six = np.full(len(X), 6.0)
    errors = [(left_out_errors(X, Y, alpha, six) ** 2).sum() for alpha in grid]
    np.testing.assert_allclose(surrogate.alpha_, grid[int(np.argmin(errors))])
    order = rng.permutation(len(replicas))
    shuffled = AdditiveSurrogate().fit(X[replicas][order], Y[replicas][order][:, 0])
    np.testing.assert_allclose(shuffled.coef_, surrogate.coef_, atol=1e-10)


@pytest.mark.parametrize("shape", [(60, 8), (15, 200)])
def test_penalties_tried_run_from_next_to_no_effect_to_least_squares(shape):
    X, Y, _ = table(*shape)
    alphas = AdditiveSurrogate().fit(X, Y)._alphas
    least_squares = AdditiveSurrogate("ols").fit(X, Y).coef_
    strongest, weakest = (AdditiveSurrogate(alpha=alpha).fit(X, Y).coef_ for alpha in alphas[[0, -1]])
    assert np.linalg.norm(strongest) < 0.1 * np.linalg.norm(least_squares)
    np.testing.assert_allclose(weakest, least_squares, atol=0.01)


def test_penalty_follows_the_scale_of_the_subsets():
    X, Y, _ = table(noise=2.0)
    plain, scaled = AdditiveSurrogate().fit(X, Y), AdditiveSurrogate().fit(1000 * X, Y)
    np.testing.assert_allclose(scaled.alpha_, 1e6 * plain.alpha_)
    np.testing.assert_allclose(scaled.predict(1000 * X), plain.predict(X), atol=1e-8)


def amounts(seed, *, in_own_units):
    """Ten noisy runs of amounts of very different size, and 200 new ones; what matters is an amount, or its spread."""
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(210, 8)) * 10 ** rng.uniform(-2.5, 0, 8)
    Y = (X / X.std(0) if in_own_units else X) @ rng.normal(size=(8, 4))
    Y += 0.6 * Y.std(0) * rng.normal(size=Y.shape)
    return X[:10], Y[:10], X[10:], Y[10:]


@pytest.mark.parametrize("in_own_units", [True, False])
def test_few_runs_of_amounts_of_different_size_are_predicted_as_by_the_better_scaling(in_own_units):
    def score(predicted, Y):
        return np.mean([spearmanr(p, y).statistic for p, y in zip(predicted.T, Y.T, strict=True)])

    ours, standardised, plain = [], [], []
    for seed in range(12):
        X, Y, new, truth = amounts(seed, in_own_units=in_own_units)
        alphas = np.geomspace(1e-2, 1e3, 16)
        ours.append(score(AdditiveSurrogate().fit(X, Y).predict(new), truth))
        scaled = make_pipeline(StandardScaler(), RidgeCV(alphas)).fit(X, Y)
        standardised.append(score(scaled.predict(new), truth))
        plain.append(score(RidgeCV(alphas * X.var()).fit(X, Y).predict(new), truth))
    assert np.mean(ours) > max(np.mean(standardised), np.mean(plain)) - 0.05
    assert np.mean(ours) > min(np.mean(standardised), np.mean(plain)) + 0.05, "the scaling should matter here"


def test_ridge_in_units_of_the_columns_is_ridge_of_scaled_columns():
    X, Y, new, _ = amounts(0, in_own_units=True)
    surrogate = AdditiveSurrogate().fit(X, Y)
    assert not np.allclose(surrogate._unit, 1.0)
    scaled = [AdditiveSurrogate(alpha=alpha).fit(X * surrogate._unit, Y[:, 0]) for alpha in surrogate._alphas]
    beliefs = surrogate._beliefs[:, 0]
    coef = beliefs @ [one.coef_[:, 0] for one in scaled]
    np.testing.assert_allclose(surrogate.coef_[:, 0], coef * surrogate._unit)
    expected = beliefs @ [one.predict(new * surrogate._unit) for one in scaled]
    np.testing.assert_allclose(surrogate.predict(new)[:, 0], expected)
    # The variance of a run in closed form is that of the page's formula.
    form = surrogate.run_variance(np.arange(4))
    away = (new - form["center"]) * form["unit"]
    along = away @ form["basis"]
    coef = form["basis"].T @ (surrogate.coef_ / form["unit"][:, None])
    for t in range(4):
        per = (form["spread"][t] / (form["spectrum"][:, None] + form["penalties"])).sum(1)
        variance = form["constant"][t] + along**2 @ per + form["rest"][t] * ((away**2).sum(1) - (along**2).sum(1))
        for share, penalty in zip(form["shares"][t], form["penalties"], strict=True):
            moved = form["gradient"][t] / (form["spectrum"] + penalty) - coef[:, t]
            variance += share * (along @ moved) ** 2
        np.testing.assert_allclose(surrogate.predict(new, return_std=True)[1][:, t], np.sqrt(variance))


def test_tuned_lasso_finds_the_tasks_that_matter():
    rng = np.random.default_rng(0)
    X = (rng.random((150, 30)) < 0.5).astype(float)
    y = 4 * X[:, 3] - 3 * X[:, 17] + 0.3 * rng.normal(size=150)
    surrogate = AdditiveSurrogate("lasso").fit(X, y)
    assert set(np.argsort(-np.abs(surrogate.coef_[:, 0]))[:2]) == {3, 17}
    assert (surrogate.coef_ == 0).sum() > 5
    reference = LassoCV(cv=5, max_iter=10_000).fit(X, y)
    assert 0.2 < surrogate.alpha_[0] / reference.alpha_ < 5


# ---- weights and replicates ------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
def test_weight_two_is_the_row_twice_and_weight_zero_is_no_row(penalty):
    X, Y, _ = table(40, 6)
    X, Y = np.vstack([X, X[:10]]), np.vstack([Y, Y[:10] + 1.0])  # replicates that differ
    weights = np.random.default_rng(3).integers(0, 4, len(X))
    rows = np.repeat(np.arange(len(X)), weights)
    by_weight = AdditiveSurrogate(penalty).fit(X, Y, sample_weight=weights)
    by_row = AdditiveSurrogate(penalty).fit(X[rows], Y[rows])
    for name in ("coef_", "intercept_", "alpha_", "coef_std_", "noise_std_"):
        np.testing.assert_allclose(getattr(by_weight, name), getattr(by_row, name), atol=1e-10, err_msg=name)
    without = AdditiveSurrogate(penalty).fit(X[weights > 0], Y[weights > 0], sample_weight=weights[weights > 0])
    np.testing.assert_allclose(by_weight.coef_, without.coef_, atol=1e-12)


def test_replicates_do_not_pass_for_evidence_about_other_subsets():
    rng = np.random.default_rng(0)
    X = np.unique((rng.random((80, 6)) < 0.5).astype(float), axis=0)
    misfit = rng.normal(size=len(X))  # what no additive surrogate can express, the same in each replicate
    rows = np.repeat(np.arange(len(X)), 50)
    y = (X.sum(axis=1) + misfit)[rows] + 0.01 * rng.normal(size=len(rows))
    once = AdditiveSurrogate("ols").fit(X, X.sum(axis=1) + misfit)
    often = AdditiveSurrogate("ols").fit(X[rows], y)
    np.testing.assert_allclose(often.coef_std_, once.coef_std_, rtol=0.02)
    np.testing.assert_allclose(often.noise_std_, once.noise_std_, rtol=0.02)


def test_noise_std_is_that_of_one_run_not_of_a_mean_of_replicates():
    X, _, _ = table(60, 6)
    rows = np.repeat(np.arange(len(X)), 5)
    y = X[rows].sum(axis=1) + 2.0 * np.random.default_rng(0).normal(size=len(rows))
    for penalty in PENALTIES:
        assert AdditiveSurrogate(penalty).fit(X[rows], y).noise_std_[0] == pytest.approx(2.0, rel=0.15)


def test_without_a_degree_of_freedom_the_replicates_tell_the_noise():
    K = 5
    X = np.vstack([np.ones(K), 1 - np.eye(K)])  # leave-one-out: as many effects as subsets
    rng = np.random.default_rng(1)
    rows = np.repeat(np.arange(K + 1), 3)
    Y = rng.normal(size=(len(rows), 2))
    surrogate = AdditiveSurrogate("ols").fit(X[rows], Y)
    pooled = np.mean([Y[rows == i].var(axis=0, ddof=1) for i in range(K + 1)], axis=0)
    np.testing.assert_allclose(surrogate.noise_std_, np.sqrt(pooled))
    # A coefficient is the difference of two means of 3 runs.
    np.testing.assert_allclose(surrogate.coef_std_, np.tile(np.sqrt(pooled * 2 / 3), (K, 1)))
    assert np.isnan(AdditiveSurrogate("ols").fit(X, Y[: K + 1]).coef_std_).all()


# ---- intervals -------------------------------------------------------------------------------------------


def test_ols_intervals_are_those_of_the_textbook():
    X, Y, _ = table(50, 6, T=2)
    surrogate = AdditiveSurrogate("ols").fit(X, Y)
    A = np.column_stack([np.ones(len(X)), X])
    B = np.linalg.lstsq(A, Y, rcond=None)[0]
    variance = ((Y - A @ B) ** 2).sum(axis=0) / (len(X) - 7)
    inverse = np.linalg.inv(A.T @ A)
    np.testing.assert_allclose(surrogate.coef_std_, np.sqrt(np.outer(np.diag(inverse)[1:], variance)))
    np.testing.assert_allclose(surrogate.noise_std_, np.sqrt(variance))
    new = np.array([[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 2, 0]], dtype=float)
    A_new = np.column_stack([np.ones(2), new])
    leverage = np.einsum("ij,jk,ik->i", A_new, inverse, A_new)
    _, std = surrogate.predict(new, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.outer(1 + leverage, variance)))


@pytest.mark.parametrize("shape", [(50, 6), (12, 20)])
def test_ridge_intervals_are_those_of_the_posterior(shape):
    X, Y, _ = table(*shape, T=2)
    weights = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    alpha = 1.3
    surrogate = AdditiveSurrogate(alpha=alpha).fit(X, Y, sample_weight=weights)
    m, K = X.shape
    A = np.column_stack([np.ones(m), X])
    precision = A.T @ (weights[:, None] * A) + alpha * np.diag([0.0] + [1.0] * K)
    inverse = np.linalg.inv(precision)
    leverage = np.einsum("ij,jk,ik->i", A, inverse, A) * weights
    errors = left_out_errors(X, Y, alpha, weights)
    variance = ((weights * (1 - leverage))[:, None] * errors**2).mean(axis=0)
    np.testing.assert_allclose(surrogate.coef_std_, np.sqrt(np.outer(np.diag(inverse)[1:], variance)))
    np.testing.assert_allclose(surrogate.noise_std_, np.sqrt(variance * m / weights.sum()))
    new = np.vstack([np.ones(K), np.eye(K)[0]])
    A_new = np.column_stack([np.ones(2), new])
    of_mean = np.outer(np.einsum("ij,jk,ik->i", A_new, inverse, A_new), variance)
    _, std = surrogate.predict(new, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(of_mean + surrogate.noise_std_**2))


def test_lasso_intervals_are_those_of_least_squares_on_the_tasks_that_are_left():
    X, Y, _ = table(50, 6, T=2)
    surrogate = AdditiveSurrogate("lasso", alpha=0.15).fit(X, Y)
    new = np.eye(6)
    _, std = surrogate.predict(new, return_std=True)
    for t in range(2):
        active = np.flatnonzero(surrogate.coef_[:, t])
        assert 0 < len(active) < 6
        A = np.column_stack([np.ones(len(X)), X[:, active]])
        inverse = np.linalg.inv(A.T @ A)
        residual = Y[:, t] - surrogate.predict(X)[:, t]
        variance = residual @ residual / (len(X) - len(active) - 1)
        expected = np.zeros(6)
        expected[active] = np.sqrt(variance * np.diag(inverse)[1:])
        np.testing.assert_allclose(surrogate.coef_std_[:, t], expected)
        A_new = np.column_stack([np.ones(6), new[:, active]])
        leverage = np.einsum("ij,jk,ik->i", A_new, inverse, A_new)
        np.testing.assert_allclose(std[:, t], np.sqrt(variance * (1 + leverage)))


@pytest.mark.parametrize("shape", [(30, 6), (8, 12)])
def test_tuned_ridge_intervals_are_means_over_penalties_by_marginal_likelihood(shape):
    X, Y, _ = table(*shape, T=2, noise=1.5)
    surrogate = AdditiveSurrogate().fit(X, Y)
    m, K = X.shape
    contrasts = np.linalg.svd(np.ones((1, m)))[2][1:]  # orthonormal, blind to the intercept
    new = np.vstack([np.ones(K), np.zeros(K)])
    evidence, coefs, coef_variances, means, mean_variances, noises = [], [], [], [], [], []
    for alpha in surrogate._alphas:
        covariance = np.eye(m - 1) + contrasts @ X @ X.T @ contrasts.T / alpha
        distance = np.einsum("it,it->t", contrasts @ Y, np.linalg.solve(covariance, contrasts @ Y))
        evidence.append(-np.linalg.slogdet(covariance)[1] / 2 - (m - 1) / 2 * np.log(distance))
        fixed = AdditiveSurrogate(alpha=alpha).fit(X, Y)
        mean, std = fixed.predict(new, return_std=True)
        noises.append(fixed.noise_std_**2)
        coefs.append(fixed.coef_)
        coef_variances.append(fixed.coef_std_**2)
        means.append(mean)
        mean_variances.append(std**2 - fixed.noise_std_**2)
    belief = np.exp(evidence - np.max(evidence, axis=0))
    belief /= belief.sum(axis=0)

    def mixed(values, variances, value):
        terms = np.array(variances) + (np.array(values) - value) ** 2
        return np.einsum("at,ant->nt", belief, terms)

    expected = mixed(coefs, coef_variances, surrogate.coef_)
    np.testing.assert_allclose(surrogate.coef_std_, np.sqrt(expected), rtol=1e-6)
    noise = (belief * np.array(noises)).sum(axis=0)
    np.testing.assert_allclose(surrogate.noise_std_, np.sqrt(noise), rtol=1e-6)
    mean, std = surrogate.predict(new, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(mixed(means, mean_variances, mean) + noise), rtol=1e-6)


@pytest.mark.parametrize(("effect", "m"), [(0.5, 80), (0.2, 80), (0.5, 20)])
def test_tuned_ridge_intervals_hold_roughly_what_they_promise(effect, m):
    rng = np.random.default_rng(0)
    X = np.unique((rng.random((200, 15)) < 0.5).astype(float), axis=0)
    X = X[rng.permutation(len(X))]
    coef = effect * rng.normal(size=(15, 400))
    Y = X @ coef + 2.0 * rng.normal(size=(len(X), 400))
    surrogate = AdditiveSurrogate().fit(X[:m], Y[:m])
    inside = np.abs(surrogate.coef_ - coef) < 1.645 * surrogate.coef_std_
    assert 0.8 < inside.mean() < 0.96  # at the tuned penalty alone it would be 0.68 to 0.81
    mean, std = surrogate.predict(X[m:], return_std=True)
    assert np.mean(np.abs(Y[m:] - mean) < 1.645 * std) == pytest.approx(0.9, abs=0.04)


# ---- shapes and small tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
def test_one_target_gives_one_dimension_and_the_same_numbers(penalty):
    X, Y, _ = table(30, 5)
    many = AdditiveSurrogate(penalty).fit(X, Y)
    one = AdditiveSurrogate(penalty).fit(X, Y[:, 1])
    assert many.coef_.shape == (5, 3)
    assert one.coef_.shape == one.coef_std_.shape == (5, 1)
    assert one.intercept_.shape == one.alpha_.shape == one.noise_std_.shape == (1,)
    mean, std = one.predict(X, return_std=True)
    assert mean.shape == std.shape == (len(X),)
    means, stds = many.predict(X, return_std=True)
    assert means.shape == stds.shape == (len(X), 3)
    np.testing.assert_allclose(mean, means[:, 1], atol=1e-12)
    np.testing.assert_allclose(std, stds[:, 1], atol=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_constant_target_is_predicted_exactly_constant(penalty):
    X, Y, _ = table(30, 5)
    Y[:, 1] = 0.1
    X, Y = np.vstack([X, X[:7]]), np.vstack([Y, Y[:7]])
    surrogate = AdditiveSurrogate(penalty).fit(X, Y, sample_weight=np.linspace(1, 2, len(X)))
    predicted, std = surrogate.predict(X, return_std=True)
    assert (predicted[:, 1] == predicted[0, 1]).all()
    assert predicted[0, 1] == pytest.approx(0.1)
    assert (std[:, 1] == 0).all()
    assert (std[:, 0] > 0).all()


@pytest.mark.parametrize("penalty", PENALTIES)
def test_task_in_every_run_gets_no_effect(penalty):
    X, Y, _ = table(30, 5)
    X = np.column_stack([X, np.full(len(X), 0.3)])
    surrogate = AdditiveSurrogate(penalty).fit(X, Y)
    np.testing.assert_allclose(surrogate.coef_[5], 0, atol=1e-13)
    fixed = AdditiveSurrogate(penalty, alpha=0.2).fit(X, Y)
    np.testing.assert_allclose(fixed.coef_[5], 0, atol=1e-13)
    if penalty == "ridge":  # nothing was learnt about it, so that only the prior is left
        prior = np.sqrt(fixed.noise_std_**2 / 0.2)
        np.testing.assert_allclose(fixed.coef_std_[5], prior)
        assert (fixed.coef_std_[:5] < prior).all()


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_single_subset_gives_its_mean_and_the_scatter_of_its_runs(penalty):
    X, Y = np.full((3, 2), 0.1), np.random.default_rng(0).random((3, 50))
    assert 3 * 0.1 / 3 != 0.1, "a mean that is off in its last digit must not pass for a difference"
    surrogate = AdditiveSurrogate(penalty).fit(X, Y)
    assert (surrogate.coef_ == 0).all()
    np.testing.assert_allclose(surrogate.predict([[0.1, 0.1]])[0], Y.mean(axis=0))
    np.testing.assert_allclose(surrogate.noise_std_, np.std(Y, axis=0, ddof=1))


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("shape", [(2, 1), (2, 5), (5, 20), (1, 3)])
def test_small_tables_give_finite_predictions(penalty, shape):
    rng = np.random.default_rng(0)
    X = np.zeros(shape)
    X[np.arange(shape[0]), np.arange(shape[0]) % shape[1]] = np.arange(1, shape[0] + 1)
    Y = rng.normal(size=(shape[0], 2))
    surrogate = AdditiveSurrogate(penalty).fit(X, Y)
    mean, std = surrogate.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert mean.shape == std.shape == Y.shape
    if shape[0] == 1:
        np.testing.assert_allclose(mean, Y)
        assert np.isnan(std).all()
    elif penalty == "ridge":
        assert np.isfinite(std).all()
    elif penalty == "ols":  # interpolates, and nothing is left to judge the noise by
        np.testing.assert_allclose(mean, Y, atol=1e-10)
        assert np.isnan(std).all()


def test_two_rows_left_out_in_turn():
    surrogate = AdditiveSurrogate(alpha=1.0).fit([[0.0], [1.0]], [0.0, 3.0])
    # Each point alone predicts the other, so that both errors are 3 whatever the penalty; 1 − h = 1/3.
    assert surrogate.noise_std_[0] ** 2 == pytest.approx(9 * (0.5 - 0.5 * 0.5 / 1.5))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_order_of_rows_and_tasks_does_not_matter(penalty):
    X, Y, _ = table(40, 6)
    rng = np.random.default_rng(7)
    rows, tasks = rng.permutation(len(X)), rng.permutation(6)
    plain = AdditiveSurrogate(penalty).fit(X, Y)
    by_row = AdditiveSurrogate(penalty).fit(X[rows], Y[rows])
    np.testing.assert_allclose(by_row.coef_, plain.coef_, atol=1e-10)
    if penalty != "lasso":  # its folds follow the order of the merged subsets
        by_task = AdditiveSurrogate(penalty).fit(X[:, tasks], Y)
        np.testing.assert_allclose(by_task.coef_, plain.coef_[tasks], atol=1e-10)
        np.testing.assert_allclose(by_task.coef_std_, plain.coef_std_[tasks], atol=1e-10)


def test_many_targets_take_seconds():
    X, Y, _ = table(400, 30, T=4000)
    start = time.process_time()
    surrogate = AdditiveSurrogate().fit(X, Y)
    surrogate.predict(X[:100], return_std=True)
    assert time.process_time() - start < 5
    for t in (0, 255, 256, 3999):
        one = AdditiveSurrogate().fit(X, Y[:, t])
        np.testing.assert_allclose(one.coef_[:, 0], surrogate.coef_[:, t], atol=1e-10)
        np.testing.assert_allclose(one.noise_std_[0], surrogate.noise_std_[t])


# ---- given coefficients and exact effects ----------------------------------------------------------------


def test_given_coefficients_predict_and_do_not_know_the_noise():
    coef = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]])
    surrogate = AdditiveSurrogate.from_coefficients(coef, intercept=[10.0, 20.0])
    mean, std = surrogate.predict([[1, 0, 1], [0, 0, 0]], return_std=True)
    np.testing.assert_allclose(mean, [[10.0, 22.5], [10.0, 20.0]])
    assert np.isnan(std).all()
    assert std.shape == (2, 2)
    assert np.isnan(surrogate.coef_std_).all()
    flat = AdditiveSurrogate.from_coefficients(coef[:, 0], std=[0.1, 0.2, 0.3])
    assert flat.predict(np.eye(3)).shape == (3,)
    np.testing.assert_allclose(flat.effects(1, Mixture.over([0.5], [1.0]))[1].ravel(), [0.1, 0.2, 0.3])
    coef[0, 0] = 99.0
    assert surrogate.coef_[0, 0] == 1.0, "the caller's array must not be shared"
    assert surrogate.predict([[1, 0, 1]]).shape == (1, 2)
    with pytest.raises(ValueError, match="features"):
        surrogate.predict([[1, 0]])


def test_effects_are_those_of_enumeration():
    K, T = 4, 2
    surrogate = AdditiveSurrogate().fit(*table(14, K, T=T)[:2])
    subsets = np.array([[code >> k & 1 for k in range(K)] for code in range(2**K)], dtype=float)
    nodes, weights = np.array([0.1, 0.6]), np.array([0.5, 1.5])
    mains, pairs, level = np.zeros((K, T)), np.zeros((K, K, T)), np.zeros(T)
    for q, w in zip(nodes, weights, strict=True):
        chance = np.prod(np.where(subsets == 1, q, 1 - q), axis=1)
        for k in range(K):
            on, off = subsets.copy(), subsets.copy()
            on[:, k], off[:, k] = 1, 0
            mains[k] += w * chance @ (surrogate.predict(on) - surrogate.predict(off))
            for j in range(K):
                if j != k:
                    corners = [(a, b) for a in (0, 1) for b in (0, 1)]
                    for a, b in corners:
                        at = subsets.copy()
                        at[:, k], at[:, j] = a, b
                        pairs[k, j] += w * (2 * (a == b) - 1) * chance @ surrogate.predict(at)
        level = chance @ surrogate.predict(subsets)
    scores, std = surrogate.effects(1, Mixture.over(nodes, weights))
    np.testing.assert_allclose(scores, mains, atol=1e-12)
    np.testing.assert_allclose(std, 2.0 * surrogate.coef_std_)
    np.testing.assert_allclose(surrogate.effects(1, Mixture.over(nodes, -weights))[1], std)
    scores, std = surrogate.effects(2, Mixture.over(nodes, weights))
    np.testing.assert_allclose(scores, pairs, atol=1e-12)
    assert scores.shape == std.shape == (K, K, T)
    assert not std.any()
    np.testing.assert_allclose(surrogate.mean_outcome(Mixture.over([0.6], [1.0])), level)


# ---- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"penalty": "l2"}, r"'penalty' parameter of AdditiveSurrogate must be .* Got 'l2' instead"),
        ({"alpha": 0.0}, r"'alpha' parameter .* above 0\. Got 0\.0 instead; for no penalty .*'ols'"),
        ({"alpha": "auto"}, r"'alpha' parameter .* Got 'auto' instead"),
        ({"alpha": float("inf")}, r"'alpha' parameter .* Got inf instead"),
    ],
)
def test_wrong_parameters_are_named(parameters, message):
    surrogate = clone(AdditiveSurrogate()).set_params(**parameters)
    with pytest.raises(InputError, match=message):
        surrogate.fit([[0], [1]], [0, 1])


def test_wrong_weights_are_named():
    X, y = [[0], [1], [2]], [0, 1, 2]
    with pytest.raises(InputError, match=r"'sample_weight' .* at least 0, and above 0 somewhere\. Got -1 to 1"):
        AdditiveSurrogate().fit(X, y, sample_weight=[1, -1, 1])
    # Later versions of scikit-learn say it in their own words.
    with pytest.raises(ValueError, match=r"above 0 somewhere|at least one non-zero"):
        AdditiveSurrogate().fit(X, y, sample_weight=[0, 0, 0])


def test_missing_outcomes_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        AdditiveSurrogate().fit([[0], [1], [2]], [0, np.nan, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coef": 3.0}, r"'coef' .* shape \(K,\) or \(K, T\).* Got shape \(\)"),
        ({"coef": [1.0, np.nan]}, r"'coef' .* with 1 not finite"),
        ({"coef": [1.0, 2.0], "std": [1.0]}, r"'std' .* shape of 'coef', \(2,\).* Got shape \(1,\)"),
        ({"coef": [1.0, 2.0], "std": [1.0, -1.0]}, r"'std' .* with 1 below 0"),
        (
            {"coef": [1.0, 2.0], "intercept": [1.0, 2.0]},
            r"'intercept' .* one per target \(1\)\. Got shape \(2,\)",
        ),
        ({"coef": [1.0, 2.0], "intercept": np.inf}, r"'intercept' .* with 1 not finite"),
    ],
)
def test_wrong_coefficients_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        AdditiveSurrogate.from_coefficients(**arguments)
