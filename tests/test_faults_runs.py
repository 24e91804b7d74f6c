"""Runs under attack: what would mix two functions, lose a row or never end is refused, kept or stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from processes import born, ended, wait_until
from whence.cli import app
from whence.errors import InputError
from whence.measuring import inline
from whence.measuring.functions import load_function
from whence.outcomes.runs import read_ledger

pytestmark = pytest.mark.slow

TASKS = ["a", "b", "c"]
ALL = whence.Exhaustive().draw(3)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's files: an experiment, and a helper that it imports when it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("exp", "helper", "second"):
        sys.modules.pop(name, None)


def written(factor=1.0, comment="", shift=0.0):
    Path("helper.py").write_text(f"SHIFT = {shift}\n")
    Path("exp.py").write_text(
        f"{comment}\nimport numpy as np\nWEIGHTS = np.arange(3.0)\n\n\ndef train(subset, seed):\n    import helper\n"
        f"    return {{'loss': {factor} * float(subset @ WEIGHTS) + helper.SHIFT, 'acc': 0.5}}\n"
    )
    for name in ("exp", "helper"):
        sys.modules.pop(name, None)


def measured(n, **more):
    function = load_function("exp.py:train")[0]
    return whence.measure(function, ALL[:n], tasks=TASKS, path="run", engine="inline", **more)


# ---- going on with something else ------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "named"), [({"factor": 2.0}, "exp.py"), ({"shift": 1.0}, "helper.py")])
def test_an_edited_function_or_import_is_refused_by_name_and_kept_as_provenance_where_accepted(project, change, named):
    written()
    measured(3)
    written(**change)
    with pytest.raises(InputError, match=rf"begun with something else: {named} \(changed\).*accept_change=True"):
        measured(7)
    assert read_ledger(project / "run").done == 3
    runs = measured(7, accept_change=True)
    assert runs.provenance["accepted changes"] == f"after 3 rows: {named} (changed)"
    assert whence.read_outcomes("run").provenance["accepted changes"] == f"after 3 rows: {named} (changed)"
    assert measured(7).n_runs == 7  # the change is the run's own from now on


def test_comments_and_formatting_are_no_change(project):
    written()
    measured(3)
    written(comment="# said better\n\n")
    assert measured(7).n_runs == 7


def test_another_file_with_the_same_function_is_refused(project):
    written()
    measured(3)
    shutil.copy("exp.py", "second.py")
    with pytest.raises(InputError, match=r"something else: exp.py \(no longer there\), second.py \(new\)"):
        whence.measure(load_function("second.py:train")[0], ALL, tasks=TASKS, path="run", engine="inline")


def test_changed_data_closures_arguments_and_attributes_are_refused(tmp_path):
    def maker(data, rate):
        def train(subset, seed):
            return float(subset @ data) * rate

        return train

    whence.measure(maker(np.arange(3.0), 1.0), ALL[:2], path=tmp_path / "run", engine="inline")
    for other, named in ((maker(np.ones(3), 1.0), r"closure data \(changed\)"), (maker(np.arange(3.0), 2.0), "rate")):
        with pytest.raises(InputError, match=f"something else: .*{named}"):
            whence.measure(other, ALL, path=tmp_path / "run", engine="inline")
    assert whence.measure(maker(np.arange(3.0), 1.0), ALL, path=tmp_path / "run", engine="inline").n_runs == 7


class Rated:
    """A function with private attributes: one that decides what comes out, and one that measuring changes."""

    def __init__(self, rate):
        self._rate, self._calls = rate, 0

    def __call__(self, subset, seed):
        self._calls += 1
        return self._rate * float(subset.sum())


def test_private_attributes_are_seen_too(tmp_path):
    first = Rated(1.0)
    for function, n in ((first, 2), (first, 4), (Rated(1.0), 7)):  # in this process, and as in a new one
        whence.measure(function, ALL[:n], path=tmp_path / "run", engine="inline")
    with pytest.raises(InputError, match=r"something else: attribute _rate \(was 1.0, is 2.0\)"):
        whence.measure(Rated(2.0), np.vstack([ALL, ALL[:1]]), path=tmp_path / "run", engine="inline")


@pytest.mark.parametrize("way", ["from helper import g", "import helper\ng = lambda s: helper.g(s)"])
def test_data_that_an_imported_file_holds_is_refused_where_it_changes(project, way):
    """A function of a helper refers to what the helper has read: neither file changes."""
    Path("helper.py").write_text(
        "from pathlib import Path\nW = float(Path('d.txt').read_text())\ndef g(s):\n    return W * float(s[0])\n"
    )
    Path("exp.py").write_text(f"{way}\ndef train(subset, seed):\n    return g(subset)\n")
    for text, n in (("1.0", 3), ("1.0", 5), ("2.0", 7)):
        Path("d.txt").write_text(text)
        for name in ("exp", "helper"):
            sys.modules.pop(name, None)
        if text == "1.0":
            assert measured(n).n_runs == n
    with pytest.raises(InputError, match=r"something else: module value helper.W \(was 1.0, is 2.0\)"):
        measured(7)


def test_what_is_written_into_a_workers_pipe_costs_its_own_row(tmp_path):
    def train(subset, seed):
        if subset.sum() == 2:
            for handle in range(3, 4096):
                with contextlib.suppress(OSError):
                    os.write(handle, b"\0\0\0\x05nonsense")
        return float(subset @ [1.0, 2.0, 4.0])

    with pytest.warns(UserWarning, match="failed"):
        runs = whence.measure(train, ALL, tasks=TASKS, path=tmp_path / "run", jobs=2)
    known = runs.subsets.sum(1) != 2
    assert np.isnan(runs.values[~known]).all()
    np.testing.assert_array_equal(runs.values[known, 0], runs.subsets[known] @ [1.0, 2.0, 4.0])


def test_changed_models_targets_and_examples_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    from conformance_measuring import _torch_problem

    def made(seed=0, shift=0.0, lr=0.1):
        model, tasks, target = _torch_problem()
        torch.manual_seed(seed)
        if seed:
            torch.nn.init.normal_(model.weight)
        moved = {**tasks, "b": (tasks["b"][0] + shift, tasks["b"][1])}
        return whence.Retrain(whence.Problem(model, moved, target), whence.Recipe(steps=2, lr=lr))

    def go(**change):
        return whence.measure(made(**change), ALL, path=tmp_path / "run", engine="inline")

    go()
    for change, named in (
        ({"seed": 1}, r"model \(changed\)"),
        ({"shift": 1.0}, r"examples of b \(changed\)"),
        ({"lr": 0.2}, "recipe"),
    ):
        with pytest.raises(InputError, match=f"something else: {named}"):
            go(**change)
    go()


# ---- directions ------------------------------------------------------------------------------------------


def test_directions_belong_to_the_folder(project):
    written()
    assert measured(3, maximize=["acc"]).maximize == (False, True)
    assert measured(7).maximize == (False, True)  # forgotten
    assert whence.read_outcomes("run").maximize == (False, True)
    with pytest.raises(InputError, match=r"something else: what to maximise \(was acc, is loss\)"):
        measured(7, maximize=["loss"])
    with pytest.raises(InputError, match=r"what to maximise \(was acc, is none\)"):
        measured(7, maximize=False)
    with pytest.raises(InputError, match="There is no target 'f1'"):
        measured(7, maximize=["f1"])


def test_directions_may_be_said_later(project):
    written()
    measured(3)
    assert measured(7, maximize=["acc"]).maximize == (False, True)


def test_a_misspelled_direction_costs_no_row(project):
    written()
    result = CliRunner().invoke(
        app, ["measure", "exp.py:train", "-d", "all", "--tasks", "a,b,c", "-o", "run", "--maximize", "ac"]
    )
    assert result.exit_code == 2
    assert "There is no target 'ac'. Did you mean 'acc'?" in result.stderr
    kept = read_ledger(project / "run")
    assert kept.done >= 1
    assert not kept.plan.maximize
    result = CliRunner().invoke(
        app, ["measure", "exp.py:train", "-d", "all", "--tasks", "a,b,c", "-o", "run", "--maximize", "acc"]
    )
    assert result.exit_code == 0, result.output
    assert f"({kept.done} of 7 are already measured)" in result.stderr


def test_a_name_that_no_table_can_have_ends_the_run_with_the_first_row_kept(tmp_path):
    calls = []

    def bad(subset, seed):
        calls.append(seed)
        return {"a": 1.0}  # as a task is called

    with pytest.raises(InputError, match=r"A task and a target cannot share a name. Both have: a"):
        whence.measure(bad, ALL, tasks=TASKS, path=tmp_path / "run", engine="inline")
    assert len(calls) == 1
    assert read_ledger(tmp_path / "run").failed == 1
    assert "a: 1.0" in (tmp_path / "run" / "failures" / "row-0-replicate-0.txt").read_text()


# ---- ends ------------------------------------------------------------------------------------------------

HOLDS_THE_LOCK = """
import ctypes, sys, time, whence, numpy as np
def train(subset, seed):
    print("pid", __import__("os").getpid(), flush=True)
    open(sys.argv[1] + "/pid", "w").write(str(__import__("os").getpid()))
    ctypes.PyDLL(None).sleep(600)  # in compiled code, with the interpreter's lock held
    return 0.0
whence.measure(train, np.ones((1, 2)), path=sys.argv[1] + "/run")
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_a_worker_in_compiled_code_ends_with_the_run(tmp_path):
    code = HOLDS_THE_LOCK.replace("sys.argv[1]", repr(str(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        worker = int((tmp_path / "pid").read_text())
        since = born(worker)
        time.sleep(0.2)  # by now it is in compiled code; if not, it ends all the same
        os.kill(process.pid, signal.SIGKILL)
    assert since
    wait_until(lambda: ended([(worker, since)]))


@pytest.mark.parametrize("what", ["journal.jsonl", "run.json", ""])
def test_a_folder_deleted_or_replaced_under_a_run_is_said(tmp_path, what):
    folder, calls = tmp_path / "run", []

    def train(subset, seed):
        calls.append(seed)
        if len(calls) == 2:
            shutil.rmtree(folder) if not what else (folder / what).unlink()
        return 0.5

    with pytest.raises(InputError, match="was deleted or replaced while rows were measured"):
        whence.measure(train, ALL, path=folder, engine="inline")
    assert len(calls) == 2


def test_batches_are_kept_as_they_finish(tmp_path, monkeypatch):
    monkeypatch.setattr(inline, "time", SimpleNamespace(perf_counter=itertools.count().__next__))  # a second each

    class Slow:
        batch_size = 256

        def batch(self, subsets, seeds):
            if len(seeds) > 16:
                raise KeyboardInterrupt
            return {"loss": subsets.sum(1)}

    with pytest.raises(KeyboardInterrupt):
        whence.measure(Slow(), "bernoulli:0.5", 200, tasks=10, path=tmp_path / "run")
    assert read_ledger(tmp_path / "run").done == 24


def test_an_endless_message_is_bounded(tmp_path):
    class EndlessError(Exception):
        def __str__(self):
            return "x" * 5_000_000

    class SilentError(Exception):
        def __str__(self):
            raise ValueError("no message")

    def fails(subset, seed):
        raise EndlessError if subset.sum() > 1 else SilentError

    with pytest.warns(whence.errors.DataWarning, match="7 of 7 rows failed"):
        whence.measure(fails, ALL, path=tmp_path / "run", engine="inline", keep_going=True)
    assert sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file()) < 1_500_000
    assert "its message cannot be shown" in str(read_ledger(tmp_path / "run").reasons)


# ---- GradEx ----------------------------------------------------------------------------------------------


def test_gradex_does_not_depend_on_what_is_solved_beside():
    pytest.importorskip("torch")
    from conformance_measuring import gradex

    together = gradex().batch(ALL)["loss"]
    for rows in ([0], [3, 5], [6, 1, 2]):
        np.testing.assert_allclose(gradex().batch(ALL[rows])["loss"], together[rows], rtol=1e-6)
