"""Every baseline on every device: the scores are those of a processor, and come back as arrays on it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from whence import Problem
from whence.baselines import (
    CG,
    EKFAC,
    Exact,
    Langevin,
    LiSSA,
    bif_scores,
    influence_scores,
    source_scores,
    tracin_scores,
    trak_scores,
)
from whence.baselines import ekfac as ekfac_module
from whence.baselines import source as source_module

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


class Words(nn.Module):
    """Words and places, a norm, and a layer of each kind that tokens go through."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(7, 6, padding_idx=0), nn.Embedding(4, 6)
        self.norm, self.mix, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.head(torch.tanh(self.mix(self.norm(h))).mean(1))


def problem():
    torch.manual_seed(0)
    model = Words()
    tasks = {f"t{k}": (torch.randint(7, (8 + k, 4)), torch.randint(3, (8 + k,))) for k in range(3)}
    targets = {
        "x": (torch.randint(7, (5, 4)), torch.randint(3, (5,))),
        "y": (torch.randint(7, (3, 4)), torch.ones(3).long()),
    }
    return model, tasks, targets


def weights(seed):
    torch.manual_seed(seed)
    return Words().state_dict()


influence = partial(influence_scores, curvature="gauss_newton", damping=0.1)
METHODS = {
    "exact": partial(influence, solver=Exact()),
    "exact, Hessian": partial(influence, solver=Exact(), curvature="hessian", damping=2.0),
    "conjugate gradients": partial(influence, solver=CG(max_steps=100), examples=5),
    "LiSSA": partial(influence, solver=LiSSA(max_steps=100), damping=1.0),
    "LiSSA with batches": partial(influence, solver=LiSSA(max_steps=100, batch_size=8, scale=20.0), damping=1.0),
    "EK-FAC": partial(influence, solver=EKFAC()),
    "TracIn": partial(tracin_scores, checkpoints=[weights(1), weights(2)], learning_rates=[0.1, 0.2]),
    "TracIn, sketched": partial(tracin_scores, learning_rates=[0.1], rank=20),
    "TRAK": partial(trak_scores, rank=16, projection="kronecker", l2=0.1),
    "TRAK of task means": partial(trak_scores, rank=16, projection="kronecker", l2=0.1, kernel="tasks"),
    "SOURCE": partial(
        source_scores, segments=[[weights(1), weights(2)], [weights(3)]], learning_rates=[0.1, 0.1], steps=[10, 20]
    ),
}


def close(found, expected):
    assert isinstance(found.coef_, np.ndarray)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=2e-3, atol=1e-4 * np.abs(expected.coef_).max())
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_query", [False, True])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_scores_are_those_of_a_processor(method, per_query, device):
    model, tasks, targets = problem()
    found = method(Problem(model, tasks, targets, per_query=per_query, device=device))
    close(found, method(Problem(model, tasks, targets, per_query=per_query)))
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("device", DEVICES)
def test_of_a_model_and_data_that_are_there_already(device):
    model, tasks, targets = problem()
    expected = METHODS["TracIn"](Problem(model, tasks, targets))
    there = {name: tuple(part.to(device) for part in group) for name, group in tasks.items()}
    close(METHODS["TracIn"](Problem(model.to(device), there, targets)), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_random_combinations_and_krylov_spaces(device, monkeypatch):
    monkeypatch.setattr(ekfac_module, "COLUMNS", 0)
    monkeypatch.setattr(ekfac_module, "MOST_COLUMNS", 0)
    monkeypatch.setattr(source_module, "EXACT", 0)
    model, tasks, targets = problem()
    for name in ("EK-FAC", "SOURCE"):
        close(
            METHODS[name](Problem(model, tasks, targets, device=device)), METHODS[name](Problem(model, tasks, targets))
        )


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [None, 16])
def test_chains_draw_other_numbers_but_the_same_scores(device, batch_size):
    model, tasks, targets = problem()
    sampler = Langevin(damping=5.0, chains=60, draws=12, thin=15, step_size=0.002, batch_size=batch_size)
    expected = bif_scores(Problem(model, tasks, targets), sampler=sampler)
    found = bif_scores(Problem(model, tasks, targets, device=device), sampler=sampler, seed=0)
    spread = np.hypot(found.coef_std_, expected.coef_std_)
    assert (np.abs(found.coef_ - expected.coef_) < 5 * spread).all()
    assert found.diagnostics["r_hat"] == pytest.approx(expected.diagnostics["r_hat"], abs=0.1)
