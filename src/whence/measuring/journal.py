r"""The run folder: what was planned, every finished row the moment it is there, and reports of those that failed.

    run.json        the plan, written whole before the first row
    journal.jsonl   a line per finished row, only ever added to, each with a checksum of the rest of the line
    failures/       a text per failed row: reason, traceback, and the last of what it printed
    .lock           who is measuring here

Lines of the journal are ``{"crc": …, "targets": […]}`` once, and then ``{"crc": …, "row": i, "replicate": r, "values":
[…]}`` or ``{…, "failed": reason}``. The last line on a row counts, but nothing takes values back. Python writes floats
with the digits that read back to the same bits. A line that was cut short, or whose checksum is wrong, is as if it had
never been written: its row is measured again.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import DataWarning, InputError, counted
from whence.measuring.ledger import Ledger
from whence.measuring.lock import Lock
from whence.measuring.plan import Plan
from whence.measuring.rows import Job, Reply, Result

PLAN, ROWS, FAILURES = "run.json", "journal.jsonl", "failures"
FORMAT = "whence run 1"
_OPENING = b'{"crc":"%08x",'
_LENGTH = len(_OPENING % 0)


# ---- lines -----------------------------------------------------------------------------------------------


def as_line(record: Mapping[str, Any]) -> bytes:
    r"""Line of the journal, with its checksum.

    Examples
    --------
    >>> as_line({"row": 3})
    b'{"crc":"1f13039d","row":3}\n'
    """
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return _OPENING % zlib.crc32(body) + body[1:] + b"\n"


def from_line(line: bytes) -> dict[str, Any] | None:
    """Record of a line, or None where the line is not whole.

    Examples
    --------
    >>> from_line(b'{"crc":"1f13039d","row":3}'), from_line(b'{"crc":"1f13039d","row":4}')
    ({'crc': '1f13039d', 'row': 3}, None)
    """
    if line[:_LENGTH] != _OPENING % zlib.crc32(b"{" + line[_LENGTH:]):
        return None
    found: dict[str, Any] = json.loads(line)
    return found


# ---- reading ---------------------------------------------------------------------------------------------


def is_run(folder: Path) -> bool:
    """Whether a folder is one that `whence.measure` made."""
    return (folder / PLAN).is_file()


def read_ledger(folder: Path) -> Ledger:
    """What a run folder holds, also while it is being written to."""
    ledger = Ledger(_read_plan(folder))
    _replay(ledger, folder)
    return ledger


def _read_plan(folder: Path) -> Plan:
    try:
        found = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise InputError(f"{PLAN} is of the format '{found['format']}', and this version reads '{FORMAT}'.")
        rows = found["subsets"]
        binary = bool(rows) and isinstance(rows[0], str)
        subsets = np.frombuffer("".join(rows).encode(), np.uint8) - ord("0") if binary else np.array(rows)
        fields = ("outcome_fn", "design", "seed", "seeds", "maximize", "provenance")
        return Plan(
            subsets=subsets.astype(np.float64).reshape(len(rows), -1),
            task_names=tuple(found["task_names"]),
            **{name: found[name] for name in fields},
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{PLAN} is damaged ({type(error).__name__}: {error}).") from error


def _replay(ledger: Ledger, folder: Path) -> int:
    """Book what the journal says, and return how many of its bytes to keep: all but a last line cut short."""
    try:
        text = (folder / ROWS).read_bytes()
    except FileNotFoundError:
        return 0
    *lines, tail = text.split(b"\n")
    damaged = 0
    for line in lines:
        damaged += not _book(ledger, from_line(line))
    if damaged:
        rows = f"{counted(damaged, 'line')} of {folder / ROWS}"
        warnings.warn(f"{rows} cannot be read; these rows count as not measured.", DataWarning, stacklevel=4)
    whole = bool(tail) and _book(ledger, from_line(tail))  # all there but for the end of the line
    return len(text) - (0 if whole else len(tail))


def _book(ledger: Ledger, record: dict[str, Any] | None) -> bool:
    if record is None:
        return False
    if "targets" in record:
        if not ledger.targets:
            ledger.fix_targets(record["targets"])
        return True
    at = record["replicate"], record["row"]
    if at[0] >= ledger.plan.shape[0] or at[1] >= ledger.plan.shape[1]:
        return True  # the run was extended while it was being read
    if "failed" in record:
        ledger.fail(*at, record["failed"])
        return True
    if len(record["values"]) != len(ledger.targets):
        return False  # the line that names the targets is lost
    ledger.finish(*at, record["values"])
    return True


# ---- writing ---------------------------------------------------------------------------------------------


class Journal:
    """A run folder being written to, and its ledger. Made by `open_journal`.

    Parameters
    ----------
    folder : Path
    plan : Plan
        Of a new run, or one that the plan in the folder can go on with.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        if is_run(folder):
            _read_plan(folder).refuse_other(plan)
        elif others := sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".")):
            raise InputError(
                f"this folder holds other things ('{others[0]}') and no run. Use a new or an empty folder."
            )
        self.ledger = Ledger(plan)
        self._end = _replay(self.ledger, folder)
        self._named = bool(self.ledger.targets)
        _write_plan(folder, plan)
        (folder / FAILURES).mkdir(exist_ok=True)
        self._file = os.open(folder / ROWS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.ftruncate(self._file, self._end)
            if self._end and os.pread(self._file, 1, self._end - 1) != b"\n":
                self._append(b"\n")
            _sync_folder(folder)
        except BaseException:
            self.close()
            raise

    def book(self, results: Sequence[Result]) -> list[Result]:
        """Make results durable, then book them; see `Ledger.book`."""
        settled = [self.ledger.settle(result) for result in results]
        with _in_words(self.folder):
            self._write(settled)
        return self.ledger.book(settled)

    def _write(self, settled: Sequence[Result]) -> None:
        lines = []
        if self.ledger.targets and not self._named:
            lines.append(as_line({"targets": self.ledger.targets}))
        for job, reply in settled:
            record: dict[str, Any] = {"row": job.row, "replicate": job.replicate}
            if reply.values is None:
                self._report(job.row, job.replicate).write_text(_report(self.ledger.plan, job, reply), "utf-8")
                record["failed"] = reply.reason
            else:
                record["values"] = reply.values
            lines.append(as_line(record | {"seconds": round(reply.seconds, 6)}))
        self._append(b"".join(lines))
        self._named = bool(self.ledger.targets)
        for job, reply in settled:
            if reply.values is not None and (job.row, job.replicate) in self.ledger.reasons:
                self._report(job.row, job.replicate).unlink(missing_ok=True)

    def _report(self, row: int, replicate: int) -> Path:
        return self.folder / FAILURES / f"row-{row}-replicate-{replicate}.txt"

    def _append(self, data: bytes) -> None:
        """Add to the file and wait until it is on disk; what the disk cannot take is taken back.

        Lines that an interrupt finds written stay: they may have been read, and one cut short is seen by its checksum.
        """
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@contextmanager
def open_journal(folder: Path, plan: Plan) -> Iterator[Journal]:
    """Open the journal of a new or an earlier run, which nobody else may write to meanwhile."""
    with ExitStack() as stack:
        with _in_words(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(closing(Lock(folder)))
            journal = stack.enter_context(closing(Journal(folder, plan)))
        yield journal


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Say where it was, of what the user can put right."""
    try:
        yield
    except InputError as error:
        raise error.at(folder) from error
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror or error}). Every finished row that is in it is kept: put "
            "this right and run the same again."
        ) from error


def _write_plan(folder: Path, plan: Plan) -> None:
    """Write run.json, whole or not at all; an earlier one keeps the day on which it was begun."""
    binary = bool(np.isin(plan.subsets, (0.0, 1.0)).all())
    rows = plan.subsets.astype(np.uint8) + ord("0") if binary else plan.subsets
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    begun = json.loads((folder / PLAN).read_text(encoding="utf-8")).get("begun", now) if is_run(folder) else now
    document = {
        "format": FORMAT,
        "outcome_fn": plan.outcome_fn,
        "design": plan.design,
        "n": len(plan.subsets),
        "seed": plan.seed,
        "seeds": plan.seeds,
        "task_names": plan.task_names,
        "maximize": plan.maximize,
        "provenance": plan.provenance,
        "versions": {"whence": version("whence"), "python": platform.python_version(), "numpy": np.__version__},
        "begun": begun,
        "subsets": [row.tobytes().decode() for row in rows] if binary else rows.tolist(),
    }
    partial = folder / f".partial-{os.getpid()}-{PLAN}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / PLAN)
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the names of new files durable, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _report(plan: Plan, job: Job, reply: Reply) -> str:
    inside = [name for name, weight in zip(plan.task_names, job.weights, strict=True) if weight]
    printed = f"\nThe last of what it printed:\n{reply.printed}" if reply.printed else ""
    return (
        f"{reply.reason}\n\nrow {job.row}, replicate {job.replicate}, seed {job.seed}, after {reply.seconds:.3g} s\n"
        f"tasks: {', '.join(inside) or 'none'}\n\n{reply.report}{printed}"
    )
