"""Leave-one-out and evidence against refits, multivariate_normal and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import oracles
import whence.surrogates.tuning as tuning
from whence.surrogates import priors
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.kernels import RBF
from whence.surrogates.tuning import CombinedKernel, grid_search, leave_one_out_error


def runs(m=14, K=4, T=3, seed=0):
    rng = np.random.default_rng(seed)
    subsets = oracles.all_subsets(K)
    S = subsets[rng.permutation(len(subsets))[:m]]
    Y = S @ rng.normal(size=(K, T)) + S[:, :1] * S[:, 1:2] + 0.1 * rng.normal(size=(len(S), T))
    return S, (Y - Y.mean(0)) / Y.std(0), rng.integers(1, 4, len(S)).astype(float)


# ---- leave-one-out over a grid ---------------------------------------------------------------------------


def error_by_refits(G, Y, noise):
    """Squared errors of real refits over the variance, weighted by the number of runs, averaged over targets."""
    mean, _ = oracles.refits_without_each(G, noise, Y, np.zeros(Y.shape[1]))
    shares = (1 / noise) / (1 / noise).sum()
    return np.mean(shares @ (Y - mean) ** 2 / (shares @ (Y - shares @ Y) ** 2))


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("replicated", [False, True])
def test_leave_one_out_error_is_that_of_refits(alpha, replicated):
    S, Y, counts = runs()
    noise = alpha / (counts if replicated else np.ones(len(S)))
    G = oracles.gram(oracles.rbf([0.3] * 4), S, S)
    found = leave_one_out_error(G, Y, noise)
    np.testing.assert_allclose(found, error_by_refits(G, Y, noise), rtol=1e-8)


def test_leave_one_out_error_does_not_change_its_arguments():
    S, Y, counts = runs()
    gram = oracles.gram(oracles.rbf([0.3] * 4), S, S)
    before = gram.copy(), Y.copy(), counts.copy()
    leave_one_out_error(gram, Y, counts)
    for one, other in zip((gram, Y, counts), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_leave_one_out_error_of_a_matrix_that_is_no_kernel_is_infinite():
    _, Y, _ = runs(3)
    assert leave_one_out_error(-np.eye(3), Y, np.full(3, 0.1)) == np.inf


def test_leave_one_out_error_of_a_constant_target_is_finite():
    S, Y, _ = runs()
    found = leave_one_out_error(oracles.gram(oracles.rbf([0.3] * 4), S, S), 0 * Y, np.full(len(S), 0.1))
    assert found == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_grid_search_takes_the_least_error_of_refits(seed):
    S, Y, counts = runs(seed=seed)
    gammas, alphas = (0.01, 0.1, 0.3, 1.0), (1e-3, 1e-2, 0.1, 1.0)
    grams = [oracles.gram(oracles.rbf([gamma] * 4), S, S) for gamma in gammas]
    which, alpha = grid_search(grams, Y, alphas, counts)
    errors = {(k, a): error_by_refits(grams[k], Y, a / counts) for k in range(4) for a in alphas}
    assert (which, alpha) == min(errors, key=errors.get)


def test_grid_search_reads_grams_one_at_a_time():
    S, Y, counts = runs()
    grams = [RBF(np.full(4, gamma)).evaluate(S, S) for gamma in (0.1, 1.0)]
    assert grid_search(iter(grams), Y, [0.1, 1.0], counts) == grid_search(grams, Y, [0.1, 1.0], counts)


# ---- evidence of the combined kernel ---------------------------------------------------------------------


def combined(S, *, with_size):
    """Standardised coordinates of S, the family on them, and the oracle of the subset size."""
    center, scale = S.mean(0), S.std(0)
    X = (S - center) / scale
    if not with_size:
        return X, CombinedKernel(S.shape[1]), None
    family = CombinedKernel(S.shape[1], scale, float(center.sum()), size_unit=1.7)
    return X, family, lambda x: sum(a * s + c for a, s, c in zip(x, scale, center, strict=True))


def random_theta(family, seed):
    mean, _ = family.prior()
    return mean + np.random.default_rng(seed).normal(0, 0.7, len(mean))


@pytest.mark.parametrize("with_size", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_evidence_is_the_density_of_a_multivariate_normal_at_its_best_scale(with_size, seed):
    S, Z, counts = runs(12)
    X, family, size_of = combined(S, with_size=with_size)
    theta = random_theta(family, seed)
    kernel, noise = oracles.combined(theta, family.n_parts, size_of, 1.7)
    C = oracles.gram(kernel, X, X) + np.diag(noise / counts)
    expected = -np.mean([oracles.profile_log_evidence(C, z)[0] for z in Z.T])
    constant = len(X) / 2 * (np.log(2 * np.pi / len(X)) + 1)
    value, _ = family.negative_log_evidence(theta, X, Z, counts)
    np.testing.assert_allclose(value, expected - constant, rtol=1e-10)


@pytest.mark.parametrize("with_size", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_finite_differences(with_size, seed):
    S, Z, counts = runs(12)
    X, family, _ = combined(S, with_size=with_size)
    theta = random_theta(family, seed)
    _, gradient = family.negative_log_evidence(theta, X, Z, counts)
    step = 1e-5
    for i in range(len(theta)):
        up, down = theta.copy(), theta.copy()
        up[i] += step
        down[i] -= step
        rise = family.negative_log_evidence(up, X, Z, counts)[0]
        rise -= family.negative_log_evidence(down, X, Z, counts)[0]
        np.testing.assert_allclose(gradient[i], rise / (2 * step), atol=1e-6, rtol=1e-5, err_msg=f"θ[{i}]")
    size_rate = family.n_parts + 2
    assert (gradient[size_rate] != 0) == with_size
    assert (np.delete(gradient, size_rate) != 0).all()


@pytest.mark.parametrize("with_size", [False, True])
def test_kernel_and_noise_are_the_ones_the_evidence_is_about(with_size):
    S, _, _ = runs()
    X, family, size_of = combined(S, with_size=with_size)
    theta = random_theta(family, 7)
    kernel, noise = oracles.combined(theta, family.n_parts, size_of, 1.7)
    np.testing.assert_allclose(family.kernel(theta).evaluate(X, X), oracles.gram(kernel, X, X), rtol=1e-10)
    np.testing.assert_allclose(family.noise(theta), noise)
    np.testing.assert_allclose(family.relevance(theta), np.exp(theta[-4:]))
    assert family.names == ("linear", "pairs", "rbf", "size")[: family.n_parts]
    assert len(theta) == family.n_parts + 3 + 4


def test_runs_of_one_size_are_not_asked_about_sizes_but_other_sizes_stay_uncertain():
    S = oracles.all_subsets(6)
    S = S[S.sum(1) == 3]
    y = np.random.default_rng(0).normal(size=len(S)) + S[:, 0]
    surrogate = CombinedSurrogate().fit(S, y)
    family, (theta,) = surrogate.family_, surrogate.theta_
    assert family.one_size == 3
    assert "size" not in family.names
    plain = CombinedKernel(6)
    X, counts = surrogate.coordinates_(S), np.ones(len(S))
    found = family.negative_log_evidence(theta, X, y[:, None], counts)
    for one, other in zip(found, plain.negative_log_evidence(theta, X, y[:, None], counts), strict=True):
        np.testing.assert_array_equal(one, other)
    # The kernel has what the plain one has, and the usual variance of an effect of size, for any two subsets.
    rows = surrogate.coordinates_(oracles.all_subsets(6)[::7])
    kernel, _ = oracles.combined(theta, 3)
    (*_, size), (*_, variance) = family.kernel(theta).parts, family.kernel(theta).variances
    extra = variance * size.evaluate(rows, rows)
    np.testing.assert_allclose(family.kernel(theta).evaluate(rows, rows), oracles.gram(kernel, rows, rows) + extra)
    sizes = oracles.all_subsets(6)[::7].sum(1)
    mean, spread = priors.LEARNED["size"]
    usual = np.random.default_rng(1).lognormal(mean, spread, 4_000_000).mean()
    rate = np.exp(priors.LEARNED["size rate"][0]) / (6 * 0.25)
    alike, from_runs = np.exp(-rate / 2 * (sizes[:, None] - sizes) ** 2), np.exp(-rate / 2 * (sizes - 3) ** 2)
    np.testing.assert_allclose(extra, usual * (alike - from_runs[:, None] - from_runs + 1), rtol=0.05, atol=1e-9)
    np.testing.assert_allclose(np.diag(extra), variance * size.diag(rows), atol=1e-12)
    # The runs themselves are seen by the plain kernel alone.
    np.testing.assert_allclose(size.evaluate(X, X), 0, atol=1e-12)


def test_evidence_of_a_matrix_that_cannot_be_factored_is_infinite():
    S, Z, counts = runs()
    X, family, _ = combined(S, with_size=True)
    theta = random_theta(family, 0)
    value, gradient = family.negative_log_evidence(theta, X, Z, -0.01 * counts)  # noise below zero
    assert value == np.inf
    assert gradient.shape == theta.shape
    assert (gradient == 0).all()


def penalised(family, theta, X, Z, counts, mean, std):
    value, _ = family.negative_log_evidence(theta, X, Z, counts)
    return value + 0.5 * np.sum(((theta - mean) / std) ** 2)


def test_fit_returns_a_local_optimum_of_evidence_times_prior():
    S, Z, counts = runs()
    X, family, _ = combined(S, with_size=True)
    mean, std = family.prior()
    theta, value = family.fit(X, Z, counts, mean=mean, std=std, max_iter=500, seed=0)
    np.testing.assert_allclose(value, penalised(family, theta, X, Z, counts, mean, std), rtol=1e-10)
    assert value < penalised(family, mean, X, Z, counts, mean, std) - 1
    rng = np.random.default_rng(0)
    for _ in range(50):
        nearby = theta + rng.normal(0, 0.05, len(theta))
        assert penalised(family, nearby, X, Z, counts, mean, std) > value - 1e-3


def test_a_narrow_prior_keeps_theta_where_it_is():
    S, Z, counts = runs()
    X, family, _ = combined(S, with_size=True)
    mean, std = family.prior()
    theta, _ = family.fit(X, Z, counts, mean=mean, std=0 * std + 1e-4, max_iter=60, seed=0)
    np.testing.assert_allclose(theta, mean, atol=1e-3)


def test_fit_finds_the_noise_and_the_tasks_that_matter():
    rng = np.random.default_rng(0)
    S = np.unique((rng.random((150, 8)) < 0.5).astype(float), axis=0)
    signal = S[:, 0] - 2 * S[:, 1] * S[:, 2]
    Z = (signal + 0.3 * rng.normal(size=len(S)))[:, None]
    spread = Z.std()
    X, family, _ = combined(S, with_size=False)
    mean, std = family.prior()
    theta, _ = family.fit(X, (Z - Z.mean()) / spread, np.ones(len(S)), mean=mean, std=std, max_iter=60, seed=0)
    relevance = family.relevance(theta)
    assert relevance[:3].min() > 2 * relevance[3:].max()
    # The noise is relative to the process, whose scale is profiled out.
    kernel = family.kernel(theta)
    C = kernel.evaluate(X, X) + family.noise(theta) * np.eye(len(X))
    _, scale = oracles.profile_log_evidence(C, ((Z - Z.mean()) / spread)[:, 0])
    np.testing.assert_allclose(np.sqrt(family.noise(theta)) * scale * spread, 0.3, rtol=0.25)


def test_large_tables_are_tuned_on_a_seeded_sample(monkeypatch):
    S, Z, counts = runs(16, T=6)
    X, family, _ = combined(S, with_size=True)
    mean, std = family.prior()
    seen = []
    evidence = CombinedKernel.negative_log_evidence
    monkeypatch.setattr(
        CombinedKernel,
        "negative_log_evidence",
        lambda self, theta, X, Z, counts, *room: (
            seen.append((X, Z, counts)),
            evidence(self, theta, X, Z, counts, *room),
        )[1],
    )
    monkeypatch.setattr(tuning, "TUNING_TARGETS", 4)
    found = [family.fit(X, Z, counts, mean=mean, std=std, max_iter=5, seed=seed, max_runs=10)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    for sample, outcomes, n in seen:
        assert sample.shape == (10, 4)
        assert outcomes.shape == (10, 4)
        where = [int(np.flatnonzero((row == X).all(1))[0]) for row in sample]
        assert len(set(where)) == 10
        np.testing.assert_array_equal(n, counts[where])
        assert all(any((Z[where, t] == column).all() for t in range(6)) for column in outcomes.T)


def test_the_prior_is_what_was_learned_over_tables_part_by_part():
    _, family, _ = combined(np.eye(4), with_size=True)
    mean, std = family.prior()
    names = [*family.names, "noise", "rbf rate", "size rate", *["relevance"] * 4]
    assert list(zip(mean, std, strict=True)) == [priors.LEARNED[name] for name in names]


def test_tuning_that_starts_elsewhere_ends_at_the_same_predictions():
    """What the folds of cross-validation start from must not decide where they end."""
    S, Y, _ = runs(60, 6, T=3, seed=1)
    cold = CombinedSurrogate().fit(S, Y)
    others = CombinedSurrogate().fit(S[::2], Y[::2]).tuned_
    warm = CombinedSurrogate(start=others).fit(S, Y)
    assert not np.allclose(others.shared, cold.tuned_.shared, atol=0.05), "the start should be somewhere else"
    assert np.abs(warm.predict(S) - cold.predict(S)).max() < 0.1 * Y.std()
    assert np.mean((warm.predict(S) - cold.predict(S)) ** 2) < 0.001 * Y.var()


def test_an_effect_of_even_and_odd_sizes_is_found(monkeypatch):
    """As in a vote, where ties of an even number count as a no. The prior expects a smooth effect of size."""
    rng = np.random.default_rng(0)
    S = np.unique(rng.integers(0, 2, (200, 10)).astype(float), axis=0)
    rng.shuffle(S)
    size = S.sum(1)
    y = 0.5 * (size % 2) + np.tanh(size / 3) + 0.1 * S[:, 0]

    def correlation():
        model = CombinedSurrogate().fit(S[:100], y[:100])
        return np.corrcoef(model.predict(S[100:]), y[100:])[0, 1]

    assert correlation() > 0.95
    monkeypatch.setattr(priors, "SIZE_RATE_START", priors.LEARNED["size rate"][0])
    assert correlation() < 0.6
