"""Numbers as locales write them: the same table in each is read as the same numbers; a note says where in doubt."""

import numpy as np
import pandas as pd
import pytest

from whence.errors import DataWarning
from whence.outcomes import read_outcomes

TOKENS = np.random.default_rng(1).integers(100, 5000, (24, 3))
LOSS = np.random.default_rng(2).uniform(0.3, 0.7, 24).round(3)
BINARY = (TOKENS % 2).astype(int)


def written(folder, ending, separator, cells, loss, as_count, as_decimal):
    quoted = '"{}"'.format if separator == "," else str
    rows = [["a", "b", "c", "loss"]]
    rows += [[*map(as_count, row), as_decimal(value)] for row, value in zip(cells, loss, strict=True)]
    file = folder / f"runs.{ending}"
    file.write_text("\n".join(separator.join(quoted(cell) for cell in row) for row in rows), encoding="utf-8")
    return file


def english(number):
    return f"{number:,}"


def german(number):
    return f"{number:,}".translate(str.maketrans(",.", ".,"))


SEPARATORS = [("csv", ";"), ("tsv", "\t"), ("csv", ",")]


@pytest.mark.parametrize(("ending", "separator"), SEPARATORS)
@pytest.mark.parametrize("locale", [english, german])
@pytest.mark.parametrize("cells", [TOKENS, BINARY], ids=["tokens", "binary"])
def test_the_same_numbers_in_every_locale(tmp_path, ending, separator, locale, cells):
    """Three decimals look like thousands, and thousands like three decimals: other cells of the table tell."""
    runs = read_outcomes(written(tmp_path, ending, separator, cells, LOSS, locale, locale), "loss")
    np.testing.assert_array_equal(runs.subsets, cells)
    np.testing.assert_array_equal(runs.values[:, 0], LOSS)


def test_a_frame_and_records_hold_them_too(tmp_path):
    frame = pd.DataFrame(BINARY, columns=list("abc")).assign(loss=list(map(german, LOSS)))
    file = tmp_path / "runs.json"
    frame.to_json(file, orient="records")
    for source in (frame, file):
        np.testing.assert_array_equal(read_outcomes(source, "loss").values[:, 0], LOSS)


@pytest.mark.parametrize(
    ("ending", "separator", "as_count", "read", "said"),
    [
        ("tsv", "\t", english, 1, r"1,\d+ \(a, b, c\) are read as 1\d+, with the comma between thousands"),
        ("csv", ";", german, 1, r"1\.\d+ \(a, b, c\) are read as 1\d+, with the point between thousands"),
        ("csv", ",", german, 0.001, r"1\.\d+ \(a, b, c\) are read as 1\.\d+, with the point before decimals. If it"),
    ],
)
def test_in_doubt_a_note_says_how_they_are_read(tmp_path, ending, separator, as_count, read, said):
    """Nothing else in the table has decimals; where all counts are above a thousand, not even their lengths tell."""
    cells = 1000 + TOKENS % 997
    if as_count is german:
        cells[0] = [270, 350, 410]
    file = written(tmp_path, ending, separator, cells, (1000 * LOSS).astype(int), as_count, str)
    with pytest.warns(DataWarning, match=said):
        runs = read_outcomes(file, "loss")
    np.testing.assert_allclose(runs.subsets[1:], read * cells[1:])


def test_one_column_of_pairs_lists_numbered_tasks(tmp_path):
    file = tmp_path / "runs.tsv"
    pairs = ["1,2", "2,3", "1,3"] * 4
    file.write_text("tasks\tloss\n" + "\n".join(f"{pair}\t{loss}" for pair, loss in zip(pairs, LOSS, strict=False)))
    runs = read_outcomes(file, "loss", subset_column="tasks")
    assert runs.task_names == ("1", "2", "3")
    assert (runs.subsets.sum(axis=1) == 2).all()


def test_a_zero_before_the_comma_is_not_of_thousands(tmp_path):
    file = tmp_path / "runs.tsv"
    file.write_text("a\tb\tloss\n1\t0\t0,361\n0\t1\t0.25\n1\t1\t0.5\n")
    assert read_outcomes(file, "loss").values[:, 0].tolist() == [0.361, 0.25, 0.5]
