"""One Problem for every estimator and baseline: what they take, what they share, and what they must not change."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import whence
from torch_models import Attention, perceptron
from whence import (
    DataWarning,
    Features,
    GradEx,
    InputError,
    JointScores,
    OneStep,
    Problem,
    Recipe,
    Refit,
    Retrain,
    TaskVectors,
)
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
from whence.estimators.linearity import linearization_error
from whence.estimators.trajectory import trace
from whence.gradients import groups
from whence.models.optimizers import OPTIMIZERS, SGD, AdamW, Optimizer
from whence.models.points import points_of
from whence.models.stack import Stack

RECIPE = Recipe(steps=4, lr=0.05, batch_size=None)
SUBSETS = np.array([[1.0, 1, 0], [0, 1, 1], [1, 1, 1]])
SIZES = (4, 9, 20)


def unequal(metrics="loss", **settings):
    """A small problem whose tasks have very different sizes."""
    generator = torch.Generator().manual_seed(0)

    def group(n, k):
        inputs = torch.randn(n, 4, generator=generator) + k
        return inputs, torch.randint(3, (n,), generator=generator)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = perceptron()
    tasks = {f"t{k}": group(n, k) for k, n in enumerate(SIZES)}
    return Problem(model, tasks, {"x": group(5, 0), "y": group(3, 1)}, metrics=metrics, **settings)


def outcomes(estimator):
    batch = getattr(estimator, "batch", None)
    found = batch(SUBSETS, np.zeros(len(SUBSETS), int)) if batch else [estimator(row, 0) for row in SUBSETS]
    return np.stack(list(found.values()), axis=-1) if batch else np.array([list(one.values()) for one in found])


def by_recipe(make, problem, weighting=None):
    recipe = RECIPE if weighting is None else Recipe(steps=4, lr=0.05, batch_size=None, weighting=weighting)
    return outcomes(make(problem, recipe))


def by_option(make, problem, weighting=None):
    found = make(problem) if weighting is None else make(problem, weighting=weighting)
    return found.coef_ if hasattr(found, "coef_") else outcomes(found)


SAMPLER = Langevin(damping=5.0, chains=20, draws=40, thin=2, step_size=1e-3)
METHODS = {
    "retrain": partial(by_recipe, Retrain),
    "task vectors": partial(by_recipe, TaskVectors),
    "one step": partial(by_recipe, OneStep),
    "one step without a recipe": partial(by_option, OneStep),
    "GradEx": partial(by_option, partial(GradEx, rank=8, projection="gaussian")),
    "GradEx along a run": partial(by_recipe, partial(GradEx.along, rank=9)),
    "scores": partial(by_recipe, JointScores),
    "influence": partial(by_option, partial(influence_scores, curvature="gauss_newton", damping=0.1)),
    "TracIn": partial(by_option, partial(tracin_scores, learning_rates=[0.1])),
    "TRAK": partial(by_option, partial(trak_scores, rank=8, projection="gaussian", l2=0.1)),
    "SOURCE": partial(by_option, partial(source_scores, segments=[[perceptron()]], learning_rates=[0.1], steps=[20])),
    "BIF": partial(by_option, partial(bif_scores, sampler=SAMPLER)),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
ENTRY_POINTS = [
    Problem, Recipe, Features, AdamW, SGD, Retrain, Refit, TaskVectors, OneStep, GradEx, GradEx.along, influence_scores,
    tracin_scores, trak_scores, source_scores, bif_scores, linearization_error, Exact, CG, LiSSA, EKFAC, Langevin,
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRY_POINTS, ids=lambda entry: entry.__qualname__)
def test_no_entry_point_has_more_than_twelve_parameters(entry):
    parameters = inspect.signature(entry).parameters.values()
    assert len(parameters) <= 12
    assert all(one.kind is not one.VAR_KEYWORD for one in parameters), "a misspelled option must raise"


@pytest.mark.parametrize(
    "make",
    [
        partial(Retrain, recipe=RECIPE),
        partial(TaskVectors, recipe=RECIPE),
        OneStep,
        GradEx,
        partial(GradEx.along, recipe=RECIPE),
        influence_scores,
        partial(tracin_scores, learning_rates=[0.1]),
        trak_scores,
        partial(source_scores, segments=[[perceptron()]], learning_rates=[0.1], steps=[1]),
        bif_scores,
        partial(linearization_error, trained=perceptron()),
    ],
    ids=lambda make: getattr(make, "func", make).__qualname__,
)
def test_anything_but_a_problem_is_refused(make):
    with pytest.raises(
        InputError, match=r"must be a whence\.Problem\(model, tasks, targets\)\. Got Sequential instead"
    ):
        make(perceptron())


@every_method
@pytest.mark.filterwarnings("ignore:The chains of SGLD")
def test_tasks_of_unequal_size_count_by_their_examples_unless_told_otherwise(method):
    problem = unequal()
    usual, sample, task = (method(problem, *weighting) for weighting in ((), ("sample",), ("task",)))
    np.testing.assert_array_equal(usual, sample)
    assert not np.allclose(usual, task, rtol=1e-3)


@every_method
@pytest.mark.filterwarnings("ignore:The chains of SGLD")
def test_a_problem_is_left_as_it_is(method):
    problem = unequal()
    before = {name: value.clone() for name, value in problem.start.items()}
    method(problem)
    assert all(torch.equal(value, before[name]) for name, value in problem.start.items())


@pytest.mark.parametrize("name", ["influence", "TracIn", "TRAK", "SOURCE", "BIF"])
@pytest.mark.filterwarnings("ignore:The chains of SGLD")
def test_scores_are_of_the_loss_whatever_the_metrics(name):
    (make,) = METHODS[name].args
    found, expected = (make(unequal(metrics)) for metrics in (["accuracy", "margin"], "loss"))
    assert found.target_names == ("x/loss", "y/loss")
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    np.testing.assert_array_equal(found.intercept_, expected.intercept_)


def test_a_problem_says_what_it_is():
    told = "Problem: Sequential with 21 of 51 parameters trained; 3 tasks (t0, t1, t2), 33 examples; 8 queries; loss"
    assert repr(unequal(params="2.*")) == told


# ---- the one task gradient -------------------------------------------------------------------------------


def by_autograd(problem, model, examples, owner):
    rows = []
    for k in range(int(owner.max()) + 1):
        inputs, labels = examples.rows(owner == k)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("rows", [512, 3])
@pytest.mark.parametrize("kind", ["perceptron", "attention"])
def test_gradients_of_tasks_are_those_of_their_mean_losses(kind, rows, side_by_side, monkeypatch):
    monkeypatch.setattr(groups, "ROWS", rows)
    torch.manual_seed(0)
    model = perceptron() if kind == "perceptron" else Attention()
    draw = (lambda n: torch.randn(n, 4)) if kind == "perceptron" else (lambda n: torch.randint(1, 6, (n, 5)))
    tasks = {f"t{k}": (draw(n), torch.randint(3, (n,))) for k, n in enumerate(SIZES)}
    problem = Problem(model, tasks, tasks["t0"])
    (point,) = points_of(problem, [])
    found = groups.task_gradients(problem, point, side_by_side=side_by_side)
    torch.testing.assert_close(found, by_autograd(problem, model, problem.tasks, problem.tasks.owner))


class Unbatchable(nn.Module):
    """A model whose path depends on its numbers, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.layers = perceptron()

    def forward(self, x):
        outputs = self.layers(x)
        return outputs if float(outputs.detach().sum()) > -1e9 else -outputs


def test_one_step_and_a_run_need_no_vmap():
    plain = unequal()
    model = Unbatchable()
    model.layers.load_state_dict(plain.start)
    tasks = {name: plain.tasks.rows(plain.tasks.owner == k) for k, name in enumerate(plain.task_names)}
    targets = {name: plain.targets.rows(plain.targets.owner == k) for k, name in enumerate(plain.targets.names)}
    problem = Problem(model, tasks, targets)
    with pytest.warns(DataWarning, match="run one at a time: torch.func.vmap cannot run the model"):
        found = OneStep(problem, scale=0.1)
    np.testing.assert_allclose(outcomes(found), outcomes(OneStep(plain, scale=0.1)), rtol=1e-5)
    here, there = (trace(one, RECIPE, n_points=2) for one in (problem, plain))
    assert here.loss == pytest.approx(there.loss, rel=1e-5)
    with pytest.raises(InputError, match="cannot be run side by side"):
        Stack(problem, batched=True)


class Dropping(nn.Module):
    """A model with a dropout that evaluation does not switch off."""

    def __init__(self):
        super().__init__()
        self.layers = perceptron()

    def forward(self, x):
        return nn.functional.dropout(self.layers(x))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Dropping, "two passes over the same target differ"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            "outputs for an example depend on the others in its batch",
        ),
    ],
)
def test_outcomes_that_are_no_function_of_the_examples_are_warned_of(model, text):
    torch.manual_seed(0)
    group = torch.randn(6, 4), torch.randint(3, (6,))
    with pytest.warns(DataWarning, match=f"In evaluation mode, {text}"):
        Problem(model(), {"a": group}, group)


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), lambda: nn.BatchNorm1d(3), lambda: nn.Softmax(-1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_and_batch_normalisation_of_training_are_not_warned_of(make, dtype):
    torch.manual_seed(0)
    group = torch.randn(6, 4).to(dtype), torch.randint(3, (6,))
    Problem(nn.Sequential(nn.Linear(4, 3), make()).to(dtype), {"a": group}, group)


# ---- optimizers ------------------------------------------------------------------------------------------


class Signs(Optimizer):
    """A new optimizer, which divides gradients by a half."""

    name, copies, directions_per_point = "signs", 0, 2

    def make(self, recipe, params):
        return torch.optim.SGD(params, lr=recipe.lr)

    def divisor(self, optimizer):
        return torch.full((sum(leaf.numel() for leaf in optimizer.param_groups[0]["params"]),), 0.5)

    def first_steps(self, gradients):
        return gradients.sign()

    def __str__(self):
        return self.name


def test_a_new_optimizer_is_one_class(monkeypatch):
    """What it does is used wherever an optimizer matters: in training, along a run, and in one step."""
    monkeypatch.setitem(OPTIMIZERS, "signs", Signs)
    recipe = Recipe(steps=4, lr=0.05, optimizer="signs", batch_size=None)
    assert str(recipe).startswith("4 steps of signs, lr 0.05")
    problem = unequal()
    assert np.isfinite(outcomes(Retrain(problem, recipe))).all()
    step = OneStep(problem, recipe, scale=1.0)
    assert {float(value) for delta in step.vectors.deltas for value in delta["0.weight"].unique()} <= {-1.0, 0.0, 1.0}
    along = GradEx.along(problem, recipe, rank=12)
    assert len(along._run.steps) == 1 + 12 // (3 * 2), "two directions a task and point"
    assert np.isfinite(outcomes(along)).all()


def test_what_is_not_an_optimizer_is_refused():
    class Forgetful(Optimizer):
        name, copies, directions_per_point = "forgetful", 0, 1

        def make(self, recipe, params):
            return torch.optim.SGD(params, lr=recipe.lr)

    with pytest.raises(TypeError, match="abstract method"):
        Forgetful()
    for other in ("lion", torch.optim.SGD):
        with pytest.raises(InputError, match=r"There is no optimizer .* There are: adamw, sgd, sam, nso\."):
            Recipe(steps=1, optimizer=other)


def test_problem_is_public():
    assert whence.Problem is Problem
    assert whence.Features is Features
