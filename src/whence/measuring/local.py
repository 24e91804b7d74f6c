"""Workers that are processes of this machine."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

from whence.errors import InputError, brief
from whence.measuring.engine import Workers
from whence.measuring.outcome_fn import OutcomeFn, given
from whence.measuring.pool import Lost, Message, Pool, Worker
from whence.measuring.rows import Job

KEPT = 64 * 1024  # bytes of what an outcome function prints
PIECES = 16
GUARD = Path(__file__).with_name("guard.py").read_text(encoding="utf-8")
WORK = "from whence.measuring.worker import main; "
PATIENCE = 2.0  # seconds for a worker that was dismissed to end by itself
ENDING = 30.0  # seconds for the end of a worker that has closed its pipes to be known, also on a busy machine
THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


class LocalEngine(Pool):
    """Processes that each hold the outcome function, with a number of threads for numpy, torch and others.

    They are started fresh rather than forked, because a fork copies locks and CUDA handles in their current state. The
    function is sent once to each, by value if it was defined in a script or a notebook.
    """

    def __init__(self, outcome_fn: OutcomeFn, task_names: tuple[str, ...], workers: Workers) -> None:
        super().__init__(workers)
        if os.name != "posix":
            raise InputError(
                "The engine 'local' needs Linux or macOS. Measure with {engine}, or with Ray.", engine="inline"
            )
        self._packed = pack(outcome_fn, task_names)
        self._environment = os.environ | environment(workers.threads)

    def start(self) -> LocalWorker:
        return LocalWorker(self._packed, self._environment)

    def wait(self, workers: Sequence[LocalWorker], seconds: float) -> None:
        wait([handle for worker in workers for handle in worker.handles()], seconds)


def environment(threads: int) -> dict[str, str]:
    """Environment of a worker: its number of threads, and the same hash seed in all."""
    return {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), **dict.fromkeys(THREADS, str(threads))}


def pack(outcome_fn: OutcomeFn, task_names: tuple[str, ...]) -> bytes:
    """The outcome function and the task names, pickled."""
    from joblib import wrap_non_picklable_objects

    needed = given(outcome_fn), task_names
    try:
        return bytes(ForkingPickler.dumps(wrap_non_picklable_objects(needed, keep_wrapper=False)))
    except Exception as error:
        raise InputError(
            f"The outcome function cannot be sent to another process ({brief(error)}). Create what it needs inside the "
            "function, or measure with {engine}, in this process.",
            engine="inline",
        ) from error


class LocalWorker(Worker):
    """A process, the pipes to and from it, and the last of what it printed."""

    def __init__(self, packed: bytes, environment: dict[str, str]) -> None:
        incoming, jobs = os.pipe()
        replies, outgoing = os.pipe()
        lifeline, self._life = os.pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        theirs = (incoming, outgoing, lifeline)
        # Not a process of multiprocessing, which would import the user's script again.
        code = f"{GUARD}\nguard({lifeline}, {theirs[:2]})\nsys.path[:] = {sys.path!r}\n{WORK}main{theirs[:2]}"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=theirs,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us alone, and a signal to its group reaches all it has started
        )
        for handle in (*theirs, output):
            os.close(handle)
        self._jobs, self._replies = Connection(jobs, readable=False), Connection(replies, writable=False)
        self._printed = b""
        self._dismissed = -math.inf
        # A large function fills the pipe until it is read; other workers should not have to wait for that.
        self._sender = threading.Thread(target=self._send, args=(packed,), daemon=True)
        self._sender.start()

    def _send(self, packed: bytes) -> None:
        with suppress(OSError):  # it has died already, as `poll` will find
            self._jobs.send_bytes(packed)

    def handles(self) -> list[Connection | int]:
        """Handles that become readable when there is something to do."""
        return [handle for handle in (self._replies, self._output) if handle is not None]

    def begin(self, job: Job) -> bool:
        self._read_output()
        self._printed = b""
        try:
            self._jobs.send(job)
        except OSError:
            return False
        return True

    def poll(self) -> Message | None:
        self._read_output()
        gone = self._process.poll() is not None  # before the last look, since its reply may be on the way
        try:
            if self._replies.poll():
                message: Message = self._replies.recv()
                return message
        except (EOFError, OSError):
            gone = True
        except Exception:  # reading anything but a reply may raise anything
            return Lost("something other than its reply was written into its pipe")
        return Lost(self._ending()) if gone else None

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        code = self._process.returncode
        if code is None:
            return "its process closed its pipes"
        if code >= 0:
            return f"its process ended with exit status {code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process was ended by signal {-code}"

    def _read_output(self) -> None:
        """Read what was printed, and keep the end of it."""
        for _ in range(PIECES):  # not until the end: some functions never stop printing
            if self._output is None:
                return
            try:
                piece = os.read(self._output, KEPT)
            except BlockingIOError:
                return
            if not piece:
                os.close(self._output)
                self._output = None  # type: ignore[assignment]
                return
            self._printed = (self._printed + piece)[-KEPT:]

    def printed(self) -> str:
        self._read_output()
        text = self._printed.decode(errors="replace")
        return f"…{text}" if len(self._printed) == KEPT else text

    def dismiss(self) -> None:
        self._jobs.close()  # which it takes as its end
        self._dismissed = time.monotonic()

    def stop(self) -> None:
        if self._life is None:
            return
        while self._process.poll() is None and time.monotonic() < self._dismissed + PATIENCE:
            self._read_output()  # else it could block on its last output
            time.sleep(0.005)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._sender.join()  # which it does, now that nobody reads: its pipe must not be closed under it
        os.close(self._life)
        self._life = None  # type: ignore[assignment]
        if self._output is not None:
            os.close(self._output)
        self._jobs.close()
        self._replies.close()
