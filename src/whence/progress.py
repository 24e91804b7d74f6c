"""A progress bar that appears only where someone is watching, and only when the work takes more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
PATIENCE_SECONDS = 2.0
_showing = False


def track(items: Sequence[Item], what: str) -> Generator[Item]:
    """Yield the items, showing a bar on an interactive stderr once two seconds have passed.

    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    global _showing
    # One bar at a time: the outermost loop is the one to watch.
    if _showing or len(items) < 2 or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    _showing = True
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=len(items), visible=False)
            for item in items:
                yield item
                progress.update(task, advance=1, visible=time.monotonic() - began > PATIENCE_SECONDS)
    finally:
        _showing = False
