"""The progress bar changes nothing about the work, and shows only where someone is watching and waiting."""

from __future__ import annotations

import io
import sys

import pytest

import whence.progress as progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("watching", [True, False])
@pytest.mark.parametrize("items", [[], [1], ["a", "b", "c"]])
def test_all_items_come_in_order(monkeypatch, watching, items):
    monkeypatch.setattr(sys, "stderr", Terminal() if watching else io.StringIO())
    assert list(progress.track(items, "Working")) == items


@pytest.mark.parametrize(
    ("watching", "patience", "shown"), [(True, -1.0, True), (True, 60.0, False), (False, -1.0, False)]
)
def test_the_bar_shows_to_who_watches_and_waits(monkeypatch, capsys, watching, patience, shown):
    stream = Terminal() if watching else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
    list(progress.track(range(3), "Working hard"))
    assert ("Working hard" in stream.getvalue()) is shown
    assert capsys.readouterr().out == ""


def test_work_that_fails_is_not_hidden(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError):
        sum(1 / item for item in progress.track([1, 0], "Dividing"))
