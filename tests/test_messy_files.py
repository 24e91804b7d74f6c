"""Files as programs save them: encodings, titles, remarks, averages, several sheets, weights in a list."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from whence import FixedSize
from whence.cli import app
from whence.errors import DataWarning, InputError
from whence.outcomes import read_outcomes
from whence.outcomes.cells import read_subsets

SOURCES = ["Common Crawl", "Git Hub", "ArXiv", "Books"]
HEADER = ["Run ID", *(f"{name.upper()} " for name in SOURCES), "Seed", "Hours", "GPU", "# Tokens", "VAL LOSS", "Café"]


def sweep(n=24, seed=5):
    """Percentages in tenths, and a loss that is lowest with much of the first source."""
    W = np.random.default_rng(seed).dirichlet([3, 2, 1, 1], n)
    return (100 * W).round(1), (2 + ((W - [0.5, 0.3, 0.1, 0.1]) ** 2).sum(1)).round(4)


def rows_of(percent, loss):
    """Rows of the sheet as text, numbers written in English."""
    rows = []
    for at, (weights, value) in enumerate(zip(percent, loss, strict=True)):
        known = [str(at % 3), f"{11.5 + at % 7}", "A100", f"{25_000_000 + at:,}", f"{value}", "ok"]
        rows.append([f"r{at}", *(f"{weight}%" for weight in weights), *known])
    return rows


def written(rows, separator=",", header=HEADER):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def german(rows):
    """The same rows with decimal commas, and points between thousands."""
    swap = str.maketrans(",.", ".,")
    return [[row[0], *(cell.translate(swap) for cell in row[1:10]), row[10]] for row in rows]


def files():
    """Every way of saving the sweep: name of the file, its bytes, and what the note on it says."""
    rows = rows_of(*sweep())
    plain = written(rows)
    lines = plain.splitlines()
    empty = "," * (len(HEADER) - 1)
    return {
        "mark.csv": (plain.encode("utf-8-sig"), None),
        "excel_unicode.csv": (plain.encode("utf-16"), None),
        "excel_unicode.tsv": (written(rows, "\t").encode("utf-16"), None),
        "windows.csv": (plain.encode("cp1252"), "read as Windows-1252, because it is not UTF-8"),
        "semicolons.csv": (written(german(rows), ";").encode(), None),
        "quoted_commas.csv": (written(german(rows), ",").encode(), None),
        "tabs.tsv": (written(german(rows), "\t").encode(), None),
        "bars.csv": (written(rows, "|").encode(), None),
        "trailing_commas.csv": ("\n".join([lines[0], *(f"{line},," for line in lines[1:])]).encode(), None),
        "blank_rows.csv": (f"{lines[0]}\n{empty}\n{plain.partition(chr(10))[2]}{empty}\n".encode(), None),
        "title.csv": (f"Sweep of May, by Ana\n\n{plain}".encode(), r"not runs: line 1 \(Sweep of May\)"),
        "padded_title.csv": (f"Sweep of May{empty}\n{plain}".encode(), r"not runs: line 1 \(Sweep of May\)"),
        "pasted.csv": ("\n".join([*lines[:9], lines[0], *lines[9:]]).encode(), r"line 10 \(the header again\)"),
        "remarks.csv": (f"{plain}\nNote: node 3 died\nAna, Bo\n".encode(), r"line 27 \(Note: .*\), line 28 \(Ana"),
        "average.csv": (f"{plain}Average,25%,25%,25%,25%,,12.9,,,2.1,\n".encode(), r"not runs: line 26 \(Average\)"),
    }  # fmt: skip


@pytest.mark.parametrize("name", files())
def test_one_sweep_however_it_was_saved(tmp_path, name):
    content, note = files()[name]
    (tmp_path / name).write_bytes(content)
    with pytest.warns(DataWarning) as caught:
        runs = read_outcomes(tmp_path / name, "val loss")
    percent, loss = sweep()
    assert runs.task_names == tuple(source.upper() for source in SOURCES)
    np.testing.assert_allclose(runs.subsets, percent / 100, atol=1e-12)
    np.testing.assert_array_equal(runs.values[:, 0], loss)
    notes = [str(warning.message) for warning in caught if "Columns set aside" not in str(warning.message)]
    assert len(notes) == (note is not None), notes
    assert note is None or re.search(note, notes[0])


def test_rows_that_may_be_runs_are_never_left_out(tmp_path):
    # Cut rows, marks without an outcome yet, and a run that is called mean among others.
    path = tmp_path / "runs.csv"
    path.write_text("a,b,c,d,loss\n1,0,0,1,2\n1\n")
    with pytest.raises(InputError, match="line 3 has 1 cells where the header has 5"):
        read_outcomes(path, "loss")
    path.write_text("a,b,c,d,e,f,loss\nx,,x,,x,x,1\n,x,,,,,\n,,,x,,,2\n")
    assert read_outcomes(path, "loss").n_runs == 3
    path.write_text("run,a,b,loss\nmean,1,0,2\nr1,0,1,3\nr2,1,1,4\n")
    with pytest.warns(DataWarning, match="run"):
        assert read_outcomes(path, "loss").n_runs == 3


def test_decimal_commas_are_not_mistaken(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text('tasks,loss,cost\n"1,2",0.5,"1,234"\n"2,3",0.6,"2,345"\n"1,3",0.7,"3,456"\n')
    with pytest.warns(DataWarning):
        assert read_outcomes(path, "loss").task_names == ("1", "2", "3")
    path.write_text("a;b;loss\n0,5;0,5;1.234\n0,25;0,75;12.5\n1;0;2.345\n")  # points before decimals in one column
    np.testing.assert_array_equal(read_outcomes(path, "loss").values[:, 0], [1.234, 12.5, 2.345])


def test_a_workbook_with_titles_and_several_sheets(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
    percent, loss = sweep()
    rows = [[f"r{at}", *(weights / 100), at % 3, y] for at, (weights, y) in enumerate(zip(percent, loss, strict=True))]
    book = openpyxl.Workbook()
    book.active.append(["Read me first: the sweeps are on the next sheets"])
    for part, title in ((rows[:10], "May"), (rows[10:], "June")):
        sheet = book.create_sheet(title)
        for row in (["Sweep"], [], ["Run ID", *SOURCES, "Seed", "Loss"], *part, ["Mean", *[0.25] * 4, None, 2.0]):
            sheet.append(row)
    prices = book.create_sheet("Prices")
    prices.append(["GPU", "price"])
    prices.append(["A100", 1.5])
    book.save(tmp_path / "runs.xlsx")
    with pytest.warns(DataWarning) as caught:
        runs = read_outcomes(tmp_path / "runs.xlsx", "loss")
    np.testing.assert_allclose(runs.subsets, percent / 100)
    np.testing.assert_array_equal(runs.values[:, 0], loss)
    notes = " ".join(str(warning.message) for warning in caught)
    assert "sheets read: 'May', 'June'; not read: 'Prices'." in notes
    assert "row 1 (Sweep), row 14 (Mean)" in notes
    book["June"]["B5"] = "much"
    book.save(tmp_path / "runs.xlsx")
    refused = pytest.raises(InputError, match=r"sheet 'June', row 5, column 'Common Crawl': 'much' is not a number")
    with pytest.warns(DataWarning), refused:
        read_outcomes(tmp_path / "runs.xlsx", "loss")


@pytest.mark.parametrize(
    "spelled", ["{name}={share:.3f}", "{name}: {percent:.1f}%", "{name} {percent:.1f}%", "{percent:.1f}% {name}"]
)
@pytest.mark.parametrize("separator", [", ", " + ", "|"])
def test_a_column_that_lists_weights(spelled, separator):
    percent, loss = sweep()
    cells = [
        separator.join(
            spelled.format(name=name, percent=p, share=p / 100) for name, p in zip(SOURCES, row, strict=True)
        )
        for row in percent
    ]
    with pytest.warns(DataWarning, match="'blend' is taken to list the tasks of each run"):
        runs = read_outcomes(pd.DataFrame({"blend": cells, "loss": loss}), "loss")
    assert runs.task_names == tuple(SOURCES)
    np.testing.assert_allclose(runs.subsets, percent / 100)


def test_what_all_names_begin_with_is_left_out_of_them():
    percent, loss = sweep()
    for prefix in ("mix.", "data/mixture/", "config.data.weights."):
        frame = pd.DataFrame(percent / 100, columns=[f"{prefix}{name}" for name in SOURCES]).assign(loss=loss)
        assert read_outcomes(frame, "loss").task_names == tuple(SOURCES)
    frame.columns = ["a.b", "a.b.c", "a.", "a.d", "loss"]  # a name would be empty
    assert read_outcomes(frame, "loss").task_names == ("a.b", "a.b.c", "a.", "a.d")


def test_bookkeeping_that_never_changes_is_no_task_among_0_and_1():
    S = np.random.default_rng(0).integers(0, 2, (12, 3))
    frame = pd.DataFrame(S, columns=["params.use_a", "params.use_b", "params.use_c"])
    frame = frame.assign(experiment_id=0, num_gpus=1, epochs=1, loss=S @ [1.0, 2.0, 3.0])
    with pytest.warns(DataWarning, match=r"experiment_id .an identifier., num_gpus .a setting., epochs"):
        assert read_outcomes(frame, "loss").task_names == ("use_a", "use_b", "use_c")


def test_a_plan_that_was_filled_in_is_extended(tmp_path):
    S = FixedSize(2).draw(5, 6, seed=1)
    plan = pd.DataFrame(S.astype(int), columns=list("abcde")).assign(seed=range(6), Loss=np.linspace(0.4, 0.9, 6))
    plan.to_csv(tmp_path / "done.csv", index=False)
    with pytest.warns(DataWarning, match=r"seed \(a seed\), Loss \(another measurement"):
        assert list(read_subsets(tmp_path / "done.csv").columns) == list("abcde")
    new = tmp_path / "new.csv"
    command = ["design", "--extend", tmp_path / "done.csv", "-d", "fixed:2", "-n", 4, "-O", "loss", "-o", new]
    result = CliRunner().invoke(app, [str(word) for word in command], prog_name="whence")
    assert result.exit_code == 0, result.output
    more = pd.read_csv(new)
    assert list(more.columns) == [*"abcde", "loss"]
    assert len(np.unique(np.vstack([S, more[list("abcde")]]), axis=0)) == 10  # all that there are
    percent, loss = sweep()
    pd.DataFrame(percent, columns=SOURCES).assign(seed=1, loss=loss).to_csv(tmp_path / "mixed.csv", index=False)
    with pytest.warns(DataWarning, match=r"loss .another measurement"):
        assert list(read_subsets(tmp_path / "mixed.csv").columns) == SOURCES


@pytest.mark.parametrize("weights", [True, False])
def test_a_row_per_run_and_source_is_read_as_a_row_per_run(tmp_path, weights):
    rng = np.random.default_rng(0)
    names = ["web", "code", "math", "wiki"]
    S = (
        rng.dirichlet(np.ones(4), 20).round(4)
        if weights
        else np.vstack([np.eye(4), rng.integers(0, 2, (16, 4)) | [1, 0, 0, 0]])
    )
    loss = S @ [-1.0, 0.0, 0.5, 1.0]
    lines = ["run_id,seed,source,weight,loss" if weights else "run_id,seed,source,loss"]
    for run, (row, value) in enumerate(zip(S, loss, strict=True)):
        for name, share in zip(names, row, strict=True):
            if share:
                lines.append(",".join(map(str, [f"r{run}", 7, name, *([share] if weights else []), value])))
    path = tmp_path / "long.csv"
    path.write_text("\n".join(lines))
    with pytest.warns(DataWarning, match="same 'run_id' are read as one run, and 'source' as its tasks"):
        runs = read_outcomes(path, outcomes=["loss"], ignore=["run_id", "seed"])
    assert runs.task_names == tuple(names)
    np.testing.assert_allclose(runs.subsets, S)
    np.testing.assert_allclose(runs.values[:, 0], loss)


def long_table(path, n=24, **columns):
    """A row per run and source, with what columns hold of them: functions of the run, the source and the weight."""
    W = np.random.default_rng(4).dirichlet([2, 1, 1], n).round(3)
    rows = [[make(run, at, W[run, at]) for make in columns.values()] for run in range(n) for at in range(3)]
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return W


NAMES = ("web", "code", "law")


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_rows_of_runs_and_tasks_with_more_columns(tmp_path):
    """The place of a source and its tokens differ within a run too, and are not its weight."""
    path = tmp_path / "long.csv"
    columns = {
        "run": lambda run, at, weight: f"r{run}",
        "order": lambda run, at, weight: at,
        "source": lambda run, at, weight: NAMES[at],
        "tokens": lambda run, at, weight: round(weight * 1e9),
        "share": lambda run, at, weight: weight,
        "loss": lambda run, at, weight: 2 + run / 10,
    }
    W = long_table(path, **columns)
    with pytest.warns(DataWarning, match="with weights from 'share'. Left out, .*: order, tokens"):
        runs = read_outcomes(path, outcomes=["loss"])
    assert runs.task_names == NAMES
    np.testing.assert_array_equal(runs.subsets, W)
    np.testing.assert_allclose(runs.values[:, 0], 2 + np.arange(24) / 10)
    del columns["share"]  # then tokens are all there is
    long_table(path, **columns)
    runs = read_outcomes(path, outcomes=["loss"])
    np.testing.assert_allclose(runs.subsets, W * 1e9)


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_rows_of_runs_and_tasks_with_an_outcome_of_each_task(tmp_path):
    path = tmp_path / "long.csv"
    W = long_table(
        path,
        mix=lambda run, at, weight: f"r{run}",
        id=lambda run, at, weight: run,
        domain=lambda run, at, weight: NAMES[at],
        weight=lambda run, at, weight: weight,
        val_loss=lambda run, at, weight: 2 + run / 10 + at,
    )
    with pytest.warns(DataWarning, match=r"Outcomes are of single tasks: val_loss\[web\]"):
        runs = read_outcomes(path, outcomes=["val_loss"])
    np.testing.assert_array_equal(runs.subsets, W)
    np.testing.assert_allclose(runs.values, 2 + np.arange(24)[:, None] / 10 + np.arange(3))
    assert runs.target_names == ("val_loss[web]", "val_loss[code]", "val_loss[law]")


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_runs_of_a_long_table_may_be_called_anything(tmp_path):
    path = tmp_path / "long.csv"
    W = long_table(
        path,
        recipe_card=lambda run, at, weight: f"r{run}",
        domain=lambda run, at, weight: NAMES[at],
        weight=lambda run, at, weight: weight,
        loss=lambda run, at, weight: 2 + run / 10,
    )
    runs = read_outcomes(path, outcomes=["loss"])
    np.testing.assert_array_equal(runs.subsets, W)


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_two_columns_that_may_be_weights_are_asked_about(tmp_path):
    path = tmp_path / "long.csv"
    W = long_table(
        path,
        run=lambda run, at, weight: f"r{run}",
        source=lambda run, at, weight: NAMES[at],
        before=lambda run, at, weight: weight**2,
        after=lambda run, at, weight: weight,
        loss=lambda run, at, weight: 2 + run / 10,
    )
    with pytest.raises(
        InputError, match=r"whose weight may be in several columns: before, after. Leave all but one out"
    ):
        read_outcomes(path, outcomes=["loss"])
    runs = read_outcomes(path, outcomes=["loss"], ignore=["before"])
    np.testing.assert_array_equal(runs.subsets, W)


def test_replicates_of_a_configuration_are_not_a_long_table(tmp_path):
    path = tmp_path / "runs.csv"
    rows = [f"c{c},{c % 2},{c // 2},{host},{c + 0.1 * (host == 'y')}" for c in range(4) for host in "xy"]
    path.write_text("\n".join(["config_id,a,b,host,loss", *rows]))
    with pytest.warns(DataWarning, match="set aside"):
        runs = read_outcomes(path, outcomes=["loss"])
    assert runs.task_names == ("a", "b")
    assert runs.n_runs == 8
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join([f"{lines[0]},grad_norm,lr", *(f"{line},{at},{at % 3}" for at, line in enumerate(lines[1:]))])
    )
    with pytest.warns(DataWarning, match="set aside"):
        assert read_outcomes(path, outcomes=["loss"], ignore=["grad_norm"]).n_runs == 8
