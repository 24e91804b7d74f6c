"""The rank scale: normal scores there, the outcome's own scale back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from whence.surrogates.warp import RankScale


def outcomes(m=40, T=2, seed=0):
    return np.exp(2 * np.random.default_rng(seed).normal(size=(m, T)))


def test_scores_are_normal_quantiles_of_the_ranks():
    Y = outcomes()
    _, scores = RankScale.learn(Y)
    for t in range(2):
        for i in range(len(Y)):
            rank = 1 + (Y[:, t] < Y[i, t]).sum()
            np.testing.assert_allclose(scores[i, t], norm.ppf((rank - 0.5) / len(Y)))


def test_ties_share_the_middle_of_their_ranks():
    _, scores = RankScale.learn(np.array([[1.0], [1.0], [0.0], [2.0], [1.0]]))
    np.testing.assert_allclose(scores[:, 0], norm.ppf((np.array([3, 3, 1, 5, 3]) - 0.5) / 5), atol=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30))
def test_the_way_back_returns_every_training_outcome(values):
    Y = np.array(values, dtype=float)[:, None]
    scale, scores = RankScale.learn(Y)
    np.testing.assert_allclose(scale.outcome(scores), Y, atol=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.lists(st.floats(-6, 6), min_size=2, max_size=20))
def test_the_way_back_never_decreases(values, scores):
    scale, _ = RankScale.learn(np.array(values)[:, None])
    found = scale.outcome(np.sort(scores)[:, None])[:, 0]
    assert (np.diff(found) >= -1e-9).all()


def test_between_measured_values_the_way_back_is_linear():
    Y = outcomes(T=1)
    scale, scores = RankScale.learn(Y)
    order = np.argsort(Y[:, 0])
    low, high = order[17], order[18]
    z = 0.3 * scores[low] + 0.7 * scores[high]
    np.testing.assert_allclose(scale.outcome(z[None]), 0.3 * Y[[low]] + 0.7 * Y[[high]])


@pytest.mark.parametrize("side", [-1, 1])
def test_beyond_the_measured_range_it_goes_on_with_the_slope_of_the_outer_tenth(side):
    Y = outcomes(40, T=1)
    scale, scores = RankScale.learn(Y)
    order = np.argsort(side * Y[:, 0])
    outermost, inner = order[-1], order[-5]  # a tenth of 40 runs further in
    slope = (Y[outermost] - Y[inner]) / (scores[outermost] - scores[inner])
    found = scale.outcome((scores[outermost] + side * 1.5)[None])
    np.testing.assert_allclose(found[0], Y[outermost] + side * 1.5 * slope)
    assert (side * (found[0] - Y[outermost]) > 0).all()


def test_around_gives_the_outcome_and_half_the_distance_between_one_std_below_and_above():
    Y = outcomes()
    scale, scores = RankScale.learn(Y)
    mean, std = scores[5:15], np.full((10, 2), 0.4)
    median, half = scale.around(mean, std)
    np.testing.assert_allclose(median, Y[5:15])
    np.testing.assert_allclose(half, (scale.outcome(mean + 0.4) - scale.outcome(mean - 0.4)) / 2)
    assert (half > 0).all()


def test_scores_of_new_outcomes_lie_between_those_of_their_neighbours_and_end_where_the_runs_do():
    Y = outcomes(T=2)
    scale, scores = RankScale.learn(Y)
    np.testing.assert_allclose(scale.score(Y), scores)
    order = np.argsort(Y[:, 1])
    between = 0.25 * Y[order[7], 1] + 0.75 * Y[order[8], 1]
    found = scale.score(np.array([[0.0, between], [1e9, -1e9], [1.0, 1e9]]))
    np.testing.assert_allclose(found[0, 1], 0.25 * scores[order[7], 1] + 0.75 * scores[order[8], 1])
    np.testing.assert_allclose(found[1:, 1], [scores[:, 1].min(), scores[:, 1].max()])
    np.testing.assert_allclose(found[1, 0], scores[:, 0].max())


def test_targets_do_not_see_each_other():
    Y = outcomes(T=3)
    scale, scores = RankScale.learn(Y)
    alone, own = RankScale.learn(Y[:, [1]])
    np.testing.assert_array_equal(scores[:, [1]], own)
    z = np.linspace(-4, 4, 17)
    np.testing.assert_array_equal(scale.outcome(np.tile(z, (3, 1)).T)[:, [1]], alone.outcome(z[:, None]))


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0, 2.0]])
def test_a_constant_comes_back_constant(values):
    scale, scores = RankScale.learn(np.array(values)[:, None])
    np.testing.assert_allclose(scores, 0.0, atol=1e-12)
    np.testing.assert_array_equal(scale.outcome(np.array([[-3.0], [0.0], [3.0]])), np.full((3, 1), 2.0))


def test_a_linear_change_of_the_outcome_is_a_linear_change_of_the_way_back():
    Y = outcomes(T=1)
    z = np.linspace(-4, 4, 33)[:, None]
    scale, _ = RankScale.learn(Y)
    changed, _ = RankScale.learn(3 * Y - 5)
    np.testing.assert_allclose(changed.outcome(z), 3 * scale.outcome(z) - 5)
