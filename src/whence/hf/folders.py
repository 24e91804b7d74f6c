"""A folder of true runs that is there already: what goes on in it, and what is refused before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from whence.arrays import Floats
from whence.errors import InputError, counted
from whence.estimators.retrain import Retrain
from whence.measuring.outcome_fn import as_outcome_fn
from whence.measuring.plan import make_plan
from whence.outcomes.runs import is_run, read_ledger


def refuse_other_runs(folder: Path, retrain: Retrain, subsets: Floats, seed: int) -> None:
    """Refuse, before anything is estimated, true runs of other sources, of another recipe, or of a larger budget."""
    if not is_run(folder):
        return
    ledger, n = read_ledger(folder), len(subsets)
    plan = make_plan(as_outcome_fn(retrain), subsets, None, tasks=None, seed=seed, seeds=None, maximize=None)
    made = len(ledger.plan.subsets)
    if made > n and ledger.plan.task_names == plan.task_names and np.array_equal(ledger.plan.subsets[:n], subsets):
        raise InputError(
            f"{folder}: it was begun with {counted(made, 'true run')}, and this budget is for {n}. Give a larger "
            "budget, or another folder."
        )
    now = replace(plan, fingerprint=ledger.plan.fingerprint)  # digests of a large model are compared when it is run
    try:
        ledger.plan.continued(now, ledger.targets, ledger.done, accept=None)
    except InputError as error:
        raise error.at(folder) from error


def with_earlier(
    ways: Floats, seeds: int, path: str | os.PathLike[str] | None, task_names: Sequence[str]
) -> tuple[Floats, int]:
    """Subsets to train, and how often, such that a folder with runs of some others is continued."""
    if path is None or not is_run(Path(path)):
        return ways, seeds
    plan = read_ledger(Path(path)).plan
    if plan.task_names != tuple(task_names):
        return ways, seeds
    new = [way for way in ways if not (plan.subsets == way).all(1).any()]
    return np.vstack([plan.subsets, *new]), max(seeds, plan.seeds)
