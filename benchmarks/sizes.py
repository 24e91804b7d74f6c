"""Very large tables through the command line: processor time and peak memory of each verb, or the refusing sentence.

    python benchmarks/sizes.py [--only NAME …]

Each line is a process of its own, with one thread; tables are random subsets with additive effects, a pair and noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import whence

# Runs, tasks, targets; and the verbs tried with them.
TABLES = {
    "a million runs": (1_000_000, 20, 1, ("fit", "select --size 5", "interactions", "report")),
    "two thousand tasks": (300, 2000, 1, ("fit", "select --size 50", "interactions", "report")),
    "five thousand targets": (200, 20, 5000, ("fit", "select --target outcome_7", "report")),
}
LONGEST = 1800


def table(n_runs: int, n_tasks: int, n_targets: int) -> whence.Outcomes:
    rng = np.random.default_rng(0)
    S = (rng.random((n_runs, n_tasks)) < 0.5).astype(np.float64)
    Y = S @ rng.normal(size=(n_tasks, n_targets)) + S[:, [0]] * S[:, [1]] + 0.3 * rng.normal(size=(n_runs, n_targets))
    return whence.Outcomes(S, Y)


def tried(verb: str, file: Path) -> str:
    """Return a line of the table: seconds, peak memory, what came of it."""
    name, *options = verb.split()
    more = ["-o", str(file.with_suffix(".html"))] if name == "report" else []
    code = (
        "import json, resource, sys\nfrom whence.cli import main\nsys.argv = ['whence', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]), file=sys.stderr)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, name, str(file), *options, *more],
            capture_output=True,
            text=True,
            timeout=LONGEST,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"over {LONGEST} s | | **did not end**"
    *said, used = done.stderr.strip().splitlines()
    seconds, memory = json.loads(used)
    refused = " ".join(line.strip() for line in said if "Warning" not in line)
    page = file.with_suffix(".html")
    words = f"refused: {refused}" if done.returncode else "answered"
    words += f", {page.stat().st_size / 1000:.0f} kB" if more and not done.returncode else ""
    return f"{seconds:.1f} s | {memory / 2**20:.2f} GiB | {words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(TABLES), choices=TABLES)
    print("| table | verb | processor time | peak memory | what came of it |\n|---|---|---|---|---|", flush=True)
    for name in parser.parse_args().only:
        *shape, verbs = TABLES[name]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "runs.npz"
            table(*shape).write(file)
            for verb in verbs:
                print(f"| {name} | `{verb}` | {tried(verb, file)} |", flush=True)


if __name__ == "__main__":
    main()
