"""The Gaussian process against np.linalg.solve, real refits, repeated rows, enumeration and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss

import oracles
import whence.surrogates.kernels as kernels
import whence.surrogates.posterior as posterior_module
from whence.errors import InputError
from whence.surrogates.kernels import RBF, Constant, Lattice, Sum
from whence.surrogates.mixture import Mixture
from whence.surrogates.posterior import LEVEL, Posterior, interval_factor, inverse_diagonal
from whence.surrogates.sum_kernels import Polynomial

GAUSS = Mixture.over(*((a + b) / 2 for a, b in zip(leggauss(3), (1, 0), strict=True)))  # nodes on [0, 1]
RATES, WEIGHTS = np.array([0.2, 0.5, 0.1, 0.8]), np.array([0.5, 0.2, 0.9, 0.4])
KERNEL = Sum((Constant(), Polynomial(2, WEIGHTS, 0.3), RBF(RATES)), (0.4, 0.3, 1.2))
LATTICE = Lattice(np.array([-1.0, -0.5, -2.0, 0.0]), np.array([0.7, 1.5, 0.4, 1.0]))


def kernel_oracle(x, y):
    return 0.4 + 0.3 * oracles.polynomial(2, WEIGHTS, 0.3)(x, y) + 1.2 * oracles.rbf(RATES)(x, y)


def setting(m=9, T=2, *, seed=0, counts=True):
    rng = np.random.default_rng(seed)
    subsets = oracles.all_subsets(4)
    rows = rng.permutation(len(subsets))[:m]
    X = LATTICE.absent + subsets[rows] * LATTICE.step
    n = rng.integers(1, 5, m).astype(float) if counts else np.ones(m)
    return X, rng.normal(3.0, 1.0, (m, T)), n


POINTS = LATTICE.absent + oracles.all_subsets(4) * LATTICE.step
ALPHA = 0.3


def expected_level(Y, counts, center):
    return (counts @ Y) / counts.sum() if center else np.zeros(Y.shape[1])


@pytest.mark.parametrize("center", [True, False])
def test_dual_mean_variance_and_covariance_are_those_of_a_linear_solve(center):
    X, Y, counts = setting()
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts, center=center)
    level = expected_level(Y, counts, center)
    C = oracles.gram(kernel_oracle, X, X) + np.diag(ALPHA / counts)
    np.testing.assert_allclose(found.dual, np.linalg.solve(C, Y - level), atol=1e-10)
    mean, covariance = oracles.gp_predict(kernel_oracle, ALPHA / counts, X, Y, POINTS, level)
    for predicted in (found.predict(POINTS)[0], found.predict_mean(POINTS)):
        np.testing.assert_allclose(predicted, mean, atol=1e-10)
    np.testing.assert_allclose(found.predict(POINTS)[1], np.diag(covariance), atol=1e-10)
    np.testing.assert_allclose(found.covariance(POINTS), covariance, atol=1e-10)
    np.testing.assert_allclose(inverse_diagonal(found.factor), np.diag(np.linalg.inv(C)), atol=1e-10)


def test_scale_is_the_one_of_greatest_likelihood():
    X, Y, counts = setting()
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts, center=False)
    C = oracles.gram(kernel_oracle, X, X) + np.diag(ALPHA / counts)
    expected = [oracles.profile_log_evidence(C, y)[1] for y in Y.T]
    np.testing.assert_allclose(found.scale, expected, rtol=1e-10)


def test_nothing_to_predict_gives_nothing():
    found = Posterior.condition(KERNEL, ALPHA, *setting())
    assert found.predict(POINTS[:0])[0].shape == (0, 2)
    assert found.predict_mean(POINTS[:0]).shape == (0, 2)


def test_counts_are_repeated_rows():
    """A row that stands for the mean of n runs is those n runs, whatever they scatter."""
    X, Y, counts = setting()
    rng = np.random.default_rng(1)
    repeated = np.repeat(np.arange(len(X)), counts.astype(int))
    scatter = rng.normal(size=(len(repeated), 2))
    for i in range(len(X)):
        scatter[repeated == i] -= scatter[repeated == i].mean(0)
    merged = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    single = Posterior.condition(KERNEL, ALPHA, X[repeated], Y[repeated] + scatter, np.ones(len(repeated)))
    np.testing.assert_allclose(merged.level, single.level, atol=1e-12)
    for one, other in zip(merged.predict(POINTS), single.predict(POINTS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    scores = [p.effects(1, LATTICE, GAUSS)[0] for p in (merged, single)]
    np.testing.assert_allclose(*scores, atol=1e-10)


# ---- leave-one-out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("center", [True, False])
def test_leave_one_out_is_a_refit_without_the_row_at_the_same_level(center):
    X, Y, counts = setting()
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts, center=center)
    level = expected_level(Y, counts, center)
    G = oracles.gram(kernel_oracle, X, X)
    mean, variance = oracles.refits_without_each(G, ALPHA / counts, Y, level)
    np.testing.assert_allclose(found.leave_one_out()[0], mean, atol=1e-9)
    np.testing.assert_allclose(found.leave_one_out()[1], variance, atol=1e-9)


def test_leave_one_out_is_close_to_a_refit_that_also_forgets_the_level():
    X, Y, counts = setting(14)
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    G = oracles.gram(kernel_oracle, X, X)
    mean, _ = oracles.refits_without_each(G, ALPHA / counts, Y)
    # The level moves by this much when a row goes, and the prediction moves less, since the runs pull it back.
    shift = counts[:, None] * np.abs(Y - found.level) / (counts.sum() - counts)[:, None]
    assert (np.abs(found.leave_one_out()[0] - mean) <= shift).all()
    assert np.abs(found.leave_one_out()[0] - mean).max() < 0.2 * Y.std()


# ---- effects ---------------------------------------------------------------------------------------------

MIXTURES = {
    "loo": (np.ones(1), np.ones(1)),
    "half": (np.full(1, 0.5), np.full(1, 0.6)),
    "gauss": (GAUSS.present, GAUSS.inside),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_effects_and_their_std_are_those_of_the_posterior_over_all_subsets(mixture):
    nodes, weights = MIXTURES[mixture]
    X, Y, counts = setting()
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    mean, covariance = oracles.gp_predict(kernel_oracle, ALPHA / counts, X, Y, POINTS, found.level)
    scores, std = found.effects(1, LATTICE, Mixture.over(nodes, weights))
    pair_scores, pair_std = found.effects(2, LATTICE, Mixture.over(nodes, weights))
    close = {"atol": 1e-8}
    for k in range(4):
        a = oracles.effect_weights(4, [k], nodes, weights)
        np.testing.assert_allclose(scores[k], a @ mean, **close)
        np.testing.assert_allclose(std[k], np.sqrt(a @ covariance @ a) * found.scale, **close)
        for j in range(4):
            if j == k:
                assert (pair_scores[k, k] == 0).all()
                assert (pair_std[k, k] == 0).all()
                continue
            a = oracles.effect_weights(4, [k, j], nodes, weights)
            np.testing.assert_allclose(pair_scores[k, j], a @ mean, **close)
            np.testing.assert_allclose(pair_std[k, j], np.sqrt(a @ covariance @ a) * found.scale, **close)


@pytest.mark.parametrize("q", [0.0, 0.4, 1.0])
def test_mean_outcome_is_the_mean_over_all_subsets(q):
    X, Y, counts = setting()
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    mean, _ = oracles.gp_predict(kernel_oracle, ALPHA / counts, X, Y, POINTS, found.level)
    np.testing.assert_allclose(
        found.mean_outcome(LATTICE, Mixture.over([q], [1.0])), oracles.bernoulli_weights(4, q) @ mean, atol=1e-10
    )


def test_blocks_do_not_change_any_number(monkeypatch):
    X, Y, counts = setting()
    at_once = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    expected = [*at_once.predict(POINTS), at_once.predict_mean(POINTS), *at_once.effects(2, LATTICE, GAUSS)]
    monkeypatch.setattr(posterior_module, "BLOCK_BYTES", 1)
    monkeypatch.setattr(kernels, "BLOCK_BYTES", 1)
    found = [*at_once.predict(POINTS), at_once.predict_mean(POINTS), *at_once.effects(2, LATTICE, GAUSS)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


# ---- other outcomes, factoring ---------------------------------------------------------------------------


def test_given_is_conditioning_on_other_outcomes():
    X, Y, counts = setting()
    other = np.random.default_rng(5).normal(size=(len(X), 3))
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts).given(other)
    fresh = Posterior.condition(KERNEL, ALPHA, X, other, counts)
    for name in ("Y", "dual", "level", "scale", "factor"):
        np.testing.assert_allclose(getattr(found, name), getattr(fresh, name), atol=1e-12)


def test_rows_that_are_nearly_the_same_are_factored_with_a_little_jitter():
    X, Y, _ = setting(6)
    X, Y = np.vstack([X, X + 1e-12]), np.vstack([Y, Y])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(oracles.gram(kernel_oracle, X, X) - 1e-13 * np.eye(12))
    found = Posterior.condition(KERNEL, 1e-17, X, Y, np.ones(12))
    np.testing.assert_allclose(found.predict_mean(X), Y, atol=1e-3)


def test_a_large_matrix_factored_in_place_gives_the_same(monkeypatch):
    X, Y, counts = setting()
    expected = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    monkeypatch.setattr(posterior_module, "BLOCK_BYTES", 8)
    found = Posterior.condition(KERNEL, ALPHA, X, Y, counts)
    np.testing.assert_allclose(found.factor, expected.factor, atol=1e-7)
    np.testing.assert_allclose(found.predict_mean(POINTS), expected.predict_mean(POINTS), atol=1e-6)


def test_a_kernel_that_is_no_kernel_is_refused():
    class Negative(Constant):
        def evaluate(self, X, Y):
            return -10 * np.ones((len(X), len(Y)))

    with pytest.raises(InputError, match=r"not positive definite. Give the surrogate a larger noise \(alpha\)"):
        Posterior.condition(Sum((Negative(),), (1.0,)), ALPHA, *setting())


# ---- calibration -----------------------------------------------------------------------------------------


def simulated(seed, m=80, T=6):
    """Outcomes drawn from the process itself (scale 2, level 1), at m runs and at 40 new subsets of 8 tasks."""
    rng = np.random.default_rng(seed)
    X = np.unique((rng.random((m + 60, 8)) < 0.5).astype(float), axis=0)
    X = X[rng.permutation(len(X))]
    kernel = Sum((RBF(np.full(8, 0.15)),), (1.0,))
    C = kernel.evaluate(X, X) + ALPHA * np.eye(len(X))
    Y = 1 + 2 * np.linalg.cholesky(C) @ rng.normal(size=(len(X), T))
    return kernel, X[:m], Y[:m], X[m:], Y[m:]


def test_calibrated_intervals_hold_nine_of_ten_new_runs():
    inside = []
    for seed in range(8):
        kernel, X, Y, new, truth = simulated(seed)
        found = Posterior.condition(kernel, ALPHA, X, Y, np.ones(len(X))).calibrated()
        mean, variance = found.predict(new)
        std = np.sqrt(variance + ALPHA)[:, None] * found.scale
        inside.append(np.abs(truth - mean) <= oracles.normal_quantile(0.9) * std)
    assert 0.86 < np.concatenate(inside).mean() < 0.94


@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_calibration_forgets_a_wrong_scale(wrong):
    kernel, X, Y, _, _ = simulated(0, T=1)
    right = Posterior.condition(kernel, ALPHA, X, Y, np.ones(len(X)))
    found = replace(right, scale=right.scale * wrong).calibrated()
    np.testing.assert_allclose(found.scale, right.calibrated().scale, rtol=1e-10)
    mean, variance = found.leave_one_out()
    inside = np.abs(Y - mean) <= oracles.normal_quantile(0.9) * np.sqrt(variance)[:, None] * found.scale
    assert abs(inside.mean() - 0.9) <= 1 / len(Y)


def test_calibration_changes_the_scale_alone():
    kernel, X, Y, new, _ = simulated(0)
    before = Posterior.condition(kernel, ALPHA, X, Y, np.ones(len(X)))
    after = before.calibrated()
    assert not np.allclose(before.scale, after.scale)
    np.testing.assert_array_equal(before.predict_mean(new), after.predict_mean(new))


def test_calibration_on_a_sample_of_many_runs_is_close_and_seeded(monkeypatch):
    kernel, X, Y, _, _ = simulated(0, m=150)
    all_runs = Posterior.condition(kernel, ALPHA, X, Y, np.ones(len(X)))
    expected = all_runs.calibrated().scale
    monkeypatch.setattr(posterior_module, "CALIBRATION_RUNS", 75)
    found = [all_runs.calibrated(seed).scale for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    np.testing.assert_allclose(found[0], expected, rtol=0.35)


def test_interval_factor_of_one_target_is_its_own_quantile():
    rng = np.random.default_rng(0)
    residual, std = rng.normal(size=(200, 1)), rng.uniform(0.5, 2, (200, 1))
    expected = np.quantile(np.abs(residual / std), LEVEL) / oracles.normal_quantile(LEVEL)
    np.testing.assert_allclose(interval_factor(residual, std), [expected])


@pytest.mark.parametrize("m", [10, 100, 10_000])
def test_interval_factor_lies_between_own_and_pooled_quantiles_and_closer_to_its_own_with_more_runs(m):
    rng = np.random.default_rng(0)
    residual, std = rng.normal(size=(m, 3)) * [1, 2, 5], np.ones((m, 3))
    found = interval_factor(residual, std)
    own = np.quantile(np.abs(residual), LEVEL, axis=0) / oracles.normal_quantile(LEVEL)
    pooled = np.quantile(np.abs(residual), LEVEL) / oracles.normal_quantile(LEVEL)
    share = np.log(found / pooled) / np.log(own / pooled)  # 1: its own, 0: the pooled one
    np.testing.assert_allclose(share, m / (m + 50))


def test_interval_factor_of_twice_the_residuals_is_twice_as_large():
    rng = np.random.default_rng(0)
    residual, std = rng.normal(size=(60, 3)), rng.uniform(1, 2, (60, 3))
    np.testing.assert_allclose(interval_factor(2 * residual, std), 2 * interval_factor(residual, std))


def test_interval_factor_without_any_std_stretches_nothing():
    np.testing.assert_array_equal(interval_factor(np.ones((4, 2)), np.full((4, 2), np.nan)), [1.0, 1.0])
