"""Suggestions against refits with the suggested runs added, and expected improvement by its formula."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import oracles
import whence
from conformance import outcomes_of, subsets, table
from whence.answers.suggestion import suggest
from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate

ALPHA, GAMMA = 0.2, 0.3
GIVEN = KernelSurrogate(alpha=ALPHA, gamma=GAMMA)
SURROGATES = {
    "rbf": GIVEN,
    "combined": CombinedSurrogate(),
    "ranks": CombinedSurrogate("rank"),
    "ridge": AdditiveSurrogate(),
}
BY = ("variance", "improvement")


def model_of(m=20, K=6, *, surrogate=GIVEN, size=None, maximize=False, T=1, unit=1.0):
    S = subsets(m, K) if size is None else whence.FixedSize(size).draw(K, m)
    runs = Outcomes(S, unit * outcomes_of(S, T), [f"t{k}" for k in range(K)], maximize=maximize)
    return fit(runs, surrogate=surrogate, n_folds=None)


def not_measured(model):
    """All subsets as large as some run that are no run."""
    seen = {tuple(row) for row in model.outcomes.subsets}
    sizes = set(model.outcomes.subsets.sum(1))
    rows = oracles.all_subsets(model.outcomes.n_tasks)
    return np.array([row for row in rows if tuple(row) not in seen and row.sum() in sizes and row.sum() > 0])


# ---- what every suggestion is ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize(("K", "size"), [(6, None), (6, 3), (20, None), (20, 4)])
def test_suggestions_are_distinct_new_and_as_large_as_the_runs(name, by, K, size):
    model = model_of(15 if K == 6 else 40, K, surrogate=SURROGATES[name], size=size)
    found = suggest(model, 5, by=by)
    assert found.subsets.shape == (5, K)
    assert np.isin(found.subsets, (0, 1)).all()
    rows = {tuple(row) for row in found.subsets}
    assert len(rows) == 5
    assert not rows & {tuple(row) for row in model.outcomes.subsets}
    assert set(found.subsets.sum(1)) <= set(model.outcomes.subsets.sum(1))
    for one, other in zip((found.predicted, found.std), model.predict(found.subsets, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (found.by, found.task_names) == (by, model.task_names)


@pytest.mark.parametrize("by", BY)
def test_suggestions_are_seeded(by):
    model = model_of(40, 20)
    first, again, other = (suggest(model, 4, by=by, seed=seed).subsets for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


# ---- by variance -----------------------------------------------------------------------------------------


def check_variance(model, variance_after, n=4):
    """Each suggestion is the one after which the variance over all candidates is least, earlier ones being made."""
    pool = not_measured(model)
    found = suggest(model, n).subsets
    made = []
    for pick in found:
        left = {tuple(row): variance_after([*made, row], pool) for row in pool if tuple(row) not in map(tuple, made)}
        np.testing.assert_allclose(left[tuple(pick)], min(left.values()), rtol=1e-9)
        assert left[tuple(pick)] < np.median(list(left.values()))
        made.append(pick)


@pytest.mark.parametrize(
    ("m", "alpha", "gamma"), [(12, 0.2, 0.3), (5, 1e-4, 0.05), (12, 1e-4, 0.1), (20, 0.01, 0.3), (5, 0.1, 1.0)]
)
def test_by_variance_takes_what_a_refit_with_the_run_added_shows_to_teach_most(m, alpha, gamma):
    S = np.vstack([np.eye(5), subsets(m, 5)])
    runs = Outcomes(np.unique(S, axis=0), np.zeros(len(np.unique(S, axis=0))))
    with pytest.warns(DataWarning, match="the same value in every run"):
        model = fit(runs, surrogate=KernelSurrogate(alpha=alpha, gamma=gamma), n_folds=None)
    kernel = oracles.rbf([gamma] * 5)

    def variance_after(made, pool):
        X = np.vstack([model.outcomes.subsets, *[row[None] for row in made]])
        _, covariance = oracles.gp_predict(kernel, np.full(len(X), alpha), X, np.zeros((len(X), 1)), pool)
        return np.trace(covariance)

    check_variance(model, variance_after)


def test_by_variance_of_an_additive_surrogate_is_optimal_design():
    """Trace of [1 s] (AᵀA + α)⁻¹ [1 s]ᵀ over the candidates, the intercept without a penalty."""
    alpha = 0.7
    model = model_of(14, 5, surrogate=AdditiveSurrogate(alpha=alpha))

    def variance_after(made, pool):
        S = np.vstack([model.outcomes.subsets, *[row[None] for row in made]])
        A = np.column_stack([np.ones(len(S)), S])
        B = np.column_stack([np.ones(len(pool)), pool])
        inverse = np.linalg.inv(A.T @ A + np.diag([0.0] + [alpha] * 5))
        return np.trace(B @ inverse @ B.T)

    check_variance(model, variance_after)


# ---- by improvement --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [0.001, 1.0, 1000.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_first_by_improvement_has_the_greatest_expected_improvement(maximize, unit):
    model = model_of(15, 6, maximize=maximize, unit=unit)
    pool = not_measured(model)
    sign = 1 if maximize else -1
    best = (sign * model.outcomes.values).max()
    scale = model.parts[0].surrogate.groups_[0].posterior.scale[0]
    expected = {}
    X = model.outcomes.subsets
    mean, covariance = oracles.gp_predict(
        oracles.rbf([GAMMA] * 6), np.full(len(X), ALPHA), X, model.outcomes.values, pool, model.outcomes.values.mean()
    )
    for row, at, variance in zip(pool, mean[:, 0], np.diag(covariance), strict=True):
        std = scale * np.sqrt(variance)
        gain = sign * at - best
        expected[tuple(row)] = gain * norm.cdf(gain / std) + std * norm.pdf(gain / std)
    first = suggest(model, 1, by="improvement").subsets[0]
    np.testing.assert_allclose(expected[tuple(first)], max(expected.values()), rtol=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("maximize", [False, True])
def test_improvement_prefers_what_is_predicted_better(name, maximize):
    model = model_of(40, 8, surrogate=SURROGATES[name], maximize=maximize)
    sign = 1 if maximize else -1
    variance, improvement = (sign * suggest(model, 5, by=by).predicted.mean() for by in BY)
    assert improvement > variance
    assert improvement > np.quantile(sign * model.predict(not_measured(model)), 0.8)


def test_improvement_looks_at_the_target_it_is_told():
    model = model_of(40, 8, T=2)
    for t, target in enumerate(model.target_names):
        pool = model.predict(not_measured(model))[:, t]
        assert suggest(model, 3, by="improvement", target=target).predicted[:, t].mean() < np.quantile(pool, 0.1)


# ---- mixtures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
def test_mixtures_like_the_measured_ones_are_suggested(by):
    W = 3 * np.random.default_rng(0).dirichlet(np.ones(4), 30)
    model = fit(Outcomes(W, W @ np.arange(4.0)), surrogate=KernelSurrogate(alpha=0.1, gamma=0.3), n_folds=None)
    found = suggest(model, 5, by=by).subsets
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(1), 3.0)
    assert len(np.unique(found, axis=0)) == 5
    np.testing.assert_array_equal(found, suggest(model, 5, by=by).subsets)


# ---- tables, words, refusals -----------------------------------------------------------------------------


def test_the_table_has_a_column_per_task_and_what_is_predicted():
    model = model_of(10, 4, T=2)
    found = suggest(model, 3)
    frame = found.to_frame()
    assert list(frame.columns) == [
        *[f"t{k}" for k in range(4)], "predicted outcome_0", "std outcome_0", "predicted outcome_1", "std outcome_1",
    ]  # fmt: skip
    assert frame["t0"].dtype == int
    np.testing.assert_array_equal(frame.iloc[:, :4], found.subsets)
    np.testing.assert_array_equal(frame["std outcome_1"], found.std[:, 1])
    np.testing.assert_array_equal(frame["predicted outcome_1"], found.predicted[:, 1])
    assert str(found).startswith("to measure next, by variance:\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "The 'n' parameter of suggest must be at least 1. Got 0 instead."),
        ({"by": "luck"}, "The 'by' parameter of suggest must be 'variance' or 'improvement'. Got 'luck' instead."),
        ({"n": 5}, "Only 4 subsets like the measured ones are left to measure. Ask for at most 4."),
        ({"n": 1, "by": "improvement", "target": "z"}, "There is no target 'z'"),
        ({"n": 1, "by": "improvement"}, "Some targets are to be maximised and some minimised"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    rows = whence.FixedSize(2).draw(5, 6)
    runs = Outcomes(rows, outcomes_of(rows, 2), target_names=["x", "y"], maximize=["y"])
    model = fit(runs, surrogate=GIVEN, n_folds=None)
    with pytest.raises(InputError, match=message):
        suggest(model, **arguments)


def test_where_every_subset_was_measured_it_says_so():
    rows = whence.Exhaustive().draw(3)
    with pytest.raises(InputError, match="Every subset like the measured ones has been measured"):
        suggest(fit(Outcomes(rows, outcomes_of(rows, 1)), surrogate=GIVEN, n_folds=None))


def test_all_that_is_left_can_be_suggested():
    rows = whence.FixedSize(2).draw(5, 6)
    model = fit(Outcomes(rows, outcomes_of(rows)), surrogate=GIVEN, n_folds=None)
    found = {tuple(row) for row in suggest(model, 4).subsets}
    assert found == {tuple(row) for row in not_measured(model)}


def test_the_choice_of_fit_can_always_suggest():
    for seed in range(3):
        runs = table(20, 6, T=1, noise=(0.01, 1.0, 10.0)[seed], seed=seed)
        assert suggest(fit(runs), 2).subsets.shape == (2, 6)
