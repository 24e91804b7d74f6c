"""Whatever an outcome function or the outside does to the processes, no other row is lost, nor measured twice."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import whence
from clock import overdue_once
from processes import born, children_of, ended, wait_until
from whence.errors import DataWarning, InputError
from whence.outcomes.runs import read_ledger

pytestmark = pytest.mark.slow

# The row that returns something comes first, so that it says what the targets are; the one that hangs comes last, so
# that all others can end before its time is over.
TASKS = ["fine", "raises", "exits", "quits", "crashes", "prints", "nan", "shape", "killed", "fine too", "hangs"]
ONE_EACH = np.eye(len(TASKS))


def misbehave(subset, seed):
    """What the only task says."""
    (task,) = subset.tasks
    print(f"about to do {task}")
    if task == "hangs":
        Path(os.environ["WHENCE_TEST_MARK"]).touch()
        time.sleep(600)
    if task == "raises":
        raise ValueError("diverged")
    if task == "exits":
        os._exit(7)
    if task == "quits":
        sys.exit("enough")
    if task == "crashes":
        import ctypes

        ctypes.string_at(0)
    if task == "prints":
        for _ in range(80):
            print("x" * 100_000)
        raise RuntimeError("after eight megabytes")
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"nan": {"loss": float("nan")}, "shape": {"loss": [1.0, 2.0]}}.get(task, {"loss": seed / 2**31})


REASONS = {
    "hangs": "it took longer than 600 s",
    "raises": "ValueError: diverged",
    "exits": "its process ended with exit status 7",
    "quits": "SystemExit: enough",
    "crashes": "its process was ended by SIGSEGV",
    "prints": "RuntimeError: after eight megabytes",
    "killed": "its process was ended by SIGKILL (out of memory?)",
    "nan": "the outcome must be finite, and loss is nan",
    "shape": "it returned loss[0], loss[1] where row 0 returned loss",
}


# ---- what the outcome function does ----------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_kind_of_trouble_is_that_of_its_row_alone(tmp_path, jobs, monkeypatch):
    before, hanging = set(children_of(os.getpid())), tmp_path / "hanging"
    monkeypatch.setenv("WHENCE_TEST_MARK", str(hanging))
    overdue_once(monkeypatch, lambda: hanging.exists() and journal_of(tmp_path / "run").count(b'"row"') == 10)
    with pytest.warns(DataWarning, match="9 of 11 rows failed"):
        runs = whence.measure(misbehave, ONE_EACH, tasks=TASKS, path=tmp_path / "run", jobs=jobs, timeout=600)
    ledger = read_ledger(tmp_path / "run")
    assert {TASKS[row]: reason for (row, _), reason in ledger.reasons.items()} == REASONS
    fine = [0, TASKS.index("fine too")]
    seeds = np.random.SeedSequence([0, 0]).generate_state(11) >> 1
    np.testing.assert_array_equal(runs.values[fine, 0], seeds[fine] / 2**31)
    assert np.isnan(np.delete(runs.values, fine, axis=0)).all()
    for task in REASONS:
        report = (tmp_path / "run" / "failures" / f"row-{TASKS.index(task)}-replicate-0.txt").read_text()
        assert report.startswith(REASONS[task])
        assert f"tasks: {task}\n" in report
        assert len(report) < 100_000  # the end of what was printed, and not all of it
        if task != "prints":
            assert f"about to do {task}\n" in report
    crashed = (tmp_path / "run" / "failures" / f"row-{TASKS.index('crashes')}-replicate-0.txt").read_text()
    assert "Fatal Python error: Segmentation fault" in crashed
    assert "in misbehave" in crashed
    assert set(children_of(os.getpid())) <= before


def waits_for_the_other(subset, seed):
    if "a" in subset:
        wait_until(lambda: b'"failed"' in journal_of(Path(os.environ["WHENCE_TEST_RUN"])))
        return 1.0
    raise ValueError("diverged")


def test_a_run_is_stopped_only_once_each_worker_has_failed_a_row(tmp_path, monkeypatch):
    subsets = np.array([[1, 0], [0, 1], [1, 1], [1, 1]])
    monkeypatch.setenv("WHENCE_TEST_RUN", str(tmp_path / "run"))
    with pytest.warns(DataWarning, match="1 of 4 rows failed"):
        runs = whence.measure(waits_for_the_other, subsets, tasks=["a", "b"], jobs=2, path=tmp_path / "run")
    np.testing.assert_array_equal(runs.values[:, 0], [1, np.nan, 1, 1])
    with pytest.raises(InputError, match=r"row [01] failed .* before any other succeeded"):
        whence.measure(waits_for_the_other, subsets[[1, 1, 2, 2]], tasks=["a", "b"], jobs=2)


def prints_for_ever(subset, seed):
    while True:
        print("y" * 1000)


def test_a_row_that_never_stops_printing_is_stopped_too():
    with pytest.warns(DataWarning, match="it took longer than 1 s"):
        whence.measure(prints_for_ever, np.ones((1, 2)), timeout=1)


def leaves_a_child(subset, seed):
    subprocess.Popen(["sleep", os.environ["NAP"]])
    time.sleep(600)


def test_what_a_row_has_started_ends_with_it(monkeypatch):
    monkeypatch.setenv("NAP", f"601.{os.getpid()}")  # by which it is known

    def sleepers():
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().split(b"\0")[:2] == [b"sleep", os.environb[b"NAP"]]:
                    found.append(path)
        return found

    assert not sleepers()
    overdue_once(monkeypatch, sleepers)
    with pytest.warns(DataWarning, match="it took longer than 600 s"):
        whence.measure(leaves_a_child, np.ones((1, 2)), timeout=600)
    wait_until(lambda: not sleepers())


class DiesOnArrival:
    def __call__(self, subset, seed):
        return 0.0

    def __reduce__(self):
        return os._exit, (5,)


def test_workers_that_die_before_their_first_row_end_the_run():
    with pytest.raises(InputError, match=r"3 workers in a row ended before they had loaded .*exit status 5"):
        whence.measure(DiesOnArrival(), np.eye(4), jobs=2)


# ---- what the outside does -------------------------------------------------------------------------------

PREPARE = """
import itertools, os, sys, time, warnings
import numpy as np, whence
def train(subset, seed):
    if os.environ["MOST"]:  # rows after which this life of the run goes no further, however late it is ended
        taken = next(n for n in itertools.count() if claimed(f"{os.environ['LIFE']}-{n}"))
        time.sleep(0.1 if taken < int(os.environ["MOST"]) else 600)
    rng = np.random.default_rng(seed)
    return {"loss": subset @ np.arange(10.0) / 7 + rng.normal(), "acc": rng.random(2)}
def claimed(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
warnings.simplefilter("ignore")
def go(**more):
    return whence.measure(train, whence.Bernoulli(0.5), 300, tasks=10, seeds=2, seed=4, path=sys.argv[1], **more)
"""


LIVES = itertools.count()


def driver(folder, code="go(jobs=2)", *, most=""):
    """A process that measures; with at most so many rows, each takes a moment."""
    life = folder.with_name(f"life-{next(LIVES)}")
    environment = {**os.environ, "MOST": str(most), "LIFE": str(life), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", PREPARE + code, str(folder)], env=environment)


def journal_of(folder):
    path = folder / "journal.jsonl"
    return path.read_bytes() if path.exists() else b""


def test_killing_a_run_and_its_workers_fifty_times_changes_no_bit(tmp_path):
    """Each life of the run loses a worker at a random moment, and then itself."""
    rng = np.random.default_rng(0)
    folder, kills, workers = tmp_path / "run", Counter(), set()
    while sum(kills.values()) < 50:
        with driver(folder, most=12) as process:
            if rng.random() < 0.2:  # sometimes before it has come to anything
                time.sleep(rng.uniform(0.05, 0.5))
            else:
                before = len(journal_of(folder))
                wait_until(lambda process=process: process.poll() is not None or len(children_of(process.pid)) == 2)
                wait_until(
                    lambda before=before, process=process: (
                        len(journal_of(folder)) > before or process.poll() is not None
                    )
                )
                time.sleep(rng.uniform(0, 0.1))
            children = children_of(process.pid)
            workers.update((pid, born(pid)) for pid in children)
            if children:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(children), signal.SIGKILL)
                    kills["worker"] += 1
                time.sleep(rng.uniform(0, 0.08))
            workers.update((pid, born(pid)) for pid in children_of(process.pid))
            assert process.poll() is None, "the run ended before it was killed"
            process.kill()
            kills["run"] += 1
    wait_until(lambda: ended(workers))
    with driver(folder, "go(jobs=2, retry=True)") as process:
        assert process.wait(600) == 0
    with driver(tmp_path / "undisturbed") as process:
        assert process.wait(600) == 0
    runs, undisturbed = whence.read_outcomes(folder), whence.read_outcomes(tmp_path / "undisturbed")
    assert not np.isnan(runs.values).any()
    assert runs.values.tobytes() == undisturbed.values.tobytes()
    assert runs.subsets.tobytes() == undisturbed.subsets.tobytes()
    lines = [json.loads(line) for line in journal_of(folder).splitlines()]
    measured = Counter((line["row"], line["replicate"]) for line in lines if "values" in line)
    assert set(measured.values()) == {1}, "a row was measured twice"
    assert len(measured) == 600
    assert kills["worker"] >= 15
    assert kills["run"] >= 25


def test_the_table_can_be_read_while_it_is_measured(tmp_path):
    with driver(tmp_path / "run", most=40) as process:
        wait_until(lambda: journal_of(tmp_path / "run").count(b"\n") > 12)
        seen = whence.read_outcomes(tmp_path / "run")
        later = whence.read_outcomes(tmp_path / "run")
        process.kill()
    measured = ~np.isnan(seen.values)
    assert seen.n_runs == 600
    assert 10 <= measured[:, 0].sum() < 600
    np.testing.assert_array_equal(seen.values[measured], later.values[measured])
    assert seen.target_names == ("loss", "acc[0]", "acc[1]")


def test_ctrl_c_in_a_script_leaves_no_worker_and_keeps_all_rows(tmp_path):
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    go(jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""
    with driver(tmp_path / "run", code, most=40) as process:
        wait_until(lambda: journal_of(tmp_path / "run").count(b"\n") > 6)
        workers = [(pid, born(pid)) for pid in children_of(process.pid)]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    assert len(workers) == 2
    wait_until(lambda: ended(workers))
    assert read_ledger(tmp_path / "run").failed == 0
    assert read_ledger(tmp_path / "run").done >= 4
