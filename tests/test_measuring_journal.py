"""The run folder: it goes on where it was left, whatever was cut, and refuses what would mix two runs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

import whence
from whence.errors import DataWarning, InputError
from whence.measuring import journal as locks
from whence.outcomes.runs import read_ledger
from whence.outcomes.writing import as_line, from_line

TASKS = ["a", "b", "c", "d"]


class Counted:
    """Values with all their digits, and how many rows were measured."""

    task_names = TASKS
    batch_size = 4

    def __init__(self):
        self.n = 0

    def batch(self, subsets, seeds):
        self.n += len(subsets)
        noise = np.array([np.random.default_rng(seed).normal(size=2) for seed in seeds])
        return {
            "loss": subsets @ np.arange(4.0) / 3 + noise[:, 0],
            "tiny": 5e-324 * (1 + seeds % 3) + noise[:, 1] * 1e300,
        }


def measured(path, design="lto", n=None, *, function=None, **more):
    return whence.measure(function or Counted(), design, n, path=path, **more)


def same(runs, others):
    return runs.values.tobytes() == others.values.tobytes() and runs.subsets.tobytes() == others.subsets.tobytes()


def lines_of(folder):
    return (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


# ---- bits ------------------------------------------------------------------------------------------------


def test_numbers_come_back_to_the_bit(tmp_path):
    runs = measured(tmp_path / "run", seeds=3)
    assert same(whence.read_outcomes(tmp_path / "run"), runs)
    assert same(measured(tmp_path / "run", seeds=3), runs)
    assert same(measured(None, seeds=3), runs)


def test_a_line_carries_its_own_checksum():
    line = as_line({"row": 1, "values": [0.1, 1e-300]})
    assert json.loads(line)["values"] == [0.1, 1e-300]
    assert from_line(line.rstrip())["row"] == 1
    for place in range(len(line) - 1):
        changed = bytearray(line.rstrip())
        changed[place] ^= 1
        assert from_line(bytes(changed)) is None


# ---- cuts ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_of_its_last_rows_is_made_whole(tmp_path):
    runs = measured(tmp_path / "run")
    whole = (tmp_path / "run" / "journal.jsonl").read_bytes()
    lines = lines_of(tmp_path / "run")
    start = len(whole) - sum(map(len, lines[-3:]))
    for cut in range(start, len(whole) + 1):
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "run", folder)
        os.truncate(folder / "journal.jsonl", cut)
        # A line is there as soon as all of it is, the end of the line aside.
        complete = sum(cut >= start + sum(map(len, lines[-3 : len(lines) - 2 + k])) - 1 for k in range(3))
        assert read_ledger(folder).done == 8 + complete
        function = Counted()
        assert same(measured(folder, function=function), runs)
        assert function.n == 3 - complete
        assert same(whence.read_outcomes(folder), runs)
        shutil.rmtree(folder)


@pytest.mark.parametrize("tail", [b"\0" * 300, b'{"crc":"00000000","row":1', b"\xff\xfe garbage", b"{", b"\n" * 2])
def test_what_a_power_cut_leaves_at_the_end_is_no_row(tmp_path, tail):
    runs = measured(tmp_path / "run")
    with open(tmp_path / "run" / "journal.jsonl", "ab") as file:
        file.write(tail)
    if tail.strip(b"\0\n") == b"" and b"\n" in tail:
        with pytest.warns(DataWarning, match="2 lines of .*journal.jsonl cannot be read"):
            assert same(measured(tmp_path / "run"), runs)
    else:
        assert same(measured(tmp_path / "run"), runs)
        assert same(whence.read_outcomes(tmp_path / "run"), runs)


@pytest.mark.parametrize("which", [0, 1, 2, 5])
def test_a_damaged_line_is_said_and_its_rows_are_measured_again(tmp_path, which):
    """The first two lines name the targets: one of them is enough."""
    runs = measured(tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    lines[which] = lines[which].replace(b"[", b"(")
    (tmp_path / "run" / "journal.jsonl").write_bytes(b"".join(lines))
    function = Counted()
    with pytest.warns(DataWarning, match="cannot be read; these rows count as not measured"):
        assert same(measured(tmp_path / "run", function=function), runs)
    assert function.n == (0 if which < 2 else 1)
    with pytest.warns(DataWarning, match="cannot be read"):
        assert same(whence.read_outcomes(tmp_path / "run"), runs)


def test_an_empty_folder_and_one_left_before_the_plan_was_written_are_begun(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("process 1 on nowhere")
    (tmp_path / "run" / ".partial-1-run.json").write_text("{")
    assert same(measured(tmp_path / "run"), measured(None))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"{", "run.json is damaged"),
        (as_line({"format": "whence run 9"}), "is of the format 'whence run 9'"),
        (as_line({"format": "whence run 2"}), r"is damaged \(KeyError"),
        (b"{}", "damaged"),
    ],
)
def test_a_plan_that_cannot_be_read_is_not_overwritten(tmp_path, text, sentence):
    measured(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(text)
    for go in (lambda: measured(tmp_path / "run"), lambda: whence.read_outcomes(tmp_path / "run")):
        with pytest.raises(InputError, match=rf"run/run.json .*{sentence.removeprefix('run.json ')}"):
            go()
    assert (tmp_path / "run" / "run.json").read_bytes() == text


# ---- going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["bernoulli:0.5", "fixed:2", "loo"])
def test_a_run_grows_with_more_subsets_and_seeds_as_if_made_at_once(tmp_path, design):
    n = {"loo": (3, 5)}.get(design, (3, 6))
    function = Counted()
    measured(tmp_path / "run", design, n[0], function=function)
    measured(tmp_path / "run", design, n[0], seeds=2, function=function)
    grown = measured(tmp_path / "run", design, n[1], seeds=3, function=function)
    assert function.n == 3 * n[1]
    assert same(grown, measured(tmp_path / "other", design, n[1], seeds=3))
    assert same(whence.read_outcomes(tmp_path / "run"), grown)


def test_rows_are_added_to_given_subsets(tmp_path):
    subsets = whence.Exhaustive().draw(4)
    function = Counted()
    measured(tmp_path / "run", subsets[:3], function=function)
    assert same(measured(tmp_path / "run", subsets, function=function), measured(None, subsets))
    assert function.n == len(subsets)


def other(subset, seed):
    return 0.0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"seed": 1}, "begun with the seed 0, and now it is 1"),
        ({"design": "fixed:3"}, r"begun with the design FixedSize\(size=2\), and now it is FixedSize\(size=3\)"),
        ({"n": 3}, "begun with n=4, and now it is 3"),
        ({"seeds": 1}, "begun with seeds=2, and now it is 1"),
        ({"tasks": ["a", "b", "c", "e"]}, "begun with the list of tasks a, b, c, d, and now it is a, b, c, e"),
        ({"tasks": ["a", "b", "c", "d", "e"]}, "begun with the list of tasks a, b, c, d, and now it is .*e"),
        ({"function": other}, "begun with something else: outcome function \\(was Counted, is other\\)"),
    ],
)
def test_another_run_is_refused_in_one_sentence_that_names_what_differs(tmp_path, changed, sentence, monkeypatch):
    monkeypatch.setattr(Counted, "task_names", None)  # so that it is measured with any
    given = {"design": "fixed:2", "n": 4, "seeds": 2, "tasks": TASKS}
    runs = measured(tmp_path / "run", **given)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with pytest.raises(
        InputError, match=rf"run: this run was {sentence}. Resume it as it was begun, or use another folder."
    ):
        measured(tmp_path / "run", **(given | changed))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    assert same(measured(tmp_path / "run", **given), runs)


def test_a_balanced_design_does_not_grow(tmp_path):
    measured(tmp_path / "run", "balanced:2", 3, seeds=1)
    with pytest.raises(InputError, match="begun with other subsets"):
        measured(tmp_path / "run", "balanced:2", 6)
    assert measured(tmp_path / "run", "balanced:2", 3, seeds=2).n_runs == 6


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"holds other things \('thesis.tex'\) and no run"):
        measured(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "thesis.tex"]


def test_a_path_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(InputError, match=r"run: cannot be written \(File exists\)"):
        measured(tmp_path / "run")


# ---- failures --------------------------------------------------------------------------------------------


class Flaky(Counted):
    broken = True

    def batch(self, subsets, seeds):
        if self.broken and (subsets.sum(1) == 3).any():
            raise RuntimeError("no GPU today")
        return super().batch(subsets, seeds)


def test_failed_rows_are_told_and_kept_until_they_are_tried_again(tmp_path):
    function = Flaky()
    with pytest.warns(
        DataWarning, match=r"4 of 11 rows failed and stay NaN; see .*failures\. The first, row 1: Runtime"
    ):
        first = measured(tmp_path / "run", function=function)
    failed = np.flatnonzero(np.isnan(first.values[:, 0]))
    assert failed.tolist() == [1, 2, 3, 4]
    reports = sorted(path.name for path in (tmp_path / "run" / "failures").iterdir())
    assert reports == [f"row-{row}-replicate-0.txt" for row in failed]
    report = (tmp_path / "run" / "failures" / reports[0]).read_text()
    assert report.startswith("RuntimeError: no GPU today\n")
    assert "tasks: b, c, d\n" in report
    assert f"seed {np.random.SeedSequence([0, 0]).generate_state(2)[1] >> 1}" in report
    assert "Traceback (most recent call last)" in report
    function.broken, function.n = False, 0
    with pytest.warns(DataWarning, match="4 of 11 rows failed"):
        measured(tmp_path / "run", function=function, accept_change=True)
    assert function.n == 0
    again = measured(tmp_path / "run", function=function, retry=True)
    assert function.n == 4
    assert same(again, measured(None))
    assert list((tmp_path / "run" / "failures").iterdir()) == []
    assert same(whence.read_outcomes(tmp_path / "run"), again)


def test_rows_that_an_interrupt_finds_written_stay(tmp_path, monkeypatch):
    function, sync = Counted(), os.fsync

    def interrupted(handle):
        sync(handle)
        if os.fstat(handle).st_size and os.readlink(f"/proc/self/fd/{handle}").endswith("journal.jsonl"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "run", function=function)
    monkeypatch.undo()
    assert function.n == 4
    assert read_ledger(tmp_path / "run").done == 4
    assert same(measured(tmp_path / "run", function=function), measured(None))
    assert function.n == 11


# ---- who may write ---------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from whence.measuring.journal import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_and_a_dead_one_is_forgotten(tmp_path):
    runs = measured(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "run"], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"run: another process is measuring here \(process {holder.pid} on "):
            measured(tmp_path / "run")
        assert same(whence.read_outcomes(tmp_path / "run"), runs)
        holder.kill()
    assert same(measured(tmp_path / "run"), runs)


def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    with pytest.warns(DataWarning, match="This file system has no locks .*make sure that nothing else measures"):
        measured(tmp_path / "run")


def test_the_lock_is_let_go_of_also_after_a_refusal(tmp_path):
    measured(tmp_path / "run")
    with pytest.raises(InputError, match="seed"):
        measured(tmp_path / "run", seed=1)
    measured(tmp_path / "run")


# ---- a full disk -----------------------------------------------------------------------------------------

FILL = """
import signal, sys
import numpy as np, whence
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
class Wide:
    task_names, batch_size = [f"t{k}" for k in range(8)], 2
    def batch(self, subsets, seeds):
        return {"loss": np.random.default_rng(seeds[0]).normal(size=(len(subsets), 20)) + subsets[:, :1]}
if len(sys.argv) > 2:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    whence.measure(Wide(), "all", path=sys.argv[1])
except whence.InputError as error:
    print(error)
    sys.exit(2)
"""


def fill(folder, *limit):
    command = [sys.executable, "-c", FILL, str(folder), *map(str, limit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def assert_kept_and_made_whole(folder, filled, undisturbed):
    assert filled.returncode == 2, filled.stderr
    assert "cannot be written" in filled.stdout
    assert "Finished rows are kept" in filled.stdout
    kept = read_ledger(folder).done
    assert 0 < kept < 255
    assert all(from_line(line.rstrip(b"\n")) for line in lines_of(folder))
    shutil.copytree(folder, undisturbed.parent / "moved")
    before = lines_of(undisturbed.parent / "moved")
    assert fill(undisturbed.parent / "moved").returncode == 0
    assert lines_of(undisturbed.parent / "moved")[: len(before)] == before
    assert fill(undisturbed).returncode == 0
    assert same(whence.read_outcomes(undisturbed.parent / "moved"), whence.read_outcomes(undisturbed))


def test_a_file_that_cannot_grow_keeps_every_finished_row(tmp_path):
    """Writes stop in the middle of a line, as they do on a full disk."""
    filled = fill(tmp_path / "run", 30_011)
    assert_kept_and_made_whole(tmp_path / "run", filled, tmp_path / "undisturbed")


def test_a_full_disk_keeps_every_finished_row(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here, which takes root: {mounted.stderr.strip()}")
    try:
        filled = fill(disk / "run")
        assert "the disk is full" in filled.stdout
        assert_kept_and_made_whole(disk / "run", filled, tmp_path / "undisturbed")
        assert fill(disk / "run").returncode == 2  # still full, still whole
    finally:
        subprocess.run(["umount", disk], check=True)


# ---- size ------------------------------------------------------------------------------------------------


class Instant(Counted):
    batch_size = 64

    def batch(self, subsets, seeds):
        return {"loss": subsets.sum(1) + seeds / 7, "acc": seeds / 3.0}


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_journaled_and_read_in_seconds(tmp_path):
    """About 4 s of processor time; the limit leaves room for a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    runs = measured(tmp_path / "run", np.eye(4).repeat(25, axis=0), seeds=1000, function=Instant())
    assert same(whence.read_outcomes(tmp_path / "run"), runs)
    assert runs.n_runs == 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - usage < 40
