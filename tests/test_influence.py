"""Influence functions against closed forms and retraining, and the products and solvers beneath them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from torch_models import perceptron
from whence import DataWarning, InputError, Problem
from whence.baselines import CG, EKFAC, Exact, LiSSA, influence_scores
from whence.baselines import curvature as curvature_module
from whence.baselines import influence as influence_module
from whence.baselines.curvature import Curvature
from whence.baselines.krylov import conjugate_gradients, extremes, lanczos, neumann
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.models.losses import CrossEntropy, Logistic, Squared

SIZES = (3, 9, 5, 7)
LOSSES = {"cross_entropy": CrossEntropy(), "logistic": Logistic(), "squared": Squared()}


def regression(seed=0, d=4, sizes=SIZES):
    """Tasks of unequal sizes in double precision, each with a truth of its own, and a target."""
    rng = np.random.default_rng(seed)
    tasks = {}
    for k, n in enumerate(sizes):
        X = rng.normal(size=(n, d)) + rng.normal(size=d)
        tasks[f"t{k}"] = (X, X @ rng.normal(size=d) + 0.3 * rng.normal(size=n))
    X = rng.normal(size=(6, d))
    return tasks, (X, X @ rng.normal(size=d))


def shares(tasks, weighting):
    sizes = np.array([len(y) for _, y in tasks.values()])
    return sizes / sizes.sum() if weighting == "sample" else np.full(len(sizes), 1 / len(sizes))


def ridge(tasks, s, l2, weighting, normalized):
    """argmin of Σ_k s_k p_k mean ½(xw − y)² (over Σ_j s_j p_j if normalised) + ½ l2 ‖w‖²."""
    weights = s * shares(tasks, weighting)
    weights = weights / weights.sum() if normalized else weights
    H = sum(w * X.T @ X / len(y) for w, (X, y) in zip(weights, tasks.values(), strict=True))
    b = sum(w * X.T @ y / len(y) for w, (X, y) in zip(weights, tasks.values(), strict=True))
    return np.linalg.solve(H + l2 * np.eye(len(H)), b)


def linear(weights, bias=False):
    model = nn.Linear(len(weights), 1, bias=bias).double()
    with torch.no_grad():
        model.weight.copy_(torch.as_tensor(weights)[None])
    return model


def loss_at(w, target):
    X, y = target
    return 0.5 * np.mean((X @ w - y) ** 2)


@pytest.mark.parametrize(
    "solver", [Exact(), CG(tol=1e-10, max_steps=250), LiSSA(max_steps=250)], ids=["exact", "cg", "lissa"]
)
@pytest.mark.parametrize(("weighting", "normalized"), [("task", True), ("sample", True), ("task", False)])
def test_the_derivative_of_the_minimum_of_a_quadratic(solver, weighting, normalized):
    tasks, target = regression()
    l2, step, ones = 0.5, 1e-5, np.ones(4)

    def outcome(s):
        return loss_at(ridge(tasks, s, l2, weighting, normalized), target)

    slopes = [(outcome(ones + step * e) - outcome(ones - step * e)) / (2 * step) for e in np.eye(4)]
    model = linear(ridge(tasks, ones, l2, weighting, normalized))
    problem = Problem(model, tasks, target, loss="squared")
    found = influence_scores(problem, solver=solver, damping=0.0, l2=l2, weighting=weighting, normalized=normalized)
    np.testing.assert_allclose(found.coef_[:, 0], slopes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.predict(np.ones((1, 4)))[0, 0], outcome(ones), rtol=1e-12)


def test_leaving_out_an_example_of_ridge_in_closed_form():
    """The exact change of w is that of the influence function divided by one less the leverage (Cook, 1977)."""
    rng = np.random.default_rng(1)
    n, d, l2 = 15, 3, 0.05
    X, y = rng.normal(size=(n, d)), rng.normal(size=n)
    tasks = {f"x{i}": (X[i : i + 1], y[i : i + 1]) for i in range(n)}
    w = ridge(tasks, np.ones(n), l2, "task", False)
    # A query e_j with label c has the loss ½ (w_j − c)², whose derivative is (w_j − c) times that of w_j.
    labels = w - 2.0
    found = influence_scores(
        Problem(linear(w), tasks, (np.eye(d), labels), loss="squared", per_query=True),
        damping=0.0,
        l2=l2,
        normalized=False,
    )
    moved = found.coef_ / 2.0
    A = X.T @ X / n + l2 * np.eye(d)
    leverage = np.einsum("nd,de,ne->n", X, np.linalg.inv(A), X) / n
    for i in range(n):
        without = ridge(tasks, 1.0 - np.eye(n)[i], l2, "task", False)
        np.testing.assert_allclose(moved[i] / (1 - leverage[i]), w - without, rtol=1e-8, atol=1e-12)


def logistic_minimum(X, y, weights, l2):
    """Newton's method, to the end."""
    w = np.zeros(X.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-X @ w))
        gradient = X.T @ (weights * (p - y)) + l2 * w
        w = w - np.linalg.solve((X.T * (weights * p * (1 - p))) @ X + l2 * np.eye(len(w)), gradient)
    return w


def test_leaving_a_task_out_of_logistic_regression_by_retraining():
    rng = np.random.default_rng(2)
    K, n, d, l2 = 40, 5, 4, 0.05
    X = rng.normal(size=(K * n, d))
    y = (X @ rng.normal(size=d) + rng.normal(size=K * n) > 0).astype(float)
    owner = np.repeat(np.arange(K), n)
    tasks = {f"t{k}": (X[owner == k], y[owner == k]) for k in range(K)}
    query = (X[:1] + 0.3, np.array([1.0]))

    def outcome(s):
        weights = s[owner] / s[owner].sum()
        margin = float(query[0][0] @ logistic_minimum(X, y, weights, l2))
        return np.log1p(np.exp(-margin))

    changes = np.array([outcome(np.ones(K)) - outcome(1 - e) for e in np.eye(K)])
    model = linear(logistic_minimum(X, y, np.full(K * n, 1 / (K * n)), l2))
    found = influence_scores(Problem(model, tasks, query, loss="logistic"), damping=0.0, l2=l2).coef_[:, 0]
    assert np.corrcoef(found, changes)[0, 1] > 0.995
    assert np.polyfit(found, changes, 1)[0] == pytest.approx(1.0, abs=0.1)


def problem_for(name, seed=0):
    torch.manual_seed(seed)
    outputs = {"cross_entropy": 3, "logistic": 1, "squared": 2}[name]
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    inputs = torch.randn(11, 3, dtype=torch.float64)
    labels = {"cross_entropy": torch.randint(3, (11,)), "logistic": torch.randint(2, (11,))}
    return model, Examples.of((inputs, labels.get(name, torch.randn(11, 2, dtype=torch.float64))))


def dense(model, data, weights, loss, kind):
    """The matrix by torch's own second derivatives, a number at a time."""
    output_fn, params = functional(model)
    flat = torch.cat([p.flatten() for p in params.values()])

    def outputs(v):
        parts = dict(zip(params, v.split([p.numel() for p in params.values()]), strict=True))
        return output_fn({k: part.view_as(params[k]) for k, part in parts.items()}, data.inputs)

    if kind == "hessian":
        return torch.autograd.functional.hessian(lambda v: (weights * loss(outputs(v), data.labels)).sum(), flat)
    J = torch.autograd.functional.jacobian(outputs, flat)
    at = outputs(flat)
    total = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for i in range(len(at)):
        curvature = torch.autograd.functional.hessian(lambda o, i=i: loss(o[None], data.labels[i : i + 1])[0], at[i])
        total += weights[i] * J[i].T @ curvature @ J[i]
    return total


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["hessian", "gauss_newton", "gauss_newton, not held"])
def test_products_with_the_curvature_are_those_with_the_dense_matrix(name, kind, monkeypatch):
    if kind.endswith("not held"):
        monkeypatch.setattr(curvature_module, "HELD", 0)
        monkeypatch.setattr(curvature_module, "ROWS", 4)
        monkeypatch.setattr(curvature_module, "AT_ONCE", 60)
    kind = kind.split(",")[0]
    model, data = problem_for(name)
    weights = torch.rand(len(data), dtype=torch.float64)
    curvature = Curvature(functional(model), LOSSES[name], data, weights, kind, 0.3)
    truth = dense(model, data, weights, LOSSES[name], kind)
    vectors = torch.randn(5, curvature.size, dtype=torch.float64)
    torch.testing.assert_close(curvature(vectors), vectors @ truth + 0.3 * vectors)
    torch.testing.assert_close(curvature.matrix(), truth + 0.3 * torch.eye(curvature.size, dtype=torch.float64))
    rows = torch.tensor([2, 2, 7])
    picked = torch.zeros(len(data), dtype=torch.float64)
    picked.index_add_(0, rows, weights[rows] * len(data) / 3)
    expected = vectors @ dense(model, data, picked, LOSSES[name], kind) + 0.3 * vectors
    torch.testing.assert_close(curvature(vectors, rows), expected)


def classes(seed=0, K=3, n=8):
    torch.manual_seed(seed)
    tasks = {f"t{k}": (torch.randn(n, 4) + k, torch.randint(3, (n,))) for k in range(K)}
    return perceptron(), tasks, (torch.randn(5, 4), torch.randint(3, (5,)))


@pytest.mark.parametrize("curvature", ["hessian", "gauss_newton"])
@pytest.mark.parametrize("per_query", [False, True])
def test_all_solvers_agree_whichever_side_they_solve(curvature, per_query):
    model, tasks, target = classes()
    problem, settings = Problem(model, tasks, target, per_query=per_query), {"curvature": curvature, "damping": 1.0}
    exact = influence_scores(problem, solver=Exact(), **settings)
    for solver in (CG(tol=1e-7, max_steps=60), LiSSA(max_steps=60)):
        found = influence_scores(problem, solver=solver, **settings)
        np.testing.assert_allclose(found.coef_, exact.coef_, rtol=1e-3, atol=1e-6)
    assert influence_scores(problem, **settings).diagnostics["solver"] == "exact"


def test_samples_of_the_examples_come_near_in_lissa():
    model, tasks, target = classes()
    problem, settings = Problem(model, tasks, target, per_query=True), {"curvature": "gauss_newton", "damping": 1.0}
    exact = influence_scores(problem, **settings).coef_
    found = influence_scores(problem, solver=LiSSA(batch_size=6, scale=20.0), **settings)
    assert np.corrcoef(found.coef_.ravel(), exact.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("solver", [Exact(), EKFAC()], ids=["exact", "ekfac"])
def test_the_curvature_of_some_examples(solver):
    """Examples of a task that are all alike curvature as a few of them do; gradients are of all in any case."""
    rng = np.random.default_rng(0)
    tasks = {f"t{k}": (np.repeat(rng.normal(size=(1, 4)), 6, axis=0), rng.normal(size=6)) for k in range(5)}
    problem = Problem(linear(np.ones(4)), tasks, tasks["t0"], loss="squared")
    settings = {"damping": 0.1, "solver": solver, "weighting": "sample"}
    whole = influence_scores(problem, **settings)
    found = influence_scores(problem, examples=2, **settings)
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=1e-8)


def saddle():
    """A product of two parameters, at a point where the Hessian has an eigenvalue of about −1."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(0.1)
        model[1].weight.fill_(0.1)
    tasks = {"a": (np.ones((2, 1)), np.ones(2)), "b": (np.ones((2, 1)), np.full(2, 1.2))}
    # ½ (uv − 1.1)² has the Hessian [[v², 2uv − 1.1], [2uv − 1.1, u²]] at u = v = 0.1.
    return model, tasks, 0.01 - (1.1 - 0.02)


@pytest.mark.parametrize("solver", [Exact(), CG()], ids=["exact", "cg"])
def test_an_indefinite_hessian_is_warned_of_with_the_damping_that_it_takes(solver):
    model, tasks, lowest = saddle()
    problem = Problem(model, tasks, (np.ones((1, 1)), np.zeros(1)), loss="squared")
    settings = {"solver": solver, "normalized": False}
    needed = f"{-lowest:.2g}"
    with pytest.warns(DataWarning, match=rf"eigenvalue of about -1\.1 .* give damping above {needed}, or"):
        found = influence_scores(problem, damping=0.001, **settings)
    assert np.isfinite(found.coef_).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        influence_scores(problem, damping=-lowest + 0.2, **settings)
        influence_scores(problem, curvature="gauss_newton", damping=0.01, **settings)


def test_directions_without_curvature_are_left_alone():
    """Two inputs that are the same: only the sum of their weights is known."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 1)), rng.normal(size=8)
    tasks = {"a": (x[:4], y[:4]), "b": (x[4:], y[4:])}
    twice = {name: (np.repeat(x, 2, axis=1), y) for name, (x, y) in tasks.items()}
    once = influence_scores(Problem(linear([0.4]), tasks, tasks["a"], loss="squared"), damping=0.0)
    found = influence_scores(Problem(linear([0.2, 0.2]), twice, twice["a"], loss="squared"), damping=0.0)
    np.testing.assert_allclose(found.coef_, once.coef_, rtol=1e-8)


def test_lissa_that_diverges_is_named_with_what_to_change():
    model, tasks, target = classes()
    with pytest.raises(InputError, match=r"LiSSA diverged at step \d+: raise scale \(0\.1\) above .* about"):
        influence_scores(
            Problem(model, tasks, target), solver=LiSSA(scale=0.1, max_steps=100), curvature="gauss_newton", damping=1.0
        )
    model, tasks, _ = saddle()
    problem = Problem(model, tasks, (np.ones((1, 1)), np.zeros(1)), loss="squared")
    with pytest.raises(InputError, match=r"indefinite: raise damping \(0\.001\) by 1\.1 or more"):
        influence_scores(problem, solver=LiSSA(), normalized=False)


def test_solvers_that_stop_too_early_say_so():
    model, tasks, target = classes()
    with pytest.warns(DataWarning, match=r"Conjugate gradients stopped after 1 steps .* raise max_steps"):
        influence_scores(Problem(model, tasks, target), solver=CG(max_steps=1), curvature="gauss_newton")
    with pytest.warns(DataWarning, match=r"LiSSA has not converged after 2 terms .* raise max_steps"):
        influence_scores(
            Problem(model, tasks, target), solver=LiSSA(max_steps=2), curvature="gauss_newton", damping=0.01
        )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"solver": "lissa"}, r"must be Exact\(\), CG\(\), LiSSA\(\) or EKFAC\(\) of .* Got 'lissa' instead"),
        ({"curvature": "fisher"}, r"There is no curvature 'fisher'\. There are: hessian, gauss_newton\."),
        ({"damping": -1.0}, r"The 'damping' must be a finite number, 0 or more\. Got -1\.0\."),
        ({"examples": 0}, r"The 'examples' of each task for the curvature must be 1 or more\. Got 0\."),
        ({"l2": float("nan")}, r"The 'l2' must be a finite number, 0 or more\. Got nan\."),
    ],
)
def test_bad_settings(setting, message):
    model, tasks, target = classes()
    with pytest.raises(InputError, match=message):
        influence_scores(Problem(model, tasks, target), **setting)


def test_large_models_are_not_factorised(monkeypatch):
    monkeypatch.setattr(influence_module, "EXACT", 10)
    model, tasks, target = classes()
    assert influence_scores(Problem(model, tasks, target), damping=1.0).diagnostics["solver"] == "cg"


def matrix(low=0.5, d=30, seed=0):
    torch.manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]
    return (basis * torch.linspace(low, 5.0, d, dtype=torch.float64)) @ basis.T


def test_solvers_against_the_dense_inverse():
    A, right = matrix(), torch.randn(4, 30, dtype=torch.float64)
    right[2] = 0
    truth = torch.linalg.solve(A, right.T).T
    found = conjugate_gradients(lambda v: v @ A, right, tol=1e-12, max_steps=100)
    torch.testing.assert_close(found.vectors, truth)
    assert found.residual <= 1e-12
    assert not found.indefinite
    torch.testing.assert_close(neumann(lambda v: v @ A, right, scale=5.5, depth=500).vectors, truth)


def test_functions_of_a_matrix_and_its_extremes():
    A, start = matrix(low=-1.0), torch.randn(3, 30, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(A)
    truth = ((start @ vectors) * torch.exp(-values)) @ vectors.T
    torch.testing.assert_close(lanczos(lambda v: v @ A, start, 30).apply(lambda h: torch.exp(-h)), truth)
    low, high = extremes(lambda v: v @ A, start[0], seed=0)
    assert (low, high) == pytest.approx((-1.0, 5.0), abs=1e-8)


def test_a_krylov_space_that_is_complete_early():
    A = torch.diag(torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64))
    start = torch.ones(1, 4, dtype=torch.float64)
    found = lanczos(lambda v: v @ A, start, 4).apply(torch.sqrt)
    torch.testing.assert_close(found, start * A.diag().sqrt())
