import copy

import pytest
import torch
from torch import nn

from torch_models import MODELS, made
from whence.errors import InputError
from whence.gradients import linearize as linearizing
from whence.gradients.factored import Kronecker, Layers
from whence.gradients.linearize import linearize
from whence.gradients.projections import CountSketch, Gaussian, Identity, Rademacher, Subspace, flatten, split
from whence.gradients.routes import cheapest_projection, choose_route, prices
from whence.models import memory
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.models.metrics import margin

RANK = 6


def examples_of(inputs, labels):
    return Examples.of({"a": (inputs[:4], labels[:4]), "b": (inputs[4:], labels[4:])})


def kronecker_matrix(output_fn, params, projection):
    """P whole, (rank, d): what becomes of each unit vector."""
    d = sum(value.numel() for value in params.values())
    return Layers(output_fn, params, projection).project(split(torch.eye(d), params)).T


def dense_features(model, inputs, P, readout=lambda outputs: outputs):
    """The whole Jacobian by reverse mode on the model itself, times P."""
    params = {name: value.detach().clone() for name, value in model.named_parameters()}

    def outputs(at):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return readout(torch.func.functional_call(model, at, (inputs,)))

    jacobian = flatten(torch.func.jacrev(outputs)(params), 2)
    return torch.einsum("ncd,rd->ncr", jacobian.double(), P.double())


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("route", ["forward", "reverse"])
@pytest.mark.parametrize("kind", [Gaussian, Rademacher, CountSketch])
def test_features_are_the_projected_jacobian(name, route, kind):
    model, inputs, labels = made(name)
    output_fn, params = functional(model)
    projection = kind(RANK, 1)
    linear = linearize(output_fn, params, examples_of(inputs, labels), projection, route=route, batch_size=5)
    torch.testing.assert_close(linear.outputs, model(inputs).detach(), rtol=1e-5, atol=1e-6)
    expected = dense_features(model, inputs, projection.rows(params, 0, RANK))
    torch.testing.assert_close(linear.features.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_factored_features_are_the_jacobian_times_a_dense_matrix(name):
    model, inputs, labels = made(name)
    output_fn, params = functional(model)
    projection = Kronecker(RANK, 1)
    linear = linearize(output_fn, params, examples_of(inputs, labels), projection, batch_size=5)
    P = kronecker_matrix(output_fn, params, projection)
    torch.testing.assert_close(linear.features.double(), dense_features(model, inputs, P), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("route", ["forward", "reverse", "factored"])
def test_where_memory_is_short_fewer_examples_at_a_time_give_the_same(route, monkeypatch):
    model, inputs, labels = made("attention")
    output_fn, params = functional(model)
    at_once = []

    def watched(at, some):
        at_once.append(len(some))
        return output_fn(at, some)

    projection = Kronecker(RANK, 1) if route == "factored" else Gaussian(RANK, 1)
    given = output_fn if route == "factored" else watched  # layers are found in a module only
    whole = linearize(given, params, examples_of(inputs, labels), projection, route=route)
    each = 3 * memory.bytes_per_row(lambda n: model(inputs[:n]))
    monkeypatch.setattr(linearizing, "free_bytes", lambda device: 4 * each)
    at_once.clear()
    some = linearize(given, params, examples_of(inputs, labels), projection, route=route)
    torch.testing.assert_close(some.features, whole.features, rtol=1e-5, atol=1e-6)
    assert route == "factored" or max(at_once) <= 4 < len(inputs)


def test_layers_may_share_a_weight_and_have_biases_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[4].weight = model[0].weight
    output_fn, params = functional(model)
    projection = Kronecker(RANK, 1)
    linear = linearize(output_fn, params, examples_of(torch.randn(9, 3), torch.zeros(9, dtype=torch.long)), projection)
    P = kronecker_matrix(output_fn, params, projection)
    expected = dense_features(model, linear.examples.inputs, P)
    torch.testing.assert_close(linear.features.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, ["*.weight"], ["*.bias"]])
def test_kronecker_directions_keep_inner_products_on_average(chosen):
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    output_fn, params = functional(model, chosen)
    grams = []
    for seed in range(2000):
        P = kronecker_matrix(output_fn, params, Kronecker(8, seed))
        grams.append(P.T @ P)
    grams = torch.stack(grams)
    error, spread = (grams.mean(0) - torch.eye(len(P.T))).abs(), grams.std(0) / 2000**0.5
    assert float((error / spread.clamp_min(1e-6)).masked_fill(error < 1e-6, 0).max()) < 5


HEADS = {
    "few outputs": (lambda: nn.Linear(64, 10), None),
    "few inputs": (lambda: nn.Linear(5, 300), None),
    "without a bias": (lambda: nn.Linear(40, 3, bias=False), None),
    "all of it": (lambda: nn.Linear(7, 4), None),
    "two layers": (lambda: nn.Sequential(nn.Linear(30, 6), nn.LayerNorm(6), nn.Linear(6, 9)), None),
    "many small layers": (lambda: nn.Sequential(*(nn.Linear(5, 5) for _ in range(9))), None),
    "biases only": (lambda: nn.Sequential(nn.Linear(9, 12), nn.Linear(12, 3)), ["*.bias"]),
    "wide": (lambda: nn.Linear(70, 50), None),
}


@pytest.mark.parametrize("name", sorted(HEADS))
@pytest.mark.parametrize("rank", [24, 96, 127])
def test_kronecker_directions_span_as_many_as_the_layers_allow(name, rank):
    make, chosen = HEADS[name]
    output_fn, params = functional(make(), chosen)
    spanned = Layers(output_fn, params, Kronecker(rank, 0)).spanned
    P = kronecker_matrix(output_fn, params, Kronecker(rank, 0)).double()
    assert spanned == int(torch.linalg.matrix_rank(P))
    d = sum(value.numel() for value in params.values())
    if name != "biases only":  # which are put where chance has it
        lost = max(min(value.shape) - 1 for value in params.values())  # what no whole row of directions is left for
        assert min(d, rank - lost) <= spanned <= min(d, rank)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_capped_sides_still_give_the_projected_jacobian(name):
    make, chosen = HEADS[name]
    model = make()
    inputs = torch.randn(9, next(model.parameters()).shape[1], generator=torch.Generator().manual_seed(0))
    output_fn, params = functional(model, chosen)
    linear = linearize(output_fn, params, examples_of(inputs, torch.zeros(9)), Kronecker(15, 1))
    P = torch.zeros(15, sum(value.numel() for value in model.parameters()))
    kept = [name in params for name, value in model.named_parameters() for _ in range(value.numel())]
    P[:, torch.tensor(kept)] = kronecker_matrix(output_fn, params, Kronecker(15, 1))
    torch.testing.assert_close(linear.features.double(), dense_features(model, inputs, P), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("route", ["forward", "reverse"])
def test_the_identity_gives_the_jacobian_itself(route):
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    linear = linearize(output_fn, params, examples_of(inputs, labels), Identity(51), route=route)
    expected = dense_features(model, inputs, torch.eye(51))
    torch.testing.assert_close(linear.features.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("route", ["forward", "reverse", "factored"])
def test_the_margin_is_one_output_for_all_classes(route):
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    projection = Kronecker(RANK, 1) if route == "factored" else Gaussian(RANK, 1)
    linear = linearize(output_fn, params, examples_of(inputs, labels), projection, route=route, of="margin")
    P = (
        kronecker_matrix(output_fn, params, projection)
        if isinstance(projection, Kronecker)
        else projection.rows(params, 0, RANK)
    )
    expected = dense_features(model, inputs, P, lambda outputs: margin(outputs, labels)[:, None])
    torch.testing.assert_close(linear.features.double(), expected, rtol=1e-4, atol=1e-5)
    assert linear.examples.labels.tolist() == [1.0] * 9


def test_all_parameters_along_an_orthonormal_basis_are_the_jacobian_itself():
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    d = sum(value.numel() for value in params.values())
    basis = Subspace(split(torch.eye(d), params))
    linear = linearize(output_fn, params, examples_of(inputs, labels), basis)
    torch.testing.assert_close(
        linear.features.double(), dense_features(model, inputs, torch.eye(d)), rtol=1e-4, atol=1e-6
    )


def test_only_the_chosen_parameters_move():
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model, "2.*")
    linear = linearize(output_fn, params, examples_of(inputs, labels), Gaussian(RANK))
    full = torch.zeros(RANK, sum(value.numel() for value in model.parameters()))
    full[:, -sum(value.numel() for value in params.values()) :] = Gaussian(RANK).rows(params, 0, RANK)
    torch.testing.assert_close(linear.features.double(), dense_features(model, inputs, full), rtol=1e-4, atol=1e-5)


def test_the_model_is_left_as_it_was():
    model, inputs, labels = made("images")
    model.train()
    before = copy.deepcopy(model.state_dict())
    output_fn, params = functional(model)
    for projection in (Gaussian(RANK), Kronecker(RANK)):
        linearize(output_fn, params, examples_of(inputs, labels), projection)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())


def test_half_precision_is_near():
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    exact, rough = (
        linearize(output_fn, params, examples_of(inputs, labels), Gaussian(RANK), precision=precision)
        for precision in ("float32", "bfloat16")
    )
    assert rough.features.dtype == torch.float32
    assert 0 < float((exact.features - rough.features).norm() / exact.features.norm()) < 0.05


def test_lower_ranks_are_the_first_directions_rescaled():
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    linear = linearize(output_fn, params, examples_of(inputs, labels), Gaussian(8))
    torch.testing.assert_close(linear.leading(2).features, linear.features[:, :, :2] * 2)
    torch.testing.assert_close(linear.leading(2, rescale=False).features, linear.features[:, :, :2])
    with pytest.raises(InputError, match="from 1 to 8"):
        linear.leading(9)


def test_the_cheapest_route_is_taken_and_told():
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    few, many = examples_of(inputs, labels), Gaussian(2)
    told = prices(output_fn, params, few, many, 3)
    # 42 products per example are 84 flops; P is 51 × 2, for each of three outputs.
    assert told == {"forward": 5.0, "reverse": pytest.approx(1 + 3 * (3 + 2 * 51 * 2 / 84))}
    assert choose_route(told, "auto", many) == ("forward", "forward mode, about 5 forward passes (reverse mode: 17)")
    assert linearize(output_fn, params, few, Gaussian(40)).route.startswith("forward mode")
    assert linearize(output_fn, params, few, Gaussian(40), of="margin").route.startswith("reverse mode")
    assert isinstance(cheapest_projection(output_fn, params, few, 12, 0, 3), Kronecker)
    assert isinstance(cheapest_projection(output_fn, params, few, 1, 0, 3), Gaussian)
    assert isinstance(cheapest_projection(lambda p, x: output_fn(p, x), params, few, 12, 0, 3), Gaussian)
    # 51 parameters are at most four times 13.
    assert cheapest_projection(output_fn, params, few, 13, 0, 3) == Identity(51)
    told = prices(output_fn, params, few, Identity(51), 3)
    assert told == {"forward": 1 + 2 * 51, "reverse": 1 + 3 * 3}


def test_layers_that_the_factored_route_does_not_know_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2))
    output_fn, params = functional(model)
    with pytest.raises(InputError, match=r"It cannot take 1.weight \(in PReLU\)"):
        Layers.checked(output_fn, params, Kronecker(4), torch.randn(3, 4))
    assert Layers.checked(*functional(model, ["0.*", "2.*"]), Kronecker(4), torch.randn(3, 4)).factors


class Hidden(nn.Module):
    """Uses the weights of a layer behind its back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) @ self.layer.weight


def test_uses_that_hooks_do_not_see_are_refused():
    output_fn, params = functional(Hidden())
    with pytest.raises(InputError, match="does not see all uses"):
        Layers.checked(output_fn, params, Kronecker(4), torch.randn(3, 4))
    assert isinstance(
        cheapest_projection(output_fn, params, examples_of(torch.randn(9, 4), torch.zeros(9).long()), 4, 0, 1),
        Gaussian,
    )


def broken(problem):
    model, inputs, labels = made("perceptron")
    output_fn, params = functional(model)
    calls = iter(range(100))
    functions = {
        "random": lambda p, x: output_fn(p, x) + next(calls),
        "shape": lambda p, x: output_fn(p, x).sum(0, keepdim=True),
        "nan": lambda p, x: output_fn(p, x) + torch.where(x[:, :1] == inputs[6, 0], torch.nan, 0.0),
        "apart": lambda p, x: x[:, :3],
    }
    return functions[problem], params, examples_of(inputs, labels)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("random", "is not deterministic: two passes over the same examples differ"),
        ("shape", r"a row of outputs per example, \(4, C\). Got \(1, 3\)"),
        ("nan", "outputs for the examples are not finite, first for example 2 of 'b'"),
        ("apart", "do not depend on any of the chosen parameters"),
    ],
)
def test_models_that_cannot_be_linearised_are_refused(problem, text):
    with pytest.raises(InputError, match=text):
        linearize(*broken(problem), Gaussian(RANK), route="forward")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"route": "sideways"}, "no route 'sideways'"),
        ({"route": "factored"}, "factored route does not go with Gaussian"),
        ({"of": "logits"}, "must be 'outputs' or 'margin'"),
        ({"precision": "int8"}, "must be 'float32' or 'bfloat16'"),
    ],
)
def test_settings_that_do_not_exist_are_refused(change, text):
    model, inputs, labels = made("perceptron")
    with pytest.raises(InputError, match=text):
        linearize(*functional(model), examples_of(inputs, labels), Gaussian(RANK), **change)
