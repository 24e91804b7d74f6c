"""The process behind decisions: its draws are from the posterior, and its moments are those of a mixture."""

import numpy as np
import pytest

import whence
from whence.searching import drawn
from whence.searching.belief import LITTLE_NOISE
from whence.searching.drawn import DrawnProcess
from whence.surrogates.tuning import CombinedKernel


def runs(n=14, n_tasks=5, seed=0):
    rng = np.random.default_rng(seed)
    S = rng.integers(0, 2, (n, n_tasks)).astype(float)
    return S, (S @ rng.normal(size=n_tasks) + 0.3 * rng.normal(size=n))[:, None]


def test_the_evidence_is_that_of_the_tuning():
    S, y = runs()
    family = CombinedKernel(5, np.full(5, 0.5), 2.5, 1.1)
    counts = np.arange(1.0, 15.0)
    rng = np.random.default_rng(1)
    for _ in range(5):
        theta = rng.normal(size=len(family.prior()[0]))
        expected, _ = family.negative_log_evidence(theta, S, y, counts)
        assert drawn._log_evidence(family, theta, S, y, counts) == pytest.approx(-expected)


class Two(CombinedKernel):
    """The family in which only the linear variance and the noise are unknown."""

    def prior(self):
        centre, std = super().prior()
        std[[at for at in range(len(std)) if at not in (0, self.n_parts)]] = 1e-9
        return centre, std


def test_draws_have_the_moments_of_the_posterior(monkeypatch):
    """Beside the posterior on a grid of the two hyperparameters that are unknown."""
    S, y = runs(8, 2, seed=3)
    X, Z, counts = 2 * S - 1, (y - y.mean()) / y.std(), np.ones(len(S))
    family = Two(2)
    centre, std = family.prior()
    places = np.linspace(-4, 4, 41)
    grid = np.array([(a, b) for a in places for b in places])
    thetas = np.repeat(centre[None], len(grid), axis=0)
    thetas[:, [0, family.n_parts]] += grid * std[[0, family.n_parts]]
    logs = np.array([drawn._log_evidence(family, theta, X, Z, counts) for theta in thetas]) - (grid**2).sum(1) / 2
    weights = np.exp(logs - logs.max())
    monkeypatch.setattr(drawn, "DRAWS", 500)
    found = np.array(list(drawn._draws(family, X, Z, counts, centre, np.random.default_rng(1))))
    found = (found - centre)[:, [0, family.n_parts]] / std[[0, family.n_parts]]
    mean = np.average(grid, axis=0, weights=weights)
    assert abs(mean).max() > 0.4  # the runs say something
    np.testing.assert_allclose(found.mean(0), mean, atol=0.15)
    np.testing.assert_allclose(
        found.std(0), np.sqrt(np.average((grid - mean) ** 2, axis=0, weights=weights)), atol=0.15
    )


def test_predictions_are_those_of_a_mixture_of_processes():
    S, y = runs()
    process = DrawnProcess.learn(S, y, LITTLE_NOISE)
    new = whence.Exhaustive().draw(5)[3::4]
    mean, std = process.predict(new, return_std=True)
    covariance, noise = process.covariance(new)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance) + noise), std)
    rng, outcomes = np.random.default_rng(0), []
    for posterior in process.posteriors:
        X = process.coordinates(new)
        scale = float(posterior.scale[0])
        own = posterior.covariance(X) * scale**2 + 1e-10 * np.eye(len(X))
        outcomes.append(rng.multivariate_normal(posterior.predict_mean(X)[:, 0], own, 40_000))
    drawn_ones = np.concatenate(outcomes)
    np.testing.assert_allclose(drawn_ones.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(drawn_ones.T), covariance, atol=0.02)


def test_the_same_runs_give_the_same_process():
    S, y = runs()
    new = whence.Exhaustive().draw(5)[1::6]
    found = [DrawnProcess.learn(S, y, LITTLE_NOISE).predict(new) for _ in range(2)]
    np.testing.assert_array_equal(*found)
