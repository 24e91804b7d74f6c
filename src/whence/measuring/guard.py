"""The guard of a worker: a process that ends it, and all it has started, once the process that started it has died.

A thread of the worker could not: compiled code that holds the interpreter's lock keeps it from running. The text of
this file is run by the program of a worker before anything else is imported, so that the copy that stays behind as the
guard is small and has a single thread.
"""

import os
import signal
import sys
import threading


def guard(lifeline: int, pipes: tuple[int, int]) -> None:
    """Go on as the worker in a new process; this one waits for its end, or for that of the lifeline."""
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        return
    for handle in (0, 1, 2, *pipes):  # the worker's alone: their end has to be its end
        os.close(handle)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _die_of(-code)
    os._exit(code)


def _end_with(lifeline: int) -> None:
    """Wait for the end of a pipe that nobody writes to, and end the whole group."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _die_of(number: int) -> None:
    """End as the worker did, but without a second core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)
