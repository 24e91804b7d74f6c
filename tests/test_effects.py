"""Effects of any surrogate: the mixtures behind the rules, the summed and the sampled remainder."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor

import oracles
import whence.answers.effects as effects
from conformance import FOREST, outcomes_of, subsets, table
from whence.answers.effects import as_model
from whence.answers.rules import MOST_NODES, RULES
from whence.errors import InputError
from whence.surrogates import remainders
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.mixture import Mixture


def rule_mixture(rule, n_tasks, keep_prob=None):
    return RULES[rule].asks(np.empty((0, n_tasks)), keep_prob)


MIXTURES = {rule: rule_mixture(rule, 7, 0.8) for rule in ("shapley", "banzhaf", "loo", "inclusion")}
SURROGATES = {"forest": FOREST, "ranks": CombinedSurrogate("rank"), "kernel": KernelSurrogate()}


def heavy(K=7, m=60, T=2):
    """A model whose predictions on ranks are far from the product-kernel part."""
    S = subsets(m, K)
    return S, np.exp(outcomes_of(S, T))


def model_of(name, K=7):
    S, Y = heavy(K)
    return as_model(clone(SURROGATES[name]).fit(S, Y))


def exact(model, order, mixture):
    """Effects by enumeration, (K, T) or (K, K, T) with a zero diagonal."""
    K, nodes, weights = model.outcomes.n_tasks, mixture.present, mixture.inside
    g = model.predict(oracles.all_subsets(K))
    if order == 1:
        return np.array([oracles.effect_weights(K, [k], nodes, weights) @ g for k in range(K)])
    out = np.zeros((K, K, g.shape[1]))
    for k in range(K):
        for j in range(k):
            out[k, j] = out[j, k] = oracles.effect_weights(K, [k, j], nodes, weights) @ g
    return out


def main_effects(model, mixture, **arguments):
    return effects.effects(model, 1, mixture, **arguments)


# ---- mixtures over q -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tasks", [1, 2, 3, 10, 39])
def test_shapley_nodes_integrate_every_expectation_over_subsets_exactly(n_tasks):
    """∫ q^a (1−q)^b dq = a! b! / (a+b+1)!, the weight of a subset of size a among b that are out."""
    mixture = rule_mixture("shapley", n_tasks)
    nodes, weights = mixture.present, mixture.inside
    for others in (n_tasks - 1, n_tasks):  # effects of a task, and the baseline
        for a in range(others + 1):
            b = others - a
            expected = factorial(a) * factorial(b) / factorial(others + 1)
            np.testing.assert_allclose(weights @ (nodes**a * (1 - nodes) ** b), expected, rtol=1e-10)


def test_other_rules_are_one_node():
    for rule, expected in {"loo": (1.0, 1.0), "banzhaf": (0.5, 1.0), "inclusion": (0.3, 0.7)}.items():
        mixture = rule_mixture(rule, 9, 0.3)
        assert (mixture.present.tolist(), mixture.inside.tolist()) == ([expected[0]], [pytest.approx(expected[1])])


def test_few_nodes_are_enough_for_many_tasks():
    """Beyond twice MOST_NODES tasks the integral is no longer exact by count of nodes, and yet to many digits."""
    K = 300
    S = subsets(30, K)
    y = S[:, :100].sum(1) + S[:, 0] * S[:, 1] * 5
    surrogate = KernelSurrogate(alpha=0.1, gamma=0.02).fit(S, y)
    mixture = rule_mixture("shapley", K)
    assert len(mixture.present) == MOST_NODES < (K + 2) // 2
    many, many_weights = np.polynomial.legendre.leggauss(160)
    found = surrogate.effects(1, mixture)
    reference = surrogate.effects(1, Mixture.over((many + 1) / 2, many_weights / 2))
    for one, other in zip(found, reference, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10 * np.abs(other).max())


# ---- the remainder, summed over all subsets --------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("rule", MIXTURES)
@pytest.mark.parametrize("name", SURROGATES)
def test_effects_are_those_of_enumeration(name, rule, order):
    model = model_of(name)
    mixture = MIXTURES[rule]
    found = effects.effects(model, order, mixture)
    expected = exact(model, order, mixture)
    np.testing.assert_allclose(found.scores, expected, atol=1e-8 * np.abs(expected).max())
    assert (found.sampling_error == 0).all()
    assert found.how == ("exact" if name == "kernel" else "exact, summed over all subsets")


@pytest.mark.parametrize("order", [1, 2])
def test_std_is_that_of_the_product_part_and_unknown_without_one(order):
    mixture = MIXTURES["banzhaf"]
    assert np.isnan(effects.effects(model_of("forest"), order, mixture).std).all()
    model = model_of("ranks")
    closed = model.parts[0].surrogate.effects(order, mixture)[1]
    np.testing.assert_allclose(effects.effects(model, order, mixture).std, closed)


def test_std_is_stretched_as_the_intervals_of_predictions_are():
    runs = table(40, 5, noise=1.0)
    model = fit(runs, surrogate=KernelSurrogate(alpha=1e-3, gamma=0.1))
    # Beyond that factor, effects are stretched by 1.15·√(1 + 6/n).
    factor = model.parts[0].factor * 1.15 * np.sqrt(1 + 6 / runs.n_runs)
    assert not np.allclose(factor, 1.0, atol=0.05)
    mixture = MIXTURES["shapley"]
    expected = model.parts[0].surrogate.effects(1, mixture)[1] * factor
    np.testing.assert_allclose(main_effects(model, mixture).std, expected)


# ---- the remainder, sampled ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("rule", ["shapley", "banzhaf", "inclusion"])
@pytest.mark.parametrize("name", ["forest", "ranks"])
def test_sampled_effects_are_within_their_stated_error(monkeypatch, name, rule, order):
    monkeypatch.setattr(remainders, "ENUMERATED_TASKS", 0)
    model = model_of(name)
    mixture = MIXTURES[rule]
    expected = exact(model, order, mixture)
    entries = np.broadcast_to(~np.eye(7, dtype=bool)[..., None], expected.shape) if order == 2 else expected == expected
    z = []
    for seed in range(6):
        found = effects.effects(model, order, mixture, seed=seed)
        assert found.how == "exact for the product-kernel part, the remainder sampled"
        assert (found.sampling_error[entries] > 0).all()
        z.append(((found.scores - expected)[entries] / found.sampling_error[entries]).ravel())
    z = np.concatenate(z)
    assert np.abs(z).max() < 5
    assert 0.7 < np.sqrt(np.mean(z**2)) < 1.4


def test_the_stated_error_leaves_out_what_the_effect_itself_adds(monkeypatch):
    """A large effect beside a parity that averages out: only the parity scatters."""
    monkeypatch.setattr(remainders, "ENUMERATED_TASKS", 0)

    class Parity:
        n_features_in_ = 7

        def predict(self, X):
            return 6 * X[:, 0] + np.prod(1 - 2 * X[:, 1:], axis=1)

    mixture = MIXTURES["banzhaf"]
    found = [main_effects(as_model(Parity()), mixture, seed=seed) for seed in range(60)]
    z = [(one.scores[0, 0] - 6) / one.sampling_error[0, 0] for one in found]
    assert 0.8 < np.sqrt(np.mean(np.square(z))) < 1.25


def test_sampled_effects_are_seeded(monkeypatch):
    monkeypatch.setattr(remainders, "ENUMERATED_TASKS", 0)
    model = model_of("forest")
    mixture = MIXTURES["shapley"]
    first, again, other = (main_effects(model, mixture, seed=seed).scores for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, rtol=1e-6)


def test_more_samples_leave_less_error(monkeypatch):
    monkeypatch.setattr(remainders, "ENUMERATED_TASKS", 0)
    model = model_of("forest")
    mixture = MIXTURES["banzhaf"]
    before = main_effects(model, mixture).sampling_error
    monkeypatch.setattr(remainders, "SAMPLES", remainders.SAMPLES * 4)
    after = main_effects(model, mixture).sampling_error
    np.testing.assert_allclose(after, before / 2, rtol=0.1)


@pytest.mark.parametrize("order", [1, 2])
def test_leave_one_out_of_many_tasks_needs_the_neighbours_of_the_full_set_alone(order):
    K = 25
    S = subsets(80, K)
    forest = RandomForestRegressor(3, random_state=0).fit(S, outcomes_of(S, 2))
    asked = []
    predict = forest.predict
    forest.predict = lambda X: (asked.append(len(X)), predict(X))[1]
    model = as_model(forest)
    asked.clear()
    mixture = rule_mixture("loo", K)
    found = effects.effects(model, order, mixture)
    assert asked == [1 + K + (K * (K - 1) // 2 if order == 2 else 0)]

    def g(*out):
        row = np.ones((1, K))
        row[0, list(out)] = 0
        return predict(row)[0]

    if order == 1:
        expected = np.array([g() - g(k) for k in range(K)])
    else:
        expected = np.array(
            [[g() - g(k) - g(j) + g(k, j) if j != k else np.zeros(2) for j in range(K)] for k in range(K)]
        )
    np.testing.assert_allclose(found.scores, expected, atol=1e-10)
    assert found.how == "exact, summed over all subsets"


# ---- many tasks, exactly ---------------------------------------------------------------------------------


@pytest.mark.parametrize("surrogate", [KernelSurrogate(), CombinedSurrogate()], ids=["rbf", "combined"])
def test_shapley_of_thirty_tasks_is_the_mean_over_random_orders(surrogate):
    K, n_orders = 30, 1500
    S = subsets(60, K)
    model = clone(surrogate).fit(S, outcomes_of(S, noise=0.3)[:, 0])
    mixture = rule_mixture("shapley", K)
    exact_scores = model.effects(1, mixture)[0][:, 0]
    rng = np.random.default_rng(0)
    changes = np.empty((n_orders, K))
    for i in range(n_orders):
        order = rng.permutation(K)
        path = np.tril(np.ones((K + 1, K)), -1)[:, np.argsort(order)]  # row r holds the first r tasks of the order
        changes[i, order] = np.diff(model.predict(path))
    z = (changes.mean(0) - exact_scores) / (changes.std(0) / np.sqrt(n_orders))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(exact_scores.sum(), changes.sum(1), atol=1e-8)


# ---- models ----------------------------------------------------------------------------------------------


def test_a_fitted_regressor_becomes_a_model_with_default_names():
    S = subsets(20, 3)
    model = as_model(KernelSurrogate().fit(S, outcomes_of(S, 2)))
    assert model.task_names == ("task_0", "task_1", "task_2")
    assert model.target_names == ("outcome_0", "outcome_1")
    assert model.maximize == (False, False)
    assert as_model(model) is model


@pytest.mark.parametrize("wrong", [KernelSurrogate(), "model", None, np.ones((3, 2))])
def test_what_is_no_model_is_named(wrong):
    message = "The 'model' must be what whence.fit returns, or a fitted scikit-learn regressor. Got "
    with pytest.raises(InputError, match=message + type(wrong).__name__):
        as_model(wrong)
