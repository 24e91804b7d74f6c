"""Designs against itertools, and one table of properties that every design has."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from whence.designs import (
    Balanced,
    Bernoulli,
    Exhaustive,
    FixedSize,
    LeaveOneOut,
    LeaveTwoOut,
    parse_design,
)
from whence.errors import InputError

K = 9
# design, n drawn, number of distinct subsets of K tasks it can give
RANDOM = [
    (Bernoulli(0.5), 60, 2**K - 1),
    (Bernoulli(0.2), 60, 2**K - 1),
    (Bernoulli(0.2, allow_empty=True), 60, 2**K),
    (FixedSize(4), 60, comb(K, 4)),
    (Balanced(4), 30, comb(K, 4)),
]
LISTED = [
    (LeaveOneOut(), 6, 1 + K),
    (LeaveTwoOut(), 20, 1 + K + comb(K, 2)),
    (Exhaustive(), 50, 2**K - 1),
    (Exhaustive(allow_empty=True), 50, 2**K),
]
ALL = RANDOM + LISTED


def as_sets(rows):
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


def pair_counts(rows):
    return (rows.T @ rows)[np.triu_indices(rows.shape[1], 1)]


@pytest.fixture(params=ALL, ids=lambda case: str(case[0]))
def case(request):
    return request.param


class TestEveryDesign:
    def test_rows_are_distinct_zeros_and_ones(self, case):
        design, n, _ = case
        rows = design.draw(K, n, seed=3)
        assert rows.shape == (n, K)
        assert rows.dtype == np.float64
        assert set(np.unique(rows)) <= {0.0, 1.0}
        assert len(set(as_sets(rows))) == n

    def test_the_empty_set_comes_only_when_allowed(self, case):
        design, _, total = case
        rows = design.draw(K, None if case in LISTED else min(total, 120), seed=1)
        empty = frozenset() in as_sets(rows)
        assert empty == getattr(design, "allow_empty", False)

    def test_same_seed_same_rows_and_other_seed_other_rows(self, case):
        design, n, _ = case
        np.testing.assert_array_equal(design.draw(K, n, seed=5), design.draw(K, n, seed=5))
        assert set(as_sets(design.draw(K, n, seed=5))) != set(as_sets(design.draw(K, n, seed=6)))

    def test_more_rows_keep_the_first_ones(self, case):
        design, n, _ = case
        if isinstance(design, Balanced):
            pytest.skip("a balanced design is made for its number of rows, and says so")
        few, many = design.draw(K, n // 2, seed=2), design.draw(K, n, seed=2)
        np.testing.assert_array_equal(few, many[: n // 2])

    def test_one_row_too_many_says_how_many_there_are(self, case):
        design, _, total = case
        with pytest.raises(InputError, match=rf"has {total} distinct subsets of {K} tasks.*n={total + 1}"):
            design.draw(K, total + 1)

    @pytest.mark.parametrize("n_tasks", [0, -1, 2.5, "3", True, None])
    def test_bad_n_tasks_is_refused(self, case, n_tasks):
        with pytest.raises(InputError, match=r"'n_tasks' parameter of \w+\.draw must be an integer of at least 1"):
            case[0].draw(n_tasks, 1)

    @pytest.mark.parametrize("n", [0, -1, 2.5, "3"])
    def test_bad_n_is_refused(self, case, n):
        with pytest.raises(InputError, match=r"'n' parameter of \w+\.draw must be an integer of at least 1"):
            case[0].draw(K, n)

    @pytest.mark.parametrize("seed", [-1, 0.5, None])
    def test_bad_seed_is_refused(self, case, seed):
        with pytest.raises(InputError, match=r"'seed' parameter of \w+\.draw must be an integer of at least 0"):
            case[0].draw(K, case[1], seed=seed)

    def test_numpy_integers_are_integers(self, case):
        design, n, _ = case
        assert design.draw(np.int64(K), np.int32(n), seed=np.int64(0)).shape == (n, K)


@pytest.mark.parametrize("design", [design for design, _, _ in RANDOM], ids=str)
def test_random_designs_need_n(design):
    with pytest.raises(InputError, match=r"'n' parameter .* Got None instead"):
        design.draw(K)


@pytest.mark.parametrize(("design", "n", "total"), LISTED, ids=str)
def test_listed_designs_start_with_the_full_set(design, n, total):
    assert len(design.draw(K)) == total
    for rows in (design.draw(K), design.draw(K, n), design.draw(K, 1), design.draw(K, total)):
        assert rows[0].all()
    assert set(as_sets(design.draw(K, total))) == set(as_sets(design.draw(K)))


class TestListsAgainstItertools:
    @pytest.mark.parametrize("n_tasks", [1, 2, 3, 6])
    def test_leave_one_out(self, n_tasks):
        everything = set(range(n_tasks))
        expected = [everything] + [everything - {task} for task in range(n_tasks)]
        assert as_sets(LeaveOneOut().draw(n_tasks)) == [s for s in expected if s]

    @pytest.mark.parametrize("n_tasks", [1, 2, 3, 6])
    def test_leave_two_out(self, n_tasks):
        everything = set(range(n_tasks))
        removed = [set(), *({task} for task in range(n_tasks)), *map(set, combinations(range(n_tasks), 2))]
        assert as_sets(LeaveTwoOut().draw(n_tasks)) == [everything - r for r in removed if everything - r]

    @pytest.mark.parametrize("allow_empty", [False, True])
    @pytest.mark.parametrize("n_tasks", [1, 2, 5])
    def test_exhaustive(self, n_tasks, allow_empty):
        expected = {frozenset(s) for size in range(n_tasks + 1) for s in combinations(range(n_tasks), size)} - (
            set() if allow_empty else {frozenset()}
        )
        rows = as_sets(Exhaustive(allow_empty).draw(n_tasks))
        assert len(rows) == len(expected)
        assert set(rows) == expected

    def test_exhaustive_stops_at_a_million_rows(self):
        assert len(Exhaustive().draw(20, 3)) == 3
        with pytest.raises(InputError, match=r"at most 1,048,576 subsets .* 21 tasks .* Bernoulli\(0.5\)"):
            Exhaustive().draw(21, 3)

    @pytest.mark.parametrize(("n_tasks", "size"), [(6, 1), (6, 3), (6, 5), (6, 6), (10, 4), (12, 9)])
    def test_fixed_size_reaches_every_subset(self, n_tasks, size):
        rows = as_sets(FixedSize(size).draw(n_tasks, comb(n_tasks, size), seed=1))
        assert len(rows) == comb(n_tasks, size)
        assert set(rows) == {frozenset(s) for s in combinations(range(n_tasks), size)}


class TestFrequencies:
    @pytest.mark.parametrize("keep_prob", [0.1, 0.5, 0.9])
    def test_bernoulli_keeps_tasks_with_its_probability(self, keep_prob):
        n = 4000
        rows = Bernoulli(keep_prob).draw(60, n, seed=0)
        error = np.sqrt(keep_prob * (1 - keep_prob) / n)
        assert np.abs(rows.mean(axis=0) - keep_prob).max() < 5 * error

    @pytest.mark.parametrize("n_tasks", [14, 60])  # numbered below a million subsets, sampled above
    def test_fixed_size_shows_all_tasks_and_pairs_alike(self, n_tasks):
        n, size = 1500, 5
        rows = FixedSize(size).draw(n_tasks, n, seed=0)
        np.testing.assert_array_equal(rows.sum(axis=1), size)
        for share, observed in (
            (size / n_tasks, rows.mean(axis=0)),
            (size * (size - 1) / n_tasks / (n_tasks - 1), pair_counts(rows) / n),
        ):
            assert np.abs(observed - share).max() < 5 * np.sqrt(share * (1 - share) / n)

    def test_sampled_fixed_size_is_distinct_and_keeps_its_first_rows(self):
        many = FixedSize(4).draw(90, 3000, seed=4)
        assert len(set(as_sets(many))) == 3000
        np.testing.assert_array_equal(FixedSize(4).draw(90, 700, seed=4), many[:700])


class TestBernoulliAtTheEdge:
    def test_every_subset_of_a_few_tasks(self):
        assert len(Bernoulli(0.8).draw(4, 15)) == 15
        assert len(Bernoulli(0.8, allow_empty=True).draw(4, 16)) == 16

    def test_rare_subsets_end_in_a_sentence(self):
        with pytest.raises(InputError, match=r"gave only \d+ distinct subsets of 10 tasks .* n=500 .* towards 0.5"):
            Bernoulli(0.9999).draw(10, 500)

    @pytest.mark.parametrize("keep_prob", [0, 1, -0.1, 1.5, float("nan"), "0.5", None])
    def test_bad_keep_prob_is_refused(self, keep_prob):
        with pytest.raises(InputError, match="'keep_prob' parameter of Bernoulli must be a number strictly between"):
            Bernoulli(keep_prob)


@pytest.mark.parametrize("design", [FixedSize, Balanced])
class TestSize:
    @pytest.mark.parametrize("size", [0, -2, 2.5, "3", True])
    def test_bad_size_is_refused(self, design, size):
        with pytest.raises(InputError, match=r"'size' parameter of .* must be an integer of at least 1"):
            design(size)

    def test_more_than_the_tasks_is_refused(self, design):
        with pytest.raises(InputError, match=r"size=5\) needs at least 5 tasks. Got n_tasks=4"):
            design(5).draw(4, 1)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "design"),
        [
            ("bernoulli:0.5", Bernoulli(0.5)),
            (" Bernoulli:0.9 ", Bernoulli(0.9)),
            ("fixed:7", FixedSize(7)),
            ("balanced:7", Balanced(7)),
            ("loo", LeaveOneOut()),
            ("lto", LeaveTwoOut()),
            ("all", Exhaustive()),
        ],
    )
    def test_known_forms(self, text, design):
        assert parse_design(text) == design

    @pytest.mark.parametrize(
        "text", ["", "random", "fixed", "fixed:", "fixed:2.5", "bernoulli:x", "loo:3", "fixed:2:3"]
    )
    def test_other_text_lists_the_forms(self, text):
        with pytest.raises(InputError, match=r"must be bernoulli:P .* balanced:SIZE, loo, lto, all, or dirichlet"):
            parse_design(text)

    @pytest.mark.parametrize(("text", "parameter"), [("bernoulli:1.5", "keep_prob"), ("fixed:0", "size")])
    def test_bad_numbers_are_named(self, text, parameter):
        with pytest.raises(InputError, match=f"'{parameter}' parameter"):
            parse_design(text)
