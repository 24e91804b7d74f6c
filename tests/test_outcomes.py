"""The table against pandas and plain loops."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

from whence.errors import InputError
from whence.outcomes import Outcomes, distinct_rows


class TestConstruction:
    def test_defaults(self):
        runs = Outcomes(subsets=[[True, False], [False, True]], values=[1, 2])
        assert runs.subsets.dtype == runs.values.dtype == np.float64
        assert runs.values.shape == (2, 1)
        assert (runs.task_names, runs.target_names) == (("task_0", "task_1"), ("outcome_0",))
        assert runs.maximize == (False,)
        assert runs.provenance == {}
        assert (runs.n_runs, runs.n_tasks, runs.n_targets, len(runs), runs.is_binary) == (2, 2, 1, 2, True)

    def test_arrays_are_copied_and_read_only(self):
        subsets, values = np.eye(3), np.ones((3, 1))
        runs = Outcomes(subsets, values)
        subsets[:], values[:] = 7, 7
        assert runs.subsets.max() == runs.values.max() == 1
        for array in (runs.subsets, runs.values):
            with pytest.raises(ValueError, match=r"read-only"):
                array[0] = 2

    def test_frames_give_names(self):
        runs = Outcomes(
            pd.DataFrame({"a": [1, 0], 7: [True, False]}),
            pd.DataFrame({"loss": pd.array([1, None], dtype="Int64")}),
        )
        assert (runs.task_names, runs.target_names) == (("a", "7"), ("loss",))
        np.testing.assert_array_equal(runs.values, [[1], [np.nan]])
        assert Outcomes([[1], [0]], pd.Series([1.0, 2.0], name="acc")).target_names == ("acc",)
        assert Outcomes([[1], [0]], pd.Series([1.0, 2.0])).target_names == ("outcome_0",)

    def test_no_run_yet(self):
        runs = Outcomes(np.zeros((0, 3)), np.zeros((0, 2)))
        assert repr(runs).startswith("Outcomes: 0 runs × 3 tasks → outcome_0 (lower is better), outcome_1 (")
        assert repr(runs).endswith("; 0 distinct subsets")
        subsets, means, counts = runs.distinct()
        assert (subsets.shape, means.shape, counts.shape) == ((0, 3), (0, 2), (0, 2))
        assert np.isnan(runs.noise_variance()).all()
        assert runs.concerns() == ["The table has only 0 runs; a surrogate needs at least 3."]
        assert runs.rows([]).n_runs == 0

    def test_copies_and_workers_get_it_whole(self, runs):
        for other in (copy.deepcopy(runs), pickle.loads(pickle.dumps(runs))):
            pd.testing.assert_frame_equal(runs.to_frame(), other.to_frame())
            for field in ("task_names", "target_names", "maximize", "provenance"):
                assert getattr(other, field) == getattr(runs, field)


class TestSelection:
    def test_rows_by_index_mask_and_repeat(self, runs):
        np.testing.assert_array_equal(runs.rows([3, 1, 1]).values, runs.values[[3, 1, 1]])
        mask = runs.subsets[:, 0] > 0
        np.testing.assert_array_equal(runs.rows(mask).subsets, runs.subsets[mask])
        assert runs.rows(np.zeros(12, dtype=bool)).n_runs == 0
        assert runs.rows([0]).maximize == runs.maximize
        assert runs.rows([0]).provenance == runs.provenance

    def test_targets_in_the_order_asked(self, runs):
        chosen = runs.targets(["acc", "loss"])
        np.testing.assert_array_equal(chosen.values, runs.values[:, [1, 0]])
        assert (chosen.target_names, chosen.maximize) == (("acc", "loss"), (True, False))
        with pytest.raises(InputError, match=r"There is no target 'lose'. Did you mean 'loss'?"):
            runs.targets("lose")

    def test_subset_from_names_weights_and_rows(self, runs):
        expected = [1, 0, 0, 1]
        for given_ in (
            ["a_b", "code"],
            {"code", "a_b"},
            {"code": 1, "a_b": 1},
            expected,
            np.array(expected, dtype=bool),
        ):
            row = runs.subset(given_)
            assert row.dtype == np.float64
            np.testing.assert_array_equal(row, expected)
        np.testing.assert_array_equal(runs.subset([]), 0)
        np.testing.assert_array_equal(runs.subset("code"), [1, 0, 0, 0])
        np.testing.assert_array_equal(runs.subset({"code": 0.25}), [0.25, 0, 0, 0])
        assert runs.names_of(expected) == ["code", "a_b"]

    @pytest.mark.parametrize(
        ("subset", "message"),
        [
            (["Code", "cod"], "There is no task 'cod'. Did you mean 'code'?"),
            (["zzz"], "There is no task 'zzz'. There are: code, "),
            ([1, 0], r"task names or a row of 4 numbers, one per task. Got shape \(2,\)"),
            (3, r"Got shape \(\)"),
            ([1, 0, 0, -1], "column 'a_b': a weight must be at least 0"),
            ({"code": np.nan}, "column 'code'"),
            ({"code": "much"}, "must be an array of numbers"),
        ],
    )
    def test_bad_subsets_are_refused(self, runs, subset, message):
        with pytest.raises(InputError, match=message):
            runs.subset(subset)


class TestReplicates:
    def test_distinct_against_pandas(self, runs):
        frame = runs.to_frame()
        grouped = frame.groupby(list(runs.task_names), sort=False)[list(runs.target_names)]
        subsets, means, counts = runs.distinct()
        np.testing.assert_array_equal(subsets, np.array(list(grouped.mean().index)))
        np.testing.assert_allclose(means, grouped.mean(), rtol=1e-14)
        np.testing.assert_array_equal(counts, grouped.count())
        assert len(subsets) < runs.n_runs
        assert np.isnan(means).any()

    def test_noise_variance_against_a_loop(self, runs):
        for target, found in enumerate(runs.noise_variance()):
            squares, freedom = 0.0, 0
            for subset in {tuple(row) for row in runs.subsets.tolist()}:
                same = runs.values[(runs.subsets == subset).all(axis=1), target]
                same = same[~np.isnan(same)]
                if len(same) > 1:
                    squares, freedom = squares + same.var(ddof=1) * (len(same) - 1), freedom + len(same) - 1
            assert found == pytest.approx(squares / freedom, rel=1e-12)

    def test_noise_variance_is_unknown_without_replicates(self):
        values = [[1.0, 1.0], [2.0, 2.0], [3.0, np.nan]]
        found = Outcomes([[1, 0], [0, 1], [1, 0]], values).noise_variance()
        np.testing.assert_array_equal(found, [2.0, np.nan])

    def test_minus_zero_is_zero(self):
        assert len(Outcomes([[0.0, 1], [-0.0, 1]], [1, 2]).distinct()[0]) == 1


def test_repr_names_directions_and_few_targets(runs):
    d = len({tuple(row) for row in runs.subsets.tolist()})
    assert repr(runs.targets(["loss", "acc"])) == (
        f"Outcomes: 12 runs × 4 tasks → loss (lower is better), acc (higher is better); {d} distinct subsets"
    )
    assert "and 7 more; " in repr(Outcomes([[1]], np.zeros((1, 10))))


def test_distinct_rows_against_a_loop():
    rows = np.random.default_rng(0).integers(-1, 2, size=(40, 3)).astype(float)
    rows[rows == 0] *= np.random.default_rng(1).choice([1, -1], size=(rows == 0).sum())  # 0.0 and -0.0
    listed = [tuple(row) for row in rows.tolist()]
    order = list(dict.fromkeys(listed))
    for layout in (rows, np.asfortranarray(rows)):
        first, group = distinct_rows(layout)
        assert first.tolist() == [listed.index(row) for row in order]
        assert group.tolist() == [order.index(row) for row in listed]
