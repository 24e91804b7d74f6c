"""Every part of the kernel algebra against loops over all 2^K subsets, on plain and on standardised coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from scipy.stats import hypergeom

import oracles
import whence
import whence.surrogates.kernels as kernels
from whence.errors import InputError
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.kernels import RBF, Constant, Kernel, Lattice, ProductKernel, Sum
from whence.surrogates.mixture import Mixture
from whence.surrogates.sum_kernels import Polynomial, Size


def lattice_of(kind, n_tasks, rng):
    """0/1, or the coordinates of standardised columns, or any two numbers (also with "in" below "out")."""
    if kind == "zero_one":
        return Lattice(np.zeros(n_tasks), np.ones(n_tasks))
    if kind == "standardised":
        center, scale = rng.uniform(0.1, 0.9, n_tasks), rng.uniform(0.2, 0.5, n_tasks)
        return Lattice(-center / scale, (1 - center) / scale)
    low = rng.normal(size=n_tasks)
    return Lattice(low, low + rng.choice([-1, 1], n_tasks) * rng.uniform(0.3, 2, n_tasks))


EVERY = slice(None)
LATTICES = ["zero_one", "standardised", "any"]


@dataclass(frozen=True)
class Laplacian(ProductKernel):
    """A new product kernel is this: one method."""

    rates: np.ndarray

    def factor(self, x, y):
        return np.exp(-self.rates * np.abs(x - y))


@dataclass(frozen=True)
class Brownian(ProductKernel):
    """Not stationary: κ(x, y) = 1 + rate · min(|x|, |y|) where x and y have the same sign, else 1."""

    rates: np.ndarray

    def factor(self, x, y):
        return 1 + self.rates * np.where(x * y > 0, np.minimum(np.abs(x), np.abs(y)), 0.0)


def parts_of(lattice, rng):
    """{name: (part, its kernel as a function of two rows)}, the conformance table of this module."""
    n_tasks = len(lattice.absent)
    weights, rates = rng.uniform(0.1, 1.0, n_tasks), rng.uniform(0.05, 1.0, n_tasks)
    rates[-1] = 0.0 if n_tasks > 2 else rates[-1]

    def size_of(x):
        return sum((a - low) / (high - low) for a, low, high in zip(x, *lattice, strict=True))

    table = {"constant": (Constant(), lambda x, y: 1.0)}
    for degree in (1, 2, 3):
        for offset in (0.0, 0.7):
            part = Polynomial(degree, weights, offset)
            table[f"poly{degree}+{offset}"] = (part, oracles.polynomial(degree, weights, offset))
    table["rbf"] = (RBF(rates), oracles.rbf(rates))
    table["laplacian"] = (Laplacian(rates), oracles.laplacian(rates))
    table["brownian"] = (Brownian(rates), oracles.brownian(rates))
    table["size"] = (
        Size(0.3, 1 / lattice.step, -float((lattice.absent / lattice.step).sum())),
        oracles.size(0.3, size_of),
    )
    plain, anchor = table["size"][1], (np.arange(n_tasks) < 2) * lattice.step + lattice.absent
    table["size, from an anchor"] = (
        Size(0.3, 1 / lattice.step, -float((lattice.absent / lattice.step).sum()), anchor=float(min(n_tasks, 2))),
        lambda x, y: plain(x, y) - plain(x, anchor) - plain(anchor, y) + 1,
    )
    return table


NAMES = list(parts_of(Lattice(np.zeros(2), np.ones(2)), np.random.default_rng(0)))


def gauss(n):
    nodes, weights = leggauss(n)
    return (nodes + 1) / 2, weights / 2


MIXTURES = {
    "none": (np.zeros(1), np.ones(1)),
    "all": (np.ones(1), np.ones(1)),
    "half": (np.full(1, 0.5), np.ones(1)),
    "inclusion": (np.full(1, 0.3), np.full(1, 0.7)),
    "gauss": gauss(3),
    "signed": (np.array([0.0, 0.2, 1.0]), np.array([0.5, -1.5, 2.0])),
}


def setting(name, lattice_kind, n_tasks, seed=0):
    """A part, its oracle, the lattice, all lattice points, and rows Y to hold fixed."""
    rng = np.random.default_rng(seed)
    lattice = lattice_of(lattice_kind, n_tasks, rng)
    part, kernel = parts_of(lattice, rng)[name]
    subsets = oracles.all_subsets(n_tasks)
    points = lattice.absent + subsets * lattice.step
    Y = points[rng.integers(len(points), size=4)]
    if not name.startswith("size"):  # the subset size is defined on the lattice alone
        Y = np.vstack([Y, rng.normal(size=(2, n_tasks))])
    return part, kernel, lattice, points, Y


CASES = [(name, lattice, K) for name in NAMES for lattice in LATTICES for K in (1, 2, 4)]


@pytest.mark.parametrize(("name", "lattice_kind", "n_tasks"), CASES)
def test_gram_and_diagonal_are_those_of_the_loop(name, lattice_kind, n_tasks):
    part, kernel, _, points, Y = setting(name, lattice_kind, n_tasks)
    np.testing.assert_allclose(part.evaluate(points, Y), oracles.gram(kernel, points, Y), atol=1e-12)
    np.testing.assert_allclose(part.diag(Y), np.diag(oracles.gram(kernel, Y, Y)), atol=1e-12)


@pytest.mark.parametrize(("name", "lattice_kind", "n_tasks"), CASES)
@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 1.0])
def test_mean_is_the_sum_over_all_subsets(name, lattice_kind, n_tasks, q):
    part, kernel, lattice, points, Y = setting(name, lattice_kind, n_tasks)
    expected = oracles.bernoulli_weights(n_tasks, q) @ oracles.gram(kernel, points, Y)
    np.testing.assert_allclose(part.mean(Y, lattice, Mixture.over([q], [1.0])), expected, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize(("name", "lattice_kind", "n_tasks"), CASES)
def test_effects_are_sums_over_all_subsets(name, lattice_kind, n_tasks, mixture):
    part, kernel, lattice, points, Y = setting(name, lattice_kind, n_tasks)
    nodes, weights = MIXTURES[mixture]
    against, among = oracles.gram(kernel, points, Y), oracles.gram(kernel, points, points)
    mixed = Mixture.over(nodes, weights)
    main, main_prior = part.main(Y, lattice, mixed), part.main_prior(lattice, mixed)
    pair, pair_prior = part.pairs(Y, lattice, mixed)(EVERY, EVERY), part.pair_prior(lattice, mixed)
    assert main.shape == (len(Y), n_tasks)
    assert main_prior.shape == (n_tasks,)
    assert pair.shape == (len(Y), n_tasks, n_tasks)
    assert pair_prior.shape == (n_tasks, n_tasks)
    close = {"atol": 1e-10, "rtol": 1e-10}
    for k in range(n_tasks):
        effect = oracles.effect_weights(n_tasks, [k], nodes, weights)
        np.testing.assert_allclose(main[:, k], effect @ against, **close)
        np.testing.assert_allclose(main_prior[k], effect @ among @ effect, **close)
        for j in range(n_tasks):
            if j != k:
                effect = oracles.effect_weights(n_tasks, [k, j], nodes, weights)
                np.testing.assert_allclose(pair[:, k, j], effect @ against, **close)
                np.testing.assert_allclose(pair_prior[k, j], effect @ among @ effect, **close)


@pytest.mark.parametrize(("n_tasks", "size"), [(2, 1), (4, 1), (4, 2), (4, 3), (4, 4), (7, 3)])
@pytest.mark.parametrize("lattice_kind", LATTICES)
@pytest.mark.parametrize("name", NAMES)
def test_subsets_of_one_size_are_averaged_as_by_enumeration(name, lattice_kind, n_tasks, size):
    """Those of this size that have a task less all of this size: mean, effect, and the variance of the effect."""
    part, kernel, lattice, points, Y = setting(name, lattice_kind, n_tasks)
    mixture = Mixture.of_size(n_tasks, size)
    against, among = oracles.gram(kernel, points, Y), oracles.gram(kernel, points, points)
    overall, effects = oracles.fixed_size_weights(n_tasks, size)
    close = {"atol": 1e-9 * np.abs(among).max(), "rtol": 1e-9}
    np.testing.assert_allclose(part.mean(Y, lattice, mixture), overall @ against, **close)
    np.testing.assert_allclose(part.main(Y, lattice, mixture), (effects @ against).T, **close)
    expected = np.einsum("ki,ij,kj->k", effects, among, effects)
    np.testing.assert_allclose(part.main_prior(lattice, mixture), expected, **close)


@pytest.mark.parametrize(("n_tasks", "size"), [(60, 4), (200, 100), (1000, 990)])
def test_subsets_of_one_size_of_many_tasks_are_averaged_to_many_digits(n_tasks, size):
    """With two kinds of tasks, which of each are in is a hypergeometric draw."""
    rate, few = 0.05, 5
    part, lattice = RBF(np.full(n_tasks, rate)), Lattice(np.zeros(n_tasks), np.ones(n_tasks))
    y = (np.arange(n_tasks) < few).astype(float)[None]
    n = np.arange(few + 1)
    value = np.exp(-rate * ((few - n) + (size - n)))  # n of the few are in: (few − n) + (size − n) tasks differ
    expected = hypergeom(n_tasks, few, size).pmf(n) @ value
    mixture = Mixture.of_size(n_tasks, size)
    np.testing.assert_allclose(part.mean(y, lattice, mixture), expected, rtol=1e-9)
    inside = hypergeom(n_tasks - 1, few - 1, size - 1).pmf(n - 1) @ value
    np.testing.assert_allclose(part.main(y, lattice, mixture)[0, 0], inside - expected, rtol=1e-8)
    assert (len(mixture.present) <= n_tasks + 2) & (len(mixture.present) < 160)


def test_pairs_have_no_average_over_subsets_of_one_size():
    part, _, lattice, _, Y = setting("rbf", "zero_one", 4)
    with pytest.raises(InputError, match="Pairs of tasks cannot be averaged over subsets of one size"):
        part.pairs(Y, lattice, Mixture.of_size(4, 2))


@pytest.mark.parametrize("base", [Kernel, ProductKernel])
def test_a_kernel_without_its_methods_cannot_be_made(base):
    class Forgotten(base):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Forgotten()


@pytest.mark.parametrize("kernel", [Laplacian, Brownian])
def test_a_new_product_kernel_is_tuned_predicts_and_is_attributed(kernel):
    S = oracles.all_subsets(5)[::-1][:24]
    rng = np.random.default_rng(0)
    y = S @ rng.normal(size=5) + 2 * S[:, 0] * S[:, 1] + 0.01 * rng.normal(size=len(S))
    surrogate = KernelSurrogate(kernel).fit(S, y)
    G = np.array([[np.prod(kernel(np.full(5, surrogate.gamma_)).factor(a, b)) for b in S] for a in S])
    dual = np.linalg.solve(G + surrogate.alpha_ * np.eye(len(S)), y - y.mean())
    np.testing.assert_allclose(surrogate.predict(S), y.mean() + G @ dual, atol=1e-8)
    truth = oracles.table_of(surrogate.predict, 5)
    np.testing.assert_allclose(whence.attribute(surrogate).scores, oracles.shapley(truth), atol=1e-9)
    pairs = whence.interactions(surrogate, "banzhaf").scores
    np.testing.assert_allclose(pairs, oracles.interaction(truth, "banzhaf"), atol=1e-9)
    assert surrogate.export(S, np.arange(1)) is None  # the page's script does not know it


@pytest.mark.parametrize("name", NAMES)
def test_pair_rows_are_a_slice_of_all_pairs(name):
    part, _, lattice, _, Y = setting(name, "standardised", 4)
    nodes, weights = MIXTURES["gauss"]
    everything = part.pairs(Y, lattice, Mixture.over(nodes, weights))(EVERY, EVERY)
    for rows in (slice(0, 1), slice(1, 3), slice(3, 4)):
        for columns in (EVERY, slice(2, None)):
            some = part.pairs(Y, lattice, Mixture.over(nodes, weights))(rows, columns)
            np.testing.assert_allclose(some, everything[:, rows, columns], atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.1, 2.0, 20.0, 1e9])
def test_fewer_nodes_give_the_same_means_of_products(slope):
    """Of factors as steep as they may be, against the integral in closed form."""
    nodes, weights = leggauss(64)
    mixture = Mixture.over((nodes + 1) / 2, weights / 2)
    fewer = mixture.fewer(slope)
    assert len(fewer.present) <= len(mixture.present)
    assert slope > 2 or len(fewer.present) <= 8
    if slope == 0.0:
        np.testing.assert_allclose(fewer.inside.sum(), 1.0)
    for n_tasks in (1, 20, 100) if 0 < slope < 1e9 else ():
        steepness = slope / n_tasks  # of (1 + steepness · q)ᴷ, a product of K factors that are steepest at 0
        truth = np.expm1((n_tasks + 1) * np.log1p(steepness)) / (steepness * (n_tasks + 1))
        np.testing.assert_allclose(fewer.inside @ (1 + steepness * fewer.present) ** n_tasks, truth, rtol=1e-13)
    lopsided = Mixture.over([0.1, 0.2, 0.9], [2.0, -0.5, 0.5])
    assert lopsided.fewer(slope) is lopsided, "weights below zero have no Gauss rule"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lattice_kind", LATTICES)
def test_gram_is_positive_semidefinite_on_all_subsets(name, lattice_kind):
    part, _, _, points, _ = setting(name, lattice_kind, 4)
    values = np.linalg.eigvalsh(part.evaluate(points, points))
    assert values.min() > -1e-10 * values.max()


def test_rbf_distances_never_fall_below_zero():
    X = np.random.default_rng(0).normal(size=(40, 7)) * 30
    assert RBF(np.full(7, 0.3)).evaluate(X, X).max() <= 1.0
    np.testing.assert_allclose(np.diag(RBF(np.full(7, 0.3)).evaluate(X, X)), 1.0)


@pytest.mark.parametrize("rate", [5.0, 20.0])
@pytest.mark.parametrize("mixture", ["none", "all", "half", "gauss"])
def test_rbf_effects_stay_exact_when_neighbours_hardly_see_each_other(rate, mixture):
    nodes, weights = MIXTURES[mixture]
    lattice = Lattice(np.zeros(4), np.ones(4))
    points = oracles.all_subsets(4)
    part, kernel = RBF(np.full(4, rate)), oracles.rbf([rate] * 4)
    against = oracles.gram(kernel, points, points)
    main = part.main(points, lattice, Mixture.over(nodes, weights))
    pair = part.pairs(points, lattice, Mixture.over(nodes, weights))(EVERY, EVERY)
    for k in range(4):
        effect = oracles.effect_weights(4, [k], nodes, weights)
        np.testing.assert_allclose(main[:, k], effect @ against, atol=1e-12)
        for j in range(k):
            effect = oracles.effect_weights(4, [k, j], nodes, weights)
            np.testing.assert_allclose(pair[:, k, j], effect @ against, atol=1e-12)


def test_rbf_mean_of_many_tasks_is_a_product_over_tasks():
    rng = np.random.default_rng(0)
    n_tasks, q = 200, 0.3
    rates, y = rng.uniform(0, 0.05, n_tasks), (rng.random(n_tasks) < 0.5).astype(float)
    expected = 1.0
    for rate, at in zip(rates, y, strict=True):
        expected *= q * np.exp(-rate * (1 - at) ** 2) + (1 - q) * np.exp(-rate * at**2)
    lattice = Lattice(np.zeros(n_tasks), np.ones(n_tasks))
    np.testing.assert_allclose(RBF(rates).mean(y[None], lattice, Mixture.over([q], [1.0])), [expected], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    lattice_kind=st.sampled_from(LATTICES),
    n_tasks=st.integers(1, 5),
    nodes=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    seed=st.integers(0, 10_000),
)
def test_effects_of_random_parts_are_sums_over_all_subsets(name, lattice_kind, n_tasks, nodes, seed):
    part, kernel, lattice, points, Y = setting(name, lattice_kind, n_tasks, seed)
    weights = np.random.default_rng(seed).normal(size=len(nodes))
    k = seed % n_tasks
    effect = oracles.effect_weights(n_tasks, [k], nodes, weights)
    among = oracles.gram(kernel, points, points)
    nodes = np.array(nodes)
    found = part.main(Y, lattice, Mixture.over(nodes, weights))[:, k]
    np.testing.assert_allclose(found, effect @ oracles.gram(kernel, points, Y), atol=1e-8, rtol=1e-8)
    found = part.main_prior(lattice, Mixture.over(nodes, weights))[k]
    np.testing.assert_allclose(found, effect @ among @ effect, atol=1e-8, rtol=1e-8)


# ---- sums of parts ---------------------------------------------------------------------------------------


def a_kernel(n_tasks=4, seed=0):
    rng = np.random.default_rng(seed)
    lattice = lattice_of("standardised", n_tasks, rng)
    table = parts_of(lattice, rng)
    chosen = [table[name] for name in ("constant", "poly1+0.0", "poly2+0.7", "poly3+0.0", "rbf", "size")]
    variances = (0.5, 1.5, 0.0, 0.3, 2.0, 0.7)
    kernel = Sum(tuple(part for part, _ in chosen), variances)
    points = lattice.absent + oracles.all_subsets(n_tasks) * lattice.step
    return kernel, chosen, variances, lattice, points


def test_kernel_is_the_weighted_sum_of_its_parts():
    kernel, chosen, variances, lattice, points = a_kernel()
    nodes, weights = MIXTURES["gauss"]
    expected = sum(v * oracles.gram(k, points, points) for v, (_, k) in zip(variances, chosen, strict=True))
    np.testing.assert_allclose(kernel.evaluate(points, points), expected, atol=1e-12)
    np.testing.assert_allclose(kernel.diag(points), np.diag(expected), atol=1e-12)
    mean = kernel.mean(points, lattice, Mixture.over([0.3], [1.0]))
    np.testing.assert_allclose(mean, oracles.bernoulli_weights(4, 0.3) @ expected, atol=1e-10)
    one = oracles.effect_weights(4, [2], nodes, weights)
    two = oracles.effect_weights(4, [2, 3], nodes, weights)
    close = {"atol": 1e-10, "rtol": 1e-10}
    mixed = Mixture.over(nodes, weights)
    np.testing.assert_allclose(kernel.main(points, lattice, mixed)[:, 2], one @ expected, **close)
    np.testing.assert_allclose(kernel.main_prior(lattice, mixed)[2], one @ expected @ one, **close)
    pairs = kernel.pairs(points, lattice, mixed)(slice(2, 3), EVERY)
    np.testing.assert_allclose(pairs[:, 0, 3], two @ expected, **close)
    np.testing.assert_allclose(
        kernel.pair_prior(lattice, Mixture.over(nodes, weights))[2, 3], two @ expected @ two, **close
    )


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_gram_in_blocks_is_the_gram_at_once(monkeypatch, rows_at_once):
    kernel, _, _, _, points = a_kernel()
    at_once = kernel.evaluate(points, points[:5])
    monkeypatch.setattr(kernels, "BLOCK_BYTES", rows_at_once * 8 * 5)
    sizes = []
    evaluate = RBF.evaluate
    monkeypatch.setattr(RBF, "evaluate", lambda self, X, Y: (sizes.append(len(X)), evaluate(self, X, Y))[1])
    np.testing.assert_allclose(kernel.evaluate(points, points[:5]), at_once, rtol=1e-14)
    assert max(sizes) == min(rows_at_once, len(points))


def test_gram_of_no_rows_has_no_rows():
    kernel, _, _, _, points = a_kernel()
    assert kernel.evaluate(points[:0], points).shape == (0, len(points))
    assert kernel.evaluate(points, points[:0]).shape == (len(points), 0)
