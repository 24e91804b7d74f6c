"""The paper's statements about linear and kernel surrogates, checked by full enumeration.

Proposition "second_order_datamodels" and its corollaries are exact for quadratic set functions, where the third-order
term vanishes; the proposition on expressivity holds for every set function.
"""

from __future__ import annotations

import numpy as np
import pytest

import oracles
import whence
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.kernel import KernelSurrogate

KEEP = [0.1, 0.5, 0.8]


def predicted_coefficients(g, H, p):
    """∇F(1) + (p − 1) H·1 + (1 − 2p)/2 diag(H): what the proposition says of the least-squares coefficients."""
    return g + (p - 1) * H.sum(1) + (1 - 2 * p) / 2 * np.diag(H)


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize("p", KEEP)
def test_population_coefficients_are_the_gradient_plus_two_terms_of_the_hessian(K, p):
    c, g, H = oracles.random_quadratic(K, np.random.default_rng(K))
    F = oracles.quadratic(oracles.all_subsets(K), c, g, H)
    _, beta, _ = oracles.population_least_squares(F, p)
    np.testing.assert_allclose(beta, predicted_coefficients(g, H, p), atol=1e-9)


@pytest.mark.parametrize("p", KEEP)
def test_population_intercept_is_the_mean_less_the_coefficients_at_the_mean(p):
    c, g, H = oracles.random_quadratic(6, np.random.default_rng(0))
    F = oracles.quadratic(oracles.all_subsets(6), c, g, H)
    alpha, beta, _ = oracles.population_least_squares(F, p)
    np.testing.assert_allclose(alpha, oracles.bernoulli_weights(6, p) @ F - p * beta.sum(), atol=1e-9)


@pytest.mark.parametrize("p", KEEP)
def test_residual_error_is_the_variance_of_the_interactions_that_no_task_explains(p):
    """Var[Q] − Σ_k Cov[s_k, Q]² / Var[s_k] with Q = ½ (s − μ)ᵀ H (s − μ), and its closed form."""
    K = 6
    c, g, H = oracles.random_quadratic(K, np.random.default_rng(0))
    S, chance = oracles.all_subsets(K), oracles.bernoulli_weights(K, p)
    _, _, residual = oracles.population_least_squares(oracles.quadratic(S, c, g, H), p)
    Q = np.array([0.5 * (s - p) @ H @ (s - p) for s in S])
    spread = p * (1 - p)
    variance = chance @ Q**2 - (chance @ Q) ** 2
    covariances = np.array([chance @ (S[:, k] * Q) - p * (chance @ Q) for k in range(K)])
    np.testing.assert_allclose(residual, variance - (covariances**2 / spread).sum(), atol=1e-9)
    np.testing.assert_allclose(covariances, 0.5 * np.diag(H) * spread * (1 - 2 * p), atol=1e-9)
    off_diagonal = (np.triu(H, 1) ** 2).sum()
    written_out = (np.diag(H) ** 2).sum() * spread * (1 - 2 * p) ** 2 / 4 + off_diagonal * spread**2
    np.testing.assert_allclose(variance, written_out, atol=1e-9)


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_least_squares_on_all_subsets_in_their_proportions_is_the_population(p):
    """Weights stand for how often a subset is drawn: AdditiveSurrogate("ols") then is the proposition's β*."""
    K = 6
    c, g, H = oracles.random_quadratic(K, np.random.default_rng(1))
    S = oracles.all_subsets(K)
    F = oracles.quadratic(S, c, g, H)
    found = AdditiveSurrogate("ols").fit(S, F, sample_weight=oracles.bernoulli_weights(K, p))
    np.testing.assert_allclose(found.coef_[:, 0], predicted_coefficients(g, H, p), atol=1e-8)
    np.testing.assert_allclose(found.intercept_[0], oracles.population_least_squares(F, p)[0], atol=1e-8)


def test_sampled_coefficients_converge_like_the_root_of_tasks_over_runs():
    """‖β̂ − β*‖ ∝ √(K/m): halved by four times the runs, and larger with more tasks."""
    p = 0.5

    def error(K, m, seed):
        rng = np.random.default_rng(seed)
        # Interactions of a fixed total size, so that the residual is the same whatever K is.
        H = rng.normal(size=(K, K))
        H = np.triu(H, 1) + np.triu(H, 1).T
        H /= np.linalg.norm(H)
        g = rng.normal(size=K)
        S = (rng.random((m, K)) < p).astype(float)
        found = AdditiveSurrogate("ols").fit(S, oracles.quadratic(S, 0.0, g, H))
        return np.linalg.norm(found.coef_[:, 0] - predicted_coefficients(g, H, p))

    errors = {(K, m): np.mean([error(K, m, seed) for seed in range(15)]) for K, m in [(10, 200), (10, 800), (40, 800)]}
    np.testing.assert_allclose(errors[10, 200] / errors[10, 800], 2.0, rtol=0.25)
    np.testing.assert_allclose(errors[40, 800] / errors[10, 800], 2.0, rtol=0.25)


def test_without_interactions_the_linear_surrogate_is_exact_and_equals_leave_one_out():
    rng = np.random.default_rng(0)
    K, g = 7, rng.normal(size=7)
    S = whence.Bernoulli(0.6).draw(K, 30)
    F = 2.0 + (S - 1) @ g
    found = AdditiveSurrogate("ols").fit(S, F)
    np.testing.assert_allclose(found.coef_[:, 0], g, atol=1e-10)
    everything = oracles.all_subsets(K)
    np.testing.assert_allclose(found.predict(everything), 2.0 + (everything - 1) @ g, atol=1e-10)
    np.testing.assert_allclose(whence.attribute(found, "loo").scores[:, 0], g, atol=1e-10)


def test_small_interactions_leave_a_small_gap_between_coefficients_and_influence():
    """Corollary: ‖β* − ∇F(1)‖ ≤ c₂ (√K + ½) with c₂ the spectral norm of H."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        K = 6
        c, g, H = oracles.random_quadratic(K, rng)
        H *= rng.uniform(0, 0.2)
        for p in KEEP:
            F = oracles.quadratic(oracles.all_subsets(K), c, g, H)
            gap = np.linalg.norm(oracles.population_least_squares(F, p)[1] - g)
            assert gap <= np.linalg.norm(H, 2) * (np.sqrt(K) + 0.5)


@pytest.mark.parametrize("K", [3, 6])
def test_kernel_surrogates_have_no_residual_where_linear_ones_do(K):
    """Any F on {0,1}^K is interpolated; leave-one-out scores and the Hessian at the full set then are the true ones."""
    S = oracles.all_subsets(K)
    c, g, H = oracles.random_quadratic(K, np.random.default_rng(K))
    F = oracles.quadratic(S, c, g, H)
    kernel = KernelSurrogate(alpha=1e-12, gamma=1.0).fit(S, F)
    assert np.abs(kernel.predict(S) - F).max() < 1e-6
    assert np.abs(AdditiveSurrogate("ols").fit(S, F).predict(S) - F).max() > 0.1
    truth = np.array([g[k] - 0.5 * H[k, k] for k in range(K)])  # F(1) − F(1 − e_k)
    np.testing.assert_allclose(whence.attribute(kernel, "loo").scores[:, 0], truth, atol=1e-5)
    hessian = whence.interactions(kernel, "loo").scores[:, :, 0]
    np.testing.assert_allclose(hessian, H - np.diag(np.diag(H)), atol=1e-5)


def test_centring_is_what_the_papers_settings_lack_on_a_high_level():
    """Uncentred ridge shrinks to 0: on outcomes around 100 it is far off where the centred one is not."""
    S = whence.Bernoulli(0.5).draw(10, 60)
    F = 100.0 + S @ np.linspace(-1, 1, 10)
    new = whence.Bernoulli(0.5).draw(10, 60, seed=1)
    truth = 100.0 + new @ np.linspace(-1, 1, 10)
    errors = {
        settings: np.abs(KernelSurrogate(settings=settings).fit(S, F).predict(new) - truth).mean()
        for settings in ("paper", "tuned")
    }
    assert errors["paper"] > 5 * errors["tuned"]
