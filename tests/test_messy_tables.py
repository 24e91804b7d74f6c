"""Tables as people have them: each messy file, and the first right answer with at most two commands."""

import gzip
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import DataWarning, InputError
from whence.outcomes import read_outcomes

TASKS = ["web", "code", "math", "law"]


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="whence")


def put(folder, text, name="runs.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def truth(n=24, seed=0):
    """Subsets and their loss; web and code help, law hurts."""
    S = whence.Bernoulli(0.5).draw(4, 15, seed=seed)
    S = S[np.arange(n) % 15]
    noise = 0.01 * np.random.default_rng(seed).normal(size=n)
    return S, 3 - S @ [1.0, 0.5, 0.0, -0.4] + noise


def mixtures(n=30, seed=0, total=100.0, digits=1):
    """Rounded percentages of four sources, and their loss: best with much web and some code."""
    W = np.random.default_rng(seed).dirichlet([2, 2, 1, 1], n)
    return (total * W).round(digits), loss_of(W).round(5)


def loss_of(W):
    return 2 + 3 * ((W - [0.5, 0.3, 0.15, 0.05]) ** 2).sum(1)


# ---- a sweep of mixtures, as messy as they come ----------------------------------------------------------


def messy_mixtures():
    """Percent signs, empty weights, thousands, text, seeds, hours, dates, failures, odd headers."""
    W, _ = mixtures()
    W[::7, 3] = 0
    W = (100 * W / W.sum(1, keepdims=True)).round(1)
    loss = loss_of(W / 100).round(5)
    rows = [" Run ID ,Date,Web, CODE,math,Law,Seed,GPU Hours,Steps,Tokens,Loss ,notes"]
    for at, (weights, value) in enumerate(zip(W, loss, strict=True)):
        cells = [f"{weight}%" if weight else "" for weight in weights]
        shown = "diverged" if at == 4 else f"{value}"
        before, after = f"run-{at},2026-01-{at % 28 + 1:02d}", f'{at % 3},{3.5 + at % 5},10000,"1,{at:03d}.5"'
        rows.append(f'{before},{",".join(cells)},{after},{shown},"a, b"')
    return "\n".join(rows) + "\n"


def test_a_messy_sweep_takes_two_commands(tmp_path):
    path = put(tmp_path, messy_mixtures(), "my runs.csv")
    first = run("attribute", path, "--outcome", "loss")
    assert first.exit_code == 2
    assert "there are 2 problems" in first.stderr
    assert "a task column cannot be empty" in first.stderr
    assert "'diverged' is not a number" in first.stderr
    command = first.stderr.partition("Try: ")[2].strip()
    typed = shlex.split(command)
    assert typed == ["whence", "attribute", str(path), "--outcome", "loss", "--missing", "zero"]
    second = run(*typed[1:])
    assert second.exit_code == 0, second.output
    assert "30 runs × 4 tasks → Loss" in second.stdout
    assert "Shift attribution" in second.stdout
    assert re.search(r"Web\s.*helps", second.stdout)
    assert re.search(r"Law\s.*hurts", second.stdout)
    for aside in ("Run ID", "Date", "Seed", "GPU Hours", "Steps", "Tokens", "notes"):
        assert f"{aside} (" in second.stderr, aside


def test_nothing_named_yet_the_outcome_is_guessed_and_asked_for(tmp_path):
    S, loss = truth()
    frame = pd.DataFrame(S.astype(int), columns=TASKS).assign(seed=np.arange(24) % 2, Accuracy=1 - loss / 5)
    frame.to_csv(tmp_path / "runs.csv")
    refused = run("attribute", tmp_path / "runs.csv")
    assert refused.exit_code == 2
    command = shlex.split(refused.stderr.partition("Try: ")[2])
    assert command[3:] == ["--outcome", "Accuracy", "--maximize", "Accuracy"]
    result = run(*command[1:])
    assert result.exit_code == 0, result.output
    assert "seed (a seed)" in result.stderr
    assert "Unnamed: 0 (a row index)" in result.stderr
    assert re.search(r"web\s.*helps", result.stdout)


# ---- formats ---------------------------------------------------------------------------------------------


def as_file(frame, path):
    """The frame in the format of the ending; or written by hand where pandas has no writer."""
    name = path.name
    if name.endswith((".jsonl", ".ndjson")):
        path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")) + "\n", encoding="utf-8")
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, frame.to_dict("records"))).encode()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(frame.to_dict("records")), encoding="utf-8")
    elif name.endswith(".xlsx"):
        pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
        frame.to_excel(path, index=False)
    elif name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith(".tsv"):
        frame.to_csv(path, index=False, sep="\t")
    elif name == "german.csv":
        frame.to_csv(path, index=False, sep=";", decimal=",")
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    "name",
    ["r.csv", "r.tsv", "german.csv", "r.jsonl", "r.ndjson", "r.jsonl.gz", "r.json", "r.xlsx", "r.parquet"],
)
def test_the_same_table_in_every_format(tmp_path, name):
    S, loss = truth(8)
    frame = pd.DataFrame(S.astype(int), columns=TASKS).assign(loss=loss.round(3), note=["fine"] * 7 + [None])
    path = as_file(frame, tmp_path / name)
    with pytest.warns(DataWarning, match=r"not tasks: note \(text\)"):
        runs = read_outcomes(path, "loss")
    assert runs.task_names == tuple(TASKS)
    np.testing.assert_array_equal(runs.subsets, S)
    np.testing.assert_allclose(runs.values[:, 0], loss.round(3))
    with pytest.warns(DataWarning, match="note"):
        framed = read_outcomes(frame, "loss")
    np.testing.assert_array_equal(framed.subsets, runs.subsets)


def test_a_workbook_with_dates_empty_rows_and_a_second_sheet(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
    import datetime

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([])
    sheet.append(["when", "web", "code", "loss"])
    for at in range(4):
        sheet.append([datetime.date(2026, 1, at + 1), at % 2, at // 2, 0.5 * at])
    book.create_sheet("notes").append(["nothing"])
    book.save(tmp_path / "runs.xlsx")
    with pytest.warns(DataWarning, match=r"when \(text\)"):
        runs = read_outcomes(tmp_path / "runs.xlsx", "loss")
    np.testing.assert_array_equal(runs.subsets, [[0, 0], [1, 0], [0, 1], [1, 1]])
    (tmp_path / "bad.xlsx").write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(InputError, match=r"bad.xlsx: this Excel file cannot be read"):
        read_outcomes(tmp_path / "bad.xlsx", "loss")


def test_several_files_are_one_table(tmp_path):
    S, loss = truth(12)
    frame = pd.DataFrame(S.astype(int), columns=TASKS).assign(loss=loss)
    paths = [as_file(frame[:5], tmp_path / "a.csv"), as_file(frame[5:][[*TASKS[::-1], "loss"]], tmp_path / "b.jsonl")]
    runs = read_outcomes(paths, "loss")
    np.testing.assert_array_equal(runs.subsets, S)
    np.testing.assert_array_equal(runs.values[:, 0], loss)
    assert "12 runs × 4 tasks" in run("fit", *paths, "-O", "loss").stdout
    lacking = as_file(frame[5:].drop(columns="law"), tmp_path / "c.csv")
    with pytest.raises(InputError, match=r"c.csv, line 2, column 'law': a task column .* \(7 rows lack one"):
        read_outcomes([paths[0], lacking], "loss")
    read_outcomes(paths[0], "loss").write(tmp_path / "d.npz")
    both = read_outcomes([tmp_path / "d.npz", paths[1]], "loss")
    np.testing.assert_array_equal(both.subsets, S)


def test_a_tracker_export_with_globs(tmp_path):
    W, loss = mixtures(total=1.0, digits=3)
    frame = pd.DataFrame({f"config.mix.{name}": W[:, at] for at, name in enumerate(TASKS)})
    frame.insert(0, "Name", [f"sunny-{at}" for at in range(30)])
    frame["State"], frame["config.lr"], frame["config.seed"] = "finished", 3e-4, np.arange(30) % 3
    frame["summary.eval/loss"], frame["summary._runtime"], frame["summary._step"] = loss, 100.0 + loss, 5000
    path = as_file(frame, tmp_path / "wandb.csv")
    with pytest.warns(DataWarning, match=r"config.lr .* config.seed .a seed.* summary._step"):
        runs = read_outcomes(path, "loss")
    assert runs.task_names == tuple(TASKS)  # without config.mix.
    assert runs.target_names == ("summary.eval/loss",)
    globbed = read_outcomes(path, "summary.eval*", tasks="config.mix.*", maximize="*loss")
    assert globbed.maximize == (True,)
    np.testing.assert_array_equal(globbed.subsets, runs.subsets)


def test_records_within_records_become_columns(tmp_path):
    lines = [
        {"params": {"mix": {"web": 0.5, "code": 0.5}, "seed": 1}, "metrics": {"loss": 2.0, "acc": 0.1}},
        {"params": {"mix": {"web": 0.2, "code": 0.8}, "seed": 2}, "metrics": {"loss": 1.0, "acc": 0.4}},
        {"params": {"mix": {"web": 0.9, "code": 0.1}, "seed": 3}, "metrics": {"loss": 3.0, "acc": 0.2}},
    ]
    path = put(tmp_path, "\n".join(map(json.dumps, lines)), "runs.jsonl")
    with pytest.warns(DataWarning, match=r"params.seed .a seed.*metrics.acc .another measurement"):
        runs = read_outcomes(path, "loss")
    assert runs.task_names == ("web", "code")
    np.testing.assert_array_equal(runs.subsets, [[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    # An API's CSV has the record as text, in Python's spelling.
    frame = pd.DataFrame({"config": [str(line["params"]) for line in lines], "loss": [2.0, 1.0, 3.0]})
    with pytest.warns(DataWarning, match=r"config.seed"):
        assert read_outcomes(frame, "loss").task_names == ("web", "code")


@pytest.mark.parametrize(
    "cells",
    [
        ["web,code", "web", "code,law", "web,law", ""],
        ["web;code", "web", "code; law", "web;law", ""],
        ["web+code", "web", "code + law", "web+law", ""],
        ["web | code", "web", "code|law", "web|law", ""],
        ["web code", "web", "code law", "web law", ""],
        ['["web", "code"]', '["web"]', "['code', 'law']", '["web","law"]', "[]"],
    ],
)
def test_a_column_that_lists_the_subset(tmp_path, cells):
    frame = pd.DataFrame({"run": range(5), "data": cells, "loss": [1.0, 2, 3, 4, 5]})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    expected = [[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]]
    with pytest.warns(DataWarning) as caught:
        runs = read_outcomes(tmp_path / "runs.csv", "loss")
    assert any("Column 'data' is taken to list the tasks" in str(warning.message) for warning in caught)
    assert runs.task_names == ("web", "code", "law")
    np.testing.assert_array_equal(runs.subsets, expected)
    named = read_outcomes(tmp_path / "runs.csv", "loss", subset_column="DATA", ignore="run")
    np.testing.assert_array_equal(named.subsets, expected)
    assert run("fit", tmp_path / "runs.csv", "-O", "loss", "--subset-column", "data").exit_code == 0


# ---- values ----------------------------------------------------------------------------------------------


def test_values_as_people_write_them(tmp_path):
    text = "Web,code,law,chat,Acc\nyes,TRUE,x,on,39.7%\nno,False,,off,41%\nYes,true,x,off,0.5\nno,false,,on,\n"
    runs = read_outcomes(put(tmp_path, text), "acc")
    np.testing.assert_array_equal(runs.subsets, [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(runs.values[:, 0], [0.397, 0.41, 0.5, np.nan])
    text = 'web,code,loss\n3.2 GB,450 MB,"1,234.5"\n1.0 GB,2 GB,"12,000"\n0,1 GB,7\n'
    runs = read_outcomes(put(tmp_path, text), "loss")
    np.testing.assert_allclose(runs.subsets, [[3.2e9, 4.5e8], [1e9, 2e9], [0, 1e9]])
    np.testing.assert_array_equal(runs.values[:, 0], [1234.5, 12000, 7])


def test_mixed_units_are_named(tmp_path):
    text = "web,code,loss\n1,0,3.2 ms\n0,1,4 s\n1,1,2 s\n"
    with pytest.raises(InputError, match=r"line 3, column 'loss': cells are in different units \(ms, s\)"):
        read_outcomes(put(tmp_path, text), "loss")
    text = "web,code,acc\n1,0,39%\n0,1,41\n1,1,40%\n"
    with pytest.raises(InputError, match=r"line 3, column 'acc': 41 has no % and other cells of the column do"):
        read_outcomes(put(tmp_path, text), "acc")


def test_empty_weights_are_dropped_or_zero_as_asked(tmp_path):
    path = put(tmp_path, "a,b,loss\n1,,1\n0,1,2\n,1,3\n1,1,4\n")
    with pytest.raises(InputError, match=r"line 2, column 'b': .*\(2 rows lack one\).* 0 with missing='zero'"):
        read_outcomes(path, "loss")
    np.testing.assert_array_equal(read_outcomes(path, "loss", missing="drop").values, [[2], [4]])
    np.testing.assert_array_equal(read_outcomes(path, "loss", missing="zero").subsets, [[1, 0], [0, 1], [0, 1], [1, 1]])
    with pytest.raises(InputError, match=r"'missing' parameter must be 'drop' or 'zero'. Got 'mean'"):
        read_outcomes(path, "loss", missing="mean")


# ---- what is not a task ----------------------------------------------------------------------------------


def test_a_genuine_task_keeps_its_column_whatever_its_name():
    S, loss = truth()
    frame = pd.DataFrame(S.astype(int), columns=["steps", "id", "date_understanding", "time"]).assign(loss=loss)
    assert read_outcomes(frame, "loss").task_names == ("steps", "id", "date_understanding", "time")
    W, loss = mixtures(total=1.0, digits=3)
    frame = pd.DataFrame(W, columns=["time", "code", "math", "id"]).assign(loss=loss)
    assert read_outcomes(frame, "loss").task_names == ("time", "code", "math", "id")
    twice = pd.DataFrame({"a": [0, 1, 2, 0], "b": [1, 0, 1, 0], "c": [1, 1, 0, 0], "loss": [1.0, 2, 3, 4]})
    assert read_outcomes(twice, "loss").task_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("Seed", [0, 1] * 12, "a seed"),
        ("random_seed", range(24), "a seed"),
        ("run_id", range(100, 124), "an identifier"),
        ("train_hours", np.linspace(1, 5, 24), "a duration"),
        ("max_steps", [1000, 2000] * 12, "a count of steps"),
        ("lr", [3e-4] * 24, "a setting"),
        ("whatever", [0.25] * 24, "the same in every run"),
        ("k", range(24), "counts the rows"),
        ("val_ppl", np.linspace(9, 5, 24) ** 1.5, "another measurement"),
        ("started", ["2026-01-02"] * 24, "a date or time"),
        ("summary.acc", np.linspace(0, 1, 24), "another measurement"),
        ("blank", [None] * 24, "empty"),
    ],
)
def test_what_is_not_a_task_is_set_aside_with_a_note_and_can_be_insisted_on(name, values, kind):
    S, loss = truth()
    frame = pd.DataFrame(S.astype(int), columns=TASKS).assign(**{name: list(values)}, loss=loss)
    with pytest.warns(DataWarning, match=rf"not tasks: {re.escape(name)} \({re.escape(kind)}\)"):
        assert read_outcomes(frame, "loss").task_names == tuple(TASKS)
    if kind not in ("a date or time", "empty"):
        assert read_outcomes(frame, "loss", tasks=[*TASKS, name]).task_names == (*TASKS, name)


def test_a_mixture_is_found_among_other_numbers():
    W, loss = mixtures(total=1.0, digits=2)
    W[:, 3] = 0.1  # a source with the same weight in every run
    W[:, :3] *= (0.9 / W[:, :3].sum(1))[:, None]
    frame = pd.DataFrame(W, columns=TASKS).assign(wd=0.1, depth=np.arange(30) % 4 * 6, ppl=np.exp(loss), loss=loss)
    with pytest.warns(DataWarning, match=r"wd \(a setting\), depth \(not a part of the mixture\), ppl \(another"):
        assert read_outcomes(frame, "loss").task_names == tuple(TASKS)


def test_names_are_found_in_other_capitals_and_all_mistakes_are_told_at_once(tmp_path):
    path = put(tmp_path, "A , B,Loss \n1,0,1\n0,1,2\n1,1,3\n")
    assert read_outcomes(path, "loss", tasks=["a", "b"]).target_names == ("Loss",)
    refused = run("fit", path, "-O", "lss", "--ignore", "zzz")
    assert refused.exit_code == 2
    assert "there are 2 problems.\n  (1) column 'lss' of --outcome does not exist. Did you mean 'Loss" in refused.stderr
    assert "(2) column 'zzz' of --ignore does not exist" in refused.stderr
    assert "Try" not in refused.stderr  # no command line is known that would do
    assert run("fit", path, "-O", "lss").stderr.strip().endswith(f"Try: whence fit {path} -O Loss")


def test_fit_takes_a_frame_or_a_file(tmp_path):
    S, loss = truth()
    frame = pd.DataFrame(S.astype(int), columns=TASKS).assign(loss=loss)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    expected = whence.fit(whence.Outcomes(S, loss, TASKS, ["loss"])).predict(S)
    np.testing.assert_array_equal(whence.fit(frame, outcomes="loss").predict(S), expected)
    np.testing.assert_array_equal(whence.fit(tmp_path / "runs.csv", outcomes=["loss"]).predict(S), expected)
    with pytest.raises(InputError, match="do not apply to a table: leave out outcomes"):
        whence.fit(whence.Outcomes(S, loss), outcomes="loss")
