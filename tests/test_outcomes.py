"""The table against pandas and plain loops; files there and back; every bad input by its sentence."""

import copy
import gzip
import pickle
import sys
import textwrap
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from whence.designs import FixedSize
from whence.errors import InputError
from whence.outcomes import Outcomes, read_outcomes

FORMATS = ["csv", "tsv", "csv.gz", "parquet", "npz"]
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def runs():
    """Three targets, replicates, gaps, unicode names, both directions."""
    rng = np.random.default_rng(0)
    subsets = (rng.random((12, 4)) < 0.5).astype(float)
    subsets[6:9] = subsets[:3]
    subsets[9] = subsets[0]
    values = rng.normal(size=(12, 3))
    values[[2, 8], 0] = np.nan
    values[0, 1] = np.nan
    return Outcomes(
        subsets,
        values,
        task_names=["code", "Mathe, höher", '数学 "x"', "a_b"],
        target_names=["loss", "acc", "temps d'exécution"],
        maximize=["acc"],
        provenance={"source": "runs.csv", "estimator": "GradEx — π"},
    )


def assert_same(one, other):
    np.testing.assert_array_equal(one.subsets, other.subsets)
    np.testing.assert_array_equal(one.values, other.values)
    assert (one.task_names, one.target_names, one.maximize) == (
        other.task_names,
        other.target_names,
        other.maximize,
    )


def put(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


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

    @pytest.mark.parametrize(
        ("maximize", "expected"),
        [
            (None, (False, False)),
            (True, (True, True)),
            ((), (False, False)),
            ("acc", (False, True)),
            (["acc"], (False, True)),
            ([True, False], (True, False)),
            (np.array([False, True]), (False, True)),
        ],
    )
    def test_maximize(self, maximize, expected):
        runs = Outcomes([[1]], [[1, 2]], target_names=["loss", "acc"], maximize=maximize)
        assert runs.maximize == expected

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"subsets": [1, 0]}, r"'subsets' of Outcomes must be a 2-D array .* Got shape \(2,\)"),
            ({"subsets": np.zeros((2, 0))}, r"at least one column. Got shape \(2, 0\)"),
            ({"values": np.zeros((2, 0))}, r"'values' of Outcomes .* Got shape \(2, 0\)"),
            ({"values": np.zeros((2, 1, 1))}, r"'values' of Outcomes .* Got shape \(2, 1, 1\)"),
            ({"values": [1, 2, 3]}, "same number of rows, one per run. Got 2 and 3"),
            ({"subsets": [[1, 0], [1]]}, "'subsets' must be a regular array of numbers"),
            ({"subsets": [["1", "0"], ["0", "1"]]}, "'subsets' must be an array of numbers. Got dtype <U1"),
            ({"values": [1, None]}, "'values' must be an array of numbers. Got dtype object"),
            ({"values": [1, 2j]}, "Got dtype complex128"),
            ({"subsets": pd.DataFrame({"a": ["x", "y"]})}, "Column 'a' of 'subsets' must hold numbers"),
            (
                {"subsets": [[1, 0], [np.nan, 0]]},
                r"row 1 \(counted from 0\), column 'task_0': a task column cannot",
            ),
            (
                {"subsets": [[1, 0], [0, np.inf]]},
                "row 1 .* column 'task_1': a weight must be finite. Got inf",
            ),
            (
                {"subsets": [[1, -0.5], [0, 1]]},
                "row 0 .* column 'task_1': a weight must be at least 0. Got -0.5",
            ),
            ({"values": [1, -np.inf]}, "column 'outcome_0': an outcome must be finite.*Got -inf"),
            ({"task_names": ["a"]}, "one name per task column, 2 in all. Got 1 names"),
            (
                {"task_names": ["a", " a "]},
                "name of each task must be unique. These come more than once: 'a'",
            ),
            ({"task_names": ["a", " "]}, "name of each task must be non-empty text"),
            ({"task_names": ["a", "b\nc"]}, "without control characters"),
            ({"task_names": ["a", "\ud800"]}, "without control characters"),
            ({"target_names": ["x", "y"]}, "one name per outcome column, 1 in all. Got 2 names"),
            ({"task_names": ["a", "loss"], "target_names": ["loss"]}, "cannot share a name. Both have: loss"),
            ({"maximize": ["outcome_1"]}, "There is no target 'outcome_1'. Did you mean 'outcome_0'?"),
            ({"maximize": [True, False]}, "one bool per target, 1 in all. Got 2"),
        ],
    )
    def test_bad_input_is_refused(self, arguments, message):
        with pytest.raises(InputError, match=message):
            Outcomes(**({"subsets": [[1, 0], [0, 1]], "values": [1, 2]} | arguments))

    def test_copies_and_workers_get_it_whole(self, runs):
        for other in (copy.deepcopy(runs), pickle.loads(pickle.dumps(runs))):
            assert_same(runs, other)
            assert other.provenance == runs.provenance


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
            (["Code", "cod"], "There is no task 'Code'. Did you mean 'code'?"),
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


class TestConcerns:
    @staticmethod
    def of(subsets, values=None, **names):
        subsets = np.asarray(subsets)
        values = np.random.default_rng(1).random(len(subsets)) if values is None else values
        return Outcomes(subsets, values, **names).concerns()

    @pytest.fixture
    def plain(self):
        return (np.random.default_rng(0).random((40, 6)) < 0.5).astype(float)

    def test_nothing_to_say(self, plain):
        assert self.of(plain) == []

    def test_fixed_size_and_mixtures_are_fine(self):
        assert self.of(FixedSize(3).draw(8, 40)) == []
        assert self.of(np.random.default_rng(0).dirichlet(np.ones(7), size=50)) == []

    def test_constant_columns(self, plain):
        plain[:, 1], plain[:, [2, 4]] = 1, 0
        assert self.of(plain) == [
            "Tasks in every run alike, so that their effect cannot be seen: task_1.",
            "Tasks in no run, so that their effect cannot be seen: task_2, task_4.",
        ]

    def test_identical_columns_are_named_in_groups(self, plain):
        plain[:, 3], plain[:, [4, 5]] = plain[:, 0], plain[:, [1]]
        message = "Identical task columns, whose effects cannot be told apart: "
        assert self.of(plain) == [message + "(task_0, task_3), (task_1, task_4, task_5)."]

    def test_the_papers_repeated_columns(self, plain):
        (repeats, few) = self.of(np.repeat(plain, 20, axis=1))
        assert "(task_0, task_1, task_2, task_3 and 16 more), (task_20, " in repeats
        assert repeats.endswith(" and 2 more.")
        distinct = len({tuple(row) for row in plain.tolist()})
        assert few.startswith(f"There are {distinct} distinct subsets for 120 tasks: with fewer subsets than")

    def test_dependent_columns(self, plain):
        plain[:, 5] = 1 - plain[:, 2]
        message = (
            "Task columns follow from each other (1 relation), so that their effects cannot be told apart; "
        )
        assert self.of(plain) == [message + "the shortest: task_2, task_5."]

    def test_dependent_columns_within_a_fixed_size(self):
        halves = [FixedSize(2).draw(5, 10, seed=seed) for seed in range(2)]
        both = np.array([[*a, *b] for a in halves[0] for b in halves[1]])
        (found,) = self.of(both)
        assert "(1 relation)" in found
        assert (
            "task_0, task_1, task_2, task_3, task_4." in found
            or "task_5, task_6, task_7, task_8, task_9." in found
        )

    def test_dependence_that_only_late_rows_break_is_none(self, plain):
        early = np.vstack([plain, plain])
        early[:, 5] = early[:, 4]
        late = plain[:4].copy()
        late[:, 5] = 1 - late[:, 4]
        assert self.of(np.vstack([early, late])) == []

    def test_odd_columns(self, plain):
        frame = pd.DataFrame(plain, columns=list("abcdef"))
        frame["run_id"], frame["seed"] = np.arange(40) + 100, np.random.default_rng(0).integers(50, size=40)
        assert self.of(plain, task_names=list("abcdef")) == []
        found = Outcomes(frame, np.arange(40.0)).concerns()
        assert found == [
            "Columns that count the rows; ignore them if they are not tasks: run_id.",
            "Columns that are not 0/1 while most are; ignore them if they are not tasks: seed.",
        ]

    def test_targets(self, plain):
        values = np.random.default_rng(0).random((40, 4))
        values[:, 1], values[:3, 2], values[:, 3] = 0.5, np.nan, np.nan
        assert self.of(plain, values, target_names=["loss", "acc", "f1", "late"]) == [
            "Targets not measured in every run: f1 (3 of 40 missing), late (40 of 40 missing).",
            "Targets with the same value in every run, so that no effect can be seen: acc.",
        ]

    def test_few_runs(self, plain):
        assert self.of(plain[:2]) == ["The table has only 2 runs; a surrogate needs at least 3."]
        assert self.of(plain[:4])[-1].startswith("There are 4 distinct subsets for 6 tasks")

    def test_many_columns(self):
        wide = np.random.default_rng(0).random((12, 20_000)) < 0.5
        found = self.of(wide)  # 2^12 patterns for 20,000 columns: every one is repeated
        assert [sentence.split()[0] for sentence in found] == ["Tasks", "Tasks", "Identical", "There"]


class TestRoundTrip:
    @pytest.mark.parametrize("ending", FORMATS)
    def test_there_and_back(self, runs, tmp_path, ending):
        path = tmp_path / f"läufe.{ending}"
        runs.write(path)
        back = read_outcomes(path, runs.target_names, maximize=["acc"])
        assert_same(runs, back)
        stored = ending in ("parquet", "npz")
        assert back.provenance == (runs.provenance if stored else {"source": str(path)})
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("ending", ["parquet", "npz"])
    def test_files_that_know_their_targets(self, runs, tmp_path, ending):
        path = tmp_path / f"runs.{ending}"
        runs.write(path)
        assert_same(runs, read_outcomes(path))
        assert_same(runs.targets("acc"), read_outcomes(path, "acc"))
        assert read_outcomes(path, maximize=False).maximize == (False, False, False)
        assert read_outcomes(path, maximize=["loss"]).maximize == (True, False, False)
        assert read_outcomes(path, ignore=["loss", "code"]).target_names == runs.target_names[1:]
        assert read_outcomes(path, ignore=["loss", "code"]).task_names == runs.task_names[1:]
        assert read_outcomes(path, tasks=["a_b", "code"]).task_names == ("a_b", "code")
        np.testing.assert_array_equal(read_outcomes(path, tasks=["a_b"]).subsets[:, 0], runs.subsets[:, 3])
        with pytest.raises(
            InputError, match=r"column 'cod' of 'outcomes' does not exist. There are: loss, acc, "
        ):
            read_outcomes(path, ["cod"])

    @FUZZ
    @given(data=st.data(), ending=st.sampled_from(FORMATS))
    def test_any_table_comes_back_exactly(self, tmp_path, data, ending):
        m, n_tasks, n_targets = (data.draw(st.integers(low, 4)) for low in (0, 1, 1))
        name = st.text(
            st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufeff"), min_size=1
        )
        name = name.filter(lambda text: text.strip() and not text.startswith("Unnamed"))
        names = data.draw(
            st.lists(name, min_size=n_tasks + n_targets, max_size=n_tasks + n_targets, unique_by=str.strip)
        )
        weights = st.floats(0, allow_infinity=False) | st.sampled_from([0.0, 1.0])
        runs = Outcomes(
            data.draw(hnp.arrays(np.float64, (m, n_tasks), elements=weights)),
            data.draw(hnp.arrays(np.float64, (m, n_targets), elements=st.floats(allow_infinity=False))),
            names[:n_tasks],
            names[n_tasks:],
            data.draw(st.lists(st.booleans(), min_size=n_targets, max_size=n_targets)),
            data.draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)),
        )
        path = tmp_path / f"any.{ending}"
        runs.write(path)
        if ending in ("parquet", "npz"):
            back = read_outcomes(path)
            assert back.provenance == runs.provenance
        else:
            back = read_outcomes(path, runs.target_names, maximize=runs.maximize)
        assert_same(runs, back)
        assert not np.signbit(back.subsets).any()

    def test_columns_are_plain_for_other_tools(self, runs, tmp_path):
        runs.write(tmp_path / "runs.csv")
        runs.write(tmp_path / "runs.parquet")
        pd.testing.assert_frame_equal(
            pd.read_csv(tmp_path / "runs.csv"), runs.to_frame(), check_dtype=False, rtol=1e-12
        )
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), runs.to_frame())
        assert (tmp_path / "runs.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0] in ("0", "1")

    def test_a_failed_write_leaves_the_old_file(self, runs, tmp_path, monkeypatch):
        path = tmp_path / "runs.npz"
        runs.write(path)
        before = path.read_bytes()

        def fail(file, **arrays):
            file.write(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez_compressed", fail)
        with pytest.raises(InputError, match=r"runs.npz: cannot be written \(No space left on device\)"):
            runs.write(path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_bad_places_to_write(self, runs, tmp_path):
        with pytest.raises(
            InputError, match=r"must end in .csv, .tsv, .csv.gz, .tsv.gz, .parquet, .npz. Got 'runs.xls'"
        ):
            runs.write(tmp_path / "runs.xls")
        with pytest.raises(InputError, match=r"runs.csv: cannot be written .No such file or directory"):
            runs.write(tmp_path / "absent" / "runs.csv")

    def test_parquet_without_pyarrow(self, runs, tmp_path, monkeypatch):
        runs.write(tmp_path / "runs.parquet")
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(InputError, match=r'pip install "whence\[parquet\]"'):
            runs.write(tmp_path / "other.parquet")
        with pytest.raises(InputError, match=r'pip install "whence\[parquet\]"'):
            read_outcomes(tmp_path / "runs.parquet")


class TestReadingText:
    def test_roles(self, tmp_path):
        path = put(tmp_path, "run,b,a,loss,acc\nx,1,0,2.5,0.1\ny,0,1,3.5,0.2\n")
        runs = read_outcomes(path, ["acc", "loss"], ignore="run", maximize="acc")
        assert (runs.task_names, runs.target_names, runs.maximize) == (
            ("b", "a"),
            ("acc", "loss"),
            (True, False),
        )
        np.testing.assert_array_equal(runs.subsets, [[1, 0], [0, 1]])
        np.testing.assert_array_equal(runs.values, [[0.1, 2.5], [0.2, 3.5]])
        assert read_outcomes(path, "loss", tasks=["a"]).task_names == ("a",)
        assert read_outcomes(path, "loss", tasks=["a", "b"]).task_names == ("a", "b")

    @pytest.mark.parametrize("cell", ["", "nan", "NaN", "NA", "null", "None", " "])
    def test_not_measured_yet(self, tmp_path, cell):
        runs = read_outcomes(put(tmp_path, f"a,b,loss\n1,0,{cell}\n0,1,2\n"), ["loss"])
        np.testing.assert_array_equal(runs.values, [[np.nan], [2]])

    def test_words_for_in_and_out(self, tmp_path):
        runs = read_outcomes(put(tmp_path, "a,b,loss\nTrue,false,1\n FALSE ,TRUE,\n"), ["loss"])
        np.testing.assert_array_equal(runs.subsets, [[1, 0], [0, 1]])

    def test_spaces_blank_lines_windows_ends_and_a_byte_order_mark(self, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_bytes("\ufeff\r\na, b , loss\r\n\r\n1, 0, 2\r\n  \r\n0,1,3".encode())
        runs = read_outcomes(path, ["loss"])
        assert runs.task_names == ("a", "b")
        np.testing.assert_array_equal(runs.values, [[2], [3]])

    def test_header_only_is_a_measurement_that_just_began(self, tmp_path):
        runs = read_outcomes(put(tmp_path, "a,b,loss\n"), ["loss"])
        assert (runs.n_runs, runs.n_tasks, runs.n_targets) == (0, 2, 1)

    def test_row_index_can_be_ignored(self, tmp_path):
        pd.DataFrame({"a": [1, 0], "loss": [1.0, 2.0]}).to_csv(tmp_path / "runs.csv")
        assert read_outcomes(tmp_path / "runs.csv", ["loss"], ignore=["Unnamed: 0"]).task_names == ("a",)
        assert read_outcomes(tmp_path / "runs.csv", ["loss"], tasks=["a"]).task_names == ("a",)

    @pytest.mark.parametrize(
        ("text", "arguments", "message"),
        [
            ("", {}, "the file is empty; its first line must name the columns"),
            ("\n\n", {}, "the file is empty"),
            (
                "a,loss\n1,2\n",
                {"outcomes": None},
                r"outcomes=\[...\] \(or --outcome NAME .* The columns are: a, loss",
            ),
            ("a,losses\n1,2\n", {}, "column 'loss' of 'outcomes' does not exist. Did you mean 'losses'?"),
            ("a,x\n1,2\n", {}, "column 'loss' of 'outcomes' does not exist. There are: a, x."),
            ("a,loss\n1,2\n", {"ignore": ["b"]}, "column 'b' of 'ignore' does not exist"),
            ("a,loss\n1,2\n", {"tasks": ["b"]}, "column 'b' of 'tasks' does not exist"),
            ("a,loss\n1,2\n", {"maximize": ["lost"]}, "There is no target 'lost'. Did you mean 'loss'?"),
            ("a,loss\n1,2\n", {"maximize": ["a"]}, "There is no target 'a'"),
            (
                "a,loss\n1,2\n",
                {"tasks": ["a", "loss"]},
                "'loss' is in 'outcomes' and again in 'tasks'; name it once",
            ),
            ("a,loss\n1,2\n", {"ignore": ["loss"]}, "'loss' is in 'outcomes' and again in 'ignore'"),
            (
                "a,loss\n1,2\n",
                {"outcomes": ["loss", "loss"]},
                "'loss' is in 'outcomes' and again in 'outcomes'",
            ),
            ("a,loss\n1,2\n", {"outcomes": []}, "no outcome column is left"),
            ("a,loss\n1,2\n", {"ignore": ["a"]}, "no task column is left. The columns are: a, loss"),
            (
                "a,a,loss\n1,0,2\n",
                {},
                "names must be unique, and these come more than once: 'a'. The first line must",
            ),
            ("a;b;loss\n1;0;2\n", {}, "there is one column, 'a;b;loss'.* separated by commas in .csv"),
            (
                ",a,loss\n0,1,2\n",
                {},
                r"column 1 has no name .*'Unnamed: 0'.* row index saved by pandas.*ignore=\[",
            ),
            ("a,Unnamed: 0,loss\n0,1,2\n", {}, "column 2 .* row index saved by pandas"),
            ("a,loss,\n0,1,2\n", {}, "column 3 has no name"),
            ("a,b,loss\n1,0,2\n1,0\n", {}, "line 3 has 2 cells where the header has 3"),
            ("a,b,loss\n\n1,0,2,5\n", {}, "line 3 has 4 cells where the header has 3"),
            ("a,b,loss\n1,0,2\n\n1,x,3\n", {}, r"line 4, column 'b': 'x' is not a number.*ignore=\['b'\]"),
            (
                'a,"b\tb",loss\n1,0,2\n',
                {},
                "name of each task must be non-empty text without control characters",
            ),
            (
                'i,a,loss\n"two\nlines",1,2\nx,1,y\n',
                {"ignore": "i"},
                "line 4, column 'loss': 'y' is not a number",
            ),
            ('i,a,loss\n"two\nlines",1,y\n', {"ignore": "i"}, "line 2, column 'loss': 'y' is not a number"),
            ("a,b,loss\n1,0,1_000\n", {}, "line 2, column 'loss': '1_000' is not a number"),
            ("a,b,loss\n1,0,0x10\n", {}, "line 2, column 'loss': '0x10' is not a number"),
            ("a,b,loss\n1,0,2\n1,0,inf\n", {}, "line 3, column 'loss': an outcome must be finite.*Got inf"),
            (
                "a,b,loss\n1,0,2\n1,0,-1e400\n",
                {},
                "line 3, column 'loss': an outcome must be finite.*Got -inf",
            ),
            ("a,b,loss\n1,,2\n", {}, "line 2, column 'b': a task column cannot be empty; write 0 or 1"),
            ("a,b,loss\n1,nan,2\n", {}, "line 2, column 'b': a task column cannot be empty"),
            ("a,b,loss\n1,0,2\n\n-1,0,2\n", {}, "line 4, column 'a': a weight must be at least 0. Got -1.0"),
            ('a,b,loss\n1,"0,2\n', {}, "this is not a text table in UTF-8; reading stopped near line 1"),
        ],
    )
    def test_bad_tables_say_where(self, tmp_path, text, arguments, message):
        path = tmp_path / "runs.csv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=rf"runs\.csv: (?s:.)*{message}"):
            read_outcomes(path, **({"outcomes": ["loss"]} | arguments))

    @pytest.mark.parametrize("name", ["runs.csv", "runs.tsv", "runs.csv.gz"])
    def test_binary_is_refused(self, tmp_path, name):
        (tmp_path / name).write_bytes(bytes(range(256)) * 20)
        with pytest.raises(InputError, match=r"is not a text table in UTF-8"):
            read_outcomes(tmp_path / name, ["loss"])

    def test_a_gzip_cut_short_is_refused(self, tmp_path):
        text = "a,b,loss\n" + "1,0,0.123\n0,1,0.456\n" * 2000
        (tmp_path / "runs.csv.gz").write_bytes(gzip.compress(text.encode())[:-20])
        with pytest.raises(InputError, match=r"is not a text table"):
            read_outcomes(tmp_path / "runs.csv.gz", ["loss"])

    def test_bad_places_to_read(self, tmp_path):
        with pytest.raises(InputError, match=r"absent.csv: there is no such file"):
            read_outcomes(tmp_path / "absent.csv", ["loss"])
        with pytest.raises(InputError, match=r"this is a folder, and a file of runs is needed"):
            read_outcomes(tmp_path, ["loss"])
        with pytest.raises(InputError, match=r"must end in .csv, .* Got 'runs.xlsx' instead"):
            read_outcomes(tmp_path / "runs.xlsx", ["loss"])


class TestReadingNpz:
    def test_short_keys(self, tmp_path):
        np.savez(
            tmp_path / "t.npz",
            S=np.eye(2),
            Y=[[1.0, 2], [3, 4]],
            S_names=["a", "b"],
            Y_names=np.array([b"x", b"y"]),
            train_idx=[0],
        )
        runs = read_outcomes(tmp_path / "t.npz", ["y"])
        assert (runs.task_names, runs.target_names) == (("a", "b"), ("y",))
        np.testing.assert_array_equal(runs.values, [[2], [4]])
        assert runs.provenance == {"source": str(tmp_path / "t.npz")}

    def test_names_may_be_left_out(self, tmp_path):
        np.savez(tmp_path / "t.npz", subsets=np.eye(2, dtype=bool), values=[1.0, 2.0])
        assert read_outcomes(tmp_path / "t.npz").target_names == ("outcome_0",)

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"values": None}, "must hold 'subsets' and 'values' .or S and Y.. It holds: subsets"),
            ({"values": np.array([1, None])}, "never unpickles"),
            ({"task_names": np.array(["a", None])}, "never unpickles"),
            ({"task_names": ["a"]}, "one name per task column, 2 in all. Got 1"),
            ({"task_names": ["a", "a"]}, "unique"),
            ({"task_names": ["a", "outcome_0"]}, "names must be unique.*'outcome_0'"),
            ({"values": ["x", "y"]}, "'values' must be an array of numbers"),
            ({"values": [1.0]}, "same number of rows"),
            ({"values": [1.0, np.inf]}, "column 'outcome_0': an outcome must be finite"),
            ({"subsets": np.eye(2) - 0.5}, "a weight must be at least 0"),
            ({"maximize": [True, True]}, "one bool per target"),
            ({"provenance": "not json"}, "this npz file cannot be read .JSONDecodeError"),
        ],
    )
    def test_bad_arrays_are_refused(self, tmp_path, arrays, message):
        arrays = {"subsets": np.eye(2), "values": [1.0, 2.0]} | arrays
        np.savez(tmp_path / "t.npz", **{name: array for name, array in arrays.items() if array is not None})
        with pytest.raises(InputError, match=f"t.npz: .*{message}"):
            read_outcomes(tmp_path / "t.npz")

    def test_damaged_files_are_refused(self, runs, tmp_path):
        path = tmp_path / "t.npz"
        runs.write(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(
            InputError, match=r"not an npz file .a zip archive of arrays., or it is cut short"
        ):
            read_outcomes(path)
        path.write_bytes(whole[:60] + bytes(40) + whole[100:])
        with pytest.raises(InputError, match=r"this npz file cannot be read"):
            read_outcomes(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("subsets.npy", b"no array")
        with pytest.raises(InputError, match=r"this npz file cannot be read|an npz file must hold"):
            read_outcomes(path)


class TestReadingParquet:
    def test_a_table_from_elsewhere(self, tmp_path):
        frame = pd.DataFrame(
            {
                "a": [True, False],
                "b": pd.array([0, 1], dtype="Int8"),
                "w": np.array([0.5, 0.25], dtype=np.float32),
                "note": ["x", "y"],
                "loss": [1.5, None],
            }
        )
        frame.to_parquet(tmp_path / "t.parquet")
        runs = read_outcomes(tmp_path / "t.parquet", ["loss"], ignore=["note"])
        np.testing.assert_array_equal(runs.subsets, [[1, 0, 0.5], [0, 1, 0.25]])
        np.testing.assert_array_equal(runs.values, [[1.5], [np.nan]])
        assert runs.provenance == {"source": str(tmp_path / "t.parquet")}
        with pytest.raises(
            InputError, match=r"column 'note' holds (large_)?string and not numbers.*ignore=\['note'\]"
        ):
            read_outcomes(tmp_path / "t.parquet", ["loss"])
        with pytest.raises(InputError, match=r"outcome columns must be named"):
            read_outcomes(tmp_path / "t.parquet")

    def test_a_saved_row_index_is_named(self, tmp_path):
        pd.DataFrame({"a": [1, 0], "loss": [1.0, 2.0]}, index=[5, 9]).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(
            InputError, match=r"'__index_level_0__': it looks like a row index saved by pandas"
        ):
            read_outcomes(tmp_path / "t.parquet", ["loss"])

    def test_repeated_columns_are_refused(self, tmp_path):
        table = pa.Table.from_arrays([pa.array([1.0])] * 3, names=["a", "a", "loss"])
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(InputError, match=r"these come more than once: 'a'"):
            read_outcomes(tmp_path / "t.parquet", ["loss"])

    def test_missing_weights_are_refused(self, tmp_path):
        pq.write_table(pa.table({"a": [1, None], "loss": [1.0, 2.0]}), tmp_path / "t.parquet")
        with pytest.raises(
            InputError, match=r"row 1 .counted from 0., column 'a': a task column cannot be empty"
        ):
            read_outcomes(tmp_path / "t.parquet", ["loss"])

    def test_columns_changed_behind_our_back(self, runs, tmp_path):
        runs.write(tmp_path / "t.parquet")
        table = pq.read_table(tmp_path / "t.parquet")
        pq.write_table(table.append_column("new", [[0.0] * 12]), tmp_path / "t.parquet")
        with pytest.raises(InputError, match=r"its columns are not those that whence wrote"):
            read_outcomes(tmp_path / "t.parquet")

    def test_damaged_files_are_refused(self, runs, tmp_path):
        path = tmp_path / "t.parquet"
        runs.write(path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(InputError, match=r"this Parquet file cannot be read"):
            read_outcomes(path)


class TestFuzz:
    """Whatever the bytes: a table or an InputError, nothing else."""

    @staticmethod
    def read(path):
        """Number of runs, or None where the file was refused by a sentence that names it."""
        try:
            return read_outcomes(path, outcomes=["b"]).n_runs
        except InputError as error:
            return None if str(path) in str(error) else pytest.fail(f"no file name in: {error}")

    @FUZZ
    @given(content=st.binary(max_size=200), ending=st.sampled_from([*FORMATS, "tsv.gz"]))
    def test_any_bytes(self, tmp_path, content, ending):
        path = tmp_path / f"any.{ending}"
        path.write_bytes(content)
        self.read(path)

    @FUZZ
    @given(
        cells=st.lists(
            st.lists(
                st.sampled_from(["a", "b", "0", "1", "0.5", "", "nan", "inf", "-1", "x", '"', "True", " "]),
                max_size=3,
            ),
            max_size=5,
        ),
        named=st.booleans(),
    )
    def test_any_small_table(self, tmp_path, cells, named):
        rows = [["a", "b"], *cells] if named else cells
        path = tmp_path / "any.csv"
        path.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")
        whole = [row for row in cells if any(cell.strip() for cell in row) or len(row) > 1]
        n_runs = self.read(path)
        if named and all(
            len(row) == 2 and row[0] in ("0", "1", "0.5") and row[1] in ("0", "nan", "") for row in whole
        ):
            assert n_runs == len(whole)

    @FUZZ
    @given(
        place=st.floats(0, 1), byte=st.integers(0, 255), ending=st.sampled_from(["parquet", "npz", "csv.gz"])
    )
    def test_one_byte_changed(self, tmp_path, place, byte, ending):
        path = tmp_path / f"any.{ending}"
        Outcomes(np.eye(3), [1.0, np.nan, 3.0], list("xyz"), ["b"]).write(path)
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] = byte
        path.write_bytes(content)
        self.read(path)


def test_a_hundred_thousand_columns(tmp_path):
    n_tasks = 100_000
    with open(tmp_path / "wide.csv", "w") as file:
        file.write(",".join(f"task_{k}" for k in range(n_tasks)) + ",loss\n")
        for row in range(3):
            file.write(",".join(str((k >> row) & 1) for k in range(n_tasks)) + f",{row}\n")
    runs = read_outcomes(tmp_path / "wide.csv", ["loss"])
    np.testing.assert_array_equal(runs.subsets[1], (np.arange(n_tasks) >> 1) & 1)
    np.testing.assert_array_equal(runs.values.ravel(), [0, 1, 2])
