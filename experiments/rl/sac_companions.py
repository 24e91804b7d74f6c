"""What agents reach in a task by how many others they learn, and without demonstrations: lines of mt10_results.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scoring import by_target, interval

WAYS = {"alone": 1, "with six others": 7, "with all nine": 10}  # tasks of an agent
THREES = {"top": "with the three that SAC's sevens recommend", "random": "with three random ones"}
SEEDS = 3
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


def threes(*folders: Path) -> Iterator[str]:
    """Lines of the page: a target with three companions that were chosen, and with three random ones, seed by seed."""
    reached: dict[tuple[str, str, int], np.ndarray] = {}
    for folder in folders:
        found = played(folder)
        for row in np.flatnonzero(done(found)):
            target, _, way = str(found["kinds"][row]).partition(" with ")
            k = found["task_names"].tolist().index(target) if way else 0
            reached[target, way, int(found["seeds"][row])] = np.array([found[key][row, k] for key in OUTCOMES])
    targets = sorted({target for target, way, seed in reached if way == "random" and seed == SEEDS - 1})
    yield "\n| the target … | " + " | ".join(f"{key} of {target}" for target in targets for key in OUTCOMES) + " |"
    yield "|" + "---|" * (1 + len(targets) * len(OUTCOMES))
    pairs = [[np.array([reached[target, way, seed] for seed in range(SEEDS)]) for target in targets] for way in THREES]
    for title, each in zip(THREES.values(), pairs, strict=True):
        cells = [f"{own[:, i].mean():.{OUTCOMES[key]}f}" for own in each for i, key in enumerate(OUTCOMES)]
        yield f"| {title} | {' | '.join(cells)} |"
    gains = np.concatenate(pairs[0]) - np.concatenate(pairs[1])
    told = [interval(gains[:, i], digits) for i, digits in enumerate(OUTCOMES.values())]
    yield f"\nChosen ones have {told[0]} more success and {told[1]} more return"
    yield f"(mean and 95% interval over {len(gains)} pairs of a target and a seed)."


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
