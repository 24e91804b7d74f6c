"""A terminal for commands to run in, so that tests see what a person would."""

import os
import pty
import subprocess


def on_a_terminal(command, width, **variables):
    """Run a command in a terminal with colours; return its exit status and all that it wrote."""
    shown, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color", **variables}
    for variable in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(variable, None)
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        text = b""
        with os.fdopen(shown, "rb", buffering=0) as stream:
            while True:
                try:
                    part = stream.read(4096)
                except OSError:  # how Linux says that the other side is gone
                    break
                if not part:
                    break
                text += part
    return process.returncode, text.decode()
