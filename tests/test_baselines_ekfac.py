"""EK-FAC against curvlinops, against exact curvature where it is exact, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from test_influence import LOSSES, classes, dense, linear, regression
from torch_models import made
from whence import InputError, Problem
from whence.baselines import EKFAC, Exact, influence_scores
from whence.baselines import ekfac as ekfac_module
from whence.baselines.curvature import Curvature
from whence.baselines.ekfac import ekfac_solve
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.models.losses import CrossEntropy

DAMPING = 0.1


def curvature_of(model, inputs, labels, params=None, weights=None, loss="cross_entropy"):
    data = Examples.of((inputs, labels))
    weights = torch.full((len(data),), 1 / len(data), dtype=torch.float64) if weights is None else weights
    return Curvature(functional(model, params), LOSSES[loss], data, weights.double(), "gauss_newton", DAMPING)


def in_double(name, n=12):
    model, inputs, labels = made(name, n)
    return model.double(), inputs.double() if inputs.is_floating_point() else inputs, labels


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("perceptron", None),
        ("perceptron", ["0.weight", "2.*"]),
        ("images", ["0.*", "3.*", "7.*"]),
        ("attention", ["mix.*", "head.*"]),
        ("attention", ["mix.weight"]),
    ],
)
def test_linear_and_convolution_layers_are_those_of_curvlinops(name, params):
    curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed")
    model, inputs, labels = in_double(name)
    curvature = curvature_of(model, inputs, labels, params)
    torch.manual_seed(0)
    right = torch.randn(3, curvature.size, dtype=torch.float64)
    chosen = [dict(model.named_parameters())[name] for name in curvature.params]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        factors = curvlinops.EKFACLinearOperator(
            model, nn.CrossEntropyLoss(), chosen, [(inputs, labels)], fisher_type=curvlinops.FisherType.TYPE2,
            separate_weight_and_bias=False, check_deterministic=False,
        )  # fmt: skip
        inverse = curvlinops.KFACInverseLinearOperator(factors, damping=DAMPING, use_exact_damping=True)
        expected = torch.as_tensor(inverse @ right.T).T
    torch.testing.assert_close(ekfac_solve(curvature, right), expected, rtol=1e-6, atol=1e-8)


def exactly_solved(model, curvature, right):
    matrix = curvature.matrix()
    torch.testing.assert_close(matrix, dense_of(model, curvature))
    return torch.linalg.solve(matrix, right.T).T


def dense_of(model, curvature):
    whole = dense(model, curvature.examples, curvature.weights, curvature.loss, "gauss_newton")
    names, sizes = zip(*((n, p.numel()) for n, p in model.named_parameters()), strict=True)
    picked = torch.cat([torch.full((size,), name in curvature.params) for name, size in zip(names, sizes, strict=True)])
    return whole[picked][:, picked] + DAMPING * torch.eye(curvature.size, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("images", "1.weight"),
        ("images", "4.bias"),
        ("attention", "norm.weight"),
        ("attention", "mix.bias"),
        ("tied", "norm.weight"),
        ("images", "7.bias"),
    ],
)
def test_the_block_of_a_vector_is_exact(name, params):
    model, inputs, labels = in_double(name)
    weights = torch.rand(len(labels))
    curvature = curvature_of(model, inputs, labels, params, weights)
    right = torch.randn(2, curvature.size, dtype=torch.float64)
    torch.testing.assert_close(ekfac_solve(curvature, right), exactly_solved(model, curvature, right))


class Words(nn.Module):
    """The sum of the values of some words, as the logit of the second class, after the same layer twice."""

    def __init__(self):
        super().__init__()
        self.value = nn.Embedding(6, 1, padding_idx=0)
        self.twice = nn.Linear(1, 1, bias=False)
        self.unused = nn.Linear(2, 1)

    def forward(self, x):
        total = self.twice(torch.tanh(self.twice(self.value(x)))).sum(1)
        return torch.cat([torch.zeros_like(total), total], 1)


def words():
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 1, 0], [2, 3, 2], [4, 4, 4], [5, 1, 0], [0, 0, 3]])
    return Words().double(), tokens, torch.tensor([0, 1, 1, 0, 1])


def test_the_eigenvalues_of_an_embedding_are_the_diagonal_of_its_curvature():
    """With one number for each word, also where an example has a word twice, or padding."""
    model, tokens, labels = words()
    curvature = curvature_of(model, tokens, labels, "value.weight", torch.rand(5))
    right = torch.randn(2, 6, dtype=torch.float64)
    diagonal = dense_of(model, curvature).diagonal()
    torch.testing.assert_close(ekfac_solve(curvature, right), right / diagonal)
    assert diagonal[0] == DAMPING


def test_a_layer_that_is_used_twice_and_one_that_never_is():
    model, tokens, labels = words()
    curvature = curvature_of(model, tokens, labels, ["twice.weight", "unused.*"])
    right = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(ekfac_solve(curvature, right), exactly_solved(model, curvature, right))


def test_the_basis_of_an_embedding_is_that_of_its_output_gradients():
    """One word in each example: the curvature has a block for each word, diagonal in one basis if all are alike."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(3, 3)).double()
    with torch.no_grad():
        model[0].weight[:] = torch.randn(3)
    tokens = torch.arange(5).repeat(3)[:, None]
    curvature = curvature_of(model, tokens, torch.zeros(15, dtype=torch.int64), "0.weight")
    right = torch.randn(2, 15, dtype=torch.float64)
    torch.testing.assert_close(ekfac_solve(curvature, right), exactly_solved(model, curvature, right))


@pytest.mark.parametrize("weighting", ["task", "sample"])
def test_a_single_layer_with_the_squared_loss_is_exact(weighting):
    """Gradients by outputs are all alike, so that the curvature is one Kronecker product."""
    tasks, target = regression()
    settings = {"damping": 0.1, "curvature": "gauss_newton", "weighting": weighting}
    problem = Problem(linear(np.full(4, 0.1), bias=True), tasks, target, loss="squared")
    exact = influence_scores(problem, solver=Exact(), **settings)
    found = influence_scores(problem, solver=EKFAC(), **settings)
    np.testing.assert_allclose(found.coef_, exact.coef_, rtol=1e-6, atol=1e-9)


def test_damping_as_a_share_of_the_mean_eigenvalue():
    """The mean eigenvalue is the trace of the Gauss–Newton matrix, over all parameters."""
    model, inputs, labels = in_double("attention")
    curvature = curvature_of(model, inputs, labels)
    right = torch.randn(2, curvature.size, dtype=torch.float64)
    mean = float(dense_of(model, curvature).diagonal().mean()) - DAMPING
    found = ekfac_solve(curvature, right, relative=0.5)
    curvature.shift += 0.5 * mean
    torch.testing.assert_close(found, ekfac_solve(curvature, right))
    for wrong in (-1.0, float("nan"), "much"):
        with pytest.raises(InputError, match=r"'relative_damping' parameter of EKFAC must be a finite number"):
            EKFAC(relative_damping=wrong)


@pytest.mark.parametrize("per_query", [False, True])
def test_near_the_exact_solution_on_a_perceptron(per_query):
    model, tasks, target = classes()
    problem, settings = (
        Problem(model, tasks, target, per_query=per_query),
        {"damping": 0.1, "curvature": "gauss_newton"},
    )
    exact = influence_scores(problem, solver=Exact(), **settings).coef_
    found = influence_scores(problem, solver=EKFAC(), **settings)
    assert np.corrcoef(found.coef_.ravel(), exact.ravel())[0, 1] > 0.9
    assert found.diagnostics["solver"] == "ekfac"


def test_batches_and_portions_do_not_matter(monkeypatch):
    model, inputs, labels = in_double("attention")
    curvature = curvature_of(model, inputs, labels, weights=torch.rand(len(labels)))
    right = torch.randn(2, curvature.size, dtype=torch.float64)
    whole = ekfac_solve(curvature, right)
    monkeypatch.setattr(ekfac_module, "ROWS", 5)
    monkeypatch.setattr(ekfac_module, "NUMBERS", 500)
    torch.testing.assert_close(ekfac_solve(curvature, right), whole)


def test_random_combinations_of_many_outputs(monkeypatch):
    """The square of a sign is one, so that a single output is exact; several are right on average."""
    monkeypatch.setattr(ekfac_module, "COLUMNS", 0)
    monkeypatch.setattr(ekfac_module, "MOST_COLUMNS", 0)
    torch.manual_seed(0)
    inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.randint(2, (6,))
    curvature = curvature_of(linear(np.ones(3)), inputs, labels, loss="logistic")
    right = torch.randn(2, 3, dtype=torch.float64)
    drawn = ekfac_solve(curvature, right)
    monkeypatch.undo()
    torch.testing.assert_close(drawn, ekfac_solve(curvature, right))

    model, tasks, target = classes(n=400)
    problem, settings = Problem(model, tasks, target, per_query=True), {"solver": EKFAC(), "damping": 0.1}
    first, second, again = (influence_scores(problem, seed=seed, **settings).coef_ for seed in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    monkeypatch.setattr(ekfac_module, "COLUMNS", 3)
    exact = influence_scores(problem, **settings).coef_
    assert np.corrcoef(first.ravel(), exact.ravel())[0, 1] > 0.99


def test_models_without_such_factors_are_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x * self.scale)

    _, tasks, target = classes()
    with pytest.raises(InputError, match=r"no EK-FAC of this model: use solver=CG\(\) .*cannot take scale \(in Own\)"):
        influence_scores(Problem(Own(), tasks, target), solver=EKFAC())
    assert influence_scores(Problem(Own(), tasks, target, params="head.*"), solver=EKFAC()).coef_.shape == (3, 1)
    model, inputs, labels = in_double("tied")
    with pytest.raises(InputError, match=r"'token.weight' is shared by two layers"):
        ekfac_solve(curvature_of(model, inputs, labels), torch.ones(1, 28, dtype=torch.float64))
    shared = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).double()
    shared[1].weight = shared[0].weight
    with pytest.raises(InputError, match=r"'0.weight' is shared by two layers"):
        ekfac_solve(curvature_of(shared, torch.randn(4, 3).double(), labels[:4] % 3), torch.ones(1, 9).double())


def test_directions_without_curvature_are_left_alone():
    """An input that is always 0 has no curvature, and without damping there is nothing to divide by."""
    model = nn.Linear(2, 2, bias=False).double()
    inputs = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    data = Examples.of((inputs, torch.tensor([0, 1])))
    curvature = Curvature(functional(model), CrossEntropy(), data, torch.full((2,), 0.5), "gauss_newton", 0.0)
    found = ekfac_solve(curvature, torch.ones(1, 4, dtype=torch.float64)).view(2, 2)
    assert found.isfinite().all()
    assert (found[:, 1] == 0).all()
