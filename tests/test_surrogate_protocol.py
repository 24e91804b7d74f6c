"""Every surrogate through the same properties. A new surrogate is one line in SURROGATES."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from typer.testing import CliRunner

import oracles
import whence
import whence.answers.effects as effects
from conformance import ADDITIVE, KERNELS, RULES, outcomes_of, subsets
from whence.answers.effects import as_model
from whence.answers.rules import RULES as RULE_TABLE
from whence.answers.rules import Rule
from whence.cli import app, arguments
from whence.display.report.export import exported
from whence.errors import InputError
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.components import ComponentsSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.mixture import Mixture
from whence.surrogates.protocol import Plain, Surrogate, as_surrogate
from whence.surrogates.rank_fused import RankFusedSurrogate
from whence.surrogates.rungs import Rung

K = 5


class Average(Surrogate):
    """A new surrogate, as an example: the weighted sum of others, which is linear in all that they say."""

    def __init__(self, members, weights):
        self.members = members
        self.weights = weights

    def fit(self, X, y):
        self.fitted_ = [clone(member).fit(X, y) for member in self.members]
        self.n_features_in_ = X.shape[1]
        return self

    def _sum(self, of):
        return sum(weight * of(member) for weight, member in zip(self.weights, self.fitted_, strict=True))

    def predict(self, X, return_std=False):
        mean = self._sum(lambda m: m.predict(X))
        # As if the members were wrong together: never too sure.
        return (mean, self._sum(lambda m: m.predict(X, return_std=True)[1])) if return_std else mean

    def effects(self, order, mixture):
        return self._sum(lambda m: m.effects(order, mixture)[0]), self._sum(lambda m: m.effects(order, mixture)[1])

    def mean_outcome(self, mixture):
        return self._sum(lambda m: m.mean_outcome(mixture))

    def remainder(self):
        rests = [(w, rest) for w, m in zip(self.weights, self.fitted_, strict=True) if (rest := m.remainder())]
        return (lambda S: sum(w * rest(S) for w, rest in rests)) if rests else None

    def contrast_std(self, X, contrasts):
        return self._sum(lambda m: m.contrast_std(X, contrasts))

    def covariance(self, X):
        return self._sum(lambda m: m.covariance(X)[0]), self._sum(lambda m: m.covariance(X)[1])

    def export(self, subsets, places):
        return None


def fused(scale="raw"):
    """Half of the truth plus a little, learned by a surrogate on this scale, as the only rung."""
    S = oracles.all_subsets(K)
    estimates = whence.Outcomes(S, 0.5 * outcomes_of(S, 2, noise=0.0) + 0.1 * S[:, :1])
    model = whence.fit(estimates, surrogate=CombinedSurrogate(scale), n_folds=None)
    return FusedSurrogate((Rung.of("half", model, np.arange(2)),))


def averaged(*members):
    weights = np.array([[0.3, 0.8], [0.7, 0.2]])
    return AveragedSurrogate({str(place): member for place, member in enumerate(members)}, weights)


def fused_on_ranks():
    rungs = fused("rank").rungs
    return RankFusedSurrogate(rungs, tuple(rung.on_ranks() for rung in rungs))


SURROGATES = {
    **KERNELS,
    **ADDITIVE,
    "components": ComponentsSurrogate(),
    "fused": fused(),
    "fused with ranks": fused("rank"),
    "forest": Plain(RandomForestRegressor(10, random_state=0), n_targets=2),
    "average": Average([AdditiveSurrogate(), CombinedSurrogate("rank")], [0.3, 0.7]),
}
NARROWED = SURROGATES | {
    "averaged": averaged(AdditiveSurrogate(), CombinedSurrogate("rank")),
    "fused on ranks": fused_on_ranks(),
    "averaged fusions": averaged(fused(), fused_on_ranks()),
}
every_surrogate = pytest.mark.parametrize("name", SURROGATES)


def fitted(name, order=None):
    """Two targets of five tasks, 24 runs; ``order`` changes the tasks about."""
    S = subsets(24, K, seed=3)
    Y = outcomes_of(S, 2, noise=0.2)
    return clone(SURROGATES[name]).fit(S if order is None else S[:, order], Y)


def mixture_of(rule, n_tasks=K):
    return RULE_TABLE[rule].asks(np.empty((0, n_tasks)), 0.3)


# ---- what every surrogate keeps --------------------------------------------------------------------------


@every_surrogate
@pytest.mark.parametrize("rule", [*RULES, "of one size"])
def test_closed_form_and_remainder_are_the_effects_of_what_is_predicted(name, rule):
    model = as_model(fitted(name))
    values = model.predict(oracles.all_subsets(K))
    close = {"atol": 1e-8 * np.abs(values).max()}
    mixture = Mixture.of_size(K, 2) if rule == "of one size" else mixture_of(rule)
    found = effects.effects(model, 1, mixture)
    if rule == "of one size":
        overall, weights = oracles.fixed_size_weights(K, 2)
        np.testing.assert_allclose(found.scores, weights @ values, **close)
        np.testing.assert_allclose(found.baseline, overall @ values, **close)
        return
    parts = mixture.present, mixture.inside
    expected = [oracles.effect_weights(K, [k], *parts) @ values for k in range(K)]
    np.testing.assert_allclose(found.scores, expected, **close)
    pairs = effects.effects(model, 2, mixture).scores
    for k in range(K):
        np.testing.assert_array_equal(pairs[k, k], 0)
        for j in range(k):
            expected = oracles.effect_weights(K, [k, j], *parts) @ values
            np.testing.assert_allclose(pairs[k, j], expected, **close)
            np.testing.assert_allclose(pairs[j, k], pairs[k, j], **close)


@every_surrogate
def test_the_remainder_is_what_is_predicted_beyond_the_mean_in_closed_form(name):
    surrogate = fitted(name)
    S = oracles.all_subsets(K)
    remainder = surrogate.remainder()
    rest = np.zeros((len(S), 2)) if remainder is None else remainder(S)
    mixture = mixture_of("inclusion")
    expected = oracles.bernoulli_weights(K, 0.3) @ (surrogate.predict(S) - rest)
    np.testing.assert_allclose(surrogate.mean_outcome(mixture), expected, atol=1e-8)


@every_surrogate
def test_std_of_an_effect_is_that_of_the_same_contrast(name):
    surrogate = fitted(name)
    at_full = surrogate.effects(1, Mixture.over([1.0], [1.0]))[1]
    points = np.vstack([np.ones(K), 1 - np.eye(K)])
    contrasts = np.hstack([np.ones((K, 1)), -np.eye(K)])
    found = surrogate.contrast_std(points, contrasts)
    assert found.shape == at_full.shape == (K, 2)
    np.testing.assert_allclose(found, at_full, rtol=1e-5, atol=1e-6)


@every_surrogate
def test_tasks_in_another_order_get_the_same(name):
    if name in ("forest", "fused", "fused with ranks"):
        pytest.skip("a forest splits ties by place; rungs are fitted in one order of tasks")
    order = np.array([3, 0, 4, 1, 2])
    plain, moved = fitted(name), fitted(name, order)
    S = oracles.all_subsets(K)
    scale = np.abs(plain.predict(S)).max()
    for mixture in (mixture_of("shapley"), Mixture.of_size(K, 2)):
        for one, other in zip(plain.effects(1, mixture), moved.effects(1, mixture), strict=True):
            np.testing.assert_allclose(other, one[order], atol=2e-3 * scale)
    np.testing.assert_allclose(moved.predict(S[:, order]), plain.predict(S), atol=2e-3 * scale)


@every_surrogate
def test_covariance_is_symmetric_and_positive_or_refused(name):
    surrogate = fitted(name)
    S = oracles.all_subsets(K)[::3]
    if isinstance(surrogate, Plain):
        with pytest.raises(InputError, match="A RandomForestRegressor has no posterior covariance"):
            surrogate.covariance(S)
        return
    covariance, noise = surrogate.covariance(S)
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > -1e-6 * np.abs(covariance).max()
    assert noise >= 0


@every_surrogate
def test_the_same_again_is_the_same(name):
    S = oracles.all_subsets(K)
    one, other = fitted(name), fitted(name)
    for a, b in zip(one.predict(S, return_std=True), other.predict(S, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", NARROWED)
def test_one_target_alone_is_the_same(name):
    S = subsets(24, K, seed=3)
    whole = clone(NARROWED[name]).fit(S, outcomes_of(S, 2, noise=0.2))
    asked = oracles.all_subsets(K)
    np.testing.assert_allclose(whole.only([1]).predict(asked)[:, 1], whole.predict(asked)[:, 1], rtol=1e-12)
    for found, expected in zip(
        whole.only([1]).predict(asked, return_std=True), whole.predict(asked, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found[:, 1], expected[:, 1], rtol=1e-12)


@every_surrogate
def test_what_goes_to_the_page_is_plain_data(name):
    S = subsets(24, K, seed=3)
    model = whence.fit(whence.Outcomes(S, outcomes_of(S, 2)), surrogate=SURROGATES[name], n_folds=None)
    document = exported(model)
    json.dumps(document)
    known = name not in ("forest", "average")
    assert [part["targets"] for part in document] == ([[0, 1]] if known else [])


# ---- the contract ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", sorted(Surrogate.__abstractmethods__))
def test_a_surrogate_that_lacks_a_member_cannot_be_made(forgotten):
    members = {name: getattr(Average, name) for name in Surrogate.__abstractmethods__ if name != forgotten}
    with pytest.raises(TypeError, match=f"abstract.*{forgotten}"):
        type("Partial", (Surrogate,), members)()


class Doubled:
    """Not a surrogate of this library, though it has a method of the same name."""

    n_features_in_ = 3
    coef = np.array([1.0, 2.0, -1.0])

    def predict(self, X):
        return X @ self.coef

    def effects(self, order, mixture):
        return self.coef[:, None], np.zeros((3, 1))

    main_effects = effects


def test_effects_are_never_counted_twice():
    found = whence.attribute(Doubled())
    np.testing.assert_allclose(found.scores[:, 0], [1.0, 2.0, -1.0], atol=1e-12)
    assert np.isnan(found.std).all()
    assert found.how == "exact, summed over all subsets"


def test_any_regressor_becomes_a_surrogate_and_a_surrogate_stays_one():
    S = subsets(20, 3)
    forest = RandomForestRegressor(3, random_state=0).fit(S, S[:, 0])
    adapted = as_surrogate(forest)
    assert isinstance(adapted, Plain)
    assert as_surrogate(adapted) is adapted
    np.testing.assert_array_equal(adapted.remainder()(S)[:, 0], forest.predict(S))
    mean, std = adapted.predict(S, return_std=True)
    np.testing.assert_array_equal(mean, forest.predict(S))
    assert np.isnan(std).all()


def test_a_weighted_sum_of_surrogates_has_the_weighted_sums_of_their_answers():
    average = fitted("average")
    for rule in ("shapley", "loo"):
        found = whence.attribute(average, rule)
        each = [whence.attribute(member, rule).scores for member in average.fitted_]
        np.testing.assert_allclose(found.scores, 0.3 * each[0] + 0.7 * each[1], atol=1e-9)
        assert found.how == "exact, summed over all subsets"


# ---- a new rule ------------------------------------------------------------------------------------------


def test_a_new_rule_is_one_object():
    """The change among few others, in words and numbers, for tasks and for pairs."""
    few = Rule("few", "Few-task", "the change among few", "with few", lambda S, keep_prob: Mixture.over([0.2], [1.0]))
    surrogate = fitted("combined")
    values = surrogate.predict(oracles.all_subsets(K))
    scores, pairs = whence.attribute(surrogate, few), whence.interactions(surrogate, rule=few)
    expected = [oracles.effect_weights(K, [k], [0.2], [1.0]) @ values for k in range(K)]
    np.testing.assert_allclose(scores.scores, expected, atol=1e-9)
    expected = oracles.effect_weights(K, [0, 3], [0.2], [1.0]) @ values
    np.testing.assert_allclose(pairs.scores[0, 3], expected, atol=1e-9)
    assert str(scores).startswith("few attribution (exact)")
    assert "Few-task attribution" in scores._repr_html_()
    assert "the change among few" in scores._repr_html_()
    assert "with few" in pairs._repr_html_()


def test_the_command_line_takes_a_new_rule(tmp_path, monkeypatch):
    few = Rule("few", "Few-task", "the change among few", "with few", lambda S, keep_prob: Mixture.over([0.2], [1.0]))
    monkeypatch.setitem(RULE_TABLE, "few", few)
    table = pd.DataFrame(oracles.all_subsets(3), columns=list("abc"))
    table.assign(loss=2 * table["a"] - table["b"]).to_csv(tmp_path / "runs.csv", index=False)
    for verb in ("attribute", "interactions"):
        result = CliRunner().invoke(app, [verb, str(tmp_path / "runs.csv"), "-O", "loss", "--rule", "few"])
        assert result.exit_code == 0, result.output
        assert "Few-task" in result.output


def test_the_help_of_the_command_line_names_every_rule():
    for option, pairs in ((arguments.Rule, False), (arguments.PairRule, True)):
        words = option.__metadata__[0].help.replace(",", "").split(" (")[0].split()
        assert set(words) - {"or"} == {name for name, rule in RULE_TABLE.items() if rule.pairs or not pairs}
