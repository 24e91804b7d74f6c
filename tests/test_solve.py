import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from whence.errors import InputError
from whence.gradients.linearize import Linearization
from whence.gradients.penalty import matching_share, mean_square
from whence.gradients.solve import solve
from whence.models.examples import Examples
from whence.models.losses import LOSSES
from whence.models.sampling import task_shares, weights_of

K = 4
WIDTHS = {"cross_entropy": 3, "logistic": 1, "squared": 2}  # outputs of an example, by its loss
SUBSETS = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0.2, 0.7, 0, 1.5]], dtype=float)


def linear_of(loss, *, n=40, rank=5, dtype=torch.float64, seed=0):
    """Random features of a random problem, tasks of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    width = WIDTHS[loss]
    labels = {
        "cross_entropy": torch.randint(3, (n,), generator=generator),
        "logistic": torch.randint(2, (n,), generator=generator),
        "squared": torch.randn(n, 2, dtype=dtype, generator=generator),
    }[loss]
    owner = torch.randint(K, (n,), generator=generator).sort().values
    examples = Examples(torch.zeros(n, 1), labels, owner, tuple("abcd"))
    features = torch.randn(n, width, rank, dtype=dtype, generator=generator)
    outputs = torch.randn(n, width, dtype=dtype, generator=generator)
    return Linearization(outputs, features, examples, "")


def shares_in(linear, subsets, weighting="task"):
    return task_shares(subsets, linear.examples.sizes, weighting)


def by_scipy(linear, weights, loss, l2):
    """Minimise one objective with a general solver, from autograd alone."""

    def value_and_gradient(z):
        z = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        outputs = linear.outputs.double() + linear.features.double() @ z
        w = torch.tensor(weights)[linear.examples.owner]
        total = (w * loss(outputs, linear.examples.labels)).sum() + l2 / 2 * z @ z
        (gradient,) = torch.autograd.grad(total, z)
        return float(total.detach()), gradient.numpy()

    options = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000}
    return minimize(value_and_gradient, np.zeros(linear.rank), jac=True, method="L-BFGS-B", options=options)


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("weighting", ["task", "sample"])
@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_every_subset_is_solved_as_alone(name, weighting, l2):
    linear, loss = linear_of(name), LOSSES[name]
    found = solve(linear, shares_in(linear, SUBSETS, weighting), loss, l2=l2, tol=1e-12)
    weights = weights_of(SUBSETS, linear.examples.sizes, weighting)
    assert found.converged.all()
    for i, row in enumerate(weights):
        expected = by_scipy(linear, row, loss, l2)
        np.testing.assert_allclose(found.objective[i], expected.fun, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.delta[i].numpy(), expected.x, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", WIDTHS)
def test_single_precision_reaches_the_tolerance(name):
    linear = linear_of(name, dtype=torch.float32)
    found = solve(linear, shares_in(linear, SUBSETS), LOSSES[name], l2=1e-3)
    assert found.delta.dtype == torch.float32
    for i, row in enumerate(weights_of(SUBSETS, linear.examples.sizes, "task")):
        expected = by_scipy(linear, row, LOSSES[name], 1e-3)
        np.testing.assert_allclose(found.objective[i], expected.fun, rtol=1e-5, atol=1e-7)


def test_the_empty_subset_moves_nothing():
    for name in WIDTHS:
        loss = LOSSES[name]
        found = solve(linear_of(name), shares_in(linear_of(name), SUBSETS), loss, l2=0.1)
        assert torch.equal(found.delta[3], torch.zeros(5, dtype=torch.float64))


def test_the_squared_loss_is_ridge_regression():
    linear = linear_of("squared")
    sizes, rows = linear.examples.sizes, linear.examples.owner.numpy()
    found = solve(linear, shares_in(linear, SUBSETS[:1]), LOSSES["squared"], l2=0.3)
    weight = np.repeat(weights_of(SUBSETS[:1], sizes, "task")[0][rows], 2)
    target = (linear.examples.labels - linear.outputs).numpy().ravel()
    ridge = Ridge(alpha=0.3, fit_intercept=False).fit(
        linear.features.reshape(-1, 5).numpy(), target, sample_weight=weight
    )
    np.testing.assert_allclose(found.delta[0].numpy(), ridge.coef_, rtol=1e-10)


def test_the_logistic_loss_is_logistic_regression():
    linear = linear_of("logistic")
    linear = Linearization(torch.zeros_like(linear.outputs), linear.features, linear.examples, "")
    found = solve(linear, shares_in(linear, SUBSETS[:1]), LOSSES["logistic"], l2=0.1, tol=1e-12)
    weight = weights_of(SUBSETS[:1], linear.examples.sizes, "task")[0][linear.examples.owner.numpy()]
    peer = LogisticRegression(C=10.0, fit_intercept=False, tol=1e-10, max_iter=1000)
    peer.fit(linear.features[:, 0].numpy(), linear.examples.labels.numpy(), sample_weight=weight)
    np.testing.assert_allclose(found.delta[0].numpy(), peer.coef_[0], rtol=1e-4)


@pytest.mark.parametrize("held", [1, 7])
def test_the_answer_does_not_depend_on_how_the_work_is_cut(held, monkeypatch):
    linear, loss = linear_of("cross_entropy"), LOSSES["cross_entropy"]
    whole = solve(linear, shares_in(linear, SUBSETS), loss, l2=0.01, tol=1e-12)
    monkeypatch.setattr("whence.gradients.linearize._BLOCK_NUMBERS", 100 * held)
    monkeypatch.setattr("whence.gradients.solve._HELD", 200 * held)
    torch.testing.assert_close(
        solve(linear, shares_in(linear, SUBSETS), loss, l2=0.01, tol=1e-12).delta, whole.delta, rtol=1e-4, atol=1e-6
    )


def separable():
    """A problem that can be fitted perfectly, far from where it starts: the hardest for a shared Hessian."""
    linear = linear_of("logistic", n=30, rank=40)
    labels = torch.ones(30)
    examples = Examples(linear.examples.inputs, labels, linear.examples.owner, linear.examples.names)
    return Linearization(linear.outputs - 10, 30 * linear.features, examples, "")


def test_perfectly_fitted_subsets_converge_too():
    linear, loss = separable(), LOSSES["logistic"]
    found = solve(linear, shares_in(linear, SUBSETS), loss, l2=1e-4, max_iter=5)
    assert found.converged.all()
    for i, row in enumerate(weights_of(SUBSETS, linear.examples.sizes, "task")):
        assert found.objective[i] <= by_scipy(linear, row, loss, 1e-4).fun * (1 + 1e-4)


def test_subsets_that_are_not_solved_are_named(monkeypatch):
    monkeypatch.setattr("whence.gradients.solve._NEWTON_STEPS", 1)
    with pytest.warns(ConvergenceWarning, match=r"4 of 5 subsets did not converge \(rows 0, 1, 2, 4; gap up to"):
        found = solve(separable(), shares_in(separable(), SUBSETS), LOSSES["logistic"], l2=1e-4, max_iter=1)
    assert found.converged.tolist() == [False, False, False, True, False]
    assert (found.gap[:3] > 1e-7).all()


def test_certificates_are_of_the_answer():
    linear, loss = linear_of("cross_entropy"), LOSSES["cross_entropy"]
    found = solve(linear, shares_in(linear, SUBSETS), loss, l2=0.01)
    weights = weights_of(SUBSETS, linear.examples.sizes, "task")
    for i in range(len(SUBSETS)):
        z = found.delta[i].clone().requires_grad_()
        w = torch.tensor(weights[i])[linear.examples.owner]
        total = (w * loss(linear.outputs + linear.features @ z, linear.examples.labels)).sum() + 0.005 * z @ z
        np.testing.assert_allclose(found.objective[i], float(total.detach()), rtol=1e-12)
        np.testing.assert_allclose(found.gradient_norm[i], float(torch.autograd.grad(total, z)[0].norm()), atol=1e-12)
        best = by_scipy(linear, weights[i], loss, 0.01).fun
        assert found.objective[i] - best <= 1e-5 * max(best, 1e-12)
    assert "5 of 5 subsets converged" in repr(found)


def test_penalties_that_leave_no_best_update_are_refused():
    with pytest.raises(InputError, match="'l2' penalty must be positive"):
        solve(linear_of("squared"), shares_in(linear_of("squared"), SUBSETS), LOSSES["squared"], l2=0.0)
    with pytest.raises(InputError, match="'sample' or 'task'"):
        shares_in(linear_of("squared"), SUBSETS, "equal")


def test_the_matching_penalty_gives_the_wanted_loss():
    linear, loss = linear_of("cross_entropy"), LOSSES["cross_entropy"]
    everything = np.full((1, K), 1 / K)
    found = solve(linear, everything, loss, l2=0.02 * mean_square(linear))
    wanted = float(found.objective[0]) - 0.01 * mean_square(linear) * float(found.delta.square().sum())
    assert matching_share(linear, everything, loss, wanted) == pytest.approx(0.02, rel=0.1)
    assert np.isnan(matching_share(linear, everything, loss, 0.0))
    assert np.isnan(matching_share(linear, everything, loss, 1e9))


def test_the_mean_square_is_that_of_feature_vectors():
    linear = linear_of("cross_entropy")
    assert mean_square(linear) == pytest.approx(float((linear.features**2).sum(2).mean()))
