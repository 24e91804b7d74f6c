"""Timeouts that pass when a test says so, and not when the machine is busy."""

from __future__ import annotations

import time
from types import SimpleNamespace

from whence.measuring import pool


def overdue_once(monkeypatch, condition):
    """Set the clock of workers forward by an hour as soon as a condition holds, so that any row has taken too long."""
    ahead = []

    def monotonic():
        if not ahead and condition():
            ahead.append(3600.0)
        return time.monotonic() + sum(ahead)

    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=monotonic))
