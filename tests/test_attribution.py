"""Every rule on every surrogate against its textbook formula over 2^K subsets, and the axioms it has to keep."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
from sklearn.base import clone

import oracles
import whence
from conformance import ANY, KERNELS, RULES, outcomes_of, subsets, table
from whence.answers.attribution import Attribution, attribute
from whence.answers.effects import as_model, contrast_effects
from whence.answers.rules import RULES as RULE_TABLE
from whence.answers.rules import Contrasts, find_rule
from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.mixture import Mixture

every_rule = pytest.mark.parametrize("rule", RULES)
every_surrogate = pytest.mark.parametrize("name", ANY)


def fitted(name, runs):
    """A surrogate as a model, without cross-validation."""
    return fit(runs, surrogate=ANY[name], n_folds=None)


def tabulated(model):
    return oracles.table_of(model.predict, model.outcomes.n_tasks)


# ---- numbers ---------------------------------------------------------------------------------------------


@every_rule
@every_surrogate
def test_scores_are_those_of_the_textbook(name, rule):
    model = fitted(name, table(30, 5))
    found = attribute(model, rule, keep_prob=0.3)
    expected = oracles.attribution(tabulated(model), rule, 0.3)
    np.testing.assert_allclose(found.scores, expected, atol=1e-8 * np.abs(expected).max())
    assert (found.sampling_error == 0).all()


@every_rule
@pytest.mark.parametrize("n_tasks", [1, 2, 3])
def test_few_tasks_are_as_right_as_many(rule, n_tasks):
    S = oracles.all_subsets(n_tasks)
    rng = np.random.default_rng(0)
    runs = Outcomes(np.vstack([S, S]), rng.normal(size=(2 * len(S), 2)))
    model = fitted("combined", runs)
    expected = oracles.attribution(tabulated(model), rule, runs.subsets.mean())
    np.testing.assert_allclose(attribute(model, rule).scores, expected, atol=1e-8)


@every_surrogate
def test_baseline_is_the_expected_outcome_over_the_subsets_of_the_rule(name):
    model = fitted(name, table(30, 5))
    truth = tabulated(model)
    K = 5
    by_size = [np.mean([v for s, v in truth.items() if sum(s) == n], axis=0) for n in range(K + 1)]
    expected = {
        "loo": truth[(1,) * K],
        "banzhaf": np.mean(list(truth.values()), axis=0),
        "shapley": np.mean(by_size, axis=0),
        "inclusion": oracles.bernoulli_weights(K, 0.3) @ np.array(list(truth.values())),
    }
    for rule in RULES:
        found = attribute(model, rule, keep_prob=0.3).baseline
        np.testing.assert_allclose(found, expected[rule], atol=1e-9, err_msg=rule)


def test_inclusion_keeps_tasks_as_often_as_the_runs_do_if_not_told():
    runs = table(60, 6, keep_prob=0.7)
    model = fitted("rbf", runs)
    np.testing.assert_allclose(
        attribute(model, "inclusion").scores, oracles.inclusion(tabulated(model), runs.subsets.mean()), atol=1e-9
    )


# ---- inclusion: the design's own average -------------------------------------------------------------------


def by_inclusion(model, drawn):
    """The mean prediction over the rows of a design that have a task, less the mean over all, (K, T)."""
    values = model.predict(drawn)
    return np.array([values[task == 1].mean(0) - values.mean(0) for task in drawn.T])


@pytest.mark.parametrize("name", ["rbf", "poly 3", "combined", "combined on ranks", "ridge", "forest"])
@pytest.mark.parametrize(("n_tasks", "size"), [(6, 2), (12, 5)])
def test_inclusion_of_subsets_of_one_size_averages_over_all_of_that_size(name, n_tasks, size):
    drawn = oracles.all_subsets(n_tasks)
    drawn = drawn[drawn.sum(1) == size]
    rows = np.random.default_rng(0).permutation(len(drawn))[: min(50, len(drawn))]
    runs = Outcomes(drawn[rows], outcomes_of(drawn[rows], 2))
    model = fitted(name, runs)
    found, expected = attribute(model, "inclusion"), by_inclusion(model, drawn)
    np.testing.assert_allclose(found.scores, expected, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(found.baseline, model.predict(drawn).mean(0), atol=1e-9)
    assert (found.sampling_error == 0).all()
    # Coin flips of the same rate, which the runs are not, would be something else.
    assert np.abs(attribute(model, "inclusion", keep_prob=size / n_tasks).scores - expected).max() > 0.05


@pytest.mark.parametrize("name", ["rbf", "combined", "ridge"])
def test_std_of_inclusion_is_that_of_the_average_over_all_subsets_of_one_size(name):
    drawn = oracles.all_subsets(6)
    drawn = drawn[drawn.sum(1) == 3]
    runs = Outcomes(drawn[::2], outcomes_of(drawn[::2], 1, noise=0.5))
    model = fitted(name, runs)
    contrasts = drawn.T / drawn.sum(0)[:, None] - 1 / len(drawn)
    expected = model.parts[0].surrogate.contrast_std(drawn, contrasts)
    found = attribute(model, "inclusion").std
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_given_scores_of_one_size_are_compared_with_those_of_the_others():
    coef, std = np.array([1.0, -2.0, 0.5, 3.0]), np.array([0.1, 0.2, 0.3, 0.4])
    found = AdditiveSurrogate.from_coefficients(coef, std=std).effects(1, Mixture.of_size(4, 2))
    directions = 0.5 * (np.eye(4) - (1 - np.eye(4)) / 3)
    np.testing.assert_allclose(found[0][:, 0], directions @ coef, atol=1e-12)
    np.testing.assert_allclose(found[1][:, 0], np.sqrt(directions**2 @ std**2), atol=1e-12)


def test_inclusion_of_many_tasks_of_one_size_is_within_its_sampling_error():
    """Where the remainder of a forest has to be sampled: 16 tasks, 4 in each of the 1820 subsets."""
    drawn = np.array([np.isin(np.arange(16), members) for members in combinations(range(16), 4)], float)
    runs = Outcomes(drawn[::40], outcomes_of(drawn[::40], 1))
    model = fitted("forest", runs)
    found = attribute(model, "inclusion")
    z = (found.scores - by_inclusion(model, drawn)) / found.sampling_error
    assert found.how == "exact for the product-kernel part, the remainder sampled"
    assert np.abs(z).max() < 4
    assert 0.4 < np.sqrt(np.mean(z**2)) < 1.6


DESIGNS = {
    "two sizes": lambda rng: rng.random((60, 8)).argsort(1) < rng.choice([2, 7], 60)[:, None],
    "tasks of unequal rate": lambda rng: rng.random((60, 8)) < np.linspace(0.1, 0.9, 8),
    "leave one out": lambda rng: np.vstack([np.ones((1, 8)), 1 - np.eye(8)]) > 0,
}


@pytest.mark.parametrize("design", DESIGNS)
def test_inclusion_of_any_other_design_averages_over_the_subsets_of_the_runs(design):
    drawn = np.unique(DESIGNS[design](np.random.default_rng(0)).astype(float), axis=0)
    model = fitted("rbf", Outcomes(drawn, outcomes_of(drawn, 2)))
    found = attribute(model, "inclusion")
    np.testing.assert_allclose(found.scores, by_inclusion(model, drawn), atol=1e-10)
    np.testing.assert_allclose(found.baseline, model.predict(drawn).mean(0), atol=1e-10)
    assert found.how == "averaged over the subsets of the runs"
    contrasts = drawn.T / drawn.sum(0)[:, None] - 1 / len(drawn)
    np.testing.assert_allclose(found.std, model.parts[0].surrogate.contrast_std(drawn, contrasts), atol=1e-9)


def test_inclusion_of_other_designs_states_how_far_off_its_sample_is():
    """Sixty subsets from a design of two sizes, drawn again and again, against thirty-six thousand of them."""
    coef = np.linspace(-1, 2, 8)
    surrogate = as_model(AdditiveSurrogate.from_coefficients(coef))
    many = np.vstack([DESIGNS["two sizes"](np.random.default_rng(seed)) for seed in range(100, 700)]).astype(float)
    truth = np.array([(many @ coef)[task == 1].mean() - (many @ coef).mean() for task in many.T])
    z = []
    for seed in range(40):
        drawn = DESIGNS["two sizes"](np.random.default_rng(seed)).astype(float)
        shares = drawn.T / drawn.sum(0)[:, None] - 1 / len(drawn)
        found = contrast_effects(surrogate, Contrasts(drawn, shares, np.full(len(drawn), 1 / len(drawn)), True))
        z.append((found.scores[:, 0] - truth) / found.sampling_error[:, 0])
    assert 0.7 < np.sqrt(np.mean(np.square(z))) < 1.4


@pytest.mark.parametrize("name", KERNELS)
@every_rule
def test_std_is_that_of_the_posterior_over_all_subsets(name, rule):
    """The variance of a linear functional of the process, from the covariance between all subsets."""
    model = fitted(name, table(30, 4, T=1))
    surrogate = model.parts[0].surrogate
    posterior = surrogate.groups_[0].posterior
    covariance = surrogate.covariance(oracles.all_subsets(4))[0] * posterior.scale[0] ** 2
    weights = {"loo": ([1.0], [1.0]), "banzhaf": ([0.5], [1.0]), "inclusion": ([0.3], [0.7])}.get(rule)
    if weights is None:
        nodes = np.linspace(0, 1, 2001)
        weights = (nodes, np.full(2001, 1 / 2000))
        weights[1][[0, -1]] /= 2  # the trapezoidal rule
    found = attribute(model, rule, keep_prob=0.3).std[:, 0]
    for k in range(4):
        a = oracles.effect_weights(4, [k], *weights)
        np.testing.assert_allclose(found[k], np.sqrt(a @ covariance @ a), rtol=1e-4, atol=1e-6)


def test_intervals_of_scores_hold_the_truth():
    """Effects of functions drawn from the very process: nine of ten lie in their 90% interval."""
    K, inside = 7, []
    S = oracles.all_subsets(K)
    kernel = oracles.gram(oracles.rbf([0.15] * K), S, S)
    half = np.linalg.cholesky(kernel + 1e-9 * np.eye(len(S)))
    for seed in range(25):
        rng = np.random.default_rng(seed)
        F = 3 + half @ rng.normal(size=len(S))
        rows = rng.permutation(len(S))[:50]
        y = F[rows] + np.sqrt(0.1) * rng.normal(size=50)
        found = attribute(KernelSurrogate(alpha=0.1, gamma=0.15).fit(S[rows], y), "shapley")
        low, high = found.interval()
        truth = oracles.shapley({tuple(map(int, s)): np.array([f]) for s, f in zip(S, F, strict=True)})
        inside.append((low <= truth) & (truth <= high))
    assert 0.83 < np.mean(inside) < 0.97


# ---- axioms ----------------------------------------------------------------------------------------------


@every_surrogate
def test_shapley_scores_add_up_to_all_tasks_less_none(name):
    model = fitted(name, table(30, 6))
    ends = model.predict(np.vstack([np.ones(6), np.zeros(6)]))
    np.testing.assert_allclose(attribute(model, "shapley").scores.sum(0), ends[0] - ends[1], atol=1e-8)


@every_rule
@pytest.mark.parametrize("name", [name for name in ANY if name != "forest"])
def test_two_tasks_that_do_the_same_get_the_same(name, rule):
    """On a table that is unchanged when tasks 1 and 3 change places."""
    S = oracles.all_subsets(5)
    y = np.exp(S[:, 0] - S[:, 1] * S[:, 2] - S[:, 3] * S[:, 2] + 0.5 * S[:, 1] * S[:, 3])
    scores = attribute(fitted(name, Outcomes(S, y)), rule).scores
    np.testing.assert_allclose(scores[1], scores[3], atol=1e-3 * np.abs(scores).max())


@every_rule
def test_a_task_that_no_prediction_depends_on_gets_nothing(rule):
    S = subsets(30, 5)
    model = KernelSurrogate().fit(S[:, :4], outcomes_of(S, 2))

    class Blind:
        n_features_in_ = 5

        def predict(self, X):
            return model.predict(X[:, :4])

    scores = attribute(Blind(), rule).scores
    np.testing.assert_allclose(scores[4], 0, atol=1e-12)
    np.testing.assert_allclose(scores[:4], attribute(model, rule).scores, atol=1e-8)


@every_rule
@pytest.mark.parametrize("name", ["rbf, given", "poly 2", "ols", "poly 3"])
def test_scores_of_a_sum_are_sums_of_scores(name, rule):
    """Linear smoothers: attributing y₀ + y₁ is attributing each and adding up."""
    runs = table(30, 5, T=2)
    both = fitted(name, runs)
    surrogate = clone(ANY[name])
    if name == "poly 2":
        surrogate.set_params(alpha=both.parts[0].surrogate.alpha_)
    total = fit(Outcomes(runs.subsets, runs.values.sum(1)), surrogate=surrogate, n_folds=None)
    np.testing.assert_allclose(attribute(total, rule).scores[:, 0], attribute(both, rule).scores.sum(1), atol=1e-8)


@every_rule
@every_surrogate
def test_targets_do_not_disturb_each_other(name, rule):
    """The scores of a target are those of enumerating its own column, wherever it stands."""
    runs = table(30, 4, T=3)
    model = fitted(name, runs)
    scores = attribute(model, rule, keep_prob=0.4).scores
    for t in range(3):
        alone = oracles.table_of(lambda rows, t=t: model.predict(rows)[:, t], 4)
        expected = oracles.attribution(alone, rule, 0.4)[:, 0]
        np.testing.assert_allclose(scores[:, t], expected, atol=1e-8)


def test_an_exact_surrogate_has_the_true_leave_one_out_scores():
    """The paper's ground truth I_k = F(1) − F(1 − e_k), from a surrogate that interpolates."""
    S = oracles.all_subsets(5)
    F = np.random.default_rng(0).normal(size=len(S))
    truth = oracles.loo({tuple(map(int, s)): np.array([f]) for s, f in zip(S, F, strict=True)})
    found = attribute(KernelSurrogate(alpha=1e-12, gamma=1.0).fit(S, F), "loo")
    np.testing.assert_allclose(found.scores, truth, atol=1e-7)


@every_rule
@pytest.mark.parametrize("name", ["rbf", "combined", "combined on ranks", "ridge", "forest"])
def test_targets_of_different_runs_each_get_the_scores_of_their_own_surrogate(name, rule):
    runs = table(30, 4, T=3, task_names=list("abcd"))
    values = runs.values.copy()
    values[:3, 0] = values[5:8, 2] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured in every run"):
        model = fit(Outcomes(runs.subsets, values), surrogate=ANY[name], n_folds=None)
    assert len(model.parts) == 3
    found = attribute(model, rule, keep_prob=0.4)
    np.testing.assert_allclose(found.scores, oracles.attribution(tabulated(model), rule, 0.4), atol=1e-8)
    for t, rows in enumerate((slice(3, None), slice(None), np.r_[0:5, 8:14])):
        alone = fit(Outcomes(runs.subsets[rows], runs.values[rows, t]), surrogate=ANY[name], n_folds=None)
        expected = attribute(alone, rule, keep_prob=0.4)
        np.testing.assert_allclose(found.scores[:, t], expected.scores[:, 0], atol=1e-8)
        np.testing.assert_allclose(found.std[:, t], expected.std[:, 0], atol=1e-8)


# ---- mixtures: shift -------------------------------------------------------------------------------------


def mixture_model(surrogate=None, T=2, K=4):
    W = 3 * np.random.default_rng(0).dirichlet(np.ones(K), 50)
    Y = np.column_stack([W @ np.arange(K), (W**2) @ np.arange(K)])[:, :T]
    return fit(Outcomes(W, Y), surrogate=surrogate or KernelSurrogate(alpha=0.01, gamma=1.0), n_folds=None)


def test_shift_is_the_change_when_a_task_takes_over_a_tenth_of_the_average_mixture():
    model = mixture_model()
    average = model.outcomes.subsets.mean(0)
    found = attribute(model, "shift")
    for k in range(4):
        moved = 0.9 * average
        moved[k] += 0.1 * average.sum()
        np.testing.assert_allclose(moved.sum(), average.sum())
        expected = model.predict(moved[None]) - model.predict(average[None])
        np.testing.assert_allclose(found.scores[k], expected[0], atol=1e-10)
    np.testing.assert_allclose(found.baseline, model.predict(average[None])[0])
    assert found.rule.name == "shift"


def test_shift_has_the_std_of_the_posterior():
    model = mixture_model(T=1)
    average = model.outcomes.subsets.mean(0)
    surrogate = model.parts[0].surrogate
    found = attribute(model, "shift").std[:, 0]
    scale = surrogate.groups_[0].posterior.scale[0]
    for k in range(4):
        moved = 0.9 * average
        moved[k] += 0.1 * average.sum()
        C, _ = surrogate.covariance(np.vstack([average, moved]))
        np.testing.assert_allclose(found[k], scale * np.sqrt(C[0, 0] + C[1, 1] - 2 * C[0, 1]), rtol=1e-6)


def test_shift_of_an_additive_surrogate_is_a_difference_of_coefficients():
    model = mixture_model(AdditiveSurrogate(), T=1)
    average = model.outcomes.subsets.mean(0)
    coef = model.parts[0].surrogate.coef_[:, 0]
    expected = 0.1 * (average.sum() * coef - average @ coef)
    np.testing.assert_allclose(attribute(model, "shift").scores[:, 0], expected, atol=1e-10)


def test_shift_of_an_additive_surrogate_has_the_std_of_its_posterior():
    model = mixture_model(AdditiveSurrogate(alpha=0.5), T=1)
    W, surrogate = model.outcomes.subsets, model.parts[0].surrogate
    centred = W - W.mean(0)
    inverse = np.linalg.inv(centred.T @ centred + 0.5 * np.eye(4))
    found = attribute(model, "shift").std[:, 0]
    for k in range(4):
        direction = 0.1 * (W.mean(0).sum() * np.eye(4)[k] - W.mean(0))
        expected = surrogate.noise_std_[0] * np.sqrt(direction @ inverse @ direction)
        np.testing.assert_allclose(found[k], expected, rtol=1e-8)


def test_shift_needs_the_runs():
    S = subsets(20, 3)
    with pytest.raises(InputError, match="The rule 'shift' starts from the average of the runs"):
        attribute(KernelSurrogate().fit(S, S[:, 0]), "shift")


# ---- words and tables ------------------------------------------------------------------------------------


def an_attribution(maximize=(False,), T=1):
    scores = np.array([[1.0], [-2.0], [0.1], [0.0]]) * np.ones((1, T))
    std = np.full((4, T), 0.2)
    return Attribution(
        scores=scores,
        std=std,
        sampling_error=np.zeros((4, T)),
        baseline=np.zeros(T),
        task_names=("a", "b", "c", "d"),
        target_names=tuple("xyz"[:T]),
        maximize=maximize,
        rule=RULE_TABLE["shapley"],
        how="exact",
    )


@pytest.mark.parametrize(
    ("maximize", "words"), [(False, ["hurts", "helps"]), (True, ["helps", "hurts"])], ids=["minimize", "maximize"]
)
def test_verdicts_follow_the_direction_of_the_target(maximize, words):
    unclear = "not distinguishable from zero"
    assert an_attribution((maximize,)).verdicts()[:, 0].tolist() == [*words, unclear, unclear]


def test_verdicts_of_targets_in_different_directions():
    found = an_attribution((False, True), T=2).verdicts()
    assert found[0].tolist() == ["hurts", "helps"]
    assert found[1].tolist() == ["helps", "hurts"]


def test_verdicts_depend_on_the_level():
    found = an_attribution()
    assert found.verdicts(level=0.3)[2, 0] == "hurts"
    assert found.verdicts(level=0.999)[2, 0] == "not distinguishable from zero"


def test_intervals_are_normal_and_hold_the_sampling_error_too():
    exact = an_attribution()
    low, high = exact.interval(0.8)
    np.testing.assert_allclose(high - exact.scores, oracles.normal_quantile(0.8) * 0.2)
    np.testing.assert_allclose(exact.scores - low, oracles.normal_quantile(0.8) * 0.2)
    sampled = Attribution(**{**vars(exact), "sampling_error": np.full((4, 1), 0.15)})
    low, high = sampled.interval(0.8)
    np.testing.assert_allclose(high - low, 2 * oracles.normal_quantile(0.8) * 0.25)


@pytest.mark.parametrize("maximize", [False, True])
def test_the_table_has_a_row_per_task_and_target_the_most_helpful_first(maximize):
    runs = table(30, 4, task_names=list("abcd"), target_names=["x", "y"], maximize=[maximize, not maximize])
    found = attribute(fitted("rbf", runs))
    frame = found.to_frame(0.8)
    assert list(frame.columns) == ["target", "rank", "task", "score", "std", "low", "high", "verdict"]
    assert frame["target"].tolist() == ["x"] * 4 + ["y"] * 4
    assert frame["rank"].tolist() == [1, 2, 3, 4] * 2
    for t, (target, rows) in enumerate(frame.groupby("target")):
        better = 1 if runs.maximize[t] else -1
        assert (np.diff(better * rows["score"]) <= 0).all()
        assert sorted(rows["task"]) == list("abcd")
        for row in rows.itertuples():
            k = "abcd".index(row.task)
            assert target == found.target_names[t]
            assert (row.score, row.std) == (found.scores[k, t], found.std[k, t])
            assert row.low == found.interval(0.8)[0][k, t]
            assert row.high == found.interval(0.8)[1][k, t]
            assert row.verdict == found.verdicts(0.8)[k, t]


def test_the_text_names_the_rule_and_how_it_was_computed():
    text = str(attribute(fitted("combined on ranks", table(30, 4, task_names=list("abcd"))), "banzhaf"))
    assert text.startswith("banzhaf attribution (exact, summed over all subsets)\n")
    assert "verdict" in text
    assert str(attribute(fitted("rbf", table(30, 4)), "loo")).startswith("loo attribution (exact)\n")


def test_names_and_directions_are_those_of_the_table():
    runs = table(30, 3, task_names=list("abc"), target_names=["x", "y"], maximize=["y"])
    found = attribute(fitted("rbf", runs))
    assert (found.task_names, found.target_names) == (("a", "b", "c"), ("x", "y"))
    assert (found.maximize, found.rule.name, found.how) == ((False, True), "shapley", "exact")


# ---- refusals and warnings -------------------------------------------------------------------------------


def prompts():
    """Four demonstrations of fifty, as in the paper's in-context learning."""
    S = whence.FixedSize(4).draw(50, 60)
    return fit(Outcomes(S, S @ np.linspace(-1, 1, 50)), surrogate=KernelSurrogate(alpha=0.1, gamma=0.1), n_folds=None)


@pytest.mark.parametrize(("rule", "reach"), [("loo", "50"), ("banzhaf", "25"), ("shapley", "0 to 50")])
def test_rules_about_subsets_far_larger_than_any_run_warn(rule, reach):
    message = f"The rule '{rule}' asks about subsets of {reach} tasks, and the runs have 4 of 50"
    with pytest.warns(DataWarning, match=message + ": this is extrapolation.*rule='inclusion'"):
        attribute(prompts(), rule)


def test_rules_about_subsets_far_smaller_than_any_run_warn():
    S = np.vstack([np.ones(30), 1 - np.eye(30)])
    model = fit(Outcomes(S, S[:, 0]), surrogate=KernelSurrogate(alpha=0.1, gamma=0.1), n_folds=None)
    with pytest.warns(DataWarning, match="nearly all runs have 29 of 30: this is extrapolation"):
        attribute(model, "shapley")


@pytest.mark.parametrize(
    ("subsets", "default"),
    [
        (whence.FixedSize(4).draw(14, 40), "inclusion"),
        (whence.Bernoulli(0.9).draw(30, 40), "inclusion"),
        (whence.Bernoulli(0.5).draw(14, 40), "banzhaf"),
        (whence.Exhaustive().draw(3), "shapley"),
        (whence.FixedSize(4).draw(14, 40) / 4, "shift"),
    ],
)
def test_the_default_rule_asks_about_subsets_like_the_runs(subsets, default):
    runs = whence.Outcomes(subsets, subsets @ np.arange(subsets.shape[1]))
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate("ridge"), n_folds=None)
    assert whence.attribute(model).rule.name == default


@pytest.mark.parametrize(
    ("subsets", "default"),
    [
        (whence.Bernoulli(0.5).draw(5, 20), "shapley"),  # one in six of them has one task, or all but one
        (whence.Bernoulli(0.5).draw(14, 1000), "banzhaf"),
        (whence.Bernoulli(0.8).draw(8, 40), "inclusion"),
        (np.vstack([whence.Bernoulli(p).draw(14, 20) for p in (0.1, 0.5, 0.9)]), "shapley"),
        (whence.Exhaustive().draw(10), "shapley"),  # all that are small, though they are few
        (np.vstack([np.zeros(14), np.ones(14), whence.FixedSize(7).draw(14, 60)]), "banzhaf"),
    ],
    ids=["few tasks", "many coin flips", "large", "of all sizes", "complete", "two ends"],
)
@pytest.mark.parametrize("again", [1, 3])
def test_what_the_sizes_of_the_runs_can_answer(subsets, default, again):
    subsets = np.repeat(subsets, again, axis=0)
    assert find_rule(None, subsets).name == default
    assert find_rule(None, subsets, pairs=True).name == ("shapley" if default == "shapley" else "banzhaf")


def test_the_rule_that_a_warning_names_does_not_warn():
    S = whence.Bernoulli(0.5).draw(14, 60)
    model = fit(Outcomes(S, S[:, 0]), surrogate=KernelSurrogate(alpha=0.1, gamma=0.1), n_folds=None)
    for answer in (attribute, whence.interactions):
        with pytest.warns(DataWarning, match="nearly all runs have 4 to 10 of 14.* use rule='banzhaf'"):
            answer(model, "shapley")
        answer(model, "banzhaf")


def test_one_size_does_not_tell_what_one_more_task_does():
    S = whence.FixedSize(5).draw(10, 40)
    model = fit(Outcomes(S, S @ np.arange(1.0, 11)), surrogate=AdditiveSurrogate("ridge"), n_folds=None)
    with pytest.warns(DataWarning, match="'banzhaf' asks about subsets of 5 tasks, and the runs have 5 of 10"):
        attribute(model, "banzhaf")
    found = attribute(model)
    assert found.verdicts()[[0, 9], 0].tolist() == ["better than others", "worse than others"]  # lower is better
    assert {"better than others", "worse than others"} <= set(found.to_frame()["verdict"])


@pytest.mark.parametrize("order", [1, 2])
def test_what_shapley_adds_to_the_sizes_of_the_runs_is_uncertain(order):
    """Its std grows by twice that; where the runs reach from hardly any task to nearly all, it does not."""
    rng = np.random.default_rng(0)
    flips, all_sizes = ((rng.random((40, 9)) < p).astype(float) for p in (0.5, rng.random((40, 1))))
    for S, unseen in ((flips, True), (all_sizes, False)):
        model = fit(Outcomes(S, np.exp(-S @ rng.random(9))), surrogate=KernelSurrogate(), n_folds=None)
        surrogate, nodes = model.parts[0].surrogate, (np.arange(200) + 0.5) / 200
        values, std = surrogate.effects(order, Mixture.over(nodes, np.full(200, 1 / 200)))
        predicted = model.predict_quietly(np.array(oracles.all_subsets(9), float))[:, 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            found = (attribute if order == 1 else whence.interactions)(model, "shapley")
        for tasks in ((0,), (4,)) if order == 1 else ((0, 1), (3, 8)):
            near = oracles.effect_weights(9, tasks, [S.mean()], [1.0]) @ predicted
            added = 2 * abs(values[(*tasks, 0)] - near)
            assert found.scores[(*tasks, 0)] == pytest.approx(values[(*tasks, 0)], rel=1e-3)
            assert found.std[(*tasks, 0)] == pytest.approx(np.hypot(std[(*tasks, 0)], added if unseen else 0), rel=1e-2)


def test_inclusion_never_extrapolates():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attribute(prompts(), "inclusion")
        for rule in RULES:
            attribute(fitted("rbf", table(40, 6)), rule)


@every_rule
def test_mixture_weights_are_refused(rule):
    message = f"The rule '{rule}' needs tasks that are in or out, but this table has mixture weights."
    with pytest.raises(InputError, match=message):
        attribute(mixture_model(), rule)


def test_unknown_rules_are_named():
    with pytest.raises(
        InputError, match=r"The 'rule' parameter of attribute must be one of 'shapley'.*Got 'lime' instead"
    ):
        attribute(fitted("rbf", table(20, 3)), "lime")


@pytest.mark.parametrize("keep_prob", [0.0, 1.0, -0.5, 2.0])
def test_impossible_keep_probs_are_refused(keep_prob):
    with pytest.raises(
        InputError, match=f"'keep_prob' parameter of attribute must lie between 0 and 1. Got {keep_prob}"
    ):
        attribute(fitted("rbf", table(20, 3)), "inclusion", keep_prob=keep_prob)


def test_a_surrogate_alone_can_be_attributed():
    S = subsets(30, 4)
    surrogate = CombinedSurrogate().fit(S, outcomes_of(S)[:, 0])
    expected = oracles.shapley(oracles.table_of(surrogate.predict, 4))
    np.testing.assert_allclose(attribute(surrogate).scores, expected, atol=1e-8)
