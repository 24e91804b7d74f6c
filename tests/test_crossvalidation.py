"""What cross-validation makes of held-out errors: how wide intervals have to be."""

from __future__ import annotations

import numpy as np
import pytest

import whence
from whence.surrogates.crossvalidation import Held, held_out_factor, shrunk_factor, trial


def lucky(n, alone=True):
    """The trial of predictions that came, by chance or not, within a hundredth of the spread of outcomes."""
    rng = np.random.default_rng(0)
    runs = whence.Outcomes(rng.integers(0, 2, (n, 20)).astype(float), rng.normal(size=n))
    said = runs.values + 0.01 * rng.normal(size=(n, 1))
    std = np.full((n, 1), 0.01)
    held = Held(runs, np.arange(n) % 5, np.arange(n), alone)
    return trial("lucky", held, said, std, 0.0), held_out_factor(runs.values - said, std)


def test_ten_runs_do_not_make_intervals_a_hundredth_of_what_outcomes_spread():
    found, own = lucky(10)
    assert found.factor[0] > 5 * own[0]
    assert found.coverage[0] == 1.0


def test_many_runs_are_taken_at_their_word():
    found, own = lucky(1000)
    np.testing.assert_allclose(found.factor, own, rtol=0.01)


def test_beside_estimates_few_runs_may_be_predicted_well():
    found, own = lucky(10, alone=False)
    np.testing.assert_array_equal(found.factor, own)


def test_held_out_errors_beyond_the_spread_of_outcomes_are_not_all_believed():
    runs = whence.Outcomes(np.eye(8), np.tile([1.0, -1.0], 4))
    assert shrunk_factor(np.full(1, 40.0), np.ones((8, 1)), runs)[0] < 20


@pytest.mark.parametrize(("values", "std"), [(np.ones(8), 1.0), (np.arange(8.0), 0.0), (np.arange(8.0), np.nan)])
def test_without_a_spread_or_a_std_there_is_nothing_to_draw_towards(values, std):
    runs = whence.Outcomes(np.eye(8), values)
    np.testing.assert_array_equal(shrunk_factor(np.full(1, 3.0), np.full((8, 1), std), runs), [3.0])
