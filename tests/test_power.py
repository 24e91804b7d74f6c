"""Runs needed: at the number given, simulated experiments see the effect as often as promised, and not before."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from whence.errors import InputError
from whence.evaluation import runs_needed
from whence.evaluation.power import MOST, _power
from whence.outcomes import Outcomes


def table(m, K, noise, *, seeds=1, seed=0, keep_prob=0.5, interaction=0.0):
    """An additive outcome with noise, and what the first two tasks do together."""
    rng = np.random.default_rng(seed)
    S = np.repeat((rng.random((m, K)) < keep_prob).astype(float), seeds, axis=0)
    values = S @ rng.normal(size=K) + interaction * S[:, 0] * S[:, 1] + noise * rng.normal(size=len(S))
    return Outcomes(S, values)


def seen_between_two_subsets(s, effect, noise, *, level, trials=4000):
    """Share of simulated experiments in which scipy's t test tells two subsets apart."""
    rng = np.random.default_rng(1)
    first, second = noise * rng.normal(size=(2, trials, s))
    return (stats.ttest_ind(first + effect, second, axis=1).pvalue < 1 - level).mean()


def seen_in_regression(m, K, effect, noise, *, level, trials=1500):
    """Share of simulated designs in which least squares finds that the first task has an effect."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(trials):
        X = np.column_stack([np.ones(m), rng.random((m, K)) < 0.5]).astype(float)
        y = effect * X[:, 1] + noise * rng.normal(size=m)
        inverse = np.linalg.pinv(X.T @ X)
        beta = inverse @ X.T @ y
        freedom = m - K - 1
        error = np.sqrt(inverse[1, 1] * ((y - X @ beta) ** 2).sum() / freedom)
        found += abs(beta[1]) > stats.t.ppf((1 + level) / 2, freedom) * error
    return found / trials


@pytest.mark.parametrize(("effect", "level", "power"), [(1.0, 0.9, 0.8), (2.0, 0.95, 0.9), (0.6, 0.9, 0.5)])
def test_so_many_seeds_show_the_difference_of_two_subsets_and_fewer_do_not(effect, level, power):
    runs = table(400, 3, noise=1.0, seeds=3)
    needed = runs_needed(runs, effect, level=level, power=power)
    noise, s = float(needed.noise_std[0]), int(needed.seeds[0])
    assert noise == pytest.approx(1.0, abs=0.06)
    assert seen_between_two_subsets(s, effect, noise, level=level) >= power - 0.02
    assert seen_between_two_subsets(s - 1, effect, noise, level=level) < power + 0.02


def test_so_many_subsets_show_the_effect_of_a_task():
    runs = table(2000, 12, noise=1.0)
    m = int(runs_needed(runs, 1.0).subsets[0])
    assert 30 < m < 70
    assert seen_in_regression(m, 12, 1.0, 1.0, level=0.9) == pytest.approx(0.8, abs=0.05)


def test_the_effect_that_is_visible_is_the_one_for_which_the_subsets_suffice():
    runs = table(60, 6, noise=1.0)
    visible = float(runs_needed(runs, 1.0).visible[0])
    n_distinct = len(runs.distinct()[0])
    assert runs_needed(runs, visible * 1.001).subsets[0] == n_distinct
    assert runs_needed(runs, visible * 0.97).subsets[0] > n_distinct


def test_what_tasks_do_together_is_in_the_way_of_seeing_one_alone():
    alone, together = (runs_needed(table(300, 5, noise=0.1, interaction=size), 0.3) for size in (0.0, 3.0))
    assert together.subsets[0] > 3 * alone.subsets[0]


def test_replicates_make_the_means_less_noisy():
    once, often = (runs_needed(table(200, 16, noise=1.0, seeds=seeds), 0.5) for seeds in (1, 8))
    assert np.isnan(once.seeds[0])
    assert np.isnan(once.noise_std[0])
    assert often.subsets[0] < once.subsets[0] / 3


def test_fixed_sizes_have_one_column_less_to_estimate():
    rng = np.random.default_rng(0)
    S = (rng.random((500, 6)).argsort(1) < 3).astype(float)
    runs = Outcomes(S, S @ rng.normal(size=6) + rng.normal(size=500) * 0.5)
    assert np.isfinite(runs_needed(runs, 0.5).subsets[0])


def test_edges():
    constant = runs_needed(Outcomes([[1, 0], [1, 0], [0, 1]], [2.0, 2.0, 2.0]), 1.0)
    assert constant.seeds[0] == 2
    assert np.isnan(constant.subsets[0])
    few = runs_needed(Outcomes([[1, 0, 1], [0, 1, 1], [1, 1, 0]], [1.0, 2.0, 4.0]), 1.0)
    assert np.isnan(few.visible[0])
    assert few.subsets[0] > 3
    hopeless = runs_needed(table(50, 3, noise=1.0, seeds=2), 1e-9)
    assert np.isinf(hopeless.seeds[0])
    assert runs_needed(Outcomes(np.zeros((0, 2)), np.zeros((0, 1))), 1.0).target_names == ("outcome_0",)
    assert MOST >= 1e6


def test_each_target_has_its_own_effect():
    runs = table(100, 4, noise=1.0, seeds=2)
    both = Outcomes(runs.subsets, np.hstack([runs.values, 10 * runs.values]), target_names=["loss", "ten"])
    needed = runs_needed(both, [0.5, 5.0])
    assert needed.seeds[0] == needed.seeds[1]
    assert needed.subsets[0] == needed.subsets[1]
    assert list(needed.to_frame()["target"]) == ["loss", "ten"]
    assert "90% interval excludes zero, in 80% of cases" in repr(needed)


def test_power_is_that_of_the_noncentral_t_distribution():
    for freedom, noncentrality in ((1, 3.0), (4, 2.0), (30, 2.5), (5000, 2.5)):
        edge = stats.t.ppf(0.95, freedom)
        exact = stats.nct.sf(edge, freedom, noncentrality) + stats.nct.cdf(-edge, freedom, noncentrality)
        assert _power(freedom, noncentrality, 0.9) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("effect", [0.0, -1.0, np.nan, [1.0, 2.0]])
def test_an_effect_must_be_a_size(effect):
    with pytest.raises(InputError, match="The 'effect' parameter of runs_needed must be a number above 0"):
        runs_needed(table(20, 3, noise=1.0), effect)


@pytest.mark.parametrize("which", ["level", "power"])
def test_probabilities_must_be_probabilities(which):
    with pytest.raises(InputError, match=f"The '{which}' of runs_needed must lie between 0 and 1"):
        runs_needed(table(20, 3, noise=1.0), 1.0, **{which: 1.0})
