"""`whence.fit`: what it averages, what it says about itself, and that what it says is true of new runs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import norm, spearmanr
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor

import oracles
import whence
from conformance import FOREST, KERNELS, outcomes_of, subsets, table
from whence.errors import DataWarning, InputError
from whence.evaluation import coverage, lds
from whence.outcomes import Outcomes
from whence.surrogates import crossvalidation
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.fit import CANDIDATES, fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.model import Model

GIVEN = KernelSurrogate(alpha=0.1, gamma=0.2)  # nothing to tune: fast


# ---- the average -----------------------------------------------------------------------------------------


def test_on_an_additive_table_the_average_predicts_as_well_as_ridge():
    scores = []
    for seed in range(4):
        S = subsets(160, 12, seed=seed)
        rng = np.random.default_rng(seed)
        Y = S @ rng.normal(size=(12, 1)) + rng.normal(size=(len(S), 1))
        held_out = Outcomes(S[60:], Y[60:])
        ridge = AdditiveSurrogate().fit(S[:60], Y[:60])
        scores.append([lds(model, held_out).mean for model in (fit(Outcomes(S[:60], Y[:60])), ridge)])
    chosen, ridge = np.mean(scores, axis=0)
    assert chosen > ridge - 0.03


def test_on_a_table_of_interactions_kernels_have_the_weight():
    model = fit(table(60, 6, T=1))
    weights = model.parts[0].weights
    assert weights.get("kernel", 0) + weights.get("kernel on ranks", 0) > 0.9
    assert model.quality()["lds"] > model.quality()["lds_tuned_linear"] + 0.02


def weights_by_hand(trials, runs):
    """Held-out errors to the power −(5 + n/15), half own and half shared by targets.

    An error is the mean square in normal scores to the power 0.7 times that relative to the variance of the outcomes to
    the power 0.3. The additive surrogate counts for a quarter.
    """
    n, normal = len(runs.values), norm.ppf((np.arange(len(runs.values)) + 0.5) / len(runs.values))
    logs = np.empty((len(trials), runs.n_targets))
    for c, trial in enumerate(trials):
        for t, y in enumerate(runs.values.T):
            ordered = np.sort(y)
            missed = np.interp(trial.predicted[:, t], ordered, normal) - np.interp(y, ordered, normal)
            relative = np.mean((trial.predicted[:, t] - y) ** 2) / np.mean((y - y.mean()) ** 2)
            logs[c, t] = np.log(np.mean(missed**2) ** 0.7 * relative**0.3 + 1e-6)
    power = np.exp(-(5 + n / 15) * (logs / 2 + logs.mean(1, keepdims=True) / 2))
    power[0] /= 4
    return power / power.sum(0)


def test_weights_are_powers_of_held_out_errors():
    runs = table(30, 6, T=2, noise=0.5)
    part = fit(runs).parts[0]
    trials = [next(trial for trial in part.trials if trial.name == name) for name in CANDIDATES]
    expected = dict(zip(CANDIDATES, weights_by_hand(trials, runs), strict=True))
    assert part.name == "average"
    assert set(part.weights) == set(CANDIDATES)
    for name, weight in part.weights.items():
        np.testing.assert_allclose(weight, expected[name], rtol=1e-9)


def test_effects_of_small_tasks_are_right_where_one_task_dominates():
    """Outcomes lie in two heaps: in ranks the gap between them is nothing, and the small effects become large ones."""
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        S = rng.integers(0, 2, (80, 8)).astype(float)
        effects = np.r_[5.0, 0.1 * rng.normal(size=7)]
        found = whence.attribute(fit(Outcomes(S, S @ effects + 0.1 * rng.normal(size=80)))).to_frame()
        found = found.set_index("task").loc[[f"task_{k}" for k in range(8)]]
        inside.append((found["low"] <= effects) & (effects <= found["high"]))
    assert np.mean(inside) > 0.8  # 0.35 where members are weighed by errors in ranks alone


def test_the_average_is_that_of_its_members_fitted_to_all_runs():
    runs = table(30, 6, T=2, noise=0.5)
    model = fit(runs)
    rows, part = subsets(20, 6, seed=3), model.parts[0]
    means, stds = [], []
    for name in part.weights:
        mean, std = clone(CANDIDATES[name]).fit(runs.subsets, runs.values).predict(rows, return_std=True)
        means.append(mean), stds.append(std)
    weights = np.array(list(part.weights.values()))[:, None, :]
    expected = (weights * means).sum(0)
    variance = (weights * (np.square(stds) + np.square(means))).sum(0) - expected**2
    mean, std = model.predict(rows, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(variance) * part.chosen.factor, rtol=1e-6)


def test_effects_of_the_average_are_those_of_its_predictions():
    model = fit(table(30, 6, T=2, noise=0.5))
    values = oracles.table_of(model.predict, 6)
    np.testing.assert_allclose(whence.attribute(model).scores, oracles.shapley(values), atol=1e-9)


def test_pairs_are_as_uncertain_as_those_who_see_them_say():
    """A surrogate that adds up tasks knows nothing of pairs, however much weight it has."""
    S = subsets(25, 6)
    rng = np.random.default_rng(0)
    y = S @ rng.normal(size=6) + 0.3 * rng.normal(size=25)
    members = {name: CANDIDATES[name] for name in ("additive", "kernel")}
    average = AveragedSurrogate(members, np.array([[0.5], [0.5]])).fit(S, y)
    kernel = clone(CANDIDATES["kernel"]).fit(S, y)
    found, alone = (whence.interactions(model, "banzhaf").std[0, 1, 0] for model in (average, kernel))
    assert found > 0.8 * alone


def test_with_many_runs_one_is_left():
    model = fit(table(240, 6, T=1, noise=0.01))
    assert max(weight[0] for weight in model.parts[0].weights.values()) > 0.9


@pytest.mark.parametrize("name", CANDIDATES)
def test_one_can_be_asked_for_by_name(name):
    runs = table(40, 5)
    model = fit(runs, surrogate=name)
    assert model.parts[0].name == name
    expected = clone(CANDIDATES[name]).fit(runs.subsets, runs.values)
    np.testing.assert_allclose(model.predict(runs.subsets), expected.predict(runs.subsets), atol=1e-9)


def test_an_unknown_name_is_refused():
    message = r"The 'surrogate' parameter of fit must be a regressor or one of 'additive', .* Got 'kernal' instead\."
    with pytest.raises(InputError, match=message):
        fit(table(20, 4), surrogate="kernal")


def test_candidates_are_not_touched():
    fit(table(40, 5))
    for candidate in CANDIDATES.values():
        assert not hasattr(candidate, "n_features_in_")


@pytest.mark.parametrize("m", [3, 5])
def test_too_few_subsets_to_check_give_the_average_before_any_run_and_no_claim(m):
    S = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]])[:m]
    model = fit(Outcomes(S, S[:, 0] + 0.1 * np.arange(m)))
    assert [weight.tolist() for weight in model.parts[0].weights.values()] == [[1 / 9], [4 / 9], [4 / 9]]
    assert model.parts[0].trials == ()
    assert np.isnan([model.quality()[key] for key in ("lds", "residual_error", "coverage_90")]).all()
    assert "treat every number as a guess" in str(model)
    assert np.isfinite(model.predict(S)).all()


def test_the_same_seed_gives_the_same_model_and_another_seed_other_folds():
    runs = table(40, 5)
    first, second = fit(runs), fit(runs)
    np.testing.assert_array_equal(list(first.quality().values()), list(second.quality().values()))
    for one, other in zip(
        first.predict(runs.subsets, return_std=True), second.predict(runs.subsets, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert fit(runs, seed=1).quality()["lds"] != first.quality()["lds"]


def test_only_a_sample_of_very_many_subsets_is_cross_validated(monkeypatch):
    runs = table(60, 6)
    monkeypatch.setattr(crossvalidation, "CHOICE_RUNS", 20)
    seen = []
    original = crossvalidation.lds
    monkeypatch.setattr(crossvalidation, "lds", lambda p, held: (seen.append(held.n_runs), original(p, held))[1])
    model = fit(runs, surrogate=GIVEN)
    assert sum(seen) == 2 * 20, "the surrogate and the size-only yardstick"
    expected = clone(GIVEN).fit(runs.subsets, runs.values).predict(runs.subsets)
    np.testing.assert_allclose(model.predict(runs.subsets), expected)


# ---- what it says ----------------------------------------------------------------------------------------


def test_words_name_the_table_the_choice_and_the_quality():
    model = fit(table(60, 6, T=1, target_names=["loss"]))
    text, q = str(model), model.quality()
    assert repr(model.outcomes) in text
    shares = {name: weight.mean() for name, weight in model.parts[0].weights.items()}
    if len(shares) > 1:
        assert text.splitlines()[1].startswith("Average: ")
        assert all(f"{name} {share:.0%}" in text for name, share in shares.items())
    probably = f"on new runs probably {q['lds_low']:.2f} to {q['lds_high']:.2f}"
    assert f"rank correlation {q['lds']:.2f} ({probably}; tuned linear {q['lds_tuned_linear']:.2f}" in text
    assert f"subset size alone {q['lds_size_only']:.2f}" in text
    assert f"residual error {q['residual_error']:.2f} of the variance" in text
    assert f"90% intervals hold {q['coverage_90']:.0%}" in text
    assert "noise ceiling" not in text, "no subset was run twice"


def test_words_tell_targets_of_different_runs_apart():
    runs = table(40, 5, T=2, target_names=["loss", "acc"])
    values = runs.values.copy()
    values[:7, 1] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured in every run"):
        text = str(fit(Outcomes(runs.subsets, values, target_names=["loss", "acc"])))
    assert " for loss: " in text
    assert " for acc: " in text


@pytest.mark.parametrize(
    ("noise", "words"), [(0.01, "can be relied on"), (1e3, "Too weak to act on")], ids=["signal", "noise"]
)
def test_words_of_trust_follow_the_quality(noise, words):
    assert words in str(fit(table(80, 8, T=3, noise=noise, seed=2)))


def test_noise_ceiling_appears_when_runs_are_repeated():
    S = np.repeat(subsets(20, 5), 2, axis=0)
    model = fit(Outcomes(S, outcomes_of(S, noise=0.3)), surrogate=GIVEN)
    assert 0 < model.quality()["noise_ceiling"] <= 1
    assert "noise ceiling" in str(model)


# ---- honesty: cross-validated numbers hold for runs never seen -------------------------------------------


@pytest.fixture(scope="module")
def simulations():
    """Models of 8 tables, each with 100 runs that it has not seen."""
    found = []
    for seed in range(8):
        S = subsets(150, 9, seed=seed)
        Y = outcomes_of(S, noise=(0.2, 0.8)[seed % 2], seed=seed)
        found.append((fit(Outcomes(S[:50], Y[:50])), Outcomes(S[50:], Y[50:])))
    return found


@pytest.mark.slow
def test_cross_validated_rank_correlation_is_that_of_new_runs(simulations):
    promised = np.array([model.quality()["lds"] for model, _ in simulations])
    kept = np.array([lds(model, held_out).mean for model, held_out in simulations])
    assert abs(promised.mean() - kept.mean()) < 0.06
    assert np.abs(promised - kept).max() < 0.25
    assert 0.5 < kept.mean() < 0.98, "neither trivial nor hopeless"


def test_cross_validated_error_is_that_of_new_runs(simulations):
    promised = np.mean([model.quality()["residual_error"] for model, _ in simulations])
    errors = [
        ((held_out.values - model.predict(held_out.subsets)) ** 2).mean() / held_out.values.var()
        for model, held_out in simulations
    ]
    assert abs(promised - np.mean(errors)) < 0.08


def test_intervals_hold_nine_of_ten_new_runs(simulations):
    held = [coverage(model, held_out).mean for model, held_out in simulations]
    assert 0.84 < np.mean(held) < 0.96
    promised = [model.quality()["coverage_90"] for model, _ in simulations]
    assert 0.8 < np.mean(promised) < 0.97


def test_intervals_of_a_surrogate_that_misjudges_its_noise_are_put_right():
    """An almost interpolating kernel on noisy runs is far too sure of itself; cross-validation is not fooled."""
    S = subsets(160, 9)
    Y = outcomes_of(S, noise=1.0)
    held_out = Outcomes(S[60:], Y[60:])
    model = fit(Outcomes(S[:60], Y[:60]), surrogate=KernelSurrogate(alpha=1e-4, gamma=0.05))
    assert 0.8 < coverage(model, held_out).mean <= 0.99
    surrogate = model.parts[0].surrogate
    mean, std = surrogate.predict(held_out.subsets, return_std=True)
    stated = model.predict(held_out.subsets, return_std=True)
    np.testing.assert_allclose(stated[0][:, 0], mean)
    np.testing.assert_allclose(stated[1][:, 0], std * model.parts[0].factor)


def test_replicates_are_held_out_together():
    """Two runs per subset that share a value specific to it, and nothing else: nothing can be predicted."""
    scores = []
    for seed in range(5):
        S = np.repeat(subsets(30, 10, seed=seed), 2, axis=0)
        rng = np.random.default_rng(seed)
        own = np.repeat(rng.normal(size=(30, 3)), 2, axis=0)
        runs = Outcomes(S, own + 0.01 * rng.normal(size=own.shape))
        for surrogate in (KernelSurrogate(alpha=1e-6, gamma=2.0), AdditiveSurrogate()):
            scores.append(fit(runs, surrogate=surrogate).quality()["lds"])
    assert abs(np.mean(scores)) < 0.15
    assert max(scores) < 0.5


@pytest.mark.slow
def test_pure_noise_does_not_look_predictable():
    scores = []
    for seed in range(5):
        S = np.repeat(subsets(30, 8, seed=seed), 2, axis=0)
        runs = Outcomes(S, np.random.default_rng(seed).normal(size=(len(S), 4)))
        scores.append(fit(runs).quality()["lds"])
    assert abs(np.mean(scores)) < 0.12


def test_quality_is_cross_validation_by_hand():
    """Fold by fold: fit without the fold, predict it, and compare what is said beyond the mean of the other folds."""
    runs = table(30, 5, T=1, noise=0.5)
    model = fit(runs, surrogate=GIVEN, n_folds=3, seed=5)
    y = runs.values[:, 0]
    distinct = np.unique(runs.subsets, axis=0)
    order = np.random.default_rng(5).permutation(len(distinct))
    fold_of = {tuple(distinct[i]): place % 3 for place, i in enumerate(order)}
    folds = np.array([fold_of[tuple(row)] for row in runs.subsets])
    predicted, std, centred = np.empty((3, len(y)))
    for fold in range(3):
        held = folds == fold
        refit = clone(GIVEN).fit(runs.subsets[~held], y[~held])
        predicted[held], std[held] = refit.predict(runs.subsets[held], return_std=True)
        centred[held] = predicted[held] - y[~held].mean()
    (trial,) = (trial for trial in model.parts[0].trials if trial.name == model.parts[0].name)
    np.testing.assert_allclose(model.quality()["lds"], spearmanr(centred, y).statistic)
    np.testing.assert_allclose(model.quality()["residual_error"], np.mean((predicted - y) ** 2) / y.var())
    # Intervals are stretched until nine of ten hold; how many do is judged fold by fold with the others' factor. With
    # few runs, that is their root mean square by Student's t, two runs counting as one; with many, their quantile.
    # Beside it counts how widely outcomes spread, as much as the errors with eight subsets, and less with more.
    every = np.abs(predicted - y) / std
    z = oracles.normal_quantile(0.9)

    def factor(of):
        ratio, n, m = every[of], of.sum(), len(np.unique(runs.subsets[of], axis=0))
        wide = y[of].std(ddof=1) / np.median(std[of]) * student.ppf(0.95, m - 1) / z
        share = 64 / (64 + m**2)
        return errors_alone(ratio, n) ** (1 - share) * wide**share

    def errors_alone(ratio, n):
        square = ((ratio**2).sum() + 8) / (n + 8)  # the std itself counts as much as eight runs
        by_square = np.sqrt(square) * student.ppf(0.95, (n - 1 + 8) / 2) / z
        return (np.quantile(ratio, 0.9) / z) ** (n / (n + 50)) * by_square ** (50 / (n + 50))

    np.testing.assert_allclose(trial.factor, factor(np.ones(len(y), bool)))
    inside = [every[i] <= z * factor(folds != folds[i]) for i in range(len(y))]
    np.testing.assert_allclose(model.quality()["coverage_90"], np.mean(inside))


def test_n_folds_none_fits_the_given_surrogate_without_checking_it():
    runs = table(30, 5)
    model = fit(runs, surrogate=GIVEN, n_folds=None)
    assert model.parts[0].trials == ()
    np.testing.assert_allclose(model.predict(runs.subsets), fit(runs, surrogate=GIVEN).predict(runs.subsets))


# ---- missing outcomes ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_target_with_gaps_is_fitted_as_if_alone_on_its_runs():
    runs = table(60, 7, T=3, noise=0.3)
    values = runs.values.copy()
    values[:15, 0] = np.nan
    values[40:, 2] = np.nan
    with pytest.warns(DataWarning, match=r"Targets not measured in every run: outcome_0 \(15 of 60 missing\)"):
        model = fit(Outcomes(runs.subsets, values))
    assert len(model.parts) == 3
    for t, rows in enumerate((slice(15, None), slice(None), slice(None, 40))):
        alone = fit(Outcomes(runs.subsets[rows], runs.values[rows, t]))
        part = next(part for part in model.parts if t in part.targets)
        assert part.name == alone.parts[0].name
        for one, other in zip(
            model.predict(runs.subsets, return_std=True), alone.predict(runs.subsets, return_std=True), strict=True
        ):
            np.testing.assert_allclose(one[:, t], other[:, 0], rtol=1e-9)


def test_targets_with_the_same_gaps_share_a_surrogate():
    runs = table(40, 5, T=4)
    values = runs.values.copy()
    values[:5, [0, 2]] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured"):
        model = fit(Outcomes(runs.subsets, values), surrogate=GIVEN)
    assert sorted(tuple(part.targets) for part in model.parts) == [(0, 2), (1, 3)]
    expected = clone(GIVEN).fit(runs.subsets[5:], runs.values[5:, [0, 2]])
    np.testing.assert_allclose(model.predict(runs.subsets)[:, [0, 2]], expected.predict(runs.subsets))


# ---- what cannot be answered, and what deserves a look ---------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan, np.nan, np.nan], "At least 3 measured runs are needed. Got fewer for outcome_0."),
        ([np.nan] * 4, "No run has a measured value of outcome_0. Leave the target out, or measure it."),
    ],
)
def test_too_few_measured_runs_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        fit(Outcomes(oracles.all_subsets(2), values))


def test_fewer_than_three_runs_are_refused():
    with pytest.raises(InputError, match=r"At least 3 measured runs are needed\. Got fewer for outcome_0\."):
        fit(Outcomes([[1, 0], [0, 1]], [1.0, 2.0]))


def test_one_subset_over_and_over_is_refused():
    with pytest.raises(InputError, match="All runs have the same subset of tasks: nothing can be said"):
        fit(Outcomes([[1, 0]] * 5, np.arange(5.0)))


@pytest.mark.parametrize("n_folds", [1, 0, -3])
def test_less_than_two_folds_are_refused(n_folds):
    message = f"The 'n_folds' parameter of fit must be at least 2.* Got {n_folds} instead."
    with pytest.raises(InputError, match=message):
        fit(table(20, 4), n_folds=n_folds)


def test_no_folds_and_no_surrogate_are_refused():
    with pytest.raises(InputError, match=r"Without cross-validation \(n_folds=None\) surrogates cannot be weighted"):
        fit(table(20, 4), n_folds=None)


def test_more_folds_than_subsets_leave_one_out():
    model = fit(table(8, 4), surrogate=GIVEN, n_folds=50)
    assert np.isfinite(model.quality()["residual_error"])


def test_concerns_are_warnings_that_name_the_columns():
    S = subsets(20, 4)
    S[:, 2] = 1
    with pytest.warns(
        DataWarning, match="Tasks with the same weight in every run, so that their effect cannot be seen: task_2"
    ):
        fit(Outcomes(S, outcomes_of(S)), surrogate=GIVEN)


def test_a_table_without_concerns_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(table(30, 5), surrogate=GIVEN)


def test_a_constant_target_is_predicted_constant_and_counted_as_undefined():
    runs = table(30, 6, T=2)
    values = np.column_stack([runs.values[:, 0], np.full(30, 4.0)])
    with pytest.warns(DataWarning, match="Targets with the same value in every run"):
        model = fit(Outcomes(runs.subsets, values))
    np.testing.assert_allclose(model.predict(runs.subsets)[:, 1], 4.0)
    (chosen,) = (trial for trial in model.parts[0].trials if trial.name == model.parts[0].name)
    assert np.isnan(chosen.lds[1])
    assert model.quality()["lds"] == pytest.approx(chosen.lds[0])


# ---- predict ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return fit(table(30, 4, task_names=list("abcd"), target_names=["x", "y"]), surrogate=GIVEN)


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ([["a", "c"]], [1, 0, 1, 0]),
        (["a", "c"], [1, 0, 1, 0]),
        ([{"a": 1.0, "d": 0.5}], [1, 0, 0, 0.5]),
        ([[1, 0, 1, 0]], [1, 0, 1, 0]),
        ([1, 0, 1, 0], [1, 0, 1, 0]),
        (np.array([1, 0, 1, 0]), [1, 0, 1, 0]),
        (np.array([[1.0, 0.0, 1.0, 0.0]]), [1, 0, 1, 0]),
        ([[]], [0, 0, 0, 0]),
    ],
)
def test_subsets_are_given_as_names_weights_or_rows(model, given, row):
    expected = model.parts[0].surrogate.predict(np.array([row], dtype=float))
    np.testing.assert_allclose(model.predict(given), expected)
    assert model.predict(given).shape == (1, 2)


def test_several_subsets_at_once_and_none(model):
    both = model.predict([["a"], ["b", "d"]])
    np.testing.assert_allclose(both, np.vstack([model.predict([["a"]]), model.predict([["b", "d"]])]))
    mean, std = model.predict([["a"], ["b", "d"]], return_std=True)
    np.testing.assert_array_equal(mean, both)
    assert std.shape == (2, 2)
    assert (std > 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((2, 3)), r"Subsets must have one column per task \(4\). Got 3 instead."),
        ([[1, 0, 1]], r"row of 4 numbers, one per task. Got shape \(3,\) instead"),
        ([["a", "e"]], r"'e'"),
    ],
)
def test_subsets_of_the_wrong_width_and_unknown_tasks_are_refused(model, given, message):
    with pytest.raises(InputError, match=message):
        model.predict(given)


def test_a_model_hands_on_the_names_and_directions_of_its_table():
    runs = table(30, 4, task_names=list("abcd"), target_names=["x", "y"], maximize=["y"])
    model = fit(runs, surrogate=GIVEN)
    assert isinstance(model, Model)
    assert model.outcomes is runs
    assert (model.task_names, model.target_names) == (("a", "b", "c", "d"), ("x", "y"))
    assert model.maximize == (False, True)


def test_covariance_is_averaged_over_targets():
    runs = table(40, 5, T=3)
    values = runs.values.copy()
    values[:9, 0] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured"):
        model = fit(Outcomes(runs.subsets, values), surrogate=KernelSurrogate(alpha=0.2, gamma=0.3))
    new = oracles.all_subsets(5)[:6]
    kernel = oracles.rbf([0.3] * 5)
    expected = np.zeros((6, 6))
    for rows, share in ((slice(9, None), 1 / 3), (slice(None), 2 / 3)):
        S = runs.subsets[rows]
        expected += share * oracles.gp_predict(kernel, np.full(len(S), 0.2), S, values[rows, 1:], new)[1]
    covariance, noise = model.covariance(new)
    np.testing.assert_allclose(covariance, expected, atol=1e-10)
    np.testing.assert_allclose(noise, 0.2)


# ---- a regressor of the user's own -----------------------------------------------------------------------


def test_a_forest_works_like_any_other_surrogate():
    runs = table(25, 5, task_names=list("abcde"), target_names=["x", "y"])
    model = fit(runs, surrogate=FOREST)
    assert isinstance(model.parts[0].surrogate, RandomForestRegressor)
    assert "Surrogate: RandomForestRegressor(" in str(model)
    expected = clone(FOREST).fit(runs.subsets, runs.values).predict(runs.subsets)
    np.testing.assert_allclose(model.predict(runs.subsets), expected)
    mean, std = model.predict(runs.subsets, return_std=True)
    np.testing.assert_allclose(mean, expected)
    assert np.isnan(std).all(), "a forest has no std"
    assert 0 < model.quality()["lds"] <= 1
    attribution = whence.attribute(model)
    assert attribution.scores.shape == (5, 2)
    selection = whence.select(model, size=2, target="x")
    best = oracles.best_subset(lambda row: -model.predict(row[None])[0, 0], 5, size=2)
    np.testing.assert_allclose(-selection.value, best[0])
    with pytest.raises(InputError, match="RandomForestRegressor has no posterior covariance"):
        whence.suggest(model, n=2)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_surrogate_can_be_given(name):
    runs = table(20, 4)
    model = fit(runs, surrogate=KERNELS[name])
    assert model.parts[0].name == type(KERNELS[name]).__name__
    expected = clone(KERNELS[name]).fit(runs.subsets, runs.values).predict(runs.subsets)
    np.testing.assert_allclose(model.predict(runs.subsets), expected, atol=1e-9)
