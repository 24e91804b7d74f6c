"""The learning curve: scores of repeated splits at several sizes, and what is said of its slope."""

from __future__ import annotations

import numpy as np
import pytest

import whence
from whence.evaluation import LearningCurve, SizeOnly, learning_curve, repeated_splits


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    S = whence.Exhaustive().draw(6, 50, seed=0)
    return whence.Outcomes(S, S @ rng.normal(size=6) + 0.3 * rng.normal(size=50))


def ols(train):
    return whence.fit(train, surrogate=whence.AdditiveSurrogate("ols"), n_folds=None)


def test_every_point_is_that_of_repeated_splits(runs):
    done = []
    curve = learning_curve(runs, ols, n_splits=2, seed=3, progress=lambda step, steps: done.append((step, steps)))
    assert curve.sizes.tolist() == [10, 20, 30, 40]
    for size, found in zip(curve.sizes, curve.lds, strict=True):
        expected = repeated_splits(runs, {"ols": ols}, n_splits=2, train_size=int(size), seed=3).lds[0]
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(curve.mean, curve.lds.mean(1))
    assert done == [(step, 8) for step in range(1, 9)]


def test_a_surrogate_learns_from_runs(runs):
    curve = learning_curve(runs, ols, seed=0)
    assert curve.mean[-1] > curve.mean[0]
    *table, last = str(curve).splitlines()
    assert len(table) == 1 + len(curve.sizes)
    assert last == curve.in_words()


def test_slope_is_per_doubling_over_the_last_three_points():
    sizes = np.array([8, 16, 32, 64])
    curve = LearningCurve(sizes, np.array([[-0.9], [0.5], [0.55], [0.6]]))
    assert curve.per_doubling == pytest.approx(0.05)
    assert np.isnan(LearningCurve(sizes[:1], np.array([[0.5]])).per_doubling)


@pytest.mark.parametrize(
    ("last", "words"),
    [(0.7, "More runs would help: each doubling of the runs has raised the rank correlation by about 0.10."),
     (0.54, "More runs would help a little: about 0.02"),
     (0.5, "levelled off"), (np.nan, "Too few runs to tell")],
)  # fmt: skip
def test_words_follow_the_slope(last, words):
    middle = (0.5 + last) / 2
    assert words in LearningCurve(np.array([10, 20, 40]), np.array([[0.5], [middle], [last]])).in_words()


def test_few_subsets_are_refused_with_a_sentence():
    runs = whence.Outcomes([[1, 0], [0, 1], [1, 1]], [1.0, 2.0, 3.0])
    with pytest.raises(whence.InputError, match=r"needs at least 6 distinct subsets. Got 3 instead"):
        learning_curve(runs, SizeOnly.fit)
