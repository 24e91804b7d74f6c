"""Edge cases that cut across modules: extreme kernels, missing intervals, contradictions, odd inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor

import oracles
import whence
import whence.answers.search as search_module
from conformance import FOREST, outcomes_of, subsets, table
from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.kernels import RBF, Lattice
from whence.surrogates.mixture import Mixture
from whence.surrogates.posterior import interval_factor

GIVEN = KernelSurrogate(alpha=0.1, gamma=0.3)


@pytest.mark.parametrize("rate", [100.0, 300.0, 1000.0])
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0])
def test_rbf_effects_stay_exact_when_neighbours_do_not_see_each_other(rate, q):
    nodes, weights = np.array([q]), np.ones(1)
    lattice = Lattice(np.zeros(4), np.ones(4))
    points = oracles.all_subsets(4)
    part, kernel = RBF(np.full(4, rate)), oracles.rbf([rate] * 4)
    against = oracles.gram(kernel, points, points)
    main = part.main(points, lattice, Mixture.over(nodes, weights))
    pair = part.pairs(points, lattice, Mixture.over(nodes, weights))(slice(None), slice(None))
    np.testing.assert_allclose(
        part.mean(points, lattice, Mixture.over([q], [1.0])), oracles.bernoulli_weights(4, q) @ against, atol=1e-12
    )
    for k in range(4):
        effect = oracles.effect_weights(4, [k], nodes, weights)
        np.testing.assert_allclose(main[:, k], effect @ against, atol=1e-12)
        for j in range(k):
            effect = oracles.effect_weights(4, [k, j], nodes, weights)
            np.testing.assert_allclose(pair[:, k, j], effect @ against, atol=1e-12)


def test_targets_without_a_std_do_not_change_the_intervals_of_others():
    rng = np.random.default_rng(0)
    residual, std = rng.normal(size=(30, 1)), rng.uniform(1, 2, (30, 1))
    alone = interval_factor(residual, std)
    constant = np.zeros((30, 9))
    np.testing.assert_allclose(
        interval_factor(np.hstack([residual, constant]), np.hstack([std, constant]))[0], alone[0]
    )
    missing = np.full((30, 9), np.nan)
    np.testing.assert_allclose(interval_factor(np.hstack([residual, constant]), np.hstack([std, missing]))[0], alone[0])


@pytest.mark.parametrize("surrogate", [GIVEN, None], ids=["kernel", "chosen"])
def test_constant_targets_do_not_narrow_the_intervals_of_others(surrogate):
    S = subsets(140, 9)
    Y = outcomes_of(S, noise=0.5)
    many = np.column_stack([Y, np.full((len(S), 15), 3.0)])
    with pytest.warns(DataWarning, match="the same value in every run"):
        model = fit(Outcomes(S[:40], many[:40]), surrogate=surrogate)
    mean, std = model.predict(S[40:], return_std=True)
    inside = np.abs(mean - many[40:])[:, 0] <= oracles.normal_quantile(0.9) * std[:, 0]
    assert inside.mean() > 0.75


def test_the_std_of_a_row_does_not_depend_on_the_rows_beside_it():
    S = subsets(60, 8, seed=1)
    y = outcomes_of(S, noise=0.3, seed=1)[:, 0]
    model = CombinedSurrogate("rank").fit(S, np.minimum(y, np.median(y)))  # a metric that saturates
    together = model.predict(S, return_std=True)[1]
    alone = np.array([model.predict(row[None], return_std=True)[1][0] for row in S])
    np.testing.assert_allclose(alone, together, atol=1e-12)
    assert alone.min() > 0


@pytest.mark.parametrize("rule", ["shapley", "banzhaf", "inclusion"])
def test_sampled_effects_of_a_thousand_tasks_are_finite(rule):
    S = (np.random.default_rng(0).random((50, 1200)) < 0.5).astype(float)
    forest = RandomForestRegressor(3, max_depth=3, random_state=0).fit(S, S[:, 0])
    found = whence.attribute(forest, rule)
    assert np.isfinite(found.scores).all()
    expected = 0.5 if rule == "inclusion" else 1.0
    assert abs(found.scores[0, 0] - expected) < 5 * found.sampling_error[0, 0] + 0.05


def test_the_level_of_the_outcome_adds_no_sampling_error():
    S = subsets(80, 20)
    y = outcomes_of(S)[:, 0]
    low, high = (whence.attribute(clone(FOREST).fit(S, y + level)).sampling_error.mean() for level in (0.0, 1000.0))
    np.testing.assert_allclose(high, low, rtol=0.1)


def test_one_task_has_no_pair_in_a_forest_either():
    forest = clone(FOREST).fit([[0.0], [1.0], [1.0]], [0.0, 1.0, 1.1])
    assert whence.interactions(forest).scores.tolist() == [[[0.0]]]


def test_the_integer_program_is_exact_to_the_last_digit(monkeypatch):
    """Gains of about 1000 that differ by fractions: HiGHS stops at a relative gap of 1e-4 unless told not to."""
    monkeypatch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
    K = 12
    everything = oracles.all_subsets(K)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        S, gains, costs = subsets(30, K, seed=seed), 1000 + rng.random(K), rng.uniform(1, 2, K)
        model = fit(Outcomes(S, S @ gains, maximize=True), surrogate=AdditiveSurrogate("ols"), n_folds=None)
        found = whence.select(model, costs={f"task_{k}": c for k, c in enumerate(costs)}, budget=8.0)
        allowed = everything[(everything @ costs <= 8.0) & (everything.sum(1) > 0)]
        np.testing.assert_allclose(found.subset @ gains, (allowed @ gains).max(), rtol=1e-9)


def test_risk_without_a_std_is_refused():
    model = fit(table(30, 5), surrogate=FOREST, n_folds=None)
    with pytest.raises(InputError, match="The 'risk' parameter needs a predicted std, and this surrogate has none"):
        whence.select(model, size=2, risk=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 3, "max_size": 2}, "Give 'size' or 'max_size', not both."),
        ({"size": 2.5}, "The 'size' parameter of select must be from 1 to 5, the number of tasks. Got 2.5 instead."),
        ({"costs": {"task_0": np.inf}, "budget": 1}, "The cost of task 'task_0' must be zero or more, and finite."),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        whence.select(fit(table(30, 5), surrogate=GIVEN, n_folds=None), **arguments)


def test_improvement_where_no_run_has_all_targets():
    runs = table(30, 6)
    values = runs.values.copy()
    values[:15, 0] = values[15:, 1] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured"):
        model = fit(Outcomes(runs.subsets, values), surrogate=GIVEN, n_folds=None)
    pool = model.predict(oracles.all_subsets(6)).mean(1)
    found = whence.suggest(model, 3, by="improvement")
    assert found.predicted.mean() < np.median(pool)


@pytest.mark.parametrize(("m", "K"), [(40, 6), (10, 15)])
def test_additive_covariance_is_that_of_its_intervals(m, K):
    """Where runs are fewer than tasks, what they say nothing about is as uncertain as the prior."""
    S = subsets(m, K)
    surrogate = AdditiveSurrogate(alpha=0.5).fit(S, outcomes_of(S)[:, 0])
    new = subsets(20, K, seed=3)
    covariance, noise = surrogate.covariance(new)
    ratio = surrogate.predict(new, return_std=True)[1] ** 2 / (np.diag(covariance) + noise)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-8)


@pytest.fixture(scope="module")
def model():
    return fit(table(14, 4, task_names=["math", "b", "c", "d"]), surrogate=GIVEN, n_folds=None)


def test_one_subset_as_a_mapping_keeps_its_weights(model):
    np.testing.assert_array_equal(model.predict({"math": 0.5}), model.predict(np.array([[0.5, 0, 0, 0]])))


def test_one_name_is_one_task(model):
    np.testing.assert_array_equal(model.predict("math"), model.predict([["math"]]))


def test_a_data_frame_is_read_by_its_columns(model):
    rows = np.array([[1.0, 0, 1, 0], [0, 1, 0, 0]])
    frame = pd.DataFrame(rows, columns=["math", "b", "c", "d"])
    np.testing.assert_array_equal(model.predict(frame), model.predict(rows))
    np.testing.assert_array_equal(model.predict(frame[["d", "c", "b", "math"]]), model.predict(rows))
    with pytest.raises(InputError, match=r"must have a column per task.*none for d"):
        model.predict(frame.drop(columns="d"))


def test_a_regressor_without_a_std_claims_no_coverage():
    model = fit(table(30, 5), surrogate=FOREST)
    assert np.isnan(model.quality()["coverage_90"])
    assert "intervals" not in str(model)


def test_a_handful_of_noisy_runs_does_not_claim_to_predict_perfectly():
    scores = [fit(table(7, 5, T=1, noise=100.0, seed=seed), surrogate=GIVEN).quality()["lds"] for seed in range(12)]
    assert np.mean(np.abs(scores) == 1) < 0.3


def test_more_folds_than_subsets_still_give_a_quality():
    assert fit(table(30, 6, T=1, noise=0.01), surrogate=GIVEN, n_folds=50).quality()["lds"] > 0.5
