"""What whence stands on: the lowest versions it declares are those that were tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_lowest_versions_are_those_of_the_constraints():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for name in ("excel", "parquet", "plots") for text in project["optional-dependencies"][name]]
    lowest = dict(text.split(">=") for text in [*project["dependencies"], *extras])
    lines = (ROOT / "tests" / "lowest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if re.fullmatch(r"[\w-]+==[\d.]+", line))
    assert tried.keys() == lowest.keys()
    for name, version in lowest.items():
        assert f"{tried[name]}.".startswith(f"{version}."), name
