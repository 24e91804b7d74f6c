"""Gradients along directions of adapters, from what layers see, against those of torch."""

import numpy as np
import pytest
import torch

import whence
from finetuning import tiny_problem
from whence.estimators import gradex
from whence.gradients.groups import Stacks, task_gradients
from whence.gradients.linearize import linearize, linearize_together
from whence.gradients.projections import Subspace
from whence.gradients.routes import layers_of, taken_together
from whence.hf.completions import StackedLinear
from whence.models.points import points_of


def subspace(params, rank=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = {name: torch.randn(rank, *value.shape, generator=generator).to(value) for name, value in params.items()}
    return Subspace(draw)


def models():
    torch.manual_seed(0)
    norm = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    convolution = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    return {"adapters": tiny_problem(), "norms": _problem(norm, (6, 3)), "patches": _problem(convolution, (6, 1, 3))}


def _problem(model, shape):
    group = (torch.randn(*shape), torch.arange(shape[0]) % 2)
    return whence.Problem(model, {"a": group, "b": group}, group)


@pytest.mark.parametrize("name", ["adapters", "norms", "patches"])
def test_products_with_directions_are_those_of_each_gradient(name):
    problem = models()[name]
    params = {key: problem.start[key] + 0.1 for key in problem.trained}  # with B = 0, half of the gradients are 0
    directions = subspace(params)
    assert layers_of(problem.output_fn, params, problem.tasks) is not None
    found = linearize(problem.output_fn, params, problem.tasks, directions, route="reverse")
    leaves = {key: value.clone().requires_grad_() for key, value in params.items()}
    outputs = problem.output_fn(leaves, problem.tasks.inputs)
    expected = np.zeros(found.features.shape)
    for i, row in enumerate(outputs):
        for c, output in enumerate(row):
            each = torch.autograd.grad(output, list(leaves.values()), retain_graph=True)
            parts = zip(each, directions.directions.values(), strict=True)
            expected[i, c] = sum((d * g).flatten(1).sum(1).numpy() for g, d in parts)
    np.testing.assert_allclose(found.features.numpy(), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(found.outputs.numpy(), outputs.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("of", ["outputs", "margin"])
def test_several_points_in_one_pass_are_those_of_each(of):
    problem = _problem(tiny_classifier(), (6, 3)) if of == "margin" else tiny_problem()
    points = [
        {key: problem.start[key] + 0.1 * torch.randn_like(problem.start[key]) for key in problem.trained}
        for _ in range(3)
    ]
    directions = subspace(points[0])
    how = {"of": of, "route": "reverse", "batch_size": 4}
    assert taken_together(problem.output_fn, points[0], problem.tasks, directions, "auto")
    together = linearize_together(problem.output_fn, points, problem.tasks, directions, **how)
    for params, found in zip(points, together, strict=True):
        alone = linearize(problem.output_fn, params, problem.tasks, directions, **how)
        torch.testing.assert_close(found.outputs, alone.outputs)
        torch.testing.assert_close(found.features, alone.features, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(together[0].outputs, together[1].outputs)


class Stacked(torch.nn.Module):
    """A linear layer of one model or of several."""

    takes_stacks = True

    def __init__(self):
        super().__init__()
        self.layer = StackedLinear(3, 2)

    def forward(self, x):
        return self.layer(x)


def tiny_classifier():
    torch.manual_seed(0)
    return Stacked()


def test_estimates_along_a_run_are_the_same_point_by_point(monkeypatch):
    problem, recipe = tiny_problem(), whence.Recipe(steps=6, lr=0.01, batch_size=4)
    together = whence.GradEx.along(problem, recipe, rank=8).batch([[1, 0], [1, 1]])["loss"]
    monkeypatch.setattr(gradex, "taken_together", lambda *_: False)
    alone = whence.GradEx.along(problem, recipe, rank=8).batch([[1, 0], [1, 1]])["loss"]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_embeddings_are_left_to_vmap():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Flatten(), torch.nn.Linear(6, 2))
    group = (torch.randint(5, (4, 2)), torch.tensor([0, 1, 0, 1]))
    problem = whence.Problem(model, {"a": group}, group)
    assert layers_of(problem.output_fn, problem.start, problem.tasks) is None


def test_along_takes_gradients_of_a_sample_of_examples():
    problem, recipe = tiny_problem(n=40), whence.Recipe(steps=4, lr=0.01, batch_size=4)
    seen = []
    outputs = problem.output_fn.module.forward

    def counted(input_ids, places):
        seen.append(len(input_ids))
        return outputs(input_ids, places)

    problem.output_fn.module.forward = counted
    whence.GradEx.along(problem, recipe, rank=8, features=whence.Features(examples=2)).batch([[1, 0]])
    few = sum(seen)
    seen.clear()
    whence.GradEx.along(problem, recipe, rank=8).batch([[1, 0]])
    assert few < sum(seen) / 2


def test_gradients_of_all_tasks_in_one_pass_are_those_of_each():
    problem = tiny_problem(n_tasks=3)
    problem = problem.with_examples(problem.tasks.sample(4), problem.targets)
    params = {key: problem.start[key] + 0.1 for key in problem.trained}
    (point,) = points_of(problem, [params])
    stacks = Stacks()
    for _ in range(2):  # what is kept of the first pass must not change the second
        other = points_of(problem, [problem.start])[0]
        task_gradients(problem, other, side_by_side=False, stacks=stacks)
        together = task_gradients(problem, point, side_by_side=False, stacks=stacks)
    for k in range(3):
        leaves = {key: value.clone().requires_grad_() for key, value in params.items()}
        inputs, labels = problem.tasks.rows(problem.tasks.owner == k)
        loss = problem.loss(problem.output_fn(leaves, inputs), labels).mean()
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(leaves.values()))])
        torch.testing.assert_close(together[k], expected, rtol=1e-4, atol=1e-6)
