"""Tables of other shapes: each file as a person has it, right with at most two commands and no edit."""

import json
import shlex
import subprocess
import sys
import unicodedata

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import DataWarning, InputError
from whence.outcomes import read_outcomes
from whence.outcomes.cells import read_subsets
from whence.outcomes.listed import lists_subsets

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")  # a test looks at the notes it is about

TASKS = ["web", "code", "math", "law"]
S = whence.Bernoulli(0.5).draw(4, 15, seed=0)[np.arange(24) % 15].astype(int)
LOSS = (3 - S @ [1.0, 0.5, 0.0, -0.4] + 0.01 * np.random.default_rng(0).normal(size=24)).round(4)
W = np.random.default_rng(0).dirichlet([2, 2, 1, 1], 30).round(3)
W_LOSS = (2 + 3 * ((W - [0.5, 0.3, 0.15, 0.05]) ** 2).sum(1)).round(4)
FRAME = pd.DataFrame(S, columns=TASKS).assign(loss=LOSS)
MIXED = pd.DataFrame(W, columns=TASKS).assign(loss=W_LOSS)


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="whence")


def two_commands(*paths):
    """What the command proposes when only the files are given, and the table that it then reads."""
    first = run("fit", *paths)
    assert first.exit_code == 2, first.output
    words = shlex.split(first.stderr.partition("Try: ")[2])
    second = run(*words[1:])
    assert second.exit_code == 0, second.output
    try:
        read_outcomes(list(paths))
    except InputError as error:
        return read_outcomes(list(paths), **error.fix), second
    raise AssertionError


def check(runs, subsets=S, values=LOSS, tasks=TASKS):
    assert runs.task_names == tuple(tasks)
    np.testing.assert_allclose(runs.subsets, subsets, atol=1e-9)
    np.testing.assert_allclose(runs.values[:, 0], values)


# ---- marks, words and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "outside"),
    [("✓", "✗"), ("✅", "❌"), ("✓", "x"), ("✓", "-"), ("X", ""), ("+", "-"), ("w/", "w/o"), ("included", "excluded"),
     ("T", "F"), ("ja", "nein"), ("with", "without"), ("1", "")],
)  # fmt: skip
def test_marks_and_words_for_in_and_out(tmp_path, inside, outside):
    frame = pd.DataFrame(np.where(S == 1, inside, outside), columns=TASKS).assign(accuracy=(1 / LOSS).round(4))
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    check(runs, values=(1 / LOSS).round(4))
    assert runs.maximize == (True,)


def test_an_x_alone_is_a_mark_and_words_stay_words(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("a,b,c,loss\nx,1,in,1\n,0,in,2\nx,1,in,3\n")  # a column of one word is not 0/1
    with pytest.warns(DataWarning, match=r"c \(text\)"):
        assert read_outcomes(path, "loss").subsets.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    "spelled", ["{:.1f} ± 0.4", "{:.1f}±0.4", "{:.1f} +/- 0.4", "{:.1f} (0.4)", "{:.1f} [1.2, 99]"]
)
def test_a_spread_behind_an_outcome_is_left_out_with_a_note(spelled):
    frame = FRAME.drop(columns="loss").assign(acc=[spelled.format(100 / value) for value in LOSS])
    with pytest.warns(DataWarning, match=r"Spreads, as in 71.2 ± 0.3, are left out: acc"):
        check(read_outcomes(frame, "acc"), values=(100 / LOSS).round(1))


def test_fractions_and_thousands_between_spaces():
    with pytest.warns(DataWarning, match=r"when \(text\)"):  # months are no fractions
        check(read_outcomes(FRAME.assign(when=["11/2025", "12/2025", "12/5"] * 8), "loss"))
    frame = pd.DataFrame({"web": ["1/2", "1/4", "0"], "code": ["1/2", "3/4", "1"], "loss": ["1 234,5", "2 000", "3"]})
    with pytest.raises(InputError, match="'1 234,5' is not a number"):
        read_outcomes(frame, "loss")
    frame["loss"] = ["1 234.5", "2\u00a0000", "1'000'000"]
    runs = read_outcomes(frame, "loss")
    np.testing.assert_array_equal(runs.subsets, [[0.5, 0.5], [0.25, 0.75], [0, 1]])
    np.testing.assert_array_equal(runs.values[:, 0], [1234.5, 2000, 1e6])


@pytest.mark.parametrize("failed", ["inf", "OOM", "diverged", "-", "n.a."])
def test_runs_that_failed_are_not_measured(tmp_path, failed):
    frame = FRAME.astype({"loss": object})
    frame.loc[[4, 9], "loss"] = failed
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    check(runs, values=np.where(np.isin(np.arange(24), [4, 9]), np.nan, LOSS))


# ---- lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["/", " / ", " & ", " and ", " with ", ", and ", "_", "-", "\n", "|", ";", " + "])
@pytest.mark.parametrize("name", ["data", "experiment"])
def test_a_list_of_tasks_however_it_is_separated(name, sign):
    cells = [sign.join(task for task, inside in zip(TASKS, row, strict=True) if inside) for row in S]
    with pytest.warns(DataWarning, match=f"Column '{name}' is taken to list the tasks of each run"):
        runs = read_outcomes(pd.DataFrame({name: cells, "loss": LOSS}), "loss")
    order = [runs.task_names.index(task) for task in TASKS]
    check(runs, subsets=S[:, np.argsort(order)], tasks=runs.task_names)
    assert sorted(runs.task_names) == sorted(TASKS)


@pytest.mark.parametrize(
    "cells",
    [
        ["allenai/c4", "bigcode/stack", "open/math", "pile/law"] * 6,  # names with a slash
        ["org/a", "org/b", "lab/a", "lab/b"] * 6,
        ["/data/web", "/data/code", "/data/web/small", "/data/code/small", "/data/law", "/data/law/small"] * 4,
        [f"exp_{a}_{b}" for a in "xyz" for b in range(8)],  # a grid
        [f"run_{at}" for at in range(24)],
        ["common crawl", "git hub", "git hub"] * 8,
    ],
)
def test_names_that_hold_a_sign_are_not_split(cells):
    frame = pd.DataFrame({"trained on": cells, "loss": LOSS})
    with pytest.raises(InputError, match="no task column is left"):
        read_outcomes(frame, "loss")
    runs = read_outcomes(frame, "loss", subset_column="trained on")
    assert runs.n_tasks == len(set(cells))
    assert (runs.subsets.sum(1) == 1).all()
    with pytest.warns(DataWarning, match="trained on"):  # and with tasks of its own, a table needs no list
        assert read_outcomes(frame.assign(a=S[:, 0], b=S[:, 1]), "loss").task_names == ("a", "b")


def test_one_source_for_each_run_takes_two_commands(tmp_path):
    cells = np.array(TASKS * 6)
    pd.DataFrame({"source": cells, "loss": np.arange(24) % 4 + 0.01 * LOSS}).to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    np.testing.assert_array_equal(runs.subsets, cells[:, None] == TASKS)


@pytest.mark.parametrize(
    ("name", "full", "one"),
    [("removed", "none", "{}"), ("Left out", "", "{}"), ("run", "all", "w/o {}"), ("setting", "full", "all - {}"),
     ("setting", "baseline", "-{}"), ("data", "all", "all but {}"), ("data", "all data", "no {}")],
)  # fmt: skip
def test_what_was_left_out_is_listed(name, full, one):
    cells = [full, *(one.format(task) for task in TASKS)] * 3 + [one.format("web, code")]
    with pytest.warns(DataWarning, match=f"Column '{name}' is taken to list the tasks that each run left out"):
        runs = read_outcomes(pd.DataFrame({name: cells, "loss": np.arange(16.0)}), "loss")
    without = np.vstack([np.ones(4), 1 - np.eye(4)] * 3 + [[0, 0, 1, 1]])
    check(runs, subsets=without, values=np.arange(16.0))


def test_settings_in_a_list_are_not_tasks():
    listed = [", ".join(f"data.{task}={bit}" for task, bit in zip(TASKS, row, strict=True)) for row in S]
    frame = pd.DataFrame({"overrides": [f"[{cells}, lr=0.001, seed={at % 2}]" for at, cells in enumerate(listed)]})
    with pytest.warns(DataWarning, match=r"not tasks are left out: lr \(a setting\), seed \(a seed\)"):
        check(read_outcomes(frame.assign(loss=LOSS), "loss", subset_column="overrides"))


@pytest.mark.parametrize("spell", [str, lambda row: "".join(map(str, row)), lambda row: str(tuple(row))])
def test_a_row_of_0_and_1_in_one_cell(tmp_path, spell):
    frame = pd.DataFrame({"mask": [spell(row) for row in S.tolist()], "loss": LOSS})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    check(runs, tasks=[f"mask[{at}]" for at in range(4)])


# ---- names and headers -----------------------------------------------------------------------------------


def test_columns_of_the_same_name(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame(np.column_stack([S, LOSS, LOSS + 1]), columns=[*TASKS, "loss", "loss"]).to_csv(path, index=False)
    with pytest.warns(DataWarning, match=r"more than once: 'loss', called loss\[0\] and loss\[1\]"):
        runs = read_outcomes(path, "loss")  # all of them
    assert runs.target_names == ("loss[0]", "loss[1]")
    np.testing.assert_array_equal(runs.values, np.column_stack([LOSS, LOSS + 1]))
    result = run("attribute", path, "--outcome", "loss[1]", "--ignore", "loss[0]")
    assert result.exit_code == 0, result.output
    assert "24 runs × 4 tasks → loss[1]" in result.stdout
    frame = pd.DataFrame(np.column_stack([S, S[:, 0], LOSS]), columns=[*TASKS, "web", "loss"])
    with pytest.warns(DataWarning, match="more than once: 'web' with the same cells, which is read once"):
        check(read_outcomes(frame, "loss"))


def test_a_header_of_two_lines_of_no_line_and_on_two_lines(tmp_path):
    columns = pd.MultiIndex.from_tuples([*(("data", task) for task in TASKS), ("eval", "loss"), ("eval", "acc")])
    pd.DataFrame(np.column_stack([S, LOSS, 1 / LOSS]), columns=columns).to_csv(tmp_path / "two.csv")
    with pytest.warns(DataWarning, match="Unnamed: 0"):
        check(read_outcomes(tmp_path / "two.csv", "loss", ignore="eval.acc"))
    FRAME.to_csv(tmp_path / "none.csv", index=False, header=False)
    with pytest.warns(
        DataWarning, match="the first line holds numbers, not names, so its columns are called 'column 1'"
    ):
        runs = read_outcomes(tmp_path / "none.csv", "column 5")
    check(runs, tasks=[f"column {n}" for n in range(1, 5)])
    numbered = FRAME.set_axis(["0", "1", "2", "3", "4"], axis=1)  # whole and distinct: these are names
    numbered.to_csv(tmp_path / "numbered.csv", index=False)
    check(read_outcomes(tmp_path / "numbered.csv", "4"), tasks="0123")
    FRAME.rename(columns={"web": "web\ntext", "loss": "val\nloss"}).to_csv(tmp_path / "lines.csv", index=False)
    runs, _ = two_commands(tmp_path / "lines.csv")
    check(runs, tasks=["web text", *TASKS[1:]])


def test_totals_and_averages_are_not_runs_and_no_task(tmp_path):
    text = FRAME.to_csv(index=False)
    cells = ",".join(map(str, S.sum(0)))
    (tmp_path / "rows.csv").write_text(f"{text}\nTotal:,{cells[2:]},70\nMean (n=24),{cells[2:]},2.9\n")
    with pytest.warns(DataWarning, match=r"not runs: line 27 \(Total:\), line 28 \(Mean .n=24.\)"):
        check(read_outcomes(tmp_path / "rows.csv", "loss"))
    with pytest.warns(DataWarning, match=r"k \(the number of tasks\)"):
        check(read_outcomes(FRAME.assign(k=S.sum(1)), "loss"))
    tokens = pd.DataFrame(np.random.default_rng(1).uniform(0.1, 3, (24, 4)), columns=TASKS)
    frame = tokens.assign(total=tokens.sum(axis=1).round(1), loss=LOSS)
    with pytest.warns(DataWarning, match=r"total \(the sum of the others\)"):
        check(read_outcomes(frame, "loss"), subsets=tokens)


def test_benchmarks_beside_a_mixture_are_outcomes_and_higher_is_better(tmp_path):
    scores = {name: (70 / W_LOSS + at).round(2) for at, name in enumerate(["MMLU", "HSwag", "COPA", "Avg."])}
    frame = (100 * MIXED.drop(columns="loss")).round(1).assign(**scores, steps=[10, 20, 40] * 10)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    check(runs, subsets=100 * W, values=scores["MMLU"])
    assert runs.target_names == tuple(scores)
    assert runs.maximize == (True,) * 4


@pytest.mark.parametrize("name", ["seed", "epochs", "Unnamed: 0"])
def test_zeros_beside_a_mixture_are_no_part_of_it(name):
    frame = MIXED.drop(columns="loss").assign(**{name: 0, "hours": 3 + W_LOSS, "loss": W_LOSS})
    for table in (frame, frame.drop(columns="hours")):
        with pytest.warns(DataWarning, match=name):
            check(read_outcomes(table, "loss"), subsets=W, values=W_LOSS)


def test_each_problem_names_its_own_column(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("a,b,c,loss\nfew,1,0,1\n1,many,1,2\n1,0,1,3\n0,0,0,4\n")
    said = run("fit", path, "-O", "loss").stderr
    assert "leave it out with --ignore a." in " ".join(said.split())
    assert "leave it out with --ignore b." in " ".join(said.split())


# ---- a row or a column is not a run ----------------------------------------------------------------------


@pytest.mark.parametrize("corner", ["", "metric"])
def test_a_column_for_each_run(tmp_path, corner):
    frame = FRAME.assign(seed=np.arange(24) % 3, model="gpt2").T
    frame.columns = [f"run{at}" for at in range(24)]
    frame.to_csv(tmp_path / "runs.csv", index_label=corner)
    with pytest.warns(DataWarning, match="A column is read as a run"):
        runs, second = two_commands(tmp_path / "runs.csv")
    check(runs)
    assert "seed (a seed)" in second.stderr
    with pytest.warns(DataWarning, match="A column is read as a run"):
        check(read_outcomes(tmp_path / "runs.csv", "LOSS"))


def test_arrows_say_what_is_an_outcome_and_which_way_is_better(tmp_path):
    scores = [f"**{value:.1f}**" if value > 60 else f"{value:.1f}†" for value in 100 / LOSS]
    frame = FRAME.drop(columns="loss").assign(**{"Helpful ↑": scores, "FVD (↓)": LOSS})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs, _ = two_commands(tmp_path / "runs.csv")
    check(runs, values=(100 / LOSS).round(1))
    assert runs.target_names == ("Helpful ↑", "FVD (↓)")
    assert runs.maximize == (True, False)


def test_other_measurements_beside_0_and_1_are_no_tasks():
    frame = FRAME.assign(**{"val acc": 1 / LOSS, "MMLU": 0.5 / LOSS, "quality": 0.3 / LOSS})
    with pytest.warns(DataWarning, match=r"val acc \(another .*MMLU \(another .*quality \(not 0/1, as the others"):
        check(read_outcomes(frame, "loss"))
    terms = FRAME.set_axis(["kl_loss_weight", "reward_weight", "aux_weight", "c", "loss"], axis=1) * [
        0.7,
        0.2,
        3.3,
        9,
        1,
    ]
    assert read_outcomes(terms, "loss").n_tasks == 4
    half = FRAME.assign(web=0.5 * S[:, 0])  # half of a task is a weight
    check(read_outcomes(half, "loss"), subsets=S * [0.5, 1, 1, 1])


@pytest.mark.parametrize("identified", [True, False])
def test_a_row_for_each_run_and_outcome(tmp_path, identified):
    rows = [
        {
            "run": at,
            **dict(zip(TASKS, row.tolist(), strict=True)),
            "benchmark": name,
            "score": value,
            "stderr": 0.1 * at,
        }
        for at, row in enumerate(S)
        for name, value in (("mmlu", 40 / LOSS[at]), ("arc", 50 / LOSS[at]))
    ]
    frame = pd.DataFrame(rows).drop(columns=["stderr"] if identified else ["run", "stderr"])
    with pytest.warns(DataWarning, match=r"'benchmark' are read as one run .*: score\[mmlu\], score\[arc\]"):
        runs = read_outcomes(frame, "score", maximize="score")
    assert runs.maximize == (True, True)
    order = np.lexsort(np.column_stack([runs.subsets, runs.values[:, :1]]).T[::-1])
    expected = np.column_stack([S, 40 / LOSS])
    expected = expected[np.lexsort(expected.T[::-1])]
    np.testing.assert_allclose(np.column_stack([runs.subsets, runs.values[:, :1]])[order], expected)
    np.testing.assert_allclose(runs.values[:, 1], 1.25 * runs.values[:, 0])
    with pytest.warns(DataWarning, match="benchmark"):
        assert read_outcomes(frame, "arc").target_names == ("score[arc]",)


def test_files_of_the_same_runs_are_joined(tmp_path):
    MIXED[TASKS].assign(run=range(30)).to_csv(tmp_path / "mixtures.csv", index=False)
    MIXED[["loss"]].assign(run=range(30))[::-1][:-1].to_csv(tmp_path / "losses.csv", index=False)
    with pytest.warns(DataWarning, match="joined by 'run'"):
        runs, second = two_commands(tmp_path / "mixtures.csv", tmp_path / "losses.csv")
    check(runs, subsets=W, values=[np.nan, *W_LOSS[1:]])
    assert "30 runs × 4 tasks → loss" in second.stdout


# ---- formats ---------------------------------------------------------------------------------------------


def documents():
    records = FRAME.to_dict("records")
    bars = "\n".join("| " + " | ".join(map(str, row)) + " |" for row in FRAME.astype(object).to_numpy().tolist())
    return {
        "pandas.json": FRAME.to_json(),
        "split.json": FRAME.to_json(orient="split"),
        "lists.json": json.dumps(FRAME.to_dict("list")),
        "pretty.json": json.dumps(records, indent=2),
        "within.json": json.dumps({"sweep": "may", "runs": records}),
        "named.json": json.dumps({f"run{at}": record for at, record in enumerate(records)}),
        "aligned.txt": FRAME.to_string(index=False),
        "tabs.txt": FRAME.to_csv(index=False, sep="\t"),
        "aligned.dat": FRAME.to_string(index=False),
        "markdown.md": f"| web | code | math | law | loss |\n|---|:-:|---|---|---:|\n{bars}\n",
    }


@pytest.mark.parametrize("name", documents())
def test_the_same_runs_in_other_formats(tmp_path, name):
    (tmp_path / name).write_text(documents()[name], encoding="utf-8")
    runs, _ = two_commands(tmp_path / name)
    check(runs)


def test_a_json_file_for_each_run(tmp_path):
    for at, (row, value) in enumerate(zip(S, LOSS, strict=True)):
        tasks = [task for task, inside in zip(TASKS, row, strict=True) if inside]
        record = {"config": {"tasks": tasks, "seed": at % 3}, "results": {"loss": value}, "log": [{"step": 1}]}
        (tmp_path / f"run{at:02}.json").write_text(json.dumps(record, indent=1))
    runs, _ = two_commands(*sorted(tmp_path.iterdir()))
    order = [runs.task_names.index(task) for task in TASKS]
    check(runs, subsets=S[:, np.argsort(order)], tasks=runs.task_names)


def test_a_sheet_of_a_workbook_is_chosen_by_its_name_or_by_its_columns(tmp_path):
    pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
    path = tmp_path / "my book.xlsx"
    with pd.ExcelWriter(path) as book:
        FRAME[:12].to_excel(book, sheet_name="Small sweep", index=False)
        FRAME.rename(columns={"loss": "ppl"}).to_excel(book, sheet_name="Large", index=False)
    with pytest.warns(DataWarning, match=r"read: 'Large'; not read: 'Small sweep'. To read another, add sheet='Small"):
        assert read_outcomes(path, "ppl").n_runs == 24
    with pytest.warns(DataWarning, match="sheets read: 'Small sweep'"):
        assert read_outcomes(path, "loss").n_runs == 12  # only this one has it
    for given in ("small SWEEP", "Small*"):
        assert read_outcomes(path, "loss", sheet=given).n_runs == 12
    assert "--sheet 'Small sweep'" in run("fit", path, "-O", "ppl").stderr
    for verb in ("fit", "attribute", "report"):
        more = ["-o", tmp_path / "page.html"] if verb == "report" else []
        done = run(verb, path, "-O", "loss", "--sheet", "Small sweep", *more)
        assert done.exit_code == 0, done.output
        assert "note: my book" not in done.stderr
    slip = run("fit", path, "-O", "loss", "--sheet", "Small swep")
    assert slip.exit_code == 2
    assert "there is no sheet 'Small swep', as --sheet says. Did you mean 'Small sweep'?" in " ".join(
        slip.stderr.split()
    )
    assert shlex.split(slip.stderr.partition("Try: ")[2])[-2:] == ["--sheet", "Small sweep"]
    assert list(read_subsets(path, TASKS, sheet="Small sweep").columns) == TASKS
    extended = run("design", "--extend", path, "--sheet", "small sweep", "--tasks", ",".join(TASKS), "-n", "1")
    assert extended.exit_code == 0, extended.output
    FRAME.to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(
        InputError, match=r"runs.csv: The 'sheet' parameter is for Excel files: this file has no sheets"
    ):
        read_outcomes(tmp_path / "runs.csv", "loss", sheet="Large")


# ---- measurements are not tasks --------------------------------------------------------------------------


@pytest.mark.parametrize("others", [{}, {"web": S[:, 0]}])
def test_a_measurement_is_no_task_beside_fewer_than_two(tmp_path, others):
    path = tmp_path / "runs.csv"
    pd.DataFrame({"blend": "as before", **others, "val acc": 1 / LOSS, "loss": LOSS}).to_csv(path, index=False)
    if others:
        with pytest.warns(DataWarning, match=r"val acc \(another measurement\)"):
            assert read_outcomes(path, ["loss"]).task_names == ("web",)
    else:
        with pytest.raises(InputError, match="no task column is left"):
            read_outcomes(path, ["loss"])
    assert read_outcomes(path, ["loss"], tasks=["val acc"]).task_names == ("val acc",)


# ---- lists of tasks, codes and words in other shapes -----------------------------------------------------


def coded(folder, frame, name="runs.csv"):
    path = folder / name
    frame.to_csv(path, index=False)
    return path


class TestOtherShapes:
    S, loss = S, LOSS

    def read(self, path, **options):
        runs = read_outcomes(path, "loss", **options)
        order = [runs.task_names.index(task) for task in TASKS]
        return runs.subsets[:, order]

    def test_overrides_of_a_launcher(self, tmp_path):
        words = np.where(self.S == 1, "true", "false")
        cells = [" ".join(f"+data.{task}={word}" for task, word in zip(TASKS, row, strict=True)) for row in words]
        path = coded(tmp_path, pd.DataFrame({"overrides": cells, "loss": self.loss}))
        assert (self.read(path) == self.S).all()

    def test_weights_after_colons(self, tmp_path):
        W = np.random.default_rng(0).dirichlet(np.ones(4), 24).round(3)
        cells = [" ".join(f"{task}:{weight}" for task, weight in zip(TASKS, row, strict=True)) for row in W]
        path = coded(tmp_path, pd.DataFrame({"recipe": cells, "loss": self.loss}))
        np.testing.assert_array_equal(self.read(path), W)

    def test_notes_of_a_person_are_no_list(self, tmp_path):
        frame = pd.DataFrame(self.S, columns=TASKS).assign(note=["lr=3e-4 looks: fine", "again"] * 12, loss=self.loss)
        assert (self.read(coded(tmp_path, frame)) == self.S).all()

    def test_words_of_a_comment_are_no_names(self):
        assert not lists_subsets("comment", ["looks good", "looks bad", "bad", "good"])
        assert lists_subsets("comment", ["looks,good", "looks,bad", "bad", "good"])

    @pytest.mark.parametrize("options", [{}, {"subset_column": "source"}])
    def test_a_column_for_each_source_of_a_run(self, tmp_path, options):
        rows = [[task for task, used in zip(TASKS, row, strict=True) if used] for row in self.S]
        frame = pd.DataFrame({f"source {n + 1}": [row[n] if n < len(row) else "" for row in rows] for n in range(4)})
        assert (self.read(coded(tmp_path, frame.assign(loss=self.loss)), **options) == self.S).all()

    def test_minus_one_and_one(self, tmp_path):
        path = coded(tmp_path, pd.DataFrame(2 * self.S - 1, columns=TASKS).assign(loss=self.loss))
        assert (self.read(path) == self.S).all()

    def test_negative_weights_in_all_tasks_are_not_mended_by_leaving_out_all_tasks(self, tmp_path):
        path = coded(tmp_path, pd.DataFrame(-self.S, columns=TASKS).assign(loss=self.loss))
        with pytest.raises(InputError, match="must be at least 0") as caught:
            read_outcomes(path, "loss")
        assert not caught.value.fix

    def test_pass_and_fail(self, tmp_path):
        frame = pd.DataFrame(self.S, columns=TASKS).assign(loss=np.where(self.loss < 2.2, "Pass", "fail"))
        runs = read_outcomes(coded(tmp_path, frame), "loss")
        assert (runs.values[:, 0] == (self.loss < 2.2)).all()

    def test_an_outcome_in_words_is_not_to_be_ignored(self, tmp_path):
        frame = pd.DataFrame(self.S, columns=TASKS).assign(loss=["good", "bad", "so so"] * 8)
        with pytest.raises(
            InputError, match=r"'good' is not a number \(24 such cells\)\. An outcome must be a number\."
        ):
            read_outcomes(coded(tmp_path, frame), "loss")

    @pytest.mark.parametrize("header", ["# my runs\n# 2026\n{}", "# {}"])
    def test_aligned_columns_below_remarks(self, tmp_path, header):
        rows = [
            f"{' '.join(map(str, map(int, row)))}  {value:.5f}" for row, value in zip(self.S, self.loss, strict=True)
        ]
        path = tmp_path / "runs.txt"
        path.write_text("\n".join([header.format("  ".join([*TASKS, "loss"])), *rows]))
        assert (self.read(path) == self.S).all()

    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(InputError, match="there is no such file or folder"):
            read_outcomes(tmp_path / "run")


def test_the_package_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "whence", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == f"whence {whence.__version__}\n"


def test_names_in_lists_may_have_plus_signs_and_other_capitals(tmp_path):
    cells = [
        " + ".join(name for name, bit in zip(["C++ code", "wiki", "R&D", "law"], row, strict=True) if bit) for row in S
    ]
    cells = [cell.replace("wiki", "Wiki") if at % 3 else cell for at, cell in enumerate(cells)]
    frame = pd.DataFrame({"data": cells, "loss": LOSS})
    with pytest.warns(DataWarning, match="differ in capitals only are read as one task: '[Ww]iki' and '[Ww]iki'"):
        runs = read_outcomes(frame, "loss")
    order = [[name.casefold() for name in runs.task_names].index(name) for name in ["c++ code", "wiki", "r&d", "law"]]
    np.testing.assert_array_equal(runs.subsets[:, order], S)


@pytest.mark.parametrize(
    "record",
    [
        lambda name, weight: {"name": name, "weight": weight, "files": 12},
        lambda name, weight: {name: weight},
        lambda name, weight: {"path": name, "share": weight},
    ],
)
def test_lists_of_records(tmp_path, record):
    mixes = [[record(name, weight) for name, weight in zip(TASKS, row, strict=True)] for row in W.tolist()]
    path = tmp_path / "runs.jsonl"
    lines = zip(mixes, W_LOSS.tolist(), strict=True)
    path.write_text(
        "\n".join(json.dumps({"mix": mix, "history": [{"a": 1, "b": 2}], "loss": loss}) for mix, loss in lines)
    )
    text = pd.DataFrame({"mix": list(map(str, mixes)), "loss": W_LOSS})
    for source in (path, text):
        runs = read_outcomes(source, "loss")
        assert runs.task_names == tuple(TASKS)
        np.testing.assert_array_equal(runs.subsets, W)


def workbook(path, rows, merged=()):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for cells in merged:
        book.active.merge_cells(cells)
    book.save(path)
    return path


def twice():
    """Two seeds of each run, of which only the first names the tasks, as in cells that are merged."""
    runs = zip(S.tolist(), LOSS.tolist(), strict=True)
    rows = [
        [*(subset if seed == 0 else [None] * 4), seed, loss + seed / 100] for subset, loss in runs for seed in (0, 1)
    ]
    return [[*TASKS, "seed", "loss"], *rows]


def test_merged_cells_hold_for_all_their_rows(tmp_path):
    merged = [f"{letter}{2 * at + 2}:{letter}{2 * at + 3}" for at in range(len(S)) for letter in "ABCD"]
    runs = read_outcomes(workbook(tmp_path / "merged.xlsx", twice(), merged), "loss")
    np.testing.assert_array_equal(runs.subsets, np.repeat(S, 2, axis=0))


def test_rows_that_only_look_merged_are_not_taken_for_runs_without_tasks(tmp_path):
    path = workbook(tmp_path / "blank.xlsx", twice())
    said = "row 3 says nothing of its tasks, as 23 other rows. Write them in every row"
    with pytest.raises(InputError, match=said):
        read_outcomes(path, "loss")
    answer = run("fit", path, "--outcome", "loss")
    assert answer.exit_code == 2
    assert "Try:" not in answer.stderr
    assert read_outcomes(path, "loss", missing="zero").subsets[1::2].sum() == 0


@pytest.mark.parametrize("column", [0, 4])
def test_formulas_without_a_value_are_refused(tmp_path, column):
    """Programs that write workbooks do not compute: read as empty, the column would be lost."""
    rows = [[*subset, loss] for subset, loss in zip(S.tolist(), LOSS.tolist(), strict=True)]
    for row in rows:
        row[column] = f"={row[column]}+0"
    path = workbook(tmp_path / "formulas.xlsx", [[*TASKS, "loss"], *rows])
    with pytest.raises(
        InputError, match=f"cell {'ABCDE'[column]}2 holds a formula, and the file does not hold its value"
    ):
        read_outcomes(path, "loss")


@pytest.mark.parametrize("header", ["run,code,web,math,law,loss", "run,web,code,math,law,acc"])
def test_a_second_table_below_is_refused(tmp_path, header):
    lines = FRAME.to_csv(index_label="run").splitlines()
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "", header, *lines[1:]]))
    with pytest.raises(InputError, match="line 27 names columns again, and not as the header does"):
        read_outcomes(tmp_path / "runs.csv", "loss")


@pytest.mark.parametrize(
    ("inside", "outside", "said"),
    [("x", "o", "hold 'o' or 'x'"), ("kept", "ablated", "hold 'ablated' or 'kept'"), (None, "", "one word or nothing")],
)
def test_words_that_could_mean_either_are_asked_about(inside, outside, said):
    words = {name: [(inside or name) if bit else outside for bit in S[:, at]] for at, name in enumerate(TASKS)}
    with pytest.raises(
        InputError, match=f"columns web, code, math, law {said.replace('one', 'hold one')}: write 1 where"
    ):
        read_outcomes(pd.DataFrame(words).assign(loss=LOSS), "loss")


def test_tasks_coded_as_1_and_2_get_a_note():
    with pytest.warns(DataWarning, match="Tasks are 1 or 2 in every run, read as weights. If these are codes"):
        runs = read_outcomes(FRAME.assign(**{name: 2 - FRAME[name] for name in TASKS}), "loss")
    np.testing.assert_array_equal(runs.subsets, 2 - S)


def test_the_same_run_exported_twice_is_read_once():
    """Copies would pass for runs made again that came out exactly the same: no noise, and narrow intervals."""
    frame = FRAME.assign(run=[f"r{at}" for at in range(len(FRAME))])
    doubled = pd.concat([frame, frame.iloc[:7]], ignore_index=True)
    said = (
        r"7 rows repeat another in every cell \(the first: row 24 .counted from 0.\), also in the identifier, and are"
    )
    with pytest.warns(DataWarning, match=said):
        runs = read_outcomes(doubled, "loss")
    np.testing.assert_array_equal(runs.subsets, S)
    np.testing.assert_array_equal(runs.values[:, 0], LOSS)
    with pytest.warns(DataWarning, match="They count as runs made again, with the same outcome. If they are copies"):
        assert read_outcomes(doubled.drop(columns="run"), "loss").n_runs == len(S) + 7


def test_repeated_configurations_are_not_copies():
    frame = FRAME.assign(config_id=[f"c{at // 2}" for at in range(len(FRAME))])
    assert read_outcomes(pd.concat([frame, frame.iloc[:2]], ignore_index=True), "loss").n_runs == len(S) + 2


@pytest.mark.parametrize("group", ["config.tasks.", "config/data_mix/", "tasks."])
def test_switches_beside_a_group_of_tasks_are_no_tasks(tmp_path, group):
    """A tracker puts all that was configured into columns; a switch is 0 or 1 as tasks are."""
    flash = np.arange(len(S)) % 3 == 0
    frame = pd.DataFrame({f"{group.replace('data_', '')}{name}": S[:, at] == 1 for at, name in enumerate(TASKS)})
    frame = frame.assign(**{"config.flash": flash, "config.bf16": True, "config.depth": 12 + 12 * flash})
    frame.assign(**{"summary/loss": LOSS + flash}).to_csv(tmp_path / "export.csv", index=False)
    with pytest.warns(DataWarning) as notes:
        runs = read_outcomes(tmp_path / "export.csv", "loss")
    assert runs.task_names == tuple(TASKS)
    np.testing.assert_array_equal(runs.subsets, S)
    said = " ".join(str(note.message) for note in notes)
    assert "config.flash (not called as the tasks are)" in said
    assert "Outcomes of the same tasks differ by 'config.flash'" in said


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_wide_characters_need_no_mark(tmp_path, encoding):
    path = tmp_path / "runs.csv"
    path.write_bytes(FRAME.to_csv(index=False).encode(encoding))
    np.testing.assert_array_equal(read_outcomes(path, "loss").subsets, S)


def test_names_are_found_in_either_way_to_write_accents_and_without_their_unit(tmp_path):
    frame = FRAME.rename(columns={"web": unicodedata.normalize("NFD", "Wikipédia"), "loss": "Val loss (nats) "})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs = read_outcomes(tmp_path / "runs.csv", "val loss", tasks=["Wikipédia", "code"])
    np.testing.assert_array_equal(runs.subsets, S[:, :2])
    assert runs.subset(["Wikipédia"])[0] == 1


def test_outcomes_in_the_index_of_a_frame():
    runs = read_outcomes(FRAME.set_index("loss"), "loss")
    np.testing.assert_array_equal(runs.values[:, 0], LOSS)
    np.testing.assert_array_equal(runs.subsets, S)


LISTED = [[name for name, bit in zip(TASKS, row, strict=True) if bit] for row in S]


@pytest.mark.parametrize(
    ("cells", "expected", "said"),
    [
        (["all" if len(row) == 4 else ";".join(row) for row in LISTED], S, "'all' in 'data' is read as all tasks"),
        (
            [";".join(f"-{name}" for name in TASKS if name not in row) or "full" for row in LISTED],
            S,
            "each run left out",
        ),
        ([", ".join(f"{name} (2x)" for name in row) for row in LISTED], 2 * S, r"as '\w+ \(2x\)', are read as weights"),
        (["; ".join(f"3x {name}" for name in row) for row in LISTED], 3 * S, "are read as weights"),
        (["; ".join(f"{name} x1.5" for name in row) for row in LISTED], 1.5 * S, "are read as weights"),
    ],
)
def test_words_for_all_and_multiples_in_lists(cells, expected, said):
    """Each of them would pass for the name of a task."""
    with pytest.warns(DataWarning, match=said):
        runs = read_outcomes(pd.DataFrame({"data": cells, "loss": LOSS}), "loss")
    assert sorted(runs.task_names) == sorted(TASKS)
    np.testing.assert_array_equal(runs.subsets[:, [runs.task_names.index(name) for name in TASKS]], expected)


def test_a_baseline_among_lists_is_asked_about():
    cells = [";".join(row) if len(row) < 4 else "baseline" for row in LISTED]
    with pytest.warns(DataWarning, match="'baseline' in 'data' is read as a task. If it means all tasks, list them"):
        read_outcomes(pd.DataFrame({"data": cells, "loss": LOSS}), "loss")
