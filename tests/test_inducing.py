"""Processes seen through inducing points, against dense matrices and against the exact posterior."""

from __future__ import annotations

import numpy as np
import pytest

import oracles
import whence
import whence.surrogates.inducing as inducing
from conformance import outcomes_of, subsets
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.inducing import InducingPosterior, n_points
from whence.surrogates.kernels import RBF
from whence.surrogates.posterior import Posterior, interval_factor

ALPHA, KERNEL = 0.2, RBF(np.full(6, 0.4))
S = subsets(40, 6)
Y = outcomes_of(S, 2)
COUNTS = np.arange(1.0, len(S) + 1) % 3 + 1
FRESH = oracles.all_subsets(6)[:9]


@pytest.fixture
def through(monkeypatch):
    """The posterior through so many points."""

    def condition(points, Y=Y):
        monkeypatch.setattr(inducing, "EXACT_RUNS", 0)
        monkeypatch.setattr(inducing, "BLOCK", 7)
        monkeypatch.setattr(inducing, "n_points", lambda n: points)
        monkeypatch.setattr(inducing, "JITTER", 1e-13)
        return InducingPosterior.condition(KERNEL, ALPHA, S, Y, COUNTS)

    return condition


def dense(points, rows=slice(None)):
    """Weights of the points as a Bayesian linear model, with all matrices written out."""
    Kzz, Kzx = KERNEL.evaluate(points, points), KERNEL.evaluate(points, S[rows])
    A = Kzz + (Kzx * COUNTS[rows] / ALPHA) @ Kzx.T
    level = np.average(Y, axis=0, weights=COUNTS)
    weights = np.linalg.solve(A, (Kzx * COUNTS[rows] / ALPHA) @ (Y[rows] - level))
    return weights, level, np.linalg.inv(Kzz) - np.linalg.inv(A), np.linalg.inv(A)


def test_through_all_runs_it_is_the_exact_posterior(through):
    ours, exact = through(len(S)), Posterior.condition(KERNEL, ALPHA, S, Y, COUNTS)
    for mine, theirs in zip(ours.predict(FRESH), exact.predict(FRESH), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    np.testing.assert_allclose(ours.covariance(FRESH), exact.covariance(FRESH), atol=1e-6)
    np.testing.assert_allclose(ours.scale, exact.scale, rtol=1e-6)
    np.testing.assert_allclose(ours.calibrated().scale, exact.calibrated().scale, rtol=1e-5)
    np.testing.assert_allclose(ours.given(Y**2).predict_mean(FRESH), exact.given(Y**2).predict_mean(FRESH), atol=1e-5)


def test_through_few_points_it_is_the_linear_model_of_them(through):
    ours = through(15)
    weights, level, known, _ = dense(ours.X)
    against = KERNEL.evaluate(ours.X, FRESH)
    mean, variance = ours.predict(FRESH)
    np.testing.assert_allclose(mean, against.T @ weights + level, atol=1e-7)
    covariance = KERNEL.evaluate(FRESH, FRESH) - against.T @ known @ against
    np.testing.assert_allclose(variance, np.diag(covariance), atol=1e-7)
    np.testing.assert_allclose(ours.covariance(FRESH), covariance, atol=1e-7)


def test_intervals_are_calibrated_on_runs_that_were_left_out(through):
    """Each left out by itself, the linear model made anew without it."""
    ours = through(15)
    residual, std = np.empty(Y.shape), np.empty(len(S))
    for i in range(len(S)):
        others = np.arange(len(S)) != i
        weights, level, known, _ = dense(ours.X, others)
        against = KERNEL.evaluate(ours.X, S[[i]])[:, 0]
        residual[i] = Y[i] - level - against @ weights
        std[i] = np.sqrt(1 - against @ known @ against + ALPHA / COUNTS[i])
    expected = ours.scale * interval_factor(residual, std[:, None] * ours.scale)
    np.testing.assert_allclose(ours.calibrated().scale, expected, rtol=1e-6)


@pytest.mark.parametrize("scale", ["raw", "rank"])
def test_a_surrogate_of_many_runs_answers_as_the_exact_one(scale, monkeypatch):
    """Within a fraction of what a run teaches: predictions, effects, intervals."""
    rows, fresh = subsets(400, 10), subsets(100, 10, seed=1)
    y = outcomes_of(rows, noise=0.3)[:, 0]
    exact = CombinedSurrogate(scale).fit(rows, y)
    monkeypatch.setattr(inducing, "EXACT_RUNS", 100)
    monkeypatch.setattr(inducing, "n_points", lambda n: 150)
    ours = CombinedSurrogate(scale).fit(rows, y)
    (mean, std), (truth, exact_std) = (model.predict(fresh, return_std=True) for model in (ours, exact))
    assert np.abs(mean - truth).mean() < 0.15 * exact_std.mean()
    np.testing.assert_allclose(std.mean(), exact_std.mean(), rtol=0.15)
    effects, exact_effects = whence.attribute(ours), whence.attribute(exact)
    assert np.abs(effects.scores - exact_effects.scores).max() < 0.5 * exact_effects.std.max()
    assert ours.export(rows, np.arange(1)) is None
    assert whence.suggest(whence.fit(whence.Outcomes(rows, y), surrogate=scale_name(scale)), 2).subsets.shape == (2, 10)


def scale_name(scale):
    return {"raw": "kernel", "rank": "kernel on ranks"}[scale]


def test_as_many_points_as_bound_the_work():
    assert [n_points(n) for n in (20_000, 100_000, 200_000, 10**7)] == [2000, 2000, 1414, 1000]
