"""The verb measure, and what evaluate says of noise and of true leave-one-out runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from terminal import on_a_terminal
from whence.cli import app
from whence.evaluation import loo_correlation, runs_needed
from whence.measuring.functions import load_function
from whence.outcomes.runs import read_ledger

EXPERIMENT = '''
"""A user's file."""
import os
import time

import numpy as np

import beside

TASKS = ["code", "math", "law", "news"]
print("loading the data")


def train(subset, seed):
    time.sleep(float(os.environ.get("NAP", 0)) if "code" not in subset else 0)
    if subset.tasks == ("law", "news") and not os.environ.get("FIXED"):
        print("step 1: loss is nan")
        raise RuntimeError("diverged")
    noise = np.random.default_rng(seed).normal()
    return {"loss": float(subset @ beside.EFFECTS) + 0.01 * noise, "acc": 1.0 - 0.5 * ("law" in subset)}


class Table:
    def batch(self, subsets, seeds):
        print("in this process")
        return {"loss": subsets @ beside.EFFECTS}


table = Table()
number = 3


def one_argument(subset):
    return 0.0
'''
EFFECTS = np.array([-1.0, -0.5, 0.25, 0.0])
BESIDE = """
import numpy as np
EFFECTS = np.array([-1.0, -0.5, 0.25, 0.0])
def alone(subset, seed):
    return 0.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "exp.py").write_text(EXPERIMENT)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "made" / "inner").mkdir(parents=True)
    for name in ("made/__init__.py", "made/inner/__init__.py", "made/inner/part.py"):
        (tmp_path / name).write_text("from .near import train\n" if name.endswith("part.py") else "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("exp", "beside", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("exp", "beside", "broken"):
        sys.modules.pop(name, None)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


def command(*arguments):
    return [sys.executable, "-c", "from whence.cli import main; main()", *map(str, arguments)]


# ---- what it does ----------------------------------------------------------------------------------------


def test_a_run_is_made_and_read_by_the_other_verbs(folder, monkeypatch):
    monkeypatch.setenv("FIXED", "1")
    options = ["--design", "fixed:2", "-n", 5, "--seed", 1, "--seeds", 2, "--jobs", 2, "--maximize", "acc"]
    result = run("measure", "exp.py:train", *options, "-o", "run/")
    assert result.exit_code == 0, result.output
    assert "10 of 10 rows measured, in " in result.stdout
    assert "  whence fit run\n" in result.stdout
    assert "Noise ceiling of the rank correlation: " in result.stdout
    assert result.stderr.splitlines()[:2] == ["loading the data", "Measuring 10 rows with 2 workers, 1 thread each."]
    runs = whence.read_outcomes("run")
    np.testing.assert_array_equal(runs.subsets[:5], whence.FixedSize(2).draw(4, 5, seed=1))
    seeds = [np.random.SeedSequence([1, r]).generate_state(5)[i] >> 1 for r in range(2) for i in range(5)]
    noise = [0.01 * np.random.default_rng(seed).normal() for seed in seeds]
    np.testing.assert_array_equal(runs.values[:, 0], runs.subsets @ EFFECTS + noise)
    assert runs.maximize == (False, True)
    fitted = run("fit", "run", "--json")
    assert fitted.exit_code == 0, fitted.output
    assert json.loads(fitted.stdout)["targets"] == {"loss": "lower is better", "acc": "higher is better"}


def test_failed_rows_are_shown_counted_and_tried_again(folder, monkeypatch):
    first = run("measure", "exp.py:train", "-d", "all", "-o", "run", "--maximize", "acc")
    assert first.exit_code == 1
    assert "14 of 15 rows measured, 1 failed, in " in first.stdout
    assert re.search(r"law, news +RuntimeError: diverged", first.stdout)
    assert "run/failures" in first.stdout
    assert "--retry" in first.stdout
    (report,) = (folder / "run" / "failures").iterdir()
    assert "step 1: loss is nan" in report.read_text()
    assert 'raise RuntimeError("diverged")' in report.read_text()
    monkeypatch.setenv("FIXED", "1")
    still = run("measure", "exp.py:train", "-d", "all", "-o", "run", "--maximize", "acc", "--json")
    assert still.exit_code == 1
    document = json.loads(still.stdout)
    assert document["failures"] == [
        {"row": 12, "replicate": 0, "subset": ["law", "news"], "reason": "RuntimeError: diverged"}
    ]
    assert (document["rows"], document["measured"], document["failed"]) == (15, 14, 1)
    again = run("measure", "exp.py:train", "-d", "all", "-o", "run", "--maximize", "acc", "--retry")
    assert again.exit_code == 0
    assert "Measuring 1 row (14 of 15 are already measured) with 1 worker" in again.stderr
    assert not np.isnan(whence.read_outcomes("run").values).any()


def test_a_file_of_subsets_is_measured_as_suggest_writes_it(folder, monkeypatch):
    monkeypatch.setenv("FIXED", "1")
    options = ["-d", "fixed:2", "-n", 4, "--engine", "inline", "--maximize", "acc"]
    assert run("measure", "exp.py:train", *options, "-o", "run").exit_code == 0
    suggested = run("suggest", "run", "-n", 2, "-o", "next.csv", "--target", "loss")
    assert suggested.exit_code == 0, suggested.output
    result = run("measure", "exp.py:train", "-d", "next.csv", "-o", "more", "--maximize", "acc")
    assert result.exit_code == 0, result.output
    written = whence.read_outcomes("next.csv", ["loss", "acc"])
    np.testing.assert_array_equal(whence.read_outcomes("more").subsets, written.subsets)
    again = run("measure", "exp.py:train", "-d", "run", "-o", "again", "--seed", 5, "--maximize", "acc")
    assert again.exit_code == 0, again.output
    np.testing.assert_array_equal(whence.read_outcomes("again").subsets, whence.read_outcomes("run").subsets)


def test_a_design_is_a_design_also_where_a_folder_has_its_name(folder):
    for _ in range(2):
        result = run("measure", "exp.py:train", "-d", "loo", "-o", "loo")
        assert result.exit_code == 0, result.output
    assert whence.read_outcomes("loo").n_runs == 5
    assert "whence evaluate RUNS --loo loo" in result.stdout


def test_batches_are_measured_here_and_their_prints_are_not_the_answer(folder):
    result = run("measure", "exp.py:table", "-d", "exhaustive", "-o", "run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["measured"] == 15
    assert "in this process\n" in result.stderr


def test_a_function_of_a_module_is_found_too(folder):
    result = run("measure", "exp:train", "-d", "loo", "-o", "run", "--tasks", "code,math,law,news")
    assert result.exit_code == 0, result.output


def test_the_file_may_change_while_it_is_measured(folder):
    """Rows of one run are of one text, and do not need the file."""
    function, tasks = load_function("exp.py:train")
    assert tasks == ["code", "math", "law", "news"]
    (folder / "exp.py").write_text("raise SystemExit")
    runs = whence.measure(function, "loo", tasks=tasks)
    assert not np.isnan(runs.values).any()
    assert runs.provenance["outcome_fn"] == "train"


def test_a_metric_that_sounds_like_a_score_gets_a_hint(folder):
    result = run("measure", "exp.py:train", "-d", "loo", "-o", "run")
    assert "note: Lower acc is assumed to be better. If higher is, add --maximize acc." in result.stderr


# ---- mistakes --------------------------------------------------------------------------------------------

MISTAKES = {
    "no colon": (["exp.py", "-d", "loo"], "as in exp.py:train"),
    "no file": (["none.py:train", "-d", "loo"], "none.py: cannot be read (No such file or directory)"),
    "no function": (["exp.py:trian", "-d", "loo"], "exp.py: there is no 'trian' in it. Did you mean 'train'?"),
    "class": (["exp.py:Table", "-d", "loo"], "'Table' is a class. Make an object of it there"),
    "not a function": (["exp.py:number", "-d", "loo"], "must be a function of (subset, seed)"),
    "one argument": (["exp.py:one_argument", "-d", "loo"], "must take a subset and a seed"),
    "broken file": (["broken.py:train", "-d", "loo"], "cannot be loaded (ModuleNotFoundError: No module named"),
    "no module": (["no.such:train", "-d", "loo"], "cannot be loaded (ModuleNotFoundError"),
    "file of a package": (["made/inner/part.py:train", "-d", "loo"], "name it as made.inner.part:train."),
    "odd design": (["exp.py:train", "-d", "best"], "A design must be bernoulli:P"),
    "no n": (["exp.py:train", "-d", "fixed:2"], "say how many, as in -n 100"),
    "too many": (["exp.py:train", "-d", "fixed:2", "-n", "99"], "fewer than the n=99 asked for"),
    "no tasks": (["beside.py:alone", "-d", "loo"], "name them with --tasks, or give their number"),
    "odd jobs": (["exp.py:train", "-d", "loo", "--jobs", "0"], "--jobs must be an integer of at least 1"),
    "odd timeout": (["exp.py:train", "-d", "loo", "--timeout", "-1"], "--timeout must be a number of seconds above 0"),
    "timeout here": (["exp.py:train", "-d", "loo", "--timeout", "1", "--engine", "inline"], "neither workers nor"),
    "unknown metric": (["exp.py:train", "-d", "loo", "--maximize", "f1"], "There is no target 'f1'"),
    "text to measure": (["exp.py:train", "-d", "broken.py"], "broken.py: A file of runs must end in .csv"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake, folder):
    arguments, sentence = MISTAKES[mistake]
    result = run("measure", *arguments, "-o", "run")
    assert result.exit_code == 2, result.output
    told = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert sentence in told[0]
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_another_run_in_the_folder_is_refused(folder):
    assert run("measure", "exp.py:train", "-d", "loo", "-o", "run").exit_code == 0
    result = run("measure", "exp.py:train", "-d", "loo", "-o", "run", "--seed", 2)
    assert result.exit_code == 2
    assert "error: run: this run was begun with the seed 0, and now it is 2." in result.stderr


# ---- processes -------------------------------------------------------------------------------------------


def heed_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(folder):
    going = command("measure", "exp.py:train", "-d", "all", "-j", 2, "-o", "run", "--maximize", "acc")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "NAP": "600", "FIXED": "1"}  # the run cannot end before it is told to
    with subprocess.Popen(going, preexec_fn=heed_ctrl_c, env=environment, **pipes) as process:
        until = time.monotonic() + 120
        while not ((folder / "run" / "run.json").exists() and read_ledger(folder / "run").done >= 2):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    kept = read_ledger(folder / "run").done
    assert f"stopped: {kept} of 15 rows measured and kept in run. Run the same command to resume.\n" in told
    assert "Traceback" not in told
    done = subprocess.run(
        going, env={**environment, "NAP": "0"}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"Measuring {15 - kept} rows ({kept} of 15 are already measured)" in done.stderr


def test_on_a_terminal_there_is_a_bar_that_goes_away(folder):
    going = command("measure", "exp.py:train", "-d", "all", "-o", "run", "--maximize", "acc")
    status, text = on_a_terminal(going, 100, NAP="0.05", FIXED="1")
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(
        r"Measuring .*\d+ of 15 · [0-9.]+ (rows/s|s a row) · .* to go · loss -?[0-9.]+, acc (1|0.5)", plain
    )
    assert "15 of 15 rows measured" in plain
    assert "next:" in plain


# ---- evaluate --------------------------------------------------------------------------------------------


@pytest.fixture
def tables(folder):
    """A table of runs, and true leave-one-out runs with their columns in another order."""
    S = whence.Exhaustive().draw(4)
    noise = np.random.default_rng(0).normal(size=(15, 1))
    names = ["code", "math", "law", "news"]
    runs = whence.Outcomes(S, (S @ EFFECTS)[:, None] + 0.05 * noise, names, ["loss"])
    runs = whence.Outcomes(np.vstack([S, S]), np.vstack([runs.values, runs.values + 0.02]), names, ["loss"])
    runs.write("runs.csv")
    full = whence.LeaveOneOut().draw(4)
    loo = whence.Outcomes(full, full @ EFFECTS, names, ["loss"])
    loo.to_frame()[["news", "law", "loss", "code", "math"]].to_csv("loo.csv", index=False)
    return runs, loo


def test_every_rule_is_compared_with_true_leave_one_out_runs(tables):
    runs, loo = tables
    options = ["evaluate", "runs.csv", "-O", "loss", "--splits", 2, "--loo", "loo.csv"]
    result = run(*options, "--json")
    assert result.exit_code == 0, result.output
    found = {row["rule"]: row for row in json.loads(result.stdout)["leave_one_out"]}
    assert list(found) == ["Shapley", "Banzhaf", "Leave-one-out", "Inclusion", "tuned linear"]
    model = whence.fit(runs)
    for name, rule in (("Leave-one-out", "loo"), ("Shapley", "shapley"), ("Inclusion", "inclusion")):
        scores = whence.attribute(model, rule).scores
        for kind in ("pearson", "spearman"):
            assert found[name][kind] == pytest.approx(loo_correlation(scores, loo, kind=kind).mean)
    assert found["Shapley"]["pearson"] > 0.95
    assert "Attribution compared with true leave-one-out changes" in run(*options).stdout


def test_leave_one_out_runs_that_lack_a_task_are_refused_before_any_fit(tables, monkeypatch):
    monkeypatch.setattr(whence, "fit", None)
    tables[1].rows([0, 1, 2]).write("few.csv")
    result = run("evaluate", "runs.csv", "-O", "loss", "--loo", "few.csv")
    assert result.exit_code == 2
    assert "2 of 5 are missing: all tasks but law, all tasks but news" in result.stderr


def test_evaluate_says_how_many_runs_an_effect_takes(tables):
    runs, _ = tables
    options = ["evaluate", "runs.csv", "-O", "loss", "--splits", 2, "--effect", 0.1]
    (row,) = json.loads(run(*options, "--json").stdout)["runs_needed"]
    needed = runs_needed(runs, 0.1)
    assert row["seeds"] == needed.seeds[0]
    assert row["subsets"] == needed.subsets[0]
    text = run(*options).stdout
    assert "its 90% interval excludes 0 in 80% of cases" in text
    assert re.search(rf"loss +0\.10\d* +[0-9.]+ +{needed.seeds[0]:.0f} +{needed.subsets[0]:.0f} +[0-9.]+", text)
    refused = run("evaluate", "runs.csv", "-O", "loss", "--effect", 0)
    assert refused.exit_code == 2
    assert "--effect must be a number above 0" in refused.stderr


NIGHTLY = """
import os

TASKS = ["a", "b", "c"]


def train(subset, seed):
    found = {"success": [subset.sum(), 1.0], "checkpoint": "last.pt"}
    return found if os.environ.get("FIXED") else {"success": [found]}
"""


def test_a_night_is_not_lost_to_what_is_returned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.py").write_text(NIGHTLY, encoding="utf-8")
    command = ["measure", "exp.py:train", "-d", "loo", "-o", "run", "--engine", "inline", "--maximize", "success"]
    stopped = run(*command)
    assert stopped.exit_code == 2
    assert "row 0 failed after" in stopped.stderr
    assert "--keep-going" in stopped.stderr
    assert read_ledger(tmp_path / "run").failed == 1
    insisted = run(*command, "--keep-going")
    assert insisted.exit_code == 1
    assert read_ledger(tmp_path / "run").failed == 4
    monkeypatch.setenv("FIXED", "1")
    resumed = run(*command, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    found = json.loads(resumed.stdout)
    assert (found["measured"], found["failed"], found["set_aside"]) == (4, 0, ["checkpoint"])
    assert whence.read_outcomes("run").maximize == (True, True)


def test_outcomes_of_an_array_are_named_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    S = whence.Exhaustive().draw(4)
    values = np.column_stack([S[:, 0], S[:, 0] + S[:, 1], S[:, 2]])
    names = ["success[easy]", "success[hard]", "loss"]
    runs = whence.Outcomes(S, values, list("abcd"), names)
    assert runs.targets("success").target_names == ("success[easy]", "success[hard]")
    assert whence.read_outcomes(runs.to_frame(), "Success", ignore="loss").target_names == tuple(names[:2])
    runs.write("runs.csv")
    command = ["runs.csv", "--outcome", "success", "--maximize", "success", "--ignore", "loss", "--json"]
    found = json.loads(run("attribute", *command, "--target", "success").stdout)
    assert found["targets"] == dict.fromkeys(names[:2], "higher is better")
    assert {row["target"] for row in found["scores"]} == set(names[:2])
    runs.write("runs.npz")
    assert run("attribute", "runs.npz", *command[1:]).exit_code == 0
    wrong = run("attribute", "runs.csv", "--outcome", "succes", "--ignore", "loss")
    assert wrong.exit_code == 2
    assert "Did you mean 'success" in wrong.stderr
