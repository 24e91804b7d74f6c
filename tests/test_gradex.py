import warnings

import numpy as np
import pytest
import torch
from torch import nn

import whence
from torch_models import perceptron
from whence import Features, Problem
from whence.errors import DataWarning, InputError
from whence.estimators.gradex import GradEx
from whence.estimators.linearity import linearization_error
from whence.evaluation import lds
from whence.gradients.projections import Gaussian, Identity, Subspace, split
from whence.models.recipe import Recipe
from whence.models.stack import Stack
from whence.models.training import train

K, D = 4, 5
SUBSETS = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 0], [0.5, 2.0, 0, 0]])


def problem(loss="cross_entropy", *, n=12, seed=0, dtype=torch.float64):
    """Groups of unequal size around different lines, and queries."""
    g = torch.Generator().manual_seed(seed)
    tasks = {}
    for k in range(K):
        x = torch.randn(n + 3 * k, D, generator=g, dtype=dtype)
        tasks[f"t{k}"] = (x, _labels(x, k, loss, g))
    x = torch.randn(15, D, generator=g, dtype=dtype)
    return tasks, (x, _labels(x, 1, loss, g))


def _labels(x, k, loss, g):
    slope = torch.randn(D, 3, generator=torch.Generator().manual_seed(100 + k), dtype=x.dtype)
    noise = 0.5 * torch.randn(len(x), 3, generator=g, dtype=x.dtype)
    if loss == "squared":
        return (x @ slope + noise)[:, :2]
    return ((x @ slope + noise).argmax(1) > 0).long() if loss == "logistic" else (x @ slope + noise).argmax(1)


def linear_model(loss):
    torch.manual_seed(1)
    return nn.Linear(D, {"cross_entropy": 3, "logistic": 1, "squared": 2}[loss]).double()


def whole_space(model):
    params = {name: value.detach() for name, value in model.named_parameters()}
    d = sum(value.numel() for value in params.values())
    return Subspace(split(torch.eye(d, dtype=torch.float64), params))


def retrained(model, tasks, target, subset, loss, l2, weighting):
    """Train the model itself, to the end, with a general optimiser, and return the losses of the queries."""
    functions = {
        "cross_entropy": lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"),
        "logistic": lambda o, y: nn.functional.binary_cross_entropy_with_logits(o[:, 0], y.double(), reduction="none"),
        "squared": lambda o, y: ((o - y) ** 2).sum(1) / 2,
    }
    per_example = functions[loss]
    import copy

    moved = copy.deepcopy(model)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.LBFGS(
        moved.parameters(), max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )
    sizes = np.array([len(y) for _, y in tasks.values()])
    share = subset * (sizes if weighting == "sample" else 1)
    share = share / share.sum()

    def closure():
        optimizer.zero_grad()
        total = sum(
            s * per_example(moved(x), y).mean() for s, (x, y) in zip(share, tasks.values(), strict=True) if s > 0
        )
        total = total + l2 / 2 * sum(((p - q) ** 2).sum() for p, q in zip(moved.parameters(), start, strict=True))
        total.backward()
        return total

    optimizer.step(closure)
    with torch.no_grad():
        return per_example(moved(target[0]), target[1]).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "squared"])
@pytest.mark.parametrize("weighting", ["task", "sample"])
def test_for_a_model_that_is_linear_it_is_retraining(loss, weighting):
    model, (tasks, target) = linear_model(loss), problem(loss)
    given = Problem(model, tasks, target, loss=loss, per_query=True)
    gradex = GradEx(given, projection=whole_space(model), l2=0.05, weighting=weighting, tol=1e-13)
    found = gradex.batch(SUBSETS)["loss"]
    for row, subset in zip(found, SUBSETS, strict=True):
        expected = retrained(model, tasks, target, subset, loss, 0.05, weighting)
        np.testing.assert_allclose(row, expected, rtol=2e-3, atol=2e-5)  # features are float32


@pytest.mark.slow
@pytest.mark.parametrize(("n_in", "n_out", "bias"), [(64, 10, True), (64, 10, False), (5, 3, True), (3, 40, True)])
def test_for_a_linear_head_it_is_retraining_with_default_settings(n_in, n_out, bias):
    g = torch.Generator().manual_seed(n_in + n_out)
    torch.manual_seed(1)
    model, slope = nn.Linear(n_in, n_out, bias=bias), torch.randn(n_in, n_out, generator=g)

    def group(n):
        x = torch.randn(n, n_in, generator=g).abs()
        return x, (x @ slope + torch.randn(n, n_out, generator=g)).argmax(1)

    tasks, target = {f"t{k}": group(20 + 5 * k) for k in range(K)}, group(30)
    gradex = GradEx(Problem(model, tasks, target, per_query=True))
    found = gradex.batch(SUBSETS)["loss"]
    (member,) = gradex.members
    d = sum(value.numel() for value in model.parameters())
    assert member.tasks.rank == d
    assert f"{d} of {d} directions" in gradex.provenance["gradex"]
    double = [{name: (x.double(), y) for name, (x, y) in tasks.items()}, (target[0].double(), target[1])]
    for row, subset in zip(found, SUBSETS, strict=True):
        expected = retrained(model.double(), *double, subset, "cross_entropy", member.l2, gradex.weighting)
        np.testing.assert_allclose(row, expected, rtol=0, atol=0.01 * expected.std())  # the solver stops near it


@pytest.mark.parametrize("n_out", [10, 700])
def test_what_is_really_spanned_is_told(n_out):
    x, y = torch.randn(20, 64), torch.zeros(20, dtype=torch.long)
    gradex = GradEx(Problem(nn.Linear(64, n_out), {"a": (x, y)}, (x, y)), projection="kronecker")
    told = {10: "510 of 650 directions", 700: "512 of 45500 directions"}
    assert gradex.provenance["gradex"].startswith(told[n_out])


def test_the_margin_of_two_classes_is_retraining_too():
    torch.manual_seed(1)
    model = nn.Linear(D, 2).double()
    tasks, target = problem("logistic")
    gradex = GradEx(
        Problem(model, tasks, target, per_query=True),
        projection=whole_space(model),
        l2=0.05,
        of="margin",
        weighting="task",
        tol=1e-13,
    )
    found = gradex.batch(SUBSETS)["loss"]
    for row, subset in zip(found, SUBSETS, strict=True):
        expected = retrained(model, tasks, target, subset, "cross_entropy", 0.05, "task")
        np.testing.assert_allclose(row, expected, rtol=2e-3, atol=2e-5)


def test_projections_come_nearer_to_the_whole_space_as_the_rank_grows():
    torch.manual_seed(0)
    model, (tasks, target) = nn.Linear(D, 3).double(), problem()
    given, settings = Problem(model, tasks, target, per_query=True), {"l2": 0.05}
    exact = GradEx(given, projection=whole_space(model), **settings).batch(SUBSETS)["loss"]
    errors = []
    for rank in (3, 9, 18):
        many = [GradEx(given, projection=Gaussian(rank, seed), **settings).batch(SUBSETS)["loss"] for seed in range(10)]
        errors.append(np.sqrt(np.mean((np.stack(many) - exact) ** 2)))
    assert errors[0] > 1.3 * errors[1] > 1.3 * errors[2]


def test_outcomes_are_named_by_target_and_metric():
    model, (tasks, target) = linear_model("cross_entropy"), problem()
    two = {"near": target, "far": (2 * target[0], target[1])}
    gradex = GradEx(Problem(model, tasks, two, metrics=["loss", "accuracy", "margin"]), rank=6)
    found = gradex(["t0", "t2"])
    assert list(found) == ["near/loss", "far/loss", "near/accuracy", "far/accuracy", "near/margin", "far/margin"]
    assert gradex.maximize == ("near/accuracy", "far/accuracy", "near/margin", "far/margin")
    whole = GradEx(Problem(model, tasks, two, metrics="loss", per_query=True), rank=6).batch([[1, 0, 1, 0]])
    assert whole["near/loss"].shape == (1, 15)
    assert found["near/loss"] == pytest.approx(whole["near/loss"].mean(), rel=1e-6)


def test_the_empty_subset_is_the_model_as_it_is():
    model, (tasks, target) = linear_model("cross_entropy"), problem()
    found = GradEx(Problem(model, tasks, target, per_query=True), rank=6).batch(np.zeros((1, K)))["loss"][0]
    expected = nn.functional.cross_entropy(model(target[0]), target[1], reduction="none").detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_members_are_averaged():
    model, (tasks, target) = perceptron_of(0), problem(dtype=torch.float32)
    others = [perceptron_of(seed) for seed in (1, 2)]
    settings = {"projection": "gaussian", "rank": 7, "l2": 0.01}
    together = GradEx(Problem(model, tasks, target), checkpoints=others, n_projections=2, **settings)
    alone = [
        GradEx(Problem(point, tasks, target), seed=seed, **settings).batch(SUBSETS)["loss"]
        for point in others
        for seed in (0, 1)
    ]
    assert len(together.members) == 4
    np.testing.assert_allclose(together.batch(SUBSETS)["loss"], np.mean(alone, axis=0), rtol=1e-5)


def perceptron_of(seed, width=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, width), nn.Tanh(), nn.Linear(width, 3))


def test_fewer_examples_keep_the_weights_of_tasks():
    model, (tasks, target) = linear_model("squared"), problem("squared")
    some = {name: (x[:6].repeat(k + 1, 1), y[:6].repeat(k + 1, 1)) for k, (name, (x, y)) in enumerate(tasks.items())}
    six = {name: (x[:6], y[:6]) for name, (x, y) in tasks.items()}
    whole, few, full = (Problem(model, given, target, loss="squared") for given in (some, six, tasks))
    settings = {"weighting": "sample", "projection": whole_space(model), "l2": 0.1}
    gradex = GradEx(few, **settings)
    gradex.problem = whole  # sizes 6, 12, 18, 24 but six examples of each
    np.testing.assert_allclose(
        gradex.batch(SUBSETS)["loss"], GradEx(whole, **settings).batch(SUBSETS)["loss"], rtol=1e-6
    )
    assert GradEx(full, features=Features(examples=5), **settings).examples.sizes.tolist() == [5] * K
    with pytest.raises(
        InputError, match=r"'examples' parameter of Features must be an integer of at least 1. Got 0 instead"
    ):
        Features(examples=0)


def test_the_usual_penalty_does_not_depend_on_the_scale_of_the_model():
    tasks, target = problem(dtype=torch.float32)
    model = perceptron_of(0)
    small = GradEx(Problem(model, tasks, target, params="2.*"), projection="gaussian", rank=9)
    bigger = {name: (x, y) for name, (x, y) in tasks.items()}
    wide = nn.Sequential(*model[:2], Scaled(model[2], 100.0))
    large = GradEx(Problem(wide, bigger, target, params="2.layer.*"), projection="gaussian", rank=9)
    np.testing.assert_allclose(large.batch(SUBSETS)["loss"], small.batch(SUBSETS)["loss"], rtol=1e-3)


class Scaled(nn.Module):
    """The same layer with weights in other units."""

    def __init__(self, layer, factor):
        super().__init__()
        self.factor, self.layer = factor, nn.Linear(layer.in_features, layer.out_features)
        with torch.no_grad():
            self.layer.weight.copy_(layer.weight / factor)
            self.layer.bias.copy_(layer.bias / factor)

    def forward(self, x):
        return self.layer(x) * self.factor


def fine_tuned(seed=0):
    """A network with two hidden layers, and true outcomes of training it on subsets of six tasks."""
    g = torch.Generator().manual_seed(seed)
    slopes = torch.randn(6, 8, 3, generator=g)

    def labelled(k, x):
        return x, (2 * (x @ (slopes[0] + 0.8 * slopes[k])).sin() + 0.5 * x**2 @ slopes[k]).argmax(1)

    tasks = {f"t{k}": labelled(k, torch.randn(60, 8, generator=g)) for k in range(6)}
    target = labelled(0, torch.randn(40, 8, generator=g))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    recipe = Recipe(steps=60, lr=0.003, batch_size=32)
    subsets = whence.FixedSize(3).draw(6, 20, seed=0)
    truth = whence.Retrain(Problem(model, tasks, target, per_query=True), recipe, batched=True)
    values = np.mean([truth.batch(subsets, np.full(20, s))["loss"] for s in range(4)], axis=0)
    names = [f"loss[{i}]" for i in range(40)]
    return model, tasks, target, recipe, whence.Outcomes(subsets, values, target_names=names)


@pytest.mark.slow
def test_along_a_joint_run_few_directions_say_more():
    scores = []
    for seed in range(3):
        model, tasks, target, recipe, truth = fine_tuned(seed)
        given = Problem(model, tasks, target, per_query=True)
        along = GradEx.along(given, recipe, seed=9, rank=12)
        at_start = GradEx(given, projection="gaussian", weighting="sample", rank=12)
        scores.append([lds(one.batch(truth.subsets)["loss"], truth).mean for one in (at_start, along)])
    before, after = np.mean(scores, axis=0)
    assert after > before + 0.05
    assert after > 0.85


def test_directions_of_a_joint_run_are_orthonormal_and_hold_its_way():
    model, tasks, target, recipe, _ = fine_tuned()
    along = GradEx.along(Problem(model, tasks, target), recipe, rank=24, seed=9)
    params = {name: value.detach() for name, value in model.named_parameters()}
    rows = along.projection(0).rows(params, 0, along.projection(0).rank)
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-3)
    for _, point in along.points:
        way = torch.cat([(point[name] - value).flatten() for name, value in params.items()])
        torch.testing.assert_close(rows.T @ (rows @ way), way, rtol=0, atol=1e-3 * float(way.norm()))
    assert "joint run" in along.provenance["gradex"]


def test_other_directions_along_a_joint_run_are_those_of_its_checkpoints():
    model, tasks, target, recipe, truth = fine_tuned()
    given = Problem(model, tasks, target, per_query=True)
    along = GradEx.along(given, recipe, rank=40, projection="gaussian", at=(0.25, 0.75), seed=9)
    everything, stack = np.ones((1, 6)), Stack(given, batched=False)
    states = [train(stack, recipe, stack.start(1), everything, np.array([9]), steps=n) for n in (15, 45)]
    points = [{name: value[0] for name, value in state.items()} for state in states]
    same = GradEx(given, 40, projection="gaussian", checkpoints=points, seed=9)
    np.testing.assert_allclose(along.batch(truth.subsets)["loss"], same.batch(truth.subsets)["loss"], rtol=1e-5)


def test_updates_along_a_joint_run_are_measured_from_the_start():
    model, tasks, target, recipe, _ = fine_tuned()
    along = GradEx.along(Problem(model, tasks, target, per_query=True), recipe, rank=24, seed=9, at=(0.5,))
    (_, point), params = along.points[0], {name: value.detach() for name, value in model.named_parameters()}
    way = torch.cat([(point[name] - value).flatten() for name, value in params.items()])
    there = along.projection(0).rows(params, 0, along.projection(0).rank) @ way
    found = along.members[0].targets.values(there[None], along.metrics)["loss"][0]
    outputs = torch.func.functional_call(model, point, (target[0],))
    torch.testing.assert_close(
        found, nn.functional.cross_entropy(outputs, target[1], reduction="none"), rtol=1e-3, atol=1e-3
    )


def test_true_runs_choose_the_settings():
    model, tasks, target, _, truth = fine_tuned()
    other = {name: value + 0.05 * torch.randn_like(value) for name, value in model.state_dict().items()}
    gradex = GradEx(
        Problem(model, tasks, target, per_query=True), projection="gaussian", rank=48, checkpoints=[model, other]
    )
    best = gradex.tuned(truth, factors=(100, 1, 0.01))
    tried = {(s.factor, s.rank, s.points): s.agreement for s in best.tried}
    assert set(tried) == {(f, r, p) for f in (100, 1, 0.01) for r in (12, 48) for p in ((0, 1), (0,), (1,))}
    from whence.estimators.truth import agreement

    assert agreement(best.batch(truth.subsets)["loss"], truth.values) == pytest.approx(max(tried.values()))
    # The usual settings are among those tried, and are what they are without tuning.
    assert tried[1, 48, (0, 1)] == pytest.approx(agreement(gradex.batch(truth.subsets)["loss"], truth.values))


def test_measure_and_fit_take_it():
    model, (tasks, target) = linear_model("squared"), problem("squared")
    gradex = GradEx(Problem(model, tasks, target, loss="squared"), projection=whole_space(model), l2=0.1)
    runs = whence.measure(gradex, whence.Exhaustive())
    assert runs.task_names == ("t0", "t1", "t2", "t3")
    assert runs.n_runs == 15
    assert runs.provenance["outcomes"] == "GradEx"
    np.testing.assert_allclose(runs.values[:, 0], gradex.batch(runs.subsets)["loss"])
    model = whence.fit(runs)
    assert whence.attribute(model).scores.shape == (4, 1)


def test_a_store_is_taken_up(tmp_path):
    model, (tasks, target) = perceptron_of(0), problem(dtype=torch.float32)
    settings = {"rank": 6, "features": Features(store=tmp_path / "features"), "projection": "gaussian"}
    first = GradEx(Problem(model, tasks, target), **settings).batch(SUBSETS)["loss"]
    assert {p.name for p in (tmp_path / "features").iterdir()} == {
        "point0_projection0_tasks",
        "point0_projection0_target",
    }
    np.testing.assert_array_equal(GradEx(Problem(model, tasks, target), **settings).batch(SUBSETS)["loss"], first)
    with pytest.raises(InputError, match="is of something else: model"):
        GradEx(Problem(perceptron_of(1), tasks, target), **settings).batch(SUBSETS)


def test_a_model_that_has_learned_the_tasks_is_told():
    model, (tasks, target) = perceptron_of(0, 64), problem(dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, y = (torch.cat(part) for part in zip(*tasks.values(), strict=True))
    for _ in range(1500):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with pytest.warns(DataWarning, match=r"The model has learned the tasks already \(loss .*gradients vanish"):
        GradEx(Problem(model, tasks, target), rank=6).batch(SUBSETS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradEx(Problem(perceptron_of(1, 64), tasks, target), rank=6).batch(SUBSETS)


def test_the_first_order_error_by_its_definition():
    before, after = perceptron(), perceptron()
    x = torch.randn(7, 4)
    params = [p.detach() for p in before.parameters()]
    step = [q.detach() - p for p, q in zip(params, after.parameters(), strict=True)]
    names = [name for name, _ in before.named_parameters()]

    def outputs(*at):
        return torch.func.functional_call(before, dict(zip(names, at, strict=True)), (x,))

    start, slope = torch.autograd.functional.jvp(outputs, tuple(params), tuple(step))
    end = after(x).detach()
    error = (end - start - slope).norm(dim=1)
    group = (x, torch.zeros(7, dtype=torch.long))
    given = Problem(before, {"a": group}, group)
    np.testing.assert_allclose(linearization_error(given, after), error / end.norm(dim=1), rtol=1e-4)
    np.testing.assert_allclose(
        linearization_error(given, after, (x[:3], x[:3])), (error / end.norm(dim=1))[:3], rtol=1e-4
    )
    changed = linearization_error(given, after.state_dict(), relative_to="change")
    np.testing.assert_allclose(changed, error / (end - start).norm(dim=1), rtol=1e-4)
    with pytest.raises(InputError, match=r"'relative_to' parameter .* must be 'outputs' or 'change'"):
        linearization_error(given, after, relative_to="loss")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 0}, "from 1 to the number of parameters, 147"),
        ({"rank": 100_000, "projection": "gaussian"}, "from 1 to the number of parameters, 147"),
        ({"projection": "gauss"}, "no projection 'gauss'. Did you mean 'gaussian'"),
        ({"projection": Gaussian(5), "n_projections": 2}, "name their kind"),
        ({"params": "3.*"}, "no parameter named '3.\\*'"),
        ({"of": "margin", "metrics": "accuracy"}, "not known from the margin"),
        ({"loss": "squared", "of": "margin"}, "needs a label for each output"),
        ({"checkpoints": [{"0.weight": torch.zeros(2, 2)}]}, "has no parameter '0.bias'"),
        ({"checkpoints": [nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, 3))]}, r"must have shape \(16, 5\)"),
    ],
)
def test_what_makes_no_sense_is_refused(change, text):
    tasks, target = problem(dtype=torch.float32)
    of_problem = {name: change[name] for name in ("params", "metrics", "loss") if name in change}
    others = {name: value for name, value in change.items() if name not in of_problem}
    with pytest.raises(InputError, match=text):
        GradEx(Problem(perceptron_of(0), tasks, target, **of_problem), **others)


def test_a_task_without_examples_and_labels_out_of_range_are_refused():
    tasks, target = problem(dtype=torch.float32)
    with pytest.raises(InputError, match=r"tasks\['t1'\] has no examples"):
        GradEx(Problem(perceptron_of(0), {**tasks, "t1": (torch.zeros(0, D), torch.zeros(0).long())}, target))
    with pytest.raises(InputError, match=r"must be from 0 to 2, one per output\. Got 7"):
        GradEx(Problem(perceptron_of(0), {**tasks, "t1": (torch.zeros(2, D), torch.tensor([0, 7]))}, target))


@pytest.mark.parametrize("rank", [7, None])
def test_the_papers_settings_are_its_algorithm_as_written(rank):
    """Sum of cross-entropies + λ/2 ‖Z‖² over the rows of a Gaussian P: dense gradients, and scipy's minimiser."""
    from scipy.optimize import minimize

    tasks, target = problem(dtype=torch.float32)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 3))
    params = {name: value.detach() for name, value in model.named_parameters()}
    d = sum(value.numel() for value in params.values())
    given = Problem(model, tasks, target, per_query=True)
    if rank is None:  # P = I, and a penalty of one's own
        gradex = GradEx(given, settings="paper", projection=Identity(d), l2=2.0, tol=1e-12)
        P, l2 = np.eye(d), 2.0
    else:
        gradex = GradEx(given, rank=rank, settings="paper", seed=3, tol=1e-12)
        P, l2 = Gaussian(rank, seed=3).rows(params, 0, rank).numpy().astype(float), 0.1

    def linear(x):  # outputs (n, 3), and projected gradients (n, 3, rank)
        jacobian = torch.func.jacrev(lambda at: torch.func.functional_call(model, at, (x,)))(params)
        dense = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2).double().numpy()
        return model(x).detach().double().numpy(), dense @ P.T

    def losses(outputs, labels):
        return np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(labels)), labels]

    queries, slopes = linear(target[0])
    for subset, found in zip(SUBSETS, gradex.batch(SUBSETS)["loss"], strict=True):
        parts = [(w, *linear(x), y.numpy()) for w, (x, y) in zip(subset, tasks.values(), strict=True) if w]

        def objective(z, parts=parts):
            return sum(w * losses(f + g @ z, y).sum() for w, f, g, y in parts) + l2 / 2 * z @ z

        z = minimize(objective, np.zeros(len(P)), method="BFGS", options={"gtol": 1e-7}).x
        np.testing.assert_allclose(found, losses(queries + slopes @ z, target[1].numpy()), rtol=2e-3, atol=1e-4)


def test_the_papers_settings_refuse_what_they_do_not_have():
    tasks, target = problem()
    given = Problem(linear_model("cross_entropy"), tasks, target)
    with pytest.raises(InputError, match=r"must be 'usual' or 'paper'\. Got 'papr' instead"):
        GradEx(given, settings="papr")
    with pytest.raises(InputError, match="losses of all examples are added up: leave out 'weighting'"):
        GradEx(given, settings="paper", weighting="task")


def test_the_papers_surrogate_of_a_problem_is_one_call():
    tasks, target = problem(dtype=torch.float32)
    gradex = GradEx(Problem(linear_model("cross_entropy").float(), tasks, target), rank=9, settings="paper")
    surrogate = gradex.surrogate(whence.Exhaustive(), seed=0)
    S = whence.Exhaustive().draw(K)
    F = gradex.batch(S)["loss"]

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(2) / K)

    theta = np.linalg.solve(kernel(S, S) + 0.1 * np.eye(len(S)), F)
    new = np.array([[1.0, 0, 0, 1], [0, 1, 1, 1]])
    np.testing.assert_allclose(surrogate.predict(new)[:, 0], kernel(new, S) @ theta, rtol=1e-6)
