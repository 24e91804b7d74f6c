"""Every estimator on every device: the outcomes are those of a processor, and come back as arrays on it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from test_baselines_devices import DEVICES, problem
from whence import Features, GradEx, OneStep, Problem, Recipe, Retrain, TaskVectors
from whence.gradients.projections import Subspace

SUBSETS = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]])
RECIPE = Recipe(steps=8, lr=0.01, batch_size=4, optimizer="sgd")
DIRECTIONS = Subspace(  # random ones that are the same everywhere
    {
        name: torch.randn(12, *value.shape, generator=torch.manual_seed(1))
        for name, value in problem()[0].named_parameters()
    }
)
gradex = partial(GradEx, rank=12, weighting="sample", l2=1e-2)
ESTIMATORS = {
    "GradEx, forward": partial(gradex, features=Features(route="forward"), projection=DIRECTIONS),
    "GradEx, reverse": partial(gradex, features=Features(route="reverse"), projection=DIRECTIONS),
    "GradEx, reverse, sparse": partial(gradex, features=Features(route="reverse"), projection="sparse"),
    "GradEx, factored": partial(gradex, features=Features(route="factored"), projection="kronecker"),
    "GradEx, factored, margins": partial(
        gradex, features=Features(route="factored"), projection="kronecker", of="margin"
    ),
    "GradEx along a run": partial(GradEx.along, recipe=RECIPE, rank=9),
    "one step": OneStep,
    "task vectors": partial(TaskVectors, recipe=RECIPE, batched=True),
    "task vectors, one by one": partial(TaskVectors, recipe=RECIPE, batched=False),
    "task vectors with a background": partial(TaskVectors, recipe=RECIPE, background=0.5),
    "task vectors that leave a task out, by outputs": partial(
        TaskVectors, recipe=RECIPE, runs="left out", merge="outputs"
    ),
    "retraining": partial(Retrain, recipe=RECIPE, batched=True),
}


def outcomes(estimator):
    """All outcomes, (subsets, queries of all targets)."""
    found = estimator.batch(SUBSETS, np.zeros(len(SUBSETS), dtype=int))
    assert all(isinstance(values, np.ndarray) for values in found.values())
    return np.hstack(list(found.values()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_outcomes_are_those_of_a_processor(make, device):
    model, tasks, targets = problem()
    found = make(Problem(model, tasks, targets, per_query=True, device=device))
    expected = make(Problem(model, tasks, targets, per_query=True))
    np.testing.assert_allclose(outcomes(found), outcomes(expected), rtol=2e-3, atol=2e-4)
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("device", DEVICES)
def test_features_in_half_the_bytes_are_near_those_in_full(device):
    model, tasks, targets = problem()
    given = Problem(model, tasks, targets, per_query=True, device=device)
    options = {"rank": 12, "projection": "gaussian", "l2": 1e-2}
    full = GradEx(given, **options)
    half = GradEx(given, features=Features(precision="bfloat16"), **options)
    np.testing.assert_allclose(outcomes(half), outcomes(full), rtol=0.05, atol=0.02)
