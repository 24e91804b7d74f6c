"""Merging: task vectors and single steps, held against weights that are averaged by hand, and against true runs."""

from __future__ import annotations

import contextlib
import copy
import json

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

import whence
from test_retrain import CLASSES, RECIPES, SIZES, SUBSETS, WIDTH, by_hand, data, group, judged, make
from whence import DataWarning, InputError, OneStep, Problem, Recipe, Retrain, TaskVectors
from whence.estimators import merge as merge_module
from whence.estimators.deltas import DeltaFolder, Vectors
from whence.estimators.truth import trust
from whence.models.sampling import draw_batches

RECIPE = RECIPES["adamw"]
EYE = np.eye(len(SIZES))
MIXED = np.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [0.5, 1, 2, 0], [1, 1, 1, 1], [0, 0, 1, 0]])


def merged_by_hand(model, tasks, subset, *, weighting="task", scale=lambda name: 1.0, recipe=RECIPE):
    """The model with the average of the changes of single-task runs."""
    weights = subset * np.array(SIZES) if weighting == "sample" else subset
    weights = weights / max(weights.sum(), 1e-30)
    runs = [dict(by_hand(model, tasks, recipe, alone, 0).named_parameters()) for alone in EYE]
    moved = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, value in moved.named_parameters():
            start = value.clone()
            for weight, run in zip(weights, runs, strict=True):
                value += scale(name) * weight * (run[name] - start)
    return moved


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("weighting", ["task", "sample"])
def test_the_merge_is_the_average_of_single_task_runs(weighting, batched):
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(
        Problem(model, tasks, target, per_query=True), RECIPE, scale=1.5, batched=batched, weighting=weighting
    )
    expected = [
        judged(merged_by_hand(model, tasks, s, weighting=weighting, scale=lambda _: 1.5), target) for s in MIXED
    ]
    np.testing.assert_allclose(vectors.batch(MIXED)["loss"], expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(vectors(MIXED[2])["loss"], expected[2], rtol=1e-9, atol=1e-11)


def test_layers_may_have_scales_of_their_own():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(
        Problem(model, tasks, target, per_query=True), RECIPE, scale={"3.*": 2.0, "0.bias": 0.0}, weighting="task"
    )
    scales = {"3.weight": 2.0, "3.bias": 2.0, "0.bias": 0.0}
    expected = [judged(merged_by_hand(model, tasks, s, scale=lambda n: scales.get(n, 1.0)), target) for s in MIXED]
    np.testing.assert_allclose(vectors.batch(MIXED)["loss"], expected, rtol=1e-9, atol=1e-11)


def test_a_task_alone_is_its_own_run_and_the_empty_subset_the_model_as_it_is():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, seed=7)
    true = Retrain(Problem(model, tasks, target, per_query=True), RECIPE)
    np.testing.assert_allclose(vectors.batch(EYE)["loss"], true.batch(EYE, [7] * 4)["loss"], rtol=1e-9)
    np.testing.assert_allclose(vectors([0, 0, 0, 0])["loss"], judged(model.eval(), target), rtol=1e-9)


def test_the_weighting_is_that_of_the_recipe_unless_given():
    model, (tasks, target) = make("mlp"), data()
    assert TaskVectors(Problem(model, tasks, target), Recipe(steps=1, weighting="task")).weighting == "task"
    assert TaskVectors(Problem(model, tasks, target), Recipe(steps=1)).weighting == "sample"
    assert TaskVectors(Problem(model, tasks, target), Recipe(steps=1), weighting="task").weighting == "task"


def test_stopped_early_runs_are_the_first_steps_of_the_recipe():
    model, (tasks, target) = make("mlp"), data()
    recipe = Recipe(steps=12, lr=0.03, batch_size=4, schedule="linear")
    early = TaskVectors(Problem(model, tasks, target, per_query=True), recipe, early=0.25)
    assert early.steps == 3

    class First(Recipe):
        def rate(self, step):
            return recipe.rate(step)

    expected = TaskVectors(Problem(model, tasks, target, per_query=True), First(steps=3, lr=0.03, batch_size=4))
    np.testing.assert_allclose(early.batch(MIXED)["loss"], expected.batch(MIXED)["loss"], rtol=1e-9)


def test_in_chunks_it_is_the_same():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE)
    together = vectors.batch(MIXED)["loss"]
    vectors._chunks.size = 2
    np.testing.assert_allclose(vectors.batch(MIXED[::-1])["loss"], together[::-1], rtol=1e-9)


class Adapted(nn.Module):
    """A frozen layer with an adapter, named as peft does."""

    def __init__(self, second=0.0):
        super().__init__()
        self.base = nn.Linear(WIDTH, 8)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 8, bias=False)})
        self.head = nn.Linear(8, CLASSES)
        nn.init.constant_(self.lora_B["default"].weight, second)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x) + 2.0 * self.lora_B["default"](self.lora_A["default"](x))))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("second", [0.0, 0.3])
def test_adapters_are_merged_as_products(second, batched):
    torch.manual_seed(0)
    model, (tasks, target) = Adapted(second).double(), data()
    vectors = TaskVectors(
        Problem(model, tasks, target, per_query=True), RECIPE, scale=0.8, batched=batched, weighting="task"
    )
    runs = [by_hand(model, tasks, RECIPE, alone, 0) for alone in EYE]
    factors = "lora_A.default.weight", "lora_B.default.weight"
    assert set(vectors.problem.trained) == {*factors, "head.weight", "head.bias"}

    def product(of):
        return of.lora_B["default"].weight @ of.lora_A["default"].weight

    for subset in MIXED:
        weights = subset / max(subset.sum(), 1e-30)
        dense = copy.deepcopy(model).eval()
        with torch.no_grad():
            change = sum(w * (product(run) - product(model)) for w, run in zip(weights, runs, strict=True))
            dense.base.weight += 2.0 * (product(model) + 0.8 * change)
            dense.lora_B["default"].weight.zero_()
            for part in ("weight", "bias"):
                value = getattr(dense.head, part)
                start = value.clone()
                for w, run in zip(weights, runs, strict=True):
                    value += 0.8 * w * (getattr(run.head, part) - start)
        np.testing.assert_allclose(vectors(subset)["loss"], judged(dense, target), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("kind", ["batch norm", "convolution"])
def test_running_statistics_are_those_of_the_merged_model(kind, batched):
    model, (tasks, target) = make(kind), data()
    recipe = Recipe(steps=10, lr=0.02, batch_size=5)
    vectors = TaskVectors(
        Problem(model, tasks, target, per_query=True), recipe, batched=batched, seed=0, weighting="task"
    )
    inputs = torch.cat([x for x, _ in tasks.values()])
    for subset in MIXED:
        expected = merged_by_hand(model, tasks, subset, recipe=recipe)
        if subset.any():
            sampling = Recipe(steps=1, batch_size=512, weighting="task")
            (rows,) = draw_batches(subset[None], np.array([0]), np.array(SIZES), sampling, 1)
            for part in expected.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.momentum = None
                    part.reset_running_stats()
            with torch.no_grad():
                expected.train()(inputs[rows[0]])
        np.testing.assert_allclose(vectors(subset)["loss"], judged(expected.eval(), target), rtol=1e-9, atol=1e-11)


def test_running_statistics_of_a_model_with_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = make("batch norm")

        def forward(self, left, right):
            return self.layers(left - right)

    model, (tasks, target) = Two(), data()
    double = {name: ({"left": 2 * x, "right": x}, y) for name, (x, y) in tasks.items()}
    queries = ({"left": 2 * target[0], "right": target[0]}, target[1])
    recipe = Recipe(steps=5, lr=0.02, batch_size=5)
    expected = TaskVectors(Problem(model.layers, tasks, target, per_query=True), recipe, batched=True).batch(MIXED)[
        "loss"
    ]
    for batched in (True, False):
        found = TaskVectors(Problem(model, double, queries, per_query=True), recipe, batched=batched).batch(MIXED)[
            "loss"
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_one_step_keeps_the_statistics_that_its_gradients_saw():
    model, (tasks, target) = make("batch norm"), data()
    step = OneStep(Problem(model, tasks, target, per_query=True), scale=1e-09)
    np.testing.assert_allclose(step.batch(MIXED)["loss"][0], judged(model.eval(), target), rtol=1e-5)


def test_a_full_step_of_gradient_descent_is_one_step():
    """One step on all examples of a subset is what the one-step estimate is of."""
    model, (tasks, target) = make("mlp"), data()
    for weighting in ("sample", "task"):
        recipe = Recipe(steps=1, lr=0.7, optimizer="sgd", batch_size=None, weighting=weighting)
        true = Retrain(Problem(model, tasks, target, per_query=True), recipe).batch(MIXED, [0] * 5)["loss"]
        step = OneStep(Problem(model, tasks, target, per_query=True), recipe, scale=0.7)
        np.testing.assert_allclose(step.batch(MIXED)["loss"], true, rtol=1e-9)


def test_adams_preconditioner_divides_by_the_root_mean_square_over_tasks():
    model, (tasks, target) = make("mlp"), data()
    gradients = []
    for inputs, labels in tasks.values():
        loss = nn.functional.cross_entropy(model(inputs), labels)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    moved = copy.deepcopy(model).eval()
    with torch.no_grad():
        for place, value in enumerate(moved.parameters()):
            own = torch.stack([gradient[place] for gradient in gradients])
            value -= 0.01 * (own[0] + own[1]) / 2 / own.square().mean(0).sqrt()
    step = OneStep(Problem(model, tasks, target, per_query=True), scale=0.01, weighting="task")
    np.testing.assert_allclose(step([1, 1, 0, 0])["loss"], judged(moved, target), rtol=1e-9, atol=1e-11)


def test_the_step_goes_as_far_as_the_gradients_can_be_trusted():
    model, (tasks, target) = make("mlp"), data()
    for optimizer in ("adamw", "sgd"):
        step = OneStep(Problem(model, tasks, target), Recipe(steps=1, optimizer=optimizer))
        losses = {scale: float(step.losses_on_tasks(scale).mean()) for scale in (0.0, *step.scales)}
        promised = (losses[0.0] - losses[step.scales[0]]) / step.scales[0]
        fall = {scale: (losses[0.0] - losses[scale]) / (promised * scale) for scale in step.scales}
        longer = step.scales[step.scales.index(step.scale) + 1]
        assert fall[step.scale] >= 0.9 > fall[longer]


def test_where_there_is_nothing_to_learn_the_step_is_short():
    model, (tasks, _) = make("linear"), data()
    inputs = torch.cat([x for x, _ in tasks.values()])
    model.requires_grad_(False)
    alike = {name: (x, model(x)) for name, (x, _) in tasks.items()}
    model.requires_grad_(True)
    step = OneStep(Problem(model, alike, (inputs, model(inputs).detach()), loss="squared"))
    assert step.scale == step.scales[0]


def test_a_step_from_nothing():
    torch.manual_seed(0)
    model, (tasks, target) = make("linear"), data()
    for value in model.parameters():
        nn.init.zeros_(value)
    step = OneStep(Problem(model, tasks, target))
    assert step.scale > 0
    assert step([1, 1, 1, 1])["loss"] != pytest.approx(np.log(CLASSES), abs=1e-4)


def test_the_factors_of_adapters_move_by_themselves_in_one_step():
    torch.manual_seed(0)
    model, (tasks, target) = Adapted(0.3).double(), data()
    recipe = Recipe(steps=1, lr=0.5, optimizer="sgd", batch_size=None)
    true = Retrain(Problem(model, tasks, target, per_query=True), recipe)([1, 0, 1, 0], 0)["loss"]
    step = OneStep(Problem(model, tasks, target, per_query=True), recipe, scale=0.5)
    np.testing.assert_allclose(step([1, 0, 1, 0])["loss"], true, rtol=1e-5)


# ---- true runs -------------------------------------------------------------------------------------------


def truth_at(vectors, scale, n=6, noise=0.0, seed=0):
    subsets = whence.Bernoulli(0.5).draw(4, n, seed=2)
    values = vectors._outcomes(subsets, scale)["loss"]
    values = values + noise * np.random.default_rng(seed).normal(size=values.shape)
    return whence.Outcomes(subsets, values, target_names=[f"loss[{q}]" for q in range(values.shape[1])])


def test_the_scale_is_tuned_to_true_runs():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), Recipe(steps=40, lr=0.03, batch_size=4))
    truth = truth_at(vectors, 4.0)
    tuned = vectors.tuned(truth)
    assert vectors.scale == 1.0
    assert tuned.scale == 4.0
    assert max(tuned.trials, key=lambda trial: trial.agreement).agreement == pytest.approx(1.0)
    with pytest.warns(DataWarning, match="worse than the untrained model"):
        np.testing.assert_allclose(tuned.batch(truth.subsets)["loss"], truth.values)
    assert vectors.tuned(truth, scales=[0.5, 3.0]).scale == 3.0
    assert tuned.vectors is vectors.vectors


def test_true_runs_that_say_nothing_leave_the_scale_alone():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE)
    tuned = [vectors.tuned(truth_at(vectors, 1.0, noise=100.0, seed=seed)) for seed in range(10)]
    apparently_best = [max(one.trials, key=lambda trial: trial.agreement).scale for one in tuned]
    assert sum(scale != 1.0 for scale in apparently_best) >= 8
    assert sum(one.scale != 1.0 for one in tuned) <= 5
    noise = truth_at(vectors, 1.0, noise=100.0)
    with pytest.raises(InputError, match="takes three or more true runs"):
        vectors.tuned(noise.rows([0, 1]))
    same = whence.Outcomes(noise.subsets, np.ones_like(noise.values), target_names=noise.target_names)
    with pytest.raises(InputError, match="a target that varies"):
        vectors.tuned(same)
    other = whence.Outcomes(noise.subsets, noise.values[:, 0], target_names=["accuracy"])
    with pytest.raises(InputError, match="no estimated outcome 'accuracy'"):
        vectors.tuned(other)


def test_two_or_three_true_runs_say_whether_to_trust():
    model, (tasks, target) = make("mlp"), data()
    queries = {"a": group(30, 50)}
    vectors = TaskVectors(Problem(model, tasks, queries, per_query=True), RECIPE)
    right = vectors.check(truth_at(vectors, 1.2, n=3))
    assert right.trusted is True
    assert right.agreement > 0.9
    assert right.error_ratio < 0.5
    assert str(right).startswith("The estimates can be trusted: they correlate 0.9")
    assert str(right).endswith("with 3 true runs and 30 targets.")
    wrong = vectors.check(truth_at(vectors, -1.0, n=3))
    assert wrong.trusted is False
    assert str(wrong).startswith("The estimates say nothing: they correlate -0.")
    assert str(wrong).endswith(
        "Their level is off: they are 1.9 times as far from the truth as the untrained model is."
    )
    little = TaskVectors(Problem(model, tasks, target), RECIPE)
    few = whence.Outcomes(SUBSETS[:2], little._outcomes(SUBSETS[:2], 1.1)["loss"], target_names=["loss"])
    assert little.check(few).trusted is None
    assert str(little.check(few)).startswith("2 true runs and 1 target are too little to tell")
    far = trust(np.array([[5.0], [6.0]]), whence.Outcomes(np.eye(2), [1.0, 1.2]), np.array([[3.1]]))
    assert far.trusted is False
    assert str(far).startswith("Do not trust the estimates: they are 2.2 times as far from the truth as the untrained")


def test_trust_needs_agreement_and_counts_what_varies():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 40))
    values[:, 0] = 1.0
    truth = whence.Outcomes(np.eye(3), values)
    found = trust(rng.normal(size=(3, 40)), truth)
    assert found.n_targets == 39
    assert found.trusted is False
    assert "say nothing" in found.verdict
    noisy = values + 2.0 * rng.normal(size=(3, 40))
    partly = trust(noisy, truth)
    expected = np.mean([np.corrcoef(values[:, t], noisy[:, t])[0, 1] for t in range(1, 40)])
    assert partly.agreement == pytest.approx(expected)
    assert 0.2 < expected < 0.5
    assert "help only together with true runs" in partly.verdict


# ---- what speaks against merging ---------------------------------------------------------------------------


def test_tasks_that_work_against_each_other_are_named():
    torch.manual_seed(0)
    inputs = torch.randn(40, WIDTH)
    labels = (inputs[:, 0] > 0).long()
    tasks = {"one": (inputs, labels), "two": (inputs, labels), "odd": (inputs[:10], 1 - labels[:10])}
    vectors = TaskVectors(Problem(nn.Linear(WIDTH, CLASSES), tasks, (inputs, labels)), Recipe(steps=80, lr=0.05))
    assert vectors.concerns() == [
        "On 1 of 3 tasks (odd), the merge of all is worse than the untrained model: their vectors interfere."
    ]


def test_a_merge_that_is_worse_than_nothing_is_warned_of():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target), Recipe(steps=30, lr=0.1), scale=30.0)
    with pytest.warns(DataWarning, match="worse than the untrained model on the tasks' own examples"):
        vectors.batch(MIXED)
    found = vectors.concerns()
    assert found[0].startswith("The merge of all tasks is worse than the untrained model")
    assert TaskVectors(Problem(model, tasks, target), RECIPE, scale=0.1).concerns() == []


def test_runs_that_are_too_long_to_merge_are_named():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target), Recipe(steps=30, lr=0.03), scale=1.0)
    losses = [float(vectors.losses_on_tasks(scale).mean()) for scale in (0.0, 0.5, 1.0)]
    assert losses[1] < min(losses[0], losses[2])
    assert any("too long to merge" in sentence for sentence in vectors.concerns())


def test_embeddings_that_only_some_tasks_move_are_named():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 8)
            self.head = nn.Linear(8, 2)

        def forward(self, tokens):
            return self.head(self.embed(tokens).mean(1))

    torch.manual_seed(0)
    own = {f"t{k}": (torch.randint(10 * k, 10 * k + 10, (20, 3)), torch.randint(2, (20,))) for k in range(6)}
    shared = {f"t{k}": (torch.randint(60, (200, 3)), torch.randint(2, (200,))) for k in range(6)}
    vectors = TaskVectors(Problem(Words(), own, own["t0"]), Recipe(steps=20, lr=0.01, batch_size=None))
    said = "Most rows of embed.weight are moved by a few of the tasks only"
    assert any(said in sentence for sentence in vectors.concerns())
    assert not any(said in sentence for sentence in vectors.by("outputs").concerns()), "no weights are averaged"
    found = TaskVectors(Problem(Words(), shared, own["t0"]), Recipe(steps=20, lr=0.01, batch_size=None)).concerns()
    assert not any("embed.weight" in sentence for sentence in found)


# ---- on disk -----------------------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch):
    """Tasks that were trained, in order."""
    import whence.estimators.merge as merge

    done = []
    original = merge.train

    def counting(stack, recipe, state, subsets, seeds, steps, **how):
        done.extend(stack.problem.task_names[k] for k in subsets.argmax(1))
        return original(stack, recipe, state, subsets, seeds, steps, **how)

    monkeypatch.setattr(merge, "train", counting)
    return done


@pytest.mark.parametrize("batched", [True, False])
def test_vectors_are_kept_and_taken_up_again(tmp_path, trained, batched):
    model, (tasks, target) = make("mlp"), data()
    settings = {"path": tmp_path / "vectors", "batched": batched}
    first = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, **settings).batch(MIXED)["loss"]
    assert trained == list(tasks)
    files = sorted((tmp_path / "vectors").glob("*.safetensors"))
    assert [file.name.rsplit("-", 1)[0] for file in files] == ["task_0", "task_1", "task_2", "task_3"]
    np.testing.assert_array_equal(
        TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, **settings).batch(MIXED)["loss"], first
    )
    assert trained == list(tasks)
    files[2].unlink()
    again = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, **settings)
    np.testing.assert_allclose(again.batch(MIXED)["loss"], first, rtol=1e-9)
    assert trained[4:] == ["task 2"]
    plain = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE).batch(MIXED)["loss"]
    np.testing.assert_allclose(first, plain, rtol=1e-9)


def test_a_new_task_is_trained_alone_and_others_stay(tmp_path, trained):
    model, (tasks, target) = make("mlp"), data()
    some = {name: tasks[name] for name in list(tasks)[1:]}
    TaskVectors(Problem(model, some, target), RECIPE, path=tmp_path).batch(EYE[:3, :3])
    TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path).batch(EYE)
    assert trained == ["task 1", "task 2", "task 3", "task 0"]
    TaskVectors(Problem(model, some, target), RECIPE, path=tmp_path).batch(EYE[:3, :3])
    assert len(trained) == 4


def test_vectors_of_something_else_are_refused(tmp_path):
    model, (tasks, target) = make("mlp"), data()
    TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path).batch(EYE)
    before = sorted(file.name for file in tmp_path.iterdir())

    def refused(text, model=model, tasks=tasks, recipe=RECIPE, params=None, **settings):
        with pytest.raises(InputError, match=text):
            _ = TaskVectors(Problem(model, tasks, target, params=params), recipe, path=tmp_path, **settings).vectors

    refused(r"are of something else: start \(changed\)", model=make("mlp", seed=5))
    refused(r"are of something else: start \(changed\)", model=make("linear"))
    refused(r"are of something else: recipe \(changed\)", recipe=RECIPES["sgd"])
    refused(r"are of something else: steps \(was 12, is 3\)", early=0.25)
    refused(r"are of something else: seed \(was 0, is 1\)", seed=1)
    refused(r"are of something else: trained \(", params="3.*")
    swapped = {**tasks, "task 1": tasks["task 2"]}
    refused(r"are of something else: examples of task 1 \(changed\)\. Use another folder", tasks=swapped)
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_damaged_and_foreign_files_are_named(tmp_path):
    model, (tasks, target) = make("mlp"), data()
    folder = tmp_path / "vectors"

    def again():
        return TaskVectors(Problem(model, tasks, target), RECIPE, path=folder).vectors

    again()
    file = next(folder.glob("task_1*"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"task_1-\w+.safetensors cannot be read .* delete it, and it is made again"):
        again()
    tensors = load_file(next(folder.glob("task_2*")))
    save_file({**tensors, "0.bias": tensors["0.bias"] * torch.nan}, file)
    with pytest.raises(InputError, match="holds NaN or infinite numbers: delete it"):
        again()
    save_file({"0.bias": tensors["0.bias"]}, file)
    with pytest.raises(InputError, match="does not have the parameters of the model"):
        again()
    file.unlink()
    again()
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest.json is damaged: its checksum does not match"):
        again()
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="and no task vectors"):
        DeltaFolder(tmp_path, {}, {})


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, trained, error):
    import whence.estimators.deltas as deltas

    model, (tasks, target) = make("mlp"), data()
    saved = []

    def full(tensors, file, metadata):
        file.write_bytes(b"half of it")
        if len(saved) == 2:
            raise error
        saved.append(metadata["task"])
        save_file(tensors, file, metadata)

    monkeypatch.setattr(deltas, "save_file", full)
    with pytest.raises(InputError, match=r"task_2.*the disk is full. The folder has 2 task vectors, which will not"):
        _ = TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path).vectors
    assert not list(tmp_path.glob(".partial-*"))
    monkeypatch.undo()
    found = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, path=tmp_path).batch(MIXED)["loss"]
    plain = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE).batch(MIXED)["loss"]
    np.testing.assert_allclose(found, plain, rtol=1e-9)


def test_a_kill_between_two_vectors_costs_the_second_only(tmp_path, trained, monkeypatch):
    model, (tasks, target) = make("mlp"), data()
    original = DeltaFolder.save

    def killed(self, task, delta):
        if task == "task 2":
            raise KeyboardInterrupt
        return original(self, task, delta)

    monkeypatch.setattr(DeltaFolder, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        _ = TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path, batched=False).vectors
    monkeypatch.setattr(DeltaFolder, "save", original)
    del trained[:]
    _ = TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path, batched=False).vectors
    assert trained == ["task 2", "task 3"]


def test_vectors_too_large_for_memory_are_read_as_needed(tmp_path, monkeypatch):
    import whence.estimators.deltas as deltas

    model, (tasks, target) = make("mlp"), data()
    plain = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, path=tmp_path)
    expected = plain.batch(MIXED)["loss"]
    monkeypatch.setattr(deltas, "free_bytes", lambda device: 0)
    lazy = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, path=tmp_path)
    assert lazy.vectors.stacked is None
    np.testing.assert_allclose(lazy.batch(MIXED)["loss"], expected, rtol=1e-9)
    here = Vectors([dict(delta) for delta in lazy.vectors.deltas], torch.device("cpu"))
    assert here.stacked is not None  # without files there is no other way
    torch.testing.assert_close(lazy.vectors.stack("0.weight"), here.stack("0.weight"))


def test_tasks_that_diverge_are_named_and_the_others_kept(tmp_path, trained):
    model, (tasks, target) = make("mlp"), data()
    broken = {**tasks, "task 3": (tasks["task 3"][0] * torch.inf, tasks["task 3"][1])}
    with pytest.raises(
        InputError, match=r"diverged \(NaN\) on task 3 alone: lower the learning rate, or leave the task"
    ):
        TaskVectors(Problem(model, broken, target), RECIPE, path=tmp_path).batch(EYE)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert "task 3" in json.loads((tmp_path / "manifest.json").read_text())["tasks"]
    with pytest.raises(InputError, match="diverged"):
        TaskVectors(Problem(model, broken, target), RECIPE).batch(EYE)


# ---- the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["sample", "task"])
@pytest.mark.parametrize("background", [0.0, 0.5, 0.75])
def test_runs_that_see_all_tasks_make_up_the_shares_of_any_subset(background, weighting):
    """After one full step, weights are linear in the shares of the tasks: merging is exact, whatever runs saw."""
    model, (tasks, target) = make("mlp"), data()
    recipe = Recipe(steps=1, lr=0.3, optimizer="sgd", batch_size=None, weighting=weighting)
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), recipe, background=background)
    true = Retrain(Problem(model, tasks, target, per_query=True), recipe)
    expected = true.batch(MIXED, np.zeros(len(MIXED), int))["loss"]
    np.testing.assert_allclose(vectors.batch(MIXED)["loss"], expected, rtol=1e-9, atol=1e-11)


def test_runs_that_see_all_tasks_see_the_same_examples_of_them():
    sizes, share = np.array([30, 20, 10, 40]), 0.6
    weights = ((1 - share) * np.eye(4) + share * sizes / 100) / sizes
    recipe = Recipe(steps=400, batch_size=50)
    drawn = np.stack(list(draw_batches(weights, np.full(4, 3), sizes, recipe, 400, shared=True)), axis=1).reshape(4, -1)
    owner = np.repeat(np.arange(4), sizes)[drawn]
    for k in range(4):
        shares = np.bincount(owner[k], minlength=4) / len(owner[k])
        np.testing.assert_allclose(shares, (1 - share) * np.eye(4)[k] + share * sizes / 100, atol=0.02)
        inside = np.bincount(drawn[k][owner[k] == k], minlength=100)[np.repeat(np.arange(4), sizes) == k]
        assert inside.std() < 4 * np.sqrt(inside.mean()), "all examples of a task alike"
    alike = (drawn == drawn[0]).all(0).mean()
    assert alike == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("weighting", ["sample", "task"])
@pytest.mark.parametrize("runs", ["alone", "left out"])
@pytest.mark.parametrize("batched", [True, False])
def test_outputs_of_a_linear_model_are_merged_as_its_weights(runs, weighting, batched):
    model, (tasks, target) = make("mlp")[:1], data()  # one layer
    recipe = Recipe(steps=5, lr=0.05, batch_size=7, weighting=weighting)
    problem = Problem(model, tasks, target, per_query=True, metrics=["loss", "accuracy", "margin"])
    vectors = TaskVectors(problem, recipe, scale=1.5, runs=runs, batched=batched)
    by_weights, by_outputs = vectors.batch(MIXED), vectors.by("outputs").batch(MIXED)
    for name, values in by_weights.items():
        np.testing.assert_allclose(by_outputs[name], values, rtol=1e-9, atol=1e-11)


def runs_by_hand(model, tasks, target):
    """Logits of the model and of each run on a task alone, (K + 1, n, C)."""
    models = [model.eval(), *(by_hand(model, tasks, RECIPE, alone, 0) for alone in EYE)]
    with torch.no_grad():
        return torch.stack([one(target[0]) for one in models])


def test_outputs_probabilities_and_outcomes_of_runs_are_averaged():
    model, (tasks, target) = make("mlp"), data()
    logits = runs_by_hand(model, tasks, target)
    shares = MIXED / np.maximum(MIXED.sum(1, keepdims=True), 1)
    shares = torch.from_numpy(np.hstack([1 - shares.sum(1, keepdims=True), shares]))  # the empty subset is the model

    def loss(outputs):
        flat = nn.functional.cross_entropy(outputs.flatten(0, 1), target[1].repeat(len(outputs)), reduction="none")
        return flat.view(len(outputs), -1).numpy()

    expected = {
        "outputs": loss(torch.einsum("mk,knc->mnc", shares, logits)),
        "probabilities": loss(torch.einsum("mk,knc->mnc", shares, logits.softmax(-1)).log()),
        "outcomes": shares.numpy() @ loss(logits),
    }
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, weighting="task")
    for merge, values in expected.items():
        worse = pytest.warns(DataWarning, match="worse than the untrained model")  # as the mean of single runs is
        with worse if merge == "outcomes" else contextlib.nullcontext():
            found = vectors.by(merge).batch(MIXED)["loss"]
        np.testing.assert_allclose(found, values, rtol=1e-8, atol=1e-10)
    given = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, merge="probabilities", weighting="task")
    np.testing.assert_allclose(given.batch(MIXED)["loss"], expected["probabilities"], rtol=1e-8, atol=1e-10)


def test_merging_something_else_trains_nothing_again(trained):
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target), RECIPE)
    for estimate in (vectors, vectors.by("outputs"), vectors.by("probabilities")):
        estimate.batch(MIXED)
    assert trained == list(tasks)


def test_merged_outputs_are_tuned_and_checked_by_true_runs():
    model, (tasks, target) = make("mlp"), data()
    rows = np.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, merge="outputs")
    names = [f"loss[{query}]" for query in range(len(target[1]))]
    expected = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, merge="outputs", scale=0.5).batch(
        rows
    )["loss"]
    truth = whence.Outcomes(rows, expected, task_names=list(tasks), target_names=names)
    best = max(vectors.tuned(truth, [0.5, 2.0]).trials, key=lambda trial: trial.agreement)
    assert (best.scale, best.agreement) == (0.5, pytest.approx(1))
    assert vectors.check(truth).agreement > 0.9
    with pytest.raises(InputError, match="by parameter name are of merged weights, and not of outputs"):
        vectors.tuned(truth, [{"3.*": 2.0}])


def test_merged_outputs_in_blocks_are_the_same(monkeypatch):
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, merge="outputs")
    whole = vectors.batch(MIXED)["loss"]
    monkeypatch.setattr(merge_module, "BLOCK_NUMBERS", 3 * len(MIXED) * CLASSES)
    np.testing.assert_allclose(vectors.batch(MIXED)["loss"], whole, rtol=1e-9)


def test_statistics_of_merged_outputs_are_those_of_each_run():
    model, (tasks, target) = make("batch norm"), data()
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, merge="outputs")
    by_weights = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE)
    np.testing.assert_allclose(vectors.batch(EYE)["loss"], by_weights.batch(EYE)["loss"], rtol=1e-8, atol=1e-10)


def test_runs_that_leave_a_task_out_are_true_runs():
    model, (tasks, target) = make("mlp"), data()
    recipe = Recipe(steps=6, lr=0.05, batch_size=None, weighting="sample")
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), recipe, runs="left out")
    without = 1 - EYE
    expected = Retrain(Problem(model, tasks, target, per_query=True), recipe).batch(without, np.zeros(4, int))["loss"]
    for merge in ("weights", "outputs", "outcomes"):
        np.testing.assert_allclose(vectors.by(merge).batch(without)["loss"], expected, rtol=1e-8, atol=1e-10)
    assert "each without its task" in vectors.provenance["merge"]


@pytest.mark.parametrize("weighting", ["sample", "task"])
@pytest.mark.parametrize("batched", [True, False])
def test_runs_that_leave_a_task_out_see_batches_of_all_tasks_in_which_it_does_not_count(batched, weighting):
    model, (tasks, target) = make("mlp"), data()
    recipe = Recipe(steps=7, lr=0.1, optimizer="sgd", batch_size=12, weighting=weighting)
    vectors = TaskVectors(Problem(model, tasks, target, per_query=True), recipe, runs="left out", batched=batched)
    inputs, labels = (torch.cat(parts) for parts in zip(*tasks.values(), strict=True))
    owner, sizes = np.repeat(np.arange(4), SIZES), np.array(SIZES)
    share = sizes / sizes.sum() if weighting == "sample" else np.full(4, 0.25)
    expected = []
    for left in range(4):
        moved = copy.deepcopy(model)
        optimizer = torch.optim.SGD(moved.parameters(), 0.1)
        for (rows,) in draw_batches(np.ones((1, 4)), np.array([0]), sizes, recipe, 7):
            kept = rows[owner[rows] != left]
            loss = nn.functional.cross_entropy(moved(inputs[kept]), labels[kept], reduction="sum")
            optimizer.zero_grad()
            (loss / 12 / (1 - share[left])).backward()
            optimizer.step()
        expected.append(judged(moved.eval(), target))
    np.testing.assert_allclose(vectors.batch(1 - EYE)["loss"], expected, rtol=1e-8, atol=1e-10)


def test_what_cannot_be_merged_is_refused():
    model, (tasks, target) = make("mlp"), data()
    for options, message in (
        (
            {"merge": "output"},
            "'merge' parameter of TaskVectors must be 'weights', 'outputs', .* Got 'output' instead",
        ),
        ({"merge": "outputs", "scale": {"3.*": 2.0}}, "by parameter name are of merged weights, and not of outputs"),
        ({"merge": "probabilities", "background": 0.5}, "for runs on single tasks"),
        ({"merge": "probabilities", "runs": "left out"}, "for runs on single tasks"),
        ({"runs": "left"}, "'runs' parameter of TaskVectors must be 'alone' or 'left out'. Got 'left' instead"),
        ({"runs": "left out", "background": 0.5}, "leave 'background' at 0"),
    ):
        with pytest.raises(InputError, match=message):
            TaskVectors(Problem(model, tasks, target), RECIPE, **options)
    numbers = {name: (inputs, inputs[:, :CLASSES]) for name, (inputs, _) in tasks.items()}
    with pytest.raises(InputError, match="merge outputs instead"):
        TaskVectors(Problem(model, numbers, numbers["task 0"], loss="squared"), RECIPE, merge="probabilities")
    with pytest.raises(InputError, match="need two tasks or more"):
        TaskVectors(Problem(model, {"a": tasks["task 0"]}, target), RECIPE, runs="left out")


def test_the_background_is_told_and_must_be_a_share():
    model, (tasks, target) = make("mlp"), data()
    assert "all tasks" not in TaskVectors(Problem(model, tasks, target), RECIPE).provenance["merge"]
    vectors = TaskVectors(Problem(model, tasks, target), RECIPE, background=0.75)
    assert "all tasks in 0.75 of each" in vectors.provenance["merge"]
    with pytest.raises(InputError, match=r"'background' share of batches must be 0 or more, and below 1\. Got 1\."):
        TaskVectors(Problem(model, tasks, target), RECIPE, background=1)


def test_runs_that_saw_all_tasks_are_judged_by_their_loss_on_them():
    model, (tasks, target) = make("mlp"), data()
    vectors = TaskVectors(Problem(model, tasks, target), RECIPE, background=0.5)
    shares = np.array(SIZES) / sum(SIZES)
    chosen = [(0.5 * np.eye(4)[k] + 0.5 * shares) / np.array(SIZES) for k in (0, 1, 3)]
    everything = tuple(torch.cat(part) for part in zip(*tasks.values(), strict=True))
    expected = [judged(by_hand(model, tasks, RECIPE, weights, 0, shared=True), everything).mean() for weights in chosen]
    assert vectors.loss_of_runs() == pytest.approx(np.mean(expected), rel=1e-6)
    assert TaskVectors(Problem(model, tasks, target), RECIPE).loss_of_runs() is None


def test_runs_on_all_tasks_that_are_too_long_to_merge_are_named():
    inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    easy = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    recipe = Recipe(steps=300, lr=0.1, batch_size=None)
    learned = TaskVectors(Problem(nn.Linear(4, 2), easy, (inputs, labels)), recipe, background=0.5)
    model, (tasks, target) = make("mlp"), data()
    assert any("The runs have learned all tasks" in told and "background=0" in told for told in learned.concerns())
    apart = TaskVectors(Problem(model, tasks, target), RECIPE, background=0.5)
    apart.loss_of_runs = lambda: 0.5 * apart._losses[0]
    assert any("they have drifted apart. Stop them earlier" in told for told in apart.concerns())
    apart.loss_of_runs = lambda: apart._losses[0]
    assert not any("apart" in told for told in apart.concerns())


def test_vectors_that_saw_all_tasks_are_not_those_of_other_tasks(tmp_path):
    model, (tasks, target) = make("mlp"), data()
    fewer = {name: tasks[name] for name in ("task 0", "task 1", "task 2")}
    _ = TaskVectors(Problem(model, fewer, target), RECIPE, path=tmp_path, background=0.5).vectors
    with pytest.raises(InputError, match=r"were trained with all tasks, and these differ: task 3\. Use another folder"):
        _ = TaskVectors(Problem(model, tasks, target), RECIPE, path=tmp_path, background=0.5).vectors
    with pytest.raises(InputError, match=r"are of something else: background \(no longer there\)"):
        _ = TaskVectors(Problem(model, fewer, target), RECIPE, path=tmp_path).vectors


@pytest.mark.slow
def test_vectors_are_trained_by_workers_and_kept_one_by_one(tmp_path, trained):
    model, (tasks, target) = make("mlp"), data()
    elsewhere = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, path=tmp_path, batched=False)
    elsewhere.train(jobs=2, progress=False)
    assert trained == [], "not in this process"
    here = TaskVectors(Problem(model, tasks, target, per_query=True), RECIPE, batched=False)
    np.testing.assert_allclose(elsewhere.batch(MIXED)["loss"], here.batch(MIXED)["loss"], rtol=1e-9)
    kept = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    elsewhere.train(engine="inline", progress=False)
    assert kept == {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"To train task vectors elsewhere, give a 'path'"):
        here.train(jobs=2)


def test_a_worker_whose_task_diverges_keeps_the_others(tmp_path):
    model, (tasks, target) = make("mlp"), data()
    broken = {**tasks, "task 3": (tasks["task 3"][0] * torch.inf, tasks["task 3"][1])}
    vectors = TaskVectors(Problem(model, broken, target), RECIPE, path=tmp_path, batched=False)
    with pytest.warns(DataWarning, match="1 of 4"):
        vectors.train(engine="inline", progress=False)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


@pytest.mark.parametrize("kind", [TaskVectors, OneStep])
def test_measured_it_is_a_table(kind):
    model, (tasks, target) = make("mlp"), data()
    estimate = kind(Problem(model, tasks, {"a": target, "b": target}, metrics=["loss", "accuracy"]), RECIPE)
    runs = whence.measure(estimate, whence.Bernoulli(0.5), n=7, seed=1)
    assert runs.target_names == ("a/loss", "b/loss", "a/accuracy", "b/accuracy")
    assert runs.maximize == (False, False, True, True)
    assert runs.task_names == tuple(tasks)
    assert runs.provenance["outcomes"] == {
        TaskVectors: "merged task vectors", OneStep: "one step of the task gradients"
    }[kind]  # fmt: skip


def test_bad_input_is_refused():
    model, (tasks, target) = make("mlp"), data()
    with pytest.raises(InputError, match="'weighting' parameter must be 'sample' or 'task'"):
        TaskVectors(Problem(model, tasks, target), RECIPE, weighting="average")
    with pytest.raises(InputError, match=r"'early' share of steps must be above 0 and at most 1. Got 0"):
        TaskVectors(Problem(model, tasks, target), RECIPE, early=0)
    with pytest.raises(InputError, match="must be a finite number, or numbers by parameter name"):
        TaskVectors(Problem(model, tasks, target), RECIPE, scale=float("nan"))
    with pytest.raises(InputError, match=r"No trained parameter is named 'haed.\*'"):
        TaskVectors(Problem(model, tasks, target), RECIPE, scale={"haed.*": 1.0})
    with pytest.raises(InputError, match=r"must be a whence.Problem\(model, tasks, targets\). Got Sequential instead"):
        OneStep(model, RECIPE)
    vectors = TaskVectors(Problem(model, tasks, target), RECIPE)
    with pytest.raises(InputError, match="a column for each of the 4 tasks"):
        vectors.batch([[1, 0, 1, 0, 1]])
    with pytest.raises(InputError, match="no task 'task 8'"):
        vectors(["task 8"])
