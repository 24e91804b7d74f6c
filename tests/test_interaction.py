"""Every rule of interaction on every surrogate against its textbook formula over 2^K subsets."""

from __future__ import annotations

import numpy as np
import pytest

import oracles
import whence
import whence.answers.interactions as interaction_module
import whence.surrogates.posterior as posterior_module
from conformance import ANY, PAIR_RULES, outcomes_of, subsets, table
from whence.answers.attribution import Attribution
from whence.answers.interactions import interactions
from whence.answers.rules import RULES
from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate

every_rule = pytest.mark.parametrize("rule", PAIR_RULES)
every_surrogate = pytest.mark.parametrize("name", ANY)


def fitted(name, runs):
    return fit(runs, surrogate=ANY[name], n_folds=None)


@every_rule
@every_surrogate
def test_scores_are_those_of_the_textbook(name, rule):
    model = fitted(name, table(30, 5))
    found = interactions(model, rule)
    expected = oracles.interaction(oracles.table_of(model.predict, 5), rule)
    np.testing.assert_allclose(found.scores, expected, atol=1e-8)
    assert found.scores.shape == found.std.shape == (5, 5, 2)


@every_rule
def test_two_tasks_are_one_pair(rule):
    S = np.vstack([oracles.all_subsets(2)] * 2)
    runs = Outcomes(S, np.random.default_rng(0).normal(size=(8, 1)))
    model = fitted("rbf", runs)
    g = {tuple(map(int, s)): model.predict(s[None])[0] for s in oracles.all_subsets(2)}
    expected = g[1, 1] - g[1, 0] - g[0, 1] + g[0, 0]
    np.testing.assert_allclose(interactions(model, rule).scores[0, 1], expected, atol=1e-10)


@pytest.mark.parametrize("name", ["rbf", "combined", "ridge"])
def test_one_task_has_no_pair(name):
    runs = Outcomes([[0], [1], [1], [0]], [0.0, 1.0, 1.2, 0.1])
    found = interactions(fitted(name, runs))
    assert found.scores.tolist() == [[[0.0]]]
    assert len(found.to_frame()) == 0


@every_rule
@every_surrogate
def test_scores_are_symmetric_with_a_zero_diagonal(name, rule):
    found = interactions(fitted(name, table(30, 5)), rule)
    for values in (found.scores, found.sampling_error):
        np.testing.assert_allclose(values, values.transpose(1, 0, 2), atol=1e-10)
        assert (values[np.arange(5), np.arange(5)] == 0).all()
    np.testing.assert_allclose(found.std, found.std.transpose(1, 0, 2), atol=1e-7)


@every_rule
@pytest.mark.parametrize("name", ["poly 1", "ridge", "ols"])
def test_additive_surrogates_have_no_interactions_and_say_that_they_cannot_see_any(name, rule):
    found = interactions(fitted(name, table(30, 5)), rule)
    np.testing.assert_allclose(found.scores, 0, atol=1e-8)
    np.testing.assert_allclose(found.std, 0, atol=1e-6)
    assert found.how == "the surrogate adds up tasks, so that it cannot see pairs"
    assert found.how in str(found)


@every_rule
def test_the_pair_that_interacts_is_found_and_no_other(rule):
    S = oracles.all_subsets(6)
    runs = Outcomes(S, S[:, 0] - S[:, 4] + 3 * S[:, 1] * S[:, 2])
    found = interactions(fitted("combined", runs), rule).scores[:, :, 0]
    np.testing.assert_allclose(found[1, 2], 3.0, rtol=0.02)
    rest = found.copy()
    rest[[1, 2], [2, 1]] = 0
    assert np.abs(rest).max() < 0.05


def test_loo_is_the_second_derivative_of_the_paper():
    """H_s of F(s) = c + gᵀ(s − 1) + ½ (s − 1)ᵀ H (s − 1), from a surrogate that interpolates F."""
    S = oracles.all_subsets(5)
    c, g, H = oracles.random_quadratic(5, np.random.default_rng(0))
    model = KernelSurrogate(alpha=1e-12, gamma=1.0).fit(S, oracles.quadratic(S, c, g, H))
    np.testing.assert_allclose(interactions(model, "loo").scores[:, :, 0], H - np.diag(np.diag(H)), atol=1e-6)


@pytest.mark.parametrize("name", ["rbf", "combined", "poly 3"])
def test_std_is_that_of_the_posterior_over_all_subsets(name):
    model = fitted(name, table(14, 4, T=1, noise=0.5))
    surrogate = model.parts[0].surrogate
    scale = surrogate.groups_[0].posterior.scale[0]
    covariance = surrogate.covariance(oracles.all_subsets(4))[0] * scale**2
    for rule, q in (("loo", 1.0), ("banzhaf", 0.5)):
        found = interactions(model, rule).std[:, :, 0]
        for k in range(4):
            for j in range(k):
                a = oracles.effect_weights(4, [k, j], [q], [1.0])
                np.testing.assert_allclose(found[k, j], np.sqrt(a @ covariance @ a), rtol=1e-4, atol=1e-6 * scale)


@every_rule
def test_targets_of_different_runs_each_get_the_scores_of_their_own_surrogate(rule):
    runs = table(14, 4, T=3)
    values = runs.values.copy()
    values[:3, 0] = values[5:8, 2] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured in every run"):
        model = fit(Outcomes(runs.subsets, values), surrogate=ANY["combined"], n_folds=None)
    expected = oracles.interaction(oracles.table_of(model.predict, 4), rule)
    np.testing.assert_allclose(interactions(model, rule).scores, expected, atol=1e-8)


# ---- words and tables ------------------------------------------------------------------------------------


def some_interactions(maximize=(False, True)):
    scores = np.zeros((3, 3, 2))
    for (k, j), value in {(0, 1): -1.0, (0, 2): 2.0, (1, 2): 0.1}.items():
        scores[k, j] = scores[j, k] = value
    return Attribution(
        scores=scores,
        std=np.full((3, 3, 2), 0.3),
        sampling_error=np.full((3, 3, 2), 0.4),
        baseline=np.zeros(2),
        task_names=("a", "b", "c"),
        target_names=("x", "y"),
        maximize=maximize,
        rule=RULES["shapley"],
        how="exact",
    )


def test_intervals_are_normal_and_hold_the_sampling_error_too():
    found = some_interactions()
    low, high = found.interval(0.8)
    np.testing.assert_allclose(high - found.scores, 0.5 * oracles.normal_quantile(0.8))
    np.testing.assert_allclose(found.scores - low, 0.5 * oracles.normal_quantile(0.8))


def test_verdicts_follow_the_direction_of_the_target():
    words = some_interactions().verdicts(0.9)
    assert words[0, 1].tolist() == ["work together", "work against each other"]
    assert words[0, 2].tolist() == ["work against each other", "work together"]
    assert words[1, 2].tolist() == ["not distinguishable from zero"] * 2


def test_the_table_has_a_row_per_pair_and_target_the_strongest_first():
    found = some_interactions()
    frame = found.to_frame()
    assert list(frame.columns) == ["target", "task_a", "task_b", "score", "std", "low", "high", "verdict"]
    assert frame["target"].tolist() == ["x"] * 3 + ["y"] * 3
    assert list(zip(frame["task_a"], frame["task_b"], strict=True))[:3] == [("a", "c"), ("a", "b"), ("b", "c")]
    assert frame["score"].tolist()[:3] == [2.0, -1.0, 0.1]
    low, high = found.interval()
    assert (frame["low"][0], frame["high"][0]) == (low[0, 2, 0], high[0, 2, 0])
    assert frame["verdict"].tolist() == [found.verdicts()[i] for t in (0, 1) for i in ((0, 2, t), (0, 1, t), (1, 2, t))]
    top = found.to_frame(top=1)
    assert top["task_b"].tolist() == ["c", "c"]


def test_the_text_names_the_rule_and_how_it_was_computed():
    text = str(interactions(fitted("rbf", table(30, 4, task_names=list("abcd"))), "loo"))
    assert text.startswith("loo interactions (exact)\n")
    assert "task_a" in text


def test_names_and_directions_are_those_of_the_table():
    runs = table(30, 3, task_names=list("abc"), target_names=["x", "y"], maximize=["y"])
    found = interactions(fitted("rbf", runs), "banzhaf")
    assert (found.task_names, found.target_names) == (("a", "b", "c"), ("x", "y"))
    assert (found.maximize, found.rule.name) == ((False, True), "banzhaf")


# ---- refusals and warnings -------------------------------------------------------------------------------


def test_unknown_rules_are_named():
    names = "'shapley', 'banzhaf', 'loo', 'shift'"
    message = f"The 'rule' parameter of interactions must be one of {names}. Got 'inclusion' instead."
    with pytest.raises(InputError, match=message):
        interactions(fitted("rbf", table(20, 3)), "inclusion")


def test_pairs_that_memory_cannot_hold_are_refused_before_the_work():
    model = AdditiveSurrogate.from_coefficients(np.ones(300_000))
    with pytest.raises(InputError, match=r"interactions of 300,000 tasks takes about 8.64 TB of memory, .* would do"):
        interactions(model)


def test_pairs_that_would_take_hours_are_refused_with_the_number_that_would_not(monkeypatch):
    S = subsets(20, 5)
    work = 20**2 / 2 * 4.5**2  # of four tasks and a half
    monkeypatch.setattr(interaction_module, "PAIRS_PER_SECOND", work / interaction_module.LONGEST)
    few = oracles.all_subsets(4)
    assert interactions(KernelSurrogate().fit(few, outcomes_of(few))).scores.shape[:2] == (4, 4)
    with pytest.raises(InputError, match=r"interactions of 5 tasks would take about .* hours. At most 4 tasks"):
        interactions(KernelSurrogate().fit(S, outcomes_of(S)))


@pytest.mark.parametrize("block", [1, 3000, 1 << 24])
def test_pairs_are_the_same_however_many_are_worked_on_at_a_time(block, monkeypatch):
    whole = fitted("rbf", table(20, 5))
    monkeypatch.setattr(posterior_module, "PAIR_BYTES", block)
    truth = oracles.interaction(oracles.table_of(whole.predict, 5), "shapley")
    found = interactions(whole)
    np.testing.assert_allclose(found.scores, truth, atol=1e-9)
    np.testing.assert_allclose(found.std, found.std.swapaxes(0, 1))


@every_rule
def test_mixture_weights_are_refused(rule):
    W = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    model = fit(Outcomes(W, W[:, 0]), surrogate=KernelSurrogate(alpha=0.1, gamma=1.0), n_folds=None)
    with pytest.raises(InputError, match=f"The rule '{rule} interactions' needs tasks that are in or out"):
        interactions(model, rule)


def test_the_full_set_is_extrapolation_on_small_subsets():
    S = whence.FixedSize(4).draw(50, 60)
    model = fit(Outcomes(S, S[:, 0]), surrogate=KernelSurrogate(alpha=0.1, gamma=0.1), n_folds=None)
    with pytest.warns(DataWarning, match="The rule 'loo' asks about subsets of 50 tasks"):
        interactions(model, "loo")
