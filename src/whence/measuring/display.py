"""Progress of a run while it is measured: a bar on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from whence.errors import counted
from whence.outcomes.ledger import Ledger, Result

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_LINE = 10.0  # seconds; later lines are further apart, by a twentieth of the time so far
MOST_VALUES = 3


class Display:
    """Progress of a run of ``n_rows`` on stderr: rows done and failed, speed, time left, and the latest values.

    ``progress`` is None for a bar if stderr is a terminal; True also announces the start, with ``by`` whom it is made,
    and prints plain lines elsewhere; False shows nothing.
    """

    def __init__(self, ledger: Ledger, n_rows: int, by: str = "", *, progress: bool | None = None) -> None:
        watched = sys.stderr.isatty() and progress is not False and n_rows > 0
        self._ledger, self._n_rows, self._count = ledger, n_rows, 0
        self._total = ledger.status.size
        self._before = self._total - n_rows
        self._talks = progress is True and n_rows > 0
        self._by = by
        self._bar = self._make_bar() if watched else None
        self._began = self._last = time.monotonic()

    def _make_bar(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20)]
        columns.append(TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)))
        bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        state = f"{self._before} of {self._total}"
        self._task = bar.add_task("Measuring", total=self._total, completed=self._before, state=state)
        return bar

    def __enter__(self) -> Display:
        if self._talks:
            before = f" ({self._before} of {self._total} are already measured)" if self._before else ""
            print(f"Measuring {counted(self._n_rows, 'row')}{before}{self._by}.", file=sys.stderr, flush=True)
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, settled: Sequence[Result]) -> None:
        """Show that these rows are finished."""
        self._count += len(settled)
        now = time.monotonic()
        elapsed = now - self._began
        if self._bar:
            self._bar.update(self._task, completed=self._before + self._count, state=self._state(elapsed, settled))
        elif self._talks and now - self._last > max(FIRST_LINE, elapsed / 20):
            self._last = now
            print(f"measured {self._state(elapsed, settled)}", file=sys.stderr, flush=True)

    def _state(self, elapsed: float, settled: Sequence[Result]) -> str:
        each = elapsed / self._count
        parts = [
            f"{self._before + self._count} of {self._total}",
            f"{self._ledger.failed} failed" if self._ledger.failed else "",
            f"{duration(each)} a row" if each > 1 else f"{1 / each:.3g} rows/s",
            f"{duration(each * (self._n_rows - self._count))} to go",
            latest(settled),
        ]
        return " · ".join(part for part in parts if part)


def latest(settled: Sequence[Result]) -> str:
    """Latest values, as text.

    >>> from whence.measuring.rows import Reply
    >>> latest([Result(None, Reply(("loss", "acc"), [0.51234, 0.5]))])
    'loss 0.5123, acc 0.5'
    """
    for _, reply in reversed(settled):
        if reply.values is not None:
            named = list(zip(reply.targets, reply.values, strict=True))
            more = [f"{len(named) - MOST_VALUES} more"] if len(named) > MOST_VALUES else []
            return ", ".join([*(f"{name} {value:.4g}" for name, value in named[:MOST_VALUES]), *more])
    return ""


def duration(seconds: float) -> str:
    """Length of time, in at most two units.

    >>> duration(0.25), duration(75), duration(7300), duration(200_000)
    ('0.25 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def summary(ledger: Ledger, seconds: float) -> str:
    """One line on how much of a run is measured, and how long it took."""
    total = ledger.status.size
    parts = [f"{ledger.done} of {counted(total, 'row')} measured"]
    if ledger.failed:
        parts.append(f"{ledger.failed} failed")
    return f"{', '.join(parts)}, in {duration(seconds)}."
