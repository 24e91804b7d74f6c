"""Files there and back; every bad file by its sentence."""

import gzip
import sys
import textwrap
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whence.errors import DataWarning, InputError
from whence.outcomes.files import read_outcomes

FORMATS = ["csv", "tsv", "csv.gz", "parquet", "npz"]


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
        with pytest.raises(InputError, match=r"column 'cod' of 'outcomes' does not exist. There are: loss, acc, "):
            read_outcomes(path, ["cod"])

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
        with pytest.raises(InputError, match=r"runs.npz: cannot be written \(the disk is full\)"):
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

    @pytest.mark.parametrize(
        ("text", "arguments", "message"),
        [
            ("", {}, "the file is empty; its first line must name the columns"),
            ("\n\n", {}, "the file is empty"),
            ("a,loss\n1,2\n", {"maximize": ["lost"]}, "There is no target 'lost'. Did you mean 'loss'?"),
            ("a,loss\n1,2\n", {"maximize": ["a"]}, "There is no target 'a'"),
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
            ('a,b,loss\n1,"0,2\n', {}, "this is not a text table; reading stopped near line 1"),
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
        with pytest.raises(InputError, match=r"is not text in UTF-8|is not a gzipped file"):
            read_outcomes(tmp_path / name, ["loss"])

    def test_a_gzip_cut_short_is_refused(self, tmp_path):
        text = "a,b,loss\n" + "1,0,0.123\n0,1,0.456\n" * 2000
        (tmp_path / "runs.csv.gz").write_bytes(gzip.compress(text.encode())[:-20])
        with pytest.raises(InputError, match=r"is not a gzipped file, or it is cut short"):
            read_outcomes(tmp_path / "runs.csv.gz", ["loss"])

    def test_bad_places_to_read(self, tmp_path):
        with pytest.raises(InputError, match=r"absent.csv: there is no such file"):
            read_outcomes(tmp_path / "absent.csv", ["loss"])
        with pytest.raises(InputError, match=r"this is a folder, and a file of runs is needed"):
            read_outcomes(tmp_path, ["loss"])
        with pytest.raises(InputError, match=r"must end in .csv, .* Got 'runs.ods' instead"):
            read_outcomes(tmp_path / "runs.ods", ["loss"])


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
            ({"values": None}, "must hold 'subsets' and 'values' .or S and Y, or X and y.. It holds: subsets"),
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
        with pytest.raises(InputError, match=r"not an npz file .a zip archive of arrays., or it is cut short"):
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
        with pytest.warns(DataWarning, match=r"set aside, which are not tasks: note \(text\)"):
            assert read_outcomes(tmp_path / "t.parquet", ["loss"]).task_names == ("a", "b", "w")
        with pytest.raises(InputError, match=r"outcome columns must be named"):
            read_outcomes(tmp_path / "t.parquet")

    def test_a_saved_row_index_is_named(self, tmp_path):
        pd.DataFrame({"a": [1, 0], "loss": [1.0, 2.0]}, index=[5, 9]).to_parquet(tmp_path / "t.parquet")
        with pytest.warns(DataWarning, match=r"set aside, which are not tasks: __index_level_0__ \(a row index\)"):
            assert read_outcomes(tmp_path / "t.parquet", ["loss"]).task_names == ("a",)

    def test_repeated_columns_are_numbered(self, tmp_path):
        arrays = [pa.array([1.0, 0.0]), pa.array([0.0, 0.0]), pa.array([2.0, 3.0])]
        pq.write_table(pa.Table.from_arrays(arrays, names=["a", "a", "loss"]), tmp_path / "t.parquet")
        with pytest.warns(DataWarning, match=r"more than once: 'a', called a\[0\] and a\[1\] here"):
            assert read_outcomes(tmp_path / "t.parquet", ["loss"]).task_names == ("a[0]", "a[1]")

    def test_missing_weights_are_refused(self, tmp_path):
        pq.write_table(pa.table({"a": [1, None], "loss": [1.0, 2.0]}), tmp_path / "t.parquet")
        with pytest.raises(InputError, match=r"row 1 .counted from 0., column 'a': a task column cannot be empty"):
            read_outcomes(tmp_path / "t.parquet", ["loss"])

    def test_columns_changed_behind_our_back(self, runs, tmp_path):
        runs.write(tmp_path / "t.parquet")
        table = pq.read_table(tmp_path / "t.parquet")
        pq.write_table(table.append_column("new", [[0.0] * 12]), tmp_path / "t.parquet")
        with pytest.raises(InputError, match=r"its checksum does not match its contents"):
            read_outcomes(tmp_path / "t.parquet")

    def test_damaged_files_are_refused(self, runs, tmp_path):
        path = tmp_path / "t.parquet"
        runs.write(path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(InputError, match=r"this Parquet file cannot be read"):
            read_outcomes(path)


@pytest.mark.slow
def test_a_hundred_thousand_columns(tmp_path):
    n_tasks = 100_000
    with open(tmp_path / "wide.csv", "w") as file:
        file.write(",".join(f"task_{k}" for k in range(n_tasks)) + ",loss\n")
        for row in range(3):
            file.write(",".join(str((k >> row) & 1) for k in range(n_tasks)) + f",{row}\n")
    runs = read_outcomes(tmp_path / "wide.csv", ["loss"])
    np.testing.assert_array_equal(runs.subsets[1], (np.arange(n_tasks) >> 1) & 1)
    np.testing.assert_array_equal(runs.values.ravel(), [0, 1, 2])
