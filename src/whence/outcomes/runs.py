r"""The run folder that `whence.measure` writes, and reading it, also while it is being written to.

    run.json        the plan, written whole before the first row, with a checksum
    journal.jsonl   a line per finished row, only ever added to, each with a checksum of the rest of the line
    failures/       a text per failed row: reason, traceback, and the last of what it printed
    .lock           who is measuring here

Lines of the journal are ``{"crc": …, "targets": […]}``, twice, and then ``{"crc": …, "row": i, "replicate": r, "of": …,
"values": […]}``, where ``of`` is the checksum of the targets, or ``{…, "failed": reason}``. The last line on a row
counts, but nothing takes values back. Python writes floats with the digits that read back to the same bits. A line that
was cut short, or whose checksum is wrong, is as if it had never been written: its row is measured again.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import DataWarning, InputError, counted
from whence.outcomes.ledger import Ledger
from whence.outcomes.plan import Plan
from whence.outcomes.writing import from_line, read_document

PLAN, ROWS, FAILURES = "run.json", "journal.jsonl", "failures"
FORMAT = "whence run 2"
_FIELDS: dict[str, Any] = {
    "outcome_fn": str, "design": str, "seed": int, "seeds": int, "maximize": (bool, list), "provenance": dict,
    "fingerprint": dict,
}  # fmt: skip
_MOST_SEEDS = 10**6


def is_run(folder: Path) -> bool:
    """Whether a folder is one that `whence.measure` made."""
    return (folder / PLAN).is_file()


def read_ledger(folder: Path) -> Ledger:
    """What a run folder holds, also while it is being written to."""
    ledger = Ledger(read_plan(folder))
    replay(ledger, folder)
    return ledger


def as_document(plan: Plan) -> dict[str, Any]:
    """Plan as it is in run.json; subsets of 0 and 1 are texts."""
    binary = bool(np.isin(plan.subsets, (0.0, 1.0)).all())
    rows = plan.subsets.astype(np.uint8) + ord("0") if binary else plan.subsets
    return {
        "format": FORMAT,
        **{name: getattr(plan, name) for name in _FIELDS},
        "changes": plan.changes,
        "n": len(plan.subsets),
        "task_names": plan.task_names,
        "subsets": [row.tobytes().decode() for row in rows] if binary else rows.tolist(),
    }


def read_plan(folder: Path) -> Plan:
    """Plan of a run folder."""
    found = read_document(folder / PLAN)
    if found.get("format") != FORMAT:
        raise InputError(
            f"{folder / PLAN} is of the format '{found.get('format')}', and this version reads '{FORMAT}'."
        )
    try:
        _check_fields(found)
        rows = found["subsets"]
        binary = bool(rows) and isinstance(rows[0], str)
        subsets = np.frombuffer("".join(rows).encode(), np.uint8) - ord("0") if binary else np.array(rows)
        return Plan(
            subsets=subsets.astype(np.float64).reshape(len(rows), len(found["task_names"])),
            task_names=tuple(found["task_names"]),
            changes=tuple(map(str, found["changes"])),
            **{name: found[name] for name in _FIELDS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / PLAN} is damaged ({type(error).__name__}: {error}).") from error


def _check_fields(found: dict[str, Any]) -> None:
    """Refuse fields that cannot be of a plan: a checksum does not keep anybody from writing what they like."""
    for name, kind in _FIELDS.items():
        if not isinstance(found[name], kind) or (kind is int and isinstance(found[name], bool)):
            raise TypeError(f"'{name}' is a {type(found[name]).__name__}")
    if found["seed"] < 0 or not 1 <= found["seeds"] <= _MOST_SEEDS:
        raise ValueError(f"seed {found['seed']}, seeds {found['seeds']}")


def replay(ledger: Ledger, folder: Path) -> int:
    """Book what the journal says, and return how many of its bytes to keep: all but a last line cut short."""
    try:
        text = (folder / ROWS).read_bytes()
    except FileNotFoundError:
        return 0
    *lines, tail = text.split(b"\n")
    records = [from_line(line) for line in lines]
    last = from_line(tail) if tail else None  # all there but for the end of the line
    known = {}
    for record in [*records, last]:
        if record is not None and isinstance(record.get("targets"), list):
            targets = tuple(record["targets"])
            known[checksum_of(targets)] = targets
    if damaged := sum(not _book(ledger, record, known) for record in records):
        rows = f"{counted(damaged, 'line')} of {folder / ROWS}"
        warnings.warn(f"{rows} cannot be read; these rows count as not measured.", DataWarning, stacklevel=4)
    whole = bool(tail) and _book(ledger, last, known)
    return len(text) - (0 if whole else len(tail))


def _book(ledger: Ledger, record: dict[str, Any] | None, known: dict[str, tuple[str, ...]]) -> bool:
    if record is None:
        return False
    if "targets" in record:
        return True
    at: tuple[Any, Any] = record.get("replicate"), record.get("row")
    if not all(type(place) is int and place >= 0 for place in at):
        return False
    if at[0] >= ledger.plan.shape[0] or at[1] >= ledger.plan.shape[1]:
        return True  # the run was extended while it was being read
    if "failed" in record:
        ledger.fail(*at, str(record["failed"]))
        return True
    targets, values = known.get(str(record.get("of"))), record.get("values", [])
    if targets is None or not isinstance(values, list) or len(values) != len(targets):
        return False  # every line that names its targets is lost, or these are not of them
    if not all(isinstance(value, int | float) for value in values):
        return False
    ledger.finish(*at, targets, values)
    return True


def checksum_of(targets: Iterable[str]) -> str:
    """Checksum of the names of targets.

    >>> checksum_of(["loss"])
    'cc4d85e3'
    """
    return f"{zlib.crc32(json.dumps(list(targets)).encode()):08x}"
