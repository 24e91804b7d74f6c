"""Models that torch's transforms cannot run as they are, held against autograd on one example after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import whence
from whence import DataWarning, GradEx, InputError, JointScores, OneStep, Problem, Recipe, Retrain
from whence.baselines import Exact, influence_scores
from whence.baselines.curvature import Curvature
from whence.gradients.factored import Kronecker
from whence.gradients.groups import task_gradients
from whence.models.derivatives import mapped, pushed
from whence.models.points import points_of

SIZES, SUBSETS = (6, 3, 9), [[1, 1, 0], [0, 1, 1]]


class Looks(nn.Module):
    """A model that looks at its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.clamp(max=1.0) if (x > 1.0).any() else x)


class ByRow(nn.Module):
    """Another layer for some examples."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return torch.stack([self.one(row) if row[0] > 0 else self.other(row) for row in x])


class Experts(nn.Module):
    """A layer of experts, each for the examples that are sent to it."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x):
        shares, outputs = self.gate(x).softmax(-1), x.new_zeros(len(x), 3)
        for k, expert in enumerate(self.experts):
            mine = (shares.argmax(-1) == k).nonzero()[:, 0]
            outputs = outputs.index_add(0, mine, expert(x[mine]) * shares[mine, k, None])
        return outputs


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cell(x.view(-1, 2, 2))[0][:, -1])


MODELS = {
    "looks": Looks,
    "by row": ByRow,
    "experts": Experts,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 3)),
}
# What a run warns of: that it is made alone, and what vmap has no rule for.
IGNORED = pytest.mark.filterwarnings("ignore:Models are run one at a time", "ignore:There is a performance drop")


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


def problem_of(model, **settings):
    generator = torch.Generator().manual_seed(1)

    def group(n):
        return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)

    return Problem(model, {f"t{k}": group(n) for k, n in enumerate(SIZES)}, group(5), **settings)


def jacobian(model, inputs):
    """Derivatives of the outputs of each example by all parameters, (n, C, d), one backward pass for each."""
    parameters = list(model.parameters())

    def gradient(one):
        parts = torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])

    return torch.stack([torch.stack([gradient(one) for one in model(x[None])[0]]) for x in inputs])


@IGNORED
def test_gradients_of_tasks_are_those_of_autograd(model):
    problem = problem_of(model)
    (point,) = points_of(problem, [])
    found = task_gradients(problem, point)
    for k, n in enumerate(SIZES):
        inputs, labels = problem.tasks.rows(problem.tasks.owner == k)
        loss = (
            sum(nn.functional.cross_entropy(model(x[None]), y[None]) for x, y in zip(inputs, labels, strict=True)) / n
        )
        parts = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        torch.testing.assert_close(found[k], torch.cat([part.flatten() for part in parts]))


@IGNORED
@pytest.mark.parametrize("route", ["forward", "reverse"])
def test_features_are_projected_gradients(model, route):
    problem = problem_of(model)
    gradex = GradEx(problem, rank=5, projection="gaussian", features=whence.Features(route=route))
    (member,) = gradex.members
    directions = gradex.projection(0).rows(gradex.points[0][1], 0, 5)
    torch.testing.assert_close(member.tasks.features, jacobian(model, problem.tasks.inputs) @ directions.T)


@IGNORED
def test_curvature_is_that_of_the_jacobian(model, monkeypatch):
    problem = problem_of(model)
    (point,) = points_of(problem, [])
    weights = torch.full((sum(SIZES),), 1 / sum(SIZES))
    root = problem.loss.root(model(problem.tasks.inputs), problem.tasks.labels).mT @ jacobian(
        model, problem.tasks.inputs
    )
    expected = torch.einsum("ncd,nce->de", root, root).detach() / sum(SIZES)
    matrix = Curvature(point, problem.loss, problem.tasks, weights, "gauss_newton")
    assert matrix._root is not None
    torch.testing.assert_close(matrix.matrix().float(), expected, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr("whence.baselines.curvature.HELD", 0)
    matrix = Curvature(point, problem.loss, problem.tasks, weights, "gauss_newton")
    assert matrix._root is None
    torch.testing.assert_close(matrix.matrix().float(), expected, rtol=1e-4, atol=1e-6)


@IGNORED
def test_runs_and_estimates_of_any_model(model):
    problem, recipe = problem_of(model), Recipe(steps=30, lr=0.02, batch_size=4)
    found = {
        "retrain": Retrain(problem, recipe),
        "one step": OneStep(problem, recipe),
        "along": GradEx.along(problem, recipe, rank=12),
        **{kind: JointScores(problem, recipe, kind) for kind in ("tracin", "trak", "source")},
    }
    for name, function in found.items():
        values = [function(subset, 0)["loss"] for subset in SUBSETS]
        assert np.isfinite(values).all(), name
        assert values[0] != values[1], name


def test_a_hessian_that_torch_does_not_know_is_refused():
    torch.manual_seed(0)
    problem = problem_of(MODELS["weight norm"]())
    with pytest.raises(InputError, match=r"Hessian of this model cannot be computed.*give curvature='gauss_newton'"):
        influence_scores(problem, solver=Exact(), damping=1.0)


@pytest.mark.parametrize("name", ["by row", "experts"])
def test_layers_that_see_some_examples_only_are_refused(name):
    torch.manual_seed(0)
    problem = problem_of(MODELS[name]())
    with pytest.raises(InputError, match="use another route"):
        GradEx(problem, projection=Kronecker(8)).batch(SUBSETS)


def test_a_model_that_looks_at_its_inputs_is_trained_on_the_examples_of_its_subset():
    torch.manual_seed(0)
    model = Looks()
    problem, recipe = problem_of(model), Recipe(steps=5, lr=0.1, batch_size=4)
    with pytest.warns(DataWarning, match="run one at a time: torch.func.vmap cannot run the model"):
        side = Retrain(problem, recipe)
    assert side([1, 1, 0], 0) == Retrain(problem, recipe, batched=False)([1, 1, 0], 0)


def test_a_loop_equals_vmap():
    x, y = torch.randn(4, 3), {"a": torch.randn(4), "b": torch.tensor(2.0).expand(4)}

    def function(x, y, factor):
        return {"sum": (x * y["a"]).sum() * factor, "both": (x, y["b"])}

    def looking(x, y, factor):
        return function(x, y, factor * (1.0 if float(x.detach().sum()) < 1e9 else 2.0))

    expected = torch.func.vmap(function, in_dims=(0, 0, None))(x, y, 3.0)
    found = mapped(looking, x, y, 3.0, in_dims=(0, 0, None))
    torch.testing.assert_close(found, expected)


def test_running_out_of_memory_is_not_a_reason_to_loop():
    calls = []

    def function(x):
        calls.append(x)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(RuntimeError, match="allocate"):
        mapped(function, torch.zeros(3))
    assert len(calls) == 1


def test_a_direction_is_followed_in_reverse_where_forward_mode_is_unknown():
    layer = weight_norm(nn.Linear(4, 3)).double()
    names, x = [name for name, _ in layer.named_parameters()], torch.randn(5, 4, dtype=torch.float64)
    at = {name: value.detach() for name, value in layer.named_parameters()}
    along = {name: torch.randn_like(at[name]) for name in names}

    def outputs(params):
        return torch.func.functional_call(layer, params, (x,)).tanh()

    with pytest.raises(NotImplementedError):
        torch.func.jvp(outputs, (at,), (along,))
    before, after = (outputs({name: at[name] + sign * 1e-6 * along[name] for name in names}) for sign in (-1, 1))
    value, moved = pushed(outputs, at, along)
    torch.testing.assert_close(value, outputs(at))
    torch.testing.assert_close(moved, (after - before) / 2e-6, rtol=1e-6, atol=1e-8)
