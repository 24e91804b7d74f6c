"""Retraining: one model at a time or many side by side, held against a plain loop with torch.optim."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

import whence
from whence import DataWarning, InputError, Problem, Recipe, Retrain
from whence.models.optimizers import NSO, SAM, SGD, AdamW
from whence.models.sampling import draw_batches, example_shares
from whence.models.stack import Stack
from whence.models.training import train

N_TASKS, SIZES, WIDTH, CLASSES = 4, (7, 5, 9, 6), 6, 3
SUBSETS = np.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0]])
SEEDS = np.array([3, 1, 4, 1, 5])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens))[:, -1])


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 2, CLASSES)
        )

    def forward(self, x):
        return self.layers(x.view(-1, 1, 2, 3))


MODELS = {
    "linear": lambda: nn.Linear(WIDTH, CLASSES),
    "mlp": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, CLASSES)),
    "batch norm": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "convolution": Convolution,
    "tied weights": Tied,
    "attention": Attention,
}
RECIPES = {
    "adamw": Recipe(steps=12, lr=0.03, batch_size=4, weight_decay=0.1),
    "adamw, cosine": Recipe(
        steps=9,
        lr=0.05,
        batch_size=4,
        schedule="cosine",
        warmup=3,
        optimizer=AdamW(betas=(0.8, 0.95), eps=1e-3),
        weighting="task",
    ),
    "sgd": Recipe(steps=12, lr=0.2, optimizer="sgd", batch_size=4),
    "sgd, nesterov": Recipe(
        steps=9,
        lr=0.1,
        optimizer=SGD(momentum=0.9, nesterov=True),
        weight_decay=0.01,
        schedule="linear",
        batch_size=3,
    ),
    "clipped": Recipe(steps=9, lr=0.5, optimizer="sgd", clip=0.3, batch_size=5),
    "full batches": Recipe(steps=9, lr=0.1, batch_size=None),
    "full batches, tasks": Recipe(steps=9, lr=0.3, optimizer="sgd", batch_size=None, weighting="task", clip=0.2),
    "accumulated": Recipe(steps=9, lr=0.05, batch_size=5, accumulate=3, clip=0.3),
    "accumulated full batches": Recipe(steps=9, lr=0.1, batch_size=None, accumulate=4),
    "sam": Recipe(steps=9, lr=0.2, optimizer=SAM(rho=0.3), batch_size=4, clip=0.5),
    "sam, adamw, full batches": Recipe(steps=9, lr=0.05, optimizer=SAM(base="adamw", rho=0.1), batch_size=None),
    "nso": Recipe(steps=9, lr=0.2, optimizer=NSO(base=SGD(momentum=0.9), sigma=0.2, pairs=2), batch_size=4),
    "nso, accumulated": Recipe(steps=9, lr=0.2, optimizer=NSO(sigma=0.1), batch_size=6, accumulate=2),
}


def make(kind, seed=0):
    torch.manual_seed(seed)
    return MODELS[kind]().double()


def group(n, seed, kind="mlp"):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    if kind == "attention":
        return torch.randint(11, (n, 5), generator=generator), labels
    return torch.randn(n, WIDTH, generator=generator, dtype=torch.float64), labels


def data(kind="mlp"):
    tasks = {f"task {k}": group(size, k, kind) for k, size in enumerate(SIZES)}
    return tasks, group(10, 99, kind)


def gradient_of(update, loss, model, noise):
    """What an optimizer takes for the gradient, from its formula."""
    here = {name: param.detach() for name, param in model.named_parameters() if param.requires_grad}

    def at(move):
        places = {name: (value + move[name]).requires_grad_() for name, value in here.items()}
        return dict(zip(here, torch.autograd.grad(loss(places), list(places.values())), strict=True))

    def moved(by, factor):
        return {name: factor * value for name, value in by.items()}

    plain = at(dict.fromkeys(here, 0.0))  # batch statistics are those of this pass
    if isinstance(update, SAM):
        length = torch.cat([gradient.flatten() for gradient in plain.values()]).norm()
        return at(moved(plain, update.rho / length)).values()
    if isinstance(update, NSO):
        total = []
        for _ in range(update.pairs):
            drawn = torch.randn(sum(value.numel() for value in here.values()), generator=noise).double()
            parts = drawn.split([value.numel() for value in here.values()])
            drawn = {n: part.view_as(v) for (n, v), part in zip(here.items(), parts, strict=True)}
            total += [at(moved(drawn, sign * update.sigma)) for sign in (1, -1)]
        return [sum(one[name] for one in total) / len(total) for name in here]
    return plain.values()


def by_hand(model, tasks, recipe, subset, seed, *, shared=False):
    """A plain loop over batches: the copy of the model after training."""
    model = copy.deepcopy(model)
    if not subset.any():
        return model.eval()
    inputs, labels = (torch.cat(parts) for parts in zip(*tasks.values(), strict=True))
    update = getattr(recipe.update, "stepper", recipe.update)
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[update.name]
    optimizer = kind(model.parameters(), recipe.lr, weight_decay=recipe.weight_decay, **asdict(update))
    noise = torch.Generator().manual_seed(int(seed))
    decay = {"constant": lambda x: 1, "linear": lambda x: 1 - x, "cosine": lambda x: 0.5 + 0.5 * math.cos(math.pi * x)}

    def factor(t):
        if t < recipe.warmup:
            return (t + 1) / recipe.warmup
        return decay[recipe.schedule]((t - recipe.warmup) / (recipe.steps - recipe.warmup))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    sizes = np.array(SIZES)
    if recipe.batch_size is None:
        share = torch.from_numpy(example_shares(subset[None], sizes, recipe.weighting)[0])
        inside = torch.nonzero(share)[:, 0]
        steps = [(inside, share[inside])] * recipe.steps
    else:
        drawn = draw_batches(subset[None], np.array([seed]), sizes, recipe, recipe.steps, shared=shared)
        steps = [
            (torch.from_numpy(rows[0]), torch.full((rows.shape[1],), 1 / rows.shape[1], dtype=torch.float64))
            for rows in drawn
        ]
    model.train()
    for rows, share in steps:
        optimizer.zero_grad()

        def loss(weights, rows=rows, share=share):
            outputs = torch.func.functional_call(model, weights, inputs[rows])
            return (nn.functional.cross_entropy(outputs, labels[rows], reduction="none") * share).sum()

        moving = [param for param in model.parameters() if param.requires_grad]
        for param, gradient in zip(moving, gradient_of(recipe.update, loss, model, noise), strict=True):
            param.grad = gradient
        if recipe.clip:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        schedule.step()
    return model.eval()


def judged(model, target):
    with torch.no_grad():
        return nn.functional.cross_entropy(model(target[0]), target[1], reduction="none").numpy()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("batched", [True, False])
def test_every_recipe_is_the_plain_loop(recipe, batched):
    model, (tasks, target) = make("mlp"), data()
    outcome = Retrain(Problem(model, tasks, target, per_query=True), recipe, batched=batched)
    expected = [judged(by_hand(model, tasks, recipe, *run), target) for run in zip(SUBSETS, SEEDS, strict=True)]
    if batched:
        found = outcome.batch(SUBSETS, SEEDS)["loss"]
    else:
        found = np.array([outcome(subset, seed)["loss"] for subset, seed in zip(SUBSETS, SEEDS, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("recipe", ["accumulated", "accumulated full batches", "nso, accumulated"])
def test_accumulated_gradients_are_those_of_the_whole_batch(recipe):
    model, (tasks, target) = make("mlp"), data()
    problem, split = Problem(model, tasks, target, per_query=True), RECIPES[recipe]
    whole = replace(split, accumulate=1)
    for batched in (True, False):
        found, expected = (Retrain(problem, one, batched=batched)(SUBSETS[2], 4)["loss"] for one in (split, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert split.settings == whole.settings


@pytest.mark.parametrize("optimizer", [SAM(rho=0.2), NSO(sigma=0.1)], ids=str)
def test_batch_statistics_move_once_a_step_whatever_the_passes(optimizer):
    model, (tasks, target) = make("batch norm"), data()
    problem = Problem(model, tasks, target, per_query=True)
    recipe = Recipe(steps=6, lr=0.1, optimizer=optimizer, batch_size=5)
    many = Retrain(problem, recipe, batched=True).batch(SUBSETS, SEEDS)["loss"]
    alone = Retrain(problem, recipe, batched=False)
    for row in (0, 2):
        np.testing.assert_allclose(alone(SUBSETS[row], SEEDS[row])["loss"], many[row], rtol=1e-8)
    stack = Stack(problem, batched=False)
    state = train(stack, recipe, stack.start(1), SUBSETS[:1], SEEDS[:1])
    assert int(state["1.num_batches_tracked"][0]) == recipe.steps


def test_half_precision_is_near_to_single_and_not_the_same():
    model, (tasks, target) = make("mlp").float(), data()
    tasks = {name: (inputs.float(), labels) for name, (inputs, labels) in tasks.items()}
    problem = Problem(model, tasks, (target[0].float(), target[1]))
    recipe = Recipe(steps=20, lr=0.01, batch_size=8)
    for batched in (True, False):
        single, half = (
            Retrain(problem, replace(recipe, precision=precision), batched=batched)(SUBSETS[3], 1)["loss"]
            for precision in ("float32", "bfloat16")
        )
        assert single != half
        assert half == pytest.approx(single, rel=0.03)
    assert "precision bfloat16" in str(replace(recipe, precision="bfloat16"))


@pytest.mark.parametrize("batched", [True, False])
def test_a_model_in_half_precision_learns_as_one_in_single(batched):
    tasks, target = data()
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        cast = {name: (inputs.to(dtype), labels) for name, (inputs, labels) in tasks.items()}
        problem = Problem(make("mlp").to(dtype), cast, (target[0].to(dtype), target[1]))
        recipe = Recipe(steps=100, lr=0.05, optimizer=SGD(momentum=0.9), batch_size=None)
        start, end = (
            Retrain(problem, recipe, batched=batched).batch([[0] * 4, [1] * 4], [0, 0])["loss"]
            if batched
            else [Retrain(problem, recipe, batched=False)(subset, 0)["loss"] for subset in ([0] * 4, [1] * 4)]
        )
        found[dtype] = end - start
    assert found[torch.bfloat16] == pytest.approx(found[torch.float32], rel=0.1)


@pytest.mark.parametrize(
    ("make_one", "text"),
    [
        (lambda: Recipe(steps=1, batch_size=2, accumulate=3), "cannot be made in 3 passes"),
        (lambda: Recipe(steps=1, precision="float16"), "no precision 'float16'"),
        (lambda: SAM(rho=-1), "'rho' of SAM"),
        (lambda: NSO(pairs=0), "'pairs' parameter of NSO"),
        (lambda: SAM(base="nso"), "'base' of SAM"),
    ],
)
def test_recipes_that_cannot_be_are_refused(make_one, text):
    with pytest.raises(InputError, match=text):
        make_one()


@pytest.mark.parametrize("optimizer", ["sam", "nso"])
def test_estimators_that_follow_a_run_take_optimizers_that_look_elsewhere(optimizer):
    problem = Problem(make("mlp"), *data())
    recipe = Recipe(steps=30, lr=0.1, optimizer=optimizer)
    plain = replace(recipe, optimizer="sgd")
    for estimate in (lambda r: whence.GradEx.along(problem, r, rank=16), lambda r: whence.OneStep(problem, r)):
        near, far = (estimate(one).batch(SUBSETS)["loss"] for one in (recipe, plain))
        np.testing.assert_allclose(near, far, rtol=0.1)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_side_by_side_is_the_plain_loop(kind):
    model, (tasks, target) = make(kind), data(kind)
    recipe = Recipe(steps=10, lr=0.02, batch_size=5)
    outcome = Retrain(Problem(model, tasks, target, per_query=True), recipe, batched=True)
    expected = [judged(by_hand(model, tasks, recipe, *run), target) for run in zip(SUBSETS, SEEDS, strict=True)]
    np.testing.assert_allclose(outcome.batch(SUBSETS, SEEDS)["loss"], expected, rtol=1e-9, atol=1e-11)
    alone = Retrain(Problem(model, tasks, target, per_query=True), recipe, batched=False)
    np.testing.assert_allclose(alone(SUBSETS[2], 4)["loss"], expected[2], rtol=1e-9, atol=1e-11)


def test_single_precision_agrees_to_single_precision():
    model, (tasks, target) = make("mlp").float(), data()
    tasks = {name: (inputs.float(), labels) for name, (inputs, labels) in tasks.items()}
    target = (target[0].float(), target[1])
    recipe = Recipe(steps=30, lr=0.01, batch_size=8)
    many = Retrain(Problem(model, tasks, target), recipe, batched=True).batch(SUBSETS, SEEDS)["loss"]
    alone = Retrain(Problem(model, tasks, target), recipe, batched=False)
    one_by_one = [alone(subset, seed)["loss"] for subset, seed in zip(SUBSETS, SEEDS, strict=True)]
    np.testing.assert_allclose(many, one_by_one, rtol=1e-4)


@pytest.mark.parametrize("recipe", ["adamw", "full batches"])
def test_results_depend_neither_on_chunks_nor_on_order(recipe):
    model, (tasks, target) = make("mlp"), data()
    problem, settings = Problem(model, tasks, target, per_query=True), {"recipe": RECIPES[recipe], "batched": True}
    together = Retrain(problem, **settings).batch(SUBSETS, SEEDS)["loss"]
    for size in (2, 3):
        some = Retrain(problem, batch_size=size, **settings).batch(SUBSETS, SEEDS)["loss"]
        np.testing.assert_allclose(some, together, rtol=1e-9)
    order = [4, 2, 0, 3, 1]
    shuffled = Retrain(problem, **settings).batch(SUBSETS[order], SEEDS[order])["loss"]
    np.testing.assert_allclose(shuffled, together[order], rtol=1e-9)


def test_another_seed_is_another_run_and_the_same_seed_the_same():
    model, (tasks, target) = make("mlp"), data()
    outcome = Retrain(Problem(model, tasks, target), RECIPES["adamw"])
    first, again, other = outcome.batch(SUBSETS[[3, 3, 3]], [1, 1, 2])["loss"]
    assert first == again
    assert abs(first - other) > 1e-4


def test_the_empty_subset_is_the_model_as_it_is():
    model, (tasks, target) = make("batch norm"), data()
    outcome = Retrain(Problem(model, tasks, target, per_query=True), RECIPES["adamw"])
    np.testing.assert_allclose(outcome([0, 0, 0, 0], seed=7)["loss"], judged(model.eval(), target), rtol=1e-9)


def test_the_model_that_is_given_is_not_changed_and_later_changes_to_it_do_not_matter():
    model, (tasks, target) = make("batch norm"), data()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for batched in (True, False):
        outcome = Retrain(Problem(model, tasks, target), RECIPES["adamw"], batched=batched)
        first = outcome([1, 1, 1, 1], seed=0)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        with torch.no_grad():
            model[0].weight.zero_()
        assert outcome([1, 1, 1, 1], seed=0) == first
        model.load_state_dict(before)


def test_a_training_that_diverges_is_nan_and_leaves_the_others_alone():
    model, (tasks, target) = make("mlp"), data()
    broken = {**tasks, "task 3": (tasks["task 3"][0] * torch.inf, tasks["task 3"][1])}
    recipe = RECIPES["adamw"]
    found = Retrain(Problem(model, broken, target), recipe, batched=True).batch(SUBSETS, SEEDS)["loss"]
    expected = Retrain(Problem(model, tasks, target), recipe, batched=True).batch(SUBSETS, SEEDS)["loss"]
    assert np.isnan(found).tolist() == (SUBSETS[:, 3] > 0).tolist()
    np.testing.assert_allclose(found[SUBSETS[:, 3] == 0], expected[SUBSETS[:, 3] == 0])
    assert math.isnan(Retrain(Problem(model, broken, target), recipe, batched=False)(["task 3"], 0)["loss"])


def test_dropout_falls_back_to_one_model_at_a_time_and_says_so():
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).double()
    tasks, target = data()
    with pytest.warns(DataWarning, match="one at a time: the model draws random numbers in training"):
        outcome = Retrain(Problem(model, tasks, target), RECIPES["adamw"])
    assert not hasattr(outcome, "batch")
    state = torch.get_rng_state()
    assert outcome([1, 1, 1, 1], 5) == outcome([1, 1, 1, 1], 5)
    assert outcome([1, 1, 1, 1], 5) != outcome([1, 1, 1, 1], 6)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(InputError, match=r"cannot be run side by side: .* Give batched=False"):
        Retrain(Problem(model, tasks, target), RECIPES["adamw"], batched=True)


def test_full_batches_with_batch_normalisation_are_made_of_the_subset_alone():
    model, (tasks, target) = make("batch norm"), data()
    recipe = RECIPES["full batches"]
    with pytest.warns(DataWarning, match="full batches must hold the examples of one subset only"):
        outcome = Retrain(Problem(model, tasks, target, per_query=True), recipe)
    expected = judged(by_hand(model, tasks, recipe, SUBSETS[0], 0), target)
    # The gradient of a bias before the norm is rounding noise, which AdamW scales up.
    np.testing.assert_allclose(outcome(SUBSETS[0], 0)["loss"], expected, rtol=1e-6, atol=1e-9)


def test_a_large_model_on_a_processor_is_trained_alone():
    tasks, target = data()
    model = nn.Sequential(nn.Linear(WIDTH, 30_000), nn.Linear(30_000, CLASSES)).double()
    assert not hasattr(Retrain(Problem(model, tasks, target), RECIPES["adamw"]), "batch")
    assert hasattr(Retrain(Problem(model, tasks, target), RECIPES["adamw"], batched=True), "batch")


def test_a_start_for_every_seed():
    tasks, target = data()
    recipe = RECIPES["sgd"]
    for init in (lambda seed: make("mlp", seed), lambda seed: dict(make("mlp", seed).named_parameters())):
        outcome = Retrain(Problem(make("mlp"), tasks, target, per_query=True), recipe, init=init)
        found = outcome.batch(SUBSETS, SEEDS)["loss"]
        for row, (subset, seed) in enumerate(zip(SUBSETS, SEEDS, strict=True)):
            expected = judged(by_hand(make("mlp", seed), tasks, recipe, subset, seed), target)
            np.testing.assert_allclose(found[row], expected, rtol=1e-9, atol=1e-11)


def test_no_names_are_the_empty_subset():
    tasks, target = data()
    outcome = Retrain(Problem(make("mlp"), tasks, target), RECIPES["sgd"])
    assert outcome([], 0) == outcome([0] * N_TASKS, 0)


def test_statistics_are_part_of_a_start():
    (tasks, target), drawn = data(), make("batch norm", 5)
    drawn[1].running_mean += 3.0
    problem = Problem(make("batch norm"), tasks, target)
    found = Retrain(problem, RECIPES["sgd"], init=lambda seed: drawn)([0] * N_TASKS, 0)["loss"]
    outputs = drawn.eval()(target[0]).detach()
    assert found == pytest.approx(float(nn.functional.cross_entropy(outputs, target[1])))


def test_a_start_that_does_not_fit_is_refused():
    tasks, target = data()
    with pytest.raises(InputError, match=r"init\(0\) returned has no parameter '0.weight'"):
        Retrain(Problem(make("mlp"), tasks, target), RECIPES["sgd"], init=lambda seed: {"weight": torch.zeros(2)})
    with pytest.raises(InputError, match=r"must have shape \(3, 6\), as in the model. Got \(3, 7\)"):
        Retrain(Problem(make("linear"), tasks, target), RECIPES["sgd"], init=lambda seed: nn.Linear(7, CLASSES))


def test_only_the_chosen_parameters_are_trained():
    model, (tasks, target) = make("mlp"), data()
    recipe = RECIPES["adamw"]
    frozen = copy.deepcopy(model)
    for name, value in frozen.named_parameters():
        value.requires_grad_(name.startswith("3."))
    expected = judged(by_hand(frozen, tasks, recipe, SUBSETS[2], 4), target)
    for outcome in (
        Retrain(Problem(model, tasks, target, params="3.*", per_query=True), recipe),
        Retrain(Problem(frozen, tasks, target, per_query=True), recipe),
    ):
        np.testing.assert_allclose(outcome(SUBSETS[2], 4)["loss"], expected, rtol=1e-9, atol=1e-11)


def test_several_targets_metrics_and_directions():
    model, (tasks, target) = make("mlp"), data()
    first, second = (target[0][:4], target[1][:4]), (target[0][4:], target[1][4:])
    outcome = Retrain(Problem(model, tasks, {"a": first, "b": second}, metrics=["loss", "accuracy"]), RECIPES["adamw"])
    found = outcome([1, 1, 1, 1], 0)
    assert list(found) == ["a/loss", "b/loss", "a/accuracy", "b/accuracy"]
    trained = by_hand(model, tasks, RECIPES["adamw"], np.ones(N_TASKS), 0)
    assert found["b/loss"] == pytest.approx(judged(trained, second).mean(), rel=1e-5)
    with torch.no_grad():
        assert found["a/accuracy"] == pytest.approx(float((trained(first[0]).argmax(1) == first[1]).double().mean()))
    assert outcome.maximize == ("a/accuracy", "b/accuracy")


def test_measured_it_is_a_table():
    model, (tasks, target) = make("mlp"), data()
    outcome = Retrain(Problem(model, tasks, target, metrics=["loss", "accuracy"]), RECIPES["adamw"], batch_size=3)
    runs = whence.measure(outcome, whence.Bernoulli(0.5), n=7, seed=1)
    assert runs.task_names == tuple(tasks)
    assert runs.target_names == ("loss", "accuracy")
    assert runs.maximize == (False, True)
    assert runs.provenance["recipe"] == "12 steps of adamw, lr 0.03, batches of 4, weight_decay 0.1"
    assert np.isfinite(runs.values).all()


@pytest.mark.parametrize("batched", [True, False])
def test_it_can_be_sent_to_another_process(batched):
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    model, (tasks, target) = make("batch norm"), data()
    outcome = Retrain(Problem(model, tasks, target), RECIPES["adamw"], batched=batched)
    sent = cloudpickle.loads(cloudpickle.dumps(outcome))
    assert sent([1, 0, 1, 0], 3) == outcome([1, 0, 1, 0], 3)
    assert hasattr(sent, "batch") == batched


def test_inputs_of_several_tensors():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, left, right):
            return self.head(left - right)

    torch.manual_seed(0)
    model = Two().double()
    tasks, target = data()
    double = {name: ({"left": 2 * x, "right": x}, y) for name, (x, y) in tasks.items()}
    plain = nn.Sequential(model.head)
    found = Retrain(Problem(model, double, ({"left": 2 * target[0], "right": target[0]}, target[1])), RECIPES["sgd"])
    expected = Retrain(Problem(plain, tasks, target), RECIPES["sgd"])
    np.testing.assert_allclose(found.batch(SUBSETS, SEEDS)["loss"], expected.batch(SUBSETS, SEEDS)["loss"])


def test_bad_input_is_refused_in_one_sentence():
    model, (tasks, target) = make("mlp"), data()
    outcome = Retrain(Problem(model, tasks, target), RECIPES["sgd"])
    with pytest.raises(InputError, match=r"a column for each of the 4 tasks \(task 0, .*shape \(1, 3\)"):
        outcome([1, 0, 1], 0)
    with pytest.raises(InputError, match="no task 'task 9'"):
        outcome(["task 9"], 0)
    with pytest.raises(InputError, match="must be at least 0"):
        outcome([1, -1, 0, 0], 0)
    with pytest.raises(InputError, match="one seed per subset, 5 in all"):
        outcome.batch(SUBSETS, [1, 2])
    with pytest.raises(InputError, match=r"must be a torch.nn.Module. Got str"):
        Retrain(Problem("model", tasks, target), RECIPES["sgd"])
    with pytest.raises(InputError, match="Labels of the target must be from 0 to 2"):
        Retrain(Problem(model, tasks, (target[0], target[1] + 1)), RECIPES["sgd"])
    with pytest.raises(InputError, match="no metric 'acuracy'"):
        Retrain(Problem(model, tasks, target, metrics="acuracy"), RECIPES["sgd"])


@pytest.mark.parametrize(("name", "extra"), [("Retrain", "torch"), ("hf", "hf"), ("icl", "hf")])
def test_without_torch_one_sentence_says_what_to_install(name, extra):
    code = f"import sys; sys.modules['torch'] = None; import whence; whence.Recipe; whence.{name}"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert failed.stderr.splitlines()[-1].endswith(f'whence.{name} needs PyTorch: pip install "whence[{extra}]".')


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_graphics_card_the_result_is_the_same():
    model, (tasks, target) = make("attention"), data("attention")
    here = Retrain(Problem(model, tasks, target), RECIPES["adamw"], batched=True).batch(SUBSETS, SEEDS)["loss"]
    there = Retrain(Problem(model, tasks, target, device="cuda"), RECIPES["adamw"]).batch(SUBSETS, SEEDS)["loss"]
    np.testing.assert_allclose(there, here, rtol=1e-5)
