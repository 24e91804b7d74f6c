"""One process at a time in a run folder.

The kernel releases the lock when the process ends, in whatever way, so a crash leaves nothing to clean up.
"""

from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path

from whence.errors import DataWarning, InputError
from whence.outcomes.writing import open_to_append

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class Lock:
    """Lock on a folder, held until it is closed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lock = Lock(Path(folder))
    ...     try:
    ...         Lock(Path(folder))
    ...     except InputError as error:
    ...         print(str(error).startswith("another process is measuring here (process "))
    ...     lock.close()
    True
    """

    def __init__(self, folder: Path) -> None:
        self._file = open_to_append(folder / NAME)
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
