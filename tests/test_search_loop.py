"""The loop of a search: workers, kills at any point, failures, its page and its command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from terminal import on_a_terminal
from whence.cli import app
from whence.errors import InputError
from whence.outcomes.ledger import Ledger
from whence.outcomes.runs import read_ledger
from whence.outcomes.writing import read_document

TASKS = list("abcdef")
EXPERIMENT = '''
import os
import signal
from pathlib import Path

import numpy as np

TASKS = list("abcdef")


def value(subset, seed):
    row = np.asarray(subset, float)
    noise = np.random.default_rng(seed).normal()
    return float(row @ [1.0, -0.6, 0.2, 0.2, 0.0, 0.05] + 0.8 * row[2] * row[3] + 0.01 * noise)


def train(subset, seed):
    """Ends the process that asked for it, once at each run that KILL names."""
    with open("made", "ab", buffering=0) as file:
        file.write(b"x")
        number = file.tell()  # of this run, also where another one begins meanwhile
    if str(number) in os.environ.get("KILL", "").split():
        os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
    return {"score": value(subset, seed)}


def crashes(subset, seed):
    if "d" in subset:
        os._exit(3)
    return {"score": value(subset, seed)}


def two(subset, seed):
    return {"loss": value(subset, seed), "acc": 1.0 * ("b" in subset)}
'''
SCRIPT = """
import os, signal, sys
os.environ["DRIVER"] = str(os.getpid())
import whence, exp
from whence.measuring.journal import Journal
jobs, budget, engine, dies = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
plain = Journal.extend
def extend(self, plan):
    if len(plan.subsets) == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self, plan)
Journal.extend = extend
how = {"jobs": jobs, "engine": engine, "path": "run", "maximize": True, "stop": False}
whence.search(exp.train, tasks=exp.TASKS, budget=budget, **how)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "exp.py").write_text(EXPERIMENT)
    (tmp_path / "go.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "exp", raising=False)
    yield tmp_path
    sys.modules.pop("exp", None)


def go(home, jobs, budget, engine, dies=0, **more):
    path = os.pathsep.join([str(home), *sys.path])
    environment = os.environ | {"PYTHONPATH": path} | more
    return subprocess.run(
        [sys.executable, "go.py", str(jobs), str(budget), engine, str(dies)],
        cwd=home, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def decided(folder):
    return read_document(Path(folder) / "search.json")["asked"]


def replayed(folder, budget):
    """The decisions, made again one by one from what the journal and the plan say was known at each."""
    search = whence.Search(TASKS, budget=budget, maximize=True, path=folder, stop=False)
    whole = read_ledger(Path(folder))
    rows = []
    for number, asked in enumerate(search.asked):
        earlier = Ledger(replace(whole.plan, subsets=whole.plan.subsets[:number]))
        for at in range(number):
            if at not in asked.running:
                earlier.finish(0, at, whole.targets, whole.values[0, at].tolist())
        rows.append(search.choose(earlier, number, asked.running)[0].tolist())
    return rows


@pytest.mark.slow
def test_killed_anywhere_the_same_command_goes_on_with_the_same_decisions(home):
    for kills, dies in (("4 9", 0), ("", 8)):  # within runs; between a decision and its plan
        for left in ("made", "run"):
            subprocess.run(["rm", "-rf", left], cwd=home, check=True)
        for _ in range(3):
            ended = go(home, 1, 11, "inline", dies, KILL=kills)
            dies = 0
            if ended.returncode == 0:
                break
            assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert ended.returncode == 0, ended.stderr
        ledger = read_ledger(home / "run")
        assert (ledger.done, ledger.open) == (11, 0)
        assert len((home / "made").read_text()) == 11 + len(kills.split())  # only what was running is run again
        import exp

        alone = whence.search(
            exp.train,
            tasks=TASKS,
            budget=11,
            engine="inline",
            maximize=True,
            stop=False,
            path=home / f"alone{len(kills)}",
        )
        assert [each["row"] for each in decided("run")] == alone.runs.subsets.tolist()
        np.testing.assert_array_equal(ledger.values[0], alone.runs.values)


@pytest.mark.slow
def test_two_workers_are_killed_too_and_every_decision_follows_from_the_journal(home):
    ended = go(home, 2, 11, "local", KILL="5")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    before = decided("run")
    ended = go(home, 2, 11, "local", KILL="5")
    assert ended.returncode == 0, ended.stderr
    after = decided("run")
    assert after[: len(before)] == before
    assert len(after) == 11
    assert read_ledger(home / "run").done == 11
    assert max(len(each["running"]) for each in after) == 1  # the other worker's run, while one is chosen
    assert replayed("run", 11) == [each["row"] for each in after]


def test_a_larger_budget_goes_on_and_another_question_is_refused(home):
    import exp

    how = {"tasks": TASKS, "engine": "inline", "maximize": True, "path": "run", "stop": False}
    first = whence.search(exp.train, budget=7, **how)
    more = whence.search(exp.train, budget=9, **how)
    assert (more.runs.subsets[:7] == first.runs.subsets).all()
    assert len(more.runs) == 9
    with pytest.raises(InputError, match="of something else: size"):
        whence.search(exp.train, budget=9, size=3, **how)
    with pytest.raises(InputError, match="begun with the design"):
        whence.measure(exp.train, "loo", tasks=TASKS, engine="inline", path="run")


@pytest.mark.slow
def test_runs_that_end_their_process_are_failures_and_are_avoided(home):
    import exp

    found = whence.search(exp.crashes, tasks=TASKS, budget=16, jobs=2, maximize=True, stop=False, path="run")
    failed = np.isnan(found.runs.values[:, 0])
    assert 1 <= failed.sum() <= 6
    assert (found.runs.subsets[failed, 3] == 1).all()
    assert "d" not in found.tasks
    assert re.search(r"of 16 runs failed: every run with d", " ".join(found.notes))


def test_a_batch_function_and_an_outcome_function_that_names_its_tasks():
    class Many:
        task_names, maximize = TASKS, True

        def batch(self, subsets, seeds):
            return {"score": subsets @ np.arange(6.0)}

    found = whence.search(Many(), budget=9, stop=False)
    assert found.tasks == tuple(TASKS) or set(found.tasks) >= set("bcdef")
    with pytest.raises(InputError, match="The tasks must be known"):
        whence.search(lambda subset, seed: 0.0)


def test_the_page_shows_what_the_run_folder_holds(home):
    import exp

    found = whence.search(exp.train, tasks=["a<b>", *TASKS[1:]], budget=8, engine="inline", path="run", maximize=True)
    page = Path("run/search.html").read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' not in page  # it has ended
    assert "a&lt;b&gt;" in page
    assert "<b>" not in page
    for value, why in zip(found.runs.values[:, 0], found.why, strict=True):
        assert f">{value:.4g}<" in page
        assert why in page
    assert found.notes[0] in page
    assert "<script" not in page
    assert Path("run/report.html").exists()


# ---- the command -----------------------------------------------------------------------------------------


def whence_search(*arguments):
    return CliRunner().invoke(app, ["search", *arguments])


@pytest.mark.slow
def test_the_command_answers_as_text_and_as_json(home):
    limits = ["--budget", "9", "--maximize", "score", "--engine", "inline", "--max-size", "4", "--exclude", "e"]
    done = whence_search("exp.py:train", *limits, "-o", "run", "--no-stop")
    assert done.exit_code == 0, done.output
    assert "Best measured" in done.stdout
    again = whence_search("exp.py:train", *limits, "-o", "run", "--no-stop", "--json")
    document = json.loads(again.stdout)
    assert len(document["runs"]) == 9
    assert set(document["tasks"]) <= set("abcdf")
    assert document["runs"] == json.loads(json.dumps(document["runs"]))
    mixed = whence_search("exp.py:train", "--budget", "6", "--engine", "inline", "--mixture", "--bound", "a=0:0.3",
                          "-o", "mix", "--json", "--no-stop")  # fmt: skip
    assert mixed.exit_code == 0, mixed.output
    assert all(run["a"] <= 0.3 + 1e-9 for run in json.loads(mixed.stdout)["runs"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "3"], "--budget must be at least 4"),
        (["--include", "a", "--exclude", "a"], "both included and excluded"),
        (["--bound", "a=1"], "must be a source with its least and most weight, such as web=0.1:0.5"),
        (["--cost", "a=3"], "give --cost and --max-cost"),
        (["--tasks", "a,a"], "a"),
        (["--candidates", "none.csv"], "none.csv"),
    ],
)
def test_bad_options_are_one_sentence_and_leave_nothing(home, arguments, message):
    done = whence_search("exp.py:train", *arguments, "-o", "run", "--engine", "inline")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("run").exists()


def test_opposite_directions_need_a_weight_and_lose_no_run(home):
    how = ["exp.py:two", "--engine", "inline", "--maximize", "acc", "--budget", "6", "-o", "run"]
    done = whence_search(*how)
    assert done.exit_code == 2
    assert "Weight them with --weight" in done.stderr
    kept = read_ledger(Path("run")).done
    assert kept >= 1
    done = whence_search(*how, "--weight", "loss=1,acc=2", "--json", "--no-stop")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["runs"]) == 6


@pytest.mark.slow
def test_a_terminal_sees_progress(home):
    call = [sys.executable, "-c", "from whence.cli import main; main()", "search", "exp.py:train", "--engine", "inline"]
    path = os.pathsep.join(sys.path)
    status, shown = on_a_terminal([*call, "--budget", "5", "-o", "run"], 100, PYTHONPATH=path)
    assert status == 0
    assert "5 of 5 runs" in shown
