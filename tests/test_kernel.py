"""Kernel surrogates against scikit-learn's KernelRidge, their own equations written out, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.utils.estimator_checks import parametrize_with_checks

import oracles
import whence.surrogates.combined as combined_module
import whence.surrogates.kernel as kernel_module
from conformance import KERNELS, SURROGATES, outcomes_of, subsets
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.mixture import Mixture

FULL = Mixture.over([1.0], [1.0])

every_surrogate = pytest.mark.parametrize("name", SURROGATES)
every_kernel = pytest.mark.parametrize("name", KERNELS)


def fitted(name, X, y, **arguments):
    return clone(SURROGATES[name]).fit(X, y, **arguments)


# A homogeneous polynomial of degree 2 or 3 cannot be linear off {0, 1}: its score on scikit-learn's linear
# table is poor, as it should be, so that polynomials come with a constant here.
@parametrize_with_checks(list(KERNELS.values()))
def test_estimator_checks(estimator, check):
    check(estimator)


# ---- kernel ridge regression -----------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [None, 1, 3])
def test_paper_settings_are_kernel_ridge_as_the_paper_has_it(targets):
    X = subsets(30, 7)
    y = outcomes_of(X, targets or 1)
    y = y[:, 0] if targets is None else y
    new = subsets(20, 7, seed=1)
    found = KernelSurrogate(settings="paper").fit(X, y)
    reference = KernelRidge(kernel="rbf", alpha=0.1, gamma=1 / 7).fit(X, y)
    np.testing.assert_allclose(found.predict(new), reference.predict(new), atol=1e-10)
    np.testing.assert_allclose(found.dual_coef_, reference.dual_coef_, atol=1e-10)
    assert (found.alpha_, found.gamma_) == (0.1, 1 / 7)


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("coef0", [0.0, 0.7])
@pytest.mark.parametrize("settings", ["tuned", "paper"])
def test_polynomials_are_kernel_ridge(degree, coef0, settings):
    X, new = subsets(30, 6), subsets(20, 6, seed=1)
    y = outcomes_of(X, 2)
    found = KernelSurrogate("poly", degree=degree, coef0=coef0, alpha=0.3, settings=settings).fit(X, y)
    reference = KernelRidge(kernel="polynomial", gamma=1.0, degree=degree, coef0=coef0, alpha=0.3)
    level = 0.0 if settings == "paper" else y.mean(0)
    np.testing.assert_allclose(found.predict(new), reference.fit(X, y - level).predict(new) + level, atol=1e-9)
    assert found.gamma_ is None


@pytest.mark.parametrize("settings", ["tuned", "paper"])
def test_given_alpha_and_gamma_are_used_and_tuned_outcomes_centred(settings):
    X, new = subsets(30, 6), subsets(20, 6, seed=1)
    y = outcomes_of(X, 2)
    found = KernelSurrogate(alpha=0.5, gamma=0.2, settings=settings).fit(X, y)
    level = 0.0 if settings == "paper" else y.mean(0)
    reference = KernelRidge(kernel="rbf", alpha=0.5, gamma=0.2).fit(X, y - level)
    np.testing.assert_allclose(found.predict(new), reference.predict(new) + level, atol=1e-10)


@pytest.mark.parametrize("T", [1, 3])
def test_tuned_alpha_and_gamma_have_the_least_error_of_refits(T):
    X = subsets(25, 6)
    y = outcomes_of(X, T, noise=0.5)
    weight = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)
    found = KernelSurrogate().fit(X, y, sample_weight=weight)
    distances = [((a - b) ** 2).sum() for i, a in enumerate(X) for b in X[:i]]
    gammas = [multiple / np.median(distances) for multiple in (0.05, 0.1, 0.2, 0.5, 1, 2, 4)]
    alphas = 10.0 ** np.arange(-4, 1.5, 0.5)
    centred = y - weight @ y / weight.sum()
    share = weight / weight.sum()
    errors = {}
    for gamma in gammas:
        G = oracles.gram(oracles.rbf([gamma] * 6), X, X)
        for alpha in alphas:
            missed = centred - oracles.refits_without_each(G, alpha / weight, centred, np.zeros(T))[0]
            errors[gamma, alpha] = np.mean(share @ missed**2 / (share @ centred**2))
    np.testing.assert_allclose((found.gamma_, found.alpha_), min(errors, key=errors.get))


def test_only_what_is_not_given_is_tuned_and_only_among_what_is_offered():
    X = subsets(25, 6)
    y = outcomes_of(X)[:, 0]
    assert KernelSurrogate(alpha=0.123).fit(X, y).alpha_ == 0.123
    assert KernelSurrogate(gamma=0.456).fit(X, y).gamma_ == pytest.approx(0.456)
    offered = KernelSurrogate(alphas=[0.2, 0.3], gammas=[0.07, 0.08]).fit(X, y)
    assert offered.alpha_ in (0.2, 0.3)
    assert offered.gamma_ in (pytest.approx(0.07), pytest.approx(0.08))


def test_many_runs_are_tuned_on_a_sample_and_fitted_on_all(monkeypatch):
    X = subsets(60, 8)
    y = outcomes_of(X, noise=0.01)[:, 0]
    monkeypatch.setattr(kernel_module, "GRID_RUNS", 30)
    asked = []
    search = kernel_module.grid_search

    def spy(grams, Y, alphas, counts):
        asked.append(len(Y))
        np.testing.assert_allclose(counts @ Y, 0, atol=1e-9)  # centred as the fit will be
        return search(grams, Y, alphas, counts)

    monkeypatch.setattr(kernel_module, "grid_search", spy)
    weight = np.arange(1.0, len(X) + 1)
    found = KernelSurrogate().fit(X, y, sample_weight=weight)
    assert asked == [30]
    level = np.average(y, weights=weight)
    reference = KernelRidge(kernel="rbf", alpha=found.alpha_, gamma=found.gamma_).fit(
        X, y - level, sample_weight=weight
    )
    np.testing.assert_allclose(found.predict(X), reference.predict(X) + level, atol=1e-8)


# ---- the combined kernel ---------------------------------------------------------------------------------


def combined_oracle(S, theta):
    """The kernel of θ and its noise, on coordinates worked out by hand."""
    center, scale = S.mean(0), S.std(0)
    sizes = S.sum(1)

    def size_of(x):
        return sum(a * s + c for a, s, c in zip(x, scale, center, strict=True))

    return (*oracles.combined(theta, 4, size_of, sizes.std()), lambda rows: (rows - center) / scale)


@pytest.mark.parametrize("own", [True, False])
def test_combined_predictions_are_those_of_its_kernel_written_out(own):
    S, new = subsets(30, 5), subsets(20, 5, seed=1)
    Y = outcomes_of(S, 2)
    model = CombinedSurrogate(own=own).fit(S, Y)
    assert len(model.theta_) == (2 if own else 1)
    relative, noises = [], []
    for t in range(2):
        theta = model.theta_[t if own else 0]
        kernel, noise, coordinates = combined_oracle(S, theta)
        mean, covariance = oracles.gp_predict(
            kernel, np.full(len(S), noise), coordinates(S), Y[:, [t]], coordinates(new), Y[:, t].mean()
        )
        np.testing.assert_allclose(model.predict(new)[:, [t]], mean, atol=1e-7)
        relative.append(covariance)
        noises.append(noise)
        # The std is that of a new run, up to one factor that calibration sets.
        std = model.predict(new, return_std=True)[1][:, t]
        ratio = std / np.sqrt(np.diag(covariance) + noise)
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    covariance, noise = model.covariance(new)
    np.testing.assert_allclose(covariance, np.mean(relative, axis=0), atol=1e-8)
    np.testing.assert_allclose(noise, np.mean(noises))


def test_replicates_weigh_as_much_as_they_are():
    S = subsets(20, 5)
    Y = outcomes_of(S)
    counts = np.random.default_rng(0).integers(1, 5, len(S))
    model = CombinedSurrogate().fit(S, Y[:, 0], sample_weight=counts)
    kernel, noise, coordinates = combined_oracle(S, model.theta_[0])
    level = counts @ Y / counts.sum()
    mean, _ = oracles.gp_predict(kernel, noise / counts, coordinates(S), Y, coordinates(S), level)
    np.testing.assert_allclose(model.predict(S), mean[:, 0], atol=1e-7)


def test_each_target_has_its_own_hyperparameters_only_while_targets_are_few(monkeypatch):
    S = subsets(25, 5)
    Y = outcomes_of(S, 4)
    assert len(CombinedSurrogate().fit(S, Y).groups_) == 4
    assert len(CombinedSurrogate(own=False).fit(S, Y).groups_) == 1
    monkeypatch.setattr(combined_module, "OWN_TARGETS", 3)
    assert len(CombinedSurrogate().fit(S, Y).groups_) == 1
    monkeypatch.setattr(combined_module, "OWN_TARGETS", 40)
    monkeypatch.setattr(combined_module, "OWN_BYTES", 4 * 8 * 25**2 - 1)
    assert len(CombinedSurrogate().fit(S, Y).groups_) == 1


def test_a_hundred_targets_share_one_kernel_and_are_predicted_well():
    S, new = subsets(80, 8), subsets(60, 8, seed=1)
    Y = outcomes_of(np.vstack([S, new]), 100, noise=0.05)
    model = CombinedSurrogate().fit(S, Y[: len(S)])
    assert len(model.groups_) == 1
    missed = ((model.predict(new) - Y[len(S) :]) ** 2).mean(0) / Y[len(S) :].var(0)
    assert np.median(missed) < 0.1


def test_a_task_that_does_not_matter_drops_out():
    S = subsets(100, 8)
    y = S[:, 0] - 2 * S[:, 1] * S[:, 2]
    model = CombinedSurrogate().fit(S, y)
    relevance = model.family_.relevance(model.theta_[0])
    assert relevance[:3].min() > 3 * relevance[3:].max()


def test_the_size_part_appears_where_sizes_differ():
    S = subsets(40, 6)
    y = (S.sum(1) - 3) ** 2
    assert CombinedSurrogate().fit(S, y).family_.names == ("linear", "pairs", "rbf", "size")
    alike = S[S.sum(1) == 3]
    assert CombinedSurrogate().fit(alike, alike[:, 0]).family_.names == ("linear", "pairs", "rbf")


def test_ranks_are_blind_to_a_monotone_change_of_the_outcome():
    S, new = subsets(50, 6), subsets(40, 6, seed=1)
    y = outcomes_of(S)[:, 0]
    plain, bent = (CombinedSurrogate("rank").fit(S, values).predict(new) for values in (y, np.exp(2 * y)))
    assert spearmanr(plain, bent).statistic > 0.9999
    order = np.argsort(plain)
    assert (np.diff(bent[order]) >= -1e-9).all()


def test_ranks_predict_heavy_tails_better_than_raw_outcomes():
    S = subsets(110, 8)
    y = np.exp(3 * outcomes_of(S, noise=0.05)[:, 0])
    scores = {
        scale: spearmanr(CombinedSurrogate(scale).fit(S[:60], y[:60]).predict(S[60:]), y[60:]).statistic
        for scale in ("raw", "rank")
    }
    assert scores["rank"] > 0.9
    assert scores["rank"] > scores["raw"] + 0.02


@pytest.mark.parametrize("scale", ["raw", "rank"])
def test_product_part_is_the_raw_posterior_on_either_scale(scale):
    S = subsets(30, 5)
    Y = outcomes_of(S, 2)
    model = CombinedSurrogate(scale).fit(S, Y)
    for t, theta in enumerate(model.theta_):
        kernel, noise, coordinates = combined_oracle(S, theta)
        raw, _ = oracles.gp_predict(
            kernel, np.full(len(S), noise), coordinates(S), Y[:, [t]], coordinates(S), Y[:, t].mean()
        )
        np.testing.assert_allclose(model.product_part(S)[:, [t]], raw, atol=1e-7)
    assert (model.remainder() is None) is (scale == "raw")
    assert np.allclose(model.product_part(S), model.predict(S)) is (scale == "raw")


def test_the_std_on_ranks_never_vanishes_where_outcomes_are_flat():
    S = subsets(60, 8, seed=1)
    y = outcomes_of(S, noise=0.3, seed=1)[:, 0]
    model = CombinedSurrogate("rank").fit(S, np.minimum(y, np.median(y)))  # a metric that saturates
    _, std = model.predict(oracles.all_subsets(8), return_std=True)
    assert std.min() > 0.005 * np.median(std)


# ---- mixtures of weights ---------------------------------------------------------------------------------


def mixtures(m=60, K=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(K, 0.7), m)


@pytest.mark.parametrize(
    ("shape", "transforms"),
    [(np.log, ("log", "both")), (np.sqrt, ("sqrt", "both")), (lambda W: W**2, ("identity", "both"))],
)
def test_the_transform_of_the_weights_suits_the_outcomes(shape, transforms):
    W, new = mixtures(120), mixtures(60, seed=1)
    effects = np.array([1.0, -0.5, 0.2, 0.0])
    y, truth = shape(W + 0.01) @ effects, shape(new + 0.01) @ effects
    model = CombinedSurrogate().fit(W, y)
    assert model.coordinates_.transform in transforms
    assert spearmanr(model.predict(new), truth).statistic > 0.97


def test_tables_of_0_and_1_are_left_as_they_are():
    S = subsets(30, 5)
    assert CombinedSurrogate().fit(S, outcomes_of(S)[:, 0]).coordinates_.transform == "identity"


@pytest.mark.parametrize("scale", ["raw", "rank"])
def test_a_weight_of_zero_is_predicted_with_a_finite_number(scale):
    W = mixtures()
    model = CombinedSurrogate(scale).fit(W, np.log(W + 0.05) @ [1.0, -0.5, 0.2, 0.0])
    for mean_or_std in model.predict(np.vstack([np.eye(4), np.zeros(4)]), return_std=True):
        assert np.isfinite(mean_or_std).all()


def test_permuting_the_weights_permutes_nothing_else():
    W, new = mixtures(), mixtures(10, seed=1)
    y = np.log(W + 0.05) @ [1.0, -0.5, 0.2, 0.0]
    order = [2, 0, 3, 1]
    plain, permuted = CombinedSurrogate().fit(W, y), CombinedSurrogate().fit(W[:, order], y)
    np.testing.assert_allclose(permuted.predict(new[:, order]), plain.predict(new), atol=1e-4)


# ---- what every surrogate keeps --------------------------------------------------------------------------


def close_to(found, expected, spread):
    """Equal up to what an optimiser that stops at another last digit leaves."""
    np.testing.assert_allclose(found, expected, atol=2e-3 * spread, rtol=0)


@every_surrogate
def test_the_order_of_tasks_does_not_matter(name):
    S, new = subsets(40, 6), subsets(20, 6, seed=1)
    Y = outcomes_of(S, 2)
    order = np.array([3, 0, 5, 1, 4, 2])
    plain, permuted = fitted(name, S, Y), fitted(name, S[:, order], Y)
    for one, other in zip(
        plain.predict(new, return_std=True), permuted.predict(new[:, order], return_std=True), strict=True
    ):
        close_to(other, one, Y.std())
    close_to(permuted.effects(1, FULL)[0], plain.effects(1, FULL)[0][order], 1)


@every_surrogate
def test_the_order_of_runs_does_not_matter(name):
    S, new = subsets(40, 6), subsets(20, 6, seed=1)
    Y = outcomes_of(S, 2)
    order = np.random.default_rng(0).permutation(len(S))
    for one, other in zip(
        fitted(name, S, Y).predict(new, return_std=True),
        fitted(name, S[order], Y[order]).predict(new, return_std=True),
        strict=True,
    ):
        close_to(other, one, Y.std())


@every_surrogate
def test_the_same_table_gives_the_same_surrogate(name):
    S = subsets(40, 6)
    Y = outcomes_of(S, 2)
    for one, other in zip(
        fitted(name, S, Y).predict(S, return_std=True), fitted(name, S, Y).predict(S, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@every_surrogate
def test_what_is_predicted_for_a_row_does_not_depend_on_the_rows_beside_it(name):
    S, new = subsets(40, 6), subsets(20, 6, seed=1)
    model = fitted(name, S, outcomes_of(S, 2, noise=0.3))
    together = model.predict(new, return_std=True)
    for one, other in zip(
        together, zip(*(model.predict(row[None], return_std=True) for row in new), strict=True), strict=True
    ):
        np.testing.assert_allclose(one, np.concatenate(other), atol=1e-9)


@every_surrogate
def test_a_row_twice_is_a_row_of_weight_two_and_weight_zero_is_no_row(name):
    S = subsets(25, 5)
    Y = outcomes_of(S, 2, noise=0.3)
    weight = np.random.default_rng(0).integers(0, 4, len(S))
    rows = np.repeat(np.arange(len(S)), weight)
    weighted = fitted(name, S, Y, sample_weight=weight.astype(float)).predict(S, return_std=True)
    repeated = fitted(name, S[rows], Y[rows]).predict(S, return_std=True)
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@every_surrogate
def test_one_target_is_one_dimension_and_the_same_numbers(name):
    S, new = subsets(30, 5), subsets(10, 5, seed=1)
    Y = outcomes_of(S, 1)
    flat, column = fitted(name, S, Y[:, 0]), fitted(name, S, Y)
    for one, other in zip(flat.predict(new, return_std=True), column.predict(new, return_std=True), strict=True):
        assert one.shape == (len(new),)
        assert other.shape == (len(new), 1)
        np.testing.assert_array_equal(one, other[:, 0])
    np.testing.assert_array_equal(flat.predict(new), flat.predict(new, return_std=True)[0])


@every_surrogate
@pytest.mark.parametrize(("a", "b"), [(3.0, 5.0), (-2.0, 1.0), (1e6, -3e6), (1e-6, 0.0), (1.0, 1e4)])
def test_a_change_of_units_is_a_change_of_units(name, a, b):
    """y → a·y + b gives a·prediction + b and |a|·std; the paper's uncentred settings know no b."""
    S, new = subsets(40, 5), subsets(20, 5, seed=1)
    Y = outcomes_of(S, 2)
    b = 0.0 if SURROGATES[name].get_params().get("settings") == "paper" else b
    mean, std = fitted(name, S, Y).predict(new, return_std=True)
    changed_mean, changed_std = fitted(name, S, a * Y + b).predict(new, return_std=True)
    close_to(changed_mean, a * mean + b, abs(a) * Y.std())
    close_to(changed_std, abs(a) * std, abs(a) * Y.std())


@every_surrogate
@pytest.mark.parametrize("value", [0.0, 7.0, 1e6])
def test_a_constant_target_is_predicted_constant_beside_one_that_varies(name, value):
    S = subsets(30, 5)
    Y = np.column_stack([np.full(len(S), value), outcomes_of(S)[:, 0]])
    model = fitted(name, S, Y)
    mean, std = model.predict(oracles.all_subsets(5), return_std=True)
    assert np.isfinite(std).all()
    if SURROGATES[name].get_params().get("settings") == "paper":
        return  # shrinks towards 0
    np.testing.assert_allclose(mean[:, 0], value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.effects(1, FULL)[0][:, 0], 0.0, atol=1e-9 * (1 + value))
    assert np.ptp(mean[:, 1]) > 0.5


@every_surrogate
@pytest.mark.parametrize(("m", "K"), [(2, 1), (2, 3), (3, 1), (5, 12), (10, 40)])
def test_small_tables_give_finite_predictions(name, m, K):
    rng = np.random.default_rng(0)
    S = (rng.random((m, K)) < 0.5).astype(float)
    S[0], S[1] = 0.0, 1.0
    model = fitted(name, S, rng.normal(size=(m, 2)))
    assert np.isfinite(model.predict(np.vstack([S, 1 - S]))).all()
    for order in (1, 2):
        scores, std = model.effects(order, Mixture.over([0.5], [1.0]))
        assert np.isfinite(scores).all()
        assert np.isfinite(std).all() or name == "ols"  # without a degree of freedom there is no std


@every_kernel
def test_std_is_larger_away_from_the_runs(name):
    S = subsets(40, 6)
    near = S[S.sum(1) <= 3]
    model = fitted(name, near, outcomes_of(near)[:, 0])
    _, at_runs = model.predict(near, return_std=True)
    _, far = model.predict(np.ones((1, 6)), return_std=True)
    assert (far[0] > 1.02 * at_runs).mean() > 0.9


# ---- expressivity (paper, proposition on universal approximation) ----------------------------------------


@pytest.mark.parametrize("K", [1, 2, 5])
def test_rbf_interpolates_any_set_function(K):
    S = oracles.all_subsets(K)
    F = np.random.default_rng(0).normal(size=(len(S), 3))
    model = KernelSurrogate(alpha=1e-12, gamma=1.0).fit(S, F)
    np.testing.assert_allclose(model.predict(S), F, atol=1e-8)


ADDITIVE = ("poly 1", "ridge", "ols")


@every_surrogate
def test_xor_is_seen_by_every_surrogate_that_knows_pairs_and_by_no_other(name):
    S = oracles.all_subsets(5)
    xor = (S[:, 0] != S[:, 1]).astype(float)
    predicted = fitted(name, S, xor).predict(S)
    if name in ADDITIVE:
        np.testing.assert_allclose(predicted, 0.5, atol=1e-6)
    else:
        assert np.corrcoef(predicted, xor)[0, 1] > 0.97


@every_surrogate
def test_a_task_that_does_nothing_gets_next_to_no_effect(name):
    S = oracles.all_subsets(6)
    y = S[:, 0] - 2 * S[:, 1] + 1.5 * S[:, 1] * S[:, 2]
    model = fitted(name, S, y)
    for q in (0.5, 1.0):
        effects = model.effects(1, Mixture.over([q], [1.0]))[0][:, 0]
        assert np.abs(effects[3:]).max() < 0.05 * np.abs(effects[:3]).max()


# ---- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surrogate", "message"),
    [
        (
            KernelSurrogate("linear"),
            r"The 'kernel' parameter of KernelSurrogate must be one of 'rbf', 'poly'. Got 'linear' instead.",
        ),
        (
            KernelSurrogate(settings="best"),
            r"The 'settings' parameter of KernelSurrogate must be one of 'tuned', 'paper'. Got 'best' instead.",
        ),
        (
            KernelSurrogate("poly", degree=4),
            r"The 'degree' parameter of KernelSurrogate must be 1, 2 or 3. Got 4 instead.",
        ),
        (KernelSurrogate(alpha=0), r"The 'alpha' parameter of KernelSurrogate must be positive. Got 0 instead."),
        (
            KernelSurrogate(gamma=-1.0),
            r"The 'gamma' parameter of KernelSurrogate must be positive. Got -1.0 instead.",
        ),
        (
            CombinedSurrogate("log"),
            r"The 'outcome_scale' parameter of CombinedSurrogate must be one of 'raw', 'rank'. Got 'log' instead.",
        ),
    ],
)
def test_wrong_parameters_are_named(surrogate, message):
    S = subsets(10, 3)
    with pytest.raises(ValueError, match=message):
        surrogate.fit(S, S[:, 0])


@every_kernel
def test_missing_outcomes_and_wrong_widths_are_refused(name):
    S = subsets(20, 4)
    y = outcomes_of(S)[:, 0]
    with pytest.raises(ValueError, match="NaN"):
        fitted(name, S, np.where(np.arange(len(y)) == 3, np.nan, y))
    with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 4 features"):
        fitted(name, S, y).predict(S[:, :3])


def test_coordinates_of_a_kernel_surrogate_are_the_subsets_themselves():
    S = subsets(20, 4)
    model = KernelSurrogate().fit(S, outcomes_of(S)[:, 0])
    assert isinstance(model.coordinates_, Coordinates)
    np.testing.assert_array_equal(model.coordinates_(S), S)
