"""Targets that help each other: components of outcomes, and how much of them is used."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, rankdata
from sklearn.decomposition import PCA

import oracles
import whence
import whence.surrogates.fit as fitting
from conformance import subsets
from whence.surrogates.components import ComponentsSurrogate
from whence.surrogates.crossvalidation import share_by_error

K = 6


def targets(S, n, seed, *, alike):
    """Outcomes that are multiples of one function of the subset, or each a function of its own; noise in both."""
    rng = np.random.default_rng(seed)
    of_tasks, of_pairs = rng.normal(size=(K, 1 if alike else n)), rng.normal(size=(K, 1 if alike else n))
    common = S @ of_tasks + S * np.roll(S, 1, 1) @ of_pairs
    return common * rng.choice([-1.0, 0.7, 1.5], n) + 1.2 * rng.normal(size=(len(S), n))


def test_predictions_are_those_of_principal_components_put_together_again():
    S = subsets(25, K)
    Y = np.exp(targets(S, 7, 0, alike=False))
    Y[:, 3] = 2.0
    found = ComponentsSurrogate().fit(S, Y)
    scores = norm.ppf((rankdata(Y, axis=0) - 0.5) / len(Y))
    moving = np.delete(np.arange(7), 3)
    spread = scores[:, moving].std(0)
    parts = PCA(0.8, svd_solver="full").fit(scores[:, moving] / spread)
    process = whence.CombinedSurrogate().fit(S, parts.transform(scores[:, moving] / spread))
    rows = subsets(10, K, seed=5)
    mean, std = process.predict(rows, return_std=True)
    expected = parts.inverse_transform(mean) * spread
    left_over = scores[:, moving] - parts.inverse_transform(parts.transform(scores[:, moving] / spread)) * spread
    variance = (std**2 @ parts.components_**2) * spread**2 + (left_over**2).mean(0)
    predicted, deviation = found.predict(rows, return_std=True)
    outcome = found.scale_.outcome

    def full(values):
        return np.insert(values, 3, 0.0, axis=1)

    np.testing.assert_allclose(predicted, outcome(full(expected)), rtol=1e-6)
    above, below = (outcome(full(expected + sign * np.sqrt(variance))) for sign in (1, -1))
    np.testing.assert_allclose(deviation, (above - below) / 2, rtol=1e-5, atol=1e-12)
    assert (predicted[:, 3] == 2.0).all()


def test_the_share_is_half_of_least_squares_less_an_error_over_subsets():
    rng = np.random.default_rng(0)
    step, which = rng.normal(size=(40, 5)), np.repeat(np.arange(20), 2)
    residual = 0.7 * step + rng.normal(size=step.shape)
    share = float(np.linalg.lstsq(step.reshape(-1, 1), residual.ravel(), rcond=None)[0][0])
    moved = []  # by leaving each subset out
    for subset in range(20):
        kept = which != subset
        moved.append(np.vdot(step[kept], residual[kept]) / np.vdot(step[kept], step[kept]))
    error = np.sqrt(19 / 20 * np.sum((np.array(moved) - np.mean(moved)) ** 2))
    assert share_by_error(residual, step, which) == pytest.approx((share - error) / 2, abs=0.02)
    assert share_by_error(rng.normal(size=step.shape) - step, step, which) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_targets_help_each_other_and_do_no_harm(alike, monkeypatch):
    gains, shares = [], []
    for seed in range(3):
        S, held_out = subsets(16, K, seed=seed), oracles.all_subsets(K)
        both = targets(np.vstack([S, held_out]), 12, seed, alike=alike)
        runs, truth = whence.Outcomes(S, both[:16]), whence.Outcomes(held_out, both[16:])
        model = whence.fit(runs)
        with monkeypatch.context() as patch:
            patch.setattr(fitting, "FEWEST_TO_SHARE", 1000)
            alone = whence.fit(runs)
        gains.append(whence.lds(model, truth).mean - whence.lds(alone, truth).mean)
        shares.append(model.parts[0].weights.get("shared components", np.zeros(1))[0])
    if alike:
        assert np.mean(gains) > 0.01
        assert np.mean(shares) > 0.1
    else:
        assert np.mean(gains) > -0.005


def test_the_model_with_components_is_said_saved_and_exact(tmp_path):
    S = subsets(16, K)
    model = whence.fit(whence.Outcomes(S, targets(S, 12, 0, alike=True)))
    assert "shared components" in str(model).splitlines()[1]
    model.save(tmp_path / "m.whence")
    rows = oracles.all_subsets(K)
    np.testing.assert_array_equal(whence.load(tmp_path / "m.whence").predict(rows), model.predict(rows))
    values = oracles.table_of(model.predict, K)
    np.testing.assert_allclose(whence.attribute(model).scores, oracles.shapley(values), atol=1e-8)
