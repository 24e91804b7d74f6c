"""The contracts of measuring as tables: a new outcome function or engine is one line here.

`OUTCOME_FNS` makes one of each kind, with the tasks ``a, b, c`` and the metric ``loss``; `ENGINES` names every engine
with what it takes. The properties that all of them share are in test_measuring_contracts.py.
"""

from __future__ import annotations

import functools

import numpy as np

from whence.measuring.outcome_fn import OutcomeFn

TASKS = ("a", "b", "c")
EFFECTS = np.array([1.0, -2.0, 0.5])


def plain(subset, seed):
    return {"loss": float(subset @ EFFECTS) + 0.25 * np.random.default_rng(seed).normal()}


def shifted(subset, seed, shift):
    return {"loss": plain(subset, seed)["loss"] + shift}


class Called(OutcomeFn):
    task_names, maximize, provenance = TASKS, ("loss",), {"outcomes": "invented"}

    def __call__(self, subset, seed):
        return plain(subset, seed)


class InBatches(OutcomeFn):
    task_names, batch_size = TASKS, 3

    def batch(self, subsets, seeds):
        return {"loss": np.array([plain(row, seed)["loss"] for row, seed in zip(subsets, seeds, strict=True)])}


class NotAHeir:
    """Whatever has the methods is as good."""

    task_names = TASKS

    def batch(self, subsets, seeds):
        return InBatches().batch(subsets, seeds)


def _torch_problem():
    import torch
    from torch import nn

    torch.manual_seed(0)
    group = [(torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])) for _ in range(4)]
    return nn.Linear(3, 2), dict(zip(TASKS, group[:3], strict=True)), group[3]


def _problem():
    from whence import Problem

    return Problem(*_torch_problem())


def retrain():
    from whence import Recipe, Retrain

    return Retrain(_problem(), Recipe(steps=3, lr=0.1))


def task_vectors():
    from whence import Recipe, TaskVectors

    return TaskVectors(_problem(), Recipe(steps=3, lr=0.1))


def gradex():
    from whence import GradEx

    return GradEx(_problem(), rank=4)


def joint_scores():
    from whence import JointScores, Recipe

    return JointScores(_problem(), Recipe(steps=20, lr=0.1))


OUTCOME_FNS = {
    "function": lambda: plain,
    "partial": lambda: functools.partial(shifted, shift=1.0),
    "heir": Called,
    "batches": InBatches,
    "not an heir": NotAHeir,
    "retraining": retrain,
    "task vectors": task_vectors,
    "GradEx": gradex,
    "scores": joint_scores,
}
ENGINES = {"inline": {}, "local": {"jobs": 2}, "ray": {"jobs": 2}}
