"""Files of recorded runs, their index, and how they are read: whole and unchanged, or not at all."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from whence.errors import InputError, did_you_mean
from whence.outcomes import Outcomes, read_outcomes
from whence.outcomes.writing import whole_file

FOLDER = Path(__file__).parent / "runs"


@dataclass(frozen=True)
class Recorded:
    """What is known of a data set: what it holds, how it was made, and the digest of its file."""

    title: str
    command: str
    machine: str
    date: str
    runs: int
    tasks: int
    targets: int
    sha256: str


def index() -> dict[str, Recorded]:
    """Return the description of every data set, by name."""
    text = (FOLDER / "index.json").read_text(encoding="utf-8")
    return {name: Recorded(**fields) for name, fields in json.loads(text).items()}


def available() -> pd.DataFrame:
    """Return the data sets, a row for each.

    Examples
    --------
    >>> available().loc["digits", ["runs", "tasks", "targets"]].to_dict()
    {'runs': 1024, 'tasks': 10, 'targets': 1}
    """
    shown = ["runs", "tasks", "targets", "title", "command", "machine", "date"]
    return pd.DataFrame({name: asdict(found) for name, found in index().items()}).T[shown]


def load(name: str) -> Outcomes:
    """Return the runs of a data set.

    Examples
    --------
    >>> load("digits")
    Outcomes: 1024 runs × 10 tasks → accuracy (higher is better); 1024 distinct subsets
    """
    known = index()
    if name not in known:
        raise InputError(f"There is no data set '{name}'. {did_you_mean(name, known)}")
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        made = f"Make it with: {known[name].command}, or reinstall the package whence."
        raise InputError(f"The data set '{name}' is not installed. {made}")
    if _digest(path) != known[name].sha256:
        raise InputError(f"{path}: the file does not match its checksum. Reinstall whence, or record it again.")
    return read_outcomes(path)


def record(
    name: str, runs: Outcomes, title: str, command: str, *, machine: str | None = None, date: str | None = None
) -> None:
    """Save runs as a data set: values in single precision, how they were made, and the digest of the file.

    ``title`` describes them in a sentence, and ``command`` makes them again. Machine and date are this machine and
    today by default.
    """
    FOLDER.mkdir(exist_ok=True)
    machine, date = machine or platform.machine(), date or time.strftime("%Y-%m-%d")
    provenance = {"source": title, "command": command, "machine": machine, "date": date}
    kept = replace(runs, values=runs.values.astype(np.float32).astype(np.float64), provenance=provenance)
    path = FOLDER / f"{name}.npz"
    kept.write(path)
    found = Recorded(title, command, machine, date, kept.n_runs, kept.n_tasks, kept.n_targets, _digest(path))
    known = index() if (FOLDER / "index.json").is_file() else {}
    everything = {each: asdict(fields) for each, fields in sorted({**known, name: found}.items())}
    with whole_file(FOLDER / "index.json") as file:  # some lines for each, so that additions by several people merge
        file.write(json.dumps(everything, indent=1, ensure_ascii=False).encode() + b"\n")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
