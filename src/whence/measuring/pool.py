"""A pool of workers, each with one row at a time: if a worker fails, its row is known.

The pools of the standard library and of joblib do not fit: when one of their processes dies, they give up on all
running rows without saying which one caused it, and a row that hangs cannot be stopped alone.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from whence.errors import InputError
from whence.measuring.engine import Engine, Workers
from whence.measuring.rows import Job, Reply, Result, as_queue

TICK = 0.5  # seconds within which a silent death is noticed
TOGETHER = 0.02  # seconds within which finished rows are handed on, and so written to disk, together
STARTS = 3  # how often a worker may die before its first row until the run is given up


class Ready(NamedTuple):
    """The worker has loaded the outcome function."""

    process: int


class Measured(NamedTuple):
    """Reply on a row, with the row and the process that it is from."""

    row: int
    replicate: int
    process: int
    reply: Reply


class Broken(NamedTuple):
    """The worker cannot load the outcome function."""

    reason: str


class Lost(NamedTuple):
    """The worker is gone."""

    reason: str
    report: str = ""


Message = Ready | Broken | Lost | Measured


class Worker(ABC):
    """Measures one row at a time, outside this process."""

    @abstractmethod
    def begin(self, job: Job) -> bool:
        """Send a row; False if the worker is gone."""

    @abstractmethod
    def poll(self) -> Message | None:
        """Its next message, without waiting."""

    def printed(self) -> str:
        """The last of what the outcome function printed since its row began, unless that comes with the reply."""
        return ""

    def dismiss(self) -> None:  # noqa: B027 - some have nothing to tidy up
        """Tell it that there is nothing left to do and that it can end."""

    @abstractmethod
    def stop(self) -> None:
        """End it with everything that it started: now, or soon after it was dismissed."""


class Pool(Engine):
    """Engine whose rows are measured by workers, which a subclass starts."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @abstractmethod
    def start(self) -> Worker:
        """Start a worker, without waiting until it is ready."""

    @abstractmethod
    def wait(self, workers: Sequence[Any], seconds: float) -> None:
        """Return once a worker has a message, or after this many seconds."""

    def results(self, todo: Sequence[Job]) -> Iterator[list[Result]]:
        return pooled(self, self._workers.count(), todo, self._workers.timeout)


class _Slot:
    """A place in the pool: its current worker, and its row."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.process: int | None = None  # which it is, once it is ready
        self.job: Job | None = None
        self.since = 0.0

    @property
    def ready(self) -> bool:
        """Whether the worker has loaded the outcome function."""
        return self.process is not None

    def answers(self, message: Measured) -> bool:
        """Whether a reply comes from this worker and is about its row."""
        now = self.job and (self.job.row, self.job.replicate, self.process)
        return now == (message.row, message.replicate, message.process)

    def give(self, job: Job) -> bool:
        """Give a row to the worker; False if it died while idle."""
        began = time.monotonic()
        if not self.worker.begin(job):
            return False
        self.job, self.since = job, began
        return True


def pooled(engine: Pool, n_workers: int, todo: Sequence[Job], timeout: float | None) -> Iterator[list[Result]]:
    """Results of the jobs, in lists of jobs that finished together; see `whence.measuring.engine.Engine`."""
    waiting = as_queue(todo)
    slots: list[_Slot] = []
    held: list[Result] = []
    handed_on, early_deaths = -TOGETHER, 0

    def end(slot: _Slot) -> None:
        """End a worker; `hand_out` starts another if there is work left."""
        slot.worker.stop()
        slots.remove(slot)

    def hand_out() -> None:
        """Give rows to idle workers, and start as many workers as there is work for."""
        for slot in list(slots):
            if waiting and slot.ready and slot.job is None:
                if slot.give(waiting[0]):
                    waiting.popleft()
                else:
                    end(slot)
        while len(slots) < min(n_workers, len(waiting) + sum(slot.job is not None for slot in slots)):
            slots.append(_Slot(engine.start()))

    try:
        hand_out()
        while waiting or held or any(slot.job for slot in slots):
            engine.wait([slot.worker for slot in slots], _pause(slots, held, handed_on, timeout))
            for slot in list(slots):
                message = slot.worker.poll()
                late = timeout is not None and slot.job is not None and time.monotonic() - slot.since > timeout
                if message is None and late:
                    message = Lost(f"it took longer than {timeout:g} s")
                if isinstance(message, Ready):
                    slot.process, early_deaths = message.process, 0
                elif isinstance(message, Broken):
                    raise InputError(
                        f"The outcome function cannot be loaded in another process ({message.reason}). Define it in a "
                        "file that can be imported, or measure with {engine}, in this process.",
                        engine="inline",
                    )
                elif isinstance(message, Lost) and not slot.ready:
                    early_deaths += 1
                    if early_deaths == STARTS:
                        raise InputError(
                            f"{STARTS} workers in a row ended before they had loaded the outcome function: "
                            f"{message.reason}. {slot.worker.printed()[-500:]}"
                        )
                    end(slot)
                elif isinstance(message, Lost):
                    held += _finish(slot, Reply(reason=message.reason, report=message.report))
                    end(slot)
                elif isinstance(message, Measured) and slot.answers(message):
                    held += _finish(slot, message.reply)
            hand_out()  # before results are handed on, so that no worker waits for the disk
            if held and time.monotonic() - handed_on >= TOGETHER:
                yield held
                held, handed_on = [], time.monotonic()
                hand_out()  # what was added meanwhile
        for slot in slots:
            if slot.ready:
                slot.worker.dismiss()
    finally:
        for slot in slots:
            slot.worker.stop()


def _finish(slot: _Slot, reply: Reply) -> list[Result]:
    """Result of the row of a slot, with what it printed; nothing if it had none."""
    job, seconds = slot.job, time.monotonic() - slot.since
    slot.job = None
    printed = slot.worker.printed() or reply.printed
    return [Result(job, reply._replace(seconds=reply.seconds or seconds, printed=printed))] if job else []


def _pause(slots: list[_Slot], held: list[Result], handed_on: float, timeout: float | None) -> float:
    """Seconds until there is something to do even if no worker sends a message."""
    now = time.monotonic()
    moments = [now + TICK]
    if held:
        moments.append(handed_on + TOGETHER)
    if timeout is not None:
        moments += [slot.since + timeout for slot in slots if slot.job]
    return max(0.0, min(moments) - now)
