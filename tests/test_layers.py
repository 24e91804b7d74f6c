"""The rooms of the package stand in one order: imports point downwards only, those within functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import whence

SOURCE = Path(whence.__file__).parent
# From top to bottom: a module imports from its own room and from those below it.
ROOMS = (
    "cli",
    "demo",
    "searching",
    "display",
    "datasets",
    "hf",
    "icl",
    "rl",
    "answers",
    "ladder",
    "baselines",
    "estimators",
    "gradients",
    "models",
    "surrogates",
    "evaluation",
    "measuring",
    "designs",
    "outcomes",
    "shown",
    "progress",
    "arrays",
    "errors",
)
# Notebooks ask a result itself for its HTML, so that results need one door up to where HTML is made.
DOOR = ("shown", "display")
HOMES = whence._HOME | whence._MODULES


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(text):
    """Rooms that a module imports from, anywhere in it; names taken from the package itself count as their homes."""
    tree = ast.parse(text)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("whence.") for alias in node.names if alias.name.startswith("whence.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "whence":
            names |= {HOMES.get(alias.name, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("whence."):
            names.add(node.module.removeprefix("whence."))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "whence":
            names.add(HOMES.get(node.attr, node.attr))
    return {name.split(".")[0] for name in names} & set(ROOMS)


def upwards(room, text):
    """Rooms above its own that a module imports from."""
    return {other for other in imported_rooms(text) if ROOMS.index(other) < ROOMS.index(room)} - (
        {DOOR[1]} if room == DOOR[0] else set()
    )


TOP = [SOURCE / "__init__.py", SOURCE / "__main__.py"]  # which name what is below them
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path not in TOP)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    assert upwards(room_of(path), path.read_text(encoding="utf-8")) == set()


def test_every_room_has_its_place():
    assert {room_of(path) for path in MODULES} <= set(ROOMS)


def test_nothing_imports_the_command_line():
    importers = {room_of(path) for path in MODULES if "cli" in imported_rooms(path.read_text(encoding="utf-8"))}
    assert importers == {"cli"}


@pytest.mark.parametrize(
    "text",
    [
        "from whence.display.layout import table",
        "import whence.display.layout",
        "from whence import report",
        "from whence import plots",
        "import whence\n\ndef f():\n    whence.report(1, 2)",
        "def f():\n    from whence.cli import app",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from whence.demo import run",
    ],
)
def test_an_import_that_points_upwards_is_seen(text):
    assert upwards("answers", text)
    assert not upwards("cli", text)


def test_the_one_door_leads_to_display_only():
    assert not upwards("shown", "from whence.display.notebook import html_of")
    assert upwards("shown", "from whence.answers.effects import Effects") == {"answers"}
