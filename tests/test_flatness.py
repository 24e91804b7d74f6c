"""The trace of a Hessian by random products, held against the matrix itself; and what flat minima have of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from whence import InputError, Problem, Recipe
from whence.models.flatness import METHODS, hessian_trace, trace_of
from whence.models.optimizers import NSO, SAM
from whence.models.stack import Stack
from whence.models.training import train


def problem(loss="cross_entropy", seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs = torch.randn(20, 3, dtype=torch.float64)
    labels = torch.randint(3, (20,)) if loss == "cross_entropy" else torch.randn(20, 3, dtype=torch.float64)
    return Problem(
        model, {"a": (inputs[:12], labels[:12]), "b": (inputs[12:], labels[12:])}, (inputs, labels), loss=loss
    )


def exact(given, state=None, examples=None):
    """The trace of the whole Hessian, by torch's own."""
    examples = given.tasks if examples is None else examples
    start = {**given.start, **(state or {})}

    def value(flat):
        parts = flat.split([start[name].numel() for name in given.trained])
        params = {name: part.view_as(start[name]) for name, part in zip(given.trained, parts, strict=True)}
        return given.loss(given.output_fn(params, examples.inputs), examples.labels).mean()

    flat = torch.cat([start[name].flatten() for name in given.trained])
    return float(torch.autograd.functional.hessian(value, flat).trace())


@pytest.mark.parametrize("loss", ["cross_entropy", nn.MSELoss()], ids=str)
def test_with_a_product_for_each_parameter_it_is_exact(loss):
    given = problem(loss)
    found = hessian_trace(given, n_products=100)
    assert found.trace == pytest.approx(exact(given), rel=1e-9)
    assert (found.std_error, found.n_products) == (0.0, given.n_trained)
    own = hessian_trace(given, {name: 2 * v for name, v in given.start.items()}, examples=given.targets, n_products=100)
    assert own.trace == pytest.approx(exact(given, {n: 2 * v for n, v in given.start.items()}, given.targets), rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_unbiased_and_their_standard_errors_hold(method):
    given = problem()
    truth = exact(given)
    found = [hessian_trace(given, method=method, n_products=24, seed=seed) for seed in range(40)]
    values, errors = np.array([one.trace for one in found]), np.array([one.std_error for one in found])
    assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(len(values))
    assert 0.5 < values.std() / np.sqrt((errors**2).mean()) < 2
    assert hessian_trace(given, method=method, n_products=24, seed=3) == found[3]


def test_hutch_plus_plus_is_better_where_few_eigenvalues_are_large():
    rng = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(200, 200, generator=rng, dtype=torch.float64))
    matrix = basis @ torch.diag(torch.arange(1, 201, dtype=torch.float64) ** -2.0) @ basis.T
    errors = {
        method: np.mean([
            abs(trace_of(lambda v: v @ matrix, 200, like=matrix, method=method, n_products=30, seed=s).trace
                - float(matrix.trace()))
            for s in range(20)
        ])
        for method in METHODS
    }  # fmt: skip
    assert errors["hutch++"] < errors["hutchinson"] / 3


def test_sam_and_nso_end_where_the_loss_is_flatter():
    given = problem(nn.MSELoss())
    stack = Stack(given, batched=False)

    def ended(optimizer):
        recipe = Recipe(steps=400, lr=0.1, optimizer=optimizer, batch_size=None)
        state = train(stack, recipe, stack.start(1), np.ones((1, 2)), np.array([0]))
        return hessian_trace(given, {name: value[0] for name, value in state.items()}, n_products=100).trace

    plain = ended("sgd")
    assert ended(SAM(rho=0.2)) < plain
    assert ended(NSO(sigma=0.2)) < plain


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(InputError, match="no method 'hutch'"):
        hessian_trace(problem(), method="hutch")
    with pytest.raises(InputError, match="must be 6 or more"):
        hessian_trace(problem(), n_products=3)
