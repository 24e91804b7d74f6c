import pytest
import torch

from whence.errors import InputError
from whence.gradients.projections import (
    CountSketch,
    Gaussian,
    Identity,
    Rademacher,
    Subspace,
    check_rank,
    flatten,
    split,
)

LIKE = {"w": torch.zeros(5, 3), "b": torch.zeros(4)}
KINDS = {
    "gaussian": lambda rank, seed: Gaussian(rank, seed),
    "rademacher": lambda rank, seed: Rademacher(rank, seed),
    "sparse": lambda rank, seed: CountSketch(rank, seed),
    "sparser": lambda rank, seed: CountSketch(rank, seed, nonzeros=3),
    "subspace": lambda rank, seed: Subspace(
        split(torch.randn(rank, 19, generator=torch.Generator().manual_seed(seed)) * rank**-0.5, LIKE)
    ),
}


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return KINDS[request.param]


def test_rows_do_not_depend_on_how_they_are_cut(kind):
    projection = kind(10, 3)
    whole = projection.rows(LIKE, 0, 10)
    assert whole.shape == (10, 19)
    assert torch.equal(whole, torch.cat([projection.rows(LIKE, a, b) for a, b in ((0, 1), (1, 7), (7, 10))]))


def test_projecting_is_multiplying_with_the_dense_matrix(kind):
    projection = kind(10, 3)
    gradients = torch.randn(4, 19, generator=torch.Generator().manual_seed(0))
    expected = gradients.double() @ projection.rows(LIKE, 0, 10).double().T
    torch.testing.assert_close(projection.project(gradients, LIKE).double(), expected, rtol=1e-5, atol=1e-6)


def test_a_seed_is_a_projection(kind):
    assert torch.equal(kind(6, 1).rows(LIKE, 0, 6), kind(6, 1).rows(LIKE, 0, 6))
    assert not torch.equal(kind(6, 1).rows(LIKE, 0, 6), kind(6, 2).rows(LIKE, 0, 6))


@pytest.mark.parametrize("name", ["gaussian", "rademacher", "sparse", "sparser"])
def test_inner_products_are_kept_on_average(name):
    grams = torch.stack([(P := KINDS[name](8, seed).rows(LIKE, 0, 8)).T @ P for seed in range(3000)])
    error = (grams.mean(0) - torch.eye(19)).abs()
    spread = grams.std(0) / 3000**0.5
    assert float((error / spread.clamp_min(1e-6)).masked_fill(error < 1e-6, 0).max()) < 5


@pytest.mark.parametrize("name", ["gaussian", "rademacher", "sparse", "sparser"])
def test_inner_products_get_nearer_with_the_rank_as_johnson_and_lindenstrauss_say(name):
    generator = torch.Generator().manual_seed(0)
    like = {"w": torch.zeros(400)}
    g = torch.nn.functional.normalize(torch.randn(30, 400, generator=generator), dim=1)
    errors = []
    for rank in (16, 64, 256):
        found = torch.stack([KINDS[name](rank, seed).project(g, like) for seed in range(20)])
        errors.append(float(((found @ found.transpose(1, 2)) - g @ g.T).square().mean().sqrt()))
    # The error of an inner product of unit vectors is about 1/√rank.
    for error, rank in zip(errors, (16, 64, 256), strict=True):
        assert 0.5 < error * rank**0.5 < 2


def test_the_identity_is_every_parameter():
    whole = Identity(19)
    assert torch.equal(torch.cat([whole.rows(LIKE, a, b) for a, b in ((0, 1), (1, 7), (7, 19))]), torch.eye(19))
    gradients = torch.randn(4, 19, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole.project(gradients, LIKE), gradients)


def test_flatten_and_split_are_inverse():
    flat = torch.randn(3, 19)
    assert torch.equal(flatten(split(flat, LIKE)), flat)


def test_ranks_that_make_no_sense_are_refused():
    check_rank(19, LIKE)
    for rank in (0, 20):
        with pytest.raises(InputError, match=r"from 1 to the number of parameters, 19 \(w \(5, 3\), b \(4,\)\)"):
            check_rank(rank, LIKE)


def test_directions_of_other_parameters_are_refused():
    with pytest.raises(InputError, match="must be of the parameters that are linearised"):
        Subspace({"w": torch.zeros(2, 3, 5)}).rows(LIKE, 0, 1)
