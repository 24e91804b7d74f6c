"""Whatever the table, it comes back; whatever the bytes, a table or an `InputError`, nothing else."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.outcomes.files import read_outcomes
from whence.outcomes.values import is_value

FORMATS = ["csv", "tsv", "csv.gz", "parquet", "npz"]
ENDINGS = [*FORMATS, "tsv.gz", "jsonl", "jsonl.gz", "json", "xlsx"]
CELLS = ["a", "b", "0", "1", "0.5", "", "nan", "inf", "-1", "x", '"', "True", " ", "50%", "x;y", "[a]", "{}", "3 GB"]
CELLS += ["2 ms", "yes", "{1:2}", "[[]]", "1e999", "a=1", "٣"]
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FUZZ
@given(data=st.data(), ending=st.sampled_from(FORMATS))
def test_any_table_comes_back_exactly(tmp_path, data, ending):
    m, n_tasks, n_targets = (data.draw(st.integers(low, 4)) for low in (0, 1, 1))
    name = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufeff"), min_size=1)
    # A first line of numbers is a run without a header.
    name = name.filter(lambda text: text.strip() and not text.startswith("Unnamed") and not is_value(text))
    names = data.draw(st.lists(name, min_size=n_tasks + n_targets, max_size=n_tasks + n_targets, unique_by=str.strip))
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
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".* repeats? another in every cell .* count as runs made again")
            back = read_outcomes(path, runs.target_names, tasks=runs.task_names, maximize=runs.maximize)
    np.testing.assert_array_equal(back.subsets, runs.subsets)
    np.testing.assert_array_equal(back.values, runs.values)
    assert (back.task_names, back.target_names, back.maximize) == (
        runs.task_names,
        runs.target_names,
        runs.maximize,
    )
    assert not np.signbit(back.subsets).any()


class TestFuzz:
    """Whatever the bytes: a table or an InputError, nothing else."""

    @staticmethod
    def read(path):
        """Number of runs, or None where the file was refused by a sentence that names it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # of columns that are set aside
                return read_outcomes(path, outcomes=["b"]).n_runs
        except InputError as error:
            return None if str(path) in str(error) else pytest.fail(f"no file name in: {error}")

    @FUZZ
    @given(
        content=st.binary(max_size=200),
        ending=st.sampled_from(ENDINGS),
    )
    def test_any_bytes(self, tmp_path, content, ending):
        path = tmp_path / f"any.{ending}"
        path.write_bytes(content)
        self.read(path)

    @FUZZ
    @given(
        cells=st.lists(
            st.lists(
                st.sampled_from(CELLS),
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
        if named and all(len(row) == 2 and row[0] in ("0", "1", "0.5") and row[1] in ("0", "nan", "") for row in whole):
            assert n_runs == len(whole)

    @FUZZ
    @given(place=st.floats(0, 1), byte=st.integers(0, 255), ending=st.sampled_from(["parquet", "npz", "csv.gz"]))
    def test_one_byte_changed(self, tmp_path, place, byte, ending):
        path = tmp_path / f"any.{ending}"
        Outcomes(np.eye(3), [1.0, np.nan, 3.0], list("xyz"), ["b"]).write(path)
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] = byte
        path.write_bytes(content)
        self.read(path)
