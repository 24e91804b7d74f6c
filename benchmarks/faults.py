"""A fault attack on everything that whence writes: kills, damage, nonsense, full disks, clocks and second writers.

    python benchmarks/faults.py            # the whole of it, about an hour on two cores
    python benchmarks/faults.py --quick    # a tenth of it

Each line of the table says how often something was tried, and how often a value was wrong, a row was lost or measured
twice, a traceback came out, or something hung. The goal is 0 in all of them. Results go to
benchmarks/results/faults.md. Lives of a run are forked from this process, so that a kill costs no import.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import InputError
from whence.estimators.deltas import DeltaFolder
from whence.gradients.linearize import Features
from whence.gradients.store import Store
from whence.icl.examples import read_examples
from whence.outcomes.writing import read_document
from whence.searching.pruning import Report, curves_in

COLUMNS = ("tried", "wrong values", "rows lost", "rows run twice", "tracebacks", "hangs")
TASKS = [f"t{k}" for k in range(8)]
COMMANDS = typer.main.get_command(app).commands
PATIENCE = 120.0  # seconds after which something hangs


class Score(Counter):
    """Counts of one line of the table."""

    def judge(self, truth, found):
        self["wrong values"] += not (found is None or same(truth, found))


def same(runs, others):
    names = "task_names", "target_names", "maximize"
    return (
        runs.values.tobytes() == others.values.tobytes()
        and runs.subsets.tobytes() == others.subsets.tobytes()
        and all(getattr(runs, name) == getattr(others, name) for name in names)
    )


def tried(score, work):
    """What comes of some work: its result, or None where it is refused in a sentence."""
    score["tried"] += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except InputError:
        return None
    except Exception:
        score["tracebacks"] += 1
        traceback.print_exc(limit=-2)
        return None


# ---- kills -----------------------------------------------------------------------------------------------


def train(subset, seed):
    time.sleep(0.004)
    rng = np.random.default_rng(seed)
    return {"loss": float(subset @ np.arange(8.0)) + rng.normal(), "acc": rng.random(2)}


def problem():
    torch.manual_seed(0)
    group = [(torch.randn(20, 6), torch.randint(0, 2, (20,))) for _ in range(9)]
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    return whence.Problem(model, dict(zip(TASKS, group, strict=False)), group[8])


def local(path):
    whence.measure(train, "bernoulli:0.5", 200, tasks=TASKS, seeds=2, path=path / "run", jobs=2)


def inline(path):
    whence.measure(train, "bernoulli:0.5", 200, tasks=TASKS, seeds=2, path=path / "run", engine="inline")


def on_ray(path):
    whence.measure(train, "bernoulli:0.5", 200, tasks=TASKS, seeds=2, path=path / "run", jobs=2, engine="ray")


def retraining(path):
    function = whence.Retrain(problem(), whence.Recipe(steps=80, lr=0.01, batch_size=8))
    whence.measure(function, "bernoulli:0.5", 80, path=path / "run")


def vectors(path):
    function = whence.TaskVectors(problem(), whence.Recipe(steps=80, lr=0.01, batch_size=8), path=path / "vectors")
    whence.measure(function, "bernoulli:0.5", 60, path=path / "run")


def gradex(path):
    function = whence.GradEx(problem(), rank=16, features=Features(store=path / "store"))
    whence.measure(function, "bernoulli:0.5", 60, path=path / "run")


def searching(path):
    how = {"engine": "inline", "stop": False, "path": path / "run"}
    whence.search(lambda subset, seed: train(subset, seed)["loss"], tasks=TASKS, budget=12, **how)


KINDS = {
    "measure, local workers": local,
    "measure, this process": inline,
    "measure, Ray": on_ray,
    "search": searching,
    "estimate by retraining": retraining,
    "estimate by task vectors": vectors,
    "estimate by GradEx with a store": gradex,
}
EXACT = {"measure, local workers", "measure, this process", "measure, Ray", "search"}


def life(work, path):
    """A process that does the work, in a group of its own."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work(path)
        status = 0
    except BaseException:
        traceback.print_exc(limit=-3)
    finally:
        os._exit(status)


def ended(pid, seconds):
    """Exit status of a process, or None where it is still there."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.002)


def kills(name, wanted, seconds):
    """Kill a run at random moments, let it go on, and compare with one that nobody disturbed."""
    score, work, rng = Score(), KINDS[name], random.Random(0)
    with tempfile.TemporaryDirectory(dir=room()) as room_name:
        calm = Path(room_name, "calm")
        calm.mkdir()
        began = time.monotonic()
        score["tracebacks"] += ended(life(work, calm), PATIENCE) != 0
        whole = time.monotonic() - began
        truth = whence.read_outcomes(calm / "run")
        until, number = time.monotonic() + seconds, 0
        while score["tried"] < wanted and time.monotonic() < until:
            number += 1
            path = Path(room_name, f"run-{number}")
            path.mkdir()
            for _ in range(12):  # lives of one run, until one of them ends by itself
                pid = life(work, path)
                status = ended(pid, rng.uniform(0, 0.6 * whole))
                if status is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    ended(pid, PATIENCE)
                    score["tried"] += 1
                    continue
                score["tracebacks"] += status != 0
                break
            else:
                score["hangs"] += ended(life(work, path), PATIENCE) != 0
            compare(score, truth, path / "run", exact=name in EXACT)
            shutil.rmtree(path)
    return score


def compare(score, truth, folder, *, exact):
    found = whence.read_outcomes(folder)
    close = same(truth, found) if exact else np.allclose(truth.values, found.values, rtol=1e-4, atol=1e-6)
    score["wrong values"] += not close
    score["rows lost"] += int(np.isnan(found.values).any(axis=1).sum())
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    times = Counter((line["row"], line["replicate"]) for line in lines if "values" in line)
    score["rows run twice"] += sum(number - 1 for number in times.values())


# ---- damage ----------------------------------------------------------------------------------------------


def specimens(folder):
    """Every kind of file that whence writes and reads again, each with how to read it."""
    rng = np.random.default_rng(0)
    S = (rng.random((30, 8)) < 0.5).astype(float)
    values = rng.normal(size=(30, 2))
    values[3, 1] = np.nan
    runs = whence.Outcomes(S, values, TASKS, ["loss", "acc"], ["acc"], {"source": "nowhere"})
    for ending in ("npz", "parquet", "csv.gz"):
        path = folder / f"runs.{ending}"
        runs.write(path)
        asked = ["loss", "acc"] if ending == "csv.gz" else None
        yield ending, path, lambda path=path, asked=asked: whence.read_outcomes(path, asked), same
    run = folder / "run"
    warnings.simplefilter("ignore")
    whence.measure(train, "bernoulli:0.5", 30, tasks=TASKS, path=run, engine="inline", maximize=["acc[0]"])
    for name in ("run.json", "journal.jsonl"):
        yield name, run / name, lambda: whence.read_outcomes(run), known_rows
    whence.fit(runs.targets("loss")).save(folder / "model.whence")
    model = folder / "model.whence"
    yield "model", model, lambda: whence.load(model).predict(S, return_std=True), exactly
    searching(folder / "found")
    decisions = folder / "found" / "run" / "search.json"
    yield "decisions of a search", decisions, lambda: read_document(decisions), equal
    (folder / "curves").mkdir()
    Report(folder / "curves", 3, True)(0, 0.5)
    yield "curve of a run", folder / "curves" / "3.json", lambda: curves_in(folder / "curves"), fewer
    like = {"weight": torch.arange(60.0).reshape(6, 10), "bias": torch.ones(6)}
    about = {"seed": 0}, {"a": "x"}
    DeltaFolder(folder / "v", *about).save("a", like)
    path = DeltaFolder(folder / "v", *about).file("a")
    yield "task vector", path, lambda: dict(DeltaFolder(folder / "v", *about).load("a", like)), tensors
    yield "manifest of vectors", folder / "v" / "manifest.json", lambda: DeltaFolder(folder / "v", *about).path, equal
    store = Store(folder / "s", (12, 2, 3), 4, {"model": "x"})
    for rows in store.blocks():
        store.write(rows, rng.normal(size=(4, 2)).astype("f4"), rng.normal(size=(4, 2, 3)).astype("f4"))
    for name in ("manifest.json", "blocks.jsonl", "features.f32", "outputs.f32"):
        yield f"store, {name}", folder / "s" / name, lambda: features(folder / "s"), blocks


def known_rows(truth, found):
    """Rows that are there are right; those that are not are NaN, and measured again."""
    known = ~np.isnan(found.values).any(axis=1)
    return not known.any() or same(truth.rows(known), found.rows(known))


def tensors(truth, found):
    return truth.keys() == found.keys() and all(torch.equal(truth[name], found[name]) for name in truth)


def exactly(truth, found):
    return all(np.array_equal(a, b) for a, b in zip(truth, found, strict=True))


def fewer(truth, found):
    return found.items() <= truth.items()


def equal(truth, found):
    return truth == found


def features(path):
    store = Store(path, (12, 2, 3), 4, {"model": "x"})
    return {
        start: (store.features[start : start + 4].copy(), store.outputs[start : start + 4].copy())
        for start in store.done
    }


def blocks(truth, found):
    return all(np.array_equal(a, b) for start in found for a, b in zip(truth[start], found[start], strict=True))


def damage(how, most):
    """Every specimen, with one bit flipped or cut short; wrong is what is read and differs."""
    score, rng = Score(), np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=room()) as name:
        for label, path, read, good in specimens(Path(name)):
            truth, whole = read(), path.read_bytes()
            places = len(whole) * (8 if how == "flip" else 1)
            chosen = np.arange(places) if places <= most else rng.choice(places, most, replace=False)
            for place in chosen.tolist():
                bad = bytearray(whole)
                if how == "flip":
                    bad[place // 8] ^= 1 << (place % 8)
                else:
                    del bad[place:]
                path.write_bytes(bad)
                found = tried(score, read)
                if found is not None and not good(truth, found):
                    score["wrong values"] += 1
                    print("wrong:", label, how, place, file=sys.stderr)
                if label.startswith("store") and path.read_bytes() != bad:
                    path.write_bytes(whole)
            path.write_bytes(whole)
    return score


# ---- nonsense --------------------------------------------------------------------------------------------


def mutated(rng, data):
    """Bytes with some nonsense in them."""
    odd = [b",", b"\n", b'"', b"nan", b"inf", b"1e999", b"\x00", b"\xff", b"=", b"-1", b"9" * 5000, "\u2028".encode()]
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(found) + 1)
        kind = rng.random()
        if kind < 0.4:
            found[at:at] = rng.choice(odd)
        elif kind < 0.7 and found:
            del found[at : at + rng.randint(1, 20)]
        elif found:
            found[min(at, len(found) - 1)] = rng.randrange(256)
    return bytes(found)


def fuzzed_files(wanted):
    """Files of every kind with nonsense in them: read or refused in a sentence, never a traceback."""
    score, rng = Score(), random.Random(2)
    with tempfile.TemporaryDirectory(dir=room()) as name:
        folder = Path(name)
        kinds = [(path, read) for _, path, read, _ in specimens(folder)]
        whence.read_outcomes(folder / "runs.npz").write(folder / "runs.csv")
        kinds += [(folder / "runs.csv", lambda: whence.read_outcomes(folder / "runs.csv", ["loss", "acc"]))] * 4
        (folder / "d.jsonl").write_text('{"text": "good", "label": "yes", "id": 3}\n{"text": "bad", "label": "no"}\n')
        kinds += [(folder / "d.jsonl", lambda: read_examples(folder / "d.jsonl"))] * 2
        for at in range(wanted):
            path, read = kinds[at % len(kinds)]
            whole = path.read_bytes()
            path.write_bytes(mutated(rng, whole))
            tried(score, read)
            path.write_bytes(whole)
    return score


WORDS = r"""a b loss acc a,b =cmd nan inf -1 0 1 2 0.5 1e309 99999999 none -o runs.csv mixed.csv holes.csv run / {} "
exp.py:train a=0.5 a=nan loo shapley fixed:2 bernoulli:0.5 inline variance improvement --json""".split()  # noqa: SIM905
WORDS += ["", "a\nb", "\x1b[31m", "\u202e", "x" * 3000, "9" * 5000]
PLACES = ["runs.csv", "mixed.csv", "holes.csv", "run", "runs.csv", "exp.py:train", *WORDS]


class Hang(BaseException):
    """Raised by an alarm, which no handler of errors swallows."""


def out_of_patience(*_):
    raise Hang


def fuzz_tables():
    """The tables, run folder and function that options are tried on."""
    S = whence.Exhaustive().draw(3)
    both = np.stack([S.sum(1), S @ [1.0, -1, 2]], axis=1)
    whence.Outcomes(S, S.sum(1), list("abc"), ["loss"]).write("runs.csv")
    whence.Outcomes(S[1:] / S[1:].sum(1, keepdims=True), both[1:], list("abc"), ["loss", "acc"], ["acc"]).write(
        "mixed.csv"
    )
    both[[0, 3], 1] = np.nan
    whence.Outcomes(S, both, list("abc"), ["loss", "acc"]).write("holes.csv")
    Path("exp.py").write_text("TASKS = ['a', 'b']\ndef train(subset, seed):\n    return float(subset[0])\n")
    if not Path("run").exists():
        whence.measure(train, "bernoulli:0.5", 20, tasks=TASKS, path="run", engine="inline")


def fuzzed_verbs(wanted, seconds):
    """Every verb with random options on small tables: exit status 0, 1 or 2, and never a traceback."""
    score, rng, here = Score(), random.Random(3), os.getcwd()
    until = time.monotonic() + seconds
    verbs = {
        name: [max(p.opts, key=len) for p in verb.params if p.opts[0][0] == "-"] for name, verb in COMMANDS.items()
    }
    signal.signal(signal.SIGALRM, out_of_patience)
    with tempfile.TemporaryDirectory(dir=room()) as name:
        os.chdir(name)
        try:
            while score["tried"] < wanted and time.monotonic() < until:
                fuzz_tables()
                verb = rng.choice(sorted(verbs))
                arguments = [verb, rng.choice(PLACES), *rng.choice([[], ["--outcome", "loss"], ["--outcome", "loss"]])]
                for _ in range(rng.randint(0, 4)):
                    arguments += [rng.choice(verbs[verb]), rng.choice(WORDS)]
                signal.alarm(int(PATIENCE))
                try:
                    with contextlib.redirect_stderr(io.StringIO()):
                        result = CliRunner().invoke(app, arguments)
                except Hang:
                    score["hangs"] += 1
                    print("hang:", arguments, file=sys.stderr)
                    continue
                finally:
                    signal.alarm(0)
                    score["tried"] += 1
                if result.exception is not None and not isinstance(result.exception, SystemExit):
                    score["tracebacks"] += 1
                    print("traceback:", arguments, repr(result.exception)[:200], file=sys.stderr)
        finally:
            os.chdir(here)
    return score


# ---- disks, clocks, writers ------------------------------------------------------------------------------


def full_disks(wanted):
    """Files that cannot grow beyond a limit: every row that was said to be kept is kept, and the run can go on."""
    score, rng = Score(), random.Random(4)

    def limited(path):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(200, 60_000), resource.RLIM_INFINITY))
        with contextlib.suppress(InputError):
            whence.measure(train, "bernoulli:0.5", 200, tasks=TASKS, path=path / "run", engine="inline")

    def free(path):
        whence.measure(train, "bernoulli:0.5", 200, tasks=TASKS, path=path / "run", engine="inline")

    with tempfile.TemporaryDirectory(dir=room()) as name:
        calm = Path(name, "calm")
        ended(life(free, calm), PATIENCE)
        truth = whence.read_outcomes(calm / "run")
        for number in range(wanted):
            path = Path(name, str(number))
            rng.seed(number)
            score["tried"] += 1
            score["tracebacks"] += ended(life(limited, path), PATIENCE) != 0
            score["tracebacks"] += ended(life(free, path), PATIENCE) != 0
            compare(score, truth, path / "run", exact=True)
    return score


def clock_jumps(wanted):
    """A wall clock that jumps by days in either direction while rows are measured."""
    score = Score()

    def jumping(path):
        rng, real = random.Random(str(path)), time.time
        time.time = lambda: real() + rng.uniform(-1e7, 1e7)
        whence.measure(train, "bernoulli:0.5", 60, tasks=TASKS, path=path / "run", jobs=2, timeout=30)

    with tempfile.TemporaryDirectory(dir=room()) as name:
        truth = None
        for number in range(wanted):
            path = Path(name, str(number))
            score["tried"] += 1
            score["tracebacks"] += ended(life(jumping, path), PATIENCE) != 0
            truth = truth or whence.read_outcomes(path / "run")
            compare(score, truth, path / "run", exact=True)
    return score


def two_writers(wanted):
    """Three processes that begin in the same folder at once: one measures, and the others are refused."""
    score = Score()

    def writer(path):
        with contextlib.suppress(InputError):
            whence.measure(train, "bernoulli:0.5", 40, tasks=TASKS, path=path / "run", engine="inline")

    with tempfile.TemporaryDirectory(dir=room()) as name:
        truth = None
        for number in range(wanted):
            path = Path(name, str(number))
            path.mkdir()
            pids = [life(writer, path) for _ in range(3)]
            score["tried"] += 3
            score["tracebacks"] += sum(ended(pid, PATIENCE) != 0 for pid in pids)
            truth = truth or whence.read_outcomes(path / "run")
            compare(score, truth, path / "run", exact=True)
    return score


# ---- all of it -------------------------------------------------------------------------------------------


def room():
    """Where files go: memory, where the system has such a place, so that a disk is not worn out."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


NOTE = """

Killed runs of `measure` are compared to the bit with undisturbed ones, those of estimators to a relative 1e-4. Each
kind of kill goes on until there are 100, or its time is over. Files are npz, Parquet and gzipped tables, run folders,
task vectors with their manifest, feature stores, saved models, and decisions and curves of a search.
"""


def record(lines, how):
    """Write the table, with the command, the machine and the day."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = f"""# Faults

How often something was tried, and what came of it: the goal is 0 everywhere but in the first column.

## Attacks

`python benchmarks/faults.py {how}` on {machine}, {datetime.date.today().isoformat()}.

"""
    place = Path(__file__).parent / "results" / "faults.md"
    place.write_text(text + "\n".join(lines) + NOTE, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="A tenth of it.")
    parser.add_argument("--only", default="", help="Lines whose name contains this.")
    parser.add_argument("--seconds", type=float, default=600, help="At most, for each kind of kill and for verbs.")
    given = parser.parse_args()
    part = 10 if given.quick else 1
    attacks = {f"kill -9: {name}": lambda name=name: kills(name, 100 // part, given.seconds) for name in KINDS}
    attacks |= {
        "one bit flipped in any file": lambda: damage("flip", 4000 // part),
        "any file cut at every place": lambda: damage("cut", 100_000 // part),
        "nonsense in files": lambda: fuzzed_files(12_000 // part),
        "nonsense in options of all verbs": lambda: fuzzed_verbs(1000 // part, given.seconds),
        "full disk": lambda: full_disks(50 // part),
        "wall clock that jumps": lambda: clock_jumps(50 // part),
        "three writers in one folder": lambda: two_writers(50 // part),
    }
    lines = [f"| attack | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, attack in attacks.items():
        if given.only in name:
            began = time.monotonic()
            score = attack()
            lines.append(f"| {name} | {' | '.join(str(score[column]) for column in COLUMNS)} |")
            print(lines[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
    if not given.only:
        record(lines, "--quick" if given.quick else f"--seconds {given.seconds:g}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
