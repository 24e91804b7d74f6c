"""What measuring costs beside the work itself: overhead, speed-up, Ray, and the journal.

    python benchmarks/measure.py                        all of it, into benchmarks/results/measure.md
    python benchmarks/measure.py --quick                fewer rows, nothing written
    python benchmarks/measure.py --section overhead     one section: overhead, scaling, ray, journal

Both sides of a comparison call the same function, with one thread each, and take turns. Every row says when it began
and ended: seconds per row are those from the first beginning to the last end, so that the start of workers is not in
them; it stands beside them. Of several runs the fastest counts, since whatever else uses the machine only adds to it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from joblib import Parallel, cpu_count, delayed
from rich.console import Console
from rich.markdown import Markdown

import whence

RESULTS = Path(__file__).parent / "results" / "measure.md"
COMMAND = "python benchmarks/measure.py"
TASKS = [f"task_{k}" for k in range(10)]
Table = list[list[str]]  # the header, then the rows


# ----------------------------------------------------------------------------------------------------------
# Outcome functions


def timed(subset, seed, work):
    """Return when the work began and ended, by the clock that all processes of a machine share."""
    began = time.monotonic()
    work(seed)
    return {"began": began, "ended": time.monotonic()}


def nap(subset, seed):
    """A tenth of a second that no other process can slow down."""
    return timed(subset, seed, lambda seed: time.sleep(0.1))


def nothing(subset, seed):
    return timed(subset, seed, lambda seed: None)


def busy(subset, seed):
    """About a tenth of a second of one processor."""

    def work(seed):
        x = np.random.default_rng(seed).normal(size=2000)
        for _ in range(14000):
            x = np.tanh(x) + 0.01 * x

    return timed(subset, seed, work)


class Instant:
    """A hundred thousand rows at no cost."""

    task_names = TASKS
    batch_size = 64

    def batch(self, subsets, seeds):
        return {"loss": subsets.sum(1) + seeds / 7, "acc": seeds / 3.0}


# ----------------------------------------------------------------------------------------------------------
# Clocks, text


def seconds_of(side: Callable[[], object]) -> float:
    began = time.perf_counter()
    side()
    return time.perf_counter() - began


def race(n: int, repetitions: int, *sides: Callable[[int], np.ndarray]) -> list[tuple[float, float]]:
    """Return of each side the least seconds per row, and those before the first row, over turns of n rows."""
    found: list[list[tuple[float, float]]] = [[] for _ in sides]
    for side in sides:
        side(2)  # joblib and Ray keep what they have started
    for _ in range(repetitions):
        for side, own in zip(sides, found, strict=True):
            called = time.monotonic()
            began, ended = side(n).T
            own.append(((ended.max() - began.min()) / n, began.min() - called))
    return [(min(row for row, _ in own), statistics.median(start for _, start in own)) for own in found]


def measured(function, jobs: int, engine: str = "local") -> Callable[[int], np.ndarray]:
    """Return what measures n rows into a run folder, and when each began and ended, (n, 2)."""

    def side(n: int) -> np.ndarray:
        subsets = np.ones((n, len(TASKS)))
        with tempfile.TemporaryDirectory() as folder:
            options = {"jobs": jobs, "engine": engine, "path": f"{folder}/run", "progress": False}
            return whence.measure(function, subsets, tasks=TASKS, **options).values

    return side


def bare(function, jobs: int) -> Callable[[int], np.ndarray]:
    """Return what calls the function n times with joblib and nothing else, and when each began and ended, (n, 2)."""
    subset = whence.Subset(np.ones(len(TASKS)), TASKS)

    def side(n: int) -> np.ndarray:
        rows = Parallel(n_jobs=jobs)(delayed(function)(subset, seed) for seed in range(n))
        return np.array([[row["began"], row["ended"]] for row in rows])

    return side


def markdown(table: Table) -> str:
    rows = [" | ".join(row) for row in table]
    rows.insert(1, "|".join("---" for _ in table[0]))
    return "\n".join(f"| {row} |" for row in rows)


def shown(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def verdict(value: str, reached: bool, goal: str) -> str:
    return f"{value} ({'reached' if reached else 'MISSED'}: {goal})"


# ----------------------------------------------------------------------------------------------------------
# Sections


def overhead(quick: bool) -> str:
    """Rows of 0.1 s, journaled and synced, beside bare joblib."""
    rows: Table = [["workers", "whence, per row", "bare joblib, per row", "overhead (goal)", "start", "joblib's"]]
    for jobs in (1, 2):
        sides = measured(nap, jobs), bare(nap, jobs)
        (ours, start), (theirs, peer_start) = race(20 if quick else 50, 1 if quick else 5, *sides)
        more = ours / theirs - 1
        told = verdict(f"{more:+.1%}", more <= 0.05, "at most 5%")
        rows.append([str(jobs), shown(ours), shown(theirs), told, shown(start), shown(peer_start)])
    ((empty, _),) = race(200 if quick else 2000, 1 if quick else 3, measured(nothing, 1))
    note = f"A row that does nothing takes {shown(empty)} in one worker, to it and back and to the disk."
    also = "joblib keeps its workers from one call to the next (and with one worker calls the function in place)."
    return f"{markdown(rows)}\n\n{note} {also}"


def scaling(quick: bool) -> str:
    """One and two workers on work of one processor each."""
    sides = measured(busy, 1), measured(busy, 2), bare(busy, 2)
    (one, _), (two, _), (peer, _) = race(10 if quick else 20, 1 if quick else 15, *sides)
    rows: Table = [["workers", "per row", "speed-up (goal)"], ["1", shown(one), ""]]
    rows.append(["2", shown(two), verdict(f"{one / two:.2f} ×", one / two >= 1.8, "1.8 ×")])
    rows.append(["2, bare joblib", shown(peer), f"{one / peer:.2f} ×"])
    return markdown(rows)


def cluster(quick: bool) -> str:
    """Ray actors beside local processes."""
    if importlib.util.find_spec("ray") is None:
        return '**Skipped: Ray is not installed** (`pip install "whence[ray]"`).'
    import ray

    options = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    start = seconds_of(lambda: ray.init("local", **options))
    rows: Table = [["work", "local, per row", "Ray, per row", "Ray / local", "local start", "Ray start"]]
    for name, function, n in (("0.1 s", nap, 50), ("none", nothing, 2000)):
        sides = measured(function, 2), measured(function, 2, "ray")
        (local, begun), (remote, far) = race(n // 10 if quick else n, 1 if quick else 3, *sides)
        rows.append([name, shown(local), shown(remote), f"{remote / local:.2f} ×", shown(begun), shown(far)])
    ray.shutdown()
    return f"{markdown(rows)}\n\nTwo workers each. Starting the cluster itself took {shown(start)}."


def journal(quick: bool) -> str:
    """Many rows written, each batch synced, and read again; beside the same table written once, at the end."""
    seeds = 100 if quick else 1000
    subsets = np.eye(len(TASKS)).repeat(10, axis=0)
    with tempfile.TemporaryDirectory() as folder:
        path, csv = f"{folder}/run", f"{folder}/runs.csv"
        write = seconds_of(lambda: whence.measure(Instant(), subsets, seeds=seeds, path=path, progress=False))
        memory = seconds_of(lambda: whence.measure(Instant(), subsets, seeds=seeds, progress=False))
        read = seconds_of(lambda: whence.read_outcomes(path))
        resume = seconds_of(lambda: whence.measure(Instant(), subsets, seeds=seeds, path=path, progress=False))
        runs = whence.read_outcomes(path)
        once = seconds_of(lambda: runs.write(csv))
        again = seconds_of(lambda: whence.read_outcomes(csv, ["loss", "acc"]))
        size = (Path(path) / "journal.jsonl").stat().st_size
        same = runs.values.tobytes() == whence.read_outcomes(csv, ["loss", "acc"]).values.tobytes()
    n = len(runs)
    rows: Table = [
        [f"{n:,} rows, 2 targets", "seconds", "beside"],
        ["measured and journaled", shown(write), f"{shown(memory)} without a folder"],
        ["read", verdict(shown(read), read < 10, "seconds"), f"{shown(again)} as a CSV written once ({shown(once)})"],
        ["begun again with nothing left to do", shown(resume), ""],
    ]
    note = f"The journal has {size / n:.0f} bytes a row; {-(-n // 64):,} batches were each written and synced."
    return f"{markdown(rows)}\n\n{note} Both tables are {'equal to the bit' if same else 'NOT EQUAL'}."


SECTIONS = {
    "overhead": ("Overhead of a row of 0.1 s, beside bare joblib", overhead),
    "scaling": ("Two workers on work of 0.1 s of one processor", scaling),
    "ray": ("Ray beside local workers", cluster),
    "journal": ("The journal", journal),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--section", choices=SECTIONS)
    arguments = parser.parse_args()
    chosen = [arguments.section] if arguments.section else list(SECTIONS)
    before = os.getloadavg()[0]
    parts = []
    for name in chosen:
        title, section = SECTIONS[name]
        parts.append(f"## {title}\n\n{section(arguments.quick)}")
        Console().print(Markdown(parts[-1]))
    packages = ", ".join(f"{name} {version(name)}" for name in ("whence", "numpy", "joblib"))
    packages += f", ray {version('ray')}" if importlib.util.find_spec("ray") else ""
    head = (
        f"# What measuring costs\n\n`{COMMAND}`, {datetime.date.today():%d %B %Y}, on {platform.platform()}, "
        f"{cpu_count()} cores, one thread per worker; Python {platform.python_version()}, {packages}.\n\n"
        f"Load of the machine before and after: {before:.1f} and {os.getloadavg()[0]:.1f} (up to 2 of it is this "
        "benchmark). Seconds are of the clock, of the fastest of several runs."
    )
    if arguments.quick or arguments.section:
        return
    RESULTS.write_text("\n\n".join([head, *parts]) + "\n", encoding="utf-8")
    print(f"written to {RESULTS}", file=sys.stderr)


if __name__ == "__main__":
    main()
