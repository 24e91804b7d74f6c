"""What agents reach in a task by how many others they learn, and without demonstrations: lines of mt10_results.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scoring import by_target, interval

WAYS = {"alone": 1, "with six others": 7, "with all nine": 10}  # tasks of an agent
OUTCOMES = {"success": 2, "return": 0}  # and the digits they are shown with


def companions(folder: Path) -> Iterator[str]:
    """Lines of the page: what is reached in a target by the number of tasks, with as many steps in the target."""
    found = played(folder)
    ended, sizes = found["shown"] & done(found), found["subsets"].sum(1)
    ways = {way: ended & (sizes == n) for way, n in WAYS.items()}
    tables = {way: {key: by_task(found, key, rows) for key in OUTCOMES} for way, rows in ways.items()}
    base = tables["with six others"]
    yield "\n| the target … | agents | success | more than with six others | return | more than with six others |"
    yield "|" + "---|" * 6
    for way, own in tables.items():
        cells = [str(ways[way].sum())]
        for key, digits in OUTCOMES.items():
            cells += [f"{own[key].mean():.{digits}f}", "" if own is base else interval(own[key] - base[key], digits)]
        yield f"| {way} | {' | '.join(cells)} |"
    for key, digits in OUTCOMES.items():
        shown = {way: own[key] for way, own in tables.items()}
        yield from by_target(f"{key} of the target …", found["task_names"].tolist(), shown, digits)


def plain(folder: Path, demonstrated: Path) -> Iterator[str]:
    """Lines of the page: agents without demonstrations, beside those of the same subsets with some."""
    found, others = played(folder), played(demonstrated)
    rows = ~found["shown"] & done(found)
    same = (others["subsets"][:, None] == found["subsets"][rows]).all(2).any(1) & others["shown"] & done(others)
    for key, digits in OUTCOMES.items():
        shown = {"plain SAC": by_task(found, key, rows), "with demonstrations": by_task(others, key, same)}
        yield from by_target(f"{key} of tasks in the subset", found["task_names"].tolist(), shown, digits)


def played(folder: Path) -> dict[str, np.ndarray]:
    """What sac_subsets.py wrote there, with the means of episodes."""
    with np.load(folder / "sac_truth.npz") as file:
        found = dict(file)
    return found | {"return": found["returns"].mean(2), "success": found["success"].mean(2)}


def done(found: dict[str, np.ndarray]) -> np.ndarray:
    """Which agents made all their steps, (m,)."""
    each = found["steps"] / found["subsets"].sum(1)
    return np.asarray(each == each.max())


def by_task(found: dict[str, np.ndarray], key: str, rows: np.ndarray) -> np.ndarray:
    """Mean over some agents of what they reach in each of their own tasks, (10,)."""
    own = np.ma.masked_array(found[key][rows], found["subsets"][rows] == 0)
    return own.mean(0).filled(np.nan)
