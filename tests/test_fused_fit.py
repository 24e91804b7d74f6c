"""``whence.fit`` with estimates: what may be given, what is refused, what the model says and what it is asked."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

import oracles
import whence
from browser import inflated
from whence.display.report import findings
from whence.errors import DataWarning, InputError
from whence.evaluation import learning_curve
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.rank_fused import ESTIMATES, FUSED, RANK_FUSED
from whence.surrogates.rungs import Rung
from whence.surrogates.trust import _in_doubt, typical_slopes

TASKS = list("abcdef")
EFFECTS = np.array([1.0, -0.8, 0.5, 0.0, -0.3, 0.2])


def truth(S):
    S = np.asarray(S, float)
    return S @ EFFECTS + 0.8 * S[:, 0] * S[:, 1]


def cheap(S):
    S = np.asarray(S, float)
    return 0.5 * truth(S) + 0.3 * S[:, 3] + 2.0


def coin_flips(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, len(TASKS))).astype(float)


def true_runs(m=12, seed=1, **more):
    S = coin_flips(m, seed)
    return whence.Outcomes(S, truth(S), **({"task_names": TASKS, "target_names": ["loss"]} | more))


def estimates(n=60, values=cheap, **more):
    S = coin_flips(n)
    return whence.Outcomes(S, values(S), **({"task_names": TASKS, "target_names": ["loss"]} | more))


@pytest.fixture(scope="module")
def learned():
    return whence.fit(estimates())


ROWS = oracles.all_subsets(6)


# ---- what may be given -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_its_model_and_a_mapping_of_either_are_the_same(learned):
    runs = true_runs()
    expected = whence.fit(runs, estimates=estimates()).predict(ROWS)
    for given in (learned, {"merge": learned}, {"merge": estimates()}):
        np.testing.assert_array_equal(whence.fit(runs, estimates=given).predict(ROWS), expected)


@pytest.mark.slow
def test_tasks_and_targets_are_matched_by_name():
    S = coin_flips(60)
    both = np.column_stack([np.sin(np.arange(60)), cheap(S)])
    other = whence.Outcomes(S[:, ::-1], both, task_names=TASKS[::-1], target_names=["acc", "loss"])
    runs = true_runs()
    expected = whence.fit(runs, estimates=estimates()).predict(ROWS)
    np.testing.assert_allclose(whence.fit(runs, estimates=other).predict(ROWS), expected, atol=1e-3)


class Batches:
    """Outcome function of many subsets at once; it remembers which."""

    task_names = tuple(TASKS)

    def batch(self, subsets, seeds):
        self.seen = np.vstack([getattr(self, "seen", subsets[:0]), subsets])
        return {"loss": cheap(subsets)}


def test_an_outcome_function_is_asked_at_the_true_runs_and_at_subsets_like_them():
    runs, outcome_fn = true_runs(), Batches()
    model = whence.fit(runs, estimates={"merge": outcome_fn})
    asked = {row.tobytes() for row in outcome_fn.seen}
    assert {row.tobytes() for row in runs.subsets} <= asked
    assert len(asked) == len(outcome_fn.seen), "each of them once"
    assert whence.lds(model, whence.Outcomes(ROWS, truth(ROWS), TASKS, ["loss"])).mean > 0.9


def test_an_outcome_function_of_fixed_size_runs_is_asked_about_that_size():
    S = whence.FixedSize(3).draw(6, 8, seed=0)
    outcome_fn = Batches()
    whence.fit(whence.Outcomes(S, truth(S), TASKS, ["loss"]), estimates=outcome_fn)
    assert set(outcome_fn.seen.sum(1)) == {3.0}


def test_a_plain_function_of_a_subset_will_do():
    model = whence.fit(true_runs(), estimates=lambda subset, seed: {"loss": cheap(subset[None])[0]})
    assert model.rungs[0].model.outcomes.n_runs >= 60


@pytest.mark.slow
def test_mixtures_are_fused_too():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(4), 80)
    value = np.sqrt(weights) @ np.array([1.0, -1.0, 0.5, 0.2])
    table = whence.Outcomes(weights, 0.5 * value + 0.1 * weights[:, 0])
    runs = whence.Outcomes(weights[:10], value[:10])
    model = whence.fit(runs, estimates=table)
    assert whence.lds(model, whence.Outcomes(weights[20:], value[20:])).mean > 0.95
    shift = whence.attribute(model, "shift")
    assert shift.scores[0, 0] > 0 > shift.scores[1, 0]
    assert (shift.std > 0).all()


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: estimates(task_names=list("abcdeg")), r"must have the same tasks\. They differ in: f, g\."),
        (lambda: estimates(target_names=["acc"]), r"must have the targets of the true runs\. There is no loss"),
        (lambda: {}, r"There are no estimates in the mapping\. Name at least one table"),
        (lambda: {"merge": 3}, r"The merge must be a table of outcomes, a model fitted to one, or an outcome function"),
        (lambda: estimates(2), r"At least 3 measured runs are needed"),
    ],
)  # fmt: skip
def test_estimates_of_something_else_are_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        whence.fit(true_runs(), estimates=given())


def test_estimates_without_one_of_the_outcomes_say_which_to_take(tmp_path):
    """Scores are of losses only, where runs have accuracies as well."""
    both = whence.Outcomes(true_runs().subsets, np.tile(true_runs().values, 2), TASKS, ["loss", "acc"])
    with pytest.raises(InputError, match=r"There is no acc, only loss\. Give outcomes=\['loss'\]\."):
        whence.fit(both, estimates=estimates())


def test_mixtures_and_subsets_do_not_go_together():
    weights = np.random.default_rng(0).dirichlet(np.ones(6), 20)
    mixtures = whence.Outcomes(weights, weights[:, 0], TASKS, ["loss"])
    with pytest.raises(InputError, match=r"are of mixture weights and the true runs of tasks in or out \(0/1\)"):
        whence.fit(true_runs(), estimates=mixtures)
    with pytest.raises(InputError, match="need at least one true run"):
        whence.fit(true_runs(0), estimates=mixtures)


def test_a_model_with_its_tasks_in_another_order_is_refused(learned):
    S = coin_flips(12, 1)
    runs = whence.Outcomes(S[:, ::-1], truth(S), TASKS[::-1], ["loss"])
    with pytest.raises(InputError, match=r"tasks in another order than the runs\. Give the table\."):
        whence.fit(runs, estimates=learned)


@pytest.mark.slow
def test_a_fused_model_is_an_estimate_for_the_next_but_not_one_without_a_run(learned):
    half = whence.fit(true_runs(10, target_names=["loss"]), estimates=learned)
    model = whence.fit(true_runs(14, seed=9), estimates={"half": half})
    found = whence.attribute(model, "banzhaf")
    np.testing.assert_allclose(found.scores, oracles.banzhaf(oracles.table_of(model.predict, 6)), atol=1e-9)
    with pytest.raises(InputError, match="The model of estimates was fitted without any value of loss"):
        whence.fit(true_runs(), estimates=whence.fit(true_runs(0), estimates=learned))


def test_a_model_that_does_not_know_its_uncertainty_is_refused():
    from sklearn.ensemble import RandomForestRegressor

    forest = whence.fit(estimates(), surrogate=RandomForestRegressor(5, random_state=0), n_folds=None)
    with pytest.raises(InputError, match=r"A RandomForestRegressor predicts no std\. Fit the merge"):
        whence.fit(true_runs(), estimates={"merge": forest})


def test_estimates_and_a_surrogate_are_one_too_many(learned):
    with pytest.raises(InputError, match="give 'estimates' or 'surrogate', not both"):
        whence.fit(true_runs(), estimates=learned, surrogate=whence.AdditiveSurrogate())


# ---- missing values --------------------------------------------------------------------------------------


def test_a_target_without_a_true_run_is_its_estimate_and_others_are_fused():
    S, C = coin_flips(20, 1), coin_flips(60)
    values = np.column_stack([truth(S), np.full(20, np.nan)])
    runs = whence.Outcomes(S, values, TASKS, ["loss", "time"])
    table = whence.Outcomes(C, np.column_stack([cheap(C), C.sum(1)]), TASKS, ["loss", "time"])
    model = whence.fit(runs, estimates=table)
    parts = {model.target_names[part.targets[0]]: part for part in model.parts}
    assert list(parts["time"].weights) == [ESTIMATES]
    assert {FUSED, RANK_FUSED, ESTIMATES} & set(parts["loss"].weights)
    predicted = model.predict(ROWS)
    np.testing.assert_allclose(predicted[:, 1], model.rungs[0].predict(ROWS)[:, 1])
    assert np.abs(predicted[:, 0] - truth(ROWS)).mean() < 0.2


@pytest.mark.slow
def test_runs_that_lack_a_target_are_used_for_the_others():
    S = coin_flips(20, 1)
    values = np.column_stack([truth(S), 3 * truth(S)])
    values[:8, 1] = np.nan
    model = whence.fit(
        whence.Outcomes(S, values, TASKS, ["loss", "time"]),
        estimates=whence.Outcomes(ROWS, np.column_stack([cheap(ROWS)] * 2), TASKS, ["loss", "time"]),
    )
    assert len(model.parts) == 2
    apart = model.predict(ROWS)[:, 1] - 3 * model.predict(ROWS)[:, 0]
    assert np.sqrt(np.mean(apart**2)) < 0.15 * 3 * truth(ROWS).std()


def test_estimates_may_have_gaps():
    C = coin_flips(60)
    values = cheap(C)
    values[::7] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured in every run"):
        model = whence.fit(true_runs(), estimates=whence.Outcomes(C, values, TASKS, ["loss"]))
    assert np.abs(model.predict(ROWS)[:, 0] - truth(ROWS)).mean() < 0.2


def test_an_empty_table_of_true_runs_gives_the_estimates(learned):
    unmeasured = whence.Outcomes(coin_flips(5), np.full(5, np.nan), TASKS, ["loss"])
    for runs in (true_runs(0), unmeasured):
        model = whence.fit(runs, estimates=learned)
        np.testing.assert_allclose(model.predict(ROWS), learned.predict(ROWS))
        assert "Not checked on held-out runs" in str(model)


# ---- what the model says ---------------------------------------------------------------------------------


def test_the_trust_in_estimates_is_told_with_what_held_out_runs_say(learned):
    model = whence.fit(true_runs(10), estimates={"merge": learned, "again": learned})
    told = next(line for line in str(model).splitlines() if line.startswith("Trust in the estimates"))
    quality = model.quality()
    slopes = typical_slopes(model)
    assert f"{slopes['merge']:.2g} with merge, {slopes['again']:.2g} with again" in told
    words = {"both together": "lds", "estimates alone": "lds_estimates", "true runs alone": "lds_true_runs"}
    for what, key in words.items():
        assert f"{what} {quality[key]:.2f}" in told
    alone = whence.fit(true_runs(10))
    assert quality["lds_true_runs"] == pytest.approx(alone.quality()["lds"])
    assert "lds_fused" not in alone.quality()
    assert "Trust in the estimates" not in str(alone)


def test_a_choice_that_scored_lower_than_a_part_of_it_says_that_the_runs_are_too_few():
    scores = {"lds": 0.48, "lds_estimates": 0.66, "lds_true_runs": 0.68}
    assert _in_doubt(scores, 9) == " (on 9 subsets, too few to tell these apart)"
    assert _in_doubt(scores, 1000) == _in_doubt({**scores, "lds": 0.7}, 9) == ""


def test_with_too_few_true_runs_it_says_that_trust_is_unchecked(learned):
    told = str(whence.fit(true_runs(3), estimates=learned))
    assert "not checked, which takes 4 true runs of different subsets" in told
    assert "Surrogate: estimates" in told


def test_misleading_estimates_are_not_trusted_and_it_says_so():
    S = coin_flips(40, 1)
    noise = np.random.default_rng(5).normal(size=(6, 1))
    runs = whence.Outcomes(S, truth(S), TASKS, ["loss"])
    model = whence.fit(runs, estimates=estimates(values=lambda C: 9 * (C @ noise) ** 3))
    spread = model.rungs[0].spread * typical_slopes(model)["estimates"] / truth(ROWS).std()
    assert spread < 0.1, "what they contribute is next to nothing"
    if not set(model.parts[0].weights) & {FUSED, RANK_FUSED, ESTIMATES}:
        assert "Trust in the estimates: none" in str(model)


def test_good_estimates_in_large_units_are_trusted_and_it_says_so():
    S = coin_flips(20, 1)
    runs = whence.Outcomes(S, truth(S), TASKS, ["loss"])
    model = whence.fit(runs, estimates=estimates(values=lambda C: 1e5 * truth(C)[:, None]))
    assert 0 < typical_slopes(model)["estimates"] < 1e-4
    told = next(line for line in str(model).splitlines() if line.startswith("Trust in the estimates"))
    assert "predictions move by" in told
    assert "none" not in told


@pytest.mark.slow
def test_a_few_skewed_runs_do_not_spoil_good_estimates():
    def ranks(seed):
        S = whence.Bernoulli(0.5).draw(10, 136, seed=seed)
        y = np.exp((S - 0.5) @ np.random.default_rng(seed).normal(size=10))
        alone = whence.fit(whence.Outcomes(S[:60], 0.8 * y[:60]))
        both = whence.fit(whence.Outcomes(S[60:66], y[60:66]), estimates=alone)
        return [whence.lds(model, whence.Outcomes(S[66:], y[66:])).mean for model in (alone, both)]

    alone, both = np.mean([ranks(seed) for seed in range(6)], axis=0)
    assert both > alone - 0.003


def test_true_runs_alone_are_chosen_where_they_do_better(monkeypatch, learned):
    monkeypatch.setattr("whence.surrogates.fused.CombinedSurrogate", lambda **_: _Nonsense())
    model = whence.fit(true_runs(24), estimates=learned)
    assert FUSED not in model.parts[0].weights
    if not set(model.parts[0].weights) & {RANK_FUSED, ESTIMATES}:
        assert "Trust in the estimates: none: predictions rest on the true runs alone; rank corr" in str(model)


class _Nonsense(whence.CombinedSurrogate):
    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y[::-1] * 50, sample_weight)


def test_the_same_seed_gives_the_same_model(learned):
    first, second = (whence.fit(true_runs(), estimates=learned, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.predict(ROWS, return_std=True), second.predict(ROWS, return_std=True))


def test_few_runs_are_no_concern_when_there_are_estimates(learned):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whence.fit(true_runs(2), estimates=learned)


# ---- what it is asked ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("m", [0, 3, 12])
def test_every_question_has_an_answer(m, learned):
    model = whence.fit(true_runs(m), estimates=learned)
    assert set(model.parts[0].weights) & {FUSED, RANK_FUSED, ESTIMATES}
    scores = whence.attribute(model, "shapley")
    np.testing.assert_allclose(scores.scores, oracles.shapley(oracles.table_of(model.predict, 6)), atol=1e-9)
    assert (scores.std > 0).all()
    whence.interactions(model)
    best = whence.select(model, size=3)
    three = ROWS[ROWS.sum(1) == 3]
    assert best.value == pytest.approx(model.predict(three).min())
    for by in ("variance", "improvement"):
        assert len(whence.suggest(model, 4, by=by).subsets) == 4


def test_suggestions_are_true_runs_that_are_not_made_yet_estimated_or_not(learned):
    runs = true_runs()
    model = whence.fit(runs, estimates=learned)
    made = {row.tobytes() for row in runs.subsets}
    left = len(ROWS) - 1 - len({row.tobytes() for row in runs.subsets if row.any()})
    found = whence.suggest(model, left).subsets
    assert not made & {row.tobytes() for row in found}


def test_suggested_runs_leave_less_uncertain_than_others(learned):
    """The posterior of the fused model, conditioned by hand on the suggested runs and on random ones."""
    model = whence.fit(true_runs(8), estimates=learned)
    covariance, noise = model.covariance(ROWS)

    def left(rows):
        at = [int(np.flatnonzero((row == ROWS).all(1))[0]) for row in rows]
        gain = covariance[:, at] @ np.linalg.solve(covariance[np.ix_(at, at)] + noise * np.eye(len(at)), covariance[at])
        return np.trace(covariance - gain)

    suggested = left(whence.suggest(model, 4).subsets)
    rng = np.random.default_rng(0)
    others = [left(ROWS[rng.choice(len(ROWS), 4, replace=False)]) for _ in range(40)]
    assert suggested < np.quantile(others, 0.1)


def test_a_report_of_a_fused_model_is_written(tmp_path, learned):
    whence.report(whence.fit(true_runs(), estimates=learned), tmp_path / "page.html")
    data = re.search(r'id="data"[^>]*>([^<]+)<', (tmp_path / "page.html").read_text(encoding="utf-8")).group(1)
    assert "estimates times a learned slope" in str(inflated(data.strip()))


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_the_learning_curve_does_not_know_the_estimates_of_held_out_runs():
    """Estimates that are exact: of what subsets have of their own, they tell those that they have been made for."""
    rng = np.random.default_rng(0)
    S = np.unique(rng.integers(0, 2, (150, 12)), axis=0).astype(float)
    values = S @ rng.normal(size=12) / 2 + rng.normal(size=len(S))
    memory = whence.fit(whence.Outcomes(S, values), surrogate=whence.KernelSurrogate(alpha=1e-3, gamma=0.3), n_folds=5)
    runs = whence.Outcomes(S[:40], values[:40])
    fused = FusedSurrogate((Rung.of("exact", memory, np.arange(1)),)).fit(runs.subsets, runs.values)
    model = whence.Model(runs, (replace(memory.parts[0], surrogate=fused),))
    seen = learning_curve(runs, lambda train: whence.fit(train, surrogate=clone(fused), n_folds=None))
    found = findings._curve(model, seed=0)
    assert seen.mean.min() > 0.5
    assert found.mean.max() < whence.lds(memory.held_out()[0][:40], runs).mean
    average = AveragedSurrogate({"fused": fused}, np.ones((1, 1))).fit(runs.subsets, runs.values)
    np.testing.assert_array_equal(average.unseen().predict(S), fused.unseen().predict(S))
