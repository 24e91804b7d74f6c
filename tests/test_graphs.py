"""Recorded gradients are those of the work itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from whence import Problem, Recipe
from whence.models import graphs
from whence.models.stack import Stack
from whence.models.training import train

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
SUBSETS = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]])


def trained(problem, recipe, first, monkeypatch):
    monkeypatch.setattr(graphs, "FIRST", first)
    stack = Stack(problem, batched=True)
    return train(stack, recipe, stack.start(3), SUBSETS, np.arange(3))


@CUDA
@pytest.mark.parametrize(
    "options", [{}, {"clip": 0.5}, {"optimizer": "sgd", "accumulate": 2}, {"precision": "bfloat16"}]
)
def test_a_recorded_run_is_the_run(options, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    tasks = {name: (torch.randn(20, 6), torch.randint(3, (20,))) for name in "abc"}
    problem = Problem(model, tasks, tasks["a"], device="cuda")
    recipe = Recipe(steps=12, lr=0.01, batch_size=8, **options)
    plain = trained(problem, recipe, 100, monkeypatch)
    for name, value in trained(problem, recipe, 3, monkeypatch).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)


@CUDA
def test_what_cannot_be_recorded_runs_as_it_is(monkeypatch):
    class Alone(nn.Module):
        takes_stacks = True

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 6))

        def forward(self, x):
            float(x.sum())  # a number that the processor waits for
            m = len(self.weight) if self.weight.ndim == 3 else 1
            return (x.reshape(m, -1, 6) @ self.weight.reshape(m, 2, 6).mT).reshape(len(x), 2)

    tasks = {name: (torch.randn(20, 6), torch.randint(2, (20,))) for name in "abc"}
    problem = Problem(Alone(), tasks, tasks["a"], device="cuda")
    recipe = Recipe(steps=8, lr=0.01, batch_size=8)
    plain = trained(problem, recipe, 100, monkeypatch)
    torch.testing.assert_close(trained(problem, recipe, 3, monkeypatch)["weight"], plain["weight"])


def test_on_a_processor_the_work_runs_as_it_is():
    leaf = torch.ones(2, requires_grad=True)
    take = graphs.Recorded(lambda batch: (leaf * batch).sum().backward(), [leaf])
    for number in range(6):
        take(torch.full((2,), float(number)))
        assert leaf.grad.tolist() == [number, number]
        leaf.grad = None
    assert not take.graphs
