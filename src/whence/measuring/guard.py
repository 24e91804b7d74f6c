"""The guard of a worker: a process that ends it, and all it has started, once the process that started it has died.

A thread of the worker could not do this: compiled code that holds the interpreter lock would block it. A worker runs
the text of this file before it imports anything else, so the process that stays behind as the guard is small and has a
single thread.
"""

import os
import signal
import sys
import threading


def guard(lifeline: int, pipes: tuple[int, int]) -> None:
    """Continue as the worker in a new process; this process waits until it or the lifeline ends."""
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        return
    for handle in (0, 1, 2, *pipes):  # only the worker may hold these: they must close when it ends
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
