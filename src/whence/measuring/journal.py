"""Writing the run folder (for its format see `whence.outcomes.runs`): every finished row on disk at once.

One process at a time: the kernel releases the lock of a folder when its process ends, in whatever way, so that a crash
leaves nothing to clean up.
"""

from __future__ import annotations

import datetime
import os
import platform
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from whence.errors import DataWarning, InputError, safe_text
from whence.measuring.rows import LONGEST_REPORT, Job, Reply, Result
from whence.outcomes.checks import as_directions
from whence.outcomes.ledger import DONE, Ledger, returned, settled
from whence.outcomes.plan import VARIES, Plan
from whence.outcomes.runs import FAILURES, PLAN, ROWS, as_document, checksum_of, is_run, read_ledger, replay
from whence.outcomes.writing import (
    PARTIAL,
    as_line,
    open_to_append,
    read_document,
    refuse_occupied,
    sync_folder,
    why,
    write_document,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class Lock:
    """Lock on a folder, held until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._file = open_to_append(folder / LOCK)
        try:
            self._take()
        except BaseException:
            self.close()
            raise
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def _take(self) -> None:
        try:
            if fcntl is None:
                raise OSError("no fcntl")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._file, 200).decode(errors="replace").strip() or "it did not say which"
            raise InputError(
                f"another process is measuring here ({holder}). Wait for it, stop it, or use another folder."
            ) from error
        except OSError as error:
            warnings.warn(
                f"This file system has no locks ({error}): make sure that nothing else measures in this folder.",
                DataWarning,
                stacklevel=4,
            )

    def close(self) -> None:
        """Let others in."""
        os.close(self._file)


class Books:
    """Where results are recorded: the ledger in memory, and on disk in a subclass."""

    def __init__(self, plan: Plan) -> None:
        self.ledger = Ledger(plan)

    def book(self, results: Sequence[Result]) -> list[Result]:
        """Record results, and return them as recorded; raise if no row could ever fit a table."""
        first = not self.ledger.targets
        found = [settled(result, self.ledger.plan) for result in results]
        self.keep(found)
        self.ledger.book(found)
        if first:
            self._check_names(results, found)
        return found

    def extend(self, plan: Plan) -> None:
        """Continue with a plan that has more subsets."""
        self.ledger.extend(plan)

    def keep(self, results: Sequence[Result]) -> None:
        """Make results durable."""

    def forget_directions(self) -> None:
        """Drop directions of targets that do not exist; the rows are kept, and the directions can be corrected."""

    def finished(self, state: dict[str, str]) -> None:
        """Note the state in memory that outcomes depend on, after rows were measured."""

    def _check_names(self, results: Sequence[Result], found: Sequence[Result]) -> None:
        """Refuse impossible directions and names after the first row, and not after all rows have been trained."""
        if self.ledger.targets:
            try:
                as_directions(self.ledger.plan.maximize, self.ledger.targets)
            except InputError:
                self.forget_directions()
                raise
        for (_, came), (_, kept) in zip(results, found, strict=True):
            if came.values is not None and kept.values is None and np.isfinite(came.values).all():
                raise InputError(kept.reason)


class Journal(Books):
    """A run folder that is being written to; made by `open_journal`.

    The plan is that of a new run, or one that extends the plan in the folder. With ``accept``, the run is resumed
    although the function or its data have changed.
    """

    def __init__(self, folder: Path, plan: Plan, *, accept: bool = False) -> None:
        self.folder = folder
        if is_run(folder):
            before = read_ledger(folder)
            plan = before.plan.continued(plan, before.targets, before.done, accept=accept)
        else:
            refuse_occupied(folder, lambda name: name in (ROWS, FAILURES), "run")
        super().__init__(plan)
        self._end = replay(self.ledger, folder)
        self._named: set[tuple[str, ...]] = set()
        for partial in folder.glob(f"{PARTIAL}*"):  # left by a run that was killed
            partial.unlink(missing_ok=True)
        _write_plan(folder, plan)
        self._failures = folder / FAILURES
        if self._failures.is_symlink():
            raise InputError(f"'{FAILURES}' is a symbolic link, which is not followed. Delete it.")
        self._failures.mkdir(exist_ok=True)
        self._file = open_to_append(folder / ROWS)
        try:
            os.ftruncate(self._file, self._end)
            if self._end and os.pread(self._file, 1, self._end - 1) != b"\n":
                self._append(b"\n")
            sync_folder(folder)
        except BaseException:
            self.close()
            raise

    def book(self, results: Sequence[Result]) -> list[Result]:
        with _in_words(self.folder):
            targets = self.ledger.targets
            found = super().book(results)
            self._tidy_reports(found, all_of_them=bool(targets) and targets != self.ledger.targets)
        return found

    def keep(self, results: Sequence[Result]) -> None:
        lines = []
        for job, reply in results:
            record: dict[str, object] = {"row": job.row, "replicate": job.replicate}
            if reply.values is None:
                record["failed"] = reply.reason
                self._write_report(job, reply)
            else:
                if reply.targets not in self._named:
                    lines += [as_line({"targets": reply.targets})] * 2  # so that no damage to one line loses them
                    self._named.add(reply.targets)
                record |= {"of": checksum_of(reply.targets), "values": reply.values}
            lines.append(as_line(record | {"seconds": round(reply.seconds, 6)}))
        self._append(b"".join(lines))

    def extend(self, plan: Plan) -> None:
        with _in_words(self.folder):
            _write_plan(self.folder, plan)
        super().extend(plan)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def finished(self, state: dict[str, str]) -> None:
        """Mark what measuring itself changed as varying: it must not prevent the run from being resumed."""
        plan = self.ledger.plan
        varies = {name: VARIES for name, value in state.items() if plan.fingerprint.get(name) != value}
        if varies and is_run(self.folder):
            with _in_words(self.folder):
                _write_plan(self.folder, replace(plan, fingerprint=plan.fingerprint | varies))

    def forget_directions(self) -> None:
        _write_plan(self.folder, replace(self.ledger.plan, maximize=()))

    def _tidy_reports(self, results: Sequence[Result], *, all_of_them: bool) -> None:
        """Write reports of rows that returned unusable values, and delete reports of rows that have values now."""
        for job, reply in results:
            if reply.values is not None:
                self._report(job.row, job.replicate).unlink(missing_ok=True)
                if reason := self.ledger.reasons.get((job.row, job.replicate)):
                    told = f"It returned:\n{returned(reply)}\n"
                    self._write_report(job, reply._replace(reason=reason, report=told))
        if all_of_them:  # other targets than before: rows were judged again
            for replicate, row in np.argwhere(self.ledger.status == DONE).tolist():
                self._report(row, replicate).unlink(missing_ok=True)

    def _report(self, row: int, replicate: int) -> Path:
        return self._failures / f"row-{row}-replicate-{replicate}.txt"

    def _write_report(self, job: Job, reply: Reply) -> None:
        path = self._report(job.row, job.replicate)
        path.unlink(missing_ok=True)  # and so not through a link
        with open(path, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_report(self.ledger.plan, job, reply))

    def _append(self, data: bytes) -> None:
        """Append to the file and wait until it is on disk; undo the append if the disk cannot take it.

        Lines that were written before an interrupt stay: they may have been read, and checksums reveal a partial line.
        """
        self._check_place()
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

    def _check_place(self) -> None:
        """Refuse to append to a file that was deleted or replaced."""
        ours = os.fstat(self._file)
        try:
            found = os.lstat(self.folder / ROWS)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino) or not is_run(self.folder):
            raise InputError(
                f"'{ROWS}' or '{PLAN}' was deleted or replaced while rows were measured, so results cannot be kept"
                " there. Restore the folder and run the same again, or use another one."
            )


@contextmanager
def open_journal(folder: Path, plan: Plan, *, accept: bool = False) -> Iterator[Journal]:
    """Open the journal of a new or an earlier run, and lock it."""
    with ExitStack() as stack:
        with _in_words(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(closing(Lock(folder)))
            journal = stack.enter_context(closing(Journal(folder, plan, accept=accept)))
        yield journal


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Name the folder in errors that the user can fix."""
    try:
        yield
    except InputError as error:
        raise (error if str(error).startswith(f"{folder}") else error.at(folder)) from error
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({why(error)}). Finished rows are kept: fix this, and run the same again."
        ) from error


def _write_plan(folder: Path, plan: Plan) -> None:
    """Write run.json, whole or not at all; the date on which the run began is kept."""
    from whence import __version__

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    begun = read_document(folder / PLAN).get("begun", now) if is_run(folder) else now
    versions = {"whence": __version__, "python": platform.python_version(), "numpy": np.__version__}
    write_document(folder / PLAN, as_document(plan) | {"versions": versions, "begun": begun})


def _report(plan: Plan, job: Job, reply: Reply) -> str:
    inside = [name for name, weight in zip(plan.task_names, job.weights, strict=True) if weight]
    printed = f"\nThe last of what it printed:\n{reply.printed}" if reply.printed else ""
    about = f"row {job.row}, replicate {job.replicate}, seed {job.seed}, after {reply.seconds:.3g} s"
    body = safe_text(f"{reply.report}{printed}", 2 * LONGEST_REPORT)
    return f"{reply.reason}\n\n{about}\ntasks: {', '.join(inside) or 'none'}\n\n{body}"
