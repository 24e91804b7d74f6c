"""Merging of replicates, transforms of weights, and standardised columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.surrogates.coordinates import TRANSFORMS, Coordinates, is_binary, merge_replicates


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), st.integers(0, 3)), min_size=1))
def test_merging_keeps_distinct_rows_their_weighted_means_and_their_total_weights(rows):
    X = np.array([[row & 1, row >> 1] for row, _, _ in rows], dtype=float)
    Y = np.array([[y, 2.0 * y] for _, y, _ in rows])
    weights = np.array([w for _, _, w in rows], dtype=float)
    subsets, means, counts = merge_replicates(X, Y, weights)
    expected = {}
    for x, y, w in zip(map(tuple, X), Y, weights, strict=True):
        if w > 0:
            total, sums = expected.get(x, (0.0, np.zeros(2)))
            expected[x] = (total + w, sums + w * y)
    assert list(map(tuple, subsets)) == list(expected), "in the order in which they first appear"
    np.testing.assert_allclose(counts, [total for total, _ in expected.values()])
    np.testing.assert_allclose(
        means, np.array([sums / total for total, sums in expected.values()]).reshape(-1, 2), atol=1e-12
    )


def test_rows_count_once_when_no_weights_are_given():
    X = np.array([[1.0, 0.0], [0.0, -0.0], [1.0, 0.0], [-0.0, 0.0]])
    subsets, means, counts = merge_replicates(X, np.array([[1.0], [2.0], [4.0], [8.0]]))
    np.testing.assert_array_equal(subsets, [[1, 0], [0, 0]])
    np.testing.assert_array_equal(means, [[2.5], [5.0]])
    np.testing.assert_array_equal(counts, [2, 2])


@pytest.mark.parametrize(
    ("X", "expected"), [([[0, 1], [1, 1]], True), ([[0, 0.5]], False), ([[2, 1]], False), ([[-1, 1]], False)]
)
def test_is_binary(X, expected):
    assert is_binary(np.array(X, dtype=float)) is expected


def weights_table(m=30, K=4, seed=0):
    S = np.random.default_rng(seed).dirichlet(np.full(K, 0.5), m)
    S[0, 0] = 0.0
    return S


RAW = {
    "identity": lambda S, floor: S,
    "sqrt": lambda S, floor: S**0.5,
    "log": lambda S, floor: np.log(S + floor),
    "both": lambda S, floor: np.hstack([S, np.log(S + floor)]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_training_columns_have_mean_0_and_std_1_after_the_transform(transform):
    S = weights_table()
    coordinates = Coordinates.learn(S, transform)
    raw = RAW[transform](S, 0.01 * S.mean())
    found = coordinates(S)
    np.testing.assert_allclose(found, (raw - raw.mean(0)) / raw.std(0), atol=1e-10)
    assert np.isfinite(coordinates(np.zeros((1, 4)))).all(), "also at zero weight"


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_new_rows_get_the_coordinates_of_the_training_rows(transform):
    S = weights_table()
    coordinates = Coordinates.learn(S, transform)
    np.testing.assert_array_equal(coordinates(S[3:5]), coordinates(S)[3:5])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_without_standardising_only_the_transform_is_left(transform):
    S = weights_table()
    coordinates = Coordinates.learn(S, transform, standardize=False)
    np.testing.assert_allclose(coordinates(S), RAW[transform](S, 0.01 * S.mean()))


def test_a_column_that_never_varies_stays_finite():
    S = np.array([[1.0, 0.1, 0.0], [1.0, 0.1, 1.0], [1.0, 0.1, 1.0]])
    coordinates = Coordinates.learn(S)
    np.testing.assert_allclose(coordinates(S)[:, :2], 0.0, atol=1e-12)
    np.testing.assert_allclose(coordinates(S + np.array([1.0, 1.0, 0.0]))[:, :2], 1.0)


def test_lattice_holds_the_coordinates_of_out_and_in():
    S = (np.random.default_rng(0).random((20, 3)) < 0.3).astype(float)
    lattice = Coordinates.learn(S).lattice()
    np.testing.assert_allclose(lattice.absent, -S.mean(0) / S.std(0))
    np.testing.assert_allclose(lattice.present, (1 - S.mean(0)) / S.std(0))
    np.testing.assert_allclose(lattice.step, 1 / S.std(0))
